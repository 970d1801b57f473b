"""
Routes for gRPC clients: QueryRoute and QueryAssignment.

Routes come from the name servers, gRPC addresses from their key-value table. The broker's own tables add what a name
server cannot know yet.
"""

import ipaddress
import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from ferromq._ferromq import Request, Store
from ferromq._proto import messages as pb
from ferromq.broker.cluster.identity import BrokerIdentity
from ferromq.broker.cluster.name_servers import NameServerFailed, NameServers
from ferromq.broker.cluster.route_cache import KnownRoute, RouteCache
from ferromq.broker.grpc_answers import OK, Refused, group_name, system_topic, topic_name
from ferromq.broker.metadata.groups import GroupTable
from ferromq.broker.metadata.not_found import unknown_group, unknown_topic
from ferromq.broker.metadata.topics import UNDECIDED, RegistrationWait, TopicConfig, TopicTable
from ferromq.protocol import naming
from ferromq.protocol.broker_removal import GONE, start_or_take_out
from ferromq.protocol.order_configuration import parts, text_of
from ferromq.protocol.route import MASTER, WHOLE, Permission, QueueData

_log = logging.getLogger("ferromq.broker")

# The types of a MIXED topic, as in RocketMQ's proxy; for UNSPECIFIED the proxy answers that, and clients refuse to
# send. Without PRIORITY, as in RocketMQ: some official clients fail on a type that they do not know.
_ANY_TYPE = (pb.MessageType.NORMAL, pb.MessageType.FIFO, pb.MessageType.DELAY, pb.MessageType.TRANSACTION)

_DEAD_LETTER_QUEUES = 1
_NOTHING = KnownRoute()
ANY_QUEUE = -1
"""The queue id that stands for all queues of a broker."""


class _BrokerQueues(NamedTuple):
    """The queues of a topic on one broker."""

    queue: QueueData
    address: str | None
    """The broker's gRPC address, if known."""
    is_away: bool = False
    in_order: int | None = None
    """The number of queues in the order configuration; None if the topic has none."""


