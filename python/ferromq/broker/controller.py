"""
The life cycle of a broker: opens the store and the tables, starts the servers, registers; and stops it all in reverse.

It decides the order alone. `components` makes what answers requests, `rpc` lists the requests.
"""

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ferromq._ferromq import RecoveryProgress, RemotingClient, Server
from ferromq.access.exposure import warn_of_open_listeners
from ferromq.access.opening import FILE, open_users
from ferromq.broker import rpc
from ferromq.broker.administration.settings import Settings
from ferromq.broker.cluster.addresses import fast_address, identify, reserved, unreachable
from ferromq.broker.cluster.complete_routes import CompleteRoutes
from ferromq.broker.cluster.drain import Drain, Sends
from ferromq.broker.cluster.identity import BrokerIdentity
from ferromq.broker.cluster.name_servers import NameServers
from ferromq.broker.cluster.registrar import Registrar, registration_period
from ferromq.broker.cluster.role import Role
from ferromq.broker.cluster.route_cache import RouteCache
from ferromq.broker.components import Components, Dependencies, make_components
from ferromq.broker.hot_path import HotPath
from ferromq.broker.metadata.first_use import FirstUse
from ferromq.broker.metadata.groups import GroupTable
from ferromq.broker.metadata.request_modes import RequestModes
from ferromq.broker.metadata.topics import RegistrationWait, TopicTable, is_ordered
from ferromq.broker.reports.readiness import readiness
from ferromq.broker.reports.statistics import SAMPLE_MS
from ferromq.broker.store_setup import ArchiveHook, load_archive_hook, log_recovery, open_store, set_archive_hook
from ferromq.config.broker import BrokerConfig
from ferromq.config.compat import CompatConfig
from ferromq.config.consume import ConsumeConfig
from ferromq.config.listener import RELOAD_INTERVAL, naming
from ferromq.config.monitoring import BROKER_PORT, OFF
from ferromq.config.store import StoreConfig
from ferromq.errors import ConfigError, TopicNotFound
from ferromq.process.clock import Clock, Timer
from ferromq.process.fork import Owner
from ferromq.terminal.objects import Shown

if TYPE_CHECKING:
    from ferromq.monitoring.endpoint import Endpoint
    from ferromq.monitoring.otlp import Source

_log = logging.getLogger("ferromq.broker")

_CLIENT_SCAN = timedelta(seconds=10)
_JOURNAL_MERGE = timedelta(seconds=10)
_SAMPLE = timedelta(milliseconds=SAMPLE_MS)
_STOP_SECONDS = 0.5
# The store's values of the options that None switches off.
_OFF: Mapping[str, Any] = {
    "retention_age": None,
    "retention_total_bytes": None,
    "retention_disk_usage": None,
    "retention_age_by_topic": {},
    "retention_hours": (),
    "flush_every": {},
}
_MEMBERSHIP = ("broker_id", "permission", "force_register", "sync_interval")


