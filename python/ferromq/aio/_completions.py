"""Futures of an event loop for what the Rust core does without a waiting thread."""

import asyncio
import time
from itertools import count
from typing import Any

from ferromq import _ferromq
from ferromq.errors import ConnectionFailed, RequestTimeout

_LOOK = 0.05
"""Seconds between looks for futures whose time is over."""


class LoopCompletions:
    """Ends futures of one loop, which is woken once for many of them. Make and use it on the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.queue = _ferromq.Completions()
        """Where outcomes come."""
        self._loop = loop
        self._futures: dict[int, tuple[asyncio.Future[Any], float]] = {}
        self._numbers = count()
        self._timer: asyncio.TimerHandle | None = None
        loop.add_reader(self.queue.fileno(), self._take)

    def expect(self, timeout: float) -> "tuple[int, asyncio.Future[Any]]":
        """Return a number, and the future of the outcome that comes under it, or of `RequestTimeout`."""
        number = next(self._numbers)
        return number, self.late(number, timeout)

    def late(self, number: int, timeout: float) -> "asyncio.Future[Any]":
        """Return another future of the outcome under *number*, whose first one was given up before it came."""
        future = self._loop.create_future()
        self._futures[number] = future, time.monotonic() + timeout
        if self._timer is None:
            self._timer = self._loop.call_later(_LOOK, self._look)
        return future

    def forget(self, number: int) -> None:
        """Expect nothing under a number, because nothing was started."""
        del self._futures[number]

    def _take(self) -> None:
        for number, outcome in self.queue.take():
            future, _ = self._futures.pop(number, (None, 0.0))
            if future is None or future.done():  # given up
                continue
            if isinstance(outcome, BaseException):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)

    def _look(self) -> None:
        self._timer = None
        now = time.monotonic()
        for number, (future, until) in list(self._futures.items()):
            if future.done() or until <= now:
                del self._futures[number]
                if not future.done():
                    future.set_exception(RequestTimeout("no answer from the broker in time"))
        if self._futures:
            self._timer = self._loop.call_later(_LOOK, self._look)

    def close(self) -> None:
        """Take what has come; the other futures end with `ConnectionFailed`."""
        self._take()
        self._loop.remove_reader(self.queue.fileno())
        if self._timer is not None:
            self._timer.cancel()
        for future, _ in self._futures.values():
            if not future.done():
                future.set_exception(ConnectionFailed("the client was closed while the broker was called"))
        self._futures.clear()
