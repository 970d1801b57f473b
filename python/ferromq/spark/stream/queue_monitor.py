"""
Queries brokers for the queues of a stream, and retries until a deadline.

A broker that does not answer, or that no route names, is unreachable, and its queues may come back. A queue is gone if
its broker is up without it: the broker serves other queues of the topic, or is registered with the name servers.
"""

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ferromq.errors import (
    ConfigError,
    ConnectionFailed,
    FerromqError,
    OutcomeUnknown,
    ServerError,
    Throttled,
    TopicNotFound,
)
from ferromq.protocol import java_json
from ferromq.protocol.codes import RequestCode, ResponseCode
from ferromq.protocol.endpoints import parse_endpoints
from ferromq.protocol.route import BrokerData
from ferromq.spark.options import ClusterAddress
from ferromq.spark.read import pull
from ferromq.spark.read.over_remoting import remoting_client
from ferromq.spark.read.plan import Queue
from ferromq.spark.stream.plan import Bounds, QueueKey, key_of
from ferromq.spark.topics import Topics

_log = logging.getLogger("ferromq.spark")

RETRIED = (OutcomeUnknown, Throttled, ServerError)
"""Errors that a retry may overcome."""
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0
_TIMEOUT = 3.0
"""Seconds for a name server to return the registered brokers."""


class RetryDeadline:
    """Waits before each retry, until a time has passed without success."""

    def __init__(
        self, seconds: float, clock: Callable[[], float] = time.monotonic, wait: Callable[[float], object] = time.sleep
    ) -> None:
        self.seconds = seconds
        self._clock = clock
        self._wait = wait
        self.renew()

    def renew(self) -> None:
        """Start over after a success."""
        self._until: float | None = None
        self._pause = FIRST_PAUSE

    def is_left(self) -> bool:
        """Wait and return true, or return false at once after the deadline, which counts from the first failure."""
        now = self._clock()
        if self._until is None:
            self._until = now + self.seconds
        if now >= self._until:
            return False
        self._wait(min(self._pause, self._until - now))
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
        return True


@dataclass(frozen=True)
class QueueSnapshot:
    """The state of the queues at one time."""

    queues: Mapping[QueueKey, Queue]
    missing: Mapping[str, TopicNotFound] = field(default_factory=dict)
    """Unknown topics by name."""
    registered: Collection[str] = ()
    """Brokers that are registered, if name servers were queried."""

    @classmethod
    def of(cls, queues: Iterable[Queue], missing: Mapping[str, TopicNotFound]) -> "QueueSnapshot":
        """Return the snapshot of *queues*."""
        return cls({(queue.topic, key_of(queue)): queue for queue in queues}, missing)

    @property
    def held(self) -> dict[QueueKey, Bounds]:
        """The min and max offset of each queue."""
        return {key: Bounds(queue.min_offset, queue.max_offset) for key, queue in self.queues.items()}

    def gone(self, keys: Iterable[QueueKey]) -> set[QueueKey]:
        """Return the *keys* whose broker is up without the queue."""
        serving = {(topic, broker_of(queue)) for topic, queue in self.queues}
        return {
            (topic, queue)
            for topic, queue in keys
            if (topic, queue) not in self.queues
            and ((topic, broker_of(queue)) in serving or broker_of(queue) in self.registered)
        }

    def away(self, keys: Iterable[QueueKey]) -> set[QueueKey]:
        """Return the unreachable *keys*: no route names their topic on their broker."""
        absent = {key for key in keys if key not in self.queues}
        return absent - self.gone(absent)


Ask = Callable[[ClusterAddress, Topics], Sequence[Queue]]
Registered = Callable[[ClusterAddress], Collection[str]]
CheckWhole = Callable[[ClusterAddress, Topics], object]


def masters(address: ClusterAddress, topics: Topics) -> list[Queue]:
    """
    Return the queues of *topics* on masters; brokers that are down may be missing.

    A slave may lag behind the offsets that were read from its master, which a stream would take for a loss.
    """
    return [queue for queue in pull.queues(address, topics, is_whole=False) if queue.is_master]


