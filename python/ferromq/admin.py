"""
The administrator: topics, consumer groups, and stored messages by key and by id, over RocketMQ's remoting protocol.

It asks the name servers where things are, and then the brokers themselves. Which message is stored where is their
business; how records look, that of the Rust core.
"""

import functools
import ipaddress
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any, Concatenate, Literal, ParamSpec, Self, TypeVar, get_args

from ferromq._ferromq import RemotingClient, StoredMessage, decode_records
from ferromq.core.requests import seconds
from ferromq.errors import (
    AlreadyExists,
    ClientClosed,
    ConfigError,
    ConnectionFailed,
    FerromqError,
    Forbidden,
    GroupNotFound,
    IllegalName,
    OutcomeUnknown,
    RequestError,
    RequestTimeout,
    ServerError,
    StoreFull,
    TopicNotFound,
    Unsupported,
)
from ferromq.process.fork import Owner
from ferromq.protocol import broker_removal, java_json, naming, retry_policy
from ferromq.protocol.codes import RequestCode, ResponseCode
from ferromq.protocol.endpoints import parse_endpoints
from ferromq.protocol.route import MASTER, BrokerData, Permission, TopicRoute

__all__ = ["Admin", "MessageType"]

P = ParamSpec("P")
T = TypeVar("T")
MessageType = Literal["NORMAL", "FIFO", "DELAY", "TRANSACTION", "PRIORITY", "MIXED"]
"""The kinds of messages a topic may take; MIXED takes all, where the broker's options allow such topics."""

_MESSAGE_TYPE = "message.type"
_QUEUES = 8
_READ_WRITE = int(Permission.READ | Permission.WRITE)
_END_OF_TIME = 2**63 - 1
_ERRORS = {
    ResponseCode.TOPIC_NOT_EXIST: TopicNotFound,
    ResponseCode.SYSTEM_ERROR: ServerError,
    3: Unsupported,
    16: Forbidden,
}
_ABOUT_NAME = re.compile(r"\b(topic|group)\b.*\b(name|illegal|characters?|blank|long|length|reserved)\b", re.IGNORECASE)
# An offset message id: address, port and physical offset, for IPv4 and IPv6.
_OFFSET_IDS = {32: 4, 56: 16}


class _Call(threading.local):
    """The call of this thread."""

    until: float | None = None
    """When it ends (monotonic)."""


def _bounded(call: Callable[Concatenate["Admin", P], T]) -> Callable[Concatenate["Admin", P], T]:
    """Let a call end within the administrator's timeout, all that it asks included."""

    @functools.wraps(call)
    def bounded(self: "Admin", /, *arguments: P.args, **options: P.kwargs) -> T:
        before = self._call.until
        if before is None:
            self._call.until = time.monotonic() + self._timeout
        try:
            return call(self, *arguments, **options)
        finally:
            self._call.until = before

    return bounded


