"""When messages of a replay are due, on the test's clock; and the saved progress of a replay."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferromq.errors import ConfigError
from ferromq.pipeline.replaying.rate_limit import BATCH_WINDOW, CATCH_UP, RateLimit
from ferromq.pipeline.replaying.sent_offsets import SentOffsets

BEGIN = 100.0


class Time:
    """A clock that advances when it is waited for, and by *slow* seconds with each message sent."""

    def __init__(self, slow: float = 0.0) -> None:
        self.now = BEGIN
        self.slow = slow

    def wait(self, seconds: float) -> None:
        """Advance the clock by *seconds*."""
        self.now += seconds

    def sent(self, pace: RateLimit, times: Sequence[int]) -> list[float]:
        """Return when each message of *times* was sent, in seconds since the clock began."""
        at: list[float] = []
        for start, end in pace.slices(times):
            assert start == len(at)
            at += [self.now] * (end - start)
            self.now += self.slow * (end - start)
        assert len(at) == len(times)
        return [moment - BEGIN for moment in at]

    def pace(self, **options: float) -> RateLimit:
        """Return a rate limit on this clock."""
        return RateLimit(**options, now=lambda: self.now, wait=self.wait)


@given(st.floats(0.5, 1e6), st.integers(1, 300), st.integers(1, 50))
def test_a_rate_is_kept_over_batches(rate: float, count: int, batch: int) -> None:
    """No message is sent more than a hundredth of a second early, and none late."""
    time = Time()
    pace = time.pace(rate=rate)
    passed: list[float] = []
    while len(passed) < count:
        passed += time.sent(pace, [0] * min(batch, count - len(passed)))
    for number, at in enumerate(passed):
        assert number / rate - BATCH_WINDOW - 1e-6 <= at <= number / rate + 1e-6


def test_a_slow_sender_does_not_make_up_for_it_in_a_burst() -> None:
    """After a delay it continues at the rate, with at most a tenth of a second's messages more."""
    time = Time()
    pace = time.pace(rate=100)
    time.sent(pace, [0] * 10)
    time.now += 60
    begin = time.now
    assert len(time.sent(pace, [0] * 1000)) == 1000
    assert time.now - begin >= 1000 / 100 - CATCH_UP - BATCH_WINDOW - 0.02


@given(st.lists(st.integers(0, 10_000_000), min_size=1, max_size=60), st.floats(0.1, 20))
def test_intervals_are_those_of_the_store_times(gaps: list[int], speed: float) -> None:
    """Each message is sent as long after the first as it was stored after it, divided by the speed."""
    times = [sum(gaps[: number + 1]) for number in range(len(gaps))]
    time = Time()
    for passed, at in zip(time.sent(time.pace(speed=speed), times), times, strict=True):
        assert passed == pytest.approx((at - times[0]) / 1e6 / speed, abs=BATCH_WINDOW + 1e-6)


def test_late_messages_catch_up() -> None:
    """Sending takes longer than the intervals; after a pause all messages are on time again."""
    times = [*range(0, 100_000, 1000), 60_000_000]
    time = Time(slow=0.01)
    passed = time.sent(time.pace(speed=1), times)
    assert passed[50] >= 0.1
    assert passed[-1] == pytest.approx(60.0, abs=BATCH_WINDOW)


def test_without_a_limit_all_messages_are_due_at_once() -> None:
    """In one slice."""
    assert list(RateLimit().slices([0] * 500)) == [(0, 500)]


@pytest.mark.parametrize("options", [{"rate": 0}, {"rate": -1.0}, {"speed": float("nan")}, {"speed": float("inf")}])
def test_an_invalid_rate_or_speed_is_named(options: dict[str, float]) -> None:
    """The error has the value and the allowed values."""
    with pytest.raises(ConfigError, match=r"(rate|speed) is .*; allowed: a number above 0"):
        RateLimit(**options)


def test_the_highest_offset_of_all_tasks_counts(tmp_path: Path) -> None:
    """Also if queues moved to other tasks."""
    first = SentOffsets(tmp_path, "job")
    first.record(("t", "h:1", 0), 10)
    first.record(("t", "h:1", 1), 7)
    first.save(3)
    second = SentOffsets(tmp_path, "job")
    second.record(("t", "h:1", 0), 15)
    second.record(("t", "h:1", 0), 12)
    second.save(0)
    third = SentOffsets(tmp_path, "job")
    assert [third.next_offset(("t", "h:1", queue)) for queue in range(3)] == [15, 7, 0]


def test_the_state_of_another_replay_is_refused(tmp_path: Path) -> None:
    """So is a file that is not the state of a replay."""
    state = SentOffsets(tmp_path, "a to b")
    state.record(("t", "h", 0), 1)
    state.save(0)
    with pytest.raises(ConfigError, match="belongs to 'a to b', but this replay is 'a to c'; allowed: "):
        SentOffsets(tmp_path, "a to c")
    (tmp_path / "other.json").write_text("[]")
    with pytest.raises(ConfigError, match=r"other\.json is not the state of a replay"):
        SentOffsets(tmp_path, "a to b")
