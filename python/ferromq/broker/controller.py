"""
The life of a broker: open the store, make the tables, start the servers, register; and all of it back.

It decides order only. What is answered is in `rpc`, what exists in `topics` and `groups`.
"""

import contextlib
import logging
import socket
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from ferromq._ferromq import Server, Store
from ferromq._fork import Owner
from ferromq._time import Clock, Timer
from ferromq.broker import rpc
from ferromq.broker.admin import Administration
from ferromq.broker.announcer import Announcer
from ferromq.broker.clients import Clients, ClientTable
from ferromq.broker.groups import GroupTable
from ferromq.broker.name_servers import Identity, NameServers
from ferromq.broker.query import Queries
from ferromq.broker.routes import Routes
from ferromq.broker.topics import TopicTable
from ferromq.config import BrokerConfig, split_advertised
from ferromq.errors import ConfigError, IllegalName

_log = logging.getLogger("ferromq.broker")

_MILLISECOND = timedelta(milliseconds=1)
_CLIENT_SCAN = timedelta(seconds=10)
_STOP_SECONDS = 0.5
_MAX_BODY = 4 << 20
_WILDCARDS = frozenset({"0.0.0.0", "[::]", "::", ""})  # noqa: S104 (compared, not bound)


class BrokerController:
    """
    A running broker; ready, and registered with the name servers that answer, when the constructor returns.

    Raises `StoreLocked`, `CorruptStore`, or `OSError` where an address is taken; nothing is left running then.
    """

    def __init__(self, config: BrokerConfig | None = None, *, clock: Clock | None = None) -> None:
        self.config = config or BrokerConfig()
        self._owner = Owner("broker")
        self._clock = clock or Clock.system()
        # What was started is stopped in reverse order, also when the start fails halfway.
        with contextlib.ExitStack() as started:
            with (
                _reserved("listen", self.config.listen) as listen,
                _reserved("grpc_listen", self.config.grpc_listen) as grpc_listen,
            ):
                self.identity = _identify(self.config, listen, grpc_listen)
                self._start(started, listen, grpc_listen)
            self._started = started.pop_all()
        _log.info("broker ready broker=%s remoting=%s grpc=%s", self.identity.name, self.address, self.endpoint)

    @property
    def address(self) -> str:
        """`host:port` of the remoting listener, as others reach it."""
        return self.identity.address

    @property
    def endpoint(self) -> str:
        """`host:port` of the gRPC listener, as others reach it."""
        return self.identity.grpc_address

    def close(self) -> None:
        """Say goodbye to name servers, stop the servers, close the store. Idempotent; nothing in a forked child."""
        if self._owner.is_here:
            self._started.close()

    def _start(self, started: contextlib.ExitStack, listen: str, grpc_listen: str) -> None:
        self.store = _open_store(self.config, self._clock, self.identity)
        started.callback(self.store.close)
        self._server = Server(
            self._clock.raw,
            store=self.store,
            broker_name=self.config.name,
            handler_threads=self.config.handler_threads,
        )
        started.callback(self._server.stop, timeout=_STOP_SECONDS)
        self._name_servers = NameServers(
            self.config.namesrv,
            self.identity,
            period=self.config.register_interval,
            timeout=self.config.register_timeout,
        )
        started.callback(self._name_servers.close)
        self._announcer = Announcer(self._server, self._name_servers, self._clock, self.config.register_interval)
        self._make_rooms()
        self._server.listen_remoting(listen)
        self._server.listen_grpc(grpc_listen)
        started.callback(self._announcer.stop)
        self._announcer.start(self.topics)
        started.callback(self._client_timer.stop)
        self._client_timer.start()

    def _make_rooms(self) -> None:
        """Make the tables and push them, and register who answers what."""
        config, now_ms, directory = self.config, self._clock.now_ms, Path(self.config.store)
        self.topics = TopicTable(config, directory, now_ms, self._announcer.topic_changed)
        self.groups = GroupTable(config, directory, now_ms, self._announcer.push_group)
        clients = ClientTable(config.client_lease // _MILLISECOND)
        rooms = rpc.Rooms(
            admin=Administration(self.topics, self.groups),
            clients=Clients(
                clients,
                self.groups,
                max_body_size=config.max_message_size or _MAX_BODY,
                now_ms=now_ms,
                send=self._server.send_telemetry,
            ),
            queries=Queries(self.store, self.topics),
            routes=Routes(self.identity, self.topics, self.groups, self._name_servers),
        )
        for topic in self.topics.all():
            self._announcer.push_topic(topic)
        for group in self.groups.all():
            self._announcer.push_group(group)
        for route, handler in rpc.table(rooms).items():
            self._server.register(route, handler)
        self._server.on_missing(self._create_missing)
        self._server.on_telemetry(rooms.clients.telemetry)
        self._server.on_close(clients.close_connection)
        self._client_timer = Timer("ferromq-clients", self._clock, _CLIENT_SCAN, clients.expire)

    def _create_missing(self, kind: str, name: str, peer: str) -> bool:
        """Create a topic or group the hot path met and does not know, where that is allowed."""
        try:
            if kind == "topic":
                topic = self.topics.ensure(name, peer)
                if topic is not None:
                    # Somebody else may have created it a moment ago and not pushed it yet.
                    self._announcer.push_topic(topic)
                return topic is not None
            group = self.groups.ensure(name, peer)
            if group is not None:
                self._announcer.push_group(group)
        except IllegalName as error:
            _log.debug("illegal name peer=%s: %s", peer, error)
            return False
        return group is not None


def _open_store(config: BrokerConfig, clock: Clock, identity: Identity) -> Store:
    Path(config.store).mkdir(parents=True, exist_ok=True)
    return Store(
        config.store,
        clock.raw,
        commit_log_file_size=config.commit_log_file_size,
        consume_queue_file_entries=config.consume_queue_file_entries,
        index_slots=config.index_slots,
        index_entries=config.index_entries,
        sync_flush=config.flush == "sync",
        flush_interval_ms=None if config.flush_interval is None else config.flush_interval // _MILLISECOND,
        max_message_size=config.max_message_size,
        disk_reserve=config.disk_reserve,
        store_host=_store_host(config, identity),
    )


def _store_host(config: BrokerConfig, identity: Identity) -> str:
    """Return the broker's address as records hold it: with a numeric host, IPv4 where it has one, as RocketMQ."""
    option, value = ("advertise", config.advertise) if config.advertise else ("listen", config.listen)
    host, _, port = identity.address.rpartition(":")
    found = {family: str(where[0]) for family, _, _, _, where in reversed(_resolve(option, value, host))}
    numeric = found.get(socket.AF_INET) or f"[{found[socket.AF_INET6].partition('%')[0]}]"
    return f"{numeric}:{port}"


def _resolve(option: str, value: str, host: str) -> list[tuple[Any, Any, Any, Any, Any]]:
    try:
        return socket.getaddrinfo(host.strip("[]"), 0, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise ConfigError(
            f"{option} is {value!r}, and the host {host} has no address here: {error}; give it one (hosts file, DNS), "
            f"or set {option} to an address"
        ) from error


@contextlib.contextmanager
def _reserved(option: str, address: str) -> Iterator[str]:
    """
    Keep a free port for `host:0` until somebody listens there, and yield `host:port`.

    Every record holds the broker's address, so the port has to be known before the store is open. On Linux a bound
    socket that does not listen lets another one, that may reuse addresses, bind and listen beside it.
    """
    host, _, port = address.rpartition(":")
    if port != "0":
        yield address
        return
    family, kind, protocol, _, where = _resolve(option, address, host)[0]
    with socket.socket(family, kind, protocol) as reservation:
        reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reservation.bind(where)
        yield f"{host}:{reservation.getsockname()[1]}"


def _identify(config: BrokerConfig, listen: str, grpc_listen: str) -> Identity:
    address = _advertised(config.advertise, listen, config.namesrv)
    host = address.rpartition(":")[0]
    grpc_address = _advertised(config.grpc_advertise or host, grpc_listen, config.namesrv)
    return Identity(config.name, config.cluster, address, grpc_address)


def _advertised(wanted: str, listen: str, name_servers: tuple[str, ...]) -> str:
    """Return the `host:port` others use: what is configured, else the listener's, with our address for a wildcard."""
    host, _, port = listen.rpartition(":")
    if wanted:
        wanted_host, wanted_port = split_advertised(wanted)
        return f"{wanted_host}:{wanted_port or port}"
    return f"{_own_address(name_servers) if host in _WILDCARDS else host}:{port}"


def _own_address(name_servers: tuple[str, ...]) -> str:
    """Return the address of this machine on the way to the first name server; no packet is sent."""
    host, _, port = (name_servers[0] if name_servers else "192.0.2.1:9").rpartition(":")
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(where)
            own = str(probe.getsockname()[0]).partition("%")[0]
    except OSError:
        return "127.0.0.1"
    return f"[{own}]" if family == socket.AF_INET6 else own
