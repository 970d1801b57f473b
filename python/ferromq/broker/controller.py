"""
The life of a broker: open the store, make the tables, start the servers, register; and all of it back.

It decides order only. What is answered is in `rpc`, what exists in `topics` and `groups`.
"""

import contextlib
import logging
import pkgutil
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

from ferromq._ferromq import ExpiredFile, Server, Store
from ferromq.broker import rpc
from ferromq.broker.administration.catalog import Catalog
from ferromq.broker.administration.offsets import OffsetRequests
from ferromq.broker.administration.settings import Settings, SettingsRequests
from ferromq.broker.administration.topics_and_groups import TopicAndGroupChanges
from ferromq.broker.clients.components import ClientComponents
from ferromq.broker.cluster.addresses import fast_address, identify, reserved, store_host, unheard
from ferromq.broker.cluster.complete_routes import CompleteRoutes
from ferromq.broker.cluster.name_servers import BrokerIdentity, Master, NameServers
from ferromq.broker.cluster.registrar import Registrar, registration_period
from ferromq.broker.cluster.replication import Replica, SlaveSync
from ferromq.broker.cluster.route_cache import RouteCache
from ferromq.broker.cluster.routes import Routes
from ferromq.broker.messages.message_queries import MessageQueries
from ferromq.broker.messages.recalls import Recalls
from ferromq.broker.messages.write_layouts import WriteLayouts, without_steps
from ferromq.broker.metadata.groups import GroupTable
from ferromq.broker.metadata.topics import RegistrationWait, TopicTable
from ferromq.broker.reports.consume_progress import ConsumeProgress
from ferromq.broker.reports.runtime_info import RuntimeInfo
from ferromq.broker.reports.statistics import SAMPLE_MS, Statistics
from ferromq.broker.transactions.components import TransactionComponents
from ferromq.config.broker import BrokerConfig
from ferromq.config.compat import CompatConfig
from ferromq.config.consume import ConsumeConfig
from ferromq.config.listener import RELOAD_INTERVAL, naming
from ferromq.config.membership import MembershipConfig
from ferromq.config.store import StoreConfig
from ferromq.errors import ConfigError, IllegalName, RequestError, TopicNotFound
from ferromq.process.clock import Clock, Timer
from ferromq.process.fork import Owner
from ferromq.process.limited_log import LimitedLog
from ferromq.protocol.route import Permission

_log = logging.getLogger("ferromq.broker")

_MILLISECOND = timedelta(milliseconds=1)
_CLIENT_SCAN = timedelta(seconds=10)
_FOLD = timedelta(seconds=10)
_STOP_SECONDS = 0.5
# What the store does unless it is told otherwise.
_DEDUP_WINDOW, _DEDUP_WRITERS = timedelta(days=1), 500_000
_LAYOUT_WINDOWS = 2
# What may be switched off, and what says so to the store.
_NOTHING: Mapping[str, Any] = {
    "retention_age": None,
    "retention_total_bytes": None,
    "retention_disk_usage": None,
    "retention_age_by_topic": {},
    "retention_hours": (),
    "flush_every": {},
}
_MEMBERSHIP = ("broker_id", "permission", "force_register", "sync_interval")


