"""
The options of name server and broker: one frozen dataclass a process, the store's in one of their own.

Later wins: defaults < file < environment < flags. A file is TOML with the fields' names, or RocketMQ's `.conf`. Where a
field is None the default lives in the Rust core, with what is on disk. Nothing here opens a store or a socket; how
files are read is in `_config`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, ClassVar

from ferromq.config.compat import CompatConfig
from ferromq.config.consume import ConsumeConfig
from ferromq.config.grpc import GrpcConfig
from ferromq.config.known_names import check_known
from ferromq.config.listener import ListenerConfig
from ferromq.config.membership import MembershipConfig
from ferromq.config.reader import Config
from ferromq.config.rocketmq_keys import REFUSED, WITHOUT_EFFECT
from ferromq.config.send import SendConfig
from ferromq.config.store import StoreConfig
from ferromq.config.timer import TimerConfig
from ferromq.config.transactions import TransactionConfig
from ferromq.config.values import (
    boolean,
    check_address,
    check_positive,
    split_advertised,
    split_list,
    whole,
)
from ferromq.errors import ConfigError, IllegalName
from ferromq.protocol import naming

LIMIT_FOR_QUEUES = 65_536
"""Queues a topic may have at most."""
# RocketMQ's keys that say one thing together, and their defaults there.
_LISTEN = {"bindAddress": "0.0.0.0", "listenPort": "10911"}  # noqa: S104 (RocketMQ's default)
_TRACE = {"traceTopicEnable": "false", "msgTraceTopicName": naming.TRACE_TOPIC}


def _listen(given: Mapping[str, str]) -> dict[str, Any]:
    """Return the address of RocketMQ's two keys."""
    host, port = (given.get(key, default) for key, default in _LISTEN.items())
    return {"listen": f"{host}:{whole(port)}"}


def _trace(given: Mapping[str, str]) -> dict[str, Any]:
    """Return the topic of traces, where it is asked for."""
    asked, name = (given.get(key, default) for key, default in _TRACE.items())
    return {"trace_topic": name if boolean(asked) else ""}


