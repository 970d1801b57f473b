"""
The administrator: topics, consumer groups, and stored messages by key and by id, over RocketMQ's remoting protocol.

It asks the name servers where things are, and then the brokers themselves. Which message is stored where is their
business; how records look, that of the Rust core.
"""

import ipaddress
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

from ferromq import _json, _names
from ferromq._codes import RequestCode, ResponseCode
from ferromq._endpoints import parse_endpoints
from ferromq._ferromq import RemotingClient, StoredMessage, decode_records
from ferromq._fork import Owner
from ferromq.client._protocol import seconds
from ferromq.errors import (
    ConnectionFailed,
    FerromqError,
    Forbidden,
    IllegalName,
    OutcomeUnknown,
    RequestError,
    ServerError,
    TopicNotFound,
    Unsupported,
)
from ferromq.route import MASTER, BrokerData, Permission, TopicRoute

__all__ = ["Admin"]

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


class Admin:
    """
    Looks after topics and consumer groups, and looks up messages. Thread-safe; connections are kept until `close`.

    *namesrv* is `host:port` of a name server, or several joined by `;`, of which the first that answers is asked.
    """

    def __init__(self, namesrv: str, *, timeout: timedelta | float = 3.0) -> None:
        self._owner = Owner("administrator")
        self._name_servers = parse_endpoints(namesrv)
        self._timeout = seconds(timeout)
        self._client = RemotingClient()

    def topics(self) -> list[str]:
        """Return the names of all topics, RocketMQ's own included, sorted."""
        body = self._ask_name_servers(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        return sorted(_json.loads_object(body).get("topicList") or ())

    def create_topic(self, name: str, queues: int = 8, *, message_type: str | None = None) -> None:
        """
        Create a topic with *queues* queues on every master, or change an existing one.

        *message_type* is the kind of messages it takes: NORMAL, FIFO, DELAY, TRANSACTION or PRIORITY, where a broker
        checks it. None: NORMAL, or what it was.

        Raises `IllegalName`, and `RequestError` where a broker refuses.
        """
        _names.check_topic(name)
        if queues < 1:
            raise ValueError(f"a topic has at least one queue, not {queues}")
        fields = {
            "topic": name,
            "defaultTopic": _names.AUTO_CREATE_TOPIC,
            "readQueueNums": str(queues),
            "writeQueueNums": str(queues),
            "perm": str(_READ_WRITE),
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": "0",
            "order": "false",
        }
        if message_type is not None:
            fields["attributes"] = f"+message.type={message_type}"
        for master in self._masters():
            self._ask(master, RequestCode.UPDATE_AND_CREATE_TOPIC, fields)

    def delete_topic(self, name: str) -> None:
        """
        Delete a topic and its messages on every master, and its route on every name server.

        Consumer groups forget how far they were. A broker that creates topics on first use creates it anew for whoever
        still uses it; queue offsets go on where they were. Raises `TopicNotFound`, and `RequestError` where a broker
        refuses, `IllegalName`; asking again finishes what was left halfway.
        """
        _names.check_topic(name)
        self._ask_name_servers(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": name})
        for master in self._masters():
            self._ask(master, RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": name})
        # The brokers no longer register it; each name server has a table of its own.
        for address in self._name_servers:
            self._ask(address, RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": name})

    def clean(self) -> None:
        """Delete on every master the files of the store whose messages have expired, at whatever hour."""
        for master in self._masters():
            self._ask(master, RequestCode.DELETE_EXPIRED_COMMITLOG, {})

    def clean_unused_queues(self) -> None:
        """Delete on every master the queues of topics it does not have: topics that were deleted while it was away."""
        for master in self._masters():
            self._ask(master, RequestCode.CLEAN_UNUSED_TOPIC, {})

    def create_group(
        self,
        name: str,
        *,
        fifo: bool = False,
        retries: int = 16,
        retry_delays: Sequence[timedelta | float] | None = None,
    ) -> None:
        """
        Create a consumer group on every master, or set an existing one to RocketMQ's defaults and what is given.

        *fifo*: it consumes message groups in order. *retries*: how often a message that failed comes again before it
        is a dead letter. *retry_delays*: what a gRPC consumer that calls a handler waits after the first failure, the
        second, and so on; the last one goes on. None: RocketMQ's, from 1 s to 2 h.

        Raises `IllegalName`, and `RequestError` where a broker refuses.
        """
        _names.check_group(name)
        group: dict[str, Any] = {"groupName": name, "consumeMessageOrderly": fifo, "retryMaxTimes": retries}
        if retry_delays is not None:
            delays_ms = [round(seconds(delay) * 1000) for delay in retry_delays]
            if not delays_ms:
                raise ValueError("retry_delays is empty; give at least one delay, or leave it out")
            group["groupRetryPolicy"] = {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": delays_ms}}
        body = _json.dumps(group)
        for master in self._masters():
            self._ask(master, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body=body)

    def query_by_key(self, topic: str, key: str, max_messages: int = 32) -> list[StoredMessage]:
        """Return messages of *topic* that were sent with *key*, the newest first, at most *max_messages*."""
        if max_messages < 1:
            raise ValueError(f"at least one message must be asked for, not {max_messages}")
        return self._query(topic, key, max_messages, unique=False)

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

    def _masters(self) -> list[str]:
        cluster = _json.loads_object(self._ask_name_servers(RequestCode.GET_BROKER_CLUSTER_INFO))
        brokers = [BrokerData.from_json(broker) for broker in (cluster.get("brokerAddrTable") or {}).values()]
        masters = [broker.master for broker in brokers if broker.master]
        if not masters:
            raise ServerError(f"no broker is registered with {';'.join(self._name_servers)}")
        return masters

    def _ask_name_servers(self, code: RequestCode, fields: Mapping[str, str] | None = None) -> bytes:
        failure: FerromqError | None = None
        for address in self._name_servers:
            try:
                return self._ask(address, code, fields or {})
            except OutcomeUnknown as error:
                failure = error
                if isinstance(error, ConnectionFailed) and "lost" in str(error):
                    failure = ConnectionFailed(f"{error}; is this a name server's port (9876)?")
        assert failure is not None
        raise failure

    def _ask(
        self, address: str, code: RequestCode, fields: Mapping[str, str], also: int = 0, *, body: bytes = b""
    ) -> bytes:
        """Ask one server and return the body of its answer; *also* is a code that is no failure, with no body."""
        self._owner.check()
        answer, remark, _, content = self._client.call(address, code, fields, body, timeout=self._timeout)
        if answer == ResponseCode.SUCCESS:
            return content
        if answer == also:
            return b""
        text = f"{address} answered {code.name} with the code {answer}: {remark or 'no remark'}"
        # RocketMQ has one code for every parameter; names are checked before they are sent, but its rules may differ.
        about_name = answer == ResponseCode.INVALID_PARAMETER and _ABOUT_NAME.search(remark or "")
        raise (IllegalName if about_name else _ERRORS.get(answer, RequestError))(text, answer, remark or "")

    def close(self) -> None:
        """Close the connections. Idempotent."""
        if self._owner.is_here:
            self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


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
