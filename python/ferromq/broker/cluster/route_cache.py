"""
A cache of routes from name servers; it keeps serving them while no name server answers.

Threads that answer clients wait only briefly here: the cache asks name servers on its own threads, once per topic at
a time.
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
"""The wait for a new route if an older one is cached."""
_SHORT_SECONDS = 0.05
"""The wait while name servers are silent, for callers without a slot."""
_BUSY_SECONDS = 2.0
"""The wait while name servers answer, for callers without a slot."""
_SILENT_SECONDS = 1.0
"""Name servers that answer nothing for so long are silent."""


@dataclass(frozen=True, slots=True)
class KnownRoute:
    """A topic's route over all brokers, as far as it is known."""

    route: TopicRoute | None = None
    """The name servers' route; None if no registered broker has the topic."""
    away: tuple[QueueData, ...] = ()
    """The queues of brokers that had the topic and are away now."""
    grpc: Mapping[str, str] = field(default_factory=dict)
    """Broker name → gRPC address, including brokers that are away."""
    order: str | None = None
    """The order configuration, if the topic has one."""
    unknown: frozenset[str] = frozenset()
    """Brokers that are away and may have the topic."""

    @property
    def is_empty(self) -> bool:
        """Whether no known broker has the topic."""
        return self.route is None and not self.away and not parts(self.order)


LookUp = Callable[[str, KnownRoute | None], KnownRoute]
"""Looks up a topic at the name servers, given its previous route. Raises `NameServerFailed`."""


class _CachedRoute(NamedTuple):
    known: KnownRoute
    looked_up_at: int


class RouteCache:
    """
    Answers from the cache, else by *look_up*; thread-safe.

    Unknown topics are not cached, so that a topic exists as soon as a name server has it. At most *waiting* callers
    wait up to *patience* seconds, others up to two seconds. While name servers have been silent for *silent* seconds,
    others wait only briefly; after a failure all callers do.
    """

    def __init__(
        self,
        look_up: LookUp,
        now_ms: Callable[[], int],
        *,
        patience: float = 10.0,
        waiting: int = 4,
        silent: float = _SILENT_SECONDS,
    ) -> None:
        self._look_up = look_up
        self._now_ms = now_ms
        self._patience = patience
        self._silent = silent
        # The last answer, or the first lookup after all earlier ones were answered.
        self._answered_at = time.monotonic()
        self._lock = threading.Lock()
        # The oldest first.
        self._kept: dict[str, _CachedRoute] = {}
        self._lookups: dict[str, Future[KnownRoute]] = {}
        self._failure: NameServerFailed | None = None
        self._generation = 0
        self._slots = threading.Semaphore(max(1, waiting))
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="ferromq-routes")

    def route(self, topic: str) -> TopicRoute | None:
        """Return the name servers' route of a topic, at most 30 seconds old while they answer; see `get`."""
        return self.get(topic, FRESH_MS).route

    def get(self, topic: str, max_age_ms: int) -> KnownRoute:
        """
        Return a topic's route, at most so old, or older if no newer one can be had now.

        Raises `NameServerFailed` if no name server answers and nothing is cached.
        """
        with self._lock:
            kept = self._kept.get(topic)
            if kept is not None and self._now_ms() - kept.looked_up_at < max_age_ms:
                return kept.known
            lookup = self._lookup_of(topic, kept)
        try:
            return self._wait(lookup, _RENEWAL_SECONDS if kept else self._patience)
        except NameServerFailed as error:
            if kept is None:
                raise
            _log.debug("route not renewed topic=%s: %s", topic, error)
            return kept.known

    def _wait(self, lookup: "Future[KnownRoute]", seconds: float) -> KnownRoute:
        has_slot = self._failure is None and self._slots.acquire(blocking=False)
        give_up = time.monotonic() + (seconds if has_slot else min(seconds, _BUSY_SECONDS))
        try:
            while True:
                left = give_up - time.monotonic()
                try:
                    return lookup.result(left if has_slot else min(left, self._until_silent() + _SHORT_SECONDS))
                except FutureTimeout:
                    if time.monotonic() >= give_up or not self._until_silent():
                        raise NameServerFailed(str(self._failure or "no name server has answered yet")) from None
        finally:
            if has_slot:
                self._slots.release()

    def _until_silent(self) -> float:
        """Return the seconds until name servers count as silent; 0 if they do."""
        if self._failure is not None:
            return 0.0
        return max(self._answered_at + self._silent - time.monotonic(), 0.0)

    def _lookup_of(self, topic: str, kept: _CachedRoute | None) -> "Future[KnownRoute]":
        """Return the running lookup of a topic, or start one."""
        lookup = self._lookups.get(topic)
        if lookup is None:
            if not self._lookups:
                self._answered_at = time.monotonic()
            lookup = self._lookups[topic] = Future()
            if self._failure is not None and len(self._lookups) > _THREADS:
                # The running lookups will notice when name servers are back.
                del self._lookups[topic]
                lookup.set_exception(NameServerFailed(str(self._failure)))
                return lookup
            try:
                self._threads.submit(self._run_lookup, topic, kept, lookup)
            except RuntimeError:
                del self._lookups[topic]
                lookup.set_exception(NameServerFailed("the broker stops"))
        return lookup

    def _run_lookup(self, topic: str, kept: _CachedRoute | None, lookup: "Future[KnownRoute]") -> None:
        generation, now = self._generation, self._now_ms()
        try:
            known = self._look_up(topic, kept.known if kept else None)
        except BaseException as error:  # noqa: BLE001 (the waiting callers raise it)
            with self._lock:
                self._finish(topic, lookup)
                if isinstance(error, NameServerFailed):
                    self._failure = error
            lookup.set_exception(error)
            return
        with self._lock:
            self._finish(topic, lookup)
            self._failure = None
            self._answered_at = time.monotonic()
            if generation == self._generation:
                self._keep(topic, None if known.is_empty else _CachedRoute(known, now))
        lookup.set_result(known)

    def _finish(self, topic: str, lookup: "Future[KnownRoute]") -> None:
        if self._lookups.get(topic) is lookup:
            del self._lookups[topic]

    def dropping(self, changed: Callable[[Sequence[str], C], None]) -> Callable[[Sequence[str], C], None]:
        """Return *changed* extended by `forget` for the changed topics, once it returns."""

        def change(topics: Sequence[str], content: C) -> None:
            try:
                changed(topics, content)
            finally:
                self.forget(topics)

        return change

    def forget(self, topics: Iterable[str]) -> None:
        """Look these topics up again; running lookups do not count, cached routes are served meanwhile."""
        with self._lock:
            self._generation += 1
            for topic in topics:
                # Later callers wait for a lookup that begins after the change.
                self._lookups.pop(topic, None)
                kept = self._kept.get(topic)
                if kept is not None:
                    self._kept[topic] = kept._replace(looked_up_at=_NEVER)

    def close(self) -> None:
        """Start no more lookups."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        # Break the reference cycle with the tables, so that closing frees the broker at once.
        self._look_up = _closed

    def _keep(self, topic: str, kept: _CachedRoute | None) -> None:
        self._kept.pop(topic, None)
        if kept is not None:
            self._kept[topic] = kept
            if len(self._kept) > _LIMIT:
                del self._kept[next(iter(self._kept))]


def _closed(topic: str, _before: KnownRoute | None) -> KnownRoute:
    raise NameServerFailed(f"the broker stops, the route of {topic} is not looked up")