class Admin:
    """
    Looks after topics and consumer groups, and looks up messages. Thread-safe; connections are kept until `close`.

    *namesrv* is `host:port` of a name server, or several joined by `;`, of which the first that answers is asked, and
    goes on being asked as long as it answers.

    Each call ends within *timeout* (float: seconds), however many servers it asks: `RequestTimeout` where one does not
    answer, or where there is no time left to ask it. What was done by then stays done.
    """

    def __init__(self, namesrv: str, *, timeout: timedelta | float = 10.0) -> None:
        self._owner = Owner("administrator")
        self._name_servers = parse_endpoints(namesrv)
        self._answered: str | None = None
        """The name server that answered last."""
        self._timeout = seconds(timeout)
        self._client = RemotingClient()
        self._is_closed = False
        self._call = _Call()

    @_bounded
    def topics(self) -> list[str]:
        """Return the names of all topics, RocketMQ's own included, sorted."""
        body = self._ask_name_servers(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        return sorted(java_json.loads_object(body).get("topicList") or ())

    @_bounded
    def create_topic(
        self,
        name: str,
        queues: int | None = None,
        *,
        message_type: MessageType | None = None,
        cluster: str | None = None,
    ) -> None:
        """
        Create a topic on every master of a cluster.

        *queues*: of each broker; None: 8. *message_type*: the kind of messages the topic takes, where a broker checks
        it; None: the first message decides. Where a master has the topic, what is not given is as there.
        *cluster* may be left out where the name servers know one cluster.

        A topic that exists is left as it is if it has what was given; a message type is added to a topic without one.
        Call it again to finish a creation that failed halfway.

        Raises `AlreadyExists` if the topic has another number of queues or another message type (`alter_topic` changes
        them), `ConfigError` if several clusters are known and none is given, `IllegalName`, and `RequestError` if a
        broker refuses.
        """
        naming.check_topic(name)
        if naming.is_system_topic(name):
            raise IllegalName(f"{name} is a topic of the system; choose another name")
        kind = _checked_type(message_type)
        _check_queues(queues)
        found = {master: self._topic(master, name) for master in self._masters(cluster)}
        for master, topic in found.items():
            if topic is not None:
                given = {"queues": queues, "message_type": kind}
                _compare("topic", name, master, present=_shown_topic(topic), given=given)
        present = [topic for topic in found.values() if topic is not None]
        kind_there = next(filter(None, map(_type_of, present)), None)
        model = present[0] if present else _new_topic(name, queues or _QUEUES)
        for master, topic in found.items():
            if topic is None:
                self._put_topic(master, model, kind or kind_there)
            elif kind is not None and _type_of(topic) is None:
                self._put_topic(master, topic, kind)

    @_bounded
    def alter_topic(
        self,
        name: str,
        *,
        queues: int | None = None,
        message_type: MessageType | None = None,
        cluster: str | None = None,
    ) -> None:
        """
        Change a topic on every master of a cluster that has it; what is not given stays.

        With fewer *queues* than before, messages in the queues above are not read any more. Raises `TopicNotFound`,
        `ConfigError` if several clusters are known and none is given, and `RequestError` if a broker refuses.
        """
        naming.check_topic(name)
        kind = _checked_type(message_type)
        _check_queues(queues)
        if queues is None and kind is None:
            raise ValueError("nothing to alter; give queues, or message_type")
        found = {master: self._topic(master, name) for master in self._masters(cluster)}
        if not any(found.values()):
            raise TopicNotFound(f"there is no topic {name}; create_topic({name!r}) creates it")
        for master, topic in found.items():
            if topic is not None:
                changed = {"readQueueNums": queues, "writeQueueNums": queues} if queues else {}
                self._put_topic(master, {**topic, **changed}, kind)

    @_bounded
    def delete_topic(self, name: str, *, cluster: str | None = None) -> None:
        """
        Delete a topic and its messages on every master of a cluster, and its route on every name server.

        Consumer groups forget how far they were. A broker that creates topics on first use creates it anew for a
        client that still uses it; queue offsets go on where they were. Call it again to finish a deletion that failed
        halfway.

        Raises `TopicNotFound` if no broker and no name server knows the topic, `ConfigError` if several clusters are
        known and none is given, `IllegalName`, and `RequestError` if a broker refuses.
        """
        naming.check_topic(name)
        masters = self._masters(cluster)
        # Each name server has a table of its own, and one may still have what a deletion left.
        if not any(self._topic(master, name) for master in masters):
            self._check_routed(name, cluster)
        for master in masters:
            self._ask(master, RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": name})
        # The brokers no longer register it.
        fields = {"topic": name} if cluster is None else {"topic": name, "clusterName": cluster}
        for address in self._name_servers:
            self._ask(address, RequestCode.DELETE_TOPIC_IN_NAMESRV, fields)
            broker_removal.forget_order(self._ask, address, name, cluster)

    @_bounded
    def order_configurations(self) -> dict[str, dict[str, int]]:
        """Return, for each topic that has one, the queues of each broker that its message groups are spread over."""
        failure: FerromqError | None = None
        for address in self._in_turn():
            try:
                return broker_removal.order_configurations(self._ask, address)
            except OutcomeUnknown as error:
                failure = error
        assert failure is not None
        raise failure

    @_bounded
    def take_out_broker(self, name: str) -> list[str]:
        """
        Take a broker that will not come back out of every order configuration, and return the topics that counted it.

        Message groups count fewer queues then: those of other brokers may move, too, so let consumers finish first what
        is there. Readers of whole topics miss the broker no more. It is done at every name server; raises
        `RequestError` if the broker is registered with one of them, before anything is changed, and what the first name
        server failed with that was not reached: call it again then.
        """
        topics, failure = set[str](), None
        for step in (broker_removal.check_away, broker_removal.take_out):
            for address in self._name_servers:
                try:
                    topics.update(step(self._ask, address, name) or ())
                except OutcomeUnknown as error:
                    failure = failure or error
        if failure is not None:
            raise failure
        return sorted(topics)

    @_bounded
    def clean(self, *, cluster: str | None = None) -> None:
        """
        Delete on every master of a cluster the files of the store whose messages have expired, at whatever hour.

        Raises `ConfigError` if several clusters are known and none is given.
        """
        for master in self._masters(cluster):
            self._ask(master, RequestCode.DELETE_EXPIRED_COMMITLOG, {})

    @_bounded
    def clean_unused_queues(self, *, cluster: str | None = None) -> None:
        """
        Delete on every master of a cluster the queues of topics that it does not have.

        Such queues are left where a topic was deleted while the broker was away. Raises `ConfigError` if several
        clusters are known and none is given.
        """
        for master in self._masters(cluster):
            self._ask(master, RequestCode.CLEAN_UNUSED_TOPIC, {})

    @_bounded
    def create_group(
        self,
        name: str,
        *,
        fifo: bool | None = None,
        retries: int | None = None,
        retry_delays: Sequence[timedelta | float] | None = None,
        cluster: str | None = None,
    ) -> None:
        """
        Create a consumer group on every master of a cluster.

        *fifo*: it consumes message groups in order; None: no. *retries*: how often a message that failed comes again
        before it is a dead letter; None: 16. *retry_delays*: what a gRPC consumer that calls a handler waits after the
        first failure, the second, and so on, in seconds; the last one goes on. None: RocketMQ's, from 1 s to 2 h.
        Where a master has the group, what is not given is as there. *cluster* may be left out where the name servers
        know one cluster.

        A group that exists is left as it is if it has what was given. Call it again to finish a creation that failed
        halfway.

        Raises `AlreadyExists` if the group has other settings (`alter_group` changes them), `ConfigError` if several
        clusters are known and none is given, `IllegalName`, and `RequestError` if a broker refuses.
        """
        naming.check_group(name)
        given = {"fifo": fifo, "retries": retries, "retry_delays": _policy(retry_delays)}
        found = {master: self._group(master, name) for master in self._masters(cluster)}
        for master, group in found.items():
            if group is not None:
                _compare("consumer group", name, master, present=_shown_group(group), given=given)
        new = _group_fields(name, fifo=bool(fifo), retries=16 if retries is None else retries, delays=retry_delays)
        model = next((group for group in found.values() if group is not None), new)
        for master, group in found.items():
            if group is None:
                self._put_group(master, model)

    @_bounded
    def alter_group(
        self,
        name: str,
        *,
        fifo: bool | None = None,
        retries: int | None = None,
        retry_delays: Sequence[timedelta | float] | None = None,
        cluster: str | None = None,
    ) -> None:
        """
        Change a consumer group on every master of a cluster that has it; what is not given stays.

        Raises `GroupNotFound`, `ConfigError` if several clusters are known and none is given, and `RequestError` if a
        broker refuses.
        """
        naming.check_group(name)
        fields = _group_fields(name, fifo=fifo, retries=retries, delays=retry_delays)
        if fields.keys() == {"groupName"}:
            raise ValueError("nothing to alter; give fifo, retries, or retry_delays")
        found = {master: self._group(master, name) for master in self._masters(cluster)}
        if not any(found.values()):
            raise GroupNotFound(f"there is no consumer group {name}; create_group({name!r}) creates it")
        for master, group in found.items():
            if group is not None:
                self._put_group(master, {**group, **fields})

    @_bounded
    def query_by_key(self, topic: str, key: str, max_messages: int = 32) -> list[StoredMessage]:
        """
        Return messages of *topic* that were sent with *key*, the newest first, at most *max_messages*.

        A broker answers at most 4 MiB of them, or one message.
        """
        if max_messages < 1:
            raise ValueError(f"at least one message must be asked for, not {max_messages}")
        return self._query(topic, key, max_messages, unique=False)

    @_bounded
    def query_by_id(self, topic: str, message_id: str) -> StoredMessage | None:
        """
        Return the message with this id, if it is stored.

        Takes the id a producer's receipt has, and RocketMQ's offset message id, which names the place of storing.
        """
        for message in self._query(topic, message_id, 1, unique=True):
            return message
        place = _place(message_id)
        if place is None:
            return None
        address, offset = place
        try:
            body = self._ask(address, RequestCode.VIEW_MESSAGE_BY_ID, {"topic": topic, "offset": str(offset)})
        except (RequestError, OutcomeUnknown):
            return None  # 32 digits may as well be the id of an old producer, and the place no place at all
        return next((message for message in decode_records(body) if message.topic == topic), None)

    def _query(self, topic: str, key: str, max_messages: int, *, unique: bool) -> list[StoredMessage]:
        fields = {
            "topic": topic,
            "key": key,
            "maxNum": str(max_messages),
            "beginTimestamp": "0",
            "endTimestamp": str(_END_OF_TIME),
            "_UNIQUE_KEY_QUERY": str(unique).lower(),
        }
        found: list[StoredMessage] = []
        for address in self._brokers_of(topic):
            body = self._ask(address, RequestCode.QUERY_MESSAGE, fields, ResponseCode.QUERY_NOT_FOUND)
            # The index knows only hashes, so a broker may answer with strangers, too.
            found += (message for message in decode_records(body) if _has_key(message, key, unique=unique))
        found.sort(key=lambda message: message.store_timestamp, reverse=True)
        return found[:max_messages]

    def _brokers_of(self, topic: str) -> Iterator[str]:
        route = TopicRoute.decode(self._ask_name_servers(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}))
        with_queues = {queue.broker_name for queue in route.queues}
        for broker in route.brokers:
            if broker.broker_name in with_queues and broker.addresses:
                # Without a master, a slave answers.
                yield broker.addresses.get(MASTER) or broker.addresses[min(broker.addresses)]

    def _masters(self, wanted: str | None) -> list[str]:
        """Return the masters of the cluster *wanted*, or of the only one there is."""
        known = java_json.loads_object(self._ask_name_servers(RequestCode.GET_BROKER_CLUSTER_INFO))
        clusters = {name: brokers for name, brokers in (known.get("clusterAddrTable") or {}).items() if brokers}
        where = ";".join(self._name_servers)
        if not clusters:
            raise ServerError(f"no broker is registered with {where}")
        names = ", ".join(sorted(clusters))
        if wanted is None and len(clusters) > 1:
            raise ConfigError(f"{where} knows several clusters: {names}; choose one with cluster=")
        if wanted is not None and wanted not in clusters:
            raise ConfigError(f"cluster is {wanted!r}, which {where} does not know; known are {names}")
        members = clusters[wanted] if wanted is not None else next(iter(clusters.values()))
        table = known.get("brokerAddrTable") or {}
        brokers = [BrokerData.from_json(table[name]) for name in sorted(members) if name in table]
        masters = [broker.master for broker in brokers if broker.master]
        if not masters:
            raise ServerError(f"no master of the cluster {wanted or names} is registered with {where}")
        return masters

    def _topic(self, master: str, name: str) -> Mapping[str, Any] | None:
        """Return a topic as one broker has it."""
        body = self._ask(master, RequestCode.GET_TOPIC_CONFIG, {"topic": name}, ResponseCode.TOPIC_NOT_EXIST)
        return java_json.loads_object(body) if body else None

    def _put_topic(self, master: str, topic: Mapping[str, Any], kind: str | None) -> None:
        fields = {name: _java_text(topic[name]) for name in _TOPIC_FIELDS if topic.get(name) is not None}
        fields |= {"topic": topic["topicName"], "defaultTopic": naming.AUTO_CREATE_TOPIC}
        if kind is not None:
            fields["attributes"] = f"+{_MESSAGE_TYPE}={kind}"
        self._ask(master, RequestCode.UPDATE_AND_CREATE_TOPIC, fields)

    def _group(self, master: str, name: str) -> Mapping[str, Any] | None:
        """Return a consumer group as one broker has it. Asked for by its name it might be created on first use."""
        table = java_json.loads_object(self._ask(master, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, {}))
        group: Mapping[str, Any] | None = (table.get("subscriptionGroupTable") or {}).get(name)
        return group

    def _put_group(self, master: str, group: Mapping[str, Any]) -> None:
        # In a request attributes are changes, not values.
        fields = {name: value for name, value in group.items() if name != "attributes"}
        self._ask(master, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body=java_json.dumps(fields))

    def _check_routed(self, topic: str, cluster: str | None) -> None:
        """Raise `TopicNotFound` unless a name server has a route to the cluster; else what one failed with."""
        failure: FerromqError = TopicNotFound(f"there is no topic {topic}" + (f" in {cluster}" if cluster else ""))
        for address in self._name_servers:
            try:
                route = TopicRoute.decode(self._ask(address, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}))
            except TopicNotFound:
                continue
            except OutcomeUnknown as error:
                failure = error
                continue
            if cluster is None or any(broker.cluster == cluster for broker in route.brokers):
                return
        raise failure

    def _ask_name_servers(self, code: RequestCode, fields: Mapping[str, str] | None = None) -> bytes:
        failure: FerromqError | None = None
        for address in self._in_turn():
            try:
                body = self._ask(address, code, fields or {})
            except OutcomeUnknown as error:
                failure = error
                if isinstance(error, ConnectionFailed) and "lost" in str(error):
                    failure = ConnectionFailed(f"{error}; is this a name server's port (9876)?")
            except RequestError:  # an answer, too
                self._answered = address
                raise
            else:
                self._answered = address
                return body
        assert failure is not None
        raise failure

    def _in_turn(self) -> list[str]:
        """Return the name servers, the one that answered last first: one that hangs costs a call its time once."""
        return sorted(self._name_servers, key=lambda address: address != self._answered)

    def _ask(
        self, address: str, code: RequestCode, fields: Mapping[str, str], also: int = 0, *, body: bytes = b""
    ) -> bytes:
        """Ask one server and return the body of its answer; *also* is a code that is no failure, with no body."""
        self._owner.check()
        if self._is_closed:
            raise ClientClosed("this administrator is closed; make a new one")
        answer, remark, _, content = self._client.call(address, code, fields, body, timeout=self._limit(address, code))
        if answer == ResponseCode.SUCCESS:
            return content
        if answer == also:
            return b""
        text = f"{address} refused {code.name}: {remark or f'code {answer}, without a remark'}"
        if answer == ResponseCode.SERVICE_NOT_AVAILABLE and (remark or "").startswith("disk full"):
            raise StoreFull(text)
        # RocketMQ has one code for every parameter; names are checked before they are sent, but its rules may differ.
        about_name = answer == ResponseCode.INVALID_PARAMETER and _ABOUT_NAME.search(remark or "")
        raise (IllegalName if about_name else _ERRORS.get(answer, RequestError))(text, answer, remark or "")

    def _limit(self, address: str, code: RequestCode) -> float:
        """Return the seconds that a request may take; one to a name server leaves time to ask the others."""
        left = self._timeout if self._call.until is None else self._call.until - time.monotonic()
        if left <= 0:
            raise RequestTimeout(
                f"the call did not end within {self._timeout:g} s; {address} was not asked ({code.name}): "
                "call it again, or give Admin a longer timeout"
            )
        return left / len(self._name_servers) if address in self._name_servers else left

    def close(self) -> None:
        """Close the connections. Idempotent."""
        if self._owner.is_here:
            self._is_closed = True
            self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


