"""
Heartbeats of remoting clients, their unregistration, and checks of their subscriptions.

`table` keeps the clients. Groups and their retry topics are created here, if first use may create groups.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from ferromq._ferromq import Request, check_filter
from ferromq.broker.clients.client import Client
from ferromq.broker.clients.memory import LimitExceeded
from ferromq.broker.clients.subscription import (
    ACTIVELY,
    BROADCASTING,
    CLUSTERING,
    FROM_LAST_OFFSET,
    PASSIVELY,
    TAG,
    ConsumeSettings,
    Subscription,
)
from ferromq.broker.clients.table import ClientTable
from ferromq.broker.metadata.groups import GroupConfig, GroupTable
from ferromq.broker.metadata.topics import TopicTable
from ferromq.errors import IllegalName
from ferromq.process.limited_log import LimitedLog
from ferromq.protocol import java_json, naming
from ferromq.protocol.codes import ResponseCode
from ferromq.protocol.remoting import Answer, BadRequest, failure, required, success

_log = logging.getLogger("ferromq.broker")

# In the order of Java's enumerations: the C++ client sends their numbers.
_CONSUME_TYPES = (ACTIVELY, PASSIVELY, "CONSUME_POP")
_MESSAGE_MODELS = (BROADCASTING, CLUSTERING)
_FROM_WHERE = (
    FROM_LAST_OFFSET,
    "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
    "CONSUME_FROM_MIN_OFFSET",
    "CONSUME_FROM_MAX_OFFSET",
    "CONSUME_FROM_FIRST_OFFSET",
    "CONSUME_FROM_TIMESTAMP",
)
MAX_BODY = 1 << 20
"""The most bytes of a heartbeat or of a subscription check; RocketMQ's clients send a few KiB."""
MAX_GROUPS = 4096
"""The most groups, and the most subscriptions, in one heartbeat."""
_UNIT_SUBSCRIPTION = 2
_SQL = "SQL92"
_NO_SQL = f"The broker does not support consumer to filter message by {_SQL}; set enablePropertyFilter=true"


@dataclass(frozen=True, slots=True)
class _Consumer:
    group: str
    consume_settings: ConsumeSettings
    subscriptions: tuple[Subscription, ...]
    is_unit: bool


