"""
Messages gathered into batches, without I/O and without threads.

The limits are RocketMQ's habits: a request stays small enough that others get their turn on the connection.
"""

import math
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Generic, NamedTuple, TypeVar

from ferromq import _ferromq
from ferromq._ferromq import Message, batch_end
from ferromq.message import Batch, SendSummary

MAX_MESSAGES = 256
MAX_BYTES = 1 << 20
IN_FLIGHT = 4
"""Batches under way at once: enough that one is encoded while others travel and are stored."""

_GROUP = "group:"
_WINDOW = 1024
"""Messages among which those of one lane are gathered."""

Sendable = Message | bytes
F = TypeVar("F")


class Slice(NamedTuple):
    """A batch of one call: messages that share a lane, and the number of each among all that the caller gave."""

    messages: list[Sendable]
    numbers: Sequence[int]
    lane: str | None = None

    def apart(self) -> "list[Slice]":
        """Return each message as a batch of its own."""
        return [Slice([m], [n], self.lane) for m, n in zip(self.messages, self.numbers, strict=True)]


def most_of(lane: str | None) -> int:
    """Return how many messages of a lane travel together: of delayed ones, as with RocketMQ, one."""
    return 1 if lane == "delayed" else MAX_MESSAGES


def is_ordered(lane: str | None) -> bool:
    """Say whether the batches of a lane must be stored one after the other."""
    return lane is not None and lane.startswith(_GROUP)


def group_of(lane: str) -> str:
    """Return the message group of a lane whose batches are ordered."""
    return lane.removeprefix(_GROUP)


def batches(messages: Iterable[Sendable], first: int = 0) -> Iterator[Slice]:
    """
    Cut messages into batches, each of one lane and in order; *first* is the number of the first message.

    Lanes that alternate are taken apart, a window at a time. Raises `TypeError` for what is no message.
    """
    rest = iter(messages)
    waiting: list[Sendable] = []
    while True:
        waiting += islice(rest, MAX_MESSAGES - len(waiting))
        if not waiting:
            return
        if _has_lanes(waiting, first):
            waiting += islice(rest, _WINDOW - len(waiting))
            _has_lanes(waiting, first)  # raises for what is no message
            yield from _of_lanes(waiting, first)
            end = len(waiting)
        else:
            end = batch_end(waiting, 0, MAX_MESSAGES, MAX_BYTES)
            yield Slice(waiting[:end], range(first, first + end))
        first += end
        waiting = waiting[end:]


def _has_lanes(messages: list[Sendable], first: int) -> bool:
    try:
        return _ferromq.has_lanes(messages)
    except TypeError as error:
        index = next(index for index, message in enumerate(messages) if not isinstance(message, Message | bytes))
        raise TypeError(f"message {first + index}: {error}") from None


def _of_lanes(messages: list[Sendable], first: int) -> Iterator[Slice]:
    lanes: dict[str | None, tuple[list[Sendable], list[int]]] = {}
    for number, message in enumerate(messages, first):
        some, numbers = lanes.setdefault(lane_of(message), ([], []))
        some.append(message)
        numbers.append(number)
    for lane, (some, numbers) in lanes.items():
        begin = 0
        while begin < len(some):
            end = batch_end(some, begin, most_of(lane), MAX_BYTES)
            yield Slice(some[begin:end], numbers[begin:end], lane)
            begin = end


def with_properties(message: Sendable, added: Mapping[str, str]) -> Message:
    """Return a copy of a message with more properties."""
    if not isinstance(message, Message):
        return Message(message, properties=added)
    return message.with_properties(added)


def lane_of(message: Sendable) -> str | None:
    """Return the lane of a message."""
    return message.lane if isinstance(message, Message) else None


def size(message: Sendable) -> int:
    """Return about how many bytes a message takes."""
    return len(message if isinstance(message, bytes) else message.body)


