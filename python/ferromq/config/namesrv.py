"""
The options of a name server, and RocketMQ's keys for them.

`config` hands them on; which of them a running name server takes over is in `namesrv.settings`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, ClassVar

from ferromq.config.listener import ListenerConfig
from ferromq.config.reader import Config
from ferromq.config.rocketmq_keys import NAME_SERVER_REFUSED, NAME_SERVER_WITHOUT_EFFECT
from ferromq.config.values import boolean, check_address, check_positive, split_list, whole

_LISTEN = {"bindAddress": "0.0.0.0", "listenPort": "9876"}  # noqa: S104 (as in RocketMQ)
_MILLISECOND = timedelta(milliseconds=1)
_SECOND = timedelta(seconds=1)


def _listen(given: Mapping[str, str]) -> dict[str, Any]:
    """Return the address of RocketMQ's two keys."""
    host, port = (given.get(key, default) for key, default in _LISTEN.items())
    return {"listen": f"{host}:{whole(port)}"}


@dataclass(frozen=True, kw_only=True)
class NameServerConfig(Config):
    """The options of a name server."""

    listen: str = "0.0.0.0:9876"
    """`host:port` to listen on; port 0 takes a free one."""
    kv_config_path: str = ""
    """File of the key-value table, RocketMQ's kvConfig.json; empty: kept in memory."""
    scan_interval: timedelta = timedelta(seconds=10)
    """How often ended leases are looked for."""
    lease: timedelta = timedelta(seconds=120)
    """How long a registration holds, unless the broker says otherwise."""
    handler_threads: int = 8
    """Threads that answer requests."""
    order_messages: bool = False
    """Whether a route has the topic's order configuration, from the key-value table."""
    return_order: bool = True
    """Whether a broker that registers is told all order configurations."""
    delete_missing_topics: bool = False
    """Whether topics a broker does not register any more lose their queues there; brokers must send whole tables."""
    acting_master: bool = False
    """Whether the first slave of a lost master is shown in its place, where the broker allows it; it is read-only."""
    notify_minimum: bool = False
    """Whether brokers of one name are told when the lowest broker id among them changes."""
    list_all_topics: bool = True
    """Whether the list of all topics is given."""
    list_topics: bool = True
    """Whether topics are listed by cluster and by unit."""
    wait_for_service: bool = False
    """Whether routes are refused until `service_wait` has passed, so that all brokers are there when they are given."""
    service_wait: timedelta = timedelta(seconds=45)
    """How long that is, from the start."""
    protected_keys: tuple[str, ...] = ()
    """RocketMQ's keys that may not be changed at run time, beside those of files."""
    connections: ListenerConfig = field(default_factory=ListenerConfig)
    """The options of its connections; files, environment and flags name them without `connections`."""

    prefix: ClassVar[str] = "FERROMQ_NAMESRV_"
    properties: ClassVar[Mapping[str, Callable[[str], dict[str, Any]]]] = {
        "kvConfigPath": lambda text: {"kv_config_path": text},
        "scanNotActiveBrokerInterval": lambda text: {"scan_interval": whole(text) * _MILLISECOND},
        "lease": lambda text: {"lease": text},
        "defaultThreadPoolNums": lambda text: {"handler_threads": whole(text)},
        "orderMessageEnable": lambda text: {"order_messages": boolean(text)},
        "returnOrderTopicConfigToBroker": lambda text: {"return_order": boolean(text)},
        "deleteTopicWithBrokerRegistration": lambda text: {"delete_missing_topics": boolean(text)},
        "supportActingMaster": lambda text: {"acting_master": boolean(text)},
        "notifyMinBrokerIdChanged": lambda text: {"notify_minimum": boolean(text)},
        "enableAllTopicList": lambda text: {"list_all_topics": boolean(text)},
        "enableTopicList": lambda text: {"list_topics": boolean(text)},
        "needWaitForService": lambda text: {"wait_for_service": boolean(text)},
        "waitSecondsForService": lambda text: {"service_wait": whole(text) * _SECOND},
        "configBlackList": lambda text: {"protected_keys": split_list(text)},
        **NAME_SERVER_REFUSED,
        **ListenerConfig.properties,
    }
    joined: ClassVar[Mapping[tuple[str, ...], Callable[[Mapping[str, str]], dict[str, Any]]]] = {
        tuple(_LISTEN): _listen,
        **ListenerConfig.joined,
    }
    parts: ClassVar[Mapping[str, type[Config]]] = {"connections": ListenerConfig}
    without_effect: ClassVar[Mapping[str, str]] = {**NAME_SERVER_WITHOUT_EFFECT, **ListenerConfig.without_effect}

    def __post_init__(self) -> None:
        check_address("listen", self.listen)
        for name in ("scan_interval", "lease"):
            check_positive(name, getattr(self, name), timedelta())
        check_positive("handler_threads", self.handler_threads, 0)

    def keys(self) -> dict[str, str]:
        """Return the options as RocketMQ's keys and values, the ones without such a key under their own name."""
        host, _, port = self.listen.rpartition(":")
        return {
            "bindAddress": host,
            "listenPort": port,
            "kvConfigPath": self.kv_config_path,
            "scanNotActiveBrokerInterval": str(self.scan_interval // _MILLISECOND),
            "lease": f"{self.lease // _MILLISECOND}ms",
            "defaultThreadPoolNums": str(self.handler_threads),
            "orderMessageEnable": _shown(self.order_messages),
            "returnOrderTopicConfigToBroker": _shown(self.return_order),
            "deleteTopicWithBrokerRegistration": _shown(self.delete_missing_topics),
            "supportActingMaster": _shown(self.acting_master),
            "notifyMinBrokerIdChanged": _shown(self.notify_minimum),
            "enableAllTopicList": _shown(self.list_all_topics),
            "enableTopicList": _shown(self.list_topics),
            "needWaitForService": _shown(self.wait_for_service),
            "waitSecondsForService": str(self.service_wait // _SECOND),
            "configBlackList": ";".join(self.protected_keys),
            **self.connections.keys(),
        }


def _shown(value: bool) -> str:
    return "true" if value else "false"
