"""
The metrics of a name server, made when they are read. RocketMQ's has none.

`docs/metrics.md` lists all names.
"""

from collections.abc import Iterator

from prometheus_client import Metric

from ferromq._ferromq import Server
from ferromq.monitoring.metrics import Families
from ferromq.namesrv.route_info import RouteInfoManager


class NameServerMetrics:
    """Makes the metrics of a name server at *address*; thread-safe."""

    def __init__(self, address: str, server: Server, routes: RouteInfoManager) -> None:
        self._server = server
        self._routes = routes
        self._families = Families({"node_type": "namesrv", "node_id": address})

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        for name, text, count in (
            ("ferromq_registered_brokers", "Brokers with a valid registration", len(self._routes.broker_live_table)),
            ("ferromq_registered_clusters", "Clusters of registered brokers", len(self._routes.cluster_addr_table)),
            ("ferromq_routed_topics", "Topics with a route", len(self._routes.topic_queue_table)),
        ):
            yield self._families.gauge(name, text, [((), count)])
        yield from self._families.server(self._server.stats())
        yield from self._families.latencies(self._server.latencies(), self._server.LATENCY_BOUNDS)
