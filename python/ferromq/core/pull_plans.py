"""What a reader that keeps its own offsets says to servers: pulls and questions about offsets, without I/O."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta, tzinfo
from typing import Any, NamedTuple, NoReturn

from ferromq._ferromq import MessageView, Records, split_records
from ferromq._proto import messages as pb
from ferromq.core.plans import Common, Tries
from ferromq.core.receive_plans import LATE, Wish
from ferromq.core.requests import (
    Begin,
    Call,
    ColumnParts,
    End,
    Join,
    MessageParts,
    Plan,
    Stream,
    TableParts,
    check,
    decode_columns,
    decode_messages,
    decode_table,
    duration,
    error_of,
    milliseconds,
)
from ferromq.core.routes import endpoints_message
from ferromq.core.subscriptions import Subscription
from ferromq.errors import FerromqError, OutcomeUnknown, RequestError, ServerError
from ferromq.tables import PulledTable, html_of_messages
from ferromq.terminal.objects import html_of

_EMPTY = {pb.Code.OK, pb.Code.MESSAGE_NOT_FOUND}
_PART, _PART_BYTES = 512, 512 << 10
"""Messages of a first part, and of a further one, or so many bytes: it is decoded while the next is under way."""
_LEAST = 256
"""Messages that a further part has at least, unless fewer are wanted."""
_MOST_BYTES = 4 << 20
"""Bytes of all parts of a pull: as much as a broker answers."""
_MOST_AHEAD, _MOST_BYTES_AHEAD = 8, 1 << 20
"""Answers under way that were not asked for yet, and the bytes of the one before: such an answer fits into a socket."""
_FRESH = 5.0
"""Seconds in which such an answer is used: the topic may be another after that."""
_PARTS: dict[Any, Callable[..., Any]] = {
    decode_messages: lambda lease, endpoint, namespace, _size: MessageParts(lease, endpoint, namespace),
    decode_columns: ColumnParts,
    decode_table: TableParts,
}
"""What collects the parts of a pull, by what decodes a whole answer."""


class Queue(NamedTuple):
    """A queue of a topic."""

    broker_name: str
    queue_id: int
    topic: str = ""
    """May be empty if the client reads one topic."""

    def _repr_html_(self) -> str:
        return html_of(self)


class Pulled(NamedTuple):
    """What a pull brought, and where the next one begins."""

    messages: list[MessageView]
    next_offset: int

    def _repr_html_(self) -> str:
        return html_of_messages(f"Pulled, next offset {self.next_offset:,}", self.messages)


class NoLease:
    """Stands for the lease of a pulled message, which has none."""

    def ack_later(self, message: MessageView, /) -> NoReturn:
        """Raise: offsets are committed instead."""
        raise TypeError(
            f"message {message.message_id} was pulled, not received: commit the offset of its queue instead"
        )

    def change_invisible_duration(self, message: MessageView, _duration: timedelta | float, /) -> NoReturn:
        """Raise: it is not invisible."""
        self.ack_later(message)


_NO_LEASE = NoLease()


def queues(common: Common, subscription: Subscription) -> Plan[list[Queue]]:
    """Return the queues of all topics that may be read, by topic, broker and id."""
    found: list[Queue] = []
    tries = Tries(common.now() + common.timeout)
    for topic in subscription.filters:
        route = yield from common.route(topic, tries)
        found += sorted({Queue(queue.broker_name, queue.queue_id, topic) for queue in route.readable_queues})
    return found


def pull(common: Common, subscription: Subscription, queue: Queue, offset: int, wish: Wish) -> Plan[Pulled]:
    """
    Read messages of a queue from *offset* on, waiting for the first.

    It ends within the wait and the client's timeout, whatever hangs; a repetition waits for what is left of the wait.
    """
    waits_until = common.now() + wish.wait
    check_offset(offset)

    def once(tries: Tries) -> Plan[Pulled]:
        left = replace(wish, wait=max(0.0, waits_until - common.now()))
        return (yield from pull_once(common, subscription, (queue, offset), left, tries))

    return (yield from common.attempt(topic_of(subscription, queue), once, timeout=wish.wait + common.timeout))


def pull_table(common: Common, subscription: Subscription, queue: Queue, offset: int, wish: Wish) -> Plan[PulledTable]:
    """Read messages as `pull` does, as columns; *wish* decodes columns."""
    table, next_offset = yield from pull(common, subscription, queue, offset, wish)
    return PulledTable(table, next_offset)


def pull_once(
    common: Common, subscription: Subscription, place: tuple[Queue, int], wish: Wish, tries: Tries
) -> Plan[Pulled]:
    """
    Read messages from a *place*, a queue and an offset.

    Where its broker answers with records, many messages are read in parts: while one is decoded, the request for the
    next is under way. All together they have no more messages than *wish* says, and about 4 MiB at most.
    """
    queue, offset = place
    following = None if wish.ahead is None else wish.ahead.take(queue, offset, wish.max_messages, common.now())
    if following is not None:
        answer = yield from _brought(following)
        if answer is not None:
            return (yield from _decode(common, queue, following.asked, answer, wish))
    topic = topic_of(subscription, queue)
    endpoint = yield from _joined(common, topic, queue, tries)
    in_parts = wish.max_messages > _PART and common.takes_records(endpoint)
    request = pb.PullMessageRequest(
        group=common.resource(subscription.group),
        message_queue=_message_queue(common, topic, queue, endpoint),
        offset=offset,
        batch_size=_PART if in_parts else wish.max_messages,
        filter_expression=subscription.filters[topic],
        long_polling_timeout=duration(wish.wait),
    )
    limit = max(0.001, min(wish.wait + LATE, tries.until - common.now()))
    try:
        answer = yield Stream(endpoint, "PullMessage", request.SerializeToString(), limit)
    except OutcomeUnknown:
        common.routes.failed(endpoint)
        raise
    common.routes.answered(endpoint)
    asked = _Asked(request, endpoint, topic)
    if in_parts and isinstance(answer, Records):
        return (yield from _read_parts(common, asked, answer, wish, tries))
    return (yield from _decode(common, queue, asked, answer, wish))


def _decode(common: Common, queue: Queue, asked: "_Asked", answer: Any, wish: Wish) -> Plan[Pulled]:
    """Return what an answer brings, after the next pull was sent where it is expected."""
    if wish.ahead is not None and isinstance(answer, Records):
        yield from wish.ahead.go_on(common, queue, asked, answer)
    status, messages, next_offset = wish.decode(answer, _NO_LEASE, asked.endpoint, common.namespace)
    return Pulled(messages, _check(status, next_offset, asked))


def _brought(following: "_Following") -> Plan[Records | None]:
    """Return the answer to a pull that was sent ahead; None where there is no message in it."""
    try:
        answer = yield End(following.stream, following.begun)
    except FerromqError:
        return None  # the pull itself sends a request, and raises its error
    if not isinstance(answer, Records):
        return None
    (code, _), _, records = split_records(answer)
    return answer if code == pb.Code.OK and len(records) else None


class _Following(NamedTuple):
    """A pull that was sent before it was asked for; it is used before a time (monotonic)."""

    asked: "_Asked"
    stream: Stream
    begun: Any
    until: float


class PullAhead:
    """
    Sends the next pull of a queue before it is asked for, once two pulls followed each other.

    So the broker reads while the answer before is decoded and used. A few answers are under way at most.
    """

    def __init__(self) -> None:
        self._behind: dict[Queue, int] = {}
        """Where the last pull of a queue ended."""
        self._begun: dict[Queue, _Following] = {}

    def take(self, queue: Queue, offset: int, max_messages: int, now: float) -> _Following | None:
        """Return the pull that was sent ahead; another one of this queue is given up."""
        following = self._begun.pop(queue, None) if self._begun else None
        if following is None:
            return None
        request = following.asked.request
        is_asked = request.offset == offset and request.batch_size == max_messages and now < following.until
        return following if is_asked else None

    def _has_room(self, now: float) -> bool:
        """Give up what is too old, and say whether another answer may be under way."""
        if len(self._begun) >= _MOST_AHEAD:
            for queue, following in list(self._begun.items()):
                if now >= following.until:
                    self._begun.pop(queue, None)
        return len(self._begun) < _MOST_AHEAD

    def go_on(self, common: Common, queue: Queue, asked: "_Asked", answer: Records) -> Plan[None]:
        """Send the next pull of a queue, if this one followed another and brought all that it asked for."""
        follows = self._behind.get(queue) == asked.request.offset
        self._behind[queue] = split_records(answer)[1] or 0
        if not follows or len(answer) > _MOST_BYTES_AHEAD or not self._has_room(common.now()):
            return
        count = asked.request.batch_size
        following = _following(asked, answer, count, _MOST_BYTES)
        if following is None or following.request.batch_size != count:
            return
        # Where no answer comes there is time left for the pull itself.
        limit = min(LATE, common.timeout / 2)
        stream = Stream(following.endpoint, "PullMessage", following.request.SerializeToString(), limit)
        with suppress(FerromqError):  # the next pull meets it, too
            begun = yield Begin(stream)
            if begun is not None:
                self._begun[queue] = _Following(following, stream, begun, common.now() + _FRESH)


class _Asked(NamedTuple):
    """A request of a pull, and whom it asks."""

    request: pb.PullMessageRequest
    endpoint: str
    topic: str


def _check(status: tuple[int, str] | None, next_offset: int | None, asked: _Asked) -> int:
    """Return where the next pull begins, or raise what the answer says."""
    request, endpoint, topic = asked
    if status is not None and status[0] not in _EMPTY:
        raise error_of(*status)
    if next_offset is None:
        raise ServerError(f"{endpoint} ended a pull without saying where the next one begins")
    if next_offset < request.offset:  # a queue without messages answers where it begins, as over remoting
        queue_id = request.message_queue.id
        text = f"the offset {request.offset} is out of range: queue {queue_id} of topic {topic} has no message"
        raise RequestError(f"{text}, the next one has the offset {next_offset}", pb.Code.ILLEGAL_OFFSET, text)
    return next_offset


def _read_parts(common: Common, asked: _Asked, answer: Records, wish: Wish, tries: Tries) -> Plan[Pulled]:
    """Return what *answer* and the ones behind it bring, up to the first that fails."""
    left, room = wish.max_messages, _MOST_BYTES
    size = min(_MOST_BYTES, len(answer) * -(-left // asked.request.batch_size))
    parts = _PARTS[wish.decode](_NO_LEASE, asked.endpoint, common.namespace, size)
    next_offset = asked.request.offset
    while True:
        left, room = left - asked.request.batch_size, room - len(answer)
        following, begun = _following(asked, answer, left, room), None
        if following is not None:
            limit = max(0.001, min(LATE, tries.until - common.now()))
            stream = Stream(asked.endpoint, "PullMessage", following.request.SerializeToString(), limit)
            try:
                begun = yield Begin(stream)
            except FerromqError:
                following = None  # the next pull meets it, too
        status, behind = parts.add(answer)
        next_offset = _check(status, behind, asked)
        if following is None:
            break
        try:
            answer = yield End(stream, begun)
        except FerromqError as error:
            if isinstance(error, OutcomeUnknown):
                common.routes.failed(asked.endpoint)
            break
        asked = following
        if not isinstance(answer, Records) or split_records(answer)[0][0] not in _EMPTY:
            break
    return Pulled(parts.result(), next_offset)


def _following(asked: _Asked, answer: Records, left: int, room: int) -> _Asked | None:
    """Return what to ask for behind an answer: up to *left* messages of about *room* bytes."""
    _, next_offset, records = split_records(answer)
    count = asked.request.batch_size
    if next_offset is None or next_offset < asked.request.offset + count or not len(records):
        return None  # the end of the queue, or as much as a broker answers
    each = len(records) // count + 1
    count = min(left, room // each, max(_PART, _PART_BYTES // each))
    if count < min(left, _LEAST) or count < 1:
        return None
    request = pb.PullMessageRequest()
    request.CopyFrom(asked.request)
    request.offset, request.batch_size = next_offset, count
    request.ClearField("long_polling_timeout")
    return _Asked(request, asked.endpoint, asked.topic)


def check_offset(offset: object) -> None:
    """Raise `TypeError` for what is no whole number, and `ValueError` for one below 0."""
    if not isinstance(offset, int) or isinstance(offset, bool):
        raise TypeError(f"a queue offset is a whole number, not {offset!r}")
    if offset < 0:
        raise ValueError(f"a queue offset is 0 or more, not {offset}")


def topic_of(subscription: Subscription, queue: Queue) -> str:
    """
    Return the topic of a queue.

    Raises `RequestError` for one that is not subscribed, or not named among several, and `TypeError` for no queue.
    """
    if not isinstance(queue, Queue):
        raise TypeError(f"a ferromq.Queue is expected, as queues() returns them, not {queue!r}")
    if not queue.topic and len(subscription.filters) == 1:
        return subscription.first_topic
    if queue.topic not in subscription.filters:
        named = repr(queue.topic) if queue.topic else "no topic"
        raise RequestError(f"the queue names {named}; subscribed are {subscription.topics}; queues() names the queues")
    return queue.topic


def committed_offset(common: Common, subscription: Subscription, queue: Queue) -> Plan[int | None]:
    """Return the group's committed offset, if it has one."""
    topic = topic_of(subscription, queue)

    def once(tries: Tries) -> Plan[int | None]:
        endpoint = yield from _joined(common, topic, queue, tries)
        request = pb.GetOffsetRequest(
            group=common.resource(subscription.group), message_queue=_message_queue(common, topic, queue, endpoint)
        )
        answer = yield Call(endpoint, "GetOffset", request.SerializeToString(), common.limit(tries))
        response = pb.GetOffsetResponse.FromString(answer)
        if response.status.code == pb.Code.OFFSET_NOT_FOUND:
            return None
        check(response.status)
        return response.offset if response.offset >= 0 else None

    return (yield from common.attempt(topic, once, timeout=common.timeout))


