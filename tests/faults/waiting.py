"""The wait for an effect without an answer to wait for: dispatch, a closed connection, the end of a process."""

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
PAUSE = 0.1
# Java's clients send a heartbeat and look for routes every 30 s.
PATIENCE = 150.0


def eventually(condition: Callable[[], T], patience: float = PATIENCE, pause: float = PAUSE) -> T:
    """Wait until a condition is true, at most so many seconds, and return its last value."""
    never = threading.Event()
    for _ in range(int(patience / pause)):
        if found := condition():
            return found
        never.wait(pause)
    return condition()
