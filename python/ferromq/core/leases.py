"""
What a consumer knows of acknowledgements on their way: by which broker, and which were refused.

No I/O and no threads: those who have them share this.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence

from ferromq._ferromq import MessageView, unsettle_all
from ferromq.errors import FerromqError, LeaseExpired
from ferromq.process.limited_log import LimitedLog

_log = logging.getLogger("ferromq.client")

FLUSH_COUNT = 256
FLUSH_AFTER = 0.01
"""Seconds an acknowledgement waits for company at most."""
MAX_IN_REQUEST = 2048
MAX_WAITING_ACKS = 16_384
"""Above as many, taking more waits."""
NOT_RENEWED = "lease not renewed message_id=%s: %s"


class Refusals:
    """What became of acknowledgements that were sent in the background and refused."""

    def __init__(self, seldom: LimitedLog | None = None) -> None:
        self.count = 0
        """How many there were since `take`."""
        self.first: FerromqError | None = None
        self._seldom = seldom or LimitedLog(_log)
        self._not_logged = 0
        self._is_over = False

    def add(self, failures: Sequence[tuple[int, FerromqError]]) -> None:
        """
        Count what failed of one request: how many acknowledgements, and why.

        Each is counted by one line of the log: at once, or by a later line where there were enough for now.
        """
        if not failures:
            return
        count, error = sum(each for each, _ in failures), failures[0][1]
        self.count += count
        self.first = self.first or error
        self._not_logged += count
        if self._is_over:
            self.end()
            return
        text = "acknowledgements failed, the messages are redelivered count=%d: %s"
        if self._seldom.log(logging.WARNING, text, self._not_logged, error):
            self._not_logged = 0

    def end(self) -> None:
        """Log how many acknowledgements failed that no line has counted; then there is a line for each failure."""
        self._is_over = True
        count, self._not_logged = self._not_logged, 0
        if count:
            _log.warning("acknowledgements failed at the end, the messages are redelivered count=%d", count)

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
    if ids:
        unsettle_all([message for message in messages if message.message_id in ids])


def by_endpoint(messages: Iterable[MessageView]) -> dict[str, list[MessageView]]:
    """Group messages by the broker they came from."""
    grouped: dict[str, list[MessageView]] = {}
    for message in messages:
        grouped.setdefault(message.endpoint, []).append(message)
    return grouped


def ended(message: MessageView) -> LeaseExpired:
    """Return the error of a change to a message whose life in the group this client has ended."""
    return LeaseExpired(f"message {message.message_id} is acknowledged or a dead letter already: its lease has ended")


def left_to_return(messages: Iterable[MessageView]) -> list[MessageView]:
    """Return the messages whose lives in the group have not ended, each once."""
    return [message for message in dict.fromkeys(messages) if not message.is_settled]


def check_returned(failures: Mapping[MessageView, FerromqError]) -> None:
    """Raise the first failure of giving back; a lease that had ended is none: its message is redelivered."""
    errors = [error for error in failures.values() if not isinstance(error, LeaseExpired)]
    if errors:
        errors[0].add_note(f"{len(errors)} messages were not given back; they come again when their leases expire")
        raise errors[0]
