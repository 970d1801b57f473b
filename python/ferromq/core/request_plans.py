"""
What a requester and a replier say to brokers over the remoting protocol: written once, without I/O, as `plans` is.

RocketMQ has request and reply over remoting alone: a request is a message whose properties name its requester, and a
broker hands the reply to the requester's connection. Names and numbers are those of RocketMQ 5.5.0's `MessageConst`,
`RequestCode` and request headers.
"""

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ferromq import _ferromq
from ferromq._ferromq import Message, MessageView, StoredMessage
from ferromq.core.plans import Common, Tries
from ferromq.core.replies import Waiting, whole
from ferromq.core.requests import Await, Call, Pause, Plan, backoff, refusal
from ferromq.core.routes import Route
from ferromq.core.send_plans import reserve_ids
from ferromq.core.subscriptions import Subscription
from ferromq.core.watch import watched
from ferromq.errors import (
    FerromqError,
    MessageTooLarge,
    OutcomeUnknown,
    RequesterGone,
    RequestTimeout,
    ServerError,
    Unsupported,
)
from ferromq.message import Reply
from ferromq.protocol import java_json
from ferromq.protocol.broker_description import DESCRIBE_BROKER, BrokerDescription, decode
from ferromq.protocol.codes import RequestCode, ResponseCode
from ferromq.protocol.properties import format_properties

if TYPE_CHECKING:
    from concurrent.futures import Future

Answer = tuple[int, str | None, dict[str, str], bytes]
"""Code, remark, fields and body."""

REQUESTERS = "ferromq_requesters"
"""The producer group with which requesters are known to brokers."""

# The message is stored; only its flush or its copy is late.
_STORED = {ResponseCode.SUCCESS, 10, 11, 12}
_NEW_SUBSCRIPTION = 4
"""The flag of a pull that brings its filter."""
_NOT_DELIVERED = ("push reply message fail", "push reply message to")
"""How RocketMQ's remarks begin when the requester has no connection to the broker."""
_LOOK = 0.5
"""Seconds that the search for consumers may take when no reply came; at most a fifth of the whole."""
_OTHERS = 30.0
"""Seconds after which a requester registers again with the other brokers of the cluster."""
_GROUPS = 5
_RECONNECT = 3.0
"""Seconds in which a requester that lost its connection has a new one."""


class Links(Protocol):
    """Connections to brokers over remoting, shared by all calls. Futures end with a `FerromqError` or the result."""

    def call(
        self,
        address: str,
        code: int,
        fields: Mapping[str, str],
        body: bytes,
        timeout: float,
        *,
        is_broker: bool = True,
    ) -> "Future[Answer]":
        """Begin a call of the broker, or else the name server, at *address*, `host:port`."""

    def open(self, address: str) -> "Future[None]":
        """Open a connection, on which the broker knows the client when the future has ended."""


class _To(NamedTuple):
    """The broker of one try."""

    endpoint: str
    broker: BrokerDescription
    tries: Tries