class Heartbeats:
    """Answers remoting requests 34, 35 and 46."""

    def __init__(
        self,
        table: ClientTable,
        groups: GroupTable,
        topics: TopicTable,
        *,
        now_ms: Callable[[], int],
        takes_sql: Callable[[], bool] = lambda: True,
    ) -> None:
        """*takes_sql* returns whether consumers may filter by SQL92."""
        self._table = table
        self._groups = groups
        self._seldom = LimitedLog(_log)
        self._topics = topics
        self._now_ms = now_ms
        self._takes_sql = takes_sql

    def heartbeat(self, request: Request) -> Answer:
        """
        Answer request 34: renew the leases of a client in all its groups.

        As in RocketMQ, a missing group that cannot be created is skipped; its pulls are refused. At a memory limit a
        new group is refused with 13, and the others are renewed. A heartbeat with too many bytes, groups or
        subscriptions is refused as a whole.
        """
        try:
            return self._heartbeat(request)
        except LimitExceeded as error:
            self._seldom.log(logging.WARNING, "heartbeat refused peer=%s: %s", request.peer, error)
            return failure(ResponseCode.MESSAGE_ILLEGAL, f"heartbeat refused: {error}")

    def _heartbeat(self, request: Request) -> Answer:
        data = _body(request, "heartbeat")
        _check_counts(data)
        client = _client(_text(data, "clientID"), request)
        fingerprint = _number(data, "heartbeatFingerprint", 0)
        consumers = [_consumer(each) for each in _objects(data, "consumerDataSet")]
        producers = [_text(each, "groupName") for each in _objects(data, "producerDataSet")]
        is_without = fingerprint != 0 and data.get("withoutSub") is True
        joins = [partial(self._join, client, each, fingerprint, is_without=is_without) for each in consumers]
        produces = [partial(self._table.produce, group, client, self._now_ms()) for group in producers]
        is_changed = any(_each([*joins, *produces]))
        # A client without a fingerprint cannot omit its subscriptions, so it must send them each time.
        is_other = fingerprint == 0 or is_changed
        return success({"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": str(is_other).lower()})

    def unregister(self, request: Request) -> Answer:
        """Answer request 35: the client leaves a producer group, a consumer group, or both."""
        client_id = required(request.fields, "clientID")
        producers, consumers = request.fields.get("producerGroup"), request.fields.get("consumerGroup")
        if producers is not None:
            self._table.leave_producers(producers, client_id, request.connection)
        if consumers is not None:
            self._table.leave(consumers, client_id, request.connection)
        return success()

    def check(self, request: Request) -> Answer:
        """Answer request 46: check a subscription; a wrong expression is refused with the position of the error."""
        try:
            data = _body(request, "subscription check").get("subscriptionData")
        except LimitExceeded as error:
            return failure(ResponseCode.MESSAGE_ILLEGAL, str(error))
        if data is None:
            return success()
        wanted = _subscription(data)
        if wanted.expression_type == _SQL and not self._takes_sql():
            return failure(ResponseCode.SYSTEM_ERROR, _NO_SQL)
        try:
            check_filter(wanted.expression_type, wanted.expression)
        except ValueError as error:
            return failure(ResponseCode.SUBSCRIPTION_PARSE_FAILED, f"the subscription to {wanted.topic}: {error}")
        return success()

    def _join(self, client: Client, consumer: _Consumer, fingerprint: int, *, is_without: bool) -> bool:
        subscriptions = None if is_without else consumer.subscriptions
        check = partial(self._table.check_room, consumer.group, client, subscriptions or ())
        try:
            group = self._groups.ensure(consumer.group, client.peer, check)
        except IllegalName as error:
            text = "heartbeat of an illegal group skipped peer=%s: %s"
            self._seldom.log(logging.WARNING, text, client.peer, error)
            return False
        if group is None:
            _log.debug("heartbeat of a missing group skipped group=%s peer=%s", consumer.group, client.peer)
            return False
        self._make_retry_topic(group, consumer, client.peer)
        return self._table.join(
            consumer.group,
            client,
            self._now_ms(),
            consume_settings=consumer.consume_settings,
            subscriptions=subscriptions,
            fingerprint=fingerprint,
        )

    def _make_retry_topic(self, group: GroupConfig, consumer: _Consumer, peer: str) -> None:
        """Create the group's retry topic, which its members subscribe to implicitly, if it is missing."""
        name = naming.RETRY_PREFIX + group.name
        if self._topics.get(name) is not None:
            return
        subscribed = (self._topics.get(each.topic) for each in consumer.subscriptions)
        self._topics.ensure_of_group(
            name,
            group.retry_queues,
            _UNIT_SUBSCRIPTION if consumer.is_unit else 0,
            peer,
            order=any(each is not None and each.order for each in subscribed),
        )


def _each(acts: Iterable[Callable[[], bool | None]]) -> list[bool | None]:
    """Call each function even if others fail; return the results, or raise the first `LimitExceeded` or `OSError`."""
    said, failures = list[bool | None](), list[LimitExceeded | OSError]()
    for act in acts:
        try:
            said.append(act())
        except (LimitExceeded, OSError) as error:
            failures.append(error)
    if failures:
        raise failures[0]
    return said


def _client(client_id: str, request: Request) -> Client:
    return Client(client_id, request.connection, request.peer, request.language, request.version, user=request.user)


def _consumer(value: Mapping[str, Any]) -> _Consumer:
    consume_settings = ConsumeSettings(
        _one_of(value, "consumeType", _CONSUME_TYPES, PASSIVELY),
        _one_of(value, "messageModel", _MESSAGE_MODELS, CLUSTERING),
        _one_of(value, "consumeFromWhere", _FROM_WHERE, FROM_LAST_OFFSET),
    )
    subscriptions = tuple(_subscription(each) for each in _objects(value, "subscriptionDataSet"))
    return _Consumer(_text(value, "groupName"), consume_settings, subscriptions, value.get("unitMode") is True)


