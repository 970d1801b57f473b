"""The virtual clock of tests: it moves when the test says so, and leaves nothing behind that was due."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Protocol

from ferromq.core.requests import seconds as duration
from ferromq.process.clock import Clock


class Settling(Protocol):
    """What has work that depends on the clock."""

    def settle_before(self) -> None:
        """Wait until what was sent so far waits for its time."""

    def settle_after(self) -> None:
        """Wait until everything is delivered whose time has come."""


class VirtualClock(Clock):
    """
    A clock that begins at the present and stands still between two calls of `advance`.

    When `advance` returns, delayed messages that became due are in their topics, expired leases have ended, check-backs
    of transactions are sent, and retries may be received. One call is one step: what fails again after it waits for the
    next call.
    """

    def __init__(self) -> None:
        super().__init__(Clock.manual().raw)
        self._settling: list[Settling] = []

    def now(self) -> datetime:
        """Return the time in UTC, for `delivery_timestamp`."""
        return datetime.fromtimestamp(self.now_ms() / 1000, UTC)

    def advance(
        self,
        step: timedelta | float = 0,
        *,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
        milliseconds: float = 0,
    ) -> None:
        """
        Move the clock forward by *step* (float: seconds) and the times given by name, and do all work that becomes due.

        Raises `ValueError` for a step back.

        A lease that a consumer holds at this moment ends if the step is longer: wait until handlers are done first.
        """
        seconds += duration(step)
        for each in self._settling:
            each.settle_before()
        super().advance(days=days, hours=hours, minutes=minutes, seconds=seconds, milliseconds=milliseconds)
        for each in self._settling:
            each.settle_after()

    @contextmanager
    def settles(self, part: Settling) -> Iterator[None]:
        """Make `advance` wait for *part* inside of the `with`."""
        self._settling.append(part)
        try:
            yield
        finally:
            self._settling.remove(part)
