"""
The lag of groups, and resets of their offsets.

Requests 202, 208, 303 and 317 tell offsets and times; request 222 resets. Bodies are Java's, whose maps have objects as
keys (`protocol.message_queue`).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Literal, NamedTuple, TypeVar

from ferromq._ferromq import StoredMessage
from ferromq.admin.asking import Ask, each
from ferromq.admin.calls import Calls
from ferromq.admin.queues import offset_by_time
from ferromq.admin.results import GroupLag, QueueLag, QueueReset, Unreachable
from ferromq.core.requests import milliseconds
from ferromq.errors import ConfigError, GroupNotFound, TopicNotFound, Unsupported
from ferromq.protocol import java_json, naming
from ferromq.protocol.codes import RequestCode, ResponseCode
from ferromq.protocol.delivery import ATTEMPTS, DELIVERY, DELIVERY_OF, LEASED_UNTIL
from ferromq.protocol.message_queue import MessageQueue, load_nested, load_offsets, load_table, table_of

ResetTo = Literal["begin", "end"] | datetime | int
"""The first message that is kept, the end, or a time: aware, or in milliseconds since 1970."""

T = TypeVar("T")
_TO_BEGIN, _TO_END = 0, -1
"""The timestamps of request 222 for the first message and for the end."""
_LONGEST_MS = 10 * 365 * 86_400_000
"""A broker of RocketMQ that does not know when a message was stored tells the time since 1970."""
_Extent = tuple[int, int]


def lag(calls: Calls, brokers: Iterable[str], group: str, topic: str | None, namespace: str) -> GroupLag:
    """Return the lag of a group in a topic, or in all topics that it has read; names are whole ones."""

    def shown(whole: str) -> str:
        return naming.without_namespace(namespace, whole)

    answers, unreachable = each(calls, brokers, lambda ask: _lag_at(ask, group, topic, shown))
    queues = sorted((queue for _, found in answers for queue in found), key=_place)
    return GroupLag(shown(group), tuple(queues), unreachable)


def lags(calls: Calls, brokers: Iterable[str], lost: tuple[Unreachable, ...], namespace: str) -> list[GroupLag]:
    """
    Return the lag in messages of every group, with the brokers that are *lost* or did not answer.

    Raises the failure of such a broker if the others know no group: there is no result that could have it.
    """
    answers, unreachable = each(calls, brokers, _all_at)
    unreachable += lost
    found: dict[str, list[QueueLag]] = {}
    for _, table in answers:
        for group, queues in table.items():
            found.setdefault(group, []).extend(queues)
    known = [
        GroupLag(naming.without_namespace(namespace, group), tuple(sorted(queues, key=_place)), unreachable)
        for group, queues in sorted(found.items())
        if not namespace or naming.without_namespace(namespace, group) != group
    ]
    if unreachable and not known:
        raise unreachable[0].error
    return known


def _place(queue: QueueLag | QueueReset) -> tuple[str, str, int]:
    return queue.topic, queue.broker, queue.queue_id


def extents(ask: Ask, topic: str) -> dict[MessageQueue, tuple[int, int, int]]:
    """Return min offset, max offset and time of the last message of each queue. Raises `TopicNotFound`."""

    def read(row: Mapping[str, Any]) -> tuple[int, int, int]:
        return int(row["minOffset"]), int(row["maxOffset"]), int(row.get("lastUpdateTimestamp") or 0)

    body = ask(RequestCode.GET_TOPIC_STATS_INFO, {"topic": topic})
    return ask.decoded("the offsets of a topic", lambda: _rows(load_table(body, "offsetTable"), read))


def _lag_at(ask: Ask, group: str, topic: str | None, shown: Callable[[str], str]) -> list[QueueLag]:
    table = _stats(ask, {"consumerGroup": group} | ({} if topic is None else {"topic": topic}))
    found = []
    for name in sorted({queue.topic for queue in table}):
        kept, ages = extents(ask, name), _ages(ask, group, name)
        for queue, (committed, end) in table.items():
            if queue.topic == name:
                begin = kept[queue][0] if queue in kept else 0
                known = ages.get(queue.queue_id) if committed >= begin else None
                age = 0.0 if max(committed, begin) >= end else known
                place = shown(name), queue.broker_name, queue.queue_id
                found.append(QueueLag(*place, max(committed, 0), begin, end, age))
    return found


def _stats(ask: Ask, fields: dict[str, str]) -> dict[MessageQueue, _Extent]:
    """Return the committed offset and the end of each queue; none for an unknown group."""
    body = ask(RequestCode.GET_CONSUME_STATS, fields, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST)

    def read(row: Mapping[str, Any]) -> _Extent:
        return int(row["consumerOffset"]), int(row["brokerOffset"])

    return ask.decoded("the progress of a group", lambda: _rows(load_table(body, "offsetTable"), read)) if body else {}


def _ages(ask: Ask, group: str, topic: str) -> dict[int, float]:
    """Return the age in seconds of the next message of each queue, by the broker's clock."""
    body = ask(RequestCode.QUERY_CONSUME_TIME_SPAN, {"topic": topic, "group": group})

    def read() -> dict[int, float]:
        spans = java_json.loads_object(body).get("consumeTimeSpanSet") or ()
        ages = {MessageQueue.from_json(span["messageQueue"]).queue_id: int(span["delayTime"]) for span in spans}
        return {queue_id: age / 1000 for queue_id, age in ages.items() if 0 <= age < _LONGEST_MS}

    return ask.decoded("the times of a group", read)


