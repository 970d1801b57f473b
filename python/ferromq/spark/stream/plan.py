"""
What a trigger of a stream reads: arithmetic of offsets, limits, and what to make of queues that changed.

Pure: no Spark, no sockets, no clock. Offsets are as Spark's checkpoint holds them, {topic: {"broker:queue": next
queue offset to read}}, and flat here: {(topic, "broker:queue"): offset}. A batch reads each queue from where the batch
before ended, a queue that is new to it from 0. Where it begins elsewhere its end says so: {topic: {"broker:queue
from": offset}}. So every range has both ends in the checkpoint before anything of it is read.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from ferromq.spark.read.plan import Queue

Offsets = dict[str, dict[str, int]]
"""As Spark keeps it: queue offsets by topic and `broker:queue`; each is the next to read."""
Place = tuple[str, str]
"""Topic and `broker:queue`."""
Flat = dict[Place, int]

FROM = " from"
"""Behind `broker:queue`: where the batch that ends so begins to read the queue."""

ALL = 2**62
"""A limit of rows that limits nothing."""


class Bounds(NamedTuple):
    """What a queue holds now: its min and its max offset."""

    min_offset: int
    max_offset: int


@dataclass(frozen=True, slots=True)
class Loss:
    """Messages of one queue that the stream should read and that are not there."""

    place: Place
    expected: int
    held: Bounds | None
    rows: int
    is_exact: bool = True

    def __str__(self) -> str:
        topic, queue = self.place
        rows = f"{self.rows} rows" if self.is_exact else f"at least {self.rows} rows"
        what = f"queue {queue} of topic {topic!r} was to be read from queue offset {self.expected}"
        if self.held is None:
            return f"{what}, and is not there any more: {rows} lost"
        low, high = self.held
        why = "aged out" if self.expected < low else "the topic was made anew, or its queue cut back"
        return f"{what}, and holds {low} to {high} now ({why}): {rows} lost"


def key_of(queue: Queue) -> str:
    """Return the name of a queue in offsets."""
    return f"{queue.broker_name}:{queue.queue_id}"


def flat(offsets: Mapping[str, Mapping[str, int]]) -> Flat:
    """Return *offsets* by place."""
    return {place: offset for place, offset in _each(offsets) if not place[1].endswith(FROM)}


def begins(offsets: Mapping[str, Mapping[str, int]]) -> Flat:
    """Return where the batch that ends at *offsets* begins, of the queues of which they say so."""
    return {
        (topic, queue.removesuffix(FROM)): offset for (topic, queue), offset in _each(offsets) if queue.endswith(FROM)
    }


def _each(offsets: Mapping[str, Mapping[str, int]]) -> Iterable[tuple[Place, int]]:
    return (((topic, queue), offset) for topic, queues in offsets.items() for queue, offset in queues.items())


def nested(offsets: Mapping[Place, int], start: Mapping[Place, int] = MappingProxyType({})) -> Offsets:
    """
    Return *offsets* as Spark keeps them; equal ones always as equal text, which is what Spark compares.

    *start*: where the batch that ends there begins, of the queues of which they are to say so.
    """
    found: Offsets = {}
    for place, offset in sorted(offsets.items(), key=lambda item: _order(item[0])):
        queues = found.setdefault(place[0], {})
        queues[place[1]] = offset
        if place in start:
            queues[place[1] + FROM] = start[place]
    return found


def elsewhere(before: Mapping[Place, int], base: Mapping[Place, int]) -> Flat:
    """Return the places of *base* that do not begin where a batch that ended at *before* lets them begin."""
    return {place: offset for place, offset in base.items() if offset != before.get(place, 0)}


def _order(place: Place) -> tuple[str, str, int]:
    broker, _, queue_id = place[1].rpartition(":")
    return place[0], broker, int(queue_id) if queue_id.isdecimal() else 0


def losses(
    start: Mapping[Place, int],
    held: Mapping[Place, Bounds],
    gone: Collection[Place],
    known: Mapping[Place, int],
    target: Mapping[Place, int] | None = None,
) -> list[Loss]:
    """
    Return what cannot be read any more from *start*.

    A queue that is neither in *held* nor in *gone* is out of reach, which is no loss. *known* are max offsets seen
    before. Where there is a *target*, a queue that was read up to it may age as it likes.
    """
    found = []
    for place, offset in start.items():
        bounds = held.get(place)
        if bounds is None:
            if place in gone:
                found.append(Loss(place, offset, None, max(0, known.get(place, offset) - offset), is_exact=False))
        elif offset > bounds.max_offset:
            found.append(Loss(place, offset, bounds, max(0, known.get(place, offset) - offset), is_exact=False))
        elif offset < bounds.min_offset and (target is None or offset < target.get(place, offset)):
            found.append(Loss(place, offset, bounds, bounds.min_offset - offset))
    return found


def settled(
    start: Mapping[Place, int], held: Mapping[Place, Bounds], lost: Iterable[Loss], new: Iterable[Place]
) -> Flat:
    """Return *start* with queues that lost messages set to what they hold, gone ones out, *new* ones at their min."""
    base = dict(start)
    for loss in lost:
        if loss.held is None:
            del base[loss.place]
        else:
            base[loss.place] = loss.held.min_offset
    for place in new:
        base.setdefault(place, held[place].min_offset)
    return base


def ends(base: Mapping[Place, int], held: Mapping[Place, Bounds], target: Mapping[Place, int] | None = None) -> Flat:
    """Return how far each queue of *base* could be read now, not beyond *target*; one out of reach stays."""
    found = {}
    for place, offset in base.items():
        end = held[place].max_offset if place in held else offset
        if target is not None:
            end = min(end, target.get(place, offset))
        found[place] = max(offset, end)
    return found


def waiting(base: Mapping[Place, int], end: Mapping[Place, int]) -> int:
    """Return the number of rows from *base* to *end*."""
    return sum(end[place] - offset for place, offset in base.items())


def limited(base: Mapping[Place, int], end: Mapping[Place, int], max_rows: int, turn: int = 0) -> Flat:
    """Return offsets from *base* towards *end* that are at most *max_rows* rows away, shared as `share` does."""
    places = sorted(base, key=_order)
    shares = share([end[place] - base[place] for place in places], max_rows, turn)
    return {place: base[place] + rows for place, rows in zip(places, shares, strict=True)}


def share(wanted: Sequence[int], limit: int, turn: int = 0) -> list[int]:
    """
    Divide *limit* rows among queues of which *wanted* rows wait, in proportion to them.

    The sum is the limit, or all that waits. Every queue that waits gets a row at least; where the limit is smaller
    than their number, they take turns: *turn* counts the calls.
    """
    total = sum(wanted)
    if total <= limit:
        return list(wanted)
    waits = [place for place, rows in enumerate(wanted) if rows]
    given = [0] * len(wanted)
    if limit <= len(waits):
        for number in range(limit):
            given[waits[(turn * limit + number) % len(waits)]] = 1
        return given
    rest, more = limit - len(waits), total - len(waits)
    remainders = []
    for place in waits:
        whole, remainder = divmod((wanted[place] - 1) * rest, more)
        given[place] = 1 + whole
        remainders.append((-remainder, place))
    for _, place in sorted(remainders)[: limit - sum(given)]:
        given[place] += 1
    return given


class BatchRange(NamedTuple):
    """The queue offsets from *start* up to, not including, *end* of one queue."""

    place: Place
    start: int
    end: int


def spans(
    before: Mapping[Place, int],
    start: Mapping[Place, int],
    end: Mapping[Place, int],
    held: Mapping[Place, Bounds],
    known: Mapping[Place, int],
) -> tuple[list[BatchRange], list[Loss]]:
    """
    Return what a batch up to *end* reads, and what of it is lost.

    It begins where the one *before* ended, new queues at 0, or where *start* says: then what lies between is lost. One
    that is not in *held* is lost whole; whoever only cannot reach it does not ask here.
    """
    found, lost = [], []
    for place, stop in end.items():
        begin, bounds = before.get(place, 0), held.get(place)
        if place in start:
            if place in before:
                lost.append(_left_out(place, begin, start[place], bounds, known))
            begin = start[place]
        span, loss = _span(place, begin, stop, bounds)
        found += [span] if span.start < span.end else []
        lost += [loss] if loss else []
    for place in before.keys() - end.keys():
        rows = max(0, known.get(place, before[place]) - before[place])
        lost.append(Loss(place, before[place], None, rows, is_exact=False))
    return found, lost


def _left_out(place: Place, expected: int, start: int, bounds: Bounds | None, known: Mapping[Place, int]) -> Loss:
    """Return the loss of a queue that goes on at *start*: behind what aged out, or, made anew, before it."""
    if start > expected:
        return Loss(place, expected, bounds, start - expected)
    return Loss(place, expected, bounds, max(0, known.get(place, expected) - expected), is_exact=False)


def _span(place: Place, begin: int, stop: int, bounds: Bounds | None) -> tuple[BatchRange, Loss | None]:
    if bounds is None:
        span = BatchRange(place, stop, stop)
    else:
        low = min(max(begin, bounds.min_offset), stop)
        span = BatchRange(place, low, max(low, min(stop, bounds.max_offset)))
    rows = (stop - begin) - (span.end - span.start)
    return span, Loss(place, begin, bounds, rows) if rows else None
