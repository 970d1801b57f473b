"""
The routes of a name server: five tables under one lock.

Pure state: no clock (`now` is an argument, in milliseconds), no sockets (a connection is a number). Registrations are
leases; `expire` ends the ones that were not renewed, `close_connection` those whose connection is gone. Which request
does what is in `namesrv.server`.
"""

import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ferromq.route import MASTER, BrokerData, DataVersion, QueueData, TopicRoute

_log = logging.getLogger("ferromq.namesrv")

DEFAULT_LEASE_MS = 120_000


class BrokerAddress(NamedTuple):
    """A broker process: the same `host:port` may exist in two clusters."""

    cluster: str
    address: str


@dataclass(frozen=True, slots=True)
class Registration:
    """What a broker says of itself."""

    cluster: str
    address: str
    broker_name: str
    broker_id: int
    ha_address: str = ""
    zone: str | None = None
    lease_ms: int | None = None
    """How long the registration holds; None: the name server's default."""
    enable_acting_master: bool = False

    @property
    def key(self) -> BrokerAddress:
        """The broker's place in the tables."""
        return BrokerAddress(self.cluster, self.address)


@dataclass(frozen=True, slots=True)
class RegisteredTopics:
    """The topics a broker registers, with the version of its table."""

    version: DataVersion = field(default_factory=DataVersion)
    queues: Mapping[str, QueueData] = field(default_factory=dict)
    filter_servers: tuple[str, ...] | None = None
    """None: nothing is said of them; empty: there are none."""


@dataclass(frozen=True, slots=True)
class Registered:
    """The answer to a registration; both addresses are set for a slave whose master is known."""

    master_address: str | None = None
    ha_address: str | None = None


@dataclass(slots=True)
class BrokerLive:
    """The lease of a registered broker."""

    broker_name: str
    broker_id: int
    expires_at: int
    lease_ms: int
    version: DataVersion
    connection: int | None
    ha_address: str


@dataclass(slots=True)
class _Broker:
    """One broker name: its cluster and the addresses of master and slaves."""

    cluster: str
    zone: str | None = None
    enable_acting_master: bool = False
    addresses: dict[int, str] = field(default_factory=dict)


