"""
Messages gathered into batches, without I/O and without threads.

The limits are RocketMQ's habits: a request stays small enough that others get their turn on the connection.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Generic, TypeVar

from ferromq._ferromq import Message, batch_end

MAX_MESSAGES = 256
MAX_BYTES = 1 << 20
IN_FLIGHT = 4
"""Batches under way at once: enough that one is encoded while others travel and are stored."""

Sendable = Message | bytes
F = TypeVar("F")


def batches(messages: Iterable[Sendable], first: int = 0) -> Iterator[list[Sendable]]:
    """Cut messages into batches, in order. Raises `TypeError` for what is no message; *first* is the first's number."""
    rest = iter(messages)
    waiting: list[Sendable] = []
    while True:
        more = list(islice(rest, MAX_MESSAGES - len(waiting)))
        waiting += more
        if not waiting:
            return
        try:
            end = batch_end(waiting, 0, MAX_MESSAGES, MAX_BYTES)
        except TypeError as error:
            index = next(index for index, message in enumerate(waiting) if not isinstance(message, Message | bytes))
            raise TypeError(f"message {first + index}: {error}") from None
        first += end
        yield waiting[:end]
        waiting = waiting[end:]


def size(message: Sendable) -> int:
    """Return about how many bytes a message takes."""
    return len(message if isinstance(message, bytes) else message.body)


@dataclass(slots=True)
class Gathered(Generic[F]):
    """Messages of one topic that wait for company, each with the future of its receipt."""

    topic: str
    due: float
    messages: list[Sendable] = field(default_factory=list)
    futures: list[F] = field(default_factory=list)
    bytes: int = 0

    def apart(self) -> "list[Gathered[F]]":
        """Return each message as a batch of its own, the last one first."""
        each = zip(self.messages, self.futures, strict=True)
        return [Gathered(self.topic, self.due, [m], [f], size(m)) for m, f in each][::-1]


class Linger(Generic[F]):
    """Keeps single messages until a batch is full or the first one has waited long enough."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._waiting: dict[str, Gathered[F]] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, topic: str, message: Sendable, length: int, future: F, now: float) -> list[Gathered[F]]:
        """Add one of *length* bytes and return the batches that are full now."""
        full = []
        batch = self._waiting.get(topic)
        if batch is not None and batch.bytes + length > MAX_BYTES:
            full.append(self._waiting.pop(topic))
            batch = None
        if batch is None:
            batch = self._waiting[topic] = Gathered(topic, now + self.seconds)
        batch.messages.append(message)
        batch.futures.append(future)
        batch.bytes += length
        if len(batch.messages) >= MAX_MESSAGES:
            full.append(self._waiting.pop(topic))
        return full

    def due(self, now: float) -> list[Gathered[F]]:
        """Take the batches whose time has come."""
        return [self._waiting.pop(topic) for topic, batch in list(self._waiting.items()) if batch.due <= now]

    def all(self) -> list[Gathered[F]]:
        """Take everything."""
        waiting = list(self._waiting.values())
        self._waiting.clear()
        return waiting

    def next_due(self) -> float | None:
        """Return when the next batch must go, if there is one."""
        return min((batch.due for batch in self._waiting.values()), default=None)
