"""
A row of the matrix: one version of one client, the program it is tried with, and the checks that program makes.

What a check asks is in CONTRIBUTING.md. The topic of a check is `CHECK_RUN`, as is the group.
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
"""The kind of messages that a check's topic takes; None: the check needs that there is no topic."""
ORDERED: Final = frozenset({"order", "order_push"})
"""The checks whose group consumes in order."""
DEAD_AFTER: Final = {"dead_letter": 1}
"""How many retries a check's group allows, where it is not RocketMQ's 16."""
RETRY_DELAYS: Final = (2.0,)
"""What a gRPC consumer waits after a failure, in seconds."""
LIMIT_S: Final = 170.0
"""How long a program may run."""


class CannotFetchError(Exception):
    """A client cannot be fetched here; the text says why."""


class BuildError(Exception):
    """A program of ours, or what it says that it needs, is wrong; the text says why."""


@dataclass(frozen=True)
class Row:
    """One version of one client."""

    client: str
    """As the table shows it, and as `differences.toml` names it."""
    version: str
    checks: Sequence[str]
    """What the program checks; each needs its `CHECK` line."""
    prepare: Callable[[Path], Sequence[str]]
    """
    Fetches and compiles into the given directory, once, and returns the command.

    Raises `CannotFetchError`, `BuildError`.
    """
    limit_s: float = LIMIT_S
    """After so long the program is ended; what it has not checked has failed."""
    beside: bool = True
    """Whether the program may run against the original and against ours at the same time."""
    topics: Mapping[str, str | None] = field(default_factory=dict)
    """The topics of checks that only this client has, as `TOPICS`; other names are topics without a check."""

    @property
    def slug(self) -> str:
        """The name of the row's directory."""
        return f"{self.client}-{self.version}".lower().replace(" ", "-").replace("/", "-")

    def kinds(self) -> dict[str, str | None]:
        """Return the kind of messages of each topic the row needs."""
        known = {**TOPICS, **self.topics}
        return {name: known[name] for name in dict.fromkeys((*self.checks, *self.topics))}
