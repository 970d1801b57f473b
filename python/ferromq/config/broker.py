"""
The options of a broker. Groups of options have classes of their own in the modules beside this one.

Nothing here opens a store or a socket.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ferromq.config.access import AccessConfig
from ferromq.config.compat import CompatConfig
from ferromq.config.consume import ConsumeConfig
from ferromq.config.grpc import GrpcConfig
from ferromq.config.keys import BOOLEAN, LIST, WHOLE, JoinedKeys, Key, Keys
from ferromq.config.known_names import check_known
from ferromq.config.listener import ListenerConfig
from ferromq.config.membership import MembershipConfig
from ferromq.config.monitoring import BrokerMonitoringConfig
from ferromq.config.reader import Config
from ferromq.config.rocketmq_keys import REFUSED, WITHOUT_EFFECT
from ferromq.config.send import SendConfig
from ferromq.config.store import StoreConfig
from ferromq.config.timer import TimerConfig
from ferromq.config.transactions import TransactionConfig
from ferromq.config.values import (
    check_address,
    check_positive,
    split_advertised,
    whole,
)
from ferromq.errors import ConfigError

LIMIT_FOR_QUEUES = 65_536
"""The most queues of a topic."""
_NAME = re.compile(r"(?=.*\S)[^:;/\\\x00-\x1f\x7f]{1,255}\Z")
_NAME_RULE = (
    "1 to 255 characters without : ; / \\ and control characters, because order configurations and topics contain it"
)
# RocketMQ's joined keys, and their defaults there.
_LISTEN = {"bindAddress": "0.0.0.0", "listenPort": "10911"}  # noqa: S104 (RocketMQ's default)


def _listen(given: Mapping[str, str]) -> dict[str, Any]:
    """Return the address of RocketMQ's two keys."""
    host, port = (given.get(key, default) for key, default in _LISTEN.items())
    return {"listen": f"{host}:{whole(port)}"}


_MESSAGE, _BESIDE_BODY = 4 << 20, 64 << 10
"""Bytes of the largest body by default, and of what a request has beside it: properties have up to 32 KiB."""


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
    """`host:port` of each name server. Empty: the broker does not register."""
    listen: str = "0.0.0.0:10911"
    """`host:port` of the remoting listener; port 0 takes a free one."""
    fast_listen: str = "auto"
    """`host:port` of a second remoting listener for Java's clients. `auto`: the port two below; `off`: none."""
    grpc_listen: str = "0.0.0.0:8081"
    """`host:port` of the gRPC listener; port 0 takes a free one."""
    advertise: str = ""
    """Host, or `host:port`, at which clients reach the remoting listener. Empty: an address of this machine."""
    grpc_advertise: str = ""
    """Host, or `host:port`, at which clients reach the gRPC listener. Empty: the host of `advertise`."""
    auto_create_topics: bool = True
    """Whether any client may create a topic by using it."""
    auto_create_groups: bool = True
    """Whether any client may create a consumer group by using it."""
    default_queues: int = 8
    """Queues of a topic created on first use."""
    handler_threads: int = 32
    """Threads that answer the requests of the control plane."""
    archive: str = ""
    """`module:function` of the archive hook. With an argument after a blank, the function returns the hook for it."""
    # Files, environment and flags name the options of a group without the group.
    membership: MembershipConfig = field(default_factory=MembershipConfig)
    """The options of the broker as a member of its cluster."""
    connections: ListenerConfig = field(default_factory=ListenerConfig)
    """The options of its connections."""
    monitoring: BrokerMonitoringConfig = field(default_factory=BrokerMonitoringConfig)
    """The options of its HTTP endpoint for metrics and health checks."""
    access: AccessConfig = field(default_factory=AccessConfig)
    """The options for access control."""
    sends: SendConfig = field(default_factory=SendConfig)
    """The options for messages that producers send."""
    reads: ConsumeConfig = field(default_factory=ConsumeConfig)
    """The options for consumers."""
    grpc: GrpcConfig = field(default_factory=GrpcConfig)
    """The options of its gRPC listener."""
    compatibility: CompatConfig = field(default_factory=CompatConfig)
    """The options where RocketMQ has stricter limits, with `compat`."""
    transactions: TransactionConfig = field(default_factory=TransactionConfig)
    """The options for transactions."""
    storage: StoreConfig = field(default_factory=StoreConfig)
    """The options of the message store."""
    timers: TimerConfig = field(default_factory=TimerConfig)
    """The options of the message store for timed messages."""

    prefix: ClassVar[str] = "FERROMQ_BROKER_"
    properties: ClassVar[Keys] = {
        "brokerName": Key("name"),
        "brokerClusterName": Key("cluster"),
        **REFUSED,
        "namesrvAddr": Key("namesrv", LIST),
        "brokerIP1": Key("advertise"),
        "storePathRootDir": Key("store"),
        "autoCreateTopicEnable": Key("auto_create_topics", BOOLEAN),
        "autoCreateSubscriptionGroup": Key("auto_create_groups", BOOLEAN),
        "defaultTopicQueueNums": Key("default_queues", WHOLE),
        **SendConfig.properties,
        **CompatConfig.properties,
        **ConsumeConfig.properties,
        **TimerConfig.properties,
        **TransactionConfig.properties,
        **GrpcConfig.properties,
        **MembershipConfig.properties,
        **ListenerConfig.properties,
        **BrokerMonitoringConfig.properties,
        **AccessConfig.properties,
        **StoreConfig.properties,
    }
    joined: ClassVar[JoinedKeys] = {
        tuple(_LISTEN): _listen,
        **SendConfig.joined,
        **MembershipConfig.joined,
        **ListenerConfig.joined,
        **BrokerMonitoringConfig.joined,
        **AccessConfig.joined,
        **GrpcConfig.joined,
        **StoreConfig.joined,
    }
    parts: ClassVar[Mapping[str, type[Config]]] = {
        "membership": MembershipConfig,
        "connections": ListenerConfig,
        "monitoring": BrokerMonitoringConfig,
        "access": AccessConfig,
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
        if not self.store:
            raise ConfigError("store is empty")
        for name in ("name", "cluster"):
            if not _NAME.match(getattr(self, name)):
                raise ConfigError(f"{name} is {getattr(self, name)!r}; it may have {_NAME_RULE}")
        if not 1 <= self.default_queues <= LIMIT_FOR_QUEUES:
            raise ConfigError(f"default_queues is {self.default_queues}; it may be 1 to {LIMIT_FOR_QUEUES}")
        check_positive("handler_threads", self.handler_threads, 0)
        known = [*BrokerConfig.keys_known(), *BrokerConfig.names()]
        check_known(dict.fromkeys(self.membership.protected_keys), known, "option in configBlackList (protected_keys)")

    def check_together(self) -> None:
        """Raise `ConfigError` if no request is large enough for the largest message."""
        super().check_together()
        message = self.storage.max_message_size or _MESSAGE
        most = max(self.connections.frame_limit, self.grpc.grpc_message_limit)
        if message + _BESIDE_BODY > most:
            raise ConfigError(
                f"max_message_size is {message} bytes, and a request has {_BESIDE_BODY} more; frame_limit and "
                f"grpc_message_limit allow {most} bytes at most: lower the one or raise the others"
            )

    def outgoing(self) -> dict[str, Any]:
        """Return the arguments of a `RemotingClient` that calls name servers and the master. Raises `ConfigError`."""
        return {**self.connections.outgoing(), "credentials": self.access.inner()}
