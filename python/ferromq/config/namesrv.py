"""
The options of a name server, and RocketMQ's keys for them.

`namesrv.settings` has the list of those that can change at run time.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, ClassVar

from ferromq.config.access import AccessConfig
from ferromq.config.keys import (
    BOOLEAN,
    DURATION,
    LIST,
    MILLISECONDS,
    SECONDS,
    WHOLE,
    JoinedKeys,
    Key,
    Keys,
    written_keys,
)
from ferromq.config.listener import ListenerConfig
from ferromq.config.monitoring import MonitoringConfig
from ferromq.config.reader import Config
from ferromq.config.rocketmq_keys import NAME_SERVER_REFUSED, NAME_SERVER_WITHOUT_EFFECT
from ferromq.config.values import check_address, check_positive, whole
from ferromq.errors import ConfigError

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
    access_directory: str = ""
    """Directory of the file of users, access.json; `authentication_enabled` needs it."""
    scan_interval: timedelta = timedelta(seconds=10)
    """How often the name server looks for expired registrations."""
    lease: timedelta = timedelta(seconds=120)
    """How long a registration lasts, unless the broker sets its own time."""
    handler_threads: int = 8
    """Threads that answer requests."""
    order_messages: bool = False
    """Whether routes contain the topic's order configuration from the key-value table."""
    return_order: bool = True
    """Whether the answer to a registration contains all order configurations."""
    delete_missing_topics: bool = False
    """Whether a broker loses the topics that it no longer registers; brokers must then send whole tables."""
    acting_master: bool = False
    """Whether routes show the first slave in place of a lost master, read-only, if the broker allows it."""
    notify_minimum: bool = False
    """Whether brokers of one name are notified when the lowest broker id among them changes."""
    list_all_topics: bool = True
    """Whether clients may list all topics."""
    list_topics: bool = True
    """Whether clients may list topics by cluster and by unit."""
    wait_for_service: bool = False
    """Whether routes are refused until `service_wait` has passed, so that all brokers can register first."""
    service_wait: timedelta = timedelta(seconds=45)
    """The length of that wait, from the start."""
    watch_config: bool = False
    """Whether changes of the configuration file are taken over while the name server runs, within 20 s."""
    protected_keys: tuple[str, ...] = ()
    """RocketMQ's keys that cannot be changed at run time, in addition to those that name files."""
    access: AccessConfig = field(default_factory=AccessConfig)
    """The options for access control, named without `access`."""
    connections: ListenerConfig = field(default_factory=ListenerConfig)
    """The options of its connections. Files, environment and flags name them without `connections`."""
    monitoring: MonitoringConfig = field(default_factory=MonitoringConfig)
    """The options of its HTTP endpoint for metrics and health checks, named without `monitoring`."""

    prefix: ClassVar[str] = "FERROMQ_NAMESRV_"
    properties: ClassVar[Keys] = {
        "kvConfigPath": Key("kv_config_path"),
        "authConfigPath": Key("access_directory"),
        "scanNotActiveBrokerInterval": Key("scan_interval", MILLISECONDS),
        "lease": Key("lease", DURATION),
        "defaultThreadPoolNums": Key("handler_threads", WHOLE),
        "orderMessageEnable": Key("order_messages", BOOLEAN),
        "returnOrderTopicConfigToBroker": Key("return_order", BOOLEAN),
        "deleteTopicWithBrokerRegistration": Key("delete_missing_topics", BOOLEAN),
        "supportActingMaster": Key("acting_master", BOOLEAN),
        "notifyMinBrokerIdChanged": Key("notify_minimum", BOOLEAN),
        "enableAllTopicList": Key("list_all_topics", BOOLEAN),
        "enableTopicList": Key("list_topics", BOOLEAN),
        "needWaitForService": Key("wait_for_service", BOOLEAN),
        "waitSecondsForService": Key("service_wait", SECONDS),
        "configBlackList": Key("protected_keys", LIST),
        **NAME_SERVER_REFUSED,
        **AccessConfig.properties,
        **ListenerConfig.properties,
    }
    joined: ClassVar[JoinedKeys] = {
        tuple(_LISTEN): _listen,
        **AccessConfig.joined,
        **ListenerConfig.joined,
    }
    parts: ClassVar[Mapping[str, type[Config]]] = {
        "access": AccessConfig,
        "connections": ListenerConfig,
        "monitoring": MonitoringConfig,
    }
    without_effect: ClassVar[Mapping[str, str]] = {**NAME_SERVER_WITHOUT_EFFECT, **ListenerConfig.without_effect}

    def __post_init__(self) -> None:
        check_address("listen", self.listen)
        for name in ("scan_interval", "lease"):
            check_positive(name, getattr(self, name), timedelta())
        check_positive("handler_threads", self.handler_threads, 0)

    def check_together(self) -> None:
        """Raise `ConfigError` for users without a place."""
        super().check_together()
        if self.access.limits:
            raise ConfigError("limits is an option of brokers: a name server has no messages; set it for each broker")
        if self.access.authentication_enabled and not self.access_directory:
            raise ConfigError(
                "authentication_enabled of a name server needs access_directory (authConfigPath), the directory of its "
                "users"
            )

    def outgoing(self) -> dict[str, Any]:
        """Return the options of its own connections to brokers."""
        return {**self.connections.outgoing(), "credentials": self.access.inner()}

    def keys(self) -> dict[str, str]:
        """Return the options as RocketMQ's keys and values; options without such a key have their own name."""
        host, _, port = self.listen.rpartition(":")
        options = {**self.given(), "tls_mode": self.connections.mode}
        shown = {key: entry for key, entry in self.properties.items() if not self.is_secret(key)}
        return {
            "bindAddress": host,
            "listenPort": port,
            "authenticationEnabled": str(self.access.authentication_enabled).lower(),
            "authorizationEnabled": str(self.access.authorization_enabled).lower(),
            **written_keys(shown, options),
            "tls.server.need.client.auth": self.connections.tls_client_auth,
        }
