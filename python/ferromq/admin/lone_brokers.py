"""What an administrator asks brokers without name servers, in place of name servers."""

from collections.abc import Iterator, Sequence

from ferromq.admin.calls import Calls
from ferromq.admin.name_servers import chosen_cluster
from ferromq.admin.results import BrokerStatus
from ferromq.errors import ConfigError, RequestError, ServerError, TopicNotFound
from ferromq.protocol import java_json
from ferromq.protocol.broker_description import BrokerDescription
from ferromq.protocol.codes import RequestCode, ResponseCode
from ferromq.protocol.route import MASTER, Permission


class LoneBrokers:
    """
    The brokers of an administrator that register with no name server.

    Order configurations are kept by name servers alone, so there are none.
    """

    def __init__(self, brokers: Sequence[BrokerDescription], calls: Calls) -> None:
        self._brokers = brokers
        self._calls = calls

    def __str__(self) -> str:
        return ";".join(broker.remoting for broker in self._brokers)

    @property
    def told(self) -> str:
        """What a broker told, and what to do if it is not reachable, for an error text."""
        return f"its remoting address {self}; if it is not reachable from here, set the broker's option advertise"

    def topics(self) -> set[str]:
        """Return the names of all topics."""
        found = set[str]()
        for broker in self._brokers:
            body = self._calls.ask(broker.remoting, RequestCode.GET_ALL_TOPIC_CONFIG, {})
            found.update(java_json.loads_object(body).get("topicConfigTable") or ())
        return found

    def brokers_of(self, topic: str) -> Iterator[str]:
        """Yield the address of each broker that has a topic. Raises `TopicNotFound`."""
        found = [broker.remoting for broker in self._brokers if self._has(broker, topic)]
        if not found:
            raise TopicNotFound(f"there is no topic {topic}; create_topic({topic!r}) creates it")
        yield from found

    def writable_queues(self, topic: str) -> list[tuple[str, int]]:
        """Return address and id of each queue of a topic that takes messages, in the order of its message groups."""
        found: list[tuple[str, int]] = []
        for broker in self._brokers:
            body = self._calls.ask(
                broker.remoting, RequestCode.GET_TOPIC_CONFIG, {"topic": topic}, ResponseCode.TOPIC_NOT_EXIST
            )
            settings = java_json.loads_object(body) if body and broker.broker_id == MASTER else {}
            if int(settings.get("perm", 0)) & Permission.WRITE:
                found += [(broker.remoting, number) for number in range(int(settings["writeQueueNums"]))]
        return found

    def masters(self, wanted: str | None) -> list[str]:
        """Return the masters of the cluster *wanted*, or of the only cluster."""
        cluster = chosen_cluster({broker.cluster for broker in self._brokers}, wanted, str(self))
        of_cluster = [broker for broker in self._brokers if broker.cluster == cluster]
        masters = [broker.remoting for broker in of_cluster if broker.broker_id == MASTER]
        if not masters:
            raise ServerError(f"no master of the cluster {cluster} is among {self}")
        return masters

    def brokers(self, wanted: str | None) -> list[BrokerStatus]:
        """Return all brokers of the cluster *wanted*, or of all clusters, without what they tell themselves."""
        if wanted is not None:
            chosen_cluster({broker.cluster for broker in self._brokers}, wanted, str(self))
        return [
            BrokerStatus(broker.cluster, broker.name, broker.broker_id, broker.remoting)
            for broker in self._brokers
            if wanted in {None, broker.cluster}
        ]

    def name_servers(self) -> tuple[str, ...]:
        """Raise `ConfigError`: a lone broker has no name server."""
        raise ConfigError(f"{self} registers with no name server, so there is no configuration of one")

    def check_routed(self, topic: str, cluster: str | None) -> None:
        """Raise `TopicNotFound`: routes are those of the masters, which were asked."""
        raise TopicNotFound(f"there is no topic {topic}" + (f" in {cluster}" if cluster else ""))

    def forget_topic(self, topic: str, cluster: str | None) -> None:
        """Do nothing: routes go with the topic."""

    def order_configurations(self) -> dict[str, dict[str, int]]:
        """Return none."""
        return {}

    def take_out_broker(self, name: str) -> list[str]:
        """Return no topics. Raises `RequestError` for a broker that is there."""
        for broker in self._brokers:
            if broker.name == name:
                raise RequestError(f"the broker {name} at {broker.remoting} answers; stop it first")
        return []

    def _has(self, broker: BrokerDescription, topic: str) -> bool:
        wanted = {"topic": topic}
        return bool(
            self._calls.ask(broker.remoting, RequestCode.GET_TOPIC_CONFIG, wanted, ResponseCode.TOPIC_NOT_EXIST)
        )
