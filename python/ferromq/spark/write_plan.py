"""
Where rows go that are to be stored once: the same row to the same queue, whichever try sends it. Pure.

Blocks of rows go to the queue that scores highest for them, so that a queue that comes or goes moves no other block.
"""

from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b

from ferromq import _ferromq
from ferromq.client._batching import MAX_BYTES
from ferromq.client._routes import Queue, Route
from ferromq.errors import Forbidden

BLOCK = 512
"""Rows that go to one queue one after the other."""
MAX_ROWS = 1024
"""Rows of one request, at most."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The queues of a topic when the write was planned."""

    topic: str
    queues: tuple[Queue, ...]
    """By broker name and queue id."""
    in_order: tuple[Queue, ...]
    """As the server told them: message groups count in this order."""

    @classmethod
    def of(cls, route: Route) -> "Layout":
        """Take it from a route. Raises `Forbidden` where no queue may be written."""
        if not route.writable:
            route.next_writable()  # says why
            raise Forbidden(f"no queue of {route.topic} may be written")
        queues = sorted(route.writable, key=lambda queue: (queue.broker_name, queue.queue_id))
        return cls(route.topic, tuple(queues), tuple(route.in_order))

    def queue_of(self, partition: int, row: int) -> Queue:
        """Return where a row goes that is in no message group."""
        return self.queues[_highest(self.queues, partition, row // BLOCK)]

    def of_group(self, group: str) -> Queue:
        """Return the queue of a message group: the one that RocketMQ's own clients choose."""
        return self.in_order[_ferromq.queue_of_group(group, len(self.in_order))]

    def place(self, rows: _ferromq.Rows, topic: int, partition: int, first: int, count: int) -> list[_ferromq.Part]:
        """Cut what of *rows* goes to their topic number *topic* into requests; *count* rows, the first is *first*."""
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


@lru_cache(maxsize=256)
def _highest(queues: tuple[Queue, ...], partition: int, block: int) -> int:
    def score(at: int) -> bytes:
        name = f"{queues[at].broker_name}/{queues[at].queue_id}/{partition}/{block}"
        return blake2b(name.encode(), digest_size=8).digest()

    return max(range(len(queues)), key=score)
