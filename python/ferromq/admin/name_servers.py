"""What an administrator asks name servers: which brokers there are, and which of them have a topic."""

import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TypeVar

from ferromq.admin.calls import Calls, decoded
from ferromq.admin.results import BrokerStatus, Unreachable
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
from ferromq.protocol.codes import RequestCode, ResponseCode
from ferromq.protocol.endpoints import WHICH_PORT_OF_NAMESRV
from ferromq.protocol.route import MASTER, BrokerData, Permission, TopicRoute

T = TypeVar("T")


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
        body = self.ask_in_turn(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        return self._decoded("topics", lambda: set(map(str, java_json.loads_object(body).get("topicList") or ())))

    def route(self, topic: str) -> TopicRoute:
        """Return the route of a topic. Raises `TopicNotFound`."""
        body = self.ask_in_turn(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
        return self._decoded("the brokers of a topic", lambda: TopicRoute.decode(body))

    def brokers_of(self, topic: str) -> Iterator[str]:
        """Yield the address of each broker with queues of a topic. Raises `TopicNotFound`."""
        route = self.route(topic)
        with_queues = {queue.broker_name for queue in route.queues}
        for broker in route.brokers:
            if broker.broker_name in with_queues and broker.addresses:
                # A slave answers if there is no master.
                yield broker.master_or_slave

    def writable_queues(self, topic: str) -> list[tuple[str, int]]:
        """Return address and id of each queue of a topic that takes messages, in the order of its message groups."""
        route = self.route(topic)
        masters = {broker.broker_name: broker.master for broker in route.brokers}
        return [
            (address, number)
            for queue in route.queues
            if queue.permission & Permission.WRITE and (address := masters.get(queue.broker_name))
            for number in range(queue.write_queues)
        ]

    def masters(self, wanted: str | None) -> list[str]:
        """Return the masters of the cluster *wanted*, or of the only cluster."""
        return self.masters_and_lost(wanted)[0]

    def masters_and_lost(self, wanted: str | None) -> tuple[list[str], tuple[Unreachable, ...]]:
        """Return the masters of a cluster, and its brokers of which only slaves are registered."""
        return masters_and_lost(self._registered(), wanted, str(self))

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
        body = self.ask_in_turn(RequestCode.GET_BROKER_CLUSTER_INFO)

        def read() -> list[BrokerStatus]:
            known = java_json.loads_object(body)
            clusters = {name: brokers for name, brokers in (known.get("clusterAddrTable") or {}).items() if brokers}
            table = known.get("brokerAddrTable") or {}
            return [
                BrokerStatus(cluster, name, broker_id, address)
                for cluster in sorted(clusters)
                for name in sorted(clusters[cluster])
                if name in table
                for broker_id, address in sorted(BrokerData.from_json(table[name]).addresses.items())
            ]

        found = self._decoded("brokers", read)
        if not found:
            raise ServerError(f"no broker is registered with {self}")
        return found

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
            route = decoded(address, "the brokers of a topic", functools.partial(TopicRoute.decode, body))
            if cluster is None or any(broker.cluster == cluster for broker in route.brokers):
                return
        raise failure

    def forget_topic(self, topic: str, cluster: str | None) -> None:
        """Delete the route of a topic, and its order configuration, on every name server."""
        fields = {"topic": topic} if cluster is None else {"topic": topic, "clusterName": cluster}
        for address in self._addresses:
            self._ask(address, RequestCode.DELETE_TOPIC_IN_NAMESRV, fields)
            self._at(address, broker_removal.forget_order, topic, cluster)

    def order_configurations(self) -> dict[str, dict[str, int]]:
        """Return the order configurations at the first name server that answers."""
        failure: FerromqError | None = None
        for address in self._in_turn():
            try:
                return self._at(address, broker_removal.order_configurations)
            except OutcomeUnknown as error:
                failure = error
        assert failure is not None
        raise failure

    def take_out_broker(self, name: str, *, force: bool = False) -> list[str]:
        """
        Remove a broker from every order configuration, and return the topics that had it.

        With *force* also one that no table has.
        """
        topics, failure, is_known = set[str](), None, force
        for address in self._addresses:
            try:
                self._at(address, broker_removal.check_away, name)
                is_known |= self._at(address, broker_removal.is_known, name)
            except OutcomeUnknown as error:
                failure = failure or error
        for address in self._addresses if is_known else ():
            try:
                topics.update(self._at(address, broker_removal.take_out, name))
            except OutcomeUnknown as error:
                failure = failure or error
        if failure is not None:
            raise failure
        if not is_known:
            raise ConfigError(
                f"broker is {name!r}, which no table of the name servers has; nothing was removed. If they lost their "
                "tables at a restart, remove it all the same with force"
            )
        return sorted(topics)

    def values(self, namespace: str) -> dict[str, str]:
        """Return a namespace of the key-value table at the first name server that answers."""
        try:
            body = self.ask_in_turn(RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": namespace})
        except RequestError as error:
            if error.code == ResponseCode.QUERY_NOT_FOUND:
                return {}
            raise

        def read() -> dict[str, str]:
            table = java_json.loads_object(body).get("table") or {}
            return {str(key): str(text) for key, text in sorted(table.items()) if text}

        return self._decoded("values", read)

    def marks_of(self, name: str) -> list[bool]:
        """Return for each name server that knows a broker or its mark `gone` whether it has the mark."""
        marks = (self._at(address, broker_removal.mark, name) for address in self._addresses)
        return [mark for mark in marks if mark is not None]

    def everywhere(self, code: RequestCode, fields: Mapping[str, str]) -> None:
        """Ask every name server, for a change of the table that each of them has."""
        for address in self._addresses:
            self._ask(address, code, fields)

    def ask_in_turn(self, code: RequestCode, fields: Mapping[str, str] | None = None) -> bytes:
        """Ask the name servers in turn, until one answers, and return the body of its answer."""
        return self.exchange_in_turn(code, fields)[1]

    def exchange_in_turn(
        self, code: RequestCode, fields: Mapping[str, str] | None = None
    ) -> tuple[Mapping[str, str], bytes]:
        """Ask the name servers in turn, until one answers, and return the fields and the body of its answer."""
        failure: FerromqError | None = None
        for address in self._in_turn():
            try:
                answer = self._exchange(address, code, fields or {})
            except OutcomeUnknown as error:
                failure = error
                if isinstance(error, ConnectionFailed) and "lost" in str(error):
                    failure = ConnectionFailed(f"{error}; {WHICH_PORT_OF_NAMESRV}")
            except Unsupported as error:
                raise Unsupported(
                    f"{error}; {WHICH_PORT_OF_NAMESRV} Of a broker give the gRPC port (8081), which is another one: "
                    "Admin(endpoint='HOST:8081')",
                    error.code,
                    error.remark,
                ) from None
            except RequestError:  # the server answered
                self._answered = address
                raise
            else:
                self._answered = address
                return answer[1:]
        assert failure is not None
        raise failure

    def _in_turn(self) -> list[str]:
        """Return the name servers, the one that answered last first. A hanging one then delays only one call."""
        return sorted(self._addresses, key=lambda address: address != self._answered)

    def _decoded(self, what: str, read: Callable[[], T]) -> T:
        """Return what *read* makes of the last answer. Raises `ServerError` for one in another form."""
        return decoded(self._answered or str(self), what, read)

    def _at(self, address: str, step: Callable[..., T], *given: str | None) -> T:
        """Return what a step makes of a name server's answers. Raises `ServerError` for those in another form."""
        return decoded(address, "the tables", lambda: step(self._ask, address, *given))

    def _ask(self, address: str, code: RequestCode, fields: Mapping[str, str], also: int = 0) -> bytes:
        """Ask one name server; the code *also* counts as success without a body."""
        answer, _, body = self._exchange(address, code, fields, also)
        return b"" if also and answer == also else body

    def _exchange(
        self, address: str, code: RequestCode, fields: Mapping[str, str], also: int = 0
    ) -> tuple[int, Mapping[str, str], bytes]:
        """Ask one name server; the request leaves time to ask the others."""
        try:
            return self._calls.exchange(address, code, fields, (also,), share=len(self._addresses))
        except ConnectionFailed as error:
            reason = why_unreachable(str(error))
            if reason is None:
                raise
            raise reworded(error, f"cannot reach name server {address} ({reason})") from None


def masters_and_lost(
    known: Sequence[BrokerStatus], wanted: str | None, where: str
) -> tuple[list[str], tuple[Unreachable, ...]]:
    """
    Return the masters of the cluster *wanted*, or of the only cluster, and its brokers without a master.

    The latter have the address of a slave. Raises `ServerError` if the cluster has no master.
    """
    cluster = chosen_cluster({broker.cluster for broker in known}, wanted, where)
    of_cluster = [broker for broker in known if broker.cluster == cluster]
    masters = {broker.name: broker.address for broker in of_cluster if broker.broker_id == MASTER}
    if not masters:
        raise ServerError(f"{where} knows no master of the cluster {cluster}")
    slaves = {broker.name: broker.address for broker in of_cluster if broker.name not in masters}
    return list(masters.values()), tuple(
        Unreachable(
            address,
            ConnectionFailed(
                f"{where} knows no master of the broker {name}, only a slave at {address}; start the master of {name}"
            ),
        )
        for name, address in slaves.items()
    )


def chosen_cluster(known: Collection[str], wanted: str | None, where: str) -> str:
    """Return the cluster *wanted*, or the only one. Raises `ConfigError` with the known ones."""
    names = ", ".join(sorted(known))
    if wanted is None and len(known) > 1:
        raise ConfigError(f"{where} knows several clusters: {names}; choose one with cluster=")
    if wanted is not None and wanted not in known:
        raise ConfigError(f"cluster is {wanted!r}, which {where} does not know; known are {names}")
    return next(iter(known)) if wanted is None else wanted
