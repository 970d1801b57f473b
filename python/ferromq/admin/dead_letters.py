"""
Dead letters of a group: reads them without a lease, newest or oldest first, and sends them to their topics again.

RocketMQ and ferromq keep them in the topic `%DLQ%GROUP`. Records, properties and flags are RocketMQ's: a record is sent
again as it is stored, compressed or not.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from ferromq._ferromq import StoredMessage, queue_of_group
from ferromq.admin.calls import Calls
from ferromq.admin.queues import browsed
from ferromq.admin.results import Unreachable
from ferromq.errors import FerromqError, Forbidden, NotDurable, OutcomeUnknown, RequestError, TopicNotFound
from ferromq.protocol import java_hash, naming
from ferromq.protocol.codes import RequestCode, ResponseCode
from ferromq.protocol.dead_letters import CAUSES, ORIGINS, origin_id, origin_topic
from ferromq.protocol.properties import format_properties
from ferromq.terminal.objects import html_of

_MOST_ATTEMPTS = 2**31 - 1
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
        "MIN_OFFSET",  # brokers and clients write these five
        "MAX_OFFSET",
        "CLUSTER",
        "MSG_REGION",
        "TRACE_ON",
    }
)
_LEFT_OUT_PREFIX = "TIMER_"


def fields_again(message: StoredMessage) -> tuple[dict[str, str], int]:
    """Return the properties and the system flag with which a message is sent once more, its body as it is stored."""
    properties = {
        name: value
        for name, value in message.properties.items()
        if name not in _LEFT_OUT and not name.startswith(_LEFT_OUT_PREFIX)
    }
    return properties, message.sys_flag & _KEPT_FLAGS


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
        # A property is what its sender wrote; `int` takes no number of thousands of digits.
        is_number = noted.isdecimal() and len(noted) <= len(str(_MOST_ATTEMPTS))
        return int(noted) if is_number else self.message.reconsume_times

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
    is_skipped: bool = False
    """Whether it was not sent because a server did not answer, for it or for a letter before it."""

    @property
    def is_unanswered(self) -> bool:
        """Whether a server did not answer, for it or for a letter before it: a further letter would wait as long."""
        is_unknown = isinstance(self.error, OutcomeUnknown) and not isinstance(self.error, NotDurable)
        return self.is_skipped or is_unknown

    def _repr_html_(self) -> str:
        return html_of(self)


def listed(
    calls: Calls,
    brokers: Iterable[str],
    group: str,
    namespace: str,
    *,
    newest_first: bool,
    unreachable: list[Unreachable] | None = None,
) -> Iterator[DeadLetter]:
    """
    Return the dead letters that are there now, in the order of their store times; reads a page at a time.

    Brokers that do not answer are added to *unreachable*; without this list their failure is raised.
    """
    topic = naming.DLQ_PREFIX + naming.in_namespace(namespace, group)
    merged = browsed(calls, brokers, topic, None, newest_first=newest_first, unreachable=unreachable)
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

    Its own topic is the one in its own namespace. Those behind a letter whose server does not answer are skipped. First
    checks the types of the letters.
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


class _Sender:
    """Sends letters until a server does not answer, and asks for the queues of each topic once."""

    def __init__(self, calls: Calls, queues_of: Callable[[str], list[tuple[str, int]]], namespace: str) -> None:
        self._calls = calls
        self._namespace = namespace
        self._queues_of = queues_of
        self._queues: dict[str, list[tuple[str, int]]] = {}
        self._turn = 0
        self._lost: OutcomeUnknown | None = None
        """Why it sends no more."""

    def send(self, letter: DeadLetter, topic: str | None) -> ResentLetter:
        """Send one to a topic, which has its whole name; a failure is in the result."""
        shown = topic and naming.without_namespace(self._namespace, topic)
        try:
            if topic is None:
                raise TopicNotFound(
                    f"the broker did not note where dead letter {letter.message_id} came from; give topic="
                )
            with self._calls.bounded():
                queue = None if self._lost else self._queue(topic, letter.message)
                if queue is not None:
                    return ResentLetter(letter, shown, *self._send(letter.message, topic, queue))
        except FerromqError as error:
            return ResentLetter(letter, shown, error=error)
        failure = RequestError(
            f"dead letter {letter.message_id} was not sent, as a server did not answer: {self._lost}; send it again"
        )
        return ResentLetter(letter, shown, error=failure, is_skipped=True)

    def _send(self, message: StoredMessage, topic: str, queue: tuple[str, int]) -> tuple[int, int]:
        properties, sys_flag = fields_again(message)
        address, queue_id = queue
        fields = {
            "producerGroup": naming.TOOLS_GROUP,
            "topic": topic,
            "defaultTopic": naming.AUTO_CREATE_TOPIC,
            "defaultTopicQueueNums": "8",
            "queueId": str(queue_id),
            "sysFlag": str(sys_flag),
            "bornTimestamp": str(message.born_timestamp),
            "flag": str(message.flag),
            "properties": format_properties(properties),
            "reconsumeTimes": "0",
            "unitMode": "false",
            "batch": "false",
        }
        request = RequestCode.SEND_MESSAGE
        try:
            code, answered, _ = self._calls.exchange(address, request, fields, _STORED, body=message.body)
        except OutcomeUnknown as error:
            self._lost = error
            raise
        if code != ResponseCode.SUCCESS:
            name = ResponseCode(code).name
            raise NotDurable(f"{address} stored dead letter {message.message_id} in {topic}, but: {name}", code, name)
        try:
            return int(answered["queueId"]), int(answered["queueOffset"])
        except (KeyError, ValueError) as error:
            raise OutcomeUnknown(
                f"{address} accepted dead letter {message.message_id}, but answered {request.name} without a number "
                f"queueId or queueOffset: {error!r:.200}; look for it in {topic}"
            ) from error

    def _queue(self, topic: str, message: StoredMessage) -> tuple[str, int] | None:
        """Return address and id of the queue for a message; None: a server did not answer."""
        queues = self._queues.get(topic)
        if queues is None:
            try:
                queues = self._queues[topic] = self._queues_of(topic)
            except OutcomeUnknown as error:
                self._lost = error
                return None
        if not queues:
            raise Forbidden(f"topic {topic} has no queue that takes messages; give it write permission")
        message_group = message.properties.get(_GROUP_OF_MESSAGE)
        if message_group is not None:
            # As over gRPC: the client chooses the broker, the broker the queue.
            address, _ = queues[queue_of_group(message_group, len(queues))]
            own = [number for other, number in queues if other == address]
            return address, own[java_hash.queue_of_group(message_group, len(own))]
        self._turn += 1
        return queues[self._turn % len(queues)]
