"""Calls functions at once: with many things, on threads that last as long as the call, or in the calling thread."""

import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future
from contextlib import suppress
from typing import ParamSpec, TypeVar

from ferromq.client.connection import remaining

T = TypeVar("T")
P = ParamSpec("P")


class InThisThread(Executor):
    """An executor that calls each function before `submit` returns."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> "Future[T]":
        """Call a function, and return the future of its result."""
        future: Future[T] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 (whatever it is, it is the future's)
            future.set_exception(error)
        return future


def at_once(work: Callable[[T], object], things: Iterable[T], threads: int, until: float) -> None:
    """
    Call *work* with each of *things*, on so many *threads*, this one included, and return by *until* (monotonic).

    What has not begun by then is left out. *work* ends by *until* itself, and raises nothing.
    """
    waiting = deque(things)

    def take() -> None:
        while remaining(until):
            try:
                thing = waiting.popleft()
            except IndexError:
                return
            work(thing)

    helpers = []
    with suppress(RuntimeError):  # the interpreter ends: it starts no more threads
        for _ in range(min(threads, len(waiting)) - 1):
            helper = threading.Thread(target=take, daemon=True)
            helper.start()
            helpers.append(helper)
    take()
    for helper in helpers:
        helper.join(remaining(until))
