"""What a reader that keeps its own offsets says to servers: pulls and questions about offsets, without I/O."""

from datetime import datetime, timedelta
from typing import NamedTuple, NoReturn

from ferromq import _ferromq
from ferromq._ferromq import MessageView
from ferromq._proto import messages as pb
from ferromq.core.plans import LATE, Common, Subscription, Tries, Wish
from ferromq.core.requests import Call, Join, Packets, Plan, Stream, check, duration, error_of, resource
from ferromq.core.routes import endpoints_message
from ferromq.errors import RequestError, ServerError

_EMPTY = {pb.Code.OK, pb.Code.MESSAGE_NOT_FOUND}


class Queue(NamedTuple):
    """A queue of a topic."""

    broker_name: str
    queue_id: int


class Pulled(NamedTuple):
    """What a pull brought, and where the next one begins."""

    messages: list[MessageView]
    next_offset: int


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


def queues(common: Common, topic: str) -> Plan[list[Queue]]:
    """Return the queues of a topic that may be read, by broker and id."""
    route = yield from common.route(topic, Tries(common.now() + common.timeout))
    return sorted({Queue(queue.broker_name, queue.queue_id) for queue in route.readable_queues})


def pull(common: Common, subscription: Subscription, queue: Queue, offset: int, wish: Wish) -> Plan[Pulled]:
    """
    Read messages of a queue from *offset* on, waiting for the first.

    It ends within the wait and the client's timeout, whatever hangs; a repetition waits for what is left of the wait.
    """
    waits_until = common.now() + wish.wait

    def once(tries: Tries) -> Plan[Pulled]:
        endpoint = yield from _joined(common, subscription.topic, queue, tries)
        wait = max(0.0, waits_until - common.now())
        request = pb.PullMessageRequest(
            group=resource(subscription.group),
            message_queue=_message_queue(subscription.topic, queue, endpoint),
            offset=offset,
            batch_size=wish.max_messages,
            filter_expression=subscription.wanted,
            long_polling_timeout=duration(wait),
        )
        limit = max(0.001, min(wait + LATE, tries.until - common.now()))
        answer: Packets = yield Stream(endpoint, "PullMessage", request.SerializeToString(), limit)
        status, messages, next_offset = _ferromq.decode_received(answer.packets, answer.packed, _NO_LEASE, endpoint)
        if status is not None and status[0] not in _EMPTY:
            raise error_of(*status)
        if next_offset is None:
            raise ServerError(f"{endpoint} ended a pull without saying where the next one begins")
        return Pulled(messages, next_offset)

    return (yield from common.attempt(subscription.topic, once, timeout=wish.wait + common.timeout))


def committed_offset(common: Common, subscription: Subscription, queue: Queue) -> Plan[int | None]:
    """Return the group's committed offset, if it has one."""

    def once(tries: Tries) -> Plan[int | None]:
        endpoint = yield from _joined(common, subscription.topic, queue, tries)
        request = pb.GetOffsetRequest(
            group=resource(subscription.group), message_queue=_message_queue(subscription.topic, queue, endpoint)
        )
        answer = yield Call(endpoint, "GetOffset", request.SerializeToString(), common.limit(tries))
        response = pb.GetOffsetResponse.FromString(answer)
        if response.status.code == pb.Code.OFFSET_NOT_FOUND:
            return None
        check(response.status)
        return response.offset if response.offset >= 0 else None

    return (yield from common.attempt(subscription.topic, once, timeout=common.timeout))


def commit_offset(common: Common, subscription: Subscription, queue: Queue, offset: int) -> Plan[None]:
    """Set the group's committed offset."""
    if offset < 0:
        raise ValueError(f"a queue offset is 0 or more, not {offset}")

    def once(tries: Tries) -> Plan[None]:
        endpoint = yield from _joined(common, subscription.topic, queue, tries)
        request = pb.UpdateOffsetRequest(
            group=resource(subscription.group),
            message_queue=_message_queue(subscription.topic, queue, endpoint),
            offset=offset,
        )
        answer = yield Call(endpoint, "UpdateOffset", request.SerializeToString(), common.limit(tries))
        check(pb.UpdateOffsetResponse.FromString(answer).status)

    yield from common.attempt(subscription.topic, once, timeout=common.timeout)


def offset_at(common: Common, topic: str, queue: Queue, when: datetime | int | str) -> Plan[int]:
    """Return the offset at a time (aware, or milliseconds since 1970), or at `begin` or `end`."""
    policy, millis = _policy(when)

    def once(tries: Tries) -> Plan[int]:
        endpoint = yield from _joined(common, topic, queue, tries)
        request = pb.QueryOffsetRequest(
            message_queue=_message_queue(topic, queue, endpoint), query_offset_policy=policy
        )
        if millis is not None:
            request.timestamp.FromMilliseconds(millis)
        answer = yield Call(endpoint, "QueryOffset", request.SerializeToString(), common.limit(tries))
        response = pb.QueryOffsetResponse.FromString(answer)
        check(response.status)
        return response.offset

    return (yield from common.attempt(topic, once, timeout=common.timeout))


def _policy(when: datetime | int | str) -> tuple[pb.QueryOffsetPolicy, int | None]:
    match when:
        case "begin":
            return pb.QueryOffsetPolicy.BEGINNING, None
        case "end":
            return pb.QueryOffsetPolicy.END, None
        case int():
            return pb.QueryOffsetPolicy.TIMESTAMP, when
        case datetime(tzinfo=zone) if zone is not None:
            return pb.QueryOffsetPolicy.TIMESTAMP, round(when.timestamp() * 1000)
    raise ValueError(f"an aware datetime, milliseconds since 1970, 'begin' or 'end' is expected, not {when!r}")


def _joined(common: Common, topic: str, queue: Queue, tries: Tries) -> Plan[str]:
    route = yield from common.route(topic, tries)
    endpoint = route.endpoint_of(queue.broker_name)
    if endpoint is None:
        raise RequestError(f"the broker {queue.broker_name} has no queue of {topic}; queues() says which there are")
    yield Join(endpoint, common.limit(tries))
    return endpoint


def _message_queue(topic: str, queue: Queue, endpoint: str) -> pb.MessageQueue:
    return pb.MessageQueue(
        topic=resource(topic),
        id=queue.queue_id,
        permission=pb.Permission.READ,
        broker=pb.Broker(name=queue.broker_name, endpoints=endpoints_message([endpoint])),
    )
