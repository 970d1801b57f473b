"""
Messages that wait: half messages of transactions, and delayed messages.

Requests 45 and 61 tell delayed messages, with Java's bodies. Half messages and the op messages that end them lie in
queue 0 of two topics of RocketMQ. The body of an op message has the queue offsets of half messages, joined by commas.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ferromq._ferromq import StoredMessage
from ferromq.admin import progress
from ferromq.admin.asking import Ask, each
from ferromq.admin.calls import Calls
from ferromq.admin.queues import Queue, backward, held, page
from ferromq.admin.results import Unreachable
from ferromq.errors import ServerError, TopicNotFound, Unsupported
from ferromq.protocol import java_json, naming
from ferromq.protocol.codes import RequestCode
from ferromq.protocol.message_queue import MessageQueue
from ferromq.terminal.objects import html_of

_QUEUE = 0
_MOST_OPS = 20_000
"""Op messages that are read of one broker."""
_MOST_BYTES = 16 << 20
"""Bodies of half messages that are read of one broker, in bytes."""
_LONGEST_NUMBER = 19


@dataclass(frozen=True, slots=True)
class HalfMessage:
    """A half message whose transaction has not ended."""

    message: StoredMessage
    """As it is stored, in RocketMQ's half topic."""
    broker: str
    """The remoting address of the broker that has it."""
    topic: str | None
    """Where a commit puts it; None: its producer did not note it."""
    producer_group: str | None
    """The group whose producers the broker asks for the outcome."""
    checks: int
    """How often the broker asked for the outcome."""

    def _repr_html_(self) -> str:
        return html_of(self)


@dataclass(frozen=True, slots=True)
class WaitingTransactions:
    """The transactions that wait for their end."""

    messages: tuple[HalfMessage, ...]
    """The newest first."""
    is_complete: bool
    """Whether these are all; else a broker has more half or op messages than are read."""
    unreachable: tuple[Unreachable, ...] = ()

    def _repr_html_(self) -> str:
        return html_of(self)


@dataclass(frozen=True, slots=True)
class DelayedMessages:
    """How many messages wait for their delivery."""

    topics: Mapping[str, int]
    """Messages with a delivery time, by topic."""
    levels: Mapping[int, int]
    """Messages with a delay level, retries among them, by level from 1."""
    without_timer: tuple[str, ...]
    """The addresses of brokers that tell no messages with a delivery time: their timer is off, or they have none."""
    unreachable: tuple[Unreachable, ...] = ()

    def _repr_html_(self) -> str:
        return html_of(self)


def op_offsets(body: bytes) -> list[int]:
    """Return the queue offsets of the half messages that an op message ends; other text than numbers is left out."""
    words = (word.strip() for word in body.split(b","))
    return [int(word) for word in words if word.isdigit() and len(word) <= _LONGEST_NUMBER]


def transactions(calls: Calls, brokers: Iterable[str], namespace: str, most: int) -> WaitingTransactions:
    """Return up to *most* half messages of each broker whose transactions have not ended."""
    answers, unreachable = each(calls, brokers, lambda ask: _open_at(calls, ask, namespace, most))
    found = [half for _, (halves, _) in answers for half in halves]
    found.sort(key=lambda half: half.message.store_timestamp, reverse=True)
    return WaitingTransactions(tuple(found), all(whole for _, (_, whole) in answers), unreachable)


def _open_at(calls: Calls, ask: Ask, namespace: str, most: int) -> tuple[list[HalfMessage], bool]:
    (begin, end), are_all = _range(ask, naming.HALF_TOPIC, most)
    halves, size = list[StoredMessage](), 0
    for _, message in backward(calls, Queue(ask.address, naming.HALF_TOPIC, _QUEUE), begin, end):
        size += len(message.body)
        if halves and size > _MOST_BYTES:
            are_all = False
            break
        halves.append(message)
    halves.reverse()
    (begin, end), newest_ops = _range(ask, naming.OP_TOPIC, _MOST_OPS if halves else 0)
    ops = page(calls, Queue(ask.address, naming.OP_TOPIC, _QUEUE), begin, end) if begin < end else []
    ended = {offset for message in ops for offset in op_offsets(message.body)}
    # RocketMQ's brokers put a half message back at the end when they ask for its outcome: the last copy counts.
    open_ones = {half.message_id: half for half in halves if half.queue_offset not in ended}
    found = [_half(half, ask.address, namespace) for half in open_ones.values()]
    return found, are_all and (newest_ops or not halves)


def _range(ask: Ask, topic: str, most: int) -> tuple[tuple[int, int], bool]:
    """Return the offsets of the newest messages behind the broker's own committed one, and whether these are all."""
    try:
        begin, end = held(ask, topic).get(_QUEUE, (0, 0))
    except TopicNotFound:  # the first transaction creates the topic
        return (0, 0), True
    place = MessageQueue(topic, "", _QUEUE)
    committed = progress.committed(ask, naming.TRANSACTION_GROUP, place)
    begin = max(begin, committed or 0)
    first = max(begin, end - most)
    return (first, end), first == begin


def _half(message: StoredMessage, broker: str, namespace: str) -> HalfMessage:
    properties = message.properties
    topic, checks = properties.get("REAL_TOPIC"), properties.get("TRANSACTION_CHECK_TIMES", "")
    return HalfMessage(
        message,
        broker,
        topic and naming.without_namespace(namespace, topic),
        properties.get("PGROUP"),
        int(checks) if checks.isascii() and checks.isdecimal() and len(checks) <= _LONGEST_NUMBER else 0,
    )


def delayed(calls: Calls, brokers: Iterable[str], namespace: str) -> DelayedMessages:
    """Return the number of messages that wait for their delivery, of all brokers together."""
    answers, unreachable = each(calls, brokers, lambda ask: (_timed_at(ask), _levels_at(ask)))
    topics: dict[str, int] = {}
    levels: dict[int, int] = {}
    for _, (timed, of_levels) in answers:
        for whole, count in (timed or {}).items():
            topic = naming.without_namespace(namespace, whole)
            topics[topic] = topics.get(topic, 0) + count
        for level, count in of_levels.items():
            levels[level] = levels.get(level, 0) + count
    without = tuple(address for address, (timed, _) in answers if timed is None)
    return DelayedMessages(dict(sorted(topics.items())), dict(sorted(levels.items())), without, unreachable)


def _timed_at(ask: Ask) -> dict[str, int] | None:
    """Return the waiting messages of each topic; None: the broker has no timer (4.x), or it is off, by an error."""
    try:
        body = ask(RequestCode.GET_TIMER_METRICS, {})
    except (ServerError, Unsupported):
        return None

    def read() -> dict[str, int]:
        counts = java_json.loads_object(body).get("timingCount") or {}
        return {str(topic): int(found["count"]) for topic, found in counts.items() if int(found["count"]) > 0}

    return ask.decoded("the figures of the timer", read)


def _levels_at(ask: Ask) -> dict[int, int]:
    body = ask(RequestCode.GET_ALL_DELAY_OFFSET, {})

    def read() -> dict[int, int]:
        delivered = java_json.loads_object(body).get("offsetTable") or {}
        return {int(level): int(offset) for level, offset in delivered.items()}

    offsets = ask.decoded("the progress of delay levels", read)
    try:
        queues = held(ask, naming.SCHEDULE_TOPIC)
    except TopicNotFound:
        return {}
    counts = {queue_id + 1: end - max(begin, offsets.get(queue_id + 1, 0)) for queue_id, (begin, end) in queues.items()}
    return {level: count for level, count in counts.items() if count > 0}
