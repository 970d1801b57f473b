"""Timers that follow the clock."""

import threading
from datetime import timedelta

from ferromq.process.clock import Clock, Timer


def test_a_period_may_be_forever() -> None:
    """Such a timer waits no longer than threads can, and ends when it is stopped."""
    timer = Timer("never", Clock.system(), timedelta.max, lambda _now: None)
    left = timer._seconds_left()
    assert left is not None
    assert 0 < left <= threading.TIMEOUT_MAX
    timer.start()
    timer.stop()
    assert not timer._thread.is_alive()


def test_a_period_can_be_changed() -> None:
    """The next call comes after one of the new ones, from now."""
    clock = Clock.manual(0)
    calls: list[int] = []
    timer = Timer("often", clock, timedelta(seconds=10), calls.append)
    timer.start()
    clock.advance(seconds=9)
    timer.every(timedelta(seconds=2))
    clock.advance(seconds=1)
    assert calls == []
    clock.advance(seconds=1)
    clock.advance(seconds=2)
    assert calls == [11_000, 13_000]
    timer.stop()
