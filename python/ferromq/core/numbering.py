"""
The numbers of an idempotent producer's messages, by which a broker recognizes a repeated send: without I/O.

A number is `WRITER/PARTITION/EPOCH/ROW` (`FERROMQ_SEQUENCE`, see docs/reference/sending.md). The writer is the
producer, and the epoch is 0. A partition has one request under way at a time, so its rows rise in the order of the
requests. Requests that are under way at once have different partitions.
"""

import threading
import uuid
from dataclasses import dataclass

from ferromq._ferromq import Message
from ferromq.core.batching import with_properties
from ferromq.core.requests import Call, Plan
from ferromq.core.routes import Queue, Route
from ferromq.errors import ConfigError, ServerError, Unsupported
from ferromq.protocol.broker_description import DESCRIBE_BROKER, decode

SEQUENCE = "FERROMQ_SEQUENCE"
"""The property of a message that has its number."""

_Key = tuple[str, str, int]
"""Topic, broker name and queue id."""


@dataclass(slots=True)
class _Partition:
    number: int
    row: int = 0
    """The next row."""


class Numbering:
    """The partitions of a producer, and the brokers that recognize its numbers; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._writer = ""
        self._count = 0
        self._free: dict[_Key, list[_Partition]] = {}
        self._windows: dict[str, float] = {}
        """Endpoint → seconds for which the broker recognizes a number."""

    @property
    def writer(self) -> str:
        """The name of the producer in its numbers, made at the first use: a forked child makes its own."""
        with self._lock:
            self._writer = self._writer or f"producer-{uuid.uuid4().hex}"
            return self._writer

    def take(self, key: _Key) -> _Partition:
        """Return a partition of a queue that no other request has."""
        with self._lock:
            free = self._free.setdefault(key, [])
            if free:
                return free.pop()
            self._count += 1
            return _Partition(self._count - 1)

    def release(self, key: _Key, partition: _Partition) -> None:
        """Give a partition to the next request of its queue."""
        with self._lock:
            self._free[key].append(partition)

    def window(self, endpoint: str, limit: float) -> Plan[float]:
        """Return the seconds for which a broker recognizes a number. Raises `Unsupported` if it does not."""
        window = self._windows.get(endpoint)
        if window is None:
            window = self._windows[endpoint] = yield from _window(endpoint, limit)
        return window

    def forget(self, endpoint: str) -> None:
        """Ask the broker again before the next send: another server may start in its place."""
        self._windows.pop(endpoint, None)


def _window(endpoint: str, timeout: float) -> Plan[float]:
    try:
        answer = yield Call(endpoint, DESCRIBE_BROKER, b"", timeout)
    except Unsupported as error:
        raise _unsupported(endpoint) from error
    try:
        window_ms = decode(answer).dedup_window_ms
    except ValueError as error:
        raise ServerError(f"{endpoint} answered {DESCRIBE_BROKER} with something else: {error}") from error
    if window_ms is None:
        raise _unsupported(endpoint)
    return window_ms / 1000


def _unsupported(endpoint: str) -> Unsupported:
    return Unsupported(
        f"the server at {endpoint} does not announce that it stores a repeated message once: it is RocketMQ's, or an "
        "older ferromq. Use a ferromq broker of this version, or a producer without idempotent=True, whose repetitions "
        "may be stored twice"
    )


class Numbered:
    """The messages of one request, with their numbers if there is a *numbering*. Call `release` at its end."""

    def __init__(self, numbering: Numbering | None, topic: str, messages: list[Message | bytes]) -> None:
        self._numbering = numbering
        self._topic = topic
        self._messages = messages
        self._held: tuple[_Key, _Partition] | None = None
        self._numbered: list[Message | bytes] = []
        self.kept: Queue | None = None
        """The queue that may have stored an attempt: each further one goes there, with the same numbers."""

    def check(self, endpoint: str, limit: float, timeout: float) -> Plan[None]:
        """
        Ask a broker, once within *limit* seconds, whether it recognizes numbers for the *timeout* of the send.

        Raises `Unsupported` for a server that stores every repetition, and `ConfigError` for one that forgets a number
        while it may be repeated.
        """
        if self._numbering is None:
            return
        window = yield from self._numbering.window(endpoint, limit)
        if window <= timeout:
            raise ConfigError(
                f"the broker at {endpoint} recognizes a repeated message for {window:g} s (dedup_window), and this "
                f"send may be repeated for {timeout:g} s: raise dedup_window of the broker, or lower timeout"
            )

    def keep(self, queue: Queue) -> None:
        """Note that a queue may have stored the attempt. Its broker is asked again: another may start in its place."""
        if self._numbering is not None:
            self.kept = queue
            self._numbering.forget(queue.endpoint)

    def kept_in(self, route: Route) -> Queue | None:
        """Return the queue that may have stored an attempt, with the present endpoint of its broker."""
        return None if self.kept is None else route.now_at(self.kept)

    def messages(self, queue: Queue) -> list[Message | bytes]:
        """
        Return the messages for a queue, with the same numbers in each attempt there.

        Raises `ValueError` for a message that has the property of numbers already.
        """
        if self._numbering is None:
            return self._messages
        key = (self._topic, queue.broker_name, queue.queue_id)
        if self._held is None or self._held[0] != key:
            self.release()
            partition = self._numbering.take(key)
            self._held = key, partition
            prefix = f"{self._numbering.writer}/{partition.number}/0/"
            first, partition.row = partition.row, partition.row + len(self._messages)
            self._numbered = [
                _with_number(message, f"{prefix}{row}") for row, message in enumerate(self._messages, first)
            ]
        return self._numbered

    def release(self) -> None:
        """Let the next request have the partition. A late attempt of this one has lower rows, so it is not stored."""
        if self._numbering is not None and self._held is not None:
            self._numbering.release(*self._held)
            self._held = None


def _with_number(message: Message | bytes, number: str) -> Message:
    if isinstance(message, Message) and SEQUENCE in message.properties:
        raise ValueError(
            f"the property {SEQUENCE} is given, and an idempotent producer sets it itself: leave it out, or use a "
            "producer without idempotent=True"
        )
    return with_properties(message, {SEQUENCE: number})
