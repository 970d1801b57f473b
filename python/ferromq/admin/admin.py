"""
The administrator: topics, consumer groups, and stored messages by key and by id, over RocketMQ's remoting protocol.

It asks the name servers for the brokers, and then the brokers. The Rust core decodes records.
"""

import functools
import ipaddress
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from ferromq._ferromq import StoredMessage, decode_records
from ferromq.admin.calls import Calls
from ferromq.admin.settings import (
    MESSAGE_TYPE,
    TOPIC_FIELDS,
    MessageType,
    check_queues,
    checked_type,
    compare,
    group_fields,
    java_text,
    new_topic,
    policy,
    shown_group,
    shown_topic,
    type_of,
)
from ferromq.errors import (
    ConfigError,
    FerromqError,
    GroupNotFound,
    IllegalName,
    OutcomeUnknown,
    RequestError,
    ServerError,
    TopicNotFound,
)
from ferromq.protocol import broker_removal, java_json, naming
from ferromq.protocol.codes import RequestCode, ResponseCode
from ferromq.protocol.route import MASTER, BrokerData, TopicRoute

__all__ = ["Admin", "MessageType"]

P = ParamSpec("P")
T = TypeVar("T")
_QUEUES = 8
_END_OF_TIME = 2**63 - 1
# An offset message id: address, port and physical offset, for IPv4 and IPv6.
_OFFSET_IDS = {32: 4, 56: 16}


def _bounded(call: Callable[Concatenate["Admin", P], T]) -> Callable[Concatenate["Admin", P], T]:
    """Bound a call, with all its requests, by the administrator's timeout."""

    @functools.wraps(call)
    def bounded(self: "Admin", /, *arguments: P.args, **options: P.kwargs) -> T:
        with self._calls.bounded():
            return call(self, *arguments, **options)

    return bounded


