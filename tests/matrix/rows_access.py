"""The rows of clients with right, wrong and missing keys, and with those of a user without policies."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import rows_grpc
import rows_remoting
from fetching import CACHE
from rows import Row

ENTITLED: Final = "ada"
"""The user that may send to and receive from the topics of the checks."""
USERS: Final = ((ENTITLED, "ada-s-secret"), ("bob", "bob-s-secret"))
_KEYS: Final[dict[str, tuple[str, str] | None]] = {
    "right": USERS[0],
    "wrong": (ENTITLED, "another"),
    "unknown": ("carl", "ada-s-secret"),
    "missing": None,
    "powerless": USERS[1],
}
_GRPC: Final = ("send", "tags", "transaction")
"""In `tags` the consumer comes first."""
_REMOTING: Final = ("send", "pull", "transaction")
CHECKS: Final = tuple(dict.fromkeys((*_GRPC, *_REMOTING)))
_CHOSEN: Final = (
    *(("java-grpc", "5.2.0"), ("python-grpc", "5.1.2"), ("go-grpc", "5.1.4"), ("node-grpc", "1.0.8")),
    *(("java-remoting", "4.9.8"), ("java-remoting", "5.1.4"), ("java-remoting", "5.5.0")),
)
_REFUSALS: Final = {
    "java-grpc": "response-code=40100",
    "java-remoting": "CODE: 16 ",
    # The others do not tell the code of a refused start.
    "python-grpc": "failed to fetch topic:.* route",
    "go-grpc": "failed to get topic route data result from remote",
    "node-grpc": "Failed to fetch topic routes",
}


def _rows() -> Iterator[Row]:
    for row in (*rows_grpc.ROWS, *rows_remoting.ROWS):
        if (row.client, row.version) not in _CHOSEN:
            continue
        checks = _GRPC if row.client.endswith("grpc") else _REMOTING

        # Java's remoting program takes the checks as arguments, the others find them in their environment.
        words = checks if checks is _REMOTING else ()

        def prepare(_: Path, row: Row = row, words: Sequence[str] = words) -> Sequence[str]:
            return [*row.prepare(CACHE / row.slug), *words]

        for word, keys in _KEYS.items():
            yield replace(
                row,
                client=f"{row.client}, {word} keys",
                checks=checks,
                prepare=prepare,
                keys=keys,
                refusal="" if word == "right" else _REFUSALS[row.client],
                topics={name: kind for name, kind in row.topics.items() if name in checks},
            )


ROWS: tuple[Row, ...] = tuple(_rows())