class Requests:
    """The brokers of a client that it calls over remoting, and its open requests."""

    def __init__(self, links: Links, client_id: str, waiting: Waiting) -> None:
        self._links = links
        self._client_id = client_id
        self.waiting = waiting
        self._brokers: dict[str, BrokerDescription] = {}
        """By gRPC endpoint."""
        self._others_until = 0.0

    def request(self, common: Common, topic: str, message: Message, timeout: float) -> Plan[Reply]:
        """
        Send a request and return its reply, all within *timeout* seconds.

        Raises `RequestTimeout` if none comes, which names a topic without consumers.
        """
        until = common.now() + timeout
        _check(message, "request", common.max_body)
        correlation_id, reply = self.waiting.expect()
        try:
            yield from self._send(common, topic, message, (correlation_id, reply), timeout)
            look = min(_LOOK, timeout / 5)
            with suppress(RequestTimeout):
                yield Await(reply, max(0.0, until - look - common.now()))
                return reply.result()
            why = yield from self._silence(common, topic, until)
            with suppress(RequestTimeout):
                yield Await(reply, max(0.0, until - common.now()))
                return reply.result()
            raise RequestTimeout(f"no reply to the request to {topic} within {timeout:g} s: {why}")
        finally:
            self.waiting.forget(correlation_id)

    def _send(
        self, common: Common, topic: str, message: Message, expected: tuple[str, "Future[Reply]"], timeout: float
    ) -> Plan[None]:
        correlation_id, reply = expected
        properties = {
            **_properties(message),
            "UNIQ_KEY": reserve_ids(common, 1)[0],
            "WAIT": "true",
            "CORRELATION_ID": correlation_id,
            "REPLY_TO_CLIENT": self._client_id,
            "TTL": str(max(1, round(timeout * 1000))),
        }
        group = message.message_group
        if group is not None:
            properties["__SHARDINGKEY"] = group

        def once(tries: Tries) -> Plan[None]:
            if reply.done():  # an earlier try whose answer was lost
                return
            route = yield from common.route(topic, tries)
            failing = common.routes.failing()
            queue = route.next_writable(tries.endpoints, failing) if group is None else route.of_group(group)
            tries.endpoints.add(queue.endpoint)
            broker = yield from self._describe(common, queue.endpoint, tries)
            yield from self._open_others(common, route, broker, tries)
            fields = {
                "b": common.whole(topic),
                "e": str(queue.queue_id),
                "i": format_properties(properties),
                "n": broker.name,
            }
            yield from self._call_send(
                common, _To(queue.endpoint, broker, tries), RequestCode.SEND_MESSAGE_V2, fields, message.body
            )

        yield from common.attempt(topic, once, timeout=timeout)

    def _call_send(
        self,
        common: Common,
        to: _To,
        code: RequestCode,
        fields: Mapping[str, str],
        body: bytes,
    ) -> Plan[None]:
        """Send a message or a reply; *fields* are those that differ, with the letters of RocketMQ's short headers."""
        broker = to.broker
        whole = {
            "a": REQUESTERS,
            "c": "TBW102",
            "d": "4",
            "f": "0",
            "g": str(common.wall()),
            "h": "0",
            "j": "0",
            "k": "false",
            **fields,
        }
        answered, remark, _, _ = yield from self._call(common, to, code, whole, body)
        if answered in _STORED:
            return
        if code == RequestCode.SEND_REPLY_MESSAGE_V2 and (remark or "").startswith(_NOT_DELIVERED):
            raise RequesterGone(f"{broker.remoting} cannot deliver the reply: {remark}", answered, remark)
        raise refusal(broker.remoting, code.name, answered, remark)

    def _call(
        self,
        common: Common,
        to: _To,
        code: RequestCode,
        fields: Mapping[str, str],
        body: bytes,
    ) -> Plan[Answer]:
        endpoint, broker, tries = to
        limit = common.limit(tries)
        try:
            answer: Answer = yield Await(self._links.call(broker.remoting, code, fields, body, limit), limit + 1.0)
        except OutcomeUnknown as error:
            tries.unknown = error
            common.routes.failed(endpoint)
            self._brokers.pop(endpoint, None)  # it may come back at another address
            raise
        common.routes.answered(endpoint)
        return answer

    def _describe(self, common: Common, endpoint: str, tries: Tries) -> Plan[BrokerDescription]:
        """Return what the broker at a gRPC endpoint says of itself. Raises `Unsupported` for RocketMQ's proxy."""
        known = self._brokers.get(endpoint)
        if known is not None:
            return known
        try:
            answer = yield Call(endpoint, DESCRIBE_BROKER, b"", common.limit(tries))
            self._brokers[endpoint] = broker = decode(answer)
        except Unsupported as error:
            raise Unsupported(
                f"the server at {endpoint} does not tell the remoting address of its broker ({DESCRIBE_BROKER}): it is "
                "RocketMQ's proxy, or an older ferromq broker. Connect with namesrv=: RocketMQ has requests and "
                "replies over remoting alone"
            ) from error
        except ValueError as error:
            raise ServerError(f"{endpoint} answered {DESCRIBE_BROKER} with something else: {error}") from error
        except OutcomeUnknown:
            common.routes.failed(endpoint)
            raise
        return broker

    def _open_others(self, common: Common, route: Route, broker: BrokerDescription, tries: Tries) -> Plan[None]:
        """
        Be known at the other brokers of the cluster, too: a replier of RocketMQ may send its reply to any of them.

        A broker that does not answer is left out until the next time.
        """
        if common.now() < self._others_until:
            return
        self._others_until = common.now() + _OTHERS
        until = common.now() + common.limit(tries) / 2
        addresses = yield from self._masters(common, broker, until)
        failing = common.routes.failing()
        for endpoint in () if addresses else route.endpoints:
            if endpoint not in failing:
                with suppress(FerromqError):
                    addresses.append((yield from self._describe(common, endpoint, tries)).remoting)
        for future in [self._links.open(address) for address in addresses]:
            with suppress(FerromqError):
                yield Await(future, max(0.0, until - common.now()))

    def _masters(self, common: Common, broker: BrokerDescription, until: float) -> Plan[list[str]]:
        """Return the remoting addresses of the masters of a cluster; none if no name server answers."""
        code = RequestCode.GET_BROKER_CLUSTER_INFO
        for address in broker.namesrv:
            limit = max(0.001, until - common.now())
            with suppress(FerromqError, ValueError, AttributeError, KeyError):
                future = self._links.call(address, code, {}, b"", limit, is_broker=False)
                answer: Answer = yield Await(future, limit)
                content = java_json.loads_object(answer[3])
                names = set(content["clusterAddrTable"].get(broker.cluster, ())) if answer[0] == 0 else set()
                brokers = content["brokerAddrTable"].items() if names else ()
                masters = [each["brokerAddrs"].get("0") for name, each in brokers if name in names]
                return [each for each in masters if isinstance(each, str)]
        return []

    def _silence(self, common: Common, topic: str, until: float) -> Plan[str]:
        """Say why no reply may have come: whether the topic has consumers."""
        route, tries = common.routes.known(topic), Tries(until)
        brokers = [self._brokers[each] for each in (route.endpoints if route else ()) if each in self._brokers]
        groups = dict[str, None]()

        def ask(
            broker: BrokerDescription, code: RequestCode, fields: Mapping[str, str], name: str
        ) -> Plan[Sequence[str]]:
            limit = common.limit(tries)
            answer: Answer = yield Await(self._links.call(broker.remoting, code, fields, b"", limit), limit)
            return _texts(answer[3], name) if answer[0] == ResponseCode.SUCCESS else ()

        try:
            for broker in brokers:
                code = RequestCode.QUERY_TOPIC_CONSUME_BY_WHO
                groups |= dict.fromkeys((yield from ask(broker, code, {"topic": common.whole(topic)}, "groupList")))
            if brokers and not groups:
                return f"no consumer group reads {topic}"
            for broker in brokers:
                for group in list(groups)[:_GROUPS]:
                    code = RequestCode.GET_CONSUMER_LIST_BY_GROUP
                    if (yield from ask(broker, code, {"consumerGroup": group}, "consumerIdList")):
                        return f"a consumer group of {topic}, {group}, has members: they did not reply in time"
        except FerromqError as error:
            return f"whether {topic} has consumers is unknown ({error})"
        return f"no consumer group of {topic} has a member ({', '.join(list(groups)[:_GROUPS])})"

    def reply(
        self, common: Common, subscription: Subscription, message: MessageView, answer: Message, timeout: float
    ) -> Plan[None]:
        """
        Send a reply to the requester of *message*, within *timeout* seconds.

        After a restart of the broker the requester connects again, as fast as the replier or a little later: while it
        waits, which the request says, the reply is tried for 3 seconds.

        Raises `ValueError` for a message that is no request, and `RequesterGone`.
        """
        _check(answer, "reply", common.max_body)
        message_id = reserve_ids(common, 1)[0]
        connected_until = common.now() + _RECONNECT

        def once(tries: Tries) -> Plan[None]:
            endpoint = message.endpoint
            broker = yield from self._describe(common, endpoint, tries)
            to = _To(endpoint, broker, tries)
            request = yield from self._stored(common, subscription, to, message)
            asked = request.properties
            if "CORRELATION_ID" not in asked or "REPLY_TO_CLIENT" not in asked:
                raise ValueError(
                    f"the message {message.message_id} is no request: it has no CORRELATION_ID and REPLY_TO_CLIENT; "
                    "reply to messages that a producer sent with request()"
                )
            properties: dict[str, str] = {
                **_properties(answer),
                "UNIQ_KEY": message_id,
                "MSG_TYPE": "reply",
                **{name: asked[name] for name in ("CORRELATION_ID", "REPLY_TO_CLIENT", "TTL") if name in asked},
            }
            topic = reply_topic(asked.get("CLUSTER", broker.cluster))
            fields = {"b": topic, "e": "0", "i": format_properties(properties), "n": broker.name}
            # By the broker's clock and this one; the limit covers their difference.
            expiry = request.store_timestamp + whole(asked, "TTL")
            for number in itertools.count(1):
                try:
                    code = RequestCode.SEND_REPLY_MESSAGE_V2
                    yield from self._call_send(common, to, code, fields, answer.body)
                except RequesterGone:
                    if common.wall() >= expiry or common.now() >= min(connected_until, tries.until):
                        raise
                    yield Pause(backoff(min(number, 2)))
                else:
                    return

        plan = common.attempt(subscription.topic_of(message), once, timeout=timeout)
        yield from watched(common.watch, "reply", [message], plan)

    def _stored(self, common: Common, subscription: Subscription, to: _To, message: MessageView) -> Plan[StoredMessage]:
        """Return a received message with all its properties: gRPC leaves those of a request out."""
        fields = {
            "consumerGroup": common.whole(subscription.group),
            "topic": common.whole(message.topic),
            "queueId": str(message.queue_id),
            "queueOffset": str(message.queue_offset),
            "maxMsgNums": "1",
            "sysFlag": str(_NEW_SUBSCRIPTION),
            "commitOffset": "0",
            "suspendTimeoutMillis": "0",
            "subscription": "*",
            "subVersion": "0",
            "expressionType": "TAG",
        }
        code, remark, _, body = yield from self._call(common, to, RequestCode.PULL_MESSAGE, fields, b"")
        if code != ResponseCode.SUCCESS:
            raise refusal(to.broker.remoting, RequestCode.PULL_MESSAGE.name, code, remark)
        for record in _ferromq.decode_records(body):
            if record.message_id == message.message_id:
                return record
        raise ServerError(
            f"{to.broker.remoting} has another message at {message.topic} queue {message.queue_id} offset "
            f"{message.queue_offset} than {message.message_id}, whose requester is therefore unknown"
        )


