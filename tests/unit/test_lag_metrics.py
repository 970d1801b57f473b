"""The lag of a group in the metrics, where its place in a queue is not among the stored messages."""

from types import SimpleNamespace
from typing import Any, cast

from ferromq.broker.reports.metrics import BrokerMetrics


def lag_of(committed: int) -> Any:
    """Return the progress of a group in a queue with the offsets 10 to 19, stored at a time of 100 each."""
    store = SimpleNamespace(
        min_offset=lambda _topic, _queue: 10,
        max_offset=lambda _topic, _queue: 20,
        next_and_in_flight=lambda _group, _topic, _queue: (max(10, committed), 0),
        stored_time=lambda _topic, _queue, offset: 100 * offset if 10 <= offset < 20 else None,
    )
    metrics = cast("BrokerMetrics", SimpleNamespace(_from=SimpleNamespace(store=store)))
    return BrokerMetrics._lag(metrics, "billing", "orders", {0: committed})


def test_a_group_behind_retention_waits_since_the_first_stored_message() -> None:
    """What was deleted is not counted, and the group is late: it does not look up to date."""
    lag = lag_of(3)
    assert (lag.messages, lag.ready, lag.oldest, lag.oldest_ready) == (10, 10, 1000, 1000)


def test_a_group_in_the_middle_waits_since_its_own_place() -> None:
    """And one at the end waits for nothing."""
    lag = lag_of(15)
    assert (lag.messages, lag.oldest) == (5, 1500)
    assert (lag_of(20).messages, lag_of(20).oldest) == (0, None)
