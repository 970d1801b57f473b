"""What the system tests share."""

import threading
from collections.abc import Callable

import pytest

PATIENCE = 10.0
PAUSE = 0.01


@pytest.fixture
def eventually() -> Callable[[Callable[[], bool]], bool]:
    """
    Return a function that waits until a condition holds, ten seconds at most, and says whether it does.

    For what happens without an answer to wait for: dispatch, a closed connection, a process that ends.
    """
    pause = threading.Event()

    def wait(condition: Callable[[], bool]) -> bool:
        return any(condition() or pause.wait(PAUSE) for _ in range(int(PATIENCE / PAUSE)))

    return wait
