"""The arithmetic of a stream's offsets against a simple model: limits, shares, and changed queues."""

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from ferromq.spark.read.plan import Queue
from ferromq.spark.stream.plan import (
    ALL,
    BatchRange,
    Bounds,
    Flat,
    Loss,
    QueueKey,
    begins,
    elsewhere,
    ends,
    flat,
    key_of,
    limited,
    losses,
    nested,
    settled,
    share,
    spans,
    waiting,
)

A0, A1, B0 = ("orders", "a:0"), ("orders", "a:1"), ("trips", "b:0")
PLACES = [A0, A1, B0, ("trips", "b:10"), ("trips", "b:9")]

offsets = st.integers(0, 40)
bounds = st.tuples(offsets, offsets).map(lambda pair: Bounds(min(pair), max(pair)))
flats = st.dictionaries(st.sampled_from(PLACES), offsets)
holdings = st.dictionaries(st.sampled_from(PLACES), bounds)


def test_a_queue_is_named_by_broker_and_id() -> None:
    """Queues of two brokers with the same id are two queues."""
    queue = Queue("orders", "broker-a", "a:1", 3, min_offset=0, max_offset=0)
    assert key_of(queue) == "broker-a:3"


@given(flats, flats)
def test_offsets_survive_the_checkpoint_and_equal_ones_are_equal_text(held: Flat, before: Flat) -> None:
    """Spark compares the JSON text of offsets to detect new messages."""
    moved = elsewhere(before, held)
    text = json.dumps(nested(held, moved))
    assert flat(json.loads(text)) == held
    assert begins(json.loads(text)) == moved
    assert {place: moved.get(place, before.get(place, 0)) for place in held} == held
    assert json.dumps(nested(dict(reversed(held.items())), moved)) == text


def test_queues_stand_in_the_order_of_their_numbers() -> None:
    """People read checkpoints, too."""
    assert list(nested(dict.fromkeys(PLACES, 0))["trips"]) == ["b:0", "b:9", "b:10"]


@given(st.lists(st.integers(0, 1000), max_size=12), st.integers(1, 3000), st.integers(0, 50))
def test_a_share_is_exact_fair_and_starves_no_queue(wanted: list[int], limit: int, turn: int) -> None:
    """The sum is the limit or all rows; each queue with waiting rows gets at least one, and about its part."""
    given_rows = share(wanted, limit, turn)
    total, waits = sum(wanted), sum(1 for rows in wanted if rows)
    assert sum(given_rows) == min(limit, total)
    assert all(0 <= rows <= most for rows, most in zip(given_rows, wanted, strict=True))
    if limit >= waits:
        assert all(rows for rows, most in zip(given_rows, wanted, strict=True) if most)
    if waits < limit < total:
        assert all(
            abs(rows - (1 + (most - 1) * (limit - waits) / (total - waits))) < 1
            for rows, most in zip(given_rows, wanted, strict=True)
            if most
        )


