"""
The topics of a broker and RocketMQ's file for them, `config/topics.json`.

Whoever changes a topic goes through `TopicTable`; what has to be told to others (the hot path, name servers) is told
through its `on_change`. Rules for names are in `_names`.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ferromq import _json, _names
from ferromq.config import LIMIT_FOR_QUEUES, BrokerConfig
from ferromq.errors import CorruptStore, RequestError
from ferromq.route import READ_WRITE, DataVersion, Permission, QueueData

_log = logging.getLogger("ferromq.broker")

MESSAGE_TYPES = ("NORMAL", "FIFO", "DELAY", "TRANSACTION", "UNSPECIFIED")
_MESSAGE_TYPE = "message.type"
_SCHEDULE_QUEUES = 18
# What else RocketMQ allows for an attribute has no meaning here yet.
_ATTRIBUTES: Mapping[str, tuple[str, ...] | None] = {
    _MESSAGE_TYPE: MESSAGE_TYPES,
    "queue.type": ("SimpleCQ",),
    "cleanup.policy": ("DELETE",),
    "reserve.time": None,
}


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """A topic as one broker serves it."""

    name: str
    read_queues: int
    write_queues: int
    permission: Permission = READ_WRITE
    filter_type: str = "SINGLE_TAG"
    sys_flag: int = 0
    order: bool = False
    attributes: Mapping[str, str] = field(default_factory=dict)

    @property
    def message_type(self) -> str:
        """The kind of messages it takes; UNSPECIFIED: any."""
        kind = self.attributes.get(_MESSAGE_TYPE, "NORMAL")
        return kind if kind in MESSAGE_TYPES else "UNSPECIFIED"

    def queue_data(self, broker_name: str) -> QueueData:
        """Return its part of the topic's route."""
        return QueueData(broker_name, self.read_queues, self.write_queues, self.permission, self.sys_flag)

    def to_json(self) -> dict[str, Any]:
        """Return the form Java reads."""
        return {
            "attributes": dict(self.attributes),
            "order": self.order,
            "perm": int(self.permission),
            "readQueueNums": self.read_queues,
            "topicFilterType": self.filter_type,
            "topicName": self.name,
            "topicSysFlag": self.sys_flag,
            "writeQueueNums": self.write_queues,
        }

    @classmethod
    def from_json(cls, name: str, value: Mapping[str, Any]) -> "TopicConfig":
        """Read Java's form; absent fields have Java's defaults."""
        return cls(
            name,
            int(value.get("readQueueNums", 16)),
            int(value.get("writeQueueNums", 16)),
            Permission(int(value.get("perm", READ_WRITE))),
            str(value.get("topicFilterType") or "SINGLE_TAG"),
            int(value.get("topicSysFlag", 0)),
            bool(value.get("order", False)),
            {str(k): str(v) for k, v in (value.get("attributes") or {}).items()},
        )


OnChange = Callable[[TopicConfig, DataVersion, Mapping[str, TopicConfig]], None]
"""Hears of a topic that changed, the version of the table after it, and the whole table."""
OnDelete = Callable[[str], None]
"""Hears the name of a topic that is no longer in the table."""


