"""Fixtures of the system tests."""

import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

# Modules that several test files import, such as `remoting_peer`.
sys.path.insert(0, str(Path(__file__).parent))

PATIENCE = 30.0
PAUSE = 0.01


@pytest.fixture
def eventually() -> Callable[[Callable[[], bool]], bool]:
    """
    Return a function that waits until a condition holds, at most thirty seconds, and returns whether it does.

    For events without an answer to wait for: dispatch, a closed connection, the end of a process.
    """
    pause = threading.Event()

    def wait(condition: Callable[[], bool]) -> bool:
        return any(condition() or pause.wait(PAUSE) for _ in range(int(PATIENCE / PAUSE)))

    return wait


@pytest.fixture(autouse=True)
def nothing_outlives_a_test(no_process_left: None) -> None:
    """Fail if a program that the test started still runs."""