class Admin:
    """
    Creates, alters and deletes topics and consumer groups, and finds messages. Thread-safe.

    *namesrv* is `host:port` of a name server, or several joined by `;`. The administrator uses the first one that
    answers, for as long as it answers.

    Each call ends within *timeout* (float: seconds), however many servers it asks. It raises `RequestTimeout` if a
    server does not answer, or no time is left to ask it. Changes made by then stay.

    Connections stay open until `close`.
    """

    def __init__(self, namesrv: str, *, timeout: timedelta | float = 10.0) -> None:
        self._calls = Calls(namesrv, timeout)

    @_bounded
    def topics(self) -> list[str]:
        """Return the names of all topics, RocketMQ's own included, sorted."""
        body = self._calls.ask_name_servers(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
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

        *queues*: on each broker; default 8. *message_type*: the type of messages that the topic takes, if the broker
        checks types; by default the first message decides. If a master already has the topic, the defaults are that
        topic's values. *cluster* is needed only if the name servers know several.

        An existing topic with the given settings stays as it is; a topic without a message type gets the given one.
        Call it again to finish a creation that failed halfway.

        Raises `AlreadyExists` if the topic has another number of queues or another message type (use `alter_topic`),
        `ConfigError` if several clusters are known and none is given, `IllegalName`, and `RequestError` if a broker
        refuses.
        """
        naming.check_topic(name)
        if naming.is_system_topic(name):
            raise IllegalName(f"{name} is a system topic; choose another name")
        kind = checked_type(message_type)
        check_queues(queues)
        found = {master: self._topic(master, name) for master in self._masters(cluster)}
        for master, topic in found.items():
            if topic is not None:
                given = {"queues": queues, "message_type": kind}
                compare("topic", name, master, present=shown_topic(topic), given=given)
        present = [topic for topic in found.values() if topic is not None]
        kind_there = next(filter(None, map(type_of, present)), None)
        model = present[0] if present else new_topic(name, queues or _QUEUES)
        for master, topic in found.items():
            if topic is None:
                self._put_topic(master, model, kind or kind_there)
            elif kind is not None and type_of(topic) is None:
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
        Change the given settings of a topic on every master of a cluster that has it.

        With fewer *queues* than before, consumers no longer read the messages in the removed queues. Raises
        `TopicNotFound`, `ConfigError` if several clusters are known and none is given, and `RequestError` if a broker
        refuses.
        """
        naming.check_topic(name)
        kind = checked_type(message_type)
        check_queues(queues)
        if queues is None and kind is None:
            raise ValueError("nothing to alter; give queues or message_type")
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

        Consumer groups lose their offsets in the topic. If a client still uses the topic, a broker that creates topics
        on first use creates it again; queue offsets then continue. Call it again to finish a deletion that failed
        halfway.

        Raises `TopicNotFound` if no broker and no name server knows the topic, `ConfigError` if several clusters are
        known and none is given, `IllegalName`, and `RequestError` if a broker refuses.
        """
        naming.check_topic(name)
        masters = self._masters(cluster)
        # Each name server has a table of its own, and one may still hold the rest of a failed deletion.
        if not any(self._topic(master, name) for master in masters):
            self._check_routed(name, cluster)
        for master in masters:
            self._calls.ask(master, RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": name})
        # The brokers no longer register it.
        fields = {"topic": name} if cluster is None else {"topic": name, "clusterName": cluster}
        for address in self._calls.name_servers:
            self._calls.ask(address, RequestCode.DELETE_TOPIC_IN_NAMESRV, fields)
            broker_removal.forget_order(self._calls.ask, address, name, cluster)

    @_bounded
    def order_configurations(self) -> dict[str, dict[str, int]]:
        """Return the order configurations: for each topic, the queues of each broker that hold its message groups."""
        failure: FerromqError | None = None
        for address in self._calls.in_turn():
            try:
                return broker_removal.order_configurations(self._calls.ask, address)
            except OutcomeUnknown as error:
                failure = error
        assert failure is not None
        raise failure

    @_bounded
    def take_out_broker(self, name: str) -> list[str]:
        """
        Remove a broker that will not come back from every order configuration, and return the topics that had it.

        The message groups of such a topic are then spread over fewer queues, and groups on other brokers may move too:
        let consumers finish the present messages first. Readers of whole topics no longer report the broker as missing.

        The change is made at every name server. Raises `RequestError` before any change if the broker is registered
        with one of them. Raises the first failure if a name server is not reached: call it again then.
        """
        topics, failure = set[str](), None
        for step in (broker_removal.check_away, broker_removal.take_out):
            for address in self._calls.name_servers:
                try:
                    topics.update(step(self._calls.ask, address, name) or ())
                except OutcomeUnknown as error:
                    failure = failure or error
        if failure is not None:
            raise failure
        return sorted(topics)

    @_bounded
    def clean(self, *, cluster: str | None = None) -> None:
        """
        Delete the expired files of the store on every master of a cluster, at any hour of the day.

        Raises `ConfigError` if several clusters are known and none is given.
        """
        for master in self._masters(cluster):
            self._calls.ask(master, RequestCode.DELETE_EXPIRED_COMMITLOG, {})

    @_bounded
    def clean_unused_queues(self, *, cluster: str | None = None) -> None:
        """
        Delete the queues of unknown topics on every master of a cluster.

        A broker has such queues if a topic was deleted while the broker was away. Raises `ConfigError` if several
        clusters are known and none is given.
        """
        for master in self._masters(cluster):
            self._calls.ask(master, RequestCode.CLEAN_UNUSED_TOPIC, {})

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

        *fifo*: whether the group consumes each message group in order; default no. *retries*: redeliveries of a failed
        message before it becomes a dead letter; default 16. *retry_delays*: seconds that a gRPC push consumer waits
        after the first failure, the second, and so on; the last delay repeats. The default is RocketMQ's, from 1 s to
        2 h. If a master already has the group, the defaults are that group's values. *cluster* is needed only if the
        name servers know several.

        An existing group with the given settings stays as it is. Call it again to finish a creation that failed
        halfway.

        Raises `AlreadyExists` if the group has other settings (use `alter_group`), `ConfigError` if several clusters
        are known and none is given, `IllegalName`, and `RequestError` if a broker refuses.
        """
        naming.check_group(name)
        given = {"fifo": fifo, "retries": retries, "retry_delays": policy(retry_delays)}
        found = {master: self._group(master, name) for master in self._masters(cluster)}
        for master, group in found.items():
            if group is not None:
                compare("consumer group", name, master, present=shown_group(group), given=given)
        new = group_fields(name, fifo=bool(fifo), retries=16 if retries is None else retries, delays=retry_delays)
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
        Change the given settings of a consumer group on every master of a cluster that has it.

        Raises `GroupNotFound`, `ConfigError` if several clusters are known and none is given, and `RequestError` if a
        broker refuses.
        """
        naming.check_group(name)
        fields = group_fields(name, fifo=fifo, retries=retries, delays=retry_delays)
        if fields.keys() == {"groupName"}:
            raise ValueError("nothing to alter; give fifo, retries or retry_delays")
        found = {master: self._group(master, name) for master in self._masters(cluster)}
        if not any(found.values()):
            raise GroupNotFound(f"there is no consumer group {name}; create_group({name!r}) creates it")
        for master, group in found.items():
            if group is not None:
                self._put_group(master, {**group, **fields})

    @_bounded
    def query_by_key(self, topic: str, key: str, max_messages: int = 32) -> list[StoredMessage]:
        """
        Return up to *max_messages* messages of *topic* that were sent with *key*, newest first.

        Each broker answers with at most 4 MiB, or one message.
        """
        if max_messages < 1:
            raise ValueError(f"max_messages must be at least 1, got {max_messages}")
        return self._query(topic, key, max_messages, unique=False)

    @_bounded
    def query_by_id(self, topic: str, message_id: str) -> StoredMessage | None:
        """
        Return the message with this id, if it is stored.

        Takes the id in a producer's receipt, or RocketMQ's offset message id, which holds an address and an offset.
        """
        for message in self._query(topic, message_id, 1, unique=True):
            return message
        location = _location(message_id)
        if location is None:
            return None
        address, offset = location
        try:
            body = self._calls.ask(address, RequestCode.VIEW_MESSAGE_BY_ID, {"topic": topic, "offset": str(offset)})
        except (RequestError, OutcomeUnknown):
            return None  # 32 digits may also be the id of an old producer, which holds no address
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
            body = self._calls.ask(address, RequestCode.QUERY_MESSAGE, fields, ResponseCode.QUERY_NOT_FOUND)
            # The index holds hashes only, so the answer may contain messages with other keys.
            found += (message for message in decode_records(body) if _has_key(message, key, unique=unique))
        found.sort(key=lambda message: message.store_timestamp, reverse=True)
        return found[:max_messages]

    def _brokers_of(self, topic: str) -> Iterator[str]:
        route = TopicRoute.decode(self._calls.ask_name_servers(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}))
        with_queues = {queue.broker_name for queue in route.queues}
        for broker in route.brokers:
            if broker.broker_name in with_queues and broker.addresses:
                # A slave answers if there is no master.
                yield broker.addresses.get(MASTER) or broker.addresses[min(broker.addresses)]

    def _masters(self, wanted: str | None) -> list[str]:
        """Return the masters of the cluster *wanted*, or of the only cluster."""
        known = java_json.loads_object(self._calls.ask_name_servers(RequestCode.GET_BROKER_CLUSTER_INFO))
        clusters = {name: brokers for name, brokers in (known.get("clusterAddrTable") or {}).items() if brokers}
        where = ";".join(self._calls.name_servers)
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
        """Return one broker's settings of a topic."""
        body = self._calls.ask(master, RequestCode.GET_TOPIC_CONFIG, {"topic": name}, ResponseCode.TOPIC_NOT_EXIST)
        return java_json.loads_object(body) if body else None

    def _put_topic(self, master: str, topic: Mapping[str, Any], kind: str | None) -> None:
        fields = {name: java_text(topic[name]) for name in TOPIC_FIELDS if topic.get(name) is not None}
        fields |= {"topic": topic["topicName"], "defaultTopic": naming.AUTO_CREATE_TOPIC}
        if kind is not None:
            fields["attributes"] = f"+{MESSAGE_TYPE}={kind}"
        self._calls.ask(master, RequestCode.UPDATE_AND_CREATE_TOPIC, fields)

    def _group(self, master: str, name: str) -> Mapping[str, Any] | None:
        """Return one broker's settings of a consumer group. A request for one group might create it on first use."""
        table = java_json.loads_object(self._calls.ask(master, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, {}))
        group: Mapping[str, Any] | None = (table.get("subscriptionGroupTable") or {}).get(name)
        return group

    def _put_group(self, master: str, group: Mapping[str, Any]) -> None:
        # A request takes changes of attributes, not their values.
        fields = {name: value for name, value in group.items() if name != "attributes"}
        self._calls.ask(master, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body=java_json.dumps(fields))

    def _check_routed(self, topic: str, cluster: str | None) -> None:
        """Raise unless a name server has a route of the topic in the cluster."""
        failure: FerromqError = TopicNotFound(f"there is no topic {topic}" + (f" in {cluster}" if cluster else ""))
        for address in self._calls.name_servers:
            try:
                body = self._calls.ask(address, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
            except TopicNotFound:
                continue
            except OutcomeUnknown as error:
                failure = error
                continue
            if cluster is None or any(broker.cluster == cluster for broker in TopicRoute.decode(body).brokers):
                return
        raise failure

    def close(self) -> None:
        """Close the connections. Idempotent."""
        self._calls.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _has_key(message: StoredMessage, key: str, *, unique: bool) -> bool:
    return message.message_id == key if unique else key in message.keys


def _location(message_id: str) -> tuple[str, int] | None:
    """Return the address and the physical offset in an offset message id; None for another kind of id."""
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