class Routes:
    """Answers QueryRoute and QueryAssignment; thread-safe."""

    def __init__(
        self,
        identity: BrokerIdentity,
        store: Store,
        topics: TopicTable,
        groups: GroupTable,
        name_servers: NameServers,
        *,
        cache: RouteCache | None,
    ) -> None:
        self._identity = identity
        self._store = store
        self._topics = topics
        self._groups = groups
        self._name_servers = name_servers
        self._cache = cache
        self._without_grpc: set[str] = set()

    def query_route(self, message: pb.QueryRouteRequest, request: Request) -> pb.QueryRouteResponse:
        """Answer with every queue of the topic, which is created if first use may create it."""
        name = topic_name(message.topic)
        queues = self._message_queues(message.topic, self._find(name, request))
        return pb.QueryRouteResponse(status=OK, message_queues=queues)

    def query_assignment(self, message: pb.QueryAssignmentRequest, request: Request) -> pb.QueryAssignmentResponse:
        """
        Answer with what a group's members receive from: all queues of all brokers, since leases keep members apart.

        As in RocketMQ's proxy: one assignment per broker, or one per queue for a FIFO group.
        """
        name = topic_name(message.topic)
        group = self._groups.ensure(group_name(message.group), request.peer)
        if group is None:
            raise Refused(pb.Code.CONSUMER_GROUP_NOT_FOUND, unknown_group(message.group.name))
        queues = self._message_queues(message.topic, self._find(name, request))
        readable = [q for q in queues if q.permission in {pb.Permission.READ, pb.Permission.READ_WRITE}]
        if not readable:
            raise Refused(pb.Code.FORBIDDEN, f"no queue of {name} is readable; give the topic read permission")
        for queue in readable:
            queue.ClearField("accept_message_types")
        if not group.fifo:
            first = {queue.broker.name: queue for queue in reversed(readable)}
            readable = [queue for queue in readable if first[queue.broker.name] is queue]
            for queue in readable:
                queue.id = ANY_QUEUE
        return pb.QueryAssignmentResponse(
            status=OK, assignments=[pb.Assignment(message_queue=queue) for queue in readable]
        )

    def _find(self, name: str, request: Request) -> list[_BrokerQueues]:
        """Return the topic's queues by broker."""
        if self._topics.is_system(name):
            raise Refused(pb.Code.ILLEGAL_TOPIC, system_topic(name))
        try:
            known = self._cache.get(name, 0) if self._cache else _NOTHING
        except NameServerFailed as error:
            # This broker's queues alone may be a part: message groups would change queues, and readers would miss some.
            raise Refused(
                pb.Code.INTERNAL_SERVER_ERROR, f"the complete route of {name} is not known: {error}; try again"
            ) from error
        # Read after the route: a new topic is in this table before a name server has it.
        own = self._topics.get(name)
        brokers = known.route.brokers if known.route else ()
        if own is None and any(name in {broker.broker_name, broker.cluster} for broker in brokers):
            raise Refused(pb.Code.ILLEGAL_TOPIC, system_topic(name))
        if own is None and known.is_empty:
            own = self._create(name, request.peer)
        if own is None and known.is_empty:
            raise Refused(pb.Code.TOPIC_NOT_FOUND, _missing_of_group(name) or unknown_topic(name))
        found = self._parts(name, own, known)
        if request.fields.get(WHOLE):
            self._check_whole(name, found, known)
        reachable = [part for part in found if part.address is not None]
        if not reachable:
            raise Refused(
                pb.Code.TOPIC_NOT_FOUND,
                f"the topic {name} is only on brokers without gRPC; connect to them by the remoting protocol, "
                f"or create it here, too: ferromq.Admin(...).create_topic({name!r}), "
                f"or mqadmin updateTopic -b {self._identity.address} -t {name}",
            )
        if all(part.is_away and not part.in_order for part in reachable):
            names = ", ".join(part.queue.broker_name for part in reachable)
            raise Refused(
                pb.Code.INTERNAL_SERVER_ERROR, f"no broker that has the topic {name} is there now: {names} is away"
            )
        return reachable

    def _create(self, name: str, peer: str) -> TopicConfig | None:
        """Create a topic if first use may create it; a retry or dead-letter topic only for an existing group."""
        owner = _group_of(name)
        if owner is not None:
            group = self._groups.get(owner)
            queues = group.retry_queues if group and name.startswith(naming.RETRY_PREFIX) else _DEAD_LETTER_QUEUES
            return self._topics.ensure_of_group(name, queues, 0, peer) if group and queues else None
        # Every name server knows the topic before this returns.
        return self._topics.ensure(name, peer, RegistrationWait.REGISTERED)

    def _parts(self, topic: str, own: TopicConfig | None, known: KnownRoute) -> list[_BrokerQueues]:
        """Return the queues of each broker that has the topic, sorted by broker name."""
        name = self._identity.name
        # A slave refers clients to its master, which has its name.
        is_master = not self._name_servers.identity.is_slave
        found = {}
        masters = {broker.broker_name for broker in known.route.brokers if broker.master} if known.route else set()
        for queue in known.route.queues if known.route else ():
            is_lost = queue.broker_name not in masters
            found[queue.broker_name] = _BrokerQueues(
                queue, self._grpc_address(queue.broker_name, known), is_away=is_lost
            )
        for queue in known.away:
            found[queue.broker_name] = _BrokerQueues(queue, known.grpc.get(queue.broker_name), is_away=True)
        if own and is_master:
            found[name] = _BrokerQueues(self._own_queues(own, found.values()), self._identity.grpc_address)
        ordered = parts(known.order)
        if ordered:
            self._put_in_order(topic, found, ordered, known)
        return [found[key] for key in sorted(found)]

    def _own_queues(self, own: TopicConfig, known: Iterable[_BrokerQueues]) -> QueueData:
        """Return this broker's queues of a topic; while it drains, without writes if another broker takes them."""
        queues = own.queue_data(self._identity.name)
        is_left = self._name_servers.identity.shall_be_left(own)
        if is_left and any(_takes_messages(part) for part in known if part.queue.broker_name != queues.broker_name):
            return replace(queues, permission=queues.permission & Permission.READ)
        return queues

    @staticmethod
    def _put_in_order(
        topic: str, found: dict[str, _BrokerQueues], ordered: Mapping[str, int], known: KnownRoute
    ) -> None:
        """Distribute message groups over the queues of the order configuration, including brokers that are away."""
        for name, part in found.items():
            found[name] = part._replace(in_order=ordered.get(name, 0))
        for name in ordered.keys() - found.keys():
            address = known.grpc.get(name)
            if address is None:
                raise Refused(
                    pb.Code.INTERNAL_SERVER_ERROR,
                    f"the broker {name} is in the order configuration of {topic} and was never seen here; start it, or "
                    f"{removal_hint(topic, name, ordered)}",
                )
            queue = QueueData(name, ordered[name], ordered[name])
            found[name] = _BrokerQueues(
                queue, None if address == GONE else address, is_away=True, in_order=ordered[name]
            )

    def _grpc_address(self, broker_name: str, known: KnownRoute) -> str | None:
        address = known.grpc.get(broker_name)
        if address is not None:
            self._without_grpc.discard(broker_name)
        elif broker_name not in self._without_grpc:
            self._without_grpc.add(broker_name)
            _log.warning("broker missing from gRPC routes, it registered no gRPC address broker=%s", broker_name)
        return address

    @staticmethod
    def _check_whole(topic: str, found: list[_BrokerQueues], known: KnownRoute) -> None:
        for part in found:
            name = part.queue.broker_name
            if part.address is None:
                raise Refused(
                    pb.Code.PRECONDITION_FAILED,
                    f"the broker {name} has queues of {topic} and serves no gRPC; read it with option 'namesrv'",
                )
            if part.is_away:
                raise Refused(
                    pb.Code.INTERNAL_SERVER_ERROR,
                    f"the broker {name} has queues of {topic} and is away; {start_or_take_out(name)}",
                )
        for name in sorted(known.unknown - {part.queue.broker_name for part in found}):
            raise Refused(
                pb.Code.INTERNAL_SERVER_ERROR,
                f"the broker {name} is away and may have queues of {topic}; {start_or_take_out(name)}",
            )

    def _message_queues(self, topic: pb.Resource, found: list[_BrokerQueues]) -> list[pb.MessageQueue]:
        own = self._topics.get(topic.name)
        types = _ANY_TYPE if own is None else accepted_types(own.message_type)
        return [
            pb.MessageQueue(
                topic=topic,
                id=queue_id,
                permission=self._permission(topic.name, part, queue_id, permission),
                broker=pb.Broker(name=part.queue.broker_name, id=MASTER, endpoints=endpoints(part.address)),
                accept_message_types=types,
            )
            for part in found
            if part.address is not None
            for queue_id, permission in enumerate(queue_permissions(part.queue))
        ]

    def _permission(self, topic: str, part: _BrokerQueues, queue_id: int, permission: pb.Permission) -> pb.Permission:
        if part.is_away:
            # Messages of the message groups on these queues wait; no others are sent or read there.
            is_counted = part.in_order is not None and queue_id < part.in_order
            return pb.Permission.WRITE if is_counted else pb.Permission.NONE
        allowed = self._allowed(topic, part.queue.broker_name, queue_id, permission)
        if part.in_order is None or queue_id < part.in_order:
            return allowed
        return pb.Permission.READ if allowed in {pb.Permission.READ, pb.Permission.READ_WRITE} else pb.Permission.NONE

    def _allowed(self, topic: str, broker_name: str, queue_id: int, permission: pb.Permission) -> pb.Permission:
        # Other brokers register permissions of topics, not of queues; closed queues are known of this one alone.
        if broker_name != self._identity.name:
            return permission
        return narrowed(permission, self._store.queue_access(topic, queue_id))