class BrokerController(Shown):
    """
    A running broker. When the constructor returns, it serves, and is registered with the name servers that answer.

    Raises `StoreLocked`, `CorruptStore`, or `OSError` if an address is in use; nothing keeps running then.
    """

    def __init__(
        self,
        config: BrokerConfig | None = None,
        *,
        clock: Clock | None = None,
        archive: ArchiveHook | str | None = None,
        config_file: str | Path | None = None,
        load: Callable[[], BrokerConfig] | None = None,
        on_stop: Callable[[], object] | None = None,
        recovery: RecoveryProgress | None = None,
    ) -> None:
        """
        *load* reads *config* again, from *config_file* and the like, when it is reloaded.

        *on_stop* is called after a drain, and if an administrator stops the broker; the process then closes it.
        *recovery* shows another thread how far the recovery of the store is.
        """
        self._clock = clock or Clock.system()
        self.settings = Settings(
            config or BrokerConfig(), None if config_file is None else Path(config_file), self._clock.now_ms
        )
        self.settings.read_from(load)
        self._archive = load_archive_hook(self.config.archive if archive is None else archive)
        self._owner = Owner("broker")
        self._on_stop = on_stop
        self._recovery = recovery
        # Stops in reverse order what was started, also when the start fails halfway.
        with contextlib.ExitStack() as started:
            self._open_endpoint(started)
            with (
                reserved("listen", self.config.listen) as listen,
                reserved("grpc_listen", self.config.grpc_listen) as grpc_listen,
            ):
                self._start(started, listen, grpc_listen)
            self._report(started)
            self._trace(started)
            self._started = started.pop_all()
        _log.info("broker ready broker=%s remoting=%s grpc=%s", self.identity.name, self.address, self.endpoint)

    @property
    def config(self) -> BrokerConfig:
        """The options as they are now; some can change while the broker runs."""
        return self.settings.config

    @property
    def identity(self) -> BrokerIdentity:
        """The name, addresses and role under which the broker registers."""
        return self._name_servers.identity

    @property
    def address(self) -> str:
        """The advertised `host:port` of the remoting listener."""
        return self.identity.address

    @property
    def server(self) -> Server:
        """The server of both protocols."""
        return self._server

    @property
    def endpoint(self) -> str:
        """The advertised `host:port` of the gRPC listener."""
        return self.identity.grpc_address

    @property
    def metrics_address(self) -> str | None:
        """The `host:port` of the HTTP endpoint for metrics and health checks; None without one."""
        return None if self._endpoint is None else self._endpoint.address

    def _facts(self) -> Iterator[tuple[str, object]]:
        yield from (("name", self.identity.name), ("remoting", self.address), ("endpoint", self.endpoint))
        yield "store", self.config.store

    def configure(self, **options: Any) -> None:
        """
        Change options until the broker stops.

        Options of the store: `flush`, `flush_every`, and those that begin with `retention_`. Options of the role:
        `broker_id`, `permission`, `force_register`, `sync_interval`.

        Values are texts, as in files and flags, or Python values. None, or `none`, switches an option of retention
        off, or empties a table. Raises `ConfigError`.
        """
        for name, value in options.items():
            if value is None and name in StoreConfig.names() and name not in _OFF:
                raise ConfigError(f"{name} is None; it cannot be switched off, give it a value")
        given = {name: _OFF.get(name) if value is None else value for name, value in options.items()}
        membership = {name: given.pop(name) for name in _MEMBERSHIP if name in given}
        for name in given.keys() & (set(BrokerConfig.names()) - set(StoreConfig.names())):
            raise ConfigError(f"{name} cannot be changed while the broker runs; give it when the broker starts")
        read = StoreConfig.from_options(given)
        self.settings.check(membership)
        # A text such as `none` was read as None.
        wanted = {name: getattr(read, name) for name in given}
        before = self.store.options()
        self.store.configure(**wanted)
        changed = [f"{name}={value}" for name, value in self.store.options().items() if value != before[name]]
        if changed:
            _log.info("options changed %s", " ".join(changed))
        # Last: others see a change of role at once, so it cannot be undone.
        if membership:
            self.settings.set(membership)

    def set_queue_access(self, topic: str, queue_id: int, access: str) -> None:
        """
        Open or close one queue: `open`, `read_only` to drain it, or `closed` for sends and receives.

        The access survives restarts. Clients refresh routes every 30 s and after a refusal; until then they may get
        `Forbidden`. Raises `TopicNotFound`, and `ConfigError` for an unknown access or a queue id that is no number.
        """
        if not isinstance(queue_id, int):
            raise ConfigError(f"queue_id is {queue_id!r}; a whole number is expected")
        known = self.topics.get(topic)
        if known is None or not 0 <= queue_id < max(known.read_queues, known.write_queues):
            raise TopicNotFound(f"there is no queue {queue_id} of the topic {topic}")
        self.store.set_queue_access(topic, queue_id, access)
        _log.info("queue access changed topic=%s queue_id=%d access=%s", topic, queue_id, access)

    def drain(
        self, quiet: timedelta | None = None, timeout: timedelta | None = None, *, is_final: bool = False
    ) -> None:
        """
        Make senders leave, while messages are still taken, until none has sent for *quiet* or *timeout* has passed.

        Defaults are the options `drain_quiet` and `drain`. Then `state` is `drained`, and `on_stop` is called. Nothing
        ends or prolongs a drain that *is_final*: the process stops in any case.
        """
        membership = self.config.membership
        self._drain.begin(
            membership.drain_quiet if quiet is None else quiet,
            membership.drain if timeout is None else timeout,
            is_final=is_final,
        )

    def resume(self) -> None:
        """End a drain, unless the process stops after it: senders come back."""
        self._drain.end()

    @property
    def state(self) -> str:
        """What the broker does; see `Drain.state`."""
        return self._drain.state

    def close(self) -> None:
        """Unregister, stop the servers, close the store. Idempotent; does nothing in a forked child."""
        if self._owner.is_here:
            self._started.close()

    def _start(self, started: contextlib.ExitStack, listen: str, grpc_listen: str) -> None:
        identity = identify(self.config, listen, grpc_listen)
        for warning in unreachable(identity, listen, grpc_listen):
            _log.warning("address not reachable: %s", warning)
        self._open_store(started, identity)
        self._make_server(started)
        self._connect_name_servers(started, identity)
        self._open_tables(started)
        self._components = self._make_components(started)
        self._serve(self._components)
        self._role.prepare()
        self._listen(listen, grpc_listen)
        started.callback(self._registrar.stop)
        started.callback(self._drain.stop)
        self._registrar.start(self.topics, self._role.set_master)
        started.callback(self._role.stop)
        self._role.start()
        self._start_timers(started, self._components)

    def _open_endpoint(self, started: contextlib.ExitStack) -> None:
        """Serve health checks from now on, if there is an endpoint."""
        self._endpoint: Endpoint | None = None
        monitoring = self.config.monitoring
        if monitoring.metrics_listen != OFF or monitoring.metrics_push:
            from ferromq.monitoring import endpoint  # noqa: PLC0415 (most embedded brokers have none)

            self._endpoint = endpoint.Endpoint(monitoring.metrics_listen, BROKER_PORT)
            started.callback(self._endpoint.close)

    def _report(self, started: contextlib.ExitStack) -> None:
        """Serve the broker's metrics from now on, if there is an endpoint."""
        if self._endpoint is None:
            return
        from ferromq.broker.reports.metrics import BrokerMetrics, Sources  # noqa: PLC0415 (as in `_open_endpoint`)

        settings, components = self.settings, self._components
        sources = Sources(
            config=lambda: settings.config,
            server=self._server,
            store=self.store,
            topics=self.topics,
            groups=self.groups,
            clients=components.clients.table,
            transactions=components.transactions.counts,
            ended=components.transactions.ends.ended,
            now_ms=self._clock.now_ms,
        )
        ready = readiness(self.store, self._name_servers, lambda: settings.config.membership.is_slave, self._drain)
        self._endpoint.started(BrokerMetrics(sources).collect, ready)
        started.callback(self._endpoint.stopping)
        if self.config.monitoring.metrics_push:
            from ferromq.monitoring.pushed_metrics import PushedMetrics  # noqa: PLC0415 (as in `_open_endpoint`)

            metrics = PushedMetrics(self._endpoint.collect, self._clock.now_ms())
            monitoring = self.config.monitoring
            self._push(started, monitoring.metrics_push, metrics, monitoring.push_interval)

    def _trace(self, started: contextlib.ExitStack) -> None:
        """Record spans of requests from now on, if there is a collector for them."""
        if self.config.monitoring.spans_push:
            from ferromq.monitoring.pushed_spans import SPANS_INTERVAL, PushedSpans  # noqa: PLC0415 (as above)

            labels = {"cluster": self.config.cluster, "node_id": self.config.name}
            spans = PushedSpans(self._server, labels)
            started.callback(spans.close)
            interval = min(SPANS_INTERVAL, self.config.monitoring.push_interval)
            self._push(started, self.config.monitoring.spans_push, spans, interval)

    def _push(self, started: contextlib.ExitStack, target: str, source: "Source", interval: timedelta) -> None:
        from ferromq.monitoring.otlp import Collector, Pusher  # noqa: PLC0415 (as in `_open_endpoint`)

        monitoring = self.config.monitoring
        collector = Collector(target, monitoring.headers(), interval, monitoring.push_timeout)
        started.callback(Pusher(collector, self._clock, source).close)

    def _open_store(self, started: contextlib.ExitStack, identity: BrokerIdentity) -> None:
        self.store = open_store(self.config, self._clock, identity, self._archive, self._recovery)
        started.callback(self.store.close)
        self.settings.attach(self.store.configure, self.store.options)
        # The listeners refer to this object: cleared, closing frees the broker at once.
        started.callback(self.settings.clear_listeners)
        log_recovery(self.store)
        set_archive_hook(self.store, self.config, self._archive)

    def _make_server(self, started: contextlib.ExitStack) -> None:
        self._server = Server(
            self._clock.raw,
            store=self.store,
            broker_name=self.config.name,
            handler_threads=self.config.handler_threads,
            **self.config.connections.limits(),
        )
        started.callback(self._server.stop, timeout=_STOP_SECONDS)
        if self.config.connections.set_up(self._server) | self.config.grpc.set_up(self._server):
            reload = Timer("ferromq-tls", self._clock, RELOAD_INTERVAL, lambda _now: self._server.reload_tls())
            started.callback(reload.stop)
            reload.start()

    def _connect_name_servers(self, started: contextlib.ExitStack, identity: BrokerIdentity) -> None:
        settings, membership = self.settings, self.config.membership
        period = registration_period(membership.register_interval)
        client = RemotingClient(**self.config.outgoing())
        self._name_servers = NameServers(self.config.namesrv, identity, membership, client, period=period)
        started.callback(self._name_servers.close)
        self._registrar = Registrar(
            self._name_servers, self._clock, period, membership=lambda: settings.config.membership
        )
        self._hot_path = HotPath(self._server, lambda: settings.config.membership)
        self._hot_path.push_policies(self.config)

    def _open_tables(self, started: contextlib.ExitStack) -> None:
        settings, directory, now_ms = self.settings, Path(self.config.store), self._clock.now_ms
        topics_changed: Callable[[Sequence[str], RegistrationWait], None] = self._registrar.topics_changed
        tables = list[TopicTable]()
        self._routes: RouteCache | None = None
        if self._name_servers:
            # The table is opened below. The function must not refer to this object, or closing frees it late.
            complete = CompleteRoutes(self._name_servers, lambda name: tables[0].get(name))  # noqa: PLW0108
            self._routes = RouteCache(complete.look_up, now_ms, waiting=self.config.handler_threads // 2)
            started.callback(self._routes.close)
            topics_changed = self._routes.dropping(topics_changed)
        hot_path = self._hot_path
        self.topics = TopicTable(lambda: settings.config, directory, now_ms, hot_path.push_topic, topics_changed)
        tables.append(self.topics)
        self.groups = GroupTable(
            lambda: settings.config, directory, now_ms, hot_path.push_group, hot_path.push_forbidden
        )
        self._modes = RequestModes(directory)
        self._users = open_users(
            self.config.access, self._server, directory / "ferromq" / FILE, cluster=self.config.cluster
        )
        self._role = Role(
            lambda: settings.config,
            self._clock,
            self._name_servers,
            self._registrar,
            hot_path,
            store=self.store,
            topics=self.topics,
            groups=self.groups,
            modes=self._modes,
        )
        sends = _sends(self._server, self.topics, self._name_servers)
        self._drain = Drain(self._name_servers, self._registrar, self._clock, sends=sends)
        if self._on_stop is not None:
            self._drain.on_end = self._on_stop

    def _make_components(self, started: contextlib.ExitStack) -> Components:
        components = make_components(
            Dependencies(
                settings=self.settings,
                clock=self._clock,
                store=self.store,
                server=self._server,
                name_servers=self._name_servers,
                role=self._role,
                drain=self._drain,
                stop=self._on_stop,
                topics=self.topics,
                groups=self.groups,
                modes=self._modes,
                users=self._users,
                routes=self._routes,
            ),
            started,
        )
        for part in (self.topics, self.groups):
            started.callback(part.close)
        return components

    def _serve(self, components: Components) -> None:
        """Push the tables, and register the handlers of requests and events."""
        self.topics.push_all()
        self.groups.push_all()
        for route, handler in rpc.table(components, self._role.changes_refused, self._role.reads_refused).items():
            self._server.register(route, handler)
        self.settings.add_listener(self._options_changed)
        self._server.on_missing(FirstUse(self.store, self.topics, self.groups).create)
        self._server.on_telemetry(components.clients.grpc.telemetry)
        self._server.on_close(components.clients.table.close_connection)

    def _listen(self, listen: str, grpc_listen: str) -> None:
        with naming("set listen (--listen) to another address"):
            self._server.listen_remoting(listen)
        self.fast_address = self._listen_fast(listen)
        """The bound `host:port` of the second remoting listener; None without one."""
        with naming("set grpc_listen (--grpc-listen) to another address"):
            self._server.listen_grpc(grpc_listen)
        listeners = [listen, *filter(None, [self.fast_address]), grpc_listen]
        warn_of_open_listeners(listeners, self.config.access)

    def _listen_fast(self, listen: str) -> str | None:
        """Listen a second time, on the port that RocketMQ's clients use as the VIP channel, and return `host:port`."""
        wanted = fast_address(self.config, listen)
        if wanted is None:
            return None
        with naming("give fast_listen another address, or say fast_listen=off"):
            port = self._server.listen_remoting(wanted)
        return f"{wanted.rpartition(':')[0]}:{port}"

    def _start_timers(self, started: contextlib.ExitStack, components: Components) -> None:
        clients, tables, settings = components.clients, (self.topics, self.groups), self.settings
        merged = [*(each.merge_journal for each in tables), settings.look]
        sampled = (components.statistics, components.runtime)
        for timer in (
            clients,
            Timer("ferromq-clients", self._clock, _CLIENT_SCAN, clients.expire),
            Timer("ferromq-tables", self._clock, _JOURNAL_MERGE, lambda _: [each() for each in merged]),
            Timer("ferromq-statistics", self._clock, _SAMPLE, lambda now: [each.sample(now) for each in sampled]),
            components.transactions,
        ):
            started.callback(timer.stop)
            timer.start()

    def _options_changed(self, changed: frozenset[str], before: BrokerConfig, after: BrokerConfig) -> None:
        """Apply changed options; parts that read the options each time need no call here."""
        if changed & {"auto_create_topics", "default_queues"}:
            self.topics.configure("options")
        if "register_interval" in changed:
            self._registrar.set_period(registration_period(after.membership.register_interval))
        if changed & {"region", "trace", "reject_transactions", "check_types"}:
            self._hot_path.push_send_policy(after)
        if changed & {"sql_filters", *ConsumeConfig.names()}:
            self._hot_path.push_read_policy(after)
        if changed & {"grpc_message_limit", *CompatConfig.names()}:
            self._hot_path.push_client_policy(after)
        if "limits" in changed:
            self._hot_path.push_limits(after)
        if "check_types" in changed:
            self._components.clients.grpc.sends_changed()
        self._components.transactions.options_changed(changed, after)
        if changed & frozenset(_MEMBERSHIP):
            self._role.change(before.membership, after.membership)


def _sends(server: Server, topics: TopicTable, name_servers: NameServers) -> Callable[[], Sends]:
    """Return a function that counts what producers sent to topics whose senders shall leave."""

    def counted() -> Sends:
        left, sent = name_servers.identity.left, server.traffic()["sent"]
        return {name: count for name, (count, _) in sent.items() if name in left or not is_ordered(topics.get(name))}

    return counted
