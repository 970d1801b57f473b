"""
Reads RocketMQ's and ferromq's brokers over remoting, found through name servers.

A pull returns records in the format of the log. It uses the group of RocketMQ's tools, which every broker has, with a
subscription of its own, so it creates no group and commits nothing.
"""

from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from ferromq._ferromq import PendingAnswer, RemotingClient
from ferromq.core.credentials import pair_of_environment
from ferromq.errors import ConnectionFailed, RequestTimeout, ServerError, TopicNotFound
from ferromq.protocol import java_json, naming
from ferromq.protocol.broker_removal import GONE, start_or_take_out
from ferromq.protocol.codes import RequestCode, ResponseCode
from ferromq.protocol.endpoints import parse_endpoints
from ferromq.protocol.message_queue import load_table
from ferromq.protocol.namespaces import GRPC_NAMESPACE, ORDER_NAMESPACE
from ferromq.protocol.order_configuration import parts
from ferromq.protocol.route import Permission, TopicRoute
from ferromq.spark.read.plan import Queue, QueueRange
from ferromq.spark.read.pull_result import AgedOutError, PullResult
from ferromq.spark.topics import Topics

if TYPE_CHECKING:
    from ferromq.client.tls import Tls

GROUP = naming.TOOLS_GROUP
MAX_MESSAGES = 4096
MAX_BYTES = 4 << 20
"""Messages and bytes of one pull; RocketMQ's brokers return 32 messages unless configured otherwise."""
_LARGE = "ferromqLarge"
"""Field that requests more from a ferromq broker than its limits for other clients; RocketMQ's brokers ignore it."""
MAX_OFFSET_REQUESTS = 256
"""Concurrent requests for the offset at a time."""
TIMEOUT = 60.0
"""Seconds for one call."""

_PULL = 11
_WITH_SUBSCRIPTION = 1 << 2
_PULL_NOT_FOUND, _PULL_AGAIN, _PULL_OFFSET_MOVED = 19, 20, 21


def remoting_client(tls: "Tls | None") -> RemotingClient:
    """Return a client that signs with the credentials of the environment. Raises `ConfigError` for a bad file."""
    options = {}
    if tls is not None:
        from ferromq.client.tls import remoting_options  # noqa: PLC0415 (importing the client slows Python workers)

        options = remoting_options(tls)
    return RemotingClient(**options, credentials=pair_of_environment())


class RemotingBroker:
    """A connection to one broker."""

    def __init__(self, address: str, tls: "Tls | None") -> None:
        self.endpoint = address
        self._client = remoting_client(tls)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def begin(self, wanted: QueueRange, offset: int, tags: Sequence[str]) -> PendingAnswer:
        """Begin a pull at *offset* and return the call, for `finish`."""
        fields = {
            "consumerGroup": GROUP,
            "topic": wanted.topic,
            "queueId": str(wanted.queue_id),
            "queueOffset": str(offset),
            "maxMsgNums": str(min(MAX_MESSAGES, wanted.end - offset)),
            "maxMsgBytes": str(MAX_BYTES),
            "sysFlag": str(_WITH_SUBSCRIPTION),
            "commitOffset": "0",
            "suspendTimeoutMillis": "0",
            "subscription": " || ".join(tags) or "*",
            "expressionType": "TAG",
            "subVersion": "0",
            _LARGE: "true",
        }
        return self._client.begin(self.endpoint, _PULL, fields, timeout=TIMEOUT)

    def finish(self, call: PendingAnswer, wanted: QueueRange, offset: int) -> PullResult:
        """Wait for the result of a pull. Raises the broker's error."""
        code, remark, fields, body = call.wait()
        if code == _PULL_OFFSET_MOVED:
            raise AgedOutError(f"the queue holds {fields.get('minOffset')} to {fields.get('maxOffset')}")
        if code not in {ResponseCode.SUCCESS, _PULL_NOT_FOUND, _PULL_AGAIN}:
            raise _refused(code, remark, f"{wanted} at queue offset {offset}")
        return PullResult([body], int(fields["nextBeginOffset"]), int(fields["minOffset"]))

    def offsets_by_time(self, wanted: Sequence[tuple[Queue | QueueRange, int]]) -> list[int]:
        """Return the result of SEARCH_OFFSET_BY_TIMESTAMP for each queue and time in ms."""
        found: list[int] = []
        for begin in range(0, len(wanted), MAX_OFFSET_REQUESTS):
            part = wanted[begin : begin + MAX_OFFSET_REQUESTS]
            calls = [self._begin_search(queue, ms) for queue, ms in part]
            answers = [call.wait() for call in calls]
            for (queue, _), (code, remark, fields, _) in zip(part, answers, strict=True):
                if code != ResponseCode.SUCCESS:
                    raise _refused(code, remark, f"the offsets of {queue}")
                found.append(int(fields["offset"]))
        return found

    def _begin_search(self, queue: Queue | QueueRange, ms: int) -> PendingAnswer:
        fields = {"topic": queue.topic, "queueId": str(queue.queue_id), "timestamp": str(ms)}
        return self._client.begin(self.endpoint, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, fields, timeout=TIMEOUT)

    def held(self, topic: str) -> dict[int, tuple[int, int]]:
        """Return the min and max offset of every queue of *topic*, with one request."""
        code, remark, _, body = self._client.call(
            self.endpoint, RequestCode.GET_TOPIC_STATS_INFO, {"topic": topic}, timeout=TIMEOUT
        )
        if code != ResponseCode.SUCCESS:
            raise _refused(code, remark, f"the offsets of topic {topic!r} at {self.endpoint}")
        try:
            table = load_table(body, "offsetTable")
            return {queue.queue_id: (int(row["minOffset"]), int(row["maxOffset"])) for queue, row in table.items()}
        except (ValueError, KeyError, TypeError) as error:
            raise ServerError(f"the offsets of topic {topic!r} at {self.endpoint} are malformed: {error}") from error


