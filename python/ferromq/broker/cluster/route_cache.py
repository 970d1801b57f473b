"""
Routes a broker has asked its name servers for, kept for a while, and for as long as no name server answers.

A thread of the pool that answers clients never waits long here: name servers are asked on threads of this cache, once
a topic at a time. What is made of an answer is decided by whoever it asks (`whole_routes`).
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from ferromq.broker.cluster.name_servers import NameServerFailed
from ferromq.protocol.order_configuration import parts
from ferromq.protocol.route import QueueData, TopicRoute

_log = logging.getLogger("ferromq.broker")

C = TypeVar("C")

FRESH_MS = 30_000
_NEVER = -1 << 62
_LIMIT = 10_000
_THREADS = 4
_RENEWAL_SECONDS = 0.5
"""How long a new answer is waited for where an older one is there."""
_SHORT_SECONDS = 0.05
"""How long an answer is waited for where name servers are silent, unless few wait."""
_BUSY_SECONDS = 2.0
"""How long an answer is waited for where name servers answer, but many wait."""
_SILENT_SECONDS = 1.0
"""Name servers that leave all questions open for so long are silent."""


@dataclass(frozen=True, slots=True)
class KnownRoute:
    """What is known of a topic beyond this broker."""

    route: TopicRoute | None = None
    """What the name servers say; None where no broker that is registered has the topic."""
    away: tuple[QueueData, ...] = ()
    """The queues on brokers that had the topic and are not registered now."""
    grpc: Mapping[str, str] = field(default_factory=dict)
    """Broker name → where it serves gRPC, also of those that are away."""
    order: str | None = None
    """The order configuration of a topic whose messages are in order."""
    unknown: frozenset[str] = frozenset()
    """Brokers that are away, of which it is not known whether they have the topic."""

    @property
    def is_empty(self) -> bool:
        """Says whether no broker has the topic, as far as it is known."""
        return self.route is None and not self.away and not parts(self.order)


Ask = Callable[[str, KnownRoute | None], KnownRoute]
"""Asks the name servers for a topic; it is given what was known before. Raises `NameServerFailed`."""


class _Kept(NamedTuple):
    seen: KnownRoute
    asked_at: int


class RouteCache:
    """
    Answers from what it keeps, else by *ask*; thread-safe.

    What is unknown is not kept, so that a topic is there as soon as a name server has it. At most *waiting* callers
    wait up to *patience* seconds, all others up to two. Once name servers have been silent for *silent* seconds these
    wait only briefly; once name servers have failed, all callers do.
    """

    def __init__(
        self,
        ask: Ask,
        now_ms: Callable[[], int],
        *,
        patience: float = 10.0,
        waiting: int = 4,
        silent: float = _SILENT_SECONDS,
    ) -> None:
        self._ask = ask
        self._now_ms = now_ms
        self._patience = patience
        self._silent = silent
        # When name servers last answered, or were asked after they had answered everything.
        self._heard_at = time.monotonic()
        self._lock = threading.Lock()
        # The one asked longest ago first.
        self._kept: dict[str, _Kept] = {}
        self._flights: dict[str, Future[KnownRoute]] = {}
        self._failure: NameServerFailed | None = None
        self._generation = 0
        self._places = threading.Semaphore(max(1, waiting))
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="ferromq-routes")

    def route(self, topic: str) -> TopicRoute | None:
        """Return what the name servers say of a topic, at most 30 seconds old where they answer; see `look`."""
        return self.look(topic, FRESH_MS).route

    def look(self, topic: str, max_age_ms: int) -> KnownRoute:
        """
        Return what is known of a topic, at most so old, or older where a newer answer is not to be had now.

        Raises `NameServerFailed` where no name server answers and nothing is kept.
        """
        with self._lock:
            kept = self._kept.get(topic)
            if kept is not None and self._now_ms() - kept.asked_at < max_age_ms:
                return kept.seen
            flight = self._flight(topic, kept)
        try:
            return self._wait(flight, _RENEWAL_SECONDS if kept else self._patience)
        except NameServerFailed as error:
            if kept is None:
                raise
            _log.debug("route not renewed topic=%s: %s", topic, error)
            return kept.seen

    def _wait(self, flight: "Future[KnownRoute]", seconds: float) -> KnownRoute:
        has_place = self._failure is None and self._places.acquire(blocking=False)
        give_up = time.monotonic() + (seconds if has_place else min(seconds, _BUSY_SECONDS))
        try:
            while True:
                left = give_up - time.monotonic()
                try:
                    return flight.result(left if has_place else min(left, self._until_silent() + _SHORT_SECONDS))
                except FutureTimeout:
                    if time.monotonic() >= give_up or not self._until_silent():
                        raise NameServerFailed(str(self._failure or "no name server has answered yet")) from None
        finally:
            if has_place:
                self._places.release()

    def _until_silent(self) -> float:
        """Return in how many seconds name servers are silent if they answer nothing till then; 0: they are."""
        if self._failure is not None:
            return 0.0
        return max(self._heard_at + self._silent - time.monotonic(), 0.0)

    def _flight(self, topic: str, kept: _Kept | None) -> "Future[KnownRoute]":
        """Return the question for a topic that is under way, begun now where none is."""
        flight = self._flights.get(topic)
        if flight is None:
            if not self._flights:
                self._heard_at = time.monotonic()
            flight = self._flights[topic] = Future()
            if self._failure is not None and len(self._flights) > _THREADS:
                # Those under way will tell that name servers are back.
                del self._flights[topic]
                flight.set_exception(NameServerFailed(str(self._failure)))
                return flight
            try:
                self._threads.submit(self._fly, topic, kept, flight)
            except RuntimeError:
                del self._flights[topic]
                flight.set_exception(NameServerFailed("the broker stops"))
        return flight

    def _fly(self, topic: str, kept: _Kept | None, flight: "Future[KnownRoute]") -> None:
        generation, now = self._generation, self._now_ms()
        try:
            seen = self._ask(topic, kept.seen if kept else None)
        except BaseException as error:  # noqa: BLE001 (whatever it is, it is for those who wait)
            with self._lock:
                self._landed(topic, flight)
                if isinstance(error, NameServerFailed):
                    self._failure = error
            flight.set_exception(error)
            return
        with self._lock:
            self._landed(topic, flight)
            self._failure = None
            self._heard_at = time.monotonic()
            if generation == self._generation:
                self._keep(topic, None if seen.is_empty else _Kept(seen, now))
        flight.set_result(seen)

    def _landed(self, topic: str, flight: "Future[KnownRoute]") -> None:
        if self._flights.get(topic) is flight:
            del self._flights[topic]

    def dropping(self, changed: Callable[[Sequence[str], C], None]) -> Callable[[Sequence[str], C], None]:
        """Return *changed*, which hears of topics that changed, with their routes to be asked for once it returns."""

        def change(topics: Sequence[str], content: C) -> None:
            try:
                changed(topics, content)
            finally:
                self.forget(topics)

        return change

    def forget(self, topics: Iterable[str]) -> None:
        """Ask for these topics again; what is being asked just now does not count, what is kept serves meanwhile."""
        with self._lock:
            self._generation += 1
            for topic in topics:
                # Whoever comes now waits for an answer that is not from before.
                self._flights.pop(topic, None)
                kept = self._kept.get(topic)
                if kept is not None:
                    self._kept[topic] = kept._replace(asked_at=_NEVER)

    def close(self) -> None:
        """Ask no more."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        # It knows the tables, which tell this cache of changes: nothing is left for the garbage collector.
        self._ask = _ended

    def _keep(self, topic: str, kept: _Kept | None) -> None:
        self._kept.pop(topic, None)
        if kept is not None:
            self._kept[topic] = kept
            if len(self._kept) > _LIMIT:
                del self._kept[next(iter(self._kept))]


def _ended(topic: str, _before: KnownRoute | None) -> KnownRoute:
    raise NameServerFailed(f"the broker stops, the route of {topic} is not asked for")
