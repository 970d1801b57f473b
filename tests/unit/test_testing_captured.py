"""Reads of a store by `ferromq.testing`: they wait until the store has dispatched what was stored before them."""

from typing import Any

import pytest

from ferromq.testing import captured
from ferromq.testing.captured import Marks

TIMER = "rmq_sys_wheel_timer"


class LateStore:
    """A store that dispatches its one timed message, but only when it was looked at often enough."""

    def __init__(self, looks: int) -> None:
        self._looks = looks

    def stats(self) -> dict[str, int]:
        """Return its positions."""
        self._looks -= 1
        return {"max_physical_offset": 200, "dispatched_offset": 200 if self._looks < 0 else 100}

    def queues(self) -> dict[str, list[int]]:
        """Return the queues."""
        return {TIMER: [0]} if self._looks < 0 else {}

    def max_offset(self, _topic: str, _queue_id: int) -> int:
        """Return the end of a queue."""
        return 1


@pytest.fixture
def late() -> Any:
    """Return a store that is late."""
    return LateStore(5)


def test_marks_are_behind_what_is_stored(late: Any) -> None:
    """Else a test would see what an earlier one sent."""
    assert Marks.of(late) == Marks({(TIMER, 0): 1})


def test_a_store_that_stands_still_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """It names the position, and where to look."""
    monkeypatch.setattr(captured, "_PATIENCE", 0.01)
    stuck: Any = LateStore(1_000_000)
    for read in (captured.messages, lambda store, topic: captured.sent(store, topic, Marks())):
        with pytest.raises(TimeoutError, match=r"within 0.01 s .*physical offset 200.*the broker's log says why"):
            read(stuck, "orders")
