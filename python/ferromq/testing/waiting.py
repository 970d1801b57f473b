"""
Waits for a condition that only the store can tell.

The hot path answers sends and acknowledgements without the interpreter, so no event of theirs reaches Python. What a
store knows costs microseconds to read; a wait reads it again after a pause that begins short and stays short.
"""

import time
from collections.abc import Callable

_FIRST_PAUSE, _LONGEST_PAUSE = 0.0002, 0.005
"""Seconds."""


def until(condition: Callable[[], bool], timeout: float) -> bool:
    """Wait up to *timeout* seconds until *condition* holds, and return whether it does."""
    give_up = time.monotonic() + timeout
    pause = _FIRST_PAUSE
    while not condition():
        left = give_up - time.monotonic()
        if left <= 0:
            return False
        time.sleep(min(pause, left))
        pause = min(2 * pause, _LONGEST_PAUSE)
    return True