class TopicTable:
    """
    The topics of a broker; thread-safe.

    A change is on disk before the call returns, and before `on_change` or `on_delete` hears of it. Raises
    `CorruptStore` where the file is there and neither it nor its `.bak` can be read.
    """

    def __init__(
        self,
        config: BrokerConfig,
        directory: Path,
        now_ms: Callable[[], int],
        on_change: OnChange,
        on_delete: OnDelete,
    ) -> None:
        self._config = config
        self._on_delete = on_delete
        self._path = directory / "config" / "topics.json"
        self._now_ms = now_ms
        self._on_change = on_change
        self._lock = threading.Lock()
        self._system = _system_topics(config)
        self._topics, self._version = self._load()

    def get(self, name: str) -> TopicConfig | None:
        """Return the topic; None where there is none, and for system topics, which clients may not use."""
        return None if self.is_system(name) else self._topics.get(name)

    def all(self) -> list[TopicConfig]:
        """Return every topic clients may use."""
        with self._lock:
            return [topic for topic in self._topics.values() if not self.is_system(topic.name)]

    def snapshot(self) -> tuple[DataVersion, dict[str, TopicConfig]]:
        """Return all topics, system topics included, with the version of the table."""
        with self._lock:
            return self._version, dict(self._topics)

    def is_system(self, name: str) -> bool:
        """Say whether the topic belongs to RocketMQ or to this broker itself; clients may not use it."""
        return name in self._system or _names.is_system_topic(name)

    def may_create(self, name: str) -> bool:
        """Say whether a topic of this name may be created on first use."""
        return self._config.auto_create_topics and not self.is_system(name)

    def ensure(self, name: str, peer: str) -> TopicConfig | None:
        """
        Return the topic, created where it is missing and topics may be created on first use; else None.

        Raises `IllegalName` for a name that breaks the rules.
        """
        topic = self.get(name)
        if topic is not None:
            return topic
        _names.check_topic(name)
        if not self.may_create(name):
            return None
        queues = self._config.default_queues
        return self._put(TopicConfig(name, queues, queues), peer, replace=False)

    def put(self, topic: TopicConfig, changes: Mapping[str, str | None], peer: str) -> TopicConfig:
        """
        Create or replace a topic; *changes* alters the attributes it has (None removes one).

        Raises `IllegalName`, or `RequestError` for a number of queues, a permission or an attribute that may not be.
        """
        _names.check_topic(topic.name)
        if self.is_system(topic.name):
            raise RequestError(f"{topic.name} is a topic of the system and cannot be changed; choose another name")
        _check(topic, changes)
        present = self._topics.get(topic.name)
        attributes = {**(present.attributes if present else {}), **changes}
        kept = {name: value for name, value in attributes.items() if value is not None}
        changed = TopicConfig.from_json(topic.name, {**topic.to_json(), "attributes": kept})
        return changed if changed == present else self._put(changed, peer, replace=True)

    def delete(self, name: str, peer: str) -> bool:
        """
        Delete a topic; say whether there was one. Its messages are the store's business.

        Raises `RequestError` for a topic of the system.
        """
        if self.is_system(name):
            raise RequestError(f"{name} is a topic of the system and cannot be deleted")
        with self._lock:
            if name not in self._topics:
                return False
            topics = {other: topic for other, topic in self._topics.items() if other != name}
            version = self._version.next(self._now_ms())
            _json.write_file(self._path, _file(topics, version))
            self._topics, self._version = topics, version
        _log.info("topic deleted topic=%s peer=%s", name, peer)
        self._on_delete(name)
        return True

    def _put(self, topic: TopicConfig, peer: str, *, replace: bool) -> TopicConfig:
        with self._lock:
            if not replace and topic.name in self._topics:
                return self._topics[topic.name]
            topics = {**self._topics, topic.name: topic}
            version = self._version.next(self._now_ms())
            _json.write_file(self._path, _file(topics, version))
            self._topics, self._version = topics, version
        _log.info("topic changed topic=%s queues=%d peer=%s", topic.name, topic.write_queues, peer)
        self._on_change(topic, version, topics)
        return topic

    def _load(self) -> tuple[dict[str, TopicConfig], DataVersion]:
        try:
            content = _json.read_file(self._path) or {}
            table = content.get("topicConfigTable") or {}
            topics = {str(name): TopicConfig.from_json(str(name), value) for name, value in table.items()}
            version = DataVersion.from_json(content.get("dataVersion"))
        except (ValueError, TypeError, AttributeError) as error:
            raise CorruptStore(f"{self._path} is no table of topics: {error}; restore it from its .bak") from error
        if not self._config.auto_create_topics:
            topics.pop(_names.AUTO_CREATE_TOPIC, None)
        missing = {name: topic for name, topic in self._system.items() if name not in topics}
        return {**topics, **missing}, version.next(self._now_ms()) if missing else version


def _file(topics: Mapping[str, TopicConfig], version: DataVersion) -> dict[str, Any]:
    return {
        "dataVersion": version.to_json(),
        "topicConfigTable": {name: topic.to_json() for name, topic in sorted(topics.items())},
    }


def _system_topics(config: BrokerConfig) -> dict[str, TopicConfig]:
    """Return the topics every RocketMQ broker has, which its clients and tools expect in routes."""
    inherited = READ_WRITE | Permission.INHERIT
    topics = [
        TopicConfig(_names.SELF_TEST_TOPIC, 1, 1),
        TopicConfig(config.cluster, 16, 16, inherited),
        TopicConfig(config.name, 1, 1, inherited),
        TopicConfig(_names.OFFSET_MOVED_TOPIC, 1, 1),
        TopicConfig(_names.SCHEDULE_TOPIC, _SCHEDULE_QUEUES, _SCHEDULE_QUEUES),
        TopicConfig(f"{config.cluster}_REPLY_TOPIC", 1, 1),
        TopicConfig(_names.HALF_TOPIC, 1, 1),
        TopicConfig(_names.OP_TOPIC, 1, 1),
    ]
    if config.auto_create_topics:
        topics.append(TopicConfig(_names.AUTO_CREATE_TOPIC, config.default_queues, config.default_queues, inherited))
    return {topic.name: topic for topic in topics}


def _check(topic: TopicConfig, changes: Mapping[str, str | None]) -> None:
    for what, queues in (("readQueueNums", topic.read_queues), ("writeQueueNums", topic.write_queues)):
        if not 0 <= queues <= LIMIT_FOR_QUEUES:
            raise RequestError(f"{what} of {topic.name} is {queues}; it may be 0 to {LIMIT_FOR_QUEUES}")
    if not 0 <= topic.permission <= READ_WRITE | Permission.INHERIT:
        raise RequestError(
            f"perm of {topic.name} is {int(topic.permission)}; it is a sum of 4 read, 2 write, 1 inherit"
        )
    for name, value in changes.items():
        if name not in _ATTRIBUTES:
            raise RequestError(f"unknown attribute {name}; known are {', '.join(sorted(_ATTRIBUTES))}")
        allowed = _ATTRIBUTES[name]
        if value is not None and allowed is not None and value not in allowed:
            raise RequestError(f"the attribute {name} is {value!r}; it may be {', '.join(allowed)}")
