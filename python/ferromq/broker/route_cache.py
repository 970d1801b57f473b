"""
Routes a broker has asked its name servers for, kept for a while: as long as clients keep theirs.

Members of a group ask again and again for the same topics, a thousand of them at once where one joins.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeVar

from ferromq.broker.name_servers import NameServerFailed
from ferromq.route import TopicRoute

_log = logging.getLogger("ferromq.broker")

C = TypeVar("C")

FRESH_MS = 30_000
_LIMIT = 10_000


class _Kept(NamedTuple):
    route: TopicRoute
    asked_at: int


class RouteCache:
    """
    Answers from what it keeps, else by *ask*, which returns None for an unknown topic; thread-safe.

    What is unknown is not kept, so that a topic is there as soon as a name server has it.
    """

    def __init__(self, ask: Callable[[str], TopicRoute | None], now_ms: Callable[[], int]) -> None:
        self._ask = ask
        self._now_ms = now_ms
        self._lock = threading.Lock()
        # The one asked longest ago first.
        self._kept: dict[str, _Kept] = {}
        self._asking: set[str] = set()
        self._generation = 0

    def route(self, topic: str) -> TopicRoute | None:
        """
        Return a topic's route, at most 30 seconds old, or older where a newer one is not to be had now.

        Raises `NameServerFailed` where nobody answers and none is kept.
        """
        now = self._now_ms()
        with self._lock:
            kept, generation = self._kept.get(topic), self._generation
            # One asks, the others do not wait for it.
            if kept is not None and (now - kept.asked_at < FRESH_MS or topic in self._asking):
                return kept.route
            self._asking.add(topic)
        try:
            route = self._ask(topic)
        except NameServerFailed as error:
            if kept is None:
                raise
            _log.debug("route not renewed topic=%s: %s", topic, error)
            return kept.route
        finally:
            with self._lock:
                self._asking.discard(topic)
        with self._lock:
            if generation == self._generation:
                self._keep(topic, None if route is None else _Kept(route, now))
        return route

    def dropping(self, changed: Callable[[Sequence[str], C], None]) -> Callable[[Sequence[str], C], None]:
        """Return *changed*, which hears of topics that changed, with their routes forgotten once it returns."""

        def change(topics: Sequence[str], content: C) -> None:
            try:
                changed(topics, content)
            finally:
                self.forget(topics)

        return change

    def forget(self, topics: Iterable[str]) -> None:
        """Ask for these topics again; what is being asked just now is not kept."""
        with self._lock:
            self._generation += 1
            for topic in topics:
                self._kept.pop(topic, None)

    def _keep(self, topic: str, kept: _Kept | None) -> None:
        self._kept.pop(topic, None)
        if kept is not None:
            self._kept[topic] = kept
            if len(self._kept) > _LIMIT:
                del self._kept[next(iter(self._kept))]