def commit_offset(common: Common, subscription: Subscription, queue: Queue, offset: int) -> Plan[None]:
    """Set the group's committed offset."""
    check_offset(offset)
    topic = topic_of(subscription, queue)

    def once(tries: Tries) -> Plan[None]:
        endpoint = yield from _joined(common, topic, queue, tries)
        request = pb.UpdateOffsetRequest(
            group=common.resource(subscription.group),
            message_queue=_message_queue(common, topic, queue, endpoint),
            offset=offset,
        )
        answer = yield Call(endpoint, "UpdateOffset", request.SerializeToString(), common.limit(tries))
        check(pb.UpdateOffsetResponse.FromString(answer).status)

    yield from common.attempt(topic, once, timeout=common.timeout)


def offset_at(common: Common, subscription: Subscription, queue: Queue, when: datetime | int | str) -> Plan[int]:
    """Return the offset at a time (aware, or milliseconds since 1970), or at `begin` or `end`."""
    topic = topic_of(subscription, queue)
    _policy(when)

    def once(tries: Tries) -> Plan[int]:
        return (yield from offset_once(common, topic, queue, when, tries))

    return (yield from common.attempt(topic, once, timeout=common.timeout))


def offset_once(common: Common, topic: str, queue: Queue, when: datetime | int | str, tries: Tries) -> Plan[int]:
    """Return the offset at *when*, asked for with one request."""
    policy, millis = _policy(when)
    endpoint = yield from _joined(common, topic, queue, tries)
    request = pb.QueryOffsetRequest(
        message_queue=_message_queue(common, topic, queue, endpoint), query_offset_policy=policy
    )
    if millis is not None:
        request.timestamp.FromMilliseconds(millis)
    try:
        answer = yield Call(endpoint, "QueryOffset", request.SerializeToString(), common.limit(tries))
    except OutcomeUnknown:
        common.routes.failed(endpoint)
        raise
    response = pb.QueryOffsetResponse.FromString(answer)
    check(response.status)
    return response.offset