@given(st.integers(1, 20), st.integers(1, 20))
def test_queues_take_turns_if_the_limit_is_below_their_number(queues: int, limit: int) -> None:
    """Enough calls serve every queue."""
    served: set[int] = set()
    for turn in range(-(-queues // limit)):
        served |= {place for place, rows in enumerate(share([1000] * queues, limit, turn)) if rows}
    assert served == set(range(queues))


@given(flats, holdings, st.sets(st.sampled_from(PLACES)), flats)
def test_losses_are_those_of_the_model(
    start: Flat, held: dict[QueueKey, Bounds], gone: set[QueueKey], known: Flat
) -> None:
    """A loss is an offset outside a queue, or a queue that is gone; an unreachable queue is not."""
    gone -= held.keys()
    found = {loss.key: loss for loss in losses(start, held, gone, known)}
    for place, offset in start.items():
        expects = (
            offset not in range(held[place].min_offset, held[place].max_offset + 1) if place in held else place in gone
        )
        assert (place in found) == expects
        if place in found and place in held and offset < held[place].min_offset:
            assert found[place].rows == held[place].min_offset - offset
    base = settled(start, held, found.values(), held)
    assert base.keys() == (start.keys() - gone) | held.keys()
    assert losses(base, held, gone, known) == []


@given(flats, holdings, st.integers(1, 100), st.integers(0, 5))
def test_triggers_read_every_row_once_and_come_to_an_end(
    start: Flat, held: dict[QueueKey, Bounds], limit: int, turn: int
) -> None:
    """In any number of triggers: ranges have no gap and no overlap, up to the max offsets."""
    base = settled(start, held, losses(start, held, (), {}), held)
    rows: dict[QueueKey, list[int]] = {place: [] for place in base}
    at = base
    while waiting(at, ends(at, held)):
        end = limited(at, ends(at, held), limit, turn)
        assert 0 < waiting(at, end) <= limit
        found, lost = spans(at, {}, end, held, {})
        assert lost == []
        for span in found:
            rows[span.key] += range(span.start, span.end)
        at, turn = end, turn + 1
    assert rows == {
        place: list(range(offset, held[place].max_offset)) if place in held else [] for place, offset in base.items()
    }


@given(flats, holdings, holdings, st.integers(1, ALL))
@settings(max_examples=300)
def test_a_batch_reads_and_counts_every_row_that_it_promised(
    start: Flat, then: dict[QueueKey, Bounds], now: dict[QueueKey, Bounds], limit: int
) -> None:
    """Whatever happens after the plan: rows read and rows lost add up, and only existing rows are read."""
    base = settled(start, then, losses(start, then, (), {}), then)
    end = limited(base, ends(base, then), limit)
    found, lost = spans(base, {}, end, now, {})
    for place, stop in end.items():
        read = sum(span.end - span.start for span in found if span.key == place)
        missed = sum(loss.rows for loss in lost if loss.key == place)
        assert read + missed == stop - base[place]
    assert all(now[span.key].min_offset <= span.start < span.end <= now[span.key].max_offset for span in found)
    assert all(base[span.key] <= span.start and span.end <= end[span.key] for span in found)


def test_expiry_after_the_target_is_not_a_loss() -> None:
    """With AvailableNow, a queue that was read to its end may expire; before that, it may not."""
    held = {A0: Bounds(10, 20), A1: Bounds(10, 20)}
    lost = losses({A0: 5, A1: 7}, held, (), {}, target={A0: 5, A1: 15})
    assert [(loss.key, loss.rows) for loss in lost] == [(A1, 3)]
    assert ends({A0: 5, A1: 10}, held, target={A0: 5, A1: 15}) == {A0: 5, A1: 15}


def test_a_target_holds_where_more_comes_and_where_queues_are_new() -> None:
    """AvailableNow ends at the max offsets of its start."""
    held = {A0: Bounds(0, 100), B0: Bounds(0, 100)}
    assert ends({A0: 3, B0: 4}, held, target={A0: 50}) == {A0: 50, B0: 4}


def test_a_recreated_topic_is_read_from_its_beginning() -> None:
    """The offset is beyond the max offset: the messages are new ones, none of them read yet."""
    held = {A0: Bounds(0, 20)}
    (lost,) = losses({A0: 500}, held, (), {A0: 520})
    assert (lost.rows, lost.is_exact) == (20, False)
    assert settled({A0: 500}, held, [lost], ()) == {A0: 0}
    found, counted = spans({A0: 500}, {A0: 0}, {A0: 20}, held, {A0: 520})
    assert (found, counted) == ([BatchRange(A0, 0, 20)], [lost])


def test_a_queue_that_left_the_offsets_is_counted_as_lost() -> None:
    """The known waiting rows are counted."""
    assert spans({A0: 5, A1: 2}, {}, {A1: 2}, {A1: Bounds(0, 2)}, {A0: 9}) == (
        [],
        [Loss(A0, 5, None, 4, is_exact=False)],
    )


def test_a_new_queue_is_read_from_its_recorded_start_or_from_0() -> None:
    """Messages that expired before the queue was found are not a loss; later they are."""
    assert spans({}, {A0: 4}, {A0: 9}, {A0: Bounds(4, 12)}, {}) == ([BatchRange(A0, 4, 9)], [])
    assert spans({}, {}, {A0: 9}, {A0: Bounds(0, 12)}, {}) == ([BatchRange(A0, 0, 9)], [])
    held = Bounds(4, 12)
    assert spans({}, {}, {A0: 9}, {A0: held}, {}) == ([BatchRange(A0, 4, 9)], [Loss(A0, 0, held, 4)])


def test_expired_messages_are_counted_once() -> None:
    """The end of the batch that continues after them has its start."""
    held = Bounds(7, 12)
    assert spans({A0: 2}, {A0: 7}, {A0: 9}, {A0: held}, {}) == ([BatchRange(A0, 7, 9)], [Loss(A0, 2, held, 5)])


def test_a_loss_names_topic_queue_and_offsets() -> None:
    """As a user needs it to decide."""
    text = str(Loss(A0, 5, Bounds(10, 20), 5))
    assert text == (
        "queue a:0 of topic 'orders' was to be read from queue offset 5, but now holds 10 to 20 (aged out): 5 rows lost"
    )
    assert "at least 0 rows" in str(Loss(A0, 50, Bounds(10, 20), 0, is_exact=False))
    assert "no longer exists" in str(Loss(A0, 50, None, 0, is_exact=False))