def _subscription(value: Any) -> Subscription:
    if not isinstance(value, Mapping):
        raise BadRequest(f"a subscription is {type(value).__name__}, an object is expected")
    return Subscription(
        _text(value, "topic"),
        _text(value, "subString", "*") or "*",
        _text(value, "expressionType", TAG) or TAG,
        _number(value, "subVersion", 0),
        tuple(_encodable("tagsSet", tag) for tag in _list(value, "tagsSet", str)),
        _codes(value),
        value.get("classFilterMode") is True,
    )


def _codes(value: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the tag hashes; RocketMQ's Go client writes them as texts, and Java reads both."""
    found = value.get("codeSet") or []
    if not isinstance(found, list):
        raise BadRequest(f"codeSet is {_shown(found)}; a list of whole numbers is expected")
    try:
        return tuple(int(each) if isinstance(each, str) else _number({"codeSet": each}, "codeSet", 0) for each in found)
    except ValueError as error:
        raise BadRequest(f"codeSet is {_shown(found)}; a list of whole numbers is expected") from error


def _check_counts(data: Mapping[str, Any]) -> None:
    """Refuse a heartbeat with too many groups or subscriptions before it is processed."""
    consumers = _objects(data, "consumerDataSet")
    groups = len(consumers) + len(_objects(data, "producerDataSet"))
    if groups > MAX_GROUPS:
        raise LimitExceeded(
            f"it names {groups} groups; {MAX_GROUPS} are allowed in one heartbeat; use fewer groups a client"
        )
    topics = sum(len(_objects(each, "subscriptionDataSet")) for each in consumers)
    if topics > MAX_GROUPS:
        raise LimitExceeded(
            f"it has {topics} subscriptions; {MAX_GROUPS} are allowed in one heartbeat; subscribe to fewer"
        )


def _body(request: Request, what: str) -> dict[str, Any]:
    size = len(request.body)
    if size > MAX_BODY:
        raise LimitExceeded(
            f"the body of a {what} has {size} bytes; {MAX_BODY} are allowed; name fewer groups and topics"
        )
    try:
        return java_json.loads_object(request.body)
    except ValueError as error:
        raise BadRequest(f"the body is not a {what}: {error}") from error


def _text(value: Mapping[str, Any], name: str, default: str | None = None) -> str:
    found = value.get(name)
    if found is None and default is not None:
        return default
    if not isinstance(found, str) or (not found and default is None):
        raise BadRequest(f"{name} is {_shown(found)}; a text is expected")
    return _encodable(name, found)


def _encodable(name: str, text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadRequest(f"{name} is {_shown(text)}, which is not valid UTF-8: {error.reason}") from error
    return text


def _number(value: Mapping[str, Any], name: str, default: int) -> int:
    found = value.get(name)
    if found is None:
        return default
    if type(found) is not int or not -(1 << 63) <= found < 1 << 63:
        raise BadRequest(f"{name} is {_shown(found)}; a whole number of 64 bits is expected")
    return found


def _list(value: Mapping[str, Any], name: str, kind: type) -> list[Any]:
    found = value.get(name) or []
    if not isinstance(found, list) or not all(type(each) is kind for each in found):
        raise BadRequest(f"{name} is {_shown(found)}; a list of {kind.__name__} is expected")
    return found


def _objects(value: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    return _list(value, name, dict)


def _one_of(value: Mapping[str, Any], name: str, words: tuple[str, ...], default: str) -> str:
    found = value.get(name)
    if found is None:
        return default
    if type(found) is int and 0 <= found < len(words):
        return words[found]
    if isinstance(found, str) and found.upper() in words:
        return found.upper()
    raise BadRequest(f"{name} is {_shown(found)}; it may be {', '.join(words)}")


def _shown(value: object) -> str:
    return repr(value)[:100]
