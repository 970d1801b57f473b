"""
Makes the components of the control plane, which answer cold requests.

`rpc` lists which request each one answers; `controller` starts and stops them.
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from ferromq._ferromq import Server, Store
from ferromq.access.own_machine import OwnMachine
from ferromq.access.requests import AccessRequests
from ferromq.access.users import UserTable
from ferromq.broker.administration.catalog import Catalog
from ferromq.broker.administration.grpc_offsets import GrpcOffsets
from ferromq.broker.administration.offset_resets import OffsetResets
from ferromq.broker.administration.offsets import OffsetRequests
from ferromq.broker.administration.settings import Settings
from ferromq.broker.administration.settings_requests import SettingsRequests
from ferromq.broker.administration.state_requests import StateRequests
from ferromq.broker.administration.topics_and_groups import TopicAndGroupChanges
from ferromq.broker.clients.components import ClientComponents
from ferromq.broker.cluster.description import Description
from ferromq.broker.cluster.drain import Drain
from ferromq.broker.cluster.name_servers import NameServers
from ferromq.broker.cluster.role import Role
from ferromq.broker.cluster.route_cache import RouteCache
from ferromq.broker.cluster.routes import Routes
from ferromq.broker.messages.message_queries import MessageQueries
from ferromq.broker.messages.recalls import Recalls
from ferromq.broker.messages.write_layouts import WriteLayouts, without_steps
from ferromq.broker.metadata.groups import GroupTable
from ferromq.broker.metadata.request_modes import RequestModes
from ferromq.broker.metadata.topics import TopicTable
from ferromq.broker.reports.consume_progress import ConsumeProgress
from ferromq.broker.reports.runtime_info import RuntimeInfo
from ferromq.broker.reports.statistics import Statistics
from ferromq.broker.transactions.components import TransactionComponents
from ferromq.process.clock import Clock

_MILLISECOND = timedelta(milliseconds=1)
# The store's defaults for writers that number their messages.
_DEDUP_WINDOW, _DEDUP_WRITERS = timedelta(days=1), 500_000
_LAYOUT_WINDOWS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependencies:
    """What the components need: options, store, server, tables, and the cluster around the broker."""

    settings: Settings
    clock: Clock
    store: Store
    server: Server
    name_servers: NameServers
    role: Role
    drain: Drain
    stop: Callable[[], object] | None
    """Makes the process stop the broker; None in a program with a broker inside."""
    topics: TopicTable
    groups: GroupTable
    modes: RequestModes
    users: UserTable | None
    """None while access control is off."""
    routes: RouteCache | None
    """None for a broker without name servers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Components:
    """The components of the control plane."""

    access: AccessRequests
    catalog: Catalog
    clients: ClientComponents
    description: Description
    grpc_offsets: GrpcOffsets
    layouts: WriteLayouts
    messages: MessageQueries
    offset_resets: OffsetResets
    offsets: OffsetRequests
    progress: ConsumeProgress
    recalls: Recalls
    routes: Routes
    runtime: RuntimeInfo
    settings: SettingsRequests
    own_machine: OwnMachine
    states: StateRequests
    statistics: Statistics
    topics_and_groups: TopicAndGroupChanges
    transactions: TransactionComponents


def make_components(dependencies: Dependencies, started: ExitStack) -> Components:
    """Make all components, closed with *started*. Raises `CorruptStore` if a file of theirs cannot be read."""
    settings, store, topics, groups = (
        dependencies.settings,
        dependencies.store,
        dependencies.topics,
        dependencies.groups,
    )
    identity, now_ms = dependencies.name_servers.identity, dependencies.clock.now_ms
    drain, clients = dependencies.drain, _make_clients(dependencies)
    drain.tell_producers = clients.grpc.sends_changed
    subscriptions = clients.connections.subscriptions
    transactions = TransactionComponents(
        lambda: settings.config, dependencies.server, store, clients=clients.table, clock=dependencies.clock
    )
    statistics = Statistics(dependencies.server.traffic, now_ms, settings.config.cluster)
    layouts = _open_layouts(dependencies)
    started.callback(layouts.close)
    return Components(
        access=AccessRequests(dependencies.users, settings.config.access),
        catalog=Catalog(topics, groups),
        clients=clients,
        description=Description(dependencies.name_servers, settings.config.namesrv, _dedup_window_ms(settings)),
        grpc_offsets=GrpcOffsets(store, topics, groups, dependencies.role.reads_refused),
        layouts=layouts,
        messages=MessageQueries(store, is_guarded=settings.config.access.authorization_enabled),
        offset_resets=OffsetResets(
            dependencies.server, identity.name, table=clients.table, store=store, topics=topics, groups=groups
        ),
        offsets=OffsetRequests(
            store,
            topics,
            now_ms=now_ms,
            subscribed=subscriptions,
            near_span=lambda: settings.config.reads.near_span,
        ),
        progress=ConsumeProgress(
            identity, store, topics, groups, statistics=statistics, now_ms=now_ms, subscriptions=subscriptions
        ),
        recalls=Recalls(
            store,
            topics,
            identity.name,
            is_slave=lambda: settings.config.membership.is_slave,
            is_allowed=lambda: settings.config.sends.recall,
            now_ms=now_ms,
        ),
        routes=Routes(identity, store, topics, groups, dependencies.name_servers, cache=dependencies.routes),
        runtime=RuntimeInfo(
            store,
            statistics,
            Path(settings.config.store),
            transactions=transactions.counts,
            now_ms=now_ms,
            state=lambda: drain.state,
        ),
        settings=SettingsRequests(settings, store, identity.address),
        own_machine=OwnMachine(
            dependencies.users, settings.config.access, lambda: settings.config.membership.remote_stop
        ),
        states=StateRequests(drain, dependencies.stop),
        statistics=statistics,
        topics_and_groups=TopicAndGroupChanges(store, topics, groups, deleted=layouts.forget),
        transactions=transactions,
    )


def _make_clients(dependencies: Dependencies) -> ClientComponents:
    settings = dependencies.settings
    return ClientComponents(
        lambda: settings.config,
        dependencies.name_servers.identity,
        dependencies.server,
        store=dependencies.store,
        topics=dependencies.topics,
        groups=dependencies.groups,
        modes=dependencies.modes,
        routes=dependencies.routes,
        now_ms=dependencies.clock.now_ms,
    )


def _dedup_window_ms(settings: Settings) -> int:
    return (settings.config.storage.dedup_window or _DEDUP_WINDOW) // _MILLISECOND


def _open_layouts(dependencies: Dependencies) -> WriteLayouts:
    storage, topics = dependencies.settings.config.storage, dependencies.topics
    # A task may write for a whole window after it asked, so a retry may ask within two windows of the first request.
    window_ms = _LAYOUT_WINDOWS * _dedup_window_ms(dependencies.settings)
    return WriteLayouts(
        Path(dependencies.settings.config.store) / "ferromq" / "layouts.json",
        without_steps(dependencies.clock),
        window_ms=window_ms,
        limit=storage.dedup_writers or _DEDUP_WRITERS,
        is_topic=lambda topic: topics.get(topic) is not None,
        reserve=dependencies.store.options()["disk_reserve"] or 0,
    )
