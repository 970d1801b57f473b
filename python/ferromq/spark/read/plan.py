"""
Plans a batch read: the ranges of queues it covers, and their partitions.

It does no I/O; callers pass the function that queries the offsets of times.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

from ferromq.errors import ConfigError
from ferromq.spark.positions import EARLIEST, LATEST, Position, Positions, Time
from ferromq.spark.row_filter import ALL, RowFilter

if TYPE_CHECKING:
    from ferromq.client.tls import Tls

Protocol = Literal["grpc", "remoting"]

CLOCK_SLACK_MS = 60_000
"""Tolerated setback of a broker's clock when messages of a time are searched."""


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue of a topic, its broker, and its current offsets."""

    topic: str
    broker_name: str
    endpoint: str
    """`host:port` of the broker, for *protocol*."""
    queue_id: int
    min_offset: int
    max_offset: int
    protocol: Protocol = "grpc"
    is_master: bool = True
    """False for a slave that answers while its master is down, and may lag behind it."""
    tls: "Tls | None" = None
    """How *endpoint* is reached; None: without TLS."""

    def range(self, start: int, end: int) -> "QueueRange":
        """Return the queue offsets from *start* up to, not including, *end*."""
        names = self.topic, self.broker_name, self.endpoint, self.queue_id
        return QueueRange(*names, start, end, self.protocol, self.tls)

    def __str__(self) -> str:
        return f"queue {self.queue_id} of topic {self.topic!r} on {self.broker_name}"


@dataclass(frozen=True, slots=True)
class QueueRange:
    """The queue offsets from *start* up to, not including, *end* of one queue."""

    topic: str
    broker_name: str
    endpoint: str
    queue_id: int
    start: int
    end: int
    protocol: Protocol = "grpc"
    tls: "Tls | None" = None

    def __len__(self) -> int:
        return self.end - self.start

    def __str__(self) -> str:
        return f"queue {self.queue_id} of topic {self.topic!r} on {self.broker_name}"


OffsetsByTime = Callable[[Sequence[tuple[Queue | QueueRange, int]]], Sequence[int]]
"""Queries for each queue the first queue offset stored at its time in ms or later, or else its max offset."""


def ranges(queues: Sequence[Queue], starting: Positions, ending: Positions, by_time: OffsetsByTime) -> list[QueueRange]:
    """
    Return the range of each queue between the two positions, without empty ranges.

    Raises ConfigError if an option names an unknown queue, or offsets that the queue does not hold.
    """
    starts = resolve("startingOffsets", starting, queues, by_time)
    ends = resolve("endingOffsets", ending, queues, by_time)
    found = []
    for queue, start, end in zip(queues, starts, ends, strict=True):
        if start > end and _is_offset(starting, queue) and _is_offset(ending, queue):
            raise ConfigError(
                f"option 'startingOffsets' is {start} for {queue}; allowed: 0 to its endingOffsets, {end}"
            )
        if start < end:
            found.append(queue.range(start, end))
    return found


def resolve(name: str, positions: Positions, queues: Sequence[Queue], by_time: OffsetsByTime) -> list[int]:
    """
    Return the queue offset of *positions* in each of *queues*; *name* is the option they come from.

    Raises ConfigError if they name an unknown queue, or an offset that the queue does not hold.
    """
    _check_names(name, positions, queues)
    places = [_position(positions, queue) for queue in queues]
    timed: list[tuple[Queue | QueueRange, int]] = [
        (queue, place.ms) for queue, place in zip(queues, places, strict=True) if isinstance(place, Time)
    ]
    answers = iter(by_time(timed) if timed else ())
    return [_offset(name, place, queue, answers) for queue, place in zip(queues, places, strict=True)]


def _offset(name: str, place: Position, queue: Queue, answers: Iterator[int]) -> int:
    if isinstance(place, Time):
        return min(max(next(answers), queue.min_offset), queue.max_offset)
    if place == EARLIEST:
        return queue.min_offset
    if place == LATEST:
        return queue.max_offset
    if not isinstance(place, int) or not queue.min_offset <= place <= queue.max_offset:
        raise ConfigError(
            f"option {name!r} is {place} for {queue}; "
            f"allowed: {queue.min_offset} to {queue.max_offset}, the queue's current offsets"
        )
    return place


def _keys(queue: Queue) -> tuple[str, str]:
    """Return the names of a queue in JSON."""
    return f"{queue.broker_name}:{queue.queue_id}", str(queue.queue_id)


def _position(positions: Positions, queue: Queue) -> Position:
    named = positions.by_queue.get(queue.topic, {})
    return next((named[key] for key in _keys(queue) if key in named), positions.default)


def _is_offset(positions: Positions, queue: Queue) -> bool:
    return isinstance(_position(positions, queue), int)


def _check_names(name: str, positions: Positions, queues: Sequence[Queue]) -> None:
    """Raise ConfigError if *positions* name an unknown topic or queue, or a queue id is ambiguous."""
    for topic, named in positions.by_queue.items():
        of_topic = [queue for queue in queues if queue.topic == topic]
        if not of_topic:
            allowed = ", ".join(sorted({queue.topic for queue in queues}))
            raise ConfigError(f"option {name!r} names topic {topic!r}, which is not read; allowed: {allowed}")
        for key in named:
            meant = [queue for queue in of_topic if key in _keys(queue)]
            if len(meant) == 1 and len(set(_keys(meant[0])) & named.keys()) == 1:
                continue
            allowed = ", ".join(sorted(_keys(queue)[0] for queue in of_topic))
            problem = "is not a queue of the topic"
            if meant:
                problem = "matches several queues" if len(meant) > 1 else "is named twice"
            raise ConfigError(
                f"option {name!r} names queue {key!r} of topic {topic!r}, which {problem}; allowed: {allowed}"
            )


def narrow(found: Iterable[QueueRange], rows: RowFilter, by_time: OffsetsByTime) -> list[QueueRange]:
    """
    Return the parts of *found* that may hold *rows*.

    Times are widened by `CLOCK_SLACK_MS` on both sides, because a clock may have been set back.
    """
    if rows.is_empty:
        return []
    kept = [
        part
        for part in found
        if (rows.topics is None or part.topic in rows.topics)
        and (rows.queue_ids is None or part.queue_id in rows.queue_ids)
    ]
    kept = [_clipped(part, rows.offsets.first, rows.offsets.end) for part in kept]
    kept = [part for part in kept if part.start < part.end]
    if rows.stored.first > ALL.first:
        moment = max(rows.stored.first - CLOCK_SLACK_MS, 0)
        firsts = by_time([(part, moment) for part in kept])
        kept = [_clipped(part, first, part.end) for part, first in zip(kept, firsts, strict=True)]
    if rows.stored.end < ALL.end:
        moment = max(rows.stored.end + CLOCK_SLACK_MS, 0)
        ends = by_time([(part, moment) for part in kept])
        kept = [_clipped(part, part.start, end) for part, end in zip(kept, ends, strict=True)]
    return [part for part in kept if part.start < part.end]


def _clipped(part: QueueRange, start: int, end: int) -> QueueRange:
    return replace(part, start=max(part.start, start), end=min(part.end, end))


def partitions(found: Iterable[QueueRange], *, max_records: int, min_partitions: int) -> list[QueueRange]:
    """Split *found* into ranges of at most *max_records*, and into at least about *min_partitions* if possible."""
    found = list(found)
    total = sum(map(len, found))
    cut: list[QueueRange] = []
    for whole in found:
        by_size = -(-len(whole) // max_records)
        by_share = -(-len(whole) * min_partitions // total)
        cut.extend(_split(whole, min(max(by_size, by_share if len(found) < min_partitions else 1), len(whole))))
    return cut


def _split(whole: QueueRange, parts: int) -> Iterable[QueueRange]:
    bounds = [whole.start + len(whole) * part // parts for part in range(parts + 1)]
    return [replace(whole, start=start, end=end) for start, end in pairwise(bounds)]