_answered: dict[tuple[str, ...], str] = {}
"""The name server that answered last, by addresses."""


class NameServers:
    """
    Queries the first name server that answers.

    It begins with the one that answered last in this process, so a process waits for a hanging name server only once.
    """

    def __init__(self, addresses: str, tls: "Tls | None") -> None:
        self._addresses = parse_endpoints(addresses)
        self._tls = tls
        self._client = remoting_client(tls)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def topics(self) -> list[str]:
        """Return the names of all topics."""
        body = self._ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, {}, "the list of topics")
        return sorted(java_json.loads_object(body).get("topicList") or ())

    def queues(self, topic: str) -> list[Queue]:
        """Return the readable queues of *topic* on all brokers, with their current offsets."""
        body = self._ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}, f"topic {topic!r}")
        route = TopicRoute.decode(body)
        brokers = {broker.broker_name: broker for broker in route.brokers}
        found: list[Queue] = []
        for data in route.queues:
            if not data.permission & Permission.READ or data.broker_name not in brokers:
                continue
            name, is_master = data.broker_name, brokers[data.broker_name].master is not None
            with RemotingBroker(brokers[name].master_or_slave, self._tls) as broker:
                held = broker.held(topic)
                found += [
                    Queue(
                        topic,
                        name,
                        broker.endpoint,
                        number,
                        *held.get(number, (0, 0)),
                        "remoting",
                        is_master,
                        self._tls,
                    )
                    for number in range(data.read_queues)
                ]
        return found

    def check_whole(self, topics: Topics) -> None:
        """
        Raise `ServerError` if a broker is down that may have queues of *topics*.

        Routes lack brokers that are not registered. The key-value table names them: ferromq's brokers write their names
        there, and operators write order configurations.
        """
        known = {name for name, address in self._values(GRPC_NAMESPACE).items() if address != GONE}
        orders = self._values(ORDER_NAMESPACE).items()
        known |= {name for topic, order in orders if topics.includes(topic) for name in parts(order)}
        if not known:
            return
        body = self._ask(RequestCode.GET_BROKER_CLUSTER_INFO, {}, "the list of brokers")
        away = sorted(known - (java_json.loads_object(body).get("brokerAddrTable") or {}).keys())
        if away:
            raise ServerError(
                f"the broker {away[0]} is away and may have queues of {topics}; {start_or_take_out(away[0])}"
            )

    def _values(self, namespace: str) -> dict[str, str]:
        """Return a namespace of the key-value table."""
        body = self._ask(
            RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": namespace}, namespace, nothing=b'{"table":{}}'
        )
        return {str(name): str(value) for name, value in (java_json.loads_object(body).get("table") or {}).items()}

    def _ask(self, code: RequestCode, fields: dict[str, str], what: str, *, nothing: bytes | None = None) -> bytes:
        """Query *what*; return *nothing* if the name server has no such entry."""
        lost: ConnectionFailed | RequestTimeout | None = None
        last = _answered.get(self._addresses)
        for address in sorted(self._addresses, key=lambda address: address != last):
            try:
                answer, remark, _, body = self._client.call(address, code, fields, timeout=TIMEOUT)
            except (ConnectionFailed, RequestTimeout) as error:
                lost = error
                continue
            _answered[self._addresses] = address
            if answer == ResponseCode.QUERY_NOT_FOUND and nothing is not None:
                return nothing
            if answer != ResponseCode.SUCCESS:
                raise _refused(answer, remark, f"{what} at name server {address}")
            return body
        raise lost or ConnectionFailed("there is no name server address")


def offsets_by_time(endpoint: str, wanted: Sequence[tuple[Queue | QueueRange, int]], tls: "Tls | None") -> list[int]:
    """Return for each queue of *endpoint* the first offset stored at its time in ms or later, else the max offset."""
    with RemotingBroker(endpoint, tls) as broker:
        return broker.offsets_by_time(wanted)


def _refused(code: int, remark: str | None, what: str) -> ServerError | TopicNotFound:
    kind = TopicNotFound if code == ResponseCode.TOPIC_NOT_EXIST else ServerError
    return kind(f"{what}: {remark or 'no reason given'} (code {code})")
