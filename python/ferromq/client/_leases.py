"""
What a consumer knows of acknowledgements on their way: by which broker, and which were refused.

No I/O and no threads: those who have them share this.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass

from ferromq._ferromq import MessageView
from ferromq.errors import FerromqError

_log = logging.getLogger("ferromq.client")

FLUSH_COUNT = 256
FLUSH_AFTER = 0.01
"""Seconds an acknowledgement waits for company at most."""
MAX_IN_REQUEST = 2048
MAX_WAITING_ACKS = 16_384
"""Above as many, taking more waits."""


@dataclass(slots=True)
class Refusals:
    """What became of acknowledgements that were sent in the background and refused."""

    count: int = 0
    first: FerromqError | None = None

    def add(self, count: int, error: FerromqError) -> None:
        """Count refused acknowledgements; the first one since `take` is logged."""
        if not self.count:
            _log.warning("acknowledgements failed, the messages are redelivered count=%d: %s", count, error)
        self.count += count
        self.first = self.first or error

    def take(self) -> FerromqError | None:
        """Return the first failure since the last call, with the number of all, and forget them."""
        error, count = self.first, self.count
        self.first, self.count = None, 0
        if error is not None:
            error.add_note(f"{count} acknowledgements failed in all; their messages are redelivered")
        return error


def unsettle(messages: Iterable[MessageView], refused: Iterable[str]) -> None:
    """Note of the messages with the ids *refused* that their lives in the group have not ended."""
    ids = set(refused)
    for message in messages:
        if message.message_id in ids:
            message.unsettle()


def by_endpoint(messages: Iterable[MessageView]) -> dict[str, list[MessageView]]:
    """Group messages by the broker they came from."""
    grouped: dict[str, list[MessageView]] = {}
    for message in messages:
        grouped.setdefault(message.endpoint, []).append(message)
    return grouped
