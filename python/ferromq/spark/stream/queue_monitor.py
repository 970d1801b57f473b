"""
What brokers say about the queues of a stream, asked with patience, and the offsets written to a group for display.

A broker that does not answer, or that no route names just now, is out of reach; nothing of it is judged gone. A queue
is gone where its broker is there without it: it serves other queues of the topic, or it is registered with the name
servers, which no route of the topic tells.
"""

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ferromq._ferromq import RemotingClient
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
from ferromq.spark.read.plan import Queue
from ferromq.spark.stream.plan import Bounds, Place, key_of
from ferromq.spark.topics import Topics

_log = logging.getLogger("ferromq.spark")

RETRIED = (OutcomeUnknown, Throttled, ServerError)
"""What another attempt may overcome."""
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0
_TIMEOUT = 3.0
"""Seconds that a name server may take to say which brokers are up."""


class RetryDeadline:
    """Says how long to wait before each attempt after a failure, until there was no success for a time."""

    def __init__(
        self, seconds: float, clock: Callable[[], float] = time.monotonic, wait: Callable[[float], object] = time.sleep
    ) -> None:
        self.seconds = seconds
        self._clock = clock
        self._wait = wait
        self.renew()

    def renew(self) -> None:
        """Begin anew: there was a success."""
        self._until: float | None = None
        self._pause = FIRST_PAUSE

    def is_left(self) -> bool:
        """Wait a little and return true; false at once where it is used up. The time begins with the first failure."""
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
    """What brokers said at one time."""

    queues: Mapping[Place, Queue]
    missing: Mapping[str, TopicNotFound] = field(default_factory=dict)
    """Topics by name that nobody knows."""
    registered: Collection[str] = ()
    """Brokers that are up, as far as it was asked."""

    @classmethod
    def of(cls, queues: Iterable[Queue], missing: Mapping[str, TopicNotFound]) -> "QueueSnapshot":
        """Return a view of *queues*."""
        return cls({(queue.topic, key_of(queue)): queue for queue in queues}, missing)

    @property
    def held(self) -> dict[Place, Bounds]:
        """What each queue holds."""
        return {place: Bounds(queue.min_offset, queue.max_offset) for place, queue in self.queues.items()}

    def gone(self, places: Iterable[Place]) -> set[Place]:
        """Return which of *places* are queues that their broker has no more: it is there without them."""
        serving = {(topic, broker_of(queue)) for topic, queue in self.queues}
        return {
            (topic, queue)
            for topic, queue in places
            if (topic, queue) not in self.queues
            and ((topic, broker_of(queue)) in serving or broker_of(queue) in self.registered)
        }

    def away(self, places: Iterable[Place]) -> set[Place]:
        """Return which of *places* are out of reach: no route names their topic on their broker."""
        absent = {place for place in places if place not in self.queues}
        return absent - self.gone(absent)


Ask = Callable[[ClusterAddress, Topics], Sequence[Queue]]
Registered = Callable[[str], Collection[str]]
CheckWhole = Callable[[ClusterAddress, Topics], object]


def masters(address: ClusterAddress, topics: Topics) -> list[Queue]:
    """
    Return the queues of *topics* on masters, as `pull.queues` does for a read that may be a part.

    A slave may not have yet what was read from its master: to a stream that would be a loss, and the queue read anew.
    """
    return [queue for queue in pull.queues(address, topics, is_whole=False) if queue.is_master]


class QueueMonitor:
    """Looks at the queues of topics; one for each query."""

    def __init__(
        self,
        address: ClusterAddress,
        topics: Topics,
        patience: RetryDeadline,
        ask: Ask = masters,
        *,
        registered: Registered | None = None,
        check_whole: CheckWhole = pull.check_whole,
    ) -> None:
        self._address = address
        self._topics = topics
        self._patience = patience
        self._ask = ask
        self._registered = registered or registered_brokers
        self._check_whole = check_whole
        self._has_matched = False

    def look(self, places: Collection[Place] = (), *, wait: bool = False, is_whole: bool = False) -> QueueSnapshot:
        """
        Return what brokers say now about *places* and the rest of the topics.

        ClusterAddress one does not answer, that is a while later; with *wait*, also where some of *places* are away;
        and where it *is_whole*, also where a broker is away of which no place is known.

        Raises `ConnectionFailed` where patience ends before all that routes name have answered; queues that are
        away then are the caller's to judge.
        """
        self._patience.renew()
        while True:
            try:
                view = self._judged(self._whole() if is_whole else self._look(), places)
            except RETRIED as error:
                if not self._patience.is_left():
                    raise unreachable(str(self._address), self._patience.seconds, error) from error
            else:
                if not wait or not view.away(places) or not self._patience.is_left():
                    return view

    def _whole(self) -> QueueSnapshot:
        self._check_whole(self._address, self._topics)
        view = self._look()
        self._check_whole(self._address, self._topics)
        return view

    def _judged(self, view: QueueSnapshot, places: Collection[Place]) -> QueueSnapshot:
        if self._address.namesrv is None or not view.away(places):
            return view
        return replace(view, registered=self._registered(self._address.namesrv))

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
        """Return the queues of the pattern's topics; none where all were deleted since the query began."""
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


def registered_brokers(namesrv: str) -> set[str]:
    """Return the names of the brokers that have a master registered with the first name server that answers."""
    client = RemotingClient()
    failure: FerromqError | None = None
    try:
        for address in parse_endpoints(namesrv):
            try:
                code, remark, _, body = client.call(address, RequestCode.GET_BROKER_CLUSTER_INFO, timeout=_TIMEOUT)
            except OutcomeUnknown as error:
                failure = error
                continue
            if code != ResponseCode.SUCCESS:
                raise ServerError(f"{address} was asked for its brokers and answered {code}: {remark}", code, remark)
            brokers = map(BrokerData.from_json, (java_json.loads_object(body).get("brokerAddrTable") or {}).values())
            return {broker.broker_name for broker in brokers if broker.master}
    finally:
        client.close()
    raise failure or ConnectionFailed(f"no name server in {namesrv!r}")


def unreachable(what: str, seconds: float, error: FerromqError) -> ConnectionFailed:
    """Return the error for brokers that did not answer for as long as the option says."""
    return ConnectionFailed(
        f"{what} could not be read for {seconds:g} s (option 'unreachableTimeout'): {error}. Nothing is lost: start "
        "the query again once the broker answers, and it goes on from its checkpoint"
    )
