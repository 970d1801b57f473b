"""Routes are fetched periodically; with a virtual clock."""

import queue
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from ferromq.broker.cluster.name_servers import NameServerFailed
from ferromq.broker.cluster.route_cache import FRESH_MS, KnownRoute, RouteCache
from ferromq.protocol.route import QueueData, TopicRoute


class NameServer:
    """Answers with one route a topic, and counts."""

    def __init__(self) -> None:
        self.now, self.asked, self.is_there = 0, list[str](), True
        self.routes = {"t": route(4)}
        self.cache = RouteCache(self.ask, lambda: self.now)

    def ask(self, topic: str, _before: KnownRoute | None) -> KnownRoute:
        """Answer, if it exists."""
        self.asked.append(topic)
        if not self.is_there:
            raise NameServerFailed("no name server answers")
        return KnownRoute(self.routes.get(topic))


def route(queues: int) -> TopicRoute:
    """Return one of so many queues."""
    return TopicRoute((QueueData("broker-a", queues, queues),), ())


@pytest.fixture
def server() -> NameServer:
    """Return one that is there."""
    return NameServer()


def test_a_route_is_asked_for_once_in_thirty_seconds(server: NameServer) -> None:
    """For any number of callers; then it is the new one."""
    assert [server.cache.route("t") for _ in range(100)] == [route(4)] * 100
    server.routes["t"] = route(8)
    server.now = FRESH_MS - 1
    assert server.cache.route("t") == route(4)
    server.now = FRESH_MS
    assert server.cache.route("t") == route(8)
    assert server.asked == ["t", "t"]


def test_an_unknown_topic_is_asked_for_each_time(server: NameServer) -> None:
    """It exists at once after its creation, and is gone once its deletion is known."""
    assert server.cache.route("u") is None
    server.routes["u"] = route(1)
    assert server.cache.route("u") == route(1)
    del server.routes["u"]
    server.now = FRESH_MS
    assert [server.cache.route("u") for _ in range(2)] == [None, None]
    server.is_there = False
    with pytest.raises(NameServerFailed):
        server.cache.route("u")


def test_an_old_route_serves_while_no_name_server_answers(server: NameServer) -> None:
    """And the new one as soon as one answers; without one the failure is raised."""
    assert server.cache.route("t") == route(4)
    server.is_there, server.now = False, 10 * FRESH_MS
    assert server.cache.route("t") == route(4)
    with pytest.raises(NameServerFailed, match="no name server answers"):
        server.cache.route("u")
    server.is_there, server.routes["t"] = True, route(8)
    assert server.cache.route("t") == route(8)


def test_a_changed_topic_of_this_broker_is_fetched_again(server: NameServer) -> None:
    """Also if an answer in flight may be from before the change."""
    server.cache.route("t")
    server.routes["t"] = route(8)
    server.cache.forget(["t"])
    assert server.cache.route("t") == route(8)
    server.now = FRESH_MS
    before, server.routes["t"] = route(8), route(16)

    def slow(topic: str, _before: KnownRoute | None) -> KnownRoute:
        cache.forget([topic])
        return KnownRoute(before)

    cache = RouteCache(slow, lambda: server.now)
    assert cache.route("t") == before
    assert cache.route("t") == before
    server.cache.forget(["t"])
    assert server.cache.route("t") == route(16)


def test_a_change_renews_the_route(server: NameServer) -> None:
    """After the registration, even if that failed."""
    told = []

    def register(topics: Sequence[str], queues: int) -> None:
        assert server.cache.route("t") == route(4)
        told.append((topics, queues))
        server.routes["t"] = route(queues)
        raise NameServerFailed("too slow")

    server.cache.route("t")
    with pytest.raises(NameServerFailed):
        server.cache.dropping(register)(["t"], 8)
    assert told == [(["t"], 8)]
    assert server.cache.route("t") == route(8)


def test_callers_share_one_question(server: NameServer) -> None:
    """Of one topic: a slow name server keeps one question waiting, not a thousand."""
    gate, asked = threading.Event(), list[str]()

    def slow(topic: str, _before: KnownRoute | None) -> KnownRoute:
        asked.append(topic)
        assert gate.wait(60)
        return KnownRoute(route(8))

    cache = RouteCache(slow, lambda: server.now, waiting=4)
    seen: list[TopicRoute | None] = []
    callers = [threading.Thread(target=lambda: seen.append(cache.route("t"))) for _ in range(4)]
    for caller in callers:
        caller.start()
    gate.set()
    for caller in callers:
        caller.join(60)
    assert (seen, asked) == ([route(8)] * 4, ["t"])


def test_a_name_server_that_hangs_keeps_few_callers_waiting(server: NameServer) -> None:
    """The others fail at once, or get the cached route: their threads also answer heartbeats."""
    gate, told = threading.Event(), queue.Queue[str]()

    def hang(_topic: str, _before: KnownRoute | None) -> KnownRoute:
        assert gate.wait(60)
        raise NameServerFailed("no name server answers")

    cache = RouteCache(hang, lambda: server.now, patience=60, waiting=1, silent=0.01)

    def wait() -> None:
        with pytest.raises(NameServerFailed) as error:
            cache.route("t")
        told.put(str(error.value))

    callers = [threading.Thread(target=wait) for _ in range(5)]
    for caller in callers:
        caller.start()
    assert [told.get(timeout=60) for _ in range(4)] == ["no name server has answered yet"] * 4
    gate.set()
    assert told.get(timeout=60) == "no name server answers"
    for caller in callers:
        caller.join(60)


def test_callers_wait_for_name_servers_that_are_busy(server: NameServer) -> None:
    """Many clients that start at the same time, each with a topic of its own, all get their routes."""
    begun = threading.Semaphore(0)
    gate = threading.Event()

    def answer_late(_topic: str, _before: KnownRoute | None) -> KnownRoute:
        begun.release()
        assert gate.wait(60)
        return KnownRoute(server.routes["t"])

    cache = RouteCache(answer_late, lambda: server.now, patience=60, waiting=1, silent=60)
    with ThreadPoolExecutor(10) as callers:
        routes = [callers.submit(cache.route, f"t{number}") for number in range(10)]
        assert begun.acquire(timeout=60)
        # Longer than callers wait for name servers that are silent.
        threading.Event().wait(0.2)
        gate.set()
        assert [found.result(60) for found in routes] == [route(4)] * 10


def test_what_is_kept_survives_a_change_that_cannot_be_asked_for(server: NameServer) -> None:
    """A topic is changed here while no name server answers: the queues of the other brokers stay known."""
    assert server.cache.route("t") == route(4)
    server.is_there = False
    server.cache.forget(["t"])
    assert server.cache.route("t") == route(4)
    server.is_there, server.routes["t"] = True, route(8)
    assert server.cache.route("t") == route(8)
