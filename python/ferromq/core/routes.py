"""
Which queues a topic has and which broker serves each, as last heard.

Holds values and decides when they are too old; asking for them is the business of `plans`.
"""

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from itertools import count
from random import randrange

from ferromq import _ferromq
from ferromq._proto import messages as pb
from ferromq.errors import Forbidden

MAX_AGE = 30.0
"""Seconds after which a route is asked for anew."""

_AVOIDED = 10.0
"""Seconds for which a broker that did not answer is asked last."""
_TURNS = 1 << 16
"""New clients begin at any queue: many that send one message each would all use the first."""
_SHOWN = 8
_WRITE = (pb.Permission.WRITE, pb.Permission.READ_WRITE)
_READ = (pb.Permission.READ, pb.Permission.READ_WRITE)


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue of a topic and the broker it is on."""

    queue_id: int
    broker_name: str
    endpoint: str


@dataclass(slots=True)
class Route:
    """The queues of one topic."""

    topic: str
    writable: tuple[Queue, ...]
    readable: dict[str, str]
    """Endpoint → broker name."""
    not_writable: tuple[int, ...] = ()
    """Ids of the queues that are there and may not be written."""
    not_readable: tuple[int, ...] = ()
    in_order: tuple[Queue, ...] = ()
    """The writable ones as the server told them: message groups count in this order."""
    readable_queues: tuple[Queue, ...] = ()
    brokers: dict[str, str] = field(default_factory=dict)
    """Broker name → endpoint of all that have the topic, also where no queue may be read or written."""
    _turn: "count[int]" = field(default_factory=lambda: count(randrange(_TURNS)))  # noqa: S311 (no secret)

    def next_writable(self, avoid: Iterable[str] = (), failing: Iterable[str] = ()) -> Queue:
        """Return the queue whose turn it is: on none of the brokers to *avoid* or *failing* where another is left."""
        queues = self.writable
        for avoided in ({*avoid}, {*avoid, *failing}):
            queues = tuple(queue for queue in queues if queue.endpoint not in avoided) or queues
        if not queues:
            raise Forbidden(self._refusal("written", "write", self.not_writable))
        return queues[next(self._turn) % len(queues)]

    def of_group(self, message_group: str) -> Queue:
        """Return the queue of a message group: the one that RocketMQ's own clients choose."""
        if not self.in_order:
            raise Forbidden(self._refusal("written", "write", self.not_writable))
        return self.in_order[_ferromq.queue_of_group(message_group, len(self.in_order))]

    def now_at(self, queue: Queue) -> Queue:
        """Return a queue with the present endpoint of its broker; with the last known one if the broker is away."""
        return replace(queue, endpoint=self.brokers.get(queue.broker_name) or queue.endpoint)

    @property
    def endpoints(self) -> Iterable[str]:
        """Where the brokers of the topic are."""
        return dict.fromkeys((*(queue.endpoint for queue in self.writable), *self.readable))

    def endpoint_of(self, broker_name: str) -> str | None:
        """Return where a broker is, if the topic is on it."""
        for queue in self.writable:
            if queue.broker_name == broker_name:
                return queue.endpoint
        return next((endpoint for endpoint, name in self.readable.items() if name == broker_name), None)

    def to_read(self, failing: Iterable[str] = ()) -> list[tuple[str, str]]:
        """Return endpoint and name of each broker to read from: none that is *failing* where another is left."""
        if not self.readable:
            raise Forbidden(self._refusal("read", "read", self.not_readable))
        avoided = {*failing}
        return [broker for broker in self.readable.items() if broker[0] not in avoided] or [*self.readable.items()]

    def take_turn(self) -> int:
        """Return a number that counts up with each read; it begins anywhere."""
        return next(self._turn)

    def _refusal(self, done: str, permission: str, queue_ids: tuple[int, ...]) -> str:
        text = f"no queue of {self.topic} may be {done}; "
        if not queue_ids:
            return f"{text}give the topic {permission} permission"
        each = [*dict.fromkeys(queue_ids)]
        shown = ", ".join(map(str, each[:_SHOWN])) + (", …" if len(each) > _SHOWN else "")
        drained = "end the drain of a broker with resume_broker(BROKER), " if permission == "write" else ""
        return (
            f"{text}closed are the queues {shown}: open them with "
            f'set_queue_access({self.topic!r}, {each[0]}, "open"), {drained}'
            f"or give the topic {permission} permission if it has none"
        )

    @classmethod
    def read(cls, topic: str, queues: Iterable[pb.MessageQueue]) -> "Route":
        """Take it from an answer to QueryRoute; slaves are left out."""
        masters = [queue for queue in queues if queue.broker.id == 0 and queue.broker.endpoints.addresses]
        by_place = sorted(masters, key=lambda queue: (queue.id, queue.broker.name))
        in_order = tuple(
            Queue(queue.id, queue.broker.name, endpoint_of(queue.broker.endpoints))
            for queue in masters
            if queue.permission in _WRITE
        )
        writable = tuple(sorted(in_order, key=lambda queue: (queue.queue_id, queue.broker_name)))
        readable = {
            endpoint_of(queue.broker.endpoints): queue.broker.name for queue in by_place if queue.permission in _READ
        }
        return cls(
            topic,
            writable,
            readable,
            tuple(queue.id for queue in by_place if queue.permission not in _WRITE),
            tuple(queue.id for queue in by_place if queue.permission not in _READ),
            in_order,
            tuple(
                Queue(queue.id, queue.broker.name, endpoint_of(queue.broker.endpoints))
                for queue in masters
                if queue.permission in _READ
            ),
            {queue.broker.name: endpoint_of(queue.broker.endpoints) for queue in masters},
        )