@dataclass(frozen=True, kw_only=True)
class BrokerConfig(Config):
    """The options of a broker."""

    store: str = "store"
    """The store directory."""
    name: str = "broker-a"
    """The broker's name; master and slaves share it."""
    cluster: str = "DefaultCluster"
    """The cluster's name."""
    namesrv: tuple[str, ...] = ()
    """`host:port` of each name server; none: the broker answers for itself alone."""
    listen: str = "0.0.0.0:10911"
    """`host:port` of the remoting listener; port 0 takes a free one."""
    fast_listen: str = "auto"
    """`host:port` of a second remoting listener, as Java's clients ask for; `auto`: the port two below; `off`: none."""
    grpc_listen: str = "0.0.0.0:8081"
    """`host:port` of the gRPC listener; port 0 takes a free one."""
    advertise: str = ""
    """Host, or `host:port`, others reach the remoting listener at; empty: found out."""
    grpc_advertise: str = ""
    """Host, or `host:port`, others reach the gRPC listener at; empty: the host of `advertise`."""
    auto_create_topics: bool = True
    """Whether a topic is created on first use; off means off, for every client."""
    auto_create_groups: bool = True
    """Whether a consumer group is created on first use."""
    default_queues: int = 8
    """Queues of a topic created on first use."""
    client_lease: timedelta = timedelta(seconds=120)
    """How long a client without a heartbeat counts as there."""
    handler_threads: int = 32
    """Threads that answer the requests of the control plane."""
    archive: str = ""
    """`module:function` that takes each file before it is deleted; with a word behind, the one it returns for that."""
    trace_topic: str = ""
    """Topic for the traces of clients, made at start; empty: none."""
    membership: MembershipConfig = field(default_factory=MembershipConfig)
    """The options of the broker as a member of its cluster; they too are named without `membership`."""
    connections: ListenerConfig = field(default_factory=ListenerConfig)
    """The options of its remoting connections; they too are named without `connections`."""
    sends: SendConfig = field(default_factory=SendConfig)
    """The options for messages that are sent to it; they too are named without `sends`."""
    reads: ConsumeConfig = field(default_factory=ConsumeConfig)
    """The options for consumers; they too are named without `reads`."""
    grpc: GrpcConfig = field(default_factory=GrpcConfig)
    """The options of its gRPC listener; they too are named without `grpc`."""
    compatibility: CompatConfig = field(default_factory=CompatConfig)
    """The options where RocketMQ allows less, `compat` among them; they too are named without `compatibility`."""
    transactions: TransactionConfig = field(default_factory=TransactionConfig)
    """The options for transactions; they too are named without `transactions`."""
    storage: StoreConfig = field(default_factory=StoreConfig)
    """The options of the message store; files, environment and flags name them without `storage`."""
    timers: TimerConfig = field(default_factory=TimerConfig)
    """The options of the message store for times of delivery; they too are named without `timers`."""

    prefix: ClassVar[str] = "FERROMQ_BROKER_"
    properties: ClassVar[Mapping[str, Callable[[str], dict[str, Any]]]] = {
        "brokerName": lambda text: {"name": text},
        "brokerClusterName": lambda text: {"cluster": text},
        **REFUSED,
        "namesrvAddr": lambda text: {"namesrv": split_list(text)},
        "brokerIP1": lambda text: {"advertise": text},
        "storePathRootDir": lambda text: {"store": text},
        "autoCreateTopicEnable": lambda text: {"auto_create_topics": boolean(text)},
        "autoCreateSubscriptionGroup": lambda text: {"auto_create_groups": boolean(text)},
        "defaultTopicQueueNums": lambda text: {"default_queues": whole(text)},
        **SendConfig.properties,
        **CompatConfig.properties,
        **ConsumeConfig.properties,
        **TimerConfig.properties,
        **TransactionConfig.properties,
        **MembershipConfig.properties,
        "channelExpiredTimeout": lambda text: {"client_lease": timedelta(milliseconds=whole(text))},
        **ListenerConfig.properties,
        **StoreConfig.properties,
    }
    joined: ClassVar[Mapping[tuple[str, ...], Callable[[Mapping[str, str]], dict[str, Any]]]] = {
        tuple(_LISTEN): _listen,
        tuple(_TRACE): _trace,
        **MembershipConfig.joined,
        **ListenerConfig.joined,
        **GrpcConfig.joined,
        **StoreConfig.joined,
    }
    parts: ClassVar[Mapping[str, type[Config]]] = {
        "membership": MembershipConfig,
        "connections": ListenerConfig,
        "sends": SendConfig,
        "reads": ConsumeConfig,
        "grpc": GrpcConfig,
        "compatibility": CompatConfig,
        "timers": TimerConfig,
        "transactions": TransactionConfig,
        "storage": StoreConfig,
    }
    without_effect: ClassVar[Mapping[str, str]] = {**WITHOUT_EFFECT, **ListenerConfig.without_effect}

    def __post_init__(self) -> None:
        check_address("listen", self.listen)
        check_address("grpc_listen", self.grpc_listen)
        if self.fast_listen not in {"auto", "off"}:
            check_address("fast_listen", self.fast_listen)
        for address in self.namesrv:
            check_address("namesrv", address)
        for name in ("advertise", "grpc_advertise"):
            try:
                split_advertised(getattr(self, name) or "unset")
            except ValueError as error:
                raise ConfigError(f"{name} is {getattr(self, name)!r}; {error}") from error
        for name in ("name", "cluster", "store"):
            if not getattr(self, name):
                raise ConfigError(f"{name} is empty")
        if not 1 <= self.default_queues <= LIMIT_FOR_QUEUES:
            raise ConfigError(f"default_queues is {self.default_queues}; it may be 1 to {LIMIT_FOR_QUEUES}")
        check_positive("client_lease", self.client_lease, timedelta())
        self._check_trace_topic()
        check_positive("handler_threads", self.handler_threads, 0)
        known = [*BrokerConfig.keys_known(), *BrokerConfig.names()]
        check_known(dict.fromkeys(self.membership.protected_keys), known, "option in configBlackList (protected_keys)")

    def _check_trace_topic(self) -> None:
        if not self.trace_topic:
            return
        try:
            naming.check_topic(self.trace_topic)
        except IllegalName as error:
            raise ConfigError(f"trace_topic: {error}") from error
        if naming.is_internal_topic(self.trace_topic):
            raise ConfigError(
                f"trace_topic is {self.trace_topic}, which clients may not write; use {naming.TRACE_TOPIC}, a name "
                f"that begins with {naming.TRACE_PREFIX}, or one outside the system"
            )
