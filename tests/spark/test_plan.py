"""Ranges of queues, and their division into partitions."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ferromq.errors import ConfigError
from ferromq.spark.positions import Positions, Time
from ferromq.spark.read.plan import Queue, QueueRange, narrow, partitions, ranges, resolve
from ferromq.spark.row_filter import Interval, RowFilter

A0 = Queue("t", "broker-a", "a:1", 0, min_offset=10, max_offset=100)
A1 = Queue("t", "broker-a", "a:1", 1, min_offset=0, max_offset=0)
B0 = Queue("t", "broker-b", "b:1", 0, min_offset=0, max_offset=7)
U0 = Queue("u", "broker-b", "b:1", 0, min_offset=3, max_offset=9)
EARLIEST, LATEST = Positions("earliest"), Positions("latest")


def never(wanted: object) -> list[int]:
    """Fail: without times, no broker may be queried."""
    raise AssertionError(wanted)


def spans(found: list[QueueRange]) -> list[tuple[str, str, int, int, int]]:
    """Return ranges without their endpoints."""
    return [(part.topic, part.broker_name, part.queue_id, part.start, part.end) for part in found]


def test_a_range_covers_all_that_a_queue_holds() -> None:
    """From the min to the max offset; empty queues give no range."""
    found = ranges([A0, A1, B0, U0], EARLIEST, LATEST, never)
    assert spans(found) == [("t", "broker-a", 0, 10, 100), ("t", "broker-b", 0, 0, 7), ("u", "broker-b", 0, 3, 9)]


@pytest.mark.parametrize(("start", "end"), [(LATEST, LATEST), (EARLIEST, EARLIEST), (LATEST, EARLIEST)])
def test_nothing_lies_between_equal_or_crossed_ends(start: Positions, end: Positions) -> None:
    """A range without offsets gives no partition."""
    assert ranges([A0, A1, B0], start, end, never) == []


def test_queues_left_out_of_json_are_read_whole() -> None:
    """A queue is named by its id, or by broker and id if several brokers have it."""
    starting = Positions("earliest", {"t": {"broker-a:0": 20}, "u": {"0": "latest"}})
    found = ranges([A0, A1, B0, U0], starting, Positions("latest", {"t": {"broker-b:0": 3}}), never)
    assert spans(found) == [("t", "broker-a", 0, 20, 100), ("t", "broker-b", 0, 0, 3)]


def test_times_are_queried_once_and_limited_to_the_queue() -> None:
    """One query for all queues; a time before the first message gives the min, one after the last the max offset."""
    asked = []

    def by_time(wanted: list[tuple[Queue, int]]) -> list[int]:
        asked.append(wanted)
        return [{A0: 0, B0: 5, U0: 99}[queue] for queue, _ in wanted]

    positions = Positions(Time(1000), {"u": {"0": Time(2000)}, "t": {"1": "latest"}})
    assert resolve("startingOffsets", positions, [A0, A1, B0, U0], by_time) == [10, 0, 5, 9]
    assert asked == [[(A0, 1000), (B0, 1000), (U0, 2000)]]


def test_a_time_after_an_explicit_end_gives_an_empty_range() -> None:
    """Only two explicit offsets contradict each other."""
    assert ranges([A0], Positions(Time(5)), Positions("latest", {"t": {"0": 20}}), lambda _: [50]) == []


@pytest.mark.parametrize(
    ("start", "end", "words"),
    [
        ({"t": {"0": 20}}, {}, ["'startingOffsets'", "several queues", "broker-a:0, broker-a:1, broker-b:0"]),
        ({"t": {"7": 20}}, {}, ["'startingOffsets'", "'7' of topic 't'", "not a queue", "broker-a:0"]),
        ({"t": {"1": 0, "broker-a:1": 0}}, {}, ["'startingOffsets'", "'1' of topic 't'", "named twice"]),
        ({}, {"v": {"7": 20}}, ["'endingOffsets'", "topic 'v'", "not read", "allowed: t, u"]),
        ({"t": {"broker-a:0": 9}}, {}, ["'startingOffsets'", "9 for queue 0 of topic 't' on broker-a", "10 to 100"]),
        ({}, {"t": {"broker-a:0": 101}}, ["'endingOffsets'", "101", "10 to 100"]),
        (
            {"t": {"broker-a:0": 50}},
            {"t": {"broker-a:0": 40}},
            ["'startingOffsets'", "50", "0 to its endingOffsets, 40"],
        ),
    ],
)
def test_offsets_outside_a_queue_are_an_error(
    start: dict[str, dict[str, int]], end: dict[str, dict[str, int]], words: list[str]
) -> None:
    """Expired or future offsets are not skipped silently."""
    with pytest.raises(ConfigError) as raised:
        ranges([A0, A1, B0, U0], Positions("earliest", start), Positions("latest", end), never)
    assert [word for word in words if word not in str(raised.value)] == []


PARTS = [A0.range(10, 100), B0.range(0, 7), U0.range(3, 9)]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (RowFilter(), PARTS),
        (RowFilter(tags=frozenset({"a"})), PARTS),
        (RowFilter(topics=frozenset({"u", "v"})), [PARTS[2]]),
        (RowFilter(queue_ids=frozenset({1})), []),
        (RowFilter(offsets=Interval(5, 20)), [A0.range(10, 20), B0.range(5, 7), U0.range(5, 9)]),
        (RowFilter(tags=frozenset()), []),
    ],
)
def test_filters_leave_out_queues_and_offsets(rows: RowFilter, expected: list[QueueRange]) -> None:
    """No broker is queried for them."""
    assert narrow(PARTS, rows, never) == expected


def test_filters_on_time_narrow_ranges_with_room_for_a_clock_that_was_set_back() -> None:
    """By a minute on both sides; brokers are queried only for the remaining ranges."""
    asked = []

    def by_time(wanted: list[tuple[QueueRange, int]]) -> list[int]:
        asked.append([(part.topic, ms) for part, ms in wanted])
        return [{40_000: 4, 190_000: 50}[ms] for _, ms in wanted]

    rows = RowFilter(topics=frozenset({"u"}), stored=Interval(100_000, 130_000))
    assert narrow(PARTS, rows, by_time) == [U0.range(4, 9)]
    assert asked == [[("u", 40_000)], [("u", 190_000)]]


sizes = st.lists(st.integers(1, 1_000), min_size=1, max_size=12)


@given(sizes, st.integers(1, 500), st.integers(1, 64))
@settings(deadline=None)  # a busy machine may be slow
def test_partitions_cover_every_offset_once(lengths: list[int], max_records: int, min_partitions: int) -> None:
    """However they are split: no gap, no overlap, none empty, none over the limit."""
    whole = [QueueRange("t", "b", "e:1", queue_id, 5, 5 + length) for queue_id, length in enumerate(lengths)]
    cut = partitions(whole, max_records=max_records, min_partitions=min_partitions)
    assert all(0 < len(part) <= max_records for part in cut)
    assert len(cut) >= min(min_partitions, sum(lengths))
    for queue_id, length in enumerate(lengths):
        bounds = [(part.start, part.end) for part in cut if part.queue_id == queue_id]
        assert [bounds[0][0], *(end for _, end in bounds)] == [*(start for start, _ in bounds), 5 + length]


def test_queues_are_not_split_without_need() -> None:
    """A range within the limit stays one partition."""
    whole = [QueueRange("t", "b", "e:1", queue_id, 0, 1000) for queue_id in range(8)]
    assert partitions(whole, max_records=1000, min_partitions=8) == whole
    assert partitions([], max_records=1000, min_partitions=8) == []
