"""
Maps rows to queues for exactly-once writes: every attempt sends a row to the same queue.

A block of rows goes to the queue with the highest score for it (rendezvous hashing), so adding or removing a queue
moves no block between other queues.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import blake2b

from ferromq import _ferromq
from ferromq.core.batching import MAX_BYTES
from ferromq.core.routes import Queue, Route
from ferromq.errors import ConfigError, Forbidden

BLOCK = 512
"""Consecutive rows that go to one queue."""
MAX_ROWS = 1024
"""Maximum rows of one request."""
_SHOWN = 400
"""Characters of a layout in an error."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The queues of a topic when the write was planned."""

    topic: str
    queues: tuple[Queue, ...]
    """Sorted by broker name and queue id."""
    in_order: tuple[Queue, ...]
    """In the order of the route, which decides the queue of a message group."""
    brokers: tuple[tuple[str, str], ...] = ()
    """Name and endpoint of each broker that has the topic, by name."""

    @classmethod
    def of(cls, route: Route) -> "Layout":
        """Return the layout of a route. Raises `Forbidden` if no queue is writable."""
        if not route.writable:
            route.next_writable()  # raises with the reason
            raise Forbidden(f"no queue of {route.topic} may be written")
        queues = sorted(route.writable, key=lambda queue: (queue.broker_name, queue.queue_id))
        return cls(route.topic, tuple(queues), tuple(route.in_order), tuple(sorted(route.brokers.items())))

    @property
    def text(self) -> str:
        """The queues as text: `broker-a:0-3,7;broker-b:0-3`."""
        return text_of((queue.broker_name, queue.queue_id) for queue in self.queues)

    def kept_to(self, first: str, *, is_placed: bool, otherwise: str) -> "Layout":
        """
        Return the layout of the *first* attempt at a batch, with the endpoints of this one.

        With *is_placed*, rows may have a message group or priority, and the broker chooses among all its queues. Raises
        `ConfigError` if a queue of the first attempt no longer exists, or such rows would move. *otherwise* is the
        alternative to restoring the queues, for the error.
        """
        if first == self.text:
            return self
        names = names_of(first)
        kept = tuple(queue for queue in self.queues if (queue.broker_name, queue.queue_id) in names)
        brokers = {name for name, _ in names}
        has_grown = any(queue.broker_name in brokers for queue in self.queues if queue not in kept)
        if len(kept) < len(names) or (is_placed and has_grown):
            raise ConfigError(self._changed(first, otherwise, is_placed=is_placed))
        return replace(self, queues=kept, in_order=tuple(queue for queue in self.in_order if queue in kept))

    def _changed(self, first: str, otherwise: str, *, is_placed: bool) -> str:
        why = (
            ", and rows with message groups or priorities need all queues of a broker as they were" if is_placed else ""
        )
        return (
            f"topic {self.topic!r} had other queues when this batch was first tried: {_shown(first)}; now "
            f"{_shown(self.text)}. Stored rows could be stored again{why}. Restore the queues until the batch is "
            f"written, or {otherwise}"
        )

    def queue_of(self, partition: int, row: int) -> Queue:
        """Return the queue of a row without a message group."""
        return self.queues[_highest(self.queues, partition, row // BLOCK)]

    def of_group(self, group: str) -> Queue:
        """Return the queue of a message group, the same as RocketMQ's clients choose."""
        return self.in_order[_ferromq.queue_of_group(group, len(self.in_order))]

    def place(self, rows: _ferromq.Rows, topic: int, partition: int, first: int, count: int) -> list[_ferromq.Part]:
        """Divide the rows of topic number *topic* into requests; *rows* has *count* rows from number *first* on."""
        blocks = range(first // BLOCK, (first + count - 1) // BLOCK + 1)
        endpoints = sorted({queue.endpoint for queue in self.queues})
        return rows.placed(
            topic,
            BLOCK,
            [_highest(self.queues, partition, block) for block in blocks],
            [self.queues.index(queue) for queue in self.in_order],
            [endpoints.index(queue.endpoint) for queue in self.queues],
            MAX_ROWS,
            MAX_BYTES,
        )


def text_of(names: Iterable[tuple[str, int]]) -> str:
    """Return queues, by broker name and id, as text; equal queues give equal text."""
    by_broker: dict[str, list[int]] = {}
    for broker, queue_id in sorted(set(names)):
        by_broker.setdefault(broker, []).append(queue_id)
    return ";".join(f"{broker}:{','.join(_runs(ids))}" for broker, ids in by_broker.items())


def _runs(ids: list[int]) -> Iterable[str]:
    begin = ids[0]
    for queue_id, following in zip(ids, [*ids[1:], -1], strict=True):
        if following != queue_id + 1:
            yield str(begin) if begin == queue_id else f"{begin}-{queue_id}"
            begin = following


def names_of(text: str) -> frozenset[tuple[str, int]]:
    """Parse the text of `text_of`. Raises `ValueError` for another text."""
    names = []
    for part in text.split(";"):
        broker, _, runs = part.rpartition(":")
        for run in runs.split(","):
            first, _, last = run.partition("-")
            names += [(broker, queue_id) for queue_id in range(int(first), int(last or first) + 1)]
    return frozenset(names)


def _shown(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


@lru_cache(maxsize=256)
def _highest(queues: tuple[Queue, ...], partition: int, block: int) -> int:
    def score(at: int) -> bytes:
        name = f"{queues[at].broker_name}/{queues[at].queue_id}/{partition}/{block}"
        return blake2b(name.encode(), digest_size=8).digest()

    return max(range(len(queues)), key=score)
