"""What an administrator asks brokers without name servers, in place of name servers."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from ferromq.admin.calls import Calls, decoded
from ferromq.admin.name_servers import chosen_cluster, masters_and_lost
from ferromq.admin.results import BrokerStatus, Unreachable
from ferromq.errors import ConfigError, RequestError, TopicNotFound
from ferromq.protocol.broker_description import BrokerDescription
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
        return {name for broker in self._brokers for name in self._calls.topics(broker.remoting)}

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
            settings = self._calls.topic(broker.remoting, topic) or {}
            perm, count = decoded(broker.remoting, "the settings of a topic", partial(_writable, settings))
            if broker.broker_id == MASTER and perm & Permission.WRITE:
                found += [(broker.remoting, number) for number in range(count)]
        return found

    def masters(self, wanted: str | None) -> list[str]:
        """Return the masters of the cluster *wanted*, or of the only cluster."""
        return self.masters_and_lost(wanted)[0]

    def masters_and_lost(self, wanted: str | None) -> tuple[list[str], tuple[Unreachable, ...]]:
        """Return the masters of a cluster, and its brokers of which only slaves are known."""
        return masters_and_lost(self.brokers(None), wanted, str(self))

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

    def take_out_broker(self, name: str, *, force: bool = False) -> list[str]:  # noqa: ARG002 (as `NameServers`)
        """Raise `RequestError` for a broker that is there, `ConfigError` for another one."""
        for broker in self._brokers:
            if broker.name == name:
                raise RequestError(f"the broker {name} at {broker.remoting} answers; stop it first")
        raise ConfigError(f"broker is {name!r}, which is not known; without name servers there is no table of brokers")

    def _has(self, broker: BrokerDescription, topic: str) -> bool:
        return self._calls.topic(broker.remoting, topic) is not None


def _writable(settings: Mapping[str, Any]) -> tuple[int, int]:
    """Return the permission and the number of write queues; 0 without a topic."""
    return (int(settings["perm"]), int(settings["writeQueueNums"])) if settings else (0, 0)
