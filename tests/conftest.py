"""What the tests of all folders share."""

import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

# The kit for talks between processes, `fault_proxy`.
sys.path.insert(0, str(Path(__file__).parent / "faults"))

PATIENCE = 10.0


@pytest.fixture
def no_thread_left() -> Iterator[None]:
    """Fail where a thread of ours is left after the test; put it before what the test starts."""
    before = set(threading.enumerate())
    yield
    for thread in threading.enumerate():
        if thread not in before and thread.name.startswith("ferromq-"):
            thread.join(PATIENCE)
            assert not thread.is_alive(), f"{thread.name} is left"
