"""
Pushes tables and options to the hot path, the part of the broker in Rust that answers without Python.

An option that changes a hot request takes effect here; `BrokerController` calls it at start and after each change.
"""

from collections.abc import Callable
from datetime import timedelta

from ferromq._ferromq import Server
from ferromq.broker.metadata.groups import GroupConfig
from ferromq.broker.metadata.topics import TopicConfig
from ferromq.config.broker import BrokerConfig
from ferromq.config.limits import parse_limits
from ferromq.config.membership import MembershipConfig
from ferromq.protocol import naming
from ferromq.protocol.route import Permission

_MILLISECOND = timedelta(milliseconds=1)


class HotPath:
    """Pushes topics, groups and policies to *server*; thread-safe. Topics get the permission of *membership*."""

    def __init__(self, server: Server, membership: Callable[[], MembershipConfig]) -> None:
        self._server = server
        self._membership = membership

    def push_topic(self, name: str, topic: TopicConfig | None) -> None:
        """Push a topic; None removes it."""
        if topic is None:
            self._server.remove_topic(name)
            return
        membership = self._membership()
        allowed = topic.permission_within(Permission(membership.permission))
        # Clients never write internal topics, whatever routes say. A slave's messages come from its master.
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
        """Push a consumer group; None removes it."""
        if group is None:
            self._server.remove_group(name)
            return
        self._server.put_group(
            name,
            enabled=group.enabled,
            max_attempts=group.max_attempts,
            # RocketMQ stores `consumeFromMinEnable` and never reads it; its tools set it to false by default.
            from_beginning=True,
            broadcast=group.broadcast,
            retry_queues=group.retry_queues,
            ordered=group.fifo,
            priority_factor=group.priority_factor,
        )

    def push_forbidden(self, group: str, topics: list[str]) -> None:
        """Push the topics that a group may not read."""
        self._server.put_forbidden(group, topics)

    def push_policies(self, config: BrokerConfig) -> None:
        """Push everything that options decide."""
        self.push_send_policy(config)
        self.push_read_policy(config)
        self.push_client_policy(config)
        self.push_limits(config)
        self.push_role(config.membership)

    def push_limits(self, config: BrokerConfig) -> None:
        """Push the limits of users and topics; used-up rates are forgotten, open connections still count."""
        self._server.set_limits(parse_limits(config.access.limits))

    def push_role(self, membership: MembershipConfig) -> None:
        """Push whether consumers are served; a slave has no messages of its master."""
        self._server.refuse_reads(membership.is_slave)

    def push_read_policy(self, config: BrokerConfig) -> None:
        """Push which filters consumers may use, and how much one response may carry."""
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
        """Push the limits of what clients may request."""
        used = config.compatibility.used
        self._server.set_client_policy(
            min_invisible_ms=used["min_invisible_time"] // _MILLISECOND,
            max_invisible_ms=used["max_invisible_time"] // _MILLISECOND,
            max_delay_ms=used["max_delay_time"] // _MILLISECOND,
            max_send=config.grpc.grpc_message_limit,
            creates_topics=used["grpc_creates_topics"],
            redelivers_from_first=used["ordered_redelivery"] == "from_first",
        )

    def push_send_policy(self, config: BrokerConfig) -> None:
        """Push which messages are accepted, and the properties that each message gets."""
        self._server.set_send_policy(
            cluster=config.cluster,
            region=config.sends.region,
            trace=config.sends.trace,
            reject_transactions=config.transactions.reject_transactions,
            check_types=config.sends.check_types,
        )
