"""
A row of the matrix: one version of one client, its program, and the checks of that program.

CONTRIBUTING.md describes the checks. The topic of a check is `CHECK_RUN`, as is the group.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

TOPICS: Final[Mapping[str, str | None]] = {
    "send": "NORMAL",
    "consume": "NORMAL",
    "acknowledge": "NORMAL",
    "tags": "NORMAL",
    "sql": "NORMAL",
    "order": "FIFO",
    "order_push": "FIFO",
    "delay": "DELAY",
    "transaction": "TRANSACTION",
    "retry": "NORMAL",
    "dead_letter": "NORMAL",
    "recall": "DELAY",
    "priority": "PRIORITY",
    "late_ack": "NORMAL",
    "second_ack": "NORMAL",
    "short_invisible": "NORMAL",
    "long_delay": "DELAY",
    "unknown_topic": None,
    "big_body": "NORMAL",
    "wrong_type": "NORMAL",
}
"""The kind of messages of a check's topic; None: the topic must not exist."""
ORDERED: Final = frozenset({"order", "order_push"})
"""The checks whose group consumes in order."""
DEAD_AFTER: Final = {"dead_letter": 1}
"""The retries of a check's group, if not RocketMQ's 16."""
RETRY_DELAYS: Final = (2.0,)
"""The wait of a gRPC consumer after a failure, in seconds."""
LIMIT_S: Final = 170.0
"""How long a program may run."""


class CannotFetchError(Exception):
    """A client cannot be fetched here; the text has the reason."""


class BuildError(Exception):
    """A program of ours, or its list of dependencies, is wrong; the text has the reason."""


@dataclass(frozen=True)
class Row:
    """One version of one client."""

    client: str
    """Its name in the table and in `differences.toml`."""
    version: str
    checks: Sequence[str]
    """The program's checks; each needs its `CHECK` line."""
    prepare: Callable[[Path], Sequence[str]]
    """
    Fetches and compiles into the given directory, once, and returns the command.

    Raises `CannotFetchError`, `BuildError`.
    """
    limit_s: float = LIMIT_S
    """The program's time limit; its missing checks then fail."""
    beside: bool = True
    """Whether the program can run against RocketMQ and ferromq at the same time."""
    keys: tuple[str, str] | None = None
    """The access key and the secret key of its clients."""
    refusal: str = ""
    """A regular expression of the failure that each check must see; "": each must pass."""
    topics: Mapping[str, str | None] = field(default_factory=dict)
    """The topics of this client's own checks, as in `TOPICS`; other names are topics without a check."""

    @property
    def slug(self) -> str:
        """The name of the row's directory."""
        return f"{self.client}-{self.version}".lower().replace(" ", "-").replace("/", "-")

    def kinds(self) -> dict[str, str | None]:
        """Return the kind of messages of each topic the row needs."""
        known = {**TOPICS, **self.topics}
        return {name: known[name] for name in dict.fromkeys((*self.checks, *self.topics))}
