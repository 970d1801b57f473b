"""Arguments and results of `RouteInfoManager`: registrations, their answers, and the effects of changes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ferromq.protocol.route import DataVersion, QueueData


class BrokerAddress(NamedTuple):
    """A broker process: the same `host:port` may exist in two clusters."""

    cluster: str
    address: str


@dataclass(frozen=True, slots=True)
class Registration:
    """A broker's description of itself."""

    cluster: str
    address: str
    broker_name: str
    broker_id: int
    ha_address: str = ""
    zone: str | None = None
    lease_ms: int | None = None
    """How long the registration lasts; None: the name server's default."""
    enable_acting_master: bool = False

    @property
    def key(self) -> BrokerAddress:
        """The broker's key in the tables."""
        return BrokerAddress(self.cluster, self.address)


@dataclass(frozen=True, slots=True)
class RegisteredTopics:
    """The topics that a broker registers, with the version of its table."""

    version: DataVersion = field(default_factory=DataVersion)
    queues: Mapping[str, QueueData] = field(default_factory=dict)
    filter_servers: tuple[str, ...] | None = None
    """None: not given; empty: none."""
    has_static_topics: bool = False
    """Whether some topics are mapped to queues of several brokers; then a missing topic is not a deleted one."""
    in_order: frozenset[str] = frozenset()
    """The FIFO topics."""
    of_other_types: frozenset[str] = frozenset()
    """The topics with another message type. Topics in neither set have none yet."""
    is_change: bool = False
    """Whether these are only the changed topics."""


@dataclass(frozen=True, slots=True)
class Registered:
    """The answer to a registration. A slave gets its master's addresses, if the master is known."""

    master_address: str | None = None
    ha_address: str | None = None


@dataclass(frozen=True, slots=True)
class MinBrokerIdChange:
    """Another broker now has the lowest id of its name."""

    broker_name: str
    broker_id: int
    address: str
    gone_address: str | None
    """The former broker with the lowest id, if it left."""
    ha_address: str | None
    notify: tuple[str, ...]
    """The addresses of the brokers to notify."""


class OrderChange(NamedTuple):
    """A change of a master's queues of a topic, for the order configuration. A master that leaves causes none."""

    topic: str
    broker_name: str
    queues: int
    """The number of writable queues."""
    is_in_order: bool
    """Whether the topic is a FIFO topic."""
    is_back: bool = False
    """Whether the broker registered the topic for the first time, or again after an absence."""


class OrderDeletion(NamedTuple):
    """The deletion of a topic, on all brokers or on those of a cluster."""

    topic: str
    goes: frozenset[str] = frozenset()
    """Brokers of the cluster, including absent ones."""
    stays: frozenset[str] = frozenset()
    """Brokers of other clusters, including absent ones."""


@dataclass(slots=True)
class BrokerLive:
    """The lease of a registered broker."""

    broker_name: str
    broker_id: int
    expires_at: int
    lease_ms: int
    version: DataVersion
    connection: int | None
    ha_address: str