class Routes:
    """The routes of a client; thread-safe."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._routes: dict[str, tuple[Route, float]] = {}
        # When those that failed last are worth another try.
        self._failing: dict[str, float] = {}
        self._given_up: set[str] = set()
        self.on_failed: Callable[[str], object] = lambda _endpoint: None
        """Called with each broker that did not answer."""
        self.on_avoided: Callable[[str, float], object] = lambda _endpoint, _seconds: None
        """Called with it, and the seconds for which it is asked last."""
        self.on_trusted: Callable[[str], object] = lambda _endpoint: None
        """Called with a broker that answers again."""
        self.on_changed: Callable[[Iterable[str]], object] = lambda _endpoints: None
        """Called with the brokers of a route that another one replaced."""

    def known(self, topic: str) -> Route | None:
        """Return the route, however old."""
        entry = self._routes.get(topic)
        return entry and entry[0]

    def fresh(self, topic: str) -> Route | None:
        """Return the route unless it is too old."""
        entry = self._routes.get(topic)
        return entry[0] if entry and self._now() < entry[1] else None

    def remaining(self, topic: str) -> float:
        """Return the seconds for which the route is not too old."""
        entry = self._routes.get(topic)
        return max(0.0, entry[1] - self._now()) if entry else 0.0

    def put(self, topic: str, route: Route) -> Route:
        """Keep what was heard; an equal route goes on where it was, so that turns are kept."""
        with self._lock:
            old = self._routes.get(topic)
            if old and (old[0].in_order, old[0].readable_queues) == (route.in_order, route.readable_queues):
                route, old = old[0], None
            self._routes[topic] = route, self._now() + MAX_AGE
        if old is not None:
            self.on_changed(old[0].endpoints)
        return route

    def has(self, endpoint: str) -> bool:
        """Say whether a broker is in any route."""
        return any(endpoint in route.endpoints for route, _ in list(self._routes.values()))

    def failed(self, endpoint: str) -> None:
        """Note that a broker did not answer: for a while it is asked last."""
        with self._lock:
            self._failing[endpoint] = self._now() + _AVOIDED
        self.on_avoided(endpoint, _AVOIDED)
        self.on_failed(endpoint)

    def answered(self, endpoint: str) -> None:
        """Note that a broker answered."""
        if endpoint in self._failing or endpoint in self._given_up:
            with self._lock:
                self._failing.pop(endpoint, None)
                self._given_up.discard(endpoint)
            self.on_trusted(endpoint)

    def give_up(self, endpoints: Iterable[str]) -> None:
        """Note that a send failed for good because brokers did not answer."""
        with self._lock:
            self._given_up |= self._failing.keys() & set(endpoints)

    def given_up(self) -> set[str]:
        """Return the brokers for which a send failed for good, and which did not answer a moment ago."""
        return self.failing() & self._given_up if self._given_up else set()

    def failing(self) -> set[str]:
        """Return the brokers that did not answer a moment ago."""
        if not self._failing:
            return set()
        with self._lock:
            now = self._now()
            return {endpoint for endpoint, until in self._failing.items() if now < until}

    def answering_first(self, endpoints: Iterable[str]) -> list[str]:
        """Return endpoints with those last that did not answer a moment ago."""
        failing = self.failing()
        return sorted(endpoints, key=lambda endpoint: endpoint in failing)

    def trust(self, topic: str, seconds: float) -> None:
        """Let the route that is kept stand so long: a newer one is not to be had now."""
        with self._lock:
            if topic in self._routes:
                self._routes[topic] = self._routes[topic][0], self._now() + seconds

    def distrust_all(self) -> None:
        """Ask anew for each route at the next occasion; until then the old ones stand."""
        with self._lock:
            now = self._now()
            self._routes = {topic: (route, now) for topic, (route, _) in self._routes.items()}
            endpoints = {endpoint for route, _ in self._routes.values() for endpoint in route.endpoints}
        self.on_changed(endpoints)

    def distrust(self, topic: str) -> None:
        """Ask anew at the next occasion; until then the old route stands."""
        with self._lock:
            if topic in self._routes:
                self._routes[topic] = self._routes[topic][0], self._now()


def endpoint_of(endpoints: pb.Endpoints) -> str:
    """Return the first address as `host:port`."""
    address = endpoints.addresses[0]
    host = f"[{address.host}]" if ":" in address.host else address.host
    return f"{host}:{address.port}"


def endpoints_message(endpoints: Iterable[str]) -> pb.Endpoints:
    """Return addresses as the protocol writes them."""
    addresses = []
    scheme = pb.AddressScheme.IPv4
    for endpoint in endpoints:
        host, _, port = endpoint.rpartition(":")
        host = host.strip("[]")
        if ":" in host:
            scheme = pb.AddressScheme.IPv6
        elif not host.replace(".", "").isdecimal():
            scheme = pb.AddressScheme.DOMAIN_NAME
        addresses.append(pb.Address(host=host, port=int(port)))
    return pb.Endpoints(scheme=scheme, addresses=addresses)