def _all_at(ask: Ask) -> dict[str, list[QueueLag]]:
    body = ask(RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "false"})

    def read() -> dict[str, list[QueueLag]]:
        found: dict[str, list[QueueLag]] = {}
        for entry in load_nested(body).get("consumeStatsList") or ():
            for group, lists in entry.items():
                rows = [row for stats in lists for row in table_of(stats, "offsetTable").items()]
                found[group] = [
                    QueueLag(
                        queue.topic,
                        queue.broker_name,
                        queue.queue_id,
                        max(int(row["consumerOffset"]), 0),
                        0,
                        int(row["brokerOffset"]),
                        None if int(row["consumerOffset"]) < int(row["brokerOffset"]) else 0.0,
                    )
                    for queue, row in rows
                ]
        return found

    return ask.decoded("the progress of groups", read)


def topics_of(calls: Calls, brokers: Iterable[str], group: str) -> list[str]:
    """Return the topics of which a group has committed offsets. Every broker must answer."""
    found = set[str]()
    for address in brokers:
        found.update(_topics_at(Ask(calls, address, 1), group))
    return sorted(found)


def _topics_at(ask: Ask, group: str) -> Iterable[str]:
    try:
        body = ask(RequestCode.QUERY_TOPICS_BY_CONSUMER, {"group": group})
    except Unsupported:  # RocketMQ 4
        return {queue.topic for queue in _stats(ask, {"consumerGroup": group})}
    return ask.decoded("topics", lambda: _names(body))


def _names(body: bytes) -> list[str]:
    return [str(name) for name in java_json.loads_object(body).get("topicList") or ()]


class Target:
    """Where a reset moves a group: a time, an end, or an offset of one queue."""

    def __init__(self, to: ResetTo | None, offset: int | None, queue_id: int | None) -> None:
        """Raise `ValueError` unless exactly one of *to* and *offset* is given, and for an offset without a queue."""
        if (to is None) == (offset is None):
            raise ValueError("give one of to= ('begin', 'end' or a time) and offset=")
        if offset is not None and queue_id is None:
            raise ValueError("an offset belongs to one queue; give queue_id=, too")
        if isinstance(to, str) and to not in {"begin", "end"}:
            raise ValueError(f"to is {to!r}; it may be 'begin', 'end' or a time")
        self._to = to
        self.offset = offset
        self.queue_id = queue_id

    @property
    def timestamp(self) -> int:
        """The time in request 222: milliseconds since 1970, 0 for the first message, -1 for the end."""
        if isinstance(self._to, str):
            return _TO_BEGIN if self._to == "begin" else _TO_END
        assert self._to is not None
        return milliseconds(self._to)

    def in_queue(self, ask: Ask, queue: MessageQueue, kept: _Extent) -> int:
        """Return the offset of a queue. Raises `ConfigError` for one that the queue does not have."""
        begin, end = kept
        if self.offset is not None:
            if not begin <= self.offset <= end:
                where = f"queue {queue.queue_id} of {queue.topic} on {queue.broker_name}"
                raise ConfigError(f"offset is {self.offset}; {where} has {begin} to {end}")
            return self.offset
        if self._to == "end":
            return end
        return (
            begin
            if self._to == "begin"
            else max(begin, offset_by_time(ask, queue.topic, queue.queue_id, self.timestamp))
        )


