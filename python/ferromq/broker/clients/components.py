"""
Makes the components for live clients around one `ClientTable`.

`rpc` lists which request each one answers.
"""

from collections.abc import Callable
from datetime import timedelta

from ferromq._ferromq import Server, Store
from ferromq.broker.clients.assignments import Assignments
from ferromq.broker.clients.client_calls import ClientCalls
from ferromq.broker.clients.connection_queries import ConnectionQueries
from ferromq.broker.clients.grpc_calls import GrpcCalls
from ferromq.broker.clients.grpc_sessions import GrpcSessions
from ferromq.broker.clients.heartbeats import Heartbeats
from ferromq.broker.clients.memory import ClientMemory
from ferromq.broker.clients.queue_locks import QueueLockRequests, QueueLocks
from ferromq.broker.clients.rebalance import MemberList, Rebalance
from ferromq.broker.clients.replies import Replies
from ferromq.broker.clients.table import ClientTable
from ferromq.broker.cluster.identity import BrokerIdentity
from ferromq.broker.cluster.route_cache import RouteCache
from ferromq.broker.metadata.groups import GroupTable
from ferromq.broker.metadata.request_modes import RequestModes
from ferromq.broker.metadata.topics import TopicTable
from ferromq.config.broker import BrokerConfig

_MILLISECOND = timedelta(milliseconds=1)


class ClientComponents:
    """The components for live clients; starts, expires and stops them."""

    def __init__(
        self,
        config: Callable[[], BrokerConfig],
        identity: BrokerIdentity,
        server: Server,
        *,
        store: Store,
        topics: TopicTable,
        groups: GroupTable,
        modes: RequestModes,
        routes: RouteCache | None,
        now_ms: Callable[[], int],
    ) -> None:
        self._server = server
        reads = config().reads
        self._locks = QueueLocks(max_bytes=reads.lock_memory, on_change=server.put_locked)
        self.rebalance = Rebalance(server, groups, notify=lambda: config().reads.notify_consumers)
        memory = ClientMemory(of_connection=reads.client_memory_by_connection, of_all=reads.memory_of_clients)
        self.table = ClientTable(reads.client_lease // _MILLISECOND, self.rebalance.changed, memory)
        table = self.table
        self.assignments = Assignments(identity.name, modes, table=table, topics=topics, groups=groups, routes=routes)
        # Half of the threads stay free for other requests.
        limit = max(1, config().handler_threads // 2)
        grpc_calls = GrpcCalls(server.send_telemetry)
        self.calls = ClientCalls(
            server,
            grpc_calls,
            identity.name,
            table=table,
            store=store,
            topics=topics,
            groups=groups,
            limit=limit,
            is_guarded=config().access.authorization_enabled,
        )
        self.connections = ConnectionQueries(table, store, identity.address)
        self.grpc = GrpcSessions(
            server,
            table,
            groups,
            grpc_calls,
            topics=topics,
            max_body_size=store.options()["max_message_size"],
            validates=lambda: config().sends.check_types != "none",
            now_ms=now_ms,
        )
        groups.add_listener(self.grpc.group_changed)
        self._groups = groups
        self.heartbeats = Heartbeats(table, groups, topics, now_ms=now_ms, takes_sql=lambda: config().sends.sql_filters)
        self.locking = QueueLockRequests(self._locks, now_ms=now_ms)
        self.members = MemberList(table)
        self.replies = Replies(
            server,
            identity.address,
            table=table,
            store=store,
            topics=topics,
            now_ms=now_ms,
            keep=lambda: config().sends.store_replies,
        )

    def start(self) -> None:
        """Begin to notify members of changes."""
        self.rebalance.start(self.table)

    def stop(self) -> None:
        """Stop notifying members."""
        self.rebalance.stop()
        # The group table and the sessions refer to each other: unlinked, both go, and the store's files close.
        self._groups.remove_listener(self.grpc.group_changed)

    def expire(self, now: int) -> None:
        """Expire the leases and queue locks that were not renewed."""
        for client in self.table.expire(now):
            # The client may only be slow; on a new connection it sends its heartbeat again.
            self._server.close_connection(client.connection)
        self._locks.expire(now)
