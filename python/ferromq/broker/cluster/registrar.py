"""
Tells others what the tables hold: the hot path every change at once, name servers every change and every period.

What the tables hold is decided by `topics` and `groups`, how name servers are spoken to by `name_servers`, and what is
made of the master they name by `controller`.
"""

import logging
from collections.abc import Callable, Sequence
from datetime import timedelta

from ferromq._ferromq import Server
from ferromq.broker.cluster import registration_body
from ferromq.broker.cluster.name_servers import Master, NameServers
from ferromq.broker.metadata.groups import GroupConfig
from ferromq.broker.metadata.topics import RegistrationWait, TopicConfig, TopicTable
from ferromq.config.broker import BrokerConfig
from ferromq.config.membership import MembershipConfig
from ferromq.process.clock import Clock, Timer
from ferromq.protocol import naming
from ferromq.protocol.route import Permission

_log = logging.getLogger("ferromq.broker")

_MILLISECOND = timedelta(milliseconds=1)
_RETRY = timedelta(seconds=2)
_SHORTEST, _LONGEST = timedelta(seconds=10), timedelta(seconds=60)


def registration_period(wanted: timedelta) -> timedelta:
    """Return how often to register: RocketMQ's limits hold for what is wanted, so that leases are renewed in time."""
    period = max(_SHORTEST, min(wanted, _LONGEST))
    if period != wanted:
        _log.warning("registration period is limited wanted=%s used=%s", wanted, period)
    return period


class Registrar:
    """
    Pushes entries to the hot path and registers with the name servers; thread-safe.

    *on_master* hears whom the name servers call the master, each time they say something of it, and the generation of
    the role they were told.
    """

    def __init__(
        self,
        server: Server,
        name_servers: NameServers,
        clock: Clock,
        period: timedelta,
        *,
        membership: Callable[[], MembershipConfig],
        on_master: Callable[[Master | None, int], None],
    ) -> None:
        self._server = server
        self._name_servers = name_servers
        self._membership = membership
        self._on_master = on_master
        self._clock = clock
        self._topics: TopicTable | None = None
        self._timer = Timer("ferromq-registration", clock, period, self._renew)

    def start(self, topics: TopicTable) -> None:
        """Register now, and again every period; what failed is tried again soon."""
        self._topics = topics
        self._name_servers.try_soon = self._try_soon
        self.register()
        self._timer.start()

    def stop(self) -> None:
        """Register no more, and say goodbye to the name servers."""
        self._timer.stop()
        self._name_servers.unregister()
        # The table calls this object on changes: let go, nothing is left for the garbage collector.
        self._topics = None
        self._name_servers.try_soon = lambda: None
        self._on_master = lambda _master, _generation: None

    def set_period(self, period: timedelta) -> None:
        """Register this often from now on."""
        self._timer.every(period)

    def topics_changed(self, _names: Sequence[str], wait: RegistrationWait) -> None:
        """Register the topics that changed, and wait as told for the name servers that answer."""
        topics = self._topics
        if topics is not None and self._name_servers:
            self._name_servers.register_change(lambda: topics.content, wait, self._try_soon)

    def push_topic(self, name: str, topic: TopicConfig | None) -> None:
        """Push a topic to the hot path, or take it away."""
        if topic is None:
            self._server.remove_topic(name)
            return
        membership = self._membership()
        allowed = registration_body.restricted(topic, Permission(membership.permission))
        # Routes show what RocketMQ's do; what is kept in internal ones is written by the broker alone, and what a slave
        # has comes from its master.
        if naming.is_internal_topic(name) or membership.is_slave:
            allowed &= ~Permission.WRITE
        self._server.put_topic(
            name,
            read_queues=topic.read_queues,
            write_queues=topic.write_queues,
            permission=int(allowed),
            message_type=topic.message_type,
        )

    def push_group(self, name: str, group: GroupConfig | None) -> None:
        """Push a consumer group to the hot path, or take it away."""
        if group is None:
            self._server.remove_group(name)
            return
        self._server.put_group(
            name,
            enabled=group.enabled,
            max_attempts=group.max_attempts,
            # RocketMQ keeps `consumeFromMinEnable` and looks at it nowhere; its tools say false unless told otherwise.
            from_beginning=True,
            broadcast=group.broadcast,
            retry_queues=group.retry_queues,
            ordered=group.fifo,
            priority_factor=group.priority_factor,
        )

    def push_forbidden(self, group: str, topics: list[str]) -> None:
        """Tell the hot path which topics a group may not read."""
        self._server.put_forbidden(group, topics)

    def push_role(self, membership: MembershipConfig) -> None:
        """Tell the hot path whether consumers are served: a slave has no messages of its master."""
        self._server.refuse_reads(membership.is_slave)

    def push_read_policy(self, config: BrokerConfig) -> None:
        """Tell the hot path how messages may be filtered, and how much an answer gives."""
        self._server.put_sql_filters(config.sends.sql_filters)
        reads = config.reads
        self._server.put_transfer_limits(
            near_count=reads.transfer_count,
            near_bytes=reads.transfer_bytes,
            far_count=reads.far_transfer_count,
            far_bytes=reads.far_transfer_bytes,
            near_span=reads.near_span,
            scan_entries=reads.filter_scan_entries,
        )

    def push_client_policy(self, config: BrokerConfig) -> None:
        """Tell the hot path what clients may ask for."""
        used = config.compatibility.used
        self._server.set_client_policy(
            min_invisible_ms=used["min_invisible_time"] // _MILLISECOND,
            max_invisible_ms=used["max_invisible_time"] // _MILLISECOND,
            max_delay_ms=used["max_delay_time"] // _MILLISECOND,
            creates_topics=used["grpc_creates_topics"],
            redelivers_from_first=used["ordered_redelivery"] == "from_first",
        )

    def push_send_policy(self, config: BrokerConfig) -> None:
        """Tell the hot path what messages are stamped with, and which are taken."""
        self._server.set_send_policy(
            cluster=config.cluster,
            region=config.sends.region,
            trace=config.sends.trace,
            reject_transactions=config.transactions.reject_transactions,
            check_types=config.sends.check_types,
        )

    def register(self, *, is_forced: bool = True) -> None:
        """Register everything; unless *is_forced*, only where a name server has another version of it."""
        topics = self._topics
        if topics is None or not self._name_servers:
            return
        # Time that is moved by hand stands until all is done; else one that hangs must not delay the next period.
        outcome = self._name_servers.register(
            lambda: topics.content, is_forced=is_forced, waits_for_all=self._clock.is_manual
        )
        if outcome.has_answers:
            self._on_master(outcome.master, outcome.generation)
        # A slave has its master's word for it.
        if outcome.ordered and not self._membership().is_slave:
            topics.set_order(outcome.ordered, "name servers")
        if not outcome.is_complete:
            self._try_soon()

    def _try_soon(self) -> None:
        self._timer.within(_RETRY)

    def _renew(self, _now: int) -> None:
        self.register(is_forced=self._membership().force_register)
