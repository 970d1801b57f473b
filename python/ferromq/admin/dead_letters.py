"""
Dead letters of a group: reads them without a lease, newest or oldest first, and sends them to their topics again.

RocketMQ and ferromq keep them in the topic `%DLQ%GROUP`. Records, properties and flags are RocketMQ's: a record is sent
again as it is stored, compressed or not.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from ferromq._ferromq import StoredMessage, queue_of_group
from ferromq.admin.calls import Calls
from ferromq.admin.queues import Queue, held, page
from ferromq.errors import FerromqError, Forbidden, NotDurable, TopicNotFound
from ferromq.protocol import java_hash, naming
from ferromq.protocol.codes import RequestCode, ResponseCode
from ferromq.protocol.dead_letters import CAUSES, ORIGINS, origin_id, origin_topic
from ferromq.protocol.properties import format_properties
from ferromq.terminal.objects import html_of

_PAGE = 32
"""Messages of one pull; brokers of RocketMQ answer no more."""
_KEPT_FLAGS = 0x703
"""Bits of a record's system flag that a producer sets: compressed, several tags, and the kind of compression."""
_STORED = (ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.FLUSH_SLAVE_TIMEOUT, ResponseCode.SLAVE_NOT_AVAILABLE)
_GROUP_OF_MESSAGE = "__SHARDINGKEY"
_LEFT_OUT = frozenset(
    {
        *ORIGINS,
        *CAUSES,
        "FERROMQ_SEQUENCE",  # of a numbered write: the message would be dropped as a duplicate
        "REAL_TOPIC",
        "REAL_QID",
        "TRAN_MSG",  # it would be a half message
        "PGROUP",
        "DELAY",  # it would be delayed once more
        "RECONSUME_TIME",
        "MAX_RECONSUME_TIMES",
        "CONSUME_START_TIME",
        "POP_CK",
        "1ST_POP_TIME",
    }
)
_LEFT_OUT_PREFIX = "TIMER_"


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that a group gave up, as it lies in the group's dead letters."""

    group: str
    message: StoredMessage
    """The stored record: body, keys, tag, properties, times."""
    broker: str
    """The remoting address of the broker that has it."""
    namespace: str = ""
    """The namespace of its group. The group and the topic are named without it, the stored record is as it is."""

    @property
    def message_id(self) -> str:
        """The id of the message, which it mostly had in its topic, too."""
        return self.message.message_id

    @property
    def topic(self) -> str | None:
        """The topic it came from; None: the broker did not note it."""
        whole = origin_topic(self.message.properties)
        return whole and naming.without_namespace(self.namespace, whole)

    @property
    def origin_message_id(self) -> str:
        """The id it had in its topic; RocketMQ's brokers may note its offset message id."""
        return origin_id(self.message.properties) or self.message.message_id

    @property
    def reason(self) -> str | None:
        """Why it was given up; None: not noted, as by RocketMQ's brokers."""
        return self.message.properties.get("DLQ_REASON")

    @property
    def exception(self) -> str | None:
        """The class of the exception that its last handler raised, if it is known."""
        return self.message.properties.get("DLQ_EXCEPTION")

    @property
    def attempts(self) -> int:
        """How often it was delivered: as noted, or else the record's reconsume times."""
        noted = self.message.properties.get("DLQ_ATTEMPTS", "")
        return int(noted) if noted.isdecimal() else self.message.reconsume_times

    def _repr_html_(self) -> str:
        return html_of(self)


@dataclass(frozen=True, slots=True)
class ResentLetter:
    """What became of a dead letter that was to be sent again."""

    letter: DeadLetter
    topic: str | None
    """Where it was to go."""
    queue_id: int | None = None
    queue_offset: int | None = None
    """Its place there, if it is known to be stored."""
    error: FerromqError | None = None
    """
    Why it is not known to be stored. A `RequestError`: it is not. An `OutcomeUnknown`: it may be, and sending it again
    may make a duplicate; `NotDurable`: it is stored, but not as safely as promised.
    """

    def _repr_html_(self) -> str:
        return html_of(self)


def listed(
    calls: Calls, brokers: Iterable[str], group: str, namespace: str, *, newest_first: bool
) -> Iterator[DeadLetter]:
    """Yield the dead letters that are there now, in the order of their store times; reads a page at a time."""
    topic = naming.DLQ_PREFIX + naming.in_namespace(namespace, group)
    sources = []
    with calls.bounded():
        for address in brokers:
            for number, (begin, end) in held(calls, address, topic).items():
                read = _backward if newest_first else _forward
                sources.append(read(calls, Queue(address, topic, number), begin, end))
    merged = heapq.merge(*sources, key=lambda pair: pair[1].store_timestamp, reverse=newest_first)
    return (DeadLetter(group, message, address, namespace) for address, message in merged)


