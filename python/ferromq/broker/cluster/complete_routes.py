"""
Completes a topic's route with the queues of brokers that are away, from earlier answers of name servers.

`route_cache` keeps the result, `routes` answers clients with it.
"""

from collections.abc import Callable

from ferromq.broker.cluster.name_servers import NameServers
from ferromq.broker.cluster.route_cache import KnownRoute
from ferromq.broker.metadata.topics import UNDECIDED, TopicConfig, is_fifo
from ferromq.protocol.broker_removal import GONE
from ferromq.protocol.order_configuration import parts


class CompleteRoutes:
    """Looks up routes, and keeps the queues of brokers that are away."""

    def __init__(self, name_servers: NameServers, own: Callable[[str], TopicConfig | None]) -> None:
        self._name_servers = name_servers
        self._own = own

    def look_up(self, topic: str, before: KnownRoute | None) -> KnownRoute:
        """Return the complete route of a topic. Raises `NameServerFailed` if no authoritative name server answers."""
        identity = self._name_servers.identity
        before = before or KnownRoute()
        own = self._own(topic)
        known = {queue.broker_name: queue for queue in (*(before.route.queues if before.route else ()), *before.away)}
        expected = {*known, *before.unknown}
        if own and not identity.is_slave:
            expected.add(identity.name)
        # Another broker may know that the topic is ordered, or its first message may decide that.
        is_ordered = own is None or own.order or own.message_type in {"FIFO", UNDECIDED}
        found = self._name_servers.look_up(topic, expected, is_ordered=is_ordered)
        there = {queue.broker_name for queue in found.route.queues} if found.route else set()
        grpc = {**before.grpc, **found.grpc}
        # A registered broker without the topic has deleted it.
        away = tuple(
            queue
            for name, queue in sorted(known.items())
            if name != identity.name
            and found.registered is not None
            and name not in found.registered | there
            and grpc.get(name) != GONE
        )
        unknown = frozenset(
            name
            for name, address in grpc.items()
            if address != GONE
            and name not in {identity.name, *known}
            and found.registered is not None
            and name not in found.registered | there
        )
        # The registration of a FIFO topic restores a lost order configuration.
        is_kept = found.order is None and (own is None or is_fifo(own))
        order = before.order if is_kept else found.order
        named = there | {queue.broker_name for queue in away} | parts(order).keys() | unknown
        return KnownRoute(found.route, away, {name: grpc[name] for name in named if name in grpc}, order, unknown)
