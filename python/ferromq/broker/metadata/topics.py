"""
The topics of a broker, and RocketMQ's file for them, `config/topics.json`.

Every change goes through `TopicTable`, which passes it to the hot path and the name servers. `tables` writes the
file; `protocol.naming` has the rules for names.
"""

import enum
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ferromq.broker.metadata.attributes import MESSAGE_TYPE, MESSAGE_TYPES, OF_TOPICS, altered
from ferromq.broker.metadata.tables import MetadataTable, R, TableChange, TableContent, TableFormat
from ferromq.config.broker import LIMIT_FOR_QUEUES, BrokerConfig
from ferromq.errors import RequestError
from ferromq.protocol import naming
from ferromq.protocol.route import READ_WRITE, DataVersion, Permission, QueueData

_log = logging.getLogger("ferromq.broker")

_FILTER_TYPES = ("SINGLE_TAG", "MULTI_TAG")
_SCHEDULE_QUEUES = 18
_BENCHMARK_QUEUES = 1024
_REVIVE_QUEUES = 8


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
        """The type of messages it accepts; MIXED and UNSPECIFIED accept any, UNDECIDED any first message."""
        kind = self.attributes.get(MESSAGE_TYPE)
        if kind is None:
            return "NORMAL" if _is_of_brokers(self.name) else UNDECIDED
        return kind if kind in MESSAGE_TYPES else "UNSPECIFIED"

    def of_type(self, kind: str) -> "TopicConfig":
        """Return a copy that accepts messages of this type."""
        return replace(self, attributes={**self.attributes, MESSAGE_TYPE: kind})

    def permission_within(self, allowed: Permission) -> Permission:
        """Return its permission on a broker that allows *allowed*; a restricted broker passes on no INHERIT."""
        return self.permission if allowed == READ_WRITE else self.permission & allowed

    def queue_data(self, broker_name: str) -> QueueData:
        """Return this broker's part of the route."""
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
        """
        Read Java's form; missing fields get Java's defaults.

        Raises `ValueError` naming a number out of range, and `TypeError`, `AttributeError` or `OverflowError` for
        another form.
        """
        return cls(
            name,
            bounded(name, "readQueueNums", value.get("readQueueNums", 16)),
            bounded(name, "writeQueueNums", value.get("writeQueueNums", 16)),
            Permission(bounded(name, "perm", value.get("perm", READ_WRITE))),
            str(value.get("topicFilterType") or "SINGLE_TAG"),
            bounded(name, "topicSysFlag", value.get("topicSysFlag", 0)),
            bool(value.get("order", False)),
            {str(k): str(v) for k, v in (value.get("attributes") or {}).items()},
        )


UNDECIDED = "UNDECIDED"
"""The message type of a topic that was given none and has no messages yet; never written to the file."""


def _is_of_brokers(name: str) -> bool:
    return name.startswith((naming.RETRY_PREFIX, naming.DLQ_PREFIX)) or naming.is_system_topic(name)


def is_ordered(topic: TopicConfig | None) -> bool:
    """Return whether senders of a topic keep to its queues, for the order of its messages."""
    return topic is not None and (topic.order or is_fifo(topic))


def is_fifo(topic: TopicConfig | None) -> bool:
    """Return whether a topic accepts only FIFO messages."""
    return topic is not None and topic.message_type == "FIFO"


_BOUNDS: Mapping[str, int] = {
    "readQueueNums": LIMIT_FOR_QUEUES,
    "writeQueueNums": LIMIT_FOR_QUEUES,
    # RocketMQ's fourth bit is allowed, without a meaning here. Negative numbers would set all flags.
    "perm": (1 << 4) - 1,
    "topicSysFlag": (1 << 31) - 1,
}


def bounded(topic: str, what: str, value: Any) -> int:
    """Return a number of a topic; raises `ValueError` if it is out of range."""
    number = int(value)
    if not 0 <= number <= _BOUNDS[what]:
        raise ValueError(f"{what} of {topic} is {str(number)[:40]}; it may be 0 to {_BOUNDS[what]}")
    return number


class RegistrationWait(enum.Enum):
    """What a change of topics waits for, among name servers that answer; all are notified at once in any case."""

    NOTHING = enum.auto()
    SETTLED = enum.auto()
    """For registrations of older tables to end, so that none undoes the next step."""
    REGISTERED = enum.auto()
    """For the registration of the change."""


Announce = Callable[[Sequence[str], RegistrationWait], None]
"""Called with the names of changed topics, and what to wait for."""