class QueueMonitor:
    """Queries the queues of the topics of one stream query."""

    def __init__(
        self,
        address: ClusterAddress,
        topics: Topics,
        deadline: RetryDeadline,
        ask: Ask = masters,
        *,
        registered: Registered | None = None,
        check_whole: CheckWhole = pull.check_whole,
    ) -> None:
        self._address = address
        self._topics = topics
        self._deadline = deadline
        self._ask = ask
        self._registered = registered or registered_brokers
        self._check_whole = check_whole
        self._has_matched = False

    def look(self, keys: Collection[QueueKey] = (), *, wait: bool = False, is_whole: bool = False) -> QueueSnapshot:
        """
        Return the current queues of the topics.

        It retries while a broker does not answer; with *wait*, also while some of *keys* are unreachable; with
        *is_whole*, also while any broker is down. Raises `ConnectionFailed` if a broker in the routes does not answer
        by the deadline. After the deadline, *keys* may still be unreachable.
        """
        self._deadline.renew()
        while True:
            try:
                snapshot = self._judged(self._whole() if is_whole else self._look(), keys)
            except RETRIED as error:
                if not self._deadline.is_left():
                    raise unreachable(str(self._address), self._deadline.seconds, error) from error
            else:
                if not wait or not snapshot.away(keys) or not self._deadline.is_left():
                    return snapshot

    def _whole(self) -> QueueSnapshot:
        self._check_whole(self._address, self._topics)
        snapshot = self._look()
        self._check_whole(self._address, self._topics)
        return snapshot

    def _judged(self, snapshot: QueueSnapshot, keys: Collection[QueueKey]) -> QueueSnapshot:
        if self._address.namesrv is None or not snapshot.away(keys):
            return snapshot
        return replace(snapshot, registered=self._registered(self._address))

    def _look(self) -> QueueSnapshot:
        if self._topics.pattern is not None:
            return QueueSnapshot.of(self._matching(), {})
        found: list[Queue] = []
        missing: dict[str, TopicNotFound] = {}
        for name in self._topics.names:
            try:
                found += self._ask(self._address, Topics.named([name]))
            except TopicNotFound as error:
                missing[name] = error
        return QueueSnapshot.of(found, missing)

    def _matching(self) -> Sequence[Queue]:
        """Return the queues of the pattern's topics; none if all were deleted since the query began."""
        try:
            queues = self._ask(self._address, self._topics)
        except ConfigError:
            if not self._has_matched:
                raise
            return []
        self._has_matched = True
        return queues


def broker_of(queue: str) -> str:
    """Return the name of the broker in `broker:queue`."""
    return queue.rpartition(":")[0]


def registered_brokers(address: ClusterAddress) -> set[str]:
    """Return the names of the brokers that have a master registered with the first name server that answers."""
    client, namesrv = remoting_client(address.tls), address.namesrv or ""
    failure: FerromqError | None = None
    try:
        for name_server in parse_endpoints(namesrv):
            try:
                code, remark, _, body = client.call(name_server, RequestCode.GET_BROKER_CLUSTER_INFO, timeout=_TIMEOUT)
            except OutcomeUnknown as error:
                failure = error
                continue
            if code != ResponseCode.SUCCESS:
                raise ServerError(f"name server {name_server} did not list its brokers: {code}: {remark}", code, remark)
            brokers = map(BrokerData.from_json, (java_json.loads_object(body).get("brokerAddrTable") or {}).values())
            return {broker.broker_name for broker in brokers if broker.master}
    finally:
        client.close()
    raise failure or ConnectionFailed(f"no name server in {namesrv!r}")


def unreachable(what: str, seconds: float, error: FerromqError) -> ConnectionFailed:
    """Return the error for brokers that did not answer within the option's time."""
    return ConnectionFailed(
        f"{what} could not be read for {seconds:g} s (option 'unreachableTimeout'): {error}. Nothing is lost: restart "
        "the query once the broker answers, and it continues from its checkpoint"
    )