_TOPIC_FIELDS = ("readQueueNums", "writeQueueNums", "perm", "topicFilterType", "topicSysFlag", "order")
"""The fields of a topic that a request to put it has under the same name."""


def _new_topic(name: str, queues: int) -> Mapping[str, Any]:
    return {
        "topicName": name,
        "readQueueNums": queues,
        "writeQueueNums": queues,
        "perm": _READ_WRITE,
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0,
        "order": False,
    }


def _java_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _check_queues(queues: int | None) -> None:
    if queues is not None and queues < 1:
        raise ValueError(f"a topic has at least one queue, not {queues}")


def _checked_type(message_type: str | None) -> str | None:
    """Return the type in the form brokers know it; raises `ValueError` for one that no topic has."""
    if message_type is None or message_type.upper() in get_args(MessageType):
        return None if message_type is None else message_type.upper()
    raise ValueError(f"message_type is {message_type!r}; it may be {', '.join(get_args(MessageType))}")


def _type_of(topic: Mapping[str, Any]) -> str | None:
    found: str | None = (topic.get("attributes") or {}).get(_MESSAGE_TYPE)
    return found


def _shown_topic(topic: Mapping[str, Any]) -> dict[str, Any]:
    reads, writes = topic.get("readQueueNums"), topic.get("writeQueueNums")
    queues = writes if reads == writes else f"{reads} to read and {writes} to write"
    return {"queues": queues, "message_type": _type_of(topic)}