class TopicTable:
    """
    The topics of a broker; thread-safe.

    A change is on disk before the call returns, and before *push* gets the name and the topic (None: deleted) and
    then *announce* is called. Raises `CorruptStore` if neither the file nor its `.bak` can be read.
    """

    def __init__(
        self,
        config: Callable[[], BrokerConfig],
        directory: Path,
        now_ms: Callable[[], int],
        push: Callable[[str, TopicConfig | None], None],
        announce: Announce,
    ) -> None:
        self._config = config
        self._announce = announce
        self._now_ms = now_ms
        self._table = MetadataTable(directory / "config" / "topics.json", _FORM, now_ms, push)
        self._system = _system_topics(config())
        absent = frozenset() if config().auto_create_topics else frozenset({naming.AUTO_CREATE_TOPIC})
        self._table.seed(self._system, absent, now_ms())

    @property
    def content(self) -> TableContent[TopicConfig]:
        """All topics, including system topics, and the version of the table."""
        return self._table.content

    def get(self, name: str) -> TopicConfig | None:
        """Return the topic; None if it does not exist, or is a system topic, which clients cannot use."""
        return None if self.is_system(name) else self.find(name)

    def find(self, name: str) -> TopicConfig | None:
        """Return the topic or system topic; None if it does not exist."""
        return self.content.entries.get(name)

    def all(self) -> list[TopicConfig]:
        """Return every topic that clients can use."""
        return [topic for topic in self.content.entries.values() if not self.is_system(topic.name)]

    def snapshot(self) -> tuple[DataVersion, dict[str, TopicConfig]]:
        """Return the version of the table and all topics, including system topics."""
        content = self.content
        return content.version, dict(content.entries)

    def is_system(self, name: str) -> bool:
        """Return whether the topic belongs to RocketMQ or to this broker itself, so that clients cannot use it."""
        return name in self._system or naming.is_system_topic(name)

    def may_create(self, name: str) -> bool:
        """Return whether first use may create a topic of this name; a slave takes its topics from the master."""
        return self._creates() and not self.is_system(name)

    def _creates(self) -> bool:
        config = self._config()
        return config.auto_create_topics and not config.membership.is_slave

    def ensure(self, name: str, peer: str, wait: RegistrationWait = RegistrationWait.NOTHING) -> TopicConfig | None:
        """
        Return the topic, and create it if first use over gRPC may create topics; else None.

        Retry and dead-letter topics are created by `ensure_of_group` alone. A new topic is registered as *wait* says.
        Raises `IllegalName`.
        """
        topic = self.get(name)
        if topic is not None:
            return topic
        naming.check_topic(name)
        if name.startswith((naming.RETRY_PREFIX, naming.DLQ_PREFIX)):
            return None
        if not self.may_create(name) or not self._config().compatibility.used["grpc_creates_topics"]:
            return None
        queues = self._config().default_queues
        return self.create(TopicConfig(name, queues, queues), peer, wait)

    def push_again(self, name: str) -> bool:
        """Push a topic to the hot path once more; returns whether the topic exists."""
        return self._table.push_again(name)

    def push_all(self) -> None:
        """Push every topic, including system topics."""
        self._table.push_all()

    def merge_journal(self) -> None:
        """Write the journal of a large table into RocketMQ's file."""
        self._table.merge_journal()

    def close(self) -> None:
        """Write the journal into RocketMQ's file, for the broker that opens the directory next."""
        self._table.close()

    def advance_version(self) -> None:
        """Advance the version without a change; name servers ignore another permission under the same version."""
        self._table.change(lambda content: TableChange(version=content.version.next(self._now_ms())))

    def create(self, topic: TopicConfig, peer: str, wait: RegistrationWait = RegistrationWait.NOTHING) -> TopicConfig:
        """
        Return the topic of this name, and create it as *topic* if it is missing, whatever the options say.

        Raises `IllegalName`, and `RequestError` for an invalid topic.
        """
        naming.check_topic(topic.name)
        _check(topic)

        def decide(content: TableContent[TopicConfig]) -> TableChange[TopicConfig]:
            return TableChange({} if topic.name in content.entries else {topic.name: topic})

        return self._change(decide, peer, wait).entries[topic.name]

    def ensure_to_send(
        self, name: str, default_topic: str, queues: int, sys_flag: int, peer: str
    ) -> TopicConfig | None:
        """
        Return the topic for a send over remoting, created like *default_topic* as in RocketMQ; else None.

        The new topic gets that topic's permission, and its number of queues up to *queues*. System topics that clients
        write, such as traces, can be created too. Name servers know the topic before the send is answered, so that
        consumers can start. Raises as `create` does.
        """
        topic = self.find(name)
        if topic is not None:
            return topic
        naming.check_topic(name)
        model = self.find(default_topic)
        if model is None or not model.permission & Permission.INHERIT:
            return None
        if not self._creates() or naming.is_internal_topic(name):
            return None
        count = max(1, min(queues, model.write_queues))
        permission = model.permission & READ_WRITE
        topic = TopicConfig(name, count, count, permission, model.filter_type, sys_flag)
        return self.create(topic, peer, RegistrationWait.REGISTERED)

    def ensure_of_group(
        self, name: str, queues: int, sys_flag: int, peer: str, *, order: bool = False
    ) -> TopicConfig | None:
        """
        Return the retry or dead-letter topic of a group, created if it is missing; None if a slave lacks it.

        Raises as `create` does.
        """
        topic = self.find(name)
        if topic is None and not self._config().membership.is_slave:
            topic = self.create(TopicConfig(name, queues, queues, sys_flag=sys_flag, order=order), peer)
        return topic

    def decide_type(self, name: str, kind: str, peer: str) -> TopicConfig | None:
        """
        Return the topic, after giving an undecided one this message type; None if it does not exist.

        The first of several concurrent messages decides. A slave decides nothing.
        """

        def decide(content: TableContent[TopicConfig]) -> TableChange[TopicConfig]:
            topic = content.entries.get(name)
            is_open = topic is not None and topic.message_type == UNDECIDED and not self._config().membership.is_slave
            return TableChange({name: topic.of_type(kind)} if topic is not None and is_open else {})

        return self._change(decide, peer).entries.get(name)

    def put(self, topic: TopicConfig, changes: Mapping[str, str | None], peer: str) -> TopicConfig:
        """
        Create or replace a topic; *changes* alters its attributes (None removes one).

        Raises `IllegalName`, and `RequestError` for an invalid number of queues, permission or attribute.
        """
        return self.put_all([(topic, changes)], peer)[0]

    def put_all(self, changes: Sequence[tuple[TopicConfig, Mapping[str, str | None]]], peer: str) -> list[TopicConfig]:
        """Create or replace several topics with one write and one registration, all or none."""
        mixed = self._config().sends.mixed_topics
        for topic, attributes in changes:
            naming.check_topic(topic.name)
            if self.is_system(topic.name):
                raise RequestError(f"{topic.name} is a system topic and cannot be changed; choose another name")
            _check(topic)
            if attributes.get(MESSAGE_TYPE) == "MIXED" and not mixed:
                raise RequestError(
                    f"{topic.name} cannot be MIXED, mixed message types are disabled here; give it one type, or set "
                    "mixed_topics = true (enableMixedMessageType) in the broker's options"
                )

        def decide(content: TableContent[TopicConfig]) -> TableChange[TopicConfig]:
            put: dict[str, TopicConfig | None] = {}
            for topic, attributes in changes:
                present = put.get(topic.name) or content.entries.get(topic.name)
                kept = altered(OF_TOPICS, present.attributes if present else None, attributes)
                put[topic.name] = replace(topic, attributes=kept)
            return TableChange(put)

        content = self._change(decide, peer, RegistrationWait.REGISTERED)
        return [content.entries.get(topic.name, topic) for topic, _ in changes]

    def while_absent(self, name: str, act: Callable[[], R]) -> R | None:
        """Call *act* if no topic has this name, and prevent one from being created meanwhile."""
        return self._table.while_absent(name, act)

    def set_order(self, names: Iterable[str], peer: str) -> None:
        """Mark topics as ordered, as name servers report them; unknown names are skipped."""

        def decide(content: TableContent[TopicConfig]) -> TableChange[TopicConfig]:
            found = [content.entries[name] for name in names if name in content.entries]
            return TableChange({topic.name: replace(topic, order=True) for topic in found})

        self._change(decide, peer)

    def adopt(
        self,
        topics: Mapping[str, TopicConfig],
        version: DataVersion,
        peer: str,
        *,
        held: Collection[str] = (),
    ) -> None:
        """
        Take over the topics and version of a master.

        This broker's system topics stay, and so do topics in *held*, whose messages lie in its log.
        """

        def decide(content: TableContent[TopicConfig]) -> TableChange[TopicConfig]:
            kept = {*topics, *self._system, *held}
            gone = [name for name in content.entries if name not in kept]
            return TableChange({**topics, **dict.fromkeys(gone)}, version=version)

        self._change(decide, peer)

    def configure(self, peer: str) -> None:
        """Apply changed options: the default topic exists only while topics are created on first use."""
        pattern = _system_topics(self._config()).get(naming.AUTO_CREATE_TOPIC)
        self._change(lambda _content: TableChange({naming.AUTO_CREATE_TOPIC: pattern}), peer)

    def delete(self, name: str, peer: str) -> bool:
        """
        Delete a topic, without its messages; returns whether it existed.

        Raises `RequestError` for a system topic.
        """
        return name in self.delete_all([name], peer)

    def delete_all(self, names: Sequence[str], peer: str) -> list[str]:
        """Delete several topics with one registration, all or none; returns those that existed."""
        for name in names:
            if self.is_system(name):
                raise RequestError(f"{name} is a system topic and cannot be deleted")
        deleted: list[str] = []

        def decide(content: TableContent[TopicConfig]) -> TableChange[TopicConfig]:
            deleted.extend(name for name in names if name in content.entries)
            return TableChange(dict.fromkeys(deleted))

        self._change(decide, peer, RegistrationWait.SETTLED)
        return deleted

    def _change(
        self,
        decide: Callable[[TableContent[TopicConfig]], TableChange[TopicConfig]],
        peer: str,
        wait: RegistrationWait = RegistrationWait.NOTHING,
    ) -> TableContent[TopicConfig]:
        content, names = self._table.change(decide)
        for name in names[:_LOGGED]:
            topic = content.entries.get(name)
            if topic is None:
                _log.info("topic deleted topic=%s peer=%s", name, peer)
            else:
                _log.info("topic changed topic=%s queues=%d peer=%s", name, topic.write_queues, peer)
        if len(names) > _LOGGED:
            _log.info("topics changed count=%d first=%s peer=%s", len(names), names[0], peer)
        if names:
            self._announce(names, wait)
        return content