def reply_topic(cluster: str) -> str:
    """Return the topic of replies in a cluster."""
    return f"{cluster}_REPLY_TOPIC"


def heartbeat(client_id: str) -> bytes:
    """Return the body of a requester's heartbeat, HEART_BEAT (34)."""
    producers = [{"groupName": REQUESTERS}]
    return json.dumps({"clientID": client_id, "producerDataSet": producers, "consumerDataSet": []}).encode()


def _check(message: Message, what: str, max_body: int) -> None:
    given: dict[str, object] = {
        "delay": message.delay,
        "delivery_timestamp": message.delivery_timestamp,
        "priority": message.priority,
        "message_group": message.message_group if what == "reply" else None,
    }
    for name, value in given.items():
        if value is not None:
            raise ValueError(f"a {what} has no {name}, this one has {value!r}: leave it out")
    if len(message.body) > max_body:
        raise MessageTooLarge(f"the body has {len(message.body)} bytes; the limit is {max_body}")


def _properties(message: Message) -> dict[str, str]:
    properties = message.properties
    if message.keys:
        properties["KEYS"] = " ".join(message.keys)
    if message.tag is not None:
        properties["TAGS"] = message.tag
    return properties


def _texts(body: bytes, name: str) -> Sequence[str]:
    """Return the texts of a list in an answer of JSON; none of an answer that is something else."""
    try:
        found = json.loads(body).get(name) if body else ()
    except (ValueError, AttributeError):
        return ()
    return [each for each in found if isinstance(each, str)] if isinstance(found, Iterable) else ()
