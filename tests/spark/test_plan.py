"""Ranges of queues, and how they are cut into partitions."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ferromq.errors import ConfigError
from ferromq.spark.plan import Queue, QueueRange, partitions, ranges

A0 = Queue("broker-a", "a:1", 0, min_offset=10, max_offset=100)
A1 = Queue("broker-a", "a:1", 1, min_offset=0, max_offset=0)
B0 = Queue("broker-b", "b:1", 0, min_offset=0, max_offset=7)


def spans(found: list[QueueRange]) -> list[tuple[str, int, int, int]]:
    """Return ranges without their endpoints."""
    return [(part.broker_name, part.queue_id, part.start, part.end) for part in found]


def test_the_whole_topic_is_what_each_queue_holds() -> None:
    """From the min to the max offset; empty queues give no range."""
    assert spans(ranges([A0, A1, B0], "earliest", "latest")) == [("broker-a", 0, 10, 100), ("broker-b", 0, 0, 7)]


@pytest.mark.parametrize(("start", "end"), [("latest", "latest"), ("earliest", "earliest"), ("latest", "earliest")])
def test_nothing_lies_between_equal_or_crossed_ends(start: str, end: str) -> None:
    """A range without offsets is no partition."""
    assert ranges([A0, A1, B0], start, end) == []


def test_queues_left_out_of_json_are_read_whole() -> None:
    """A queue is named by its id, or by broker and id where several brokers have it."""
    found = ranges([A0, A1, B0], {"broker-a:0": 20}, {"broker-b:0": 3})
    assert spans(found) == [("broker-a", 0, 20, 100), ("broker-b", 0, 0, 3)]


@pytest.mark.parametrize(
    ("start", "end", "words"),
    [
        ({"0": 20}, "latest", ["'startingOffsets'", "several queues", "broker-a:0, broker-a:1, broker-b:0"]),
        ({"7": 20}, "latest", ["'startingOffsets'", "'7'", "not a queue", "broker-a:0"]),
        ({"broker-a:0": 9}, "latest", ["'startingOffsets'", "9", "10 to 100"]),
        ("earliest", {"broker-a:0": 101}, ["'endingOffsets'", "101", "10 to 100"]),
        ({"broker-a:0": 50}, {"broker-a:0": 40}, ["'startingOffsets'", "50", "up to its endingOffsets, 40"]),
    ],
)
def test_offsets_that_are_not_there_are_an_error(start: object, end: object, words: list[str]) -> None:
    """What has aged out, or was never there, is not read around in silence."""
    with pytest.raises(ConfigError) as raised:
        ranges([A0, A1, B0], start, end)  # type: ignore[arg-type]
    assert [word for word in words if word not in str(raised.value)] == []


sizes = st.lists(st.integers(1, 1_000), min_size=1, max_size=12)


@given(sizes, st.integers(1, 500), st.integers(1, 64))
@settings(deadline=None)  # a busy machine is no failure
def test_partitions_cover_every_offset_once(lengths: list[int], max_records: int, min_partitions: int) -> None:
    """However they are cut: no gap, no overlap, none empty, none over the limit."""
    whole = [QueueRange("b", "e:1", queue_id, 5, 5 + length) for queue_id, length in enumerate(lengths)]
    cut = partitions(whole, max_records=max_records, min_partitions=min_partitions)
    assert all(0 < len(part) <= max_records for part in cut)
    assert len(cut) >= min(min_partitions, sum(lengths))
    for queue_id, length in enumerate(lengths):
        bounds = [(part.start, part.end) for part in cut if part.queue_id == queue_id]
        assert [bounds[0][0], *(end for _, end in bounds)] == [*(start for start, _ in bounds), 5 + length]


def test_queues_are_not_split_without_need() -> None:
    """A range within the limit stays one partition."""
    whole = [QueueRange("b", "e:1", queue_id, 0, 1000) for queue_id in range(8)]
    assert partitions(whole, max_records=1000, min_partitions=8) == whole
    assert partitions([], max_records=1000, min_partitions=8) == []
