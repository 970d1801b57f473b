"""
Which ranges of which queues a read covers, and how they are cut into partitions.

Pure: no Spark, no sockets.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from ferromq.errors import ConfigError
from ferromq.spark.options import Offsets


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue of the topic, where it lies, and what it holds now."""

    broker_name: str
    endpoint: str
    queue_id: int
    min_offset: int
    max_offset: int


@dataclass(frozen=True, slots=True)
class QueueRange:
    """The queue offsets from *start* up to, not including, *end* of one queue."""

    broker_name: str
    endpoint: str
    queue_id: int
    start: int
    end: int

    def __len__(self) -> int:
        return self.end - self.start


def ranges(queues: Sequence[Queue], starting: Offsets, ending: Offsets) -> list[QueueRange]:
    """
    Return the range of each queue that the two options ask for, empty ones left out.

    ConfigError where an option names a queue that is not there, or offsets that the queue does not hold: what
    has aged out is not read around in silence.
    """
    starts = _resolve("startingOffsets", starting, queues, default="earliest")
    ends = _resolve("endingOffsets", ending, queues, default="latest")
    found = []
    for queue, start, end in zip(queues, starts, ends, strict=True):
        if start > end:
            if isinstance(starting, str) or isinstance(ending, str):
                continue
            raise ConfigError(
                f"option 'startingOffsets' is {start} for queue {queue.queue_id} of {queue.broker_name}; "
                f"allowed: up to its endingOffsets, {end}"
            )
        if start < end:
            found.append(QueueRange(queue.broker_name, queue.endpoint, queue.queue_id, start, end))
    return found


def _resolve(name: str, offsets: Offsets, queues: Sequence[Queue], *, default: str) -> list[int]:
    if isinstance(offsets, str):
        return [queue.min_offset if offsets == "earliest" else queue.max_offset for queue in queues]
    places = {key: _find(name, key, queues) for key in offsets}
    resolved = _resolve(name, default, queues, default=default)
    for key, place in places.items():
        queue, offset = queues[place], offsets[key]
        if not queue.min_offset <= offset <= queue.max_offset:
            raise ConfigError(
                f"option {name!r} is {offset} for queue {key!r}; "
                f"allowed: {queue.min_offset} to {queue.max_offset}, what the queue holds now"
            )
        resolved[place] = offset
    return resolved


def _find(name: str, key: str, queues: Sequence[Queue]) -> int:
    """Return the index of the queue that *key* means, `3` or `broker-a:3`."""
    places = [
        place
        for place, queue in enumerate(queues)
        if key in {str(queue.queue_id), f"{queue.broker_name}:{queue.queue_id}"}
    ]
    if len(places) != 1:
        allowed = ", ".join(sorted(f"{queue.broker_name}:{queue.queue_id}" for queue in queues))
        problem = "means several queues" if places else "is not a queue of the topic"
        raise ConfigError(f"option {name!r} names queue {key!r}, which {problem}; allowed: {allowed}")
    return places[0]


def partitions(found: Iterable[QueueRange], *, max_records: int, min_partitions: int) -> list[QueueRange]:
    """Cut *found* into ranges of at most *max_records*, and into about *min_partitions* or more where it can be."""
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
