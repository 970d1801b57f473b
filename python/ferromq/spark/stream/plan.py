"""
The arithmetic of a stream's offsets: limits, losses, and changes of queues. It does no I/O and has no clock.

Spark's checkpoint holds offsets as {topic: {"broker:queue": next queue offset to read}}; here they are flat: {(topic,
"broker:queue"): offset}. A batch reads each queue from the end of the previous batch, a new queue from 0. If it begins
elsewhere, its end records the start: {topic: {"broker:queue from": offset}}. So the checkpoint holds both ends of every
range before the range is read.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from ferromq.spark.read.plan import Queue

Offsets = dict[str, dict[str, int]]
"""As in Spark's checkpoint: the next queue offset to read, by topic and `broker:queue`."""
QueueKey = tuple[str, str]
"""Topic and `broker:queue`."""
Flat = dict[QueueKey, int]

FROM = " from"
"""Suffix of `broker:queue` for the start of the batch in this queue."""

ALL = 2**62
"""A limit of rows that is never reached."""


class Bounds(NamedTuple):
    """The min and max offset of a queue."""

    min_offset: int
    max_offset: int


@dataclass(frozen=True, slots=True)
class Loss:
    """Messages of one queue that the stream should read but that are gone."""

    key: QueueKey
    expected: int
    held: Bounds | None
    rows: int
    is_exact: bool = True

    def __str__(self) -> str:
        topic, queue = self.key
        rows = f"{self.rows} rows" if self.is_exact else f"at least {self.rows} rows"
        what = f"queue {queue} of topic {topic!r} was to be read from queue offset {self.expected}"
        if self.held is None:
            return f"{what}, but no longer exists: {rows} lost"
        low, high = self.held
        why = "aged out" if self.expected < low else "the topic was created again, or its queue truncated"
        return f"{what}, but now holds {low} to {high} ({why}): {rows} lost"


def key_of(queue: Queue) -> str:
    """Return the name of a queue in offsets."""
    return f"{queue.broker_name}:{queue.queue_id}"


def flat(offsets: Mapping[str, Mapping[str, int]]) -> Flat:
    """Return *offsets* flat, without the starts of the batch."""
    return {key: offset for key, offset in _each(offsets) if not key[1].endswith(FROM)}


def begins(offsets: Mapping[str, Mapping[str, int]]) -> Flat:
    """Return the recorded starts of the batch that ends at *offsets*."""
    return {
        (topic, queue.removesuffix(FROM)): offset for (topic, queue), offset in _each(offsets) if queue.endswith(FROM)
    }


def _each(offsets: Mapping[str, Mapping[str, int]]) -> Iterable[tuple[QueueKey, int]]:
    return (((topic, queue), offset) for topic, queues in offsets.items() for queue, offset in queues.items())


def nested(offsets: Mapping[QueueKey, int], start: Mapping[QueueKey, int] = MappingProxyType({})) -> Offsets:
    """
    Return *offsets* as Spark keeps them. Equal offsets give equal JSON, which Spark compares.

    *start* holds the starts of the batch to record.
    """
    found: Offsets = {}
    for key, offset in sorted(offsets.items(), key=lambda item: _order(item[0])):
        queues = found.setdefault(key[0], {})
        queues[key[1]] = offset
        if key in start:
            queues[key[1] + FROM] = start[key]
    return found


def elsewhere(before: Mapping[QueueKey, int], base: Mapping[QueueKey, int]) -> Flat:
    """Return the offsets of *base* that differ from the end of the previous batch, *before*."""
    return {key: offset for key, offset in base.items() if offset != before.get(key, 0)}


def _order(key: QueueKey) -> tuple[str, str, int]:
    broker, _, queue_id = key[1].rpartition(":")
    return key[0], broker, int(queue_id) if queue_id.isdecimal() else 0


def losses(
    start: Mapping[QueueKey, int],
    held: Mapping[QueueKey, Bounds],
    gone: Collection[QueueKey],
    known: Mapping[QueueKey, int],
    target: Mapping[QueueKey, int] | None = None,
) -> list[Loss]:
    """
    Return the losses of a read from *start*.

    A queue that is neither in *held* nor in *gone* is unreachable, which is not a loss. *known* are earlier max
    offsets. A queue that was read up to its *target* cannot lose messages.
    """
    found = []
    for key, offset in start.items():
        bounds = held.get(key)
        if bounds is None:
            if key in gone:
                found.append(Loss(key, offset, None, max(0, known.get(key, offset) - offset), is_exact=False))
        elif offset > bounds.max_offset:
            found.append(Loss(key, offset, bounds, max(0, known.get(key, offset) - offset), is_exact=False))
        elif offset < bounds.min_offset and (target is None or offset < target.get(key, offset)):
            found.append(Loss(key, offset, bounds, bounds.min_offset - offset))
    return found


