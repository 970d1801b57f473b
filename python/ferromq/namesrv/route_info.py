"""
The routes of a name server: five tables under one lock.

Pure state without clock (`now` is an argument, in milliseconds) and sockets (a connection is a number). Registrations
are leases: `expire` ends those that were not renewed, `close_connection` those whose connection is gone.
"""

import contextlib
import logging
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ferromq.namesrv.route_types import (
    BrokerAddress,
    BrokerLive,
    MinBrokerIdChange,
    OrderChange,
    OrderDeletion,
    Registered,
    RegisteredTopics,
    Registration,
)
from ferromq.process.limited_log import LimitedLog
from ferromq.protocol import naming
from ferromq.protocol.route import MASTER, READ_WRITE, BrokerData, DataVersion, Permission, QueueData, TopicRoute

_log = logging.getLogger("ferromq.namesrv")

DEFAULT_LEASE_MS = 120_000
_LEAST_NAMES = 256
"""With fewer broker names, none is forgotten."""


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

    Before a change is answered, *on_order* is called with its effects on order configurations, *on_change* with the
    topics whose routes changed, and *on_minimum* with each change of a lowest broker id. *in_order_configurations*
    returns the broker names in order configurations; it must not call this object.
    """

    def __init__(
        self,
        lease_ms: int = DEFAULT_LEASE_MS,
        *,
        on_change: Callable[[Collection[str]], object] = lambda _topics: None,
        on_minimum: Callable[[MinBrokerIdChange], object] = lambda _change: None,
        on_order: Callable[[Sequence[OrderChange | OrderDeletion]], object] = lambda _changes: None,
        in_order_configurations: Callable[[], Collection[str]] = tuple,
    ) -> None:
        self.acting_master = False
        """Whether routes show the first slave in place of a lost master, if the broker allows it."""
        self.delete_missing_topics = False
        """Whether a master loses the topics that it no longer registers."""
        self.lease_ms = lease_ms
        """How long a registration lasts, unless the broker sets its own time."""
        self._on_change = on_change
        self._on_minimum = on_minimum
        self._on_order = on_order
        self._lock = threading.Lock()
        self._limited_log = LimitedLog(_log)
        self.topic_queue_table: dict[str, dict[str, QueueData]] = {}
        self.broker_addr_table: dict[str, _Broker] = {}
        self.cluster_addr_table: dict[str, set[str]] = {}
        self.broker_live_table: dict[BrokerAddress, BrokerLive] = {}
        self.filter_server_table: dict[BrokerAddress, tuple[str, ...]] = {}
        # Indexes of the tables.
        self._topics_of: dict[str, set[str]] = {}
        self._keys_of: dict[int, set[BrokerAddress]] = {}
        self._changed: set[str] = set()
        self._minimum_changes: list[MinBrokerIdChange] = []
        self._order_changes: list[OrderChange | OrderDeletion] = []
        # Includes absent brokers that an order configuration may name.
        self._cluster_of: dict[str, str] = {}
        self._forget_away_at = _LEAST_NAMES
        self._in_order_configurations = in_order_configurations
        self._in_order: set[str] = set()
        self._of_other_types: dict[str, set[str]] = {}

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        with self._lock:
            yield
            changed, self._changed = self._changed, set()
            minimum_changes, self._minimum_changes = self._minimum_changes, []
            order_changes, self._order_changes = self._order_changes, []
        if order_changes:
            self._on_order(order_changes)
        if changed:
            self._on_change(changed)
        for change in minimum_changes:
            self._on_minimum(change)

    def register(
        self, broker: Registration, topics: RegisteredTopics, now: int, connection: int | None = None
    ) -> Registered | None:
        """
        Add a broker or renew its lease, and store the topics of a master.

        Returns None for a refusal: an unknown broker must register all topics before it sends a change (a single topic
        is one), and an older broker (by state version) cannot replace a newer one.
        """
        with self._changing():
            if self._is_refused(broker, topics):
                return None
            before = self.broker_live_table.get(broker.key)
            if before is not None and before.broker_name != broker.broker_name:
                self._forget(broker.key, before.broker_name)
            self.cluster_addr_table.setdefault(broker.cluster, set()).add(broker.broker_name)
            self._cluster_of[broker.broker_name] = broker.cluster
            self._forget_away()
            known = self.broker_addr_table.setdefault(broker.broker_name, _Broker(broker.cluster))
            is_first = self._put_address(broker, known)
            if broker.broker_id == MASTER:
                newly = topics.in_order - self._in_order
                self._in_order |= newly
                others = self._of_other_types.setdefault(broker.broker_name, set())
                others.difference_update(topics.queues)
                others |= topics.of_other_types
                self._put_queues(broker, topics, topics.queues, is_first=is_first)
                # Includes brokers that had the topic before it became a FIFO topic.
                for topic in newly:
                    for queue in self.topic_queue_table.get(topic, {}).values():
                        self._order_changed(topic, queue)
                self._leave_orders(broker.broker_name, topics.of_other_types & self._in_order)
            elif known.enable_acting_master and broker.broker_id == min(known.addresses):
                queues = {topic: _read_only(queue) for topic, queue in topics.queues.items()}
                self._put_queues(broker, topics, queues, is_first=is_first)
            self._renew(broker, topics, now, connection)
            self._put_filter_servers(broker, topics.filter_servers)
            return self._answer(broker, known)

    def _is_refused(self, broker: Registration, topics: RegisteredTopics) -> bool:
        known = self.broker_addr_table.get(broker.broker_name)
        current = known.addresses.get(broker.broker_id) if known else None
        if current is None or known is None:
            if topics.is_change or len(topics.queues) == 1:
                self._refuse("change refused, broker not registered", broker)
                return True
            return False
        if current == broker.address:
            return False
        if topics.is_change:
            self._refuse("change refused, another broker has this id", broker)
            return True
        rival = self.broker_live_table.get(BrokerAddress(known.cluster, current))
        if rival is not None and rival.version.state_version > topics.version.state_version:
            self._refuse("older broker refused", broker)
            self._forget(broker.key, broker.broker_name)
            return True
        return False

    def _forget_away(self) -> None:
        """Forget the clusters of absent brokers without order configuration, once there are many names."""
        if len(self._cluster_of) < self._forget_away_at:
            return
        needed = set().union(self._in_order_configurations(), *self.cluster_addr_table.values())
        self._cluster_of = {name: cluster for name, cluster in self._cluster_of.items() if name in needed}
        self._forget_away_at = _LEAST_NAMES + 2 * len(self._cluster_of)

    def _refuse(self, why: str, broker: Registration) -> None:
        self._limited_log.log(
            logging.WARNING, "%s broker=%.200s address=%.200s", why, broker.broker_name, broker.address
        )

    def _put_address(self, broker: Registration, known: _Broker) -> bool:
        """Set the broker's address for its name and id; return whether the id is new."""
        before = (known.zone, known.enable_acting_master, dict(known.addresses))
        minimum = min(known.addresses, default=MASTER)
        # An address has one id, also after a slave became a master or the reverse.
        for broker_id in [i for i, a in known.addresses.items() if a == broker.address and i != broker.broker_id]:
            del known.addresses[broker_id]
        is_first = broker.broker_id not in known.addresses
        known.addresses[broker.broker_id] = broker.address
        known.zone, known.enable_acting_master = broker.zone, broker.enable_acting_master
        if before != (known.zone, known.enable_acting_master, known.addresses):
            self._changed |= self._topics_of.get(broker.broker_name, set())
        if broker.broker_id < minimum:
            self._minimum_changed(broker.broker_name, known, ha_address=broker.ha_address)
        return is_first

    def _put_queues(
        self, broker: Registration, topics: RegisteredTopics, queues: Mapping[str, QueueData], *, is_first: bool
    ) -> None:
        name = broker.broker_name
        live = self.broker_live_table.get(broker.key)
        is_changed = is_first or live is None or live.version != topics.version
        there = self._topics_of.setdefault(name, set())
        is_whole = not topics.is_change and not topics.has_static_topics
        if is_changed and self.delete_missing_topics and is_whole:
            self._remove_queues(name, there - queues.keys())
        for topic in queues if is_changed else queues.keys() - there:
            queue, brokers = queues[topic], self.topic_queue_table.setdefault(topic, {})
            before = brokers.get(name)
            if before != queue:
                brokers[name] = queue
                there.add(topic)
                self._changed.add(topic)
                if broker.broker_id == MASTER:
                    self._order_changed(topic, queue, is_back=before is None)

    def _order_changed(self, topic: str, queue: QueueData, *, is_back: bool = False) -> None:
        is_in_order = topic in self._in_order
        is_other = is_in_order and topic in self._of_other_types.get(queue.broker_name, ())
        queues = queue.write_queues if queue.permission & Permission.WRITE and not is_other else 0
        self._order_changes.append(OrderChange(topic, queue.broker_name, queues, is_in_order, is_back))

    def _leave_orders(self, broker_name: str, topics: Iterable[str]) -> None:
        """Remove a broker from the order configurations of topics that now have another message type there."""
        for topic in topics:
            self._order_changes.append(OrderChange(topic, broker_name, 0, is_in_order=True))
            if all(topic in self._of_other_types.get(name, ()) for name in self.topic_queue_table[topic]):
                self._in_order.discard(topic)

    def _remove_queues(self, broker_name: str, topics: Iterable[str]) -> None:
        there = self._topics_of[broker_name]
        for topic in list(topics):
            there.discard(topic)
            brokers = self.topic_queue_table[topic]
            del brokers[broker_name]
            if not brokers:
                del self.topic_queue_table[topic]
            self._changed.add(topic)

    def _renew(self, broker: Registration, topics: RegisteredTopics, now: int, connection: int | None) -> None:
        before = self.broker_live_table.get(broker.key)
        if before is None:
            _log.info(
                "broker registered broker=%s id=%d address=%s topics=%d",
                *(broker.broker_name, broker.broker_id, broker.address, len(topics.queues)),
            )
        elif before.connection != connection:
            self._leave_connection(broker.key, before.connection)
        if connection is not None:
            self._keys_of.setdefault(connection, set()).add(broker.key)
        lease_ms = broker.lease_ms or self.lease_ms
        self.broker_live_table[broker.key] = BrokerLive(
            broker.broker_name,
            broker.broker_id,
            now + lease_ms,
            lease_ms,
            topics.version,
            connection,
            broker.ha_address,
        )

    def _put_filter_servers(self, broker: Registration, servers: tuple[str, ...] | None) -> None:
        if servers is None or servers == self.filter_server_table.get(broker.key, ()):
            return
        if servers:
            self.filter_server_table[broker.key] = servers
        else:
            del self.filter_server_table[broker.key]
        self._changed |= self._topics_of.get(broker.broker_name, set())

    def _answer(self, broker: Registration, known: _Broker) -> Registered:
        master = known.addresses.get(MASTER)
        if broker.broker_id == MASTER or master is None:
            return Registered()
        live = self.broker_live_table.get(BrokerAddress(broker.cluster, master))
        return Registered(master, live.ha_address) if live else Registered()

    def unregister(self, broker: Registration) -> None:
        """Remove a broker, and the queues and names that only it had."""
        with self._changing():
            live = self.broker_live_table.get(broker.key)
            self._forget(broker.key, live.broker_name if live else broker.broker_name)

    def _forget(self, key: BrokerAddress, broker_name: str) -> None:
        live = self.broker_live_table.pop(key, None)
        if live is not None:
            self._leave_connection(key, live.connection)
        self.filter_server_table.pop(key, None)
        known = self.broker_addr_table.get(broker_name)
        if known is None:
            return
        gone = [broker_id for broker_id, address in known.addresses.items() if address == key.address]
        is_minimum = min(known.addresses) in gone
        for broker_id in gone:
            del known.addresses[broker_id]
        there = self._topics_of.get(broker_name, set())
        if gone:
            self._changed |= there
        if not known.addresses:
            self._forget_name(broker_name, there)
        elif known.enable_acting_master:
            if MASTER not in known.addresses:
                self._set_permission(broker_name, lambda permission: permission & ~Permission.WRITE)
            if is_minimum:
                self._minimum_changed(broker_name, known, gone_address=key.address)

    def _forget_name(self, broker_name: str, topics: set[str]) -> None:
        del self.broker_addr_table[broker_name]
        for cluster in [c for c, names in self.cluster_addr_table.items() if broker_name in names]:
            self.cluster_addr_table[cluster].discard(broker_name)
            if not self.cluster_addr_table[cluster]:
                del self.cluster_addr_table[cluster]
        if topics:
            self._remove_queues(broker_name, topics)
        self._topics_of.pop(broker_name, None)
        self._of_other_types.pop(broker_name, None)

    def _leave_connection(self, key: BrokerAddress, connection: int | None) -> None:
        keys = self._keys_of.get(connection, set()) if connection is not None else set()
        keys.discard(key)
        if connection is not None and not keys:
            self._keys_of.pop(connection, None)

    def _minimum_changed(
        self, broker_name: str, known: _Broker, *, gone_address: str | None = None, ha_address: str | None = None
    ) -> None:
        lowest = min(known.addresses)
        is_alone = len(known.addresses) == 1
        notify = (a for i, a in known.addresses.items() if gone_address is not None or is_alone or i != lowest)
        self._minimum_changes.append(
            MinBrokerIdChange(broker_name, lowest, known.addresses[lowest], gone_address, ha_address, tuple(notify))
        )

    def expire(self, now: int) -> list[int]:
        """
        Remove the brokers whose lease ended before *now* and return their connections, to be closed.

        The table has no clock of its own, so tests can move time freely.
        """
        with self._changing():
            ended = [(key, live) for key, live in self.broker_live_table.items() if live.expires_at < now]
            for key, live in ended:
                _log.warning("broker expired broker=%s address=%s", live.broker_name, key.address)
                self._forget(key, live.broker_name)
            return [live.connection for _, live in ended if live.connection is not None]

    def brokers_of(self, connection: int) -> frozenset[BrokerAddress]:
        """Return the brokers that registered over *connection*."""
        with self._lock:
            return frozenset(self._keys_of.get(connection, ()))

    def close_connection(self, connection: int) -> None:
        """Remove the brokers that registered over *connection*, which is closed."""
        with self._changing():
            for key in sorted(self._keys_of.get(connection, ())):
                live = self.broker_live_table[key]
                _log.info("broker disconnected broker=%s address=%s", live.broker_name, key.address)
                self._forget(key, live.broker_name)

    def renew(self, key: BrokerAddress, now: int) -> None:
        """Renew the lease of a broker, if it is registered."""
        with self._lock:
            live = self.broker_live_table.get(key)
            if live is not None:
                live.expires_at = now + live.lease_ms

    def version(self, key: BrokerAddress) -> DataVersion | None:
        """Return the version of a broker's last registered topics; None if it is not registered."""
        with self._lock:
            live = self.broker_live_table.get(key)
            return live.version if live else None

    def register_topic(self, topic: str, queues: Iterable[QueueData]) -> None:
        """Add or replace the queues of *topic* on brokers. Raises `KeyError` with the first unknown broker."""
        with self._changing():
            given = {queue.broker_name: queue for queue in queues}
            for name in given:
                if name not in self.broker_addr_table:
                    raise KeyError(name)
            for name in given:
                self._topics_of.setdefault(name, set()).add(topic)
            if given:
                self.topic_queue_table[topic] = self.topic_queue_table.get(topic, {}) | given
                self._changed.add(topic)

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """
        Delete the route of *topic*, on the brokers of *cluster* or on all. A broker that still has it restores it.

        The parts of its order configuration are deleted too, including those of absent brokers.
        """
        with self._changing():
            brokers = self.topic_queue_table.get(topic, {})
            gone = set(brokers) if cluster is None else self.cluster_addr_table.get(cluster, set())
            for name in brokers.keys() & gone:
                self._remove_queues(name, [topic])
            if cluster is None:
                self._order_changes.append(OrderDeletion(topic))
            elif cluster in self._cluster_of.values():
                goes = frozenset(name for name, its in self._cluster_of.items() if its == cluster)
                self._order_changes.append(OrderDeletion(topic, goes, frozenset(self._cluster_of) - goes))
            if topic not in self.topic_queue_table:
                self._in_order.discard(topic)

    def wipe_write_permission(self, broker_name: str) -> int:
        """Remove the write permission of the broker's topics until it registers them again; return their number."""
        with self._changing():
            count = self._set_permission(broker_name, lambda permission: permission & ~Permission.WRITE)
            self._orders_changed(broker_name)
            return count

    def add_write_permission(self, broker_name: str) -> int:
        """Allow reads and writes of the broker's topics until it registers them again; return their number."""
        with self._changing():
            count = self._set_permission(broker_name, lambda _: READ_WRITE)
            self._orders_changed(broker_name)
            return count

    def _orders_changed(self, broker_name: str) -> None:
        for topic in self._topics_of.get(broker_name, ()):
            self._order_changed(topic, self.topic_queue_table[topic][broker_name])

    def _set_permission(self, broker_name: str, change: Callable[[Permission], Permission]) -> int:
        topics = self._topics_of.get(broker_name, set())
        for topic in topics:
            brokers = self.topic_queue_table[topic]
            queue = brokers[broker_name]
            brokers[broker_name] = replace(queue, permission=change(queue.permission))
        self._changed |= topics
        return len(topics)

    def lookup(self, topic: str) -> TopicRoute | None:
        """Return the route of *topic*; None if no registered broker has it."""
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
            if self.acting_master and not topic.startswith(naming.MEMBER_TOPIC_PREFIX):
                brokers = [_with_acting_master(broker, queues[broker.broker_name]) for broker in brokers]
            return TopicRoute(tuple(queues[name] for name in sorted(queues)), tuple(brokers), filters)

    def _broker_data(self, name: str) -> BrokerData:
        known = self.broker_addr_table[name]
        return BrokerData(known.cluster, name, dict(known.addresses), known.zone, known.enable_acting_master)

    def topics(self, *, cluster: str | None = None) -> list[str]:
        """Return the names of all topics, or of those on the brokers of *cluster*."""
        with self._lock:
            if cluster is None:
                return sorted(self.topic_queue_table)
            names = self.cluster_addr_table.get(cluster, ())
            return sorted(set().union(*(self._topics_of.get(name, ()) for name in names)))

    def topics_flagged(self, is_wanted: Callable[[int], bool]) -> list[str]:
        """Return the topics for which *is_wanted* accepts the flags of the first broker."""
        with self._lock:
            table = self.topic_queue_table.items()
            return sorted(topic for topic, brokers in table if is_wanted(next(iter(brokers.values())).sys_flag))

    def system_topics(self) -> tuple[list[str], str | None]:
        """Return the names of clusters and brokers, which are topics too, and the address of one broker, if any."""
        with self._lock:
            names = self.cluster_addr_table.keys() | set().union(*self.cluster_addr_table.values())
            addresses = (next(iter(broker.addresses.values())) for broker in self.broker_addr_table.values())
            return sorted(names), next(addresses, None)

    def members(self, broker_name: str) -> dict[int, str]:
        """Return the addresses of a broker name by broker id."""
        with self._lock:
            known = self.broker_addr_table.get(broker_name)
            return dict(known.addresses) if known else {}

    def cluster_info(self) -> dict[str, Any]:
        """Return brokers and clusters in Java's form."""
        with self._lock:
            return {
                "brokerAddrTable": {name: self._broker_data(name).to_json() for name in sorted(self.broker_addr_table)},
                "clusterAddrTable": {c: sorted(names) for c, names in sorted(self.cluster_addr_table.items())},
            }


def _read_only(queue: QueueData) -> QueueData:
    return replace(queue, permission=queue.permission & ~Permission.WRITE)


def _with_acting_master(broker: BrokerData, queue: QueueData) -> BrokerData:
    if MASTER in broker.addresses or not broker.enable_acting_master or queue.permission & Permission.WRITE:
        return broker
    lowest = min(broker.addresses)
    others = {broker_id: address for broker_id, address in broker.addresses.items() if broker_id != lowest}
    return replace(broker, addresses={MASTER: broker.addresses[lowest], **others})
