"""Calls a function with many things at once, on threads that last as long as the call."""

import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TypeVar

from ferromq.client.connection import remaining

T = TypeVar("T")


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
