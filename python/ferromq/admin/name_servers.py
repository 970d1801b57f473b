"""What an administrator asks name servers: which brokers there are, and which of them have a topic."""

from collections.abc import Collection, Iterator, Mapping

from ferromq.admin.calls import Calls
from ferromq.admin.results import BrokerStatus
from ferromq.core.requests import reworded, why_unreachable
from ferromq.errors import (
    ConfigError,
    ConnectionFailed,
    FerromqError,
    OutcomeUnknown,
    RequestError,
    ServerError,
    TopicNotFound,
    Unsupported,
)
from ferromq.protocol import broker_removal, java_json
from ferromq.protocol.codes import RequestCode
from ferromq.protocol.endpoints import WHICH_PORT_OF_NAMESRV
from ferromq.protocol.route import MASTER, BrokerData, Permission, TopicRoute


class NameServers:
    """The name servers of an administrator. The one that answered last is asked first."""

    def __init__(self, addresses: tuple[str, ...], calls: Calls) -> None:
        self._addresses = addresses
        self._calls = calls
        self._answered: str | None = None
        """The name server that answered last."""

    def __str__(self) -> str:
        return ";".join(self._addresses)

    @property
    def told(self) -> str:
        """What a broker told, and what to do if it is not reachable, for an error text."""
        return f"its name servers {self}; if they are not reachable from here, give others: ferromq.Admin('HOST:9876')"

    def topics(self) -> set[str]:
        """Return the names of all topics."""
        body = self._ask_in_turn(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        return set(java_json.loads_object(body).get("topicList") or ())

    def brokers_of(self, topic: str) -> Iterator[str]:
        """Yield the address of each broker with queues of a topic. Raises `TopicNotFound`."""
        route = TopicRoute.decode(self._ask_in_turn(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}))
        with_queues = {queue.broker_name for queue in route.queues}
        for broker in route.brokers:
            if broker.broker_name in with_queues and broker.addresses:
                # A slave answers if there is no master.
                yield broker.addresses.get(MASTER) or broker.addresses[min(broker.addresses)]

    def writable_queues(self, topic: str) -> list[tuple[str, int]]:
        """Return address and id of each queue of a topic that takes messages, in the order of its message groups."""
        route = TopicRoute.decode(self._ask_in_turn(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}))
        masters = {broker.broker_name: broker.master for broker in route.brokers}
        return [
            (address, number)
            for queue in route.queues
            if queue.permission & Permission.WRITE and (address := masters.get(queue.broker_name))
            for number in range(queue.write_queues)
        ]

    def masters(self, wanted: str | None) -> list[str]:
        """Return the masters of the cluster *wanted*, or of the only cluster."""
        known = self._registered()
        cluster = chosen_cluster({broker.cluster for broker in known}, wanted, str(self))
        masters = [broker.address for broker in known if broker.cluster == cluster and broker.broker_id == MASTER]
        if not masters:
            raise ServerError(f"no master of the cluster {cluster} is registered with {self}")
        return masters

    def brokers(self, wanted: str | None) -> list[BrokerStatus]:
        """Return all brokers of the cluster *wanted*, or of all clusters, without what they tell themselves."""
        known = self._registered()
        if wanted is not None:
            chosen_cluster({broker.cluster for broker in known}, wanted, str(self))
        return [broker for broker in known if wanted in {None, broker.cluster}]

    def name_servers(self) -> tuple[str, ...]:
        """Return the addresses of the name servers."""
        return self._addresses

    def _registered(self) -> list[BrokerStatus]:
        """Return the registered brokers, by cluster, name and id."""
        known = java_json.loads_object(self._ask_in_turn(RequestCode.GET_BROKER_CLUSTER_INFO))
        clusters = {name: brokers for name, brokers in (known.get("clusterAddrTable") or {}).items() if brokers}
        if not clusters:
            raise ServerError(f"no broker is registered with {self}")
        table = known.get("brokerAddrTable") or {}
        return [
            BrokerStatus(cluster, name, broker_id, address)
            for cluster in sorted(clusters)
            for name in sorted(clusters[cluster])
            if name in table
            for broker_id, address in sorted(BrokerData.from_json(table[name]).addresses.items())
        ]

    def check_routed(self, topic: str, cluster: str | None) -> None:
        """Raise unless a name server has a route of the topic in the cluster."""
        failure: FerromqError = TopicNotFound(f"there is no topic {topic}" + (f" in {cluster}" if cluster else ""))
        for address in self._addresses:
            try:
                body = self._ask(address, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
            except TopicNotFound:
                continue
            except OutcomeUnknown as error:
                failure = error
                continue
            if cluster is None or any(broker.cluster == cluster for broker in TopicRoute.decode(body).brokers):
                return
        raise failure

    def forget_topic(self, topic: str, cluster: str | None) -> None:
        """Delete the route of a topic, and its order configuration, on every name server."""
        fields = {"topic": topic} if cluster is None else {"topic": topic, "clusterName": cluster}
        for address in self._addresses:
            self._ask(address, RequestCode.DELETE_TOPIC_IN_NAMESRV, fields)
            broker_removal.forget_order(self._ask, address, topic, cluster)

    def order_configurations(self) -> dict[str, dict[str, int]]:
        """Return the order configurations at the first name server that answers."""
        failure: FerromqError | None = None
        for address in self._in_turn():
            try:
                return broker_removal.order_configurations(self._ask, address)
            except OutcomeUnknown as error:
                failure = error
        assert failure is not None
        raise failure

    def take_out_broker(self, name: str) -> list[str]:
        """Remove a broker from every order configuration, and return the topics that had it."""
        topics, failure = set[str](), None
        for step in (broker_removal.check_away, broker_removal.take_out):
            for address in self._addresses:
                try:
                    topics.update(step(self._ask, address, name) or ())
                except OutcomeUnknown as error:
                    failure = failure or error
        if failure is not None:
            raise failure
        return sorted(topics)

    def _ask_in_turn(self, code: RequestCode, fields: Mapping[str, str] | None = None) -> bytes:
        """Ask the name servers in turn, until one answers, and return the body of its answer."""
        failure: FerromqError | None = None
        for address in self._in_turn():
            try:
                body = self._ask(address, code, fields or {})
            except OutcomeUnknown as error:
                failure = error
                if isinstance(error, ConnectionFailed) and "lost" in str(error):
                    failure = ConnectionFailed(f"{error}; {WHICH_PORT_OF_NAMESRV}")
            except Unsupported as error:
                raise Unsupported(
                    f"{error}; {WHICH_PORT_OF_NAMESRV} Give a broker's gRPC port (8081) as Admin(endpoint={address!r})",
                    error.code,
                    error.remark,
                ) from None
            except RequestError:  # the server answered
                self._answered = address
                raise
            else:
                self._answered = address
                return body
        assert failure is not None
        raise failure

    def _in_turn(self) -> list[str]:
        """Return the name servers, the one that answered last first. A hanging one then delays only one call."""
        return sorted(self._addresses, key=lambda address: address != self._answered)

    def _ask(self, address: str, code: RequestCode, fields: Mapping[str, str], also: int = 0) -> bytes:
        """Ask one name server; the request leaves time to ask the others."""
        try:
            return self._calls.ask(address, code, fields, also, share=len(self._addresses))
        except ConnectionFailed as error:
            reason = why_unreachable(str(error))
            if reason is None:
                raise
            raise reworded(error, f"cannot reach name server {address} ({reason})") from None


def chosen_cluster(known: Collection[str], wanted: str | None, where: str) -> str:
    """Return the cluster *wanted*, or the only one. Raises `ConfigError` with the known ones."""
    names = ", ".join(sorted(known))
    if wanted is None and len(known) > 1:
        raise ConfigError(f"{where} knows several clusters: {names}; choose one with cluster=")
    if wanted is not None and wanted not in known:
        raise ConfigError(f"cluster is {wanted!r}, which {where} does not know; known are {names}")
    return next(iter(known)) if wanted is None else wanted