class RouteInfoManager:
    """
    Knows every broker and where each topic's queues are.

    Thread-safe. The tables are RocketMQ's: `topic_queue_table`, `broker_addr_table`, `cluster_addr_table`,
    `broker_live_table`, `filter_server_table`.
    """

    def __init__(self, lease_ms: int = DEFAULT_LEASE_MS) -> None:
        self._lease_ms = lease_ms
        self._lock = threading.Lock()
        self.topic_queue_table: dict[str, dict[str, QueueData]] = {}
        self.broker_addr_table: dict[str, _Broker] = {}
        self.cluster_addr_table: dict[str, set[str]] = {}
        self.broker_live_table: dict[BrokerAddress, BrokerLive] = {}
        self.filter_server_table: dict[BrokerAddress, tuple[str, ...]] = {}

    def register(
        self, broker: Registration, topics: RegisteredTopics, now: int, connection: int | None = None
    ) -> Registered | None:
        """
        Add a broker or renew its lease, and take over the topics of a master.

        None: refused. A broker not known here that sends a single topic sends a change, not its table, and must
        register whole first; and an older broker (by state version) does not take the place of a newer one.
        """
        with self._lock:
            if self._is_refused(broker, topics):
                return None
            before = self.broker_live_table.get(broker.key)
            if before is not None and before.broker_name != broker.broker_name:
                self._forget(broker.key, before.broker_name)
            self.cluster_addr_table.setdefault(broker.cluster, set()).add(broker.broker_name)
            known = self.broker_addr_table.setdefault(broker.broker_name, _Broker(broker.cluster))
            known.zone = broker.zone
            known.enable_acting_master = broker.enable_acting_master
            # A slave turned master, or the reverse: one address has one record.
            for broker_id in [i for i, a in known.addresses.items() if a == broker.address and i != broker.broker_id]:
                del known.addresses[broker_id]
            is_first = broker.broker_id not in known.addresses
            known.addresses[broker.broker_id] = broker.address
            if broker.broker_id == MASTER:
                self._put_queues(broker, topics, is_first=is_first)
            self._renew(broker, topics, now, connection)
            if topics.filter_servers:
                self.filter_server_table[broker.key] = topics.filter_servers
            elif topics.filter_servers is not None:
                self.filter_server_table.pop(broker.key, None)
            return self._answer(broker, known)

    def _is_refused(self, broker: Registration, topics: RegisteredTopics) -> bool:
        known = self.broker_addr_table.get(broker.broker_name)
        current = known.addresses.get(broker.broker_id) if known else None
        if current is None or known is None:
            if len(topics.queues) == 1:
                _log.warning("change of an unregistered broker refused broker=%s", broker.broker_name)
                return True
            return False
        if current == broker.address:
            return False
        rival = self.broker_live_table.get(BrokerAddress(known.cluster, current))
        if rival is not None and rival.version.state_version > topics.version.state_version:
            _log.warning("older broker refused broker=%s address=%s", broker.broker_name, broker.address)
            self._forget(broker.key, broker.broker_name)
            return True
        return False

    def _put_queues(self, broker: Registration, topics: RegisteredTopics, *, is_first: bool) -> None:
        live = self.broker_live_table.get(broker.key)
        is_changed = is_first or live is None or live.version != topics.version
        for topic, queue in topics.queues.items():
            brokers = self.topic_queue_table.setdefault(topic, {})
            if is_changed or broker.broker_name not in brokers:
                brokers[broker.broker_name] = queue

    def _renew(self, broker: Registration, topics: RegisteredTopics, now: int, connection: int | None) -> None:
        if broker.key not in self.broker_live_table:
            _log.info(
                "broker registered broker=%s id=%d address=%s", broker.broker_name, broker.broker_id, broker.address
            )
        lease_ms = broker.lease_ms or self._lease_ms
        self.broker_live_table[broker.key] = BrokerLive(
            broker.broker_name,
            broker.broker_id,
            now + lease_ms,
            lease_ms,
            topics.version,
            connection,
            broker.ha_address,
        )

    def _answer(self, broker: Registration, known: _Broker) -> Registered:
        master = known.addresses.get(MASTER)
        if broker.broker_id == MASTER or master is None:
            return Registered()
        live = self.broker_live_table.get(BrokerAddress(broker.cluster, master))
        return Registered(master, live.ha_address) if live else Registered()

    def unregister(self, broker: Registration) -> None:
        """Forget a broker, and what was reachable through it alone."""
        with self._lock:
            live = self.broker_live_table.get(broker.key)
            self._forget(broker.key, live.broker_name if live else broker.broker_name)

    def _forget(self, key: BrokerAddress, broker_name: str) -> None:
        self.broker_live_table.pop(key, None)
        self.filter_server_table.pop(key, None)
        known = self.broker_addr_table.get(broker_name)
        if known is None:
            return
        known.addresses = {i: address for i, address in known.addresses.items() if address != key.address}
        if known.addresses:
            return
        del self.broker_addr_table[broker_name]
        for cluster in [c for c, names in self.cluster_addr_table.items() if broker_name in names]:
            self.cluster_addr_table[cluster].discard(broker_name)
            if not self.cluster_addr_table[cluster]:
                del self.cluster_addr_table[cluster]
        for topic in [t for t, brokers in self.topic_queue_table.items() if broker_name in brokers]:
            del self.topic_queue_table[topic][broker_name]
            if not self.topic_queue_table[topic]:
                del self.topic_queue_table[topic]

    def expire(self, now: int) -> list[int]:
        """
        Forget the brokers whose lease ended before *now* and return their connections, to be closed.

        The table has no clock of its own, so tests can move time freely.
        """
        with self._lock:
            ended = [(key, live) for key, live in self.broker_live_table.items() if live.expires_at < now]
            for key, live in ended:
                _log.warning("lease of broker ended broker=%s address=%s", live.broker_name, key.address)
                self._forget(key, live.broker_name)
            return [live.connection for _, live in ended if live.connection is not None]

    def close_connection(self, connection: int) -> None:
        """Forget the brokers that registered over *connection*, which is gone."""
        with self._lock:
            gone = [(key, live) for key, live in self.broker_live_table.items() if live.connection == connection]
            for key, live in gone:
                _log.info("connection of broker closed broker=%s address=%s", live.broker_name, key.address)
                self._forget(key, live.broker_name)

    def renew(self, key: BrokerAddress, now: int) -> None:
        """Renew the lease of a broker, where there is one."""
        with self._lock:
            live = self.broker_live_table.get(key)
            if live is not None:
                live.expires_at = now + live.lease_ms

    def version(self, key: BrokerAddress) -> DataVersion | None:
        """Return the version of the topics a broker registered last; None where it is not registered."""
        with self._lock:
            live = self.broker_live_table.get(key)
            return live.version if live else None

    def lookup(self, topic: str) -> TopicRoute | None:
        """Return the route of *topic*; None where no registered broker has it."""
        with self._lock:
            queues = self.topic_queue_table.get(topic)
            if not queues:
                return None
            brokers = [self._broker_data(name) for name in sorted(queues)]
            filters = {
                address: self.filter_server_table[key]
                for broker in brokers
                for address in broker.addresses.values()
                if (key := BrokerAddress(broker.cluster, address)) in self.filter_server_table
            }
            return TopicRoute(tuple(queues[name] for name in sorted(queues)), tuple(brokers), filters)

    def _broker_data(self, name: str) -> BrokerData:
        known = self.broker_addr_table[name]
        return BrokerData(known.cluster, name, dict(known.addresses), known.zone, known.enable_acting_master)

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Forget where *topic* is, on the brokers of *cluster* or on all; a broker that still has it brings it back."""
        with self._lock:
            brokers = self.topic_queue_table.get(topic, {})
            gone = set(brokers) if cluster is None else self.cluster_addr_table.get(cluster, set())
            kept = {name: queue for name, queue in brokers.items() if name not in gone}
            if kept:
                self.topic_queue_table[topic] = kept
            else:
                self.topic_queue_table.pop(topic, None)

    def topics(self) -> list[str]:
        """Return the names of all topics."""
        with self._lock:
            return sorted(self.topic_queue_table)

    def cluster_info(self) -> dict[str, Any]:
        """Return brokers and clusters in the form Java reads."""
        with self._lock:
            return {
                "brokerAddrTable": {name: self._broker_data(name).to_json() for name in sorted(self.broker_addr_table)},
                "clusterAddrTable": {c: sorted(names) for c, names in sorted(self.cluster_addr_table.items())},
            }
