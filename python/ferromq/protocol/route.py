"""
Routes: the queues of a topic, their brokers and addresses, and the JSON of it.

These are values only; `namesrv.route_info` keeps them.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntFlag
from typing import Any

from ferromq.protocol import java_json

__all__ = ["MASTER", "WHOLE", "BrokerData", "DataVersion", "Permission", "QueueData", "TopicRoute"]

# A JSON string, with the colon if it is a key.
_STRING = re.compile(rb'"((?:[^"\\]|\\.)*)"(:?)')

WHOLE = "x-ferromq-whole"
"""Metadata of QueryRoute that asks for every queue of the topic, or an error with the name of a missing broker."""
MASTER = 0
"""The broker id of a master. Slaves have higher ones."""


class Permission(IntFlag):
    """The permissions of a topic's queues, with RocketMQ's bits."""

    NONE = 0
    INHERIT = 1
    """Other topics can be created from this template."""
    WRITE = 2
    READ = 4


READ_WRITE = Permission.READ | Permission.WRITE


@dataclass(frozen=True, slots=True)
class QueueData:
    """The queues of one topic on one broker."""

    broker_name: str
    read_queues: int
    write_queues: int
    permission: Permission = READ_WRITE
    sys_flag: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return the form Java reads."""
        return {
            "brokerName": self.broker_name,
            "perm": int(self.permission),
            "readQueueNums": self.read_queues,
            "topicSysFlag": self.sys_flag,
            "writeQueueNums": self.write_queues,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "QueueData":
        """Read Java's form. 4.x brokers spell the last field `topicSynFlag`."""
        return cls(
            str(value["brokerName"]),
            int(value["readQueueNums"]),
            int(value["writeQueueNums"]),
            Permission(int(value["perm"])),
            int(value.get("topicSysFlag", value.get("topicSynFlag", 0))),
        )


@dataclass(frozen=True, slots=True)
class BrokerData:
    """The addresses of one broker name: a master and its slaves."""

    cluster: str
    broker_name: str
    addresses: Mapping[int, str]
    """Broker id → `host:port` of the remoting listener."""
    zone: str | None = None
    enable_acting_master: bool = False

    @property
    def master(self) -> str | None:
        """The address of the master, if there is one."""
        return self.addresses.get(MASTER)

    @property
    def master_or_slave(self) -> str:
        """The address of the master, or else of the slave with the lowest id. Raises `ValueError` without addresses."""
        return self.master or self.addresses[min(self.addresses)]

    def to_json(self) -> dict[str, Any]:
        """Return the form Java reads."""
        value: dict[str, Any] = {
            "brokerAddrs": {str(broker_id): self.addresses[broker_id] for broker_id in sorted(self.addresses)},
            "brokerName": self.broker_name,
            "cluster": self.cluster,
            "enableActingMaster": self.enable_acting_master,
        }
        if self.zone is not None:
            value["zoneName"] = self.zone
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "BrokerData":
        """Read Java's form."""
        return cls(
            str(value.get("cluster") or ""),
            str(value["brokerName"]),
            {int(broker_id): str(address) for broker_id, address in (value.get("brokerAddrs") or {}).items()},
            value.get("zoneName"),
            bool(value.get("enableActingMaster", False)),
        )


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """Everything that a client needs to reach the queues of a topic."""

    queues: tuple[QueueData, ...]
    brokers: tuple[BrokerData, ...]
    filter_servers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    order_conf: str | None = None

    def encode(self) -> bytes:
        """Encode as standard JSON. Clients since 4.9.4 ask for it, and older Java clients read it too."""
        value: dict[str, Any] = {
            "brokerDatas": [broker.to_json() for broker in self.brokers],
            "filterServerTable": {address: list(servers) for address, servers in self.filter_servers.items()},
            "queueDatas": [queue.to_json() for queue in self.queues],
        }
        if self.order_conf is not None:
            value["orderTopicConf"] = self.order_conf
        return java_json.dumps(value)

    def encode_legacy(self) -> bytes:
        """Encode for Java clients before 4.9.4: broker ids, which are keys of an object, have no quotes."""
        return _STRING.sub(
            lambda match: match[1] + b":" if match[2] and match[1].isdigit() else match[0], self.encode()
        )

    def with_order(self, order_conf: str | None) -> "TopicRoute":
        """Return the same route with an order configuration."""
        return replace(self, order_conf=order_conf)

    def in_zone(self, zone: str) -> "TopicRoute":
        """Return the part of the route in *zone*, with the brokers without a master in all zones."""
        brokers = [b for b in self.brokers if b.master is None or (b.zone or "").lower() == zone.lower()]
        names = {broker.broker_name for broker in brokers}
        addresses = {address for broker in brokers for address in broker.addresses.values()}
        return TopicRoute(
            tuple(queue for queue in self.queues if queue.broker_name in names),
            tuple(brokers),
            {address: servers for address, servers in self.filter_servers.items() if address in addresses},
            self.order_conf,
        )

    @classmethod
    def decode(cls, data: bytes) -> "TopicRoute":
        """Decode the answer of a name server, also with Java's unquoted integer keys. Raises `ValueError`."""
        value = java_json.loads_object(data)
        order_conf = value.get("orderTopicConf")
        if not isinstance(order_conf, str | None):
            raise ValueError(f"not a topic route: orderTopicConf is {order_conf!r:.40}, no text")  # noqa: TRY004 (one error)
        try:
            return cls(
                tuple(QueueData.from_json(queue) for queue in value.get("queueDatas") or ()),
                tuple(BrokerData.from_json(broker) for broker in value.get("brokerDatas") or ()),
                {
                    str(address): tuple(servers or ())
                    for address, servers in (value.get("filterServerTable") or {}).items()
                },
                order_conf,
            )
        except (KeyError, TypeError, AttributeError, OverflowError) as error:
            raise ValueError(f"not a topic route: {error!r}") from error


@dataclass(frozen=True, slots=True)
class DataVersion:
    """The version of a table. Equal versions mean equal tables."""

    timestamp: int = 0
    """The time of the last change, milliseconds since 1970."""
    counter: int = 0
    state_version: int = 0

    def next(self, now_ms: int) -> "DataVersion":
        """Return the version after another change."""
        return DataVersion(now_ms, self.counter + 1, self.state_version)

    def to_json(self) -> dict[str, Any]:
        """Return the form Java reads."""
        return {"counter": self.counter, "stateVersion": self.state_version, "timestamp": self.timestamp}

    @classmethod
    def from_json(cls, value: Mapping[str, Any] | None) -> "DataVersion":
        """Read Java's form. Absent fields are 0."""
        value = value or {}
        return cls(
            int(value.get("timestamp") or 0), int(value.get("counter") or 0), int(value.get("stateVersion") or 0)
        )