def send_again(
    calls: Calls,
    queues_of: Callable[[str], list[tuple[str, int]]],
    letters: Iterable[DeadLetter],
    topic: str | None,
    namespace: str,
) -> list[ResentLetter]:
    """
    Send each letter once to its topic, or to *topic* of the namespace, and return what became of each.

    Its own topic is the one in its own namespace. First checks the types of the letters.
    """
    for letter in letters:
        if not isinstance(letter, DeadLetter):
            raise TypeError(f"a dead letter is expected, as dead_letters() yields them, not {letter!r}")
    sender = _Sender(calls, queues_of, namespace)
    each_once = {
        (letter.namespace, letter.group, letter.broker, letter.message.queue_id, letter.message.queue_offset): letter
        for letter in letters
    }
    whole = topic and naming.in_namespace(namespace, topic)
    return [sender.send(letter, whole or origin_topic(letter.message.properties)) for letter in each_once.values()]


def _forward(calls: Calls, queue: Queue, begin: int, end: int) -> Iterator[tuple[str, StoredMessage]]:
    for start in range(begin, end, _PAGE):
        for message in page(calls, queue, start, min(start + _PAGE, end)):
            yield queue.address, message


def _backward(calls: Calls, queue: Queue, begin: int, end: int) -> Iterator[tuple[str, StoredMessage]]:
    for stop in range(end, begin, -_PAGE):
        for message in reversed(page(calls, queue, max(stop - _PAGE, begin), stop)):
            yield queue.address, message


class _Sender:
    """Sends letters, and asks for the queues of each topic once."""

    def __init__(self, calls: Calls, queues_of: Callable[[str], list[tuple[str, int]]], namespace: str) -> None:
        self._calls = calls
        self._namespace = namespace
        self._queues_of = queues_of
        self._queues: dict[str, list[tuple[str, int]]] = {}
        self._turn = 0

    def send(self, letter: DeadLetter, topic: str | None) -> ResentLetter:
        """Send one to a topic, which has its whole name; a failure is in the result."""
        shown = topic and naming.without_namespace(self._namespace, topic)
        try:
            if topic is None:
                raise TopicNotFound(
                    f"the broker did not note where dead letter {letter.message_id} came from; give topic="
                )
            queue_id, queue_offset = self._send(letter.message, topic)
        except FerromqError as error:
            return ResentLetter(letter, shown, error=error)
        return ResentLetter(letter, shown, queue_id, queue_offset)

    def _send(self, message: StoredMessage, topic: str) -> tuple[int, int]:
        properties = {
            name: value
            for name, value in message.properties.items()
            if name not in _LEFT_OUT and not name.startswith(_LEFT_OUT_PREFIX)
        }
        address, queue_id = self._queue(topic, properties.get(_GROUP_OF_MESSAGE))
        fields = {
            "producerGroup": naming.TOOLS_GROUP,
            "topic": topic,
            "defaultTopic": naming.AUTO_CREATE_TOPIC,
            "defaultTopicQueueNums": "8",
            "queueId": str(queue_id),
            "sysFlag": str(message.sys_flag & _KEPT_FLAGS),
            "bornTimestamp": str(message.born_timestamp),
            "flag": str(message.flag),
            "properties": format_properties(properties),
            "reconsumeTimes": "0",
            "unitMode": "false",
            "batch": "false",
        }
        code, answered, _ = self._calls.exchange(address, RequestCode.SEND_MESSAGE, fields, _STORED, body=message.body)
        if code != ResponseCode.SUCCESS:
            name = ResponseCode(code).name
            raise NotDurable(f"{address} stored dead letter {message.message_id} in {topic}, but: {name}", code, name)
        return int(answered["queueId"]), int(answered["queueOffset"])

    def _queue(self, topic: str, message_group: str | None) -> tuple[str, int]:
        queues = self._queues.get(topic)
        if queues is None:
            queues = self._queues[topic] = self._queues_of(topic)
        if not queues:
            raise Forbidden(f"topic {topic} has no queue that takes messages; give it write permission")
        if message_group is not None:
            # As over gRPC: the client chooses the broker, the broker the queue.
            address, _ = queues[queue_of_group(message_group, len(queues))]
            own = [number for other, number in queues if other == address]
            return address, own[java_hash.queue_of_group(message_group, len(own))]
        self._turn += 1
        return queues[self._turn % len(queues)]