def ends(common: Common, subscription: Subscription, until: datetime | int | str) -> Plan[dict[Queue, int]]:
    """Return the offset of each queue at *until*: a time, or `end`."""
    found: dict[Queue, int] = {}
    for queue in (yield from queues(common, subscription)):
        found[queue] = yield from offset_at(common, subscription, queue, until)
    return found


def check_until(until: datetime | int | str | None) -> None:
    """Raise `ValueError` unless *until* is the end, a time, or None."""
    if isinstance(until, str) and until != "end":
        raise ValueError(f"until is 'end', an aware datetime, or milliseconds since 1970, not {until!r}")
    if until is not None:
        _policy(until)


def _policy(when: datetime | int | str) -> tuple[pb.QueryOffsetPolicy, int | None]:
    match when:
        case "begin" | "first":
            return pb.QueryOffsetPolicy.BEGINNING, None
        case "end" | "last":
            return pb.QueryOffsetPolicy.END, None
        case bool():
            pass
        case int() | datetime(tzinfo=tzinfo()):
            return pb.QueryOffsetPolicy.TIMESTAMP, milliseconds(when)
    raise ValueError(f"an aware datetime, milliseconds since 1970, 'begin' or 'end' is expected, not {when!r}")


def _joined(common: Common, topic: str, queue: Queue, tries: Tries) -> Plan[str]:
    route = yield from common.route(topic, tries)
    endpoint = route.endpoint_of(queue.broker_name)
    if endpoint is None:
        raise RequestError(f"the broker {queue.broker_name} has no queue of {topic}; queues() says which there are")
    if not common.is_anonymous:
        yield Join(endpoint, common.limit(tries))
    return endpoint


def _message_queue(common: Common, topic: str, queue: Queue, endpoint: str) -> pb.MessageQueue:
    return pb.MessageQueue(
        topic=common.resource(topic),
        id=queue.queue_id,
        permission=pb.Permission.READ,
        broker=pb.Broker(name=queue.broker_name, endpoints=endpoints_message([endpoint])),
    )