_FORM = TableFormat("topics", "topicConfigTable", TopicConfig.from_json, TopicConfig.to_json)
_LOGGED = 20
"""The most topics of one change that are logged one by one."""


def _system_topics(config: BrokerConfig) -> dict[str, TopicConfig]:
    """Return the system topics of every RocketMQ broker; clients and tools expect them in routes."""
    inherited = READ_WRITE | Permission.INHERIT
    topics = [
        TopicConfig(naming.SELF_TEST_TOPIC, 1, 1),
        TopicConfig(naming.BENCHMARK_TOPIC, _BENCHMARK_QUEUES, _BENCHMARK_QUEUES),
        TopicConfig(config.cluster, 16, 16, inherited),
        TopicConfig(config.name, 1, 1, inherited),
        TopicConfig(naming.OFFSET_MOVED_TOPIC, 1, 1),
        TopicConfig(naming.SCHEDULE_TOPIC, _SCHEDULE_QUEUES, _SCHEDULE_QUEUES),
        TopicConfig(naming.TIMER_TOPIC, 1, 1),
        TopicConfig(f"{config.cluster}_REPLY_TOPIC", 1, 1),
        TopicConfig(f"{naming.SYSTEM_PREFIX}REVIVE_LOG_{config.cluster}", _REVIVE_QUEUES, _REVIVE_QUEUES),
        TopicConfig(f"{naming.SYSTEM_PREFIX}SYNC_BROKER_MEMBER_{config.name}", 1, 1, Permission.INHERIT),
        TopicConfig(naming.HALF_TOPIC, 1, 1),
        TopicConfig(naming.OP_TOPIC, 1, 1),
    ]
    if config.sends.trace_topic:
        topics.append(TopicConfig(config.sends.trace_topic, 1, 1))
    if config.auto_create_topics:
        topics.append(TopicConfig(naming.AUTO_CREATE_TOPIC, config.default_queues, config.default_queues, inherited))
    return {topic.name: topic for topic in topics}


def _check(topic: TopicConfig) -> None:
    numbers = {
        "readQueueNums": topic.read_queues,
        "writeQueueNums": topic.write_queues,
        "topicSysFlag": topic.sys_flag,
    }
    for what, number in numbers.items():
        try:
            bounded(topic.name, what, number)
        except ValueError as error:
            raise RequestError(str(error)) from error
    if not 0 <= topic.permission <= READ_WRITE | Permission.INHERIT:
        raise RequestError(
            f"perm of {topic.name} is {int(topic.permission)}; it is a sum of 4 read, 2 write, 1 inherit"
        )
    if topic.filter_type not in _FILTER_TYPES:
        raise RequestError(
            f"topicFilterType of {topic.name} is {topic.filter_type!r}; it may be {', '.join(_FILTER_TYPES)}"
        )