def settled(
    start: Mapping[QueueKey, int], held: Mapping[QueueKey, Bounds], lost: Iterable[Loss], new: Iterable[QueueKey]
) -> Flat:
    """Return *start* without gone queues, with queues that lost messages and *new* ones at their min offset."""
    base = dict(start)
    for loss in lost:
        if loss.held is None:
            del base[loss.key]
        else:
            base[loss.key] = loss.held.min_offset
    for key in new:
        base.setdefault(key, held[key].min_offset)
    return base


def ends(
    base: Mapping[QueueKey, int], held: Mapping[QueueKey, Bounds], target: Mapping[QueueKey, int] | None = None
) -> Flat:
    """Return the max offset of each queue of *base*, limited by *target*; an unreachable queue keeps its offset."""
    found = {}
    for key, offset in base.items():
        end = held[key].max_offset if key in held else offset
        if target is not None:
            end = min(end, target.get(key, offset))
        found[key] = max(offset, end)
    return found


def waiting(base: Mapping[QueueKey, int], end: Mapping[QueueKey, int]) -> int:
    """Return the number of rows from *base* to *end*."""
    return sum(end[key] - offset for key, offset in base.items())


def limited(base: Mapping[QueueKey, int], end: Mapping[QueueKey, int], max_rows: int, turn: int = 0) -> Flat:
    """Return offsets from *base* towards *end* with at most *max_rows* rows, divided by `share`."""
    keys = sorted(base, key=_order)
    shares = share([end[key] - base[key] for key in keys], max_rows, turn)
    return {key: base[key] + rows for key, rows in zip(keys, shares, strict=True)}


def share(wanted: Sequence[int], limit: int, turn: int = 0) -> list[int]:
    """
    Divide *limit* rows among queues in proportion to their waiting rows, *wanted*.

    The sum is the limit, or all waiting rows. Every queue with waiting rows gets at least one; if the limit is smaller
    than their number, they take turns. *turn* counts the calls.
    """
    total = sum(wanted)
    if total <= limit:
        return list(wanted)
    waits = [index for index, rows in enumerate(wanted) if rows]
    given = [0] * len(wanted)
    if limit <= len(waits):
        for number in range(limit):
            given[waits[(turn * limit + number) % len(waits)]] = 1
        return given
    rest, more = limit - len(waits), total - len(waits)
    remainders = []
    for index in waits:
        whole, remainder = divmod((wanted[index] - 1) * rest, more)
        given[index] = 1 + whole
        remainders.append((-remainder, index))
    for _, index in sorted(remainders)[: limit - sum(given)]:
        given[index] += 1
    return given


class BatchRange(NamedTuple):
    """The queue offsets from *start* up to, not including, *end* of one queue."""

    key: QueueKey
    start: int
    end: int


def spans(
    before: Mapping[QueueKey, int],
    start: Mapping[QueueKey, int],
    end: Mapping[QueueKey, int],
    held: Mapping[QueueKey, Bounds],
    known: Mapping[QueueKey, int],
) -> tuple[list[BatchRange], list[Loss]]:
    """
    Return the ranges of a batch up to *end*, and its losses.

    The batch begins at the end of the previous one, *before*, and new queues at 0. If *start* has another offset, the
    messages between are lost. A queue that is not in *held* is lost completely, so callers check for unreachable queues
    first.
    """
    found, lost = [], []
    for key, stop in end.items():
        begin, bounds = before.get(key, 0), held.get(key)
        if key in start:
            if key in before:
                lost.append(_left_out(key, begin, start[key], bounds, known))
            begin = start[key]
        span, loss = _span(key, begin, stop, bounds)
        found += [span] if span.start < span.end else []
        lost += [loss] if loss else []
    for key in before.keys() - end.keys():
        rows = max(0, known.get(key, before[key]) - before[key])
        lost.append(Loss(key, before[key], None, rows, is_exact=False))
    return found, lost


def _left_out(key: QueueKey, expected: int, start: int, bounds: Bounds | None, known: Mapping[QueueKey, int]) -> Loss:
    """Return the loss of a queue that continues at *start*: after expired messages, or earlier if it was recreated."""
    if start > expected:
        return Loss(key, expected, bounds, start - expected)
    return Loss(key, expected, bounds, max(0, known.get(key, expected) - expected), is_exact=False)


def _span(key: QueueKey, begin: int, stop: int, bounds: Bounds | None) -> tuple[BatchRange, Loss | None]:
    if bounds is None:
        span = BatchRange(key, stop, stop)
    else:
        low = min(max(begin, bounds.min_offset), stop)
        span = BatchRange(key, low, max(low, min(stop, bounds.max_offset)))
    rows = (stop - begin) - (span.end - span.start)
    return span, Loss(key, begin, bounds, rows) if rows else None