def committed(ask: Ask, group: str, queue: MessageQueue) -> int | None:
    """Return the next offset of a queue that a group reads; None if it has committed none."""
    fields = {"consumerGroup": group, "topic": queue.topic, "queueId": str(queue.queue_id)}
    fields["setZeroIfNotFound"] = "false"
    found = ask.number(RequestCode.QUERY_CONSUMER_OFFSET, fields, "offset", ResponseCode.QUERY_NOT_FOUND)
    return None if found < 0 else found


class Delivery(NamedTuple):
    """The state of one message in a group, as its broker answers it."""

    committed: int
    """The next offset that the group reads."""
    state: str | None
    """One of `READY`, `LEASED` and `OVER`; None: RocketMQ and older ferromq do not answer it."""
    attempts: int | None
    leased_until: int | None


def delivery(ask: Ask, group: str, message: StoredMessage) -> Delivery | None:
    """Return the state of a message in a group; None if the group has no committed offset of its queue."""
    fields = {"consumerGroup": group, "topic": message.topic, "queueId": str(message.queue_id)}
    fields |= {"setZeroIfNotFound": "false", DELIVERY_OF: str(message.queue_offset)}
    answered = ask.header(RequestCode.QUERY_CONSUMER_OFFSET, fields, ResponseCode.QUERY_NOT_FOUND)
    if answered is None:
        return None

    def read() -> Delivery:
        def number(field: str) -> int | None:
            return int(answered[field]) if field in answered else None

        return Delivery(int(answered["offset"]), answered.get(DELIVERY), number(ATTEMPTS), number(LEASED_UNTIL))

    return ask.decoded("the progress of a group", read)


class Plan:
    """What a reset does to a group in one topic: for each broker, from where to where in each queue."""

    def __init__(self, topic: str, target: Target, queues: Mapping[str, list[QueueReset]]) -> None:
        self._topic = topic
        self._target = target
        self._queues = queues
        """By the address of the broker."""

    @property
    def queues(self) -> list[QueueReset]:
        """All queues, by topic, broker and id."""
        return sorted((queue for queues in self._queues.values() for queue in queues), key=_place)

    def apply(self, calls: Calls, group: str, done: list[str]) -> list[QueueReset]:
        """Move the group, and return where it is now; note in *done* each topic and broker that is finished."""
        moved: list[QueueReset] = []
        for address, queues in self._queues.items():
            moved += _apply(Ask(calls, address, 1), group, self._topic, self._target, queues)
            done.append(f"{self._topic} at {address}")
        return sorted(moved, key=_place)


def plan(calls: Calls, brokers: Sequence[str], group: str, topic: str, target: Target) -> Plan:
    """
    Return what a reset would do, after every broker told its part.

    Raises `TopicNotFound` for a queue that no broker has, `ConfigError` if several have it, and `Unsupported` if a
    broker resets no single queue.
    """
    planned: dict[str, list[QueueReset]] = {}
    for number, address in enumerate(brokers):
        ask = Ask(calls, address, len(brokers) - number)
        try:
            held = extents(ask, topic)
        except TopicNotFound:
            continue
        planned[address] = [
            QueueReset(topic, queue.broker_name, queue.queue_id, committed(ask, group, queue), to, begin)
            for queue, (begin, end, _) in sorted(held.items())
            if target.queue_id in {None, queue.queue_id}
            for to in (target.in_queue(ask, queue, (begin, end)),)
        ]
        if target.queue_id is not None and planned[address]:
            _check_takes_queues(ask)
    planned = {address: queues for address, queues in planned.items() if queues}
    if not planned:
        queue = "" if target.queue_id is None else f"queue {target.queue_id} of "
        raise TopicNotFound(f"no broker has {queue}the topic {topic}")
    if target.offset is not None and len(planned) > 1:
        names = ", ".join(queues[0].broker for queues in planned.values())
        raise ConfigError(f"several brokers have queue {target.queue_id} of {topic}: {names}; choose one with broker=")
    return Plan(topic, target, planned)