@dataclass(slots=True)
class Gathered(Generic[F]):
    """Messages of one topic and lane that wait for company, each with the future of its receipt."""

    topic: str
    due: float
    lane: str | None = None
    messages: list[Sendable] = field(default_factory=list)
    futures: list[F] = field(default_factory=list)
    bytes: int = 0
    until: float = math.inf
    """When it fails (monotonic) if its broker does not answer."""

    def apart(self) -> "list[Gathered[F]]":
        """Return each message as a batch of its own, the last one first."""
        each = zip(self.messages, self.futures, strict=True)
        return [Gathered(self.topic, self.due, self.lane, [m], [f], size(m), self.until) for m, f in each][::-1]

    @property
    def order(self) -> tuple[str, str] | None:
        """What batches that must follow one another share; None where the order does not matter."""
        return (self.topic, self.lane) if self.lane is not None and is_ordered(self.lane) else None


class Linger(Generic[F]):
    """Keeps single messages until a batch is full or the first one has waited long enough."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._waiting: dict[tuple[str, str | None], Gathered[F]] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, topic: str, message: Sendable, length: int, future: F, now: float) -> list[Gathered[F]]:
        """Add one of *length* bytes and return the batches that are full now."""
        full = []
        key = topic, lane_of(message)
        batch = self._waiting.get(key)
        if batch is not None and batch.bytes + length > MAX_BYTES:
            full.append(self._waiting.pop(key))
            batch = None
        if batch is None:
            batch = self._waiting[key] = Gathered(topic, now + self.seconds, key[1])
        batch.messages.append(message)
        batch.futures.append(future)
        batch.bytes += length
        if len(batch.messages) >= most_of(batch.lane):
            full.append(self._waiting.pop(key))
        return full

    def due(self, now: float) -> list[Gathered[F]]:
        """Take the batches whose time has come."""
        return [self._waiting.pop(key) for key, batch in list(self._waiting.items()) if batch.due <= now]

    def all(self) -> list[Gathered[F]]:
        """Take everything."""
        waiting = list(self._waiting.values())
        self._waiting.clear()
        return waiting

    def next_due(self) -> float | None:
        """Return when the next batch must go, if there is one."""
        return min((batch.due for batch in self._waiting.values()), default=None)


def predecessor(part: Slice, pending: Iterable[tuple[Slice, F]]) -> F | None:
    """Return what must have ended before a slice is sent: the last one of its message group."""
    if not is_ordered(part.lane):
        return None
    return next((other for before, other in reversed([*pending]) if before.lane == part.lane), None)


class Stored:
    """The batches of one call that are stored."""

    def __init__(self, on_progress: Callable[[int], None] | None) -> None:
        self.done: list[tuple[Slice, Batch]] = []
        self.count = 0
        """How many messages they have, of which *on_progress* is told."""
        self._on_progress = on_progress

    @property
    def last(self) -> Batch:
        """The last batch."""
        return self.done[-1][1]

    @property
    def has_waited(self) -> bool:
        """Whether the answer to the last batch came after a flush."""
        return self.last.records.durability == "flushed"

    def add(self, part: Slice, batch: Batch) -> None:
        """Add one."""
        self.done.append((part, batch))
        self.count += len(part.messages)
        if self._on_progress is not None:
            self._on_progress(self.count)


def in_order(done: Sequence[tuple[Slice, Batch]]) -> SendSummary:
    """Return the receipts of the slices of one call, in the order of their messages."""
    sent = [batch for _, batch in done]
    if all(isinstance(part.numbers, range) for part, _ in done):
        return SendSummary(sent)
    places = array("Q", bytes(8 * sum(len(part.messages) for part, _ in done)))
    place = 0
    for part, _ in done:
        for number in part.numbers:
            places[number] = place
            place += 1
    return SendSummary(sent, places)


def note_stored(error: BaseException, count: int) -> None:
    """Say what became of the others."""
    error.add_note(f"{count} messages of the same call are stored")
