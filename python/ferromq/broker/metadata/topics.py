"""
The topics of a broker and RocketMQ's file for them, `config/topics.json`.

Whoever changes a topic goes through `TopicTable`; what has to be told to others (the hot path, name servers) is told
through what it was given. How the table is kept is in `tables`, rules for names are in `_names`.
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
        """The kind of messages it takes; MIXED or UNSPECIFIED: any; UNDECIDED: any, until the first message decides."""
        kind = self.attributes.get(MESSAGE_TYPE)
        if kind is None:
            return "NORMAL" if _is_of_brokers(self.name) else UNDECIDED
        return kind if kind in MESSAGE_TYPES else "UNSPECIFIED"

    def of_type(self, kind: str) -> "TopicConfig":
        """Return the topic as it is where it takes messages of this kind."""
        return replace(self, attributes={**self.attributes, MESSAGE_TYPE: kind})

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
        """
        Read Java's form; absent fields have Java's defaults.

        Raises `ValueError` naming the number that may not be so, and `TypeError`, `AttributeError` or `OverflowError`
        for another form.
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
"""The message type of a topic that was given none and has no messages yet; no file has it."""


def _is_of_brokers(name: str) -> bool:
    return name.startswith((naming.RETRY_PREFIX, naming.DLQ_PREFIX)) or naming.is_system_topic(name)


def is_fifo(topic: TopicConfig | None) -> bool:
    """Say whether a topic is for messages in order alone."""
    return topic is not None and topic.message_type == "FIFO"


_BOUNDS: Mapping[str, int] = {
    "readQueueNums": LIMIT_FOR_QUEUES,
    "writeQueueNums": LIMIT_FOR_QUEUES,
    # RocketMQ's fourth bit included, which has no meaning here. Flags know no number below 0: -1 would be all of them.
    "perm": (1 << 4) - 1,
    "topicSysFlag": (1 << 31) - 1,
}


def bounded(topic: str, what: str, value: Any) -> int:
    """Return a number of a topic; raises `ValueError` where it is below 0 or too high."""
    number = int(value)
    if not 0 <= number <= _BOUNDS[what]:
        raise ValueError(f"{what} of {topic} is {str(number)[:40]}; it may be 0 to {_BOUNDS[what]}")
    return number


class RegistrationWait(enum.Enum):
    """What a change of topics waits for, of the name servers that answer; they are told at once in any case."""

    NOTHING = enum.auto()
    SETTLED = enum.auto()
    """That nobody is just told an older table, which could undo what is done next."""
    REGISTERED = enum.auto()
    """That they know the change."""


Announce = Callable[[Sequence[str], RegistrationWait], None]
"""Hears the names of the topics that changed, and what to wait for."""


