"""
The broker's role, master or slave, and what follows from it.

A master delivers delayed messages. A slave takes over its master's tables, refuses changes of them, and serves no
consumers: messages are not replicated yet.
"""

import logging
import threading
from collections.abc import Callable
from pathlib import Path

from ferromq._ferromq import RemotingClient, Store
from ferromq.broker.cluster.name_servers import Master, NameServers
from ferromq.broker.cluster.registrar import Registrar
from ferromq.broker.cluster.replication import Replica, SlaveSync
from ferromq.broker.hot_path import HotPath
from ferromq.broker.metadata.groups import GroupTable
from ferromq.broker.metadata.request_modes import RequestModes
from ferromq.broker.metadata.topics import TopicTable
from ferromq.config.broker import BrokerConfig
from ferromq.config.membership import MembershipConfig
from ferromq.process.clock import Clock
from ferromq.protocol.route import Permission

_log = logging.getLogger("ferromq.broker")


class Role:
    """Starts, changes and stops what the role needs; thread-safe."""

    def __init__(
        self,
        config: Callable[[], BrokerConfig],
        clock: Clock,
        name_servers: NameServers,
        registrar: Registrar,
        hot_path: HotPath,
        *,
        store: Store,
        topics: TopicTable,
        groups: GroupTable,
        modes: RequestModes,
    ) -> None:
        self._config = config
        self._clock = clock
        self._name_servers = name_servers
        self._registrar = registrar
        self._hot_path = hot_path
        self._topics = topics
        self._store = store
        self._replica = Replica(Path(config().store), store, topics, groups, modes)
        # Held while the role changes, and while a reported master is taken over.
        self._lock = threading.Lock()
        self._master: Master | None = None
        self._sync: SlaveSync | None = None

    @property
    def is_slave(self) -> bool:
        """Whether the broker follows a master of its name."""
        return self._config().membership.is_slave

    @property
    def master(self) -> Master | None:
        """The master that name servers reported last."""
        return self._master

    def prepare(self) -> None:
        """Make a master correct the delivery of delayed messages to its own log, before it accepts a message."""
        if not self.is_slave:
            self._store.start_schedule()

    def start(self) -> None:
        """Deliver delayed messages as a master, or follow the master as a slave."""
        self.prepare()
        if not self.is_slave:
            return
        membership = self._config().membership
        self._store.stop_schedule()
        _log.warning(
            "slave: topics and groups come from the master, its messages are not replicated yet; this broker accepts "
            "no messages and serves no consumers broker_id=%d",
            membership.broker_id,
        )
        sync = SlaveSync(
            self._replica,
            self._name_servers.identity.address,
            RemotingClient(**self._config().outgoing()),
            clock=self._clock,
            period=membership.sync_interval,
        )
        with self._lock:
            self._sync = sync
            self._follow(self._master)
        sync.start()

    def stop(self) -> None:
        """Stop following the master."""
        with self._lock:
            sync, self._sync = self._sync, None
        if sync is not None:
            sync.stop()

    def change(self, before: MembershipConfig, after: MembershipConfig) -> None:
        """Take another role or permission, and register it."""
        self.stop()
        self._hot_path.push_role(after)
        self.prepare()
        with self._lock:
            self._name_servers.become(after.broker_id, Permission(after.permission))
            if after.broker_id != before.broker_id:
                self._master = None
                _log.warning("role changed broker_id=%d before=%d", after.broker_id, before.broker_id)
        if after.permission != before.permission and not after.is_slave:
            self._topics.advance_version()
        self._topics.push_all()
        self.start()
        self._registrar.register()

    def set_master(self, master: Master | None, generation: int) -> None:
        """Follow the master that name servers report, unless they answered an earlier role of this broker."""
        with self._lock:
            if generation == self._name_servers.identity.generation:
                self._follow(master)

    def changes_refused(self) -> str | None:
        """Return why topics, groups and offsets cannot be changed here; None on a master."""
        if not self.is_slave:
            return None
        where = f"at {self._master.address}" if self._master else "the name servers know none now"
        return (
            f"Can't modify topics, groups or offsets on a slave, whose tables are its master's; ask its master: {where}"
        )

    def reads_refused(self) -> str | None:
        """Return why consumers are not served here; None on a master."""
        if not self.is_slave:
            return None
        return "this broker is a slave, and slaves have no messages of their master yet; ask the master"

    def _follow(self, master: Master | None) -> None:
        self._master = master
        if self._sync is not None:
            self._sync.follow(master.address if master else None)
