"""Futures of an event loop for what the Rust core does without a waiting thread."""

import asyncio
from collections.abc import Callable
from itertools import count
from typing import Any

from ferromq import _ferromq
from ferromq.errors import ConnectionFailed


class LoopCompletions:
    """Ends futures of one loop, which is woken once for many of them. Make and use it on the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._completions = _ferromq.Completions()
        self._futures: dict[int, asyncio.Future[Any]] = {}
        self._numbers = count()
        loop.add_reader(self._completions.fileno(), self._take)

    def start(self, begin: Callable[[_ferromq.Completions, int], bool]) -> "asyncio.Future[Any] | None":
        """
        Start something with *begin*, which is given where its outcome shall go, and return the future of that.

        Return None if *begin* returned False: nothing was started.
        """
        number = next(self._numbers)
        future = self._futures[number] = self._loop.create_future()
        if begin(self._completions, number):
            return future
        del self._futures[number]
        return None

    def _take(self) -> None:
        for number, outcome in self._completions.take():
            future = self._futures.pop(number, None)
            if future is None or future.done():  # given up
                continue
            if isinstance(outcome, BaseException):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)

    def close(self) -> None:
        """Take what has come; the other futures end with `ConnectionFailed`."""
        self._take()
        self._loop.remove_reader(self._completions.fileno())
        for future in self._futures.values():
            if not future.done():
                future.set_exception(ConnectionFailed("the client was closed while the broker was called"))
        self._futures.clear()
