"""
Delays the messages of a replay: to a rate, to the intervals at which they were stored, or not at all.

It sends nothing; tests give it a clock of their own.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence

from ferromq.errors import ConfigError

BATCH_WINDOW = 0.01
"""Seconds; messages that become due within it are sent together."""
CATCH_UP = 0.1
"""Seconds of delay that a slow sender may make up for above the rate. What exceeds them is dropped."""


def check(rate: float | None, speed: float | None) -> None:
    """Raise ConfigError unless each of *rate* and *speed* is None or above 0."""
    for name, value, unit in (
        ("rate", rate, "messages a second"),
        ("speed", speed, "how many times as fast as stored"),
    ):
        if value is not None and not 0 < value < float("inf"):
            raise ConfigError(f"{name} is {value}; allowed: a number above 0, {unit}")


class RateLimit:
    """
    Yields messages when they are due, in their order.

    *rate* is the maximum number of messages a second. *speed* keeps the intervals of their store times, divided by it;
    a late message is due at once. With both, the later time counts; with neither, every message is due at once. *now*
    is a clock in seconds; *wait* returns after that many seconds, or earlier.
    """

    def __init__(
        self,
        rate: float | None = None,
        speed: float | None = None,
        *,
        now: Callable[[], float] = time.monotonic,
        wait: Callable[[float], object] | None = None,
    ) -> None:
        check(rate, speed)
        self._rate, self._speed = rate, speed
        self._now = now
        self._wait = threading.Event().wait if wait is None else wait
        self._next = float("-inf")
        """When the rate allows the next message."""
        self._begin: tuple[float, int] | None = None
        """When the first message was sent, and its store time."""

    def slices(self, times: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Yield slices [start, end) of the messages stored at *times* (microseconds), each when it is due."""
        start = 0
        while start < len(times):
            now = self._now()
            if self._begin is None:
                self._begin = (now, times[start])
                self._next = now
            self._next = max(self._next, now - CATCH_UP)
            due = self._due(times[start], 0)
            if due > now:
                self._wait(due - now)
                continue
            end = start + 1
            while end < len(times) and self._due(times[end], end - start) <= now + BATCH_WINDOW:
                end += 1
            if self._rate is not None:
                self._next += (end - start) / self._rate
            yield start, end
            start = end

    def _due(self, at: int, after: int) -> float:
        """Return when the message stored *at* is due, *after* that many others."""
        assert self._begin is not None
        due = float("-inf")
        if self._rate is not None:
            due = self._next + after / self._rate
        if self._speed is not None:
            begin, first = self._begin
            due = max(due, begin + (at - first) / 1e6 / self._speed)
        return due