class TopicTable:
    """
    The topics of a broker; thread-safe.

    A change is on disk before the call returns, and before *push* (a name, and the topic or None) and then *announce*
    hear of it. Raises `CorruptStore` where the file is there and neither it nor its `.bak` can be read.
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
        """All topics, system topics included, with the version of the table."""
        return self._table.content

    def get(self, name: str) -> TopicConfig | None:
        """Return the topic; None where there is none, and for system topics, which clients may not use."""
        return None if self.is_system(name) else self.find(name)

    def find(self, name: str) -> TopicConfig | None:
        """Return the topic, system topics included; None where there is none."""
        return self.content.entries.get(name)

    def all(self) -> list[TopicConfig]:
        """Return every topic clients may use."""
        return [topic for topic in self.content.entries.values() if not self.is_system(topic.name)]

    def snapshot(self) -> tuple[DataVersion, dict[str, TopicConfig]]:
        """Return all topics, system topics included, with the version of the table."""
        content = self.content
        return content.version, dict(content.entries)

    def is_system(self, name: str) -> bool:
        """Say whether the topic belongs to RocketMQ or to this broker itself; clients may not use it."""
        return name in self._system or naming.is_system_topic(name)

    def may_create(self, name: str) -> bool:
        """Say whether a topic of this name may be created on first use; a slave has those of its master."""
        return self._creates() and not self.is_system(name)

    def _creates(self) -> bool:
        config = self._config()
        return config.auto_create_topics and not config.membership.is_slave

    def ensure(self, name: str, peer: str, wait: RegistrationWait = RegistrationWait.NOTHING) -> TopicConfig | None:
        """
        Return the topic, created where it is missing and gRPC clients may create topics on first use; else None.

        A retry or dead-letter topic is its group's and never created so, see `ensure_of_group`. What is created is
        registered with name servers as *wait* says.

        Raises `IllegalName` for a name that breaks the rules.
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
        """Push a topic, and say whether it is there, for somebody who met it missing a moment ago."""
        return self._table.push_again(name)

    def push_all(self) -> None:
        """Push every topic, system topics included."""
        self._table.push_all()

    def merge_journal(self) -> None:
        """Have RocketMQ's file hold every topic: of a large table it is written from time to time only."""
        self._table.merge_journal()

    def close(self) -> None:
        """Leave RocketMQ's file for the broker that opens the directory next."""
        self._table.close()

    def advance_version(self) -> None:
        """Take the next version though no topic changed: name servers pass over other rights under the same one."""
        self._table.change(lambda content: TableChange(version=content.version.next(self._now_ms())))

    def create(self, topic: TopicConfig, peer: str, wait: RegistrationWait = RegistrationWait.NOTHING) -> TopicConfig:
        """
        Return the topic of this name, which is *topic* where there is none yet, whether first use creates or not.

        Raises `IllegalName`, or `RequestError` for what no topic may be.
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
        Return the topic a producer of remoting sends to, as RocketMQ creates it: after a *default_topic*; else None.

        It gets that topic's permission, and as many queues as it has, but at most *queues*. So may a topic of the
        system that clients write, as that of their traces. Name servers know it before the send is answered, as with
        RocketMQ: a consumer may begin then. Raises as `create` does.
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
        Return the retry or dead-letter topic of a group, created where it is missing; a slave creates none: None.

        Raises as `create` does.
        """
        topic = self.find(name)
        if topic is None and not self._config().membership.is_slave:
            topic = self.create(TopicConfig(name, queues, queues, sys_flag=sys_flag, order=order), peer)
        return topic

    def decide_type(self, name: str, kind: str, peer: str) -> TopicConfig | None:
        """
        Return the topic, which takes messages of this *kind* from now on if it was undecided; None where there is none.

        The first of several messages that come at once decides. On a slave nothing is decided.
        """

        def decide(content: TableContent[TopicConfig]) -> TableChange[TopicConfig]:
            topic = content.entries.get(name)
            is_open = topic is not None and topic.message_type == UNDECIDED and not self._config().membership.is_slave
            return TableChange({name: topic.of_type(kind)} if topic is not None and is_open else {})

        return self._change(decide, peer).entries.get(name)

    def put(self, topic: TopicConfig, changes: Mapping[str, str | None], peer: str) -> TopicConfig:
        """
        Create or replace a topic; *changes* alters the attributes it has (None removes one).

        Raises `IllegalName`, or `RequestError` for a number of queues, a permission or an attribute that may not be.
        """
        return self.put_all([(topic, changes)], peer)[0]

    def put_all(self, changes: Sequence[tuple[TopicConfig, Mapping[str, str | None]]], peer: str) -> list[TopicConfig]:
        """Create or replace several topics as `put` does: all of them, with one write and one registration, or none."""
        mixed = self._config().sends.mixed_topics
        for topic, attributes in changes:
            naming.check_topic(topic.name)
            if self.is_system(topic.name):
                raise RequestError(f"{topic.name} is a topic of the system and cannot be changed; choose another name")
            _check(topic)
            if attributes.get(MESSAGE_TYPE) == "MIXED" and not mixed:
                raise RequestError(
                    f"{topic.name} cannot be MIXED, topics of several kinds of messages are off here; give it one "
                    "kind, or say mixed_topics = true (enableMixedMessageType) in the broker's options"
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
        """Call *act* where there is no topic of this name, and let none be created while it runs."""
        return self._table.while_absent(name, act)

    def set_order(self, names: Iterable[str], peer: str) -> None:
        """Note that messages of these topics are in order, as name servers say; unknown names are passed over."""

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
        Become the table of a master: its topics, its version.

        What belongs to this broker alone stays, and so do topics that are *held*: their messages lie here.
        """

        def decide(content: TableContent[TopicConfig]) -> TableChange[TopicConfig]:
            kept = {*topics, *self._system, *held}
            gone = [name for name in content.entries if name not in kept]
            return TableChange({**topics, **dict.fromkeys(gone)}, version=version)

        self._change(decide, peer)

    def configure(self, peer: str) -> None:
        """Take over what the options say: the topic others are created from is there only where they are."""
        pattern = _system_topics(self._config()).get(naming.AUTO_CREATE_TOPIC)
        self._change(lambda _content: TableChange({naming.AUTO_CREATE_TOPIC: pattern}), peer)

    def delete(self, name: str, peer: str) -> bool:
        """
        Delete a topic; say whether there was one. Its messages are the store's business.

        Raises `RequestError` for a topic of the system.
        """
        return name in self.delete_all([name], peer)

    def delete_all(self, names: Sequence[str], peer: str) -> list[str]:
        """Delete topics as `delete` does, all of them or none, with one registration; return those that were there."""
        for name in names:
            if self.is_system(name):
                raise RequestError(f"{name} is a topic of the system and cannot be deleted")
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
"""Topics of one change that are logged one by one."""


def _system_topics(config: BrokerConfig) -> dict[str, TopicConfig]:
    """Return the topics every RocketMQ broker has, which its clients and tools expect in routes."""
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
    if config.trace_topic:
        topics.append(TopicConfig(config.trace_topic, 1, 1))
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
