"""QueryRoute by name servers, and DescribeBroker by what their routes say."""

from collections.abc import Iterator

from ferromq._proto import messages as pb
from ferromq.core.remoting.calls import Calls
from ferromq.core.requests import Call, Plan, resource
from ferromq.core.routes import endpoints_message
from ferromq.errors import ServerError, TopicNotFound, Unsupported
from ferromq.protocol import broker_description, java_json
from ferromq.protocol.broker_description import BrokerDescription
from ferromq.protocol.codes import RequestCode, ResponseCode
from ferromq.protocol.order_configuration import parts
from ferromq.protocol.route import MASTER, BrokerData, Permission, QueueData, TopicRoute

_MOST_QUEUES = 1 << 16
"""Queues of a topic on one broker; a route with more is refused."""


class RemotingRoutes:
    """Asks name servers for routes."""

    def __init__(self, calls: Calls, name_servers: tuple[str, ...]) -> None:
        self._calls = calls
        self._name_servers = name_servers
        self._known: dict[str, set[str]] = {}
        """Topic → the names of its brokers, as last heard."""
        self._brokers: dict[str, BrokerData] = {}
        """By name, as last heard."""

    def query(self, step: Call) -> Plan[bytes]:
        """Answer a QueryRoute request; the name server is the one at the step's endpoint."""
        topic = pb.QueryRouteRequest.FromString(step.request).topic.name
        if step.endpoint not in self._name_servers:
            raise ServerError(f"{step.endpoint} is a broker; routes are asked of name servers")
        fields = {"topic": topic, "acceptStandardJsonOnly": "true"}
        accepted = {ResponseCode.SUCCESS, ResponseCode.TOPIC_NOT_EXIST}
        code = RequestCode.GET_ROUTEINFO_BY_TOPIC
        answer = yield from self._calls.call_name_server(step.endpoint, code, fields, step.timeout, accepted)
        if answer[0] == ResponseCode.TOPIC_NOT_EXIST:
            yield from self._check_brokers(step, topic)
            raise TopicNotFound(
                f"the name server {step.endpoint} knows no topic {topic}: create it first, as with "
                f"connect(...).admin().create_topic({topic!r})",
                answer[0],
                answer[1] or "",
            )
        try:
            route = TopicRoute.decode(answer[3])
            queues = [*self._queues(topic, route)]
        except ValueError as error:
            raise ServerError(f"the name server {step.endpoint} answered no route of {topic}: {error}") from None
        self._known[topic] = {queue.broker_name for queue in route.queues}
        response = pb.QueryRouteResponse(status=pb.Status(code=pb.Code.OK), message_queues=queues)
        return response.SerializeToString()

    def _check_brokers(self, step: Call, topic: str) -> Plan[None]:
        """Raise `ServerError` if a name server that knows no topic may not have heard of its brokers yet."""
        code = RequestCode.GET_BROKER_CLUSTER_INFO
        answer = yield from self._calls.call_name_server(step.endpoint, code, {}, step.timeout)
        try:
            names = set(java_json.loads_object(answer[3]).get("brokerAddrTable") or {})
        except (ValueError, TypeError) as error:
            raise ServerError(f"the name server {step.endpoint} answered no cluster: {error}") from None
        known = self._known.get(topic)
        if not names or (known and not known & names):
            raise ServerError(
                f"the name server {step.endpoint} knows no broker{' of ' + topic if names else ''}: it or the brokers "
                "have just started, or the brokers register elsewhere; compare their namesrvAddr"
            )

    def _queues(self, topic: str, route: TopicRoute) -> Iterator[pb.MessageQueue]:
        """Yield the queues of a route as gRPC's brokers tell them. Raises `ServerError` for a broker never seen."""
        self._brokers |= {broker.broker_name: broker for broker in route.brokers if broker.addresses}
        ordered = parts(route.order_conf)
        queues = {queue.broker_name: queue for queue in route.queues}
        present = {broker.broker_name for broker in route.brokers if broker.addresses}
        for name in sorted(queues.keys() & present | ordered.keys()):
            broker = self._brokers.get(name)
            if broker is None:
                raise ServerError(
                    f"the broker {name} is in the order configuration of {topic} and is registered nowhere; start it, "
                    "or remove it with mqadmin updateOrderConf"
                )
            is_away = name not in queues or name not in present
            queue = QueueData(name, ordered[name], ordered[name]) if is_away else queues[name]
            place = pb.Broker(name=name, id=MASTER, endpoints=endpoints_message([broker.master_or_slave]))
            for queue_id, allowed in enumerate(permissions(queue)):
                may_write = Permission.WRITE in allowed and (not ordered or queue_id < ordered.get(name, 0))
                may_read = Permission.READ in allowed and not is_away
                may_write &= is_away or broker.master is not None
                yield pb.MessageQueue(
                    topic=resource(topic),
                    id=queue_id,
                    permission=_grpc(may_read, may_write),
                    broker=place,
                )

    def describe(self, step: Call) -> bytes:
        """Answer a DescribeBroker request. Raises `Unsupported` for a broker that no route named."""
        for broker in self._brokers.values():
            if broker.master == step.endpoint:
                name_servers = self._name_servers
                described = BrokerDescription(broker.broker_name, broker.cluster, MASTER, step.endpoint, name_servers)
                return broker_description.encode(described)
        raise Unsupported(f"no route names a broker at {step.endpoint}")


def permissions(queue: QueueData) -> list[Permission]:
    """Return the permission of each queue of a topic on one broker. Raises `ValueError` for too many queues."""
    count = max(queue.read_queues, queue.write_queues)
    if count > _MOST_QUEUES:
        raise ValueError(f"{queue.broker_name} has {count} queues; the limit is {_MOST_QUEUES}")
    found = []
    for queue_id in range(count):
        of_queue = Permission.NONE
        if queue_id < queue.read_queues:
            of_queue |= queue.permission & Permission.READ
        if queue_id < queue.write_queues:
            of_queue |= queue.permission & Permission.WRITE
        found.append(of_queue)
    return found


def _grpc(may_read: bool, may_write: bool) -> pb.Permission:
    if may_read:
        return pb.Permission.READ_WRITE if may_write else pb.Permission.READ
    return pb.Permission.WRITE if may_write else pb.Permission.NONE
