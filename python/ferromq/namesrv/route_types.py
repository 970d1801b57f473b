"""The values that enter and leave a name server's routes: registrations, their answers, and what a change means."""

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
    """What a broker says of itself."""

    cluster: str
    address: str
    broker_name: str
    broker_id: int
    ha_address: str = ""
    zone: str | None = None
    lease_ms: int | None = None
    """How long the registration holds; None: the name server's default."""
    enable_acting_master: bool = False

    @property
    def key(self) -> BrokerAddress:
        """The broker's place in the tables."""
        return BrokerAddress(self.cluster, self.address)


@dataclass(frozen=True, slots=True)
class RegisteredTopics:
    """The topics a broker registers, with the version of its table."""

    version: DataVersion = field(default_factory=DataVersion)
    queues: Mapping[str, QueueData] = field(default_factory=dict)
    filter_servers: tuple[str, ...] | None = None
    """None: nothing is said of them; empty: there are none."""
    has_static_topics: bool = False
    """Whether some topics are mapped to queues of several brokers; then the table does not say which are gone."""
    in_order: frozenset[str] = frozenset()
    """The topics whose messages are in order."""
    of_other_types: frozenset[str] = frozenset()
    """The topics that have another message type; what is in neither set has none yet."""
    is_change: bool = False
    """Whether these are the topics that changed, and all others are as they were."""


@dataclass(frozen=True, slots=True)
class Registered:
    """The answer to a registration; both addresses are set for a slave whose master is known."""

    master_address: str | None = None
    ha_address: str | None = None


@dataclass(frozen=True, slots=True)
class MinBrokerIdChange:
    """Another broker became the one with the lowest id of its name."""

    broker_name: str
    broker_id: int
    address: str
    gone_address: str | None
    """The broker whose place it takes; None: it came by itself."""
    ha_address: str | None
    tell: tuple[str, ...]
    """The addresses of brokers to be told."""


class OrderChange(NamedTuple):
    """A master's queues of a topic changed, other than by its leaving: so does the topic's order configuration."""

    topic: str
    broker_name: str
    queues: int
    """Those that may be written."""
    is_in_order: bool
    """Whether the topic's messages are in order, as brokers say."""
    is_back: bool = False
    """Whether the broker registered the topic for the first time, or again after it was away."""


class OrderDeletion(NamedTuple):
    """A topic was deleted, on all brokers or on those of a cluster."""

    topic: str
    goes: frozenset[str] = frozenset()
    """Brokers of the cluster, also those that are away."""
    stays: frozenset[str] = frozenset()
    """Brokers of other clusters, also those that are away."""


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