class BrokerController:
    """
    A running broker; ready, and registered with the name servers that answer, when the constructor returns.

    Raises `StoreLocked`, `CorruptStore`, or `OSError` where an address is taken; nothing is left running then.
    """

    def __init__(
        self,
        config: BrokerConfig | None = None,
        *,
        clock: Clock | None = None,
        archive: Callable[[ExpiredFile], object] | str | None = None,
        config_file: str | Path | None = None,
    ) -> None:
        self._clock = clock or Clock.system()
        self.settings = Settings(
            config or BrokerConfig(), None if config_file is None else Path(config_file), self._clock.now_ms
        )
        self._archive = _hook(self.config.archive if archive is None else archive)
        self._owner = Owner("broker")
        self._seldom = LimitedLog(_log)
        self._role = threading.Lock()
        """Held where the role changes, and where what was told of it is taken over."""
        self._master: Master | None = None
        self._sync: SlaveSync | None = None
        # What was started is stopped in reverse order, also when the start fails halfway.
        with contextlib.ExitStack() as started:
            with (
                reserved("listen", self.config.listen) as listen,
                reserved("grpc_listen", self.config.grpc_listen) as grpc_listen,
            ):
                self.identity = identify(self.config, listen, grpc_listen)
                for warning in unheard(self.identity, listen, grpc_listen):
                    _log.warning("address not reached: %s", warning)
                self._start(started, listen, grpc_listen)
            self._started = started.pop_all()
        _log.info("broker ready broker=%s remoting=%s grpc=%s", self.identity.name, self.address, self.endpoint)

    @property
    def config(self) -> BrokerConfig:
        """The options as they are now; some can change while the broker runs."""
        return self.settings.config

    @property
    def address(self) -> str:
        """`host:port` of the remoting listener, as others reach it."""
        return self.identity.address

    @property
    def endpoint(self) -> str:
        """`host:port` of the gRPC listener, as others reach it."""
        return self.identity.grpc_address

    def configure(self, **options: Any) -> None:
        """
        Change options while the broker runs.

        These are how the store flushes and what it keeps (`flush`, `flush_every`, what begins `retention_`), and the
        broker's role and rights (`broker_id`, `permission`, `force_register`, `sync_interval`).

        Takes what files and flags take, as text or as ready values; None, or `none`, switches an option of retention
        off, or empties a table. It holds until the broker stops. Raises `ConfigError`.
        """
        for name, value in options.items():
            if value is None and name in StoreConfig.names() and name not in _NOTHING:
                raise ConfigError(f"{name} is None; it cannot be switched off, give it a value")
        given = {name: _NOTHING.get(name) if value is None else value for name, value in options.items()}
        membership = {name: given.pop(name) for name in _MEMBERSHIP if name in given}
        read = StoreConfig.from_options(given)
        self.settings.check(membership)
        # What was given and is not there any more was a word for nothing.
        wanted = {name: getattr(read, name) for name in given}
        before = self.store.options()
        self.store.configure(**wanted)
        changed = [f"{name}={value}" for name, value in self.store.options().items() if value != before[name]]
        if changed:
            _log.info("options changed %s", " ".join(changed))
        # Last: a role cannot be taken back without anybody noticing.
        if membership:
            self.settings.set(membership)

    def set_queue_access(self, topic: str, queue_id: int, access: str) -> None:
        """
        Close a queue, or open it again: `read_only` lets it drain, `closed` for both, `open`.

        It is kept across restarts. Clients ask for routes every 30 s and after a refusal; until then they may meet
        `Forbidden`. Raises `TopicNotFound`, and `ConfigError` for another word or what is no number.
        """
        if not isinstance(queue_id, int):
            raise ConfigError(f"queue_id is {queue_id!r}; a whole number is expected")
        known = self.topics.get(topic)
        if known is None or not 0 <= queue_id < max(known.read_queues, known.write_queues):
            raise TopicNotFound(f"there is no queue {queue_id} of the topic {topic}")
        self.store.set_queue_access(topic, queue_id, access)
        _log.info("queue access changed topic=%s queue_id=%d access=%s", topic, queue_id, access)

    def close(self) -> None:
        """Say goodbye to name servers, stop the servers, close the store. Idempotent; nothing in a forked child."""
        if self._owner.is_here:
            self._started.close()

    def _start(self, started: contextlib.ExitStack, listen: str, grpc_listen: str) -> None:
        self.store = _open_store(self.config, self._clock, self.identity, has_hook=self._archive is not None)
        started.callback(self.store.close)
        self.settings.attach(self.store.configure, self.store.options)
        # What is told of changes holds this object: let go, nothing is left for the garbage collector.
        started.callback(self.settings.clear_listeners)
        _log_recovery(self.store)
        if self._archive is not None:
            self.store.set_archive(self._archive)
        elif self.config.storage.retention_on_expiry == "archive":
            _log.warning("files are archived before they are deleted, and nothing is there to take them; they stay")
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
        settings, membership = self.settings, self.config.membership
        period = registration_period(membership.register_interval)
        self._name_servers = NameServers(self.config.namesrv, self.identity, membership, period=period)
        started.callback(self._name_servers.close)
        self._announcer = Registrar(
            self._server,
            self._name_servers,
            self._clock,
            period,
            membership=lambda: settings.config.membership,
            on_master=self._told_master,
        )
        self._announcer.push_send_policy(self.config)
        self._announcer.push_read_policy(self.config)
        self._announcer.push_client_policy(self.config)
        self._announcer.push_role(membership)
        self._make_rooms(started)
        if not membership.is_slave:
            # Before the first message is taken: what a master told once is corrected to what this log holds.
            self.store.start_schedule()
        with naming("set listen (--listen) to another address"):
            self._server.listen_remoting(listen)
        self.fast_address = self._listen_fast(listen)
        """`host:port` of the second remoting listener, as it was bound; None where there is none."""
        with naming("set grpc_listen (--grpc-listen) to another address"):
            self._server.listen_grpc(grpc_listen)
        started.callback(self._announcer.stop)
        self._announcer.start(self.topics)
        started.callback(self._stop_following)
        self._start_following()
        for timer in (
            *(self._clients, self._client_timer, self._journal_timer),
            *(self._statistics_timer, self._transactions),
        ):
            started.callback(timer.stop)
            timer.start()

    def _listen_fast(self, listen: str) -> str | None:
        """Listen a second time, where RocketMQ's clients look for it, and return `host:port`."""
        wanted = fast_address(self.config, listen)
        if wanted is None:
            return None
        with naming("give fast_listen another address, or say fast_listen=off"):
            port = self._server.listen_remoting(wanted)
        return f"{wanted.rpartition(':')[0]}:{port}"

    def _told_master(self, master: Master | None, generation: int) -> None:
        with self._role:
            # What was told to the broker as it was comes late.
            if generation == self._name_servers.identity.generation:
                self._follow(master)

    def _follow(self, master: Master | None) -> None:
        self._master = master
        if self._sync is not None:
            self._sync.follow(master.address if master else None)

    def _start_following(self) -> None:
        """Follow the master, where this is a slave; a master delivers what waits at a delay level."""
        membership = self.config.membership
        if not membership.is_slave:
            self.store.start_schedule()
            return
        self.store.stop_schedule()
        _log.warning(
            "slave: topics and groups come from the master, its messages are not replicated yet; this broker takes no "
            "messages and serves no consumers broker_id=%d",
            membership.broker_id,
        )
        replica = Replica(Path(self.config.store), self.store, self.topics, self.groups, self._modes)
        sync = SlaveSync(replica, self.address, self._clock, membership.sync_interval)
        with self._role:
            self._sync = sync
            self._follow(self._master)
        sync.start()

    def _stop_following(self) -> None:
        with self._role:
            sync, self._sync = self._sync, None
        if sync is not None:
            sync.stop()

    def _make_rooms(self, started: contextlib.ExitStack) -> None:
        """Make the tables and push them, and register who answers what."""
        now_ms, directory, settings = self._clock.now_ms, Path(self.config.store), self.settings
        cache, tables = None, list[TopicTable]()
        if self._name_servers:
            # The table is made below. This object is not held: nothing is left for the garbage collector.
            whole = CompleteRoutes(self._name_servers, lambda name: tables[0].get(name))  # noqa: PLW0108
            waiting = self.config.handler_threads // 2
            cache = RouteCache(whole.ask, now_ms, waiting=waiting)
            started.callback(cache.close)
        topics_changed: Callable[[Sequence[str], RegistrationWait], None] = self._announcer.topics_changed
        if cache is not None:
            topics_changed = cache.dropping(topics_changed)
        self.topics = TopicTable(lambda: settings.config, directory, now_ms, self._announcer.push_topic, topics_changed)
        tables.append(self.topics)
        self.groups = GroupTable(
            lambda: settings.config, directory, now_ms, self._announcer.push_group, self._announcer.push_forbidden
        )
        clients = self._clients = ClientComponents(
            lambda: settings.config,
            self.identity,
            self._server,
            store=self.store,
            topics=self.topics,
            groups=self.groups,
            routes=cache,
            now_ms=now_ms,
        )
        self._modes = clients.modes
        self._transactions = TransactionComponents(
            lambda: settings.config, self._server, self.store, clients=clients.table, clock=self._clock
        )
        statistics = Statistics(self._server.traffic, now_ms, self.config.cluster)
        runtime = RuntimeInfo(self.store, statistics, directory, transactions=self._transactions.counts, now_ms=now_ms)
        samples = (statistics.sample, runtime.sample)
        layouts = self._open_layouts()
        started.callback(layouts.close)
        rooms = rpc.Rooms(
            admin=TopicAndGroupChanges(self.store, self.topics, self.groups, deleted=layouts.forget),
            layouts=layouts,
            catalog=Catalog(self.topics, self.groups),
            clients=clients,
            offsets=OffsetRequests(
                self.store,
                self.topics,
                now_ms=now_ms,
                subscribed=clients.connections.subscriptions,
                near_span=lambda: settings.config.reads.near_span,
            ),
            queries=MessageQueries(self.store, self.topics, self._reads_refused),
            recalls=Recalls(
                self.store,
                self.topics,
                self.identity.name,
                is_slave=lambda: settings.config.membership.is_slave,
                is_allowed=lambda: settings.config.sends.recall,
                now_ms=now_ms,
            ),
            reports=ConsumeProgress(
                self.identity,
                self.store,
                self.topics,
                self.groups,
                statistics=statistics,
                now_ms=now_ms,
                subscriptions=clients.connections.subscriptions,
            ),
            runtime=runtime,
            settings=SettingsRequests(self.settings, self.store, self.identity.address),
            statistics=statistics,
            routes=Routes(self.identity, self.store, self.topics, self.groups, self._name_servers, cache=cache),
            transactions=self._transactions,
        )
        for table in (self.topics, self.groups):
            started.callback(table.close)
        self.topics.push_all()
        self.groups.push_all()
        for route, handler in rpc.table(rooms, self._changes_refused, self._reads_refused).items():
            self._server.register(route, handler)
        self.settings.add_listener(self._options_changed)
        self._server.on_missing(self._create_missing)
        self._server.on_telemetry(clients.grpc.telemetry)
        self._server.on_close(clients.table.close_connection)
        folds = (self.topics.merge_journal, self.groups.merge_journal)
        self._journal_timer = Timer(
            "ferromq-tables", self._clock, _FOLD, lambda _now: [merge_journal() for merge_journal in folds]
        )
        self._client_timer = Timer("ferromq-clients", self._clock, _CLIENT_SCAN, clients.expire)
        self._statistics_timer = Timer(
            "ferromq-statistics", self._clock, SAMPLE_MS * _MILLISECOND, lambda now: [take(now) for take in samples]
        )

    def _open_layouts(self) -> WriteLayouts:
        storage = self.config.storage
        # A task may write for long after it asked: tries within the window of its last row ask within two of its first.
        window_ms = _LAYOUT_WINDOWS * ((storage.dedup_window or _DEDUP_WINDOW) // _MILLISECOND)
        return WriteLayouts(
            Path(self.config.store) / "ferromq" / "layouts.json",
            without_steps(self._clock),
            window_ms=window_ms,
            limit=storage.dedup_writers or _DEDUP_WRITERS,
            is_topic=lambda topic: self.topics.get(topic) is not None,
            reserve=self.store.options()["disk_reserve"] or 0,
        )

    def _options_changed(self, changed: frozenset[str], before: BrokerConfig, after: BrokerConfig) -> None:
        """Tell everybody whom it concerns that options changed."""
        if changed & {"auto_create_topics", "default_queues"}:
            self.topics.configure("options")
        if "register_interval" in changed:
            self._announcer.set_period(registration_period(after.membership.register_interval))
        if changed & {"region", "trace", "reject_transactions", "check_types"}:
            self._announcer.push_send_policy(after)
        if changed & {"sql_filters", *ConsumeConfig.names()}:
            self._announcer.push_read_policy(after)
        if changed & frozenset(CompatConfig.names()):
            self._announcer.push_client_policy(after)
        if "check_types" in changed:
            self._clients.grpc.sends_changed()
        self._transactions.options_changed(changed, after)
        if changed & frozenset(_MEMBERSHIP):
            self._take_part(before.membership, after.membership)

    def _take_part(self, before: MembershipConfig, after: MembershipConfig) -> None:
        """Take another role, or other rights, and tell it to everybody."""
        self._stop_following()
        self._announcer.push_role(after)
        if not after.is_slave:
            # Before the first message is taken: what its master told is corrected to what this log holds.
            self.store.start_schedule()
        with self._role:
            self._name_servers.become(after.broker_id, Permission(after.permission))
            self.identity = self._name_servers.identity
            if after.broker_id != before.broker_id:
                self._master = None
                _log.warning("role changed broker_id=%d before=%d", after.broker_id, before.broker_id)
        if after.permission != before.permission and not after.is_slave:
            self.topics.advance_version()
        self.topics.push_all()
        self._start_following()
        self._announcer.register()

    def _changes_refused(self) -> str | None:
        """Return why tables may not be changed here, where this is a slave: its master's would replace them."""
        if not self.config.membership.is_slave:
            return None
        where = f"at {self._master.address}" if self._master else "the name servers know none now"
        return (
            f"Can't modify topics, groups or offsets on a slave, whose tables are its master's; ask its master: {where}"
        )

    def _reads_refused(self) -> str | None:
        """Return why consumers are not served here, where this is a slave."""
        if not self.config.membership.is_slave:
            return None
        return "this broker is a slave, and slaves have no messages of their master yet; ask the master"

    def _type_of_first(self, topic: str, kind: str) -> str:
        """Return the type of a topic without one: RocketMQ's default if it holds messages, which nothing checked."""
        found = self.topics.find(topic)
        queues = range(max(found.read_queues, found.write_queues)) if found is not None else ()
        held = (queue for queue in queues if self.store.max_offset(topic, queue) > self.store.min_offset(topic, queue))
        return "NORMAL" if any(True for _ in held) else kind

    def _create_missing(self, kind: str, name: str, peer: str, wanted: tuple[str, int, int]) -> bool | None:
        """Create a topic or group the hot path met and does not know, where allowed; None where that failed."""
        try:
            default_topic, queues, sys_flag = wanted
            # Somebody else may have created it a moment ago and not pushed it yet: pushed again.
            if kind == "group":
                return self.groups.ensure(name, peer) is not None and self.groups.push_again(name)
            if kind == "topic_to_send":
                topic = self.topics.ensure_to_send(name, default_topic, queues, sys_flag, peer)
            elif kind == "type_of_topic":
                topic = self.topics.decide_type(name, self._type_of_first(name, default_topic), peer)
            elif kind == "topic_of_group":
                topic = self.topics.ensure_of_group(name, queues, sys_flag, peer)
            else:
                topic = self.topics.ensure(name, peer)
            return topic is not None and self.topics.push_again(name)
        except (IllegalName, RequestError) as error:
            _log.debug("%s not created peer=%s: %s", kind, peer, error)
            return False
        except OSError as error:
            text = "%s not created, its table cannot be written name=%s peer=%s: %s"
            self._seldom.log(logging.ERROR, text, kind, name, peer, error)
            return None


def _hook(name: Callable[[ExpiredFile], object] | str) -> Callable[[ExpiredFile], object] | None:
    """Return the archive hook, found where it is given as `module:function`, or made of `module:function WORD`."""
    if not isinstance(name, str):
        if not callable(name):
            raise ConfigError(f"archive is {name!r}; a function is expected, or its name as MODULE:FUNCTION")
        return name
    if not name:
        return None
    function, _, word = name.strip().partition(" ")
    try:
        hook = pkgutil.resolve_name(function)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"archive is {name!r}; MODULE:FUNCTION is expected: {error}") from error
    if word and callable(hook):
        hook = hook(word.strip())
    if not callable(hook):
        raise ConfigError(f"archive is {name!r}, which cannot be called")
    return cast("Callable[[ExpiredFile], object]", hook)


def _log_recovery(store: Store) -> None:
    """Say what a store that was not closed went through, and what of it is lost."""
    report, damages = store.recovery(), store.damages()
    if not report["is_clean"]:
        _log.warning(
            "store was not closed, recovered walked_bytes=%d messages=%d cut_bytes=%d cut_messages=%d elapsed_us=%d",
            *(report[name] for name in ("walked_bytes", "messages", "cut_bytes", "cut_messages")),
            report["elapsed"] // timedelta(microseconds=1),
        )
    for file, begin, end, reason in damages:
        _log.error("damage in the store file=%s begin=%d end=%d: %s", file, begin, end, reason)


def _open_store(config: BrokerConfig, clock: Clock, identity: BrokerIdentity, *, has_hook: bool) -> Store:
    Path(config.store).mkdir(parents=True, exist_ok=True)
    options = config.storage.overrides()
    if has_hook:
        # Whoever gives a hook wants it to be asked: from the start, for cleaning begins before the hook can be set.
        options.setdefault("retention_on_expiry", "archive")
    return Store(
        config.store,
        clock.raw,
        **options,
        **config.timers.overrides(),
        store_host=store_host(config, identity),
    )
