"""
What a consumer holds: acknowledgements on their way, and messages received ahead of their use.

No I/O and no threads: those who have them share this.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field

from ferromq._ferromq import MessageView
from ferromq.client._retry import InOrder
from ferromq.errors import FerromqError

_log = logging.getLogger("ferromq.client")

FLUSH_COUNT = 256
FLUSH_AFTER = 0.01
"""Seconds an acknowledgement waits for company at most."""
MAX_IN_REQUEST = 2048

FIRST_BATCH = 32
MAX_BATCH = 1000
_AHEAD = 0.25
"""Seconds of work that a batch received ahead should hold."""


@dataclass(slots=True)
class Acks:
    """Acknowledgements that wait for company, and what became of those that were sent."""

    messages: list[MessageView] = field(default_factory=list)
    failures: int = 0
    first_failure: FerromqError | None = None

    def take(self) -> dict[str, list[MessageView]]:
        """Take what is there, at most one request's worth a broker."""
        taken, self.messages = self.messages[:MAX_IN_REQUEST], self.messages[MAX_IN_REQUEST:]
        return by_endpoint(taken)

    def refused(self, count: int, error: FerromqError) -> None:
        """Keep in mind that acknowledgements failed; said once in the log."""
        if not self.failures:
            _log.warning("acknowledgements failed, the messages come again count=%d: %s", count, error)
        self.failures += count
        self.first_failure = self.first_failure or error

    def take_failure(self) -> FerromqError | None:
        """Return the first failure since the last time, told how many there were."""
        error, count = self.first_failure, self.failures
        self.first_failure, self.failures = None, 0
        if error is not None:
            error.add_note(f"{count} acknowledgements failed in all; their messages come again")
        return error


def by_endpoint(messages: Iterable[MessageView]) -> dict[str, list[MessageView]]:
    """Group messages by the broker they came from."""
    grouped: dict[str, list[MessageView]] = {}
    for message in messages:
        grouped.setdefault(message.endpoint, []).append(message)
    return grouped


@dataclass(slots=True)
class Ahead:
    """How many messages to receive ahead: about a quarter of a second's work, never much more than can be used."""

    invisible: float
    """Seconds a lease lasts."""
    size: int = FIRST_BATCH

    def used(self, count: int, seconds: float) -> None:
        """Learn from *count* messages that took *seconds* to use."""
        if count:
            horizon = min(_AHEAD, self.invisible / 10)
            fits = MAX_BATCH if seconds <= 0 else int(count / seconds * horizon)
            # Grows fast, but on evidence: twice what was just seen to work.
            self.size = max(1, min(fits, 2 * max(self.size, count), MAX_BATCH))


@dataclass(slots=True)
class Leased:
    """Messages received ahead, until when they may be used (monotonic)."""

    messages: list[MessageView]
    until: float
    in_order: InOrder | None = None
    """What of it was used, where the group keeps order and its use has begun."""