def apply(calls: Calls, group: str, plans: Sequence[Plan]) -> list[QueueReset]:
    """Move a group as planned. A failure has a note that says what was moved before."""
    done: list[str] = []
    try:
        return [queue for one in plans for queue in one.apply(calls, group, done)]
    except Exception as error:
        if done:
            error.add_note(f"the group was moved before in {', '.join(done)}; call it again to finish")
        raise


def _apply(ask: Ask, group: str, topic: str, target: Target, queues: list[QueueReset]) -> list[QueueReset]:
    fields = {"topic": topic, "group": group, "isForce": "true"}
    if target.queue_id is not None:
        for queue in queues:
            one = {"queueId": str(queue.queue_id), "offset": str(queue.to_offset), "timestamp": "0"}
            ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields | one)
        return queues
    # RocketMQ 4 resets no queue without an offset, for which it may answer 0.
    unread = [queue for queue in queues if not queue.from_offset]
    if unread and _version_before_5(ask):
        for queue in unread:
            _commit(ask, group, topic, queue)
    body = ask(
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        {**fields, "timestamp": str(target.timestamp), "queueId": "-1", "offset": "-1"},
        ResponseCode.CONSUMER_NOT_ONLINE,
    )
    table = ask.decoded("the offsets of a reset", lambda: load_offsets(body, "offsetTable")) if body else {}
    moved = {queue.queue_id: offset for queue, offset in table.items()}
    for queue in queues:
        # The request resets the queues that may be read; RocketMQ 4 those of consumers, and the group may have none.
        if queue.queue_id not in moved:
            _commit(ask, group, topic, queue)
    return [replace(queue, to_offset=moved.get(queue.queue_id, queue.to_offset)) for queue in queues]


def _commit(ask: Ask, group: str, topic: str, queue: QueueReset) -> None:
    place = {"topic": topic, "queueId": str(queue.queue_id), "commitOffset": str(queue.to_offset)}
    ask(RequestCode.UPDATE_CONSUMER_OFFSET, {"consumerGroup": group, **place})


def _check_takes_queues(ask: Ask) -> None:
    """Raise `Unsupported` for a broker before RocketMQ 5, which would reset all queues in place of one."""
    version = _version_before_5(ask)
    if version:
        raise Unsupported(f"{ask.address} is RocketMQ {version}, which resets no single queue; reset the whole topic")


def _version_before_5(ask: Ask) -> str:
    version = runtime(ask).get("brokerVersionDesc", "")
    return version if version.startswith(("V3_", "V4_")) else ""


def runtime(ask: Ask) -> dict[str, str]:
    """Return a broker's runtime statistics, by RocketMQ's names."""
    body = ask(RequestCode.GET_BROKER_RUNTIME_INFO, {})
    return ask.decoded(
        "figures",
        lambda: {
            str(name): str(value) for name, value in dict(java_json.loads_object(body).get("table") or {}).items()
        },
    )


def check_known(group: str, *, is_known: bool) -> None:
    """Raise `GroupNotFound` for an unknown group."""
    if not is_known:
        raise GroupNotFound(f"there is no consumer group {group}; create_group({group!r}) creates it")


def _rows(table: Mapping[MessageQueue, Any], read: Callable[[Mapping[str, Any]], T]) -> dict[MessageQueue, T]:
    return {queue: read(row) for queue, row in table.items()}