def _takes_messages(part: _BrokerQueues) -> bool:
    writable = part.queue.write_queues if part.queue.permission & Permission.WRITE else 0
    return bool(writable) and not part.is_away and part.address is not None


def removal_hint(topic: str, broker_name: str, ordered: Mapping[str, int]) -> str:
    """Return the commands that remove a broker from an order configuration."""
    rest = text_of({name: count for name, count in ordered.items() if name != broker_name})
    return (
        f"take it out for good: ferromq.Admin(...).take_out_broker({broker_name!r}), "
        f"or mqadmin updateOrderConf -m put -t {topic} -v '{rest}'"
    )


def _group_of(topic: str) -> str | None:
    """Return the group of a retry or dead-letter topic; None for another topic."""
    prefix = next((prefix for prefix in (naming.RETRY_PREFIX, naming.DLQ_PREFIX) if topic.startswith(prefix)), None)
    return None if prefix is None else topic.removeprefix(prefix)


def _missing_of_group(topic: str) -> str | None:
    group = _group_of(topic)
    return group and f"the topic {topic} does not exist, nor does the consumer group {group}, whose messages it takes"


def queue_permissions(queue: QueueData) -> list[pb.Permission]:
    """Return the permission of each queue: the first are readable and writable, the rest only one of both."""
    read = queue.read_queues if queue.permission & Permission.READ else 0
    write = queue.write_queues if queue.permission & Permission.WRITE else 0
    if not read and not write:
        return [pb.Permission.NONE] * max(1, queue.read_queues, queue.write_queues)
    rest = pb.Permission.READ if read > write else pb.Permission.WRITE
    return [pb.Permission.READ_WRITE] * min(read, write) + [rest] * abs(read - write)


def narrowed(permission: pb.Permission, access: str) -> pb.Permission:
    """Return a queue's permission under its access: open, read-only or closed."""
    if access == "open":
        return permission
    may_read = permission in {pb.Permission.READ, pb.Permission.READ_WRITE}
    return pb.Permission.READ if access == "read_only" and may_read else pb.Permission.NONE


def accepted_types(message_type: str) -> tuple[pb.MessageType, ...]:
    """Return the message types that a topic accepts."""
    is_any = message_type in {"MIXED", "UNSPECIFIED", UNDECIDED}
    return _ANY_TYPE if is_any else (pb.MessageType.Value(message_type),)


def endpoints(address: str) -> pb.Endpoints:
    """Return `host:port` in gRPC's form."""
    host, _, port = address.rpartition(":")
    try:
        is_v4 = ipaddress.ip_address(host.strip("[]")).version == 4  # noqa: PLR2004
        scheme = pb.AddressScheme.IPv4 if is_v4 else pb.AddressScheme.IPv6
    except ValueError:
        scheme = pb.AddressScheme.DOMAIN_NAME
    return pb.Endpoints(scheme=scheme, addresses=[pb.Address(host=host.strip("[]"), port=int(port))])
