"""
When which message of a replay is due: by a rate, by the rhythm in which the messages were stored, or at once.

Pure but for the clock it is given; it sends nothing.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence

from ferromq.errors import ConfigError

TOGETHER = 0.01
"""Seconds: what is due within them is sent together."""
BEHIND = 0.1
"""Seconds a sender that is slower than the rate may catch up; beyond, the rate begins anew."""


def check(rate: float | None, speed: float | None) -> None:
    """Raise ConfigError unless each of *rate* and *speed* is None or above 0."""
    for name, value, unit in (
        ("rate", rate, "messages a second"),
        ("speed", speed, "how many times as fast as stored"),
    ):
        if value is not None and not 0 < value < float("inf"):
            raise ConfigError(f"{name} is {value}; allowed: a number above 0, {unit}")


class Pace:
    """
    Lets messages pass when they are due, in the order they come.

    *rate*: messages a second at most. *speed*: in the rhythm of their times, so many times as fast; what is late is
    let pass at once. Both, and the later one counts; neither, and all pass. *now* is a clock in seconds, and *wait*
    returns once that many seconds of it have passed, or earlier.
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
        """When the rate has room again."""
        self._begin: tuple[float, int] | None = None
        """When the first message passed, and its own time."""

    def slices(self, times: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Yield parts [start, end) of the messages stored at *times* (microseconds), each when it is due."""
        start = 0
        while start < len(times):
            now = self._now()
            if self._begin is None:
                self._begin = (now, times[start])
                self._next = now
            self._next = max(self._next, now - BEHIND)
            due = self._due(times[start], 0)
            if due > now:
                self._wait(due - now)
                continue
            end = start + 1
            while end < len(times) and self._due(times[end], end - start) <= now + TOGETHER:
                end += 1
            if self._rate is not None:
                self._next += (end - start) / self._rate
            yield start, end
            start = end

    def _due(self, at: int, after: int) -> float:
        """Return when the message stored *at* may pass, *after* so many others."""
        assert self._begin is not None
        due = float("-inf")
        if self._rate is not None:
            due = self._next + after / self._rate
        if self._speed is not None:
            begin, first = self._begin
            due = max(due, begin + (at - first) / 1e6 / self._speed)
        return due