def _policy(delays: Sequence[timedelta | float] | None) -> retry_policy.RetryPolicy | None:
    return None if delays is None else retry_policy.parse(_retry_fields(delays))


def _retry_fields(delays: Sequence[timedelta | float]) -> dict[str, Any]:
    delays_ms = [round(seconds(delay) * 1000) for delay in delays]
    if not delays_ms:
        raise ValueError("retry_delays is empty; give at least one delay, or leave it out")
    return {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": delays_ms}}


def _group_fields(
    name: str, *, fifo: bool | None, retries: int | None, delays: Sequence[timedelta | float] | None
) -> dict[str, Any]:
    """Return RocketMQ's fields of what was given."""
    fields = {
        "groupName": name,
        "consumeMessageOrderly": fifo,
        "retryMaxTimes": retries,
        "groupRetryPolicy": None if delays is None else _retry_fields(delays),
    }
    return {field: value for field, value in fields.items() if value is not None}


def _shown_group(group: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "fifo": group.get("consumeMessageOrderly", False),
        "retries": group.get("retryMaxTimes", 16),
        "retry_delays": retry_policy.parse(group.get("groupRetryPolicy") or {}),
    }


def _compare(what: str, name: str, address: str, *, present: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Raise `AlreadyExists` where something is given that is otherwise; what is not there yet is no difference."""
    other = [
        f"{field} is {_readable(present[field])}, not {_readable(value)}"
        for field, value in given.items()
        if value is not None and present[field] is not None and value != present[field]
    ]
    if other:
        call = "alter_topic" if what == "topic" else "alter_group"
        raise AlreadyExists(f"the {what} {name} exists on {address}: {'; '.join(other)}; {call} changes it")


def _readable(value: Any) -> str:
    if isinstance(value, retry_policy.Customized):
        return str([delay / 1000 for delay in value.delays_ms])
    return str(value)


def _has_key(message: StoredMessage, key: str, *, unique: bool) -> bool:
    return message.message_id == key if unique else key in message.keys


def _place(message_id: str) -> tuple[str, int] | None:
    """Return address and physical offset of an offset message id; None for another kind of id."""
    address_len = _OFFSET_IDS.get(len(message_id))
    try:
        raw = bytes.fromhex(message_id)
    except ValueError:
        return None
    if address_len is None:
        return None
    address = ipaddress.ip_address(raw[:address_len])
    port = int.from_bytes(raw[address_len : address_len + 4])
    host = f"[{address}]" if address.version == 6 else str(address)  # noqa: PLR2004
    return (f"{host}:{port}", int.from_bytes(raw[address_len + 4 :])) if 0 < port < 1 << 16 else None
