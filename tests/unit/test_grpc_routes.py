"""Routes for gRPC clients, from name servers and own tables that change at different moments."""

from types import SimpleNamespace
from typing import Any

from ferromq._proto import messages as pb
from ferromq.broker.cluster.identity import BrokerIdentity
from ferromq.broker.cluster.route_cache import KnownRoute, RouteCache
from ferromq.broker.cluster.routes import Routes
from ferromq.broker.metadata.topics import TopicConfig
from ferromq.protocol.route import MASTER, READ_WRITE, BrokerData, QueueData, TopicRoute

ADDRESS, ENDPOINT = "127.0.0.1:10911", "127.0.0.1:8081"


def test_a_topic_that_is_made_while_its_route_is_asked_for_is_found() -> None:
    """Another request created it here a moment ago, and the name server has it."""
    topics: dict[str, TopicConfig] = {}
    made = TopicRoute((QueueData("a", 4, 4, READ_WRITE),), (BrokerData("c", "a", {MASTER: ADDRESS}),), {})

    def ask(name: str, _before: KnownRoute | None) -> KnownRoute:
        topics[name] = TopicConfig(name, 4, 4)
        return KnownRoute(made)

    identity = BrokerIdentity("a", "c", ADDRESS, ENDPOINT)
    table: Any = SimpleNamespace(get=topics.get, is_system=lambda _name: False)
    store: Any = SimpleNamespace(queue_access=lambda _topic, _queue_id: "open")
    name_servers: Any = SimpleNamespace(identity=identity)
    request: Any = SimpleNamespace(peer="test", fields={})
    cache = RouteCache(ask, lambda: 0)
    routes = Routes(identity, store, table, SimpleNamespace(), name_servers, cache=cache)  # type: ignore[arg-type]
    answer = routes.query_route(pb.QueryRouteRequest(topic=pb.Resource(name="t")), request)
    assert [queue.id for queue in answer.message_queues] == [0, 1, 2, 3]
