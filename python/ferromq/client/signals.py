"""SIGTERM while `run` runs in the main thread: it ends as after `stop`, unless the program handles SIGTERM itself."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_stops: list[Callable[[], object]] = []
"""Of the runs in the main thread: several tasks of one event loop may run consumers."""


@contextmanager
def stopped_by_sigterm(stop: Callable[[], object]) -> Iterator[None]:
    """
    Have *stop* called at SIGTERM, in the main thread and unless the program has a handler; restore what was there.

    *stop* is called between any two steps of the main thread: it must not wait for a lock.
    """
    if threading.current_thread() is not threading.main_thread() or not _is_ours():
        yield
        return
    if not _stops:
        signal.signal(signal.SIGTERM, _stop_all)
    _stops.append(stop)
    try:
        yield
    finally:
        _stops.remove(stop)
        # What the program has set meanwhile stays.
        if not _stops and signal.getsignal(signal.SIGTERM) is _stop_all:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _is_ours() -> bool:
    return signal.getsignal(signal.SIGTERM) in {signal.SIG_DFL, _stop_all}


def _stop_all(_signal: int, _frame: FrameType | None) -> None:
    for stop in tuple(_stops):
        stop()
