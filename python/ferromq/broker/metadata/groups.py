"""
The consumer groups of a broker, and RocketMQ's file for them, `config/subscriptionGroup.json`.

The store keeps what groups have consumed, `clients` knows their members, `tables` writes the file. Fields without a
meaning here are kept as they are, for a Java broker that opens the directory next.
"""

import dataclasses
import errno
import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ferromq.broker.metadata.attributes import OF_GROUPS, PRIORITY_FACTOR, altered
from ferromq.broker.metadata.tables import MetadataTable, TableChange, TableContent, TableFormat
from ferromq.config.broker import LIMIT_FOR_QUEUES, BrokerConfig
from ferromq.process.limited_log import LimitedLog
from ferromq.protocol import naming, retry_policy
from ferromq.protocol.retry_policy import DEFAULT, RetryPolicy
from ferromq.protocol.route import DataVersion

_log = logging.getLogger("ferromq.broker")


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """A consumer group as one broker serves it."""

    name: str
    enabled: bool = True
    fifo: bool = False
    """Whether each message of a message group waits for the one before it to be acknowledged."""
    retries: int = 16
    """How often a message is redelivered before it becomes a dead letter."""
    retry: RetryPolicy = DEFAULT
    """How long a failed message waits before its redelivery."""
    others: Mapping[str, Any] = field(default_factory=dict)
    """Java's other fields, kept as they came."""

    @property
    def max_attempts(self) -> int:
        """The most deliveries of one message."""
        return self.retries + 1

    @property
    def attributes(self) -> Mapping[str, str]:
        """The group's attributes, by name."""
        return self.others.get("attributes") or {}

    @property
    def priority_factor(self) -> int:
        """The percentage of receives that prefer queues of a higher priority."""
        value = self.attributes.get(PRIORITY_FACTOR, "")
        return int(value) if OF_GROUPS[PRIORITY_FACTOR].allows(value) else _ALWAYS

    @property
    def broadcast(self) -> bool:
        """Whether members may consume in broadcasting mode."""
        return bool(self.others.get("consumeBroadcastEnable", True))

    @property
    def retry_queues(self) -> int:
        """The queues of its retry topic; with 0, messages that consumers send back are dropped."""
        wanted = self.others.get("retryQueueNums")
        return 1 if wanted is None else int(wanted)

    def to_json(self) -> dict[str, Any]:
        """Return the form Java reads."""
        return {
            **_JAVA_DEFAULTS,
            **self.others,
            "consumeEnable": self.enabled,
            "consumeMessageOrderly": self.fifo,
            "groupName": self.name,
            "retryMaxTimes": self.retries,
        }

    @classmethod
    def from_json(cls, name: str, value: Mapping[str, Any]) -> "GroupConfig":
        """
        Read Java's form; missing fields get Java's defaults.

        Raises `ValueError` naming a number out of range, and `TypeError`, `AttributeError` or `OverflowError` for
        another form.
        """
        for field_name, (lowest, highest) in _BOUNDS.items():
            number = value.get(field_name)
            if number is not None and not lowest <= int(number) <= highest:
                raise ValueError(f"{field_name} is {str(number)[:40]}; it may be {lowest} to {highest}")
        return cls(
            name,
            bool(value.get("consumeEnable", True)),
            bool(value.get("consumeMessageOrderly", False)),
            int(value.get("retryMaxTimes", 16)),
            retry_policy.parse(value.get("groupRetryPolicy") or {}),
            dict(value),
        )

    @classmethod
    def from_request(cls, value: Mapping[str, Any]) -> "GroupConfig":
        """
        Read Java's form as an administrator sent it, without fields that Java does not know.

        Raises `ValueError` naming the wrong field.
        """
        for name, (kinds, expected) in _FIELDS.items():
            if value.get(name) is not None and type(value[name]) not in kinds:
                raise ValueError(f"{name} is {value[name]!r}; {expected} is expected")
        known = {name: content for name, content in value.items() if name in _FIELDS and content is not None}
        group = cls.from_json(str(known.pop("groupName", "")), known)
        if group.retries < 0:
            raise ValueError(f"retryMaxTimes is {group.retries}; it may be 0 to {_INT_LIMIT - 1}")
        return group


_ALWAYS = 100
_INT_LIMIT, _LONG_LIMIT = (1 << 31) - 1, (1 << 63) - 1
_BOUNDS: Mapping[str, tuple[int, int]] = {
    "brokerId": (-_LONG_LIMIT - 1, _LONG_LIMIT),
    "consumeTimeoutMinute": (-_INT_LIMIT - 1, _INT_LIMIT),
    "groupSysFlag": (-_INT_LIMIT - 1, _INT_LIMIT),
    # In RocketMQ -1 means no retry. Attempts are one more than retries.
    "retryMaxTimes": (-1, _INT_LIMIT - 1),
    "retryQueueNums": (0, LIMIT_FOR_QUEUES),
    "whichBrokerWhenConsumeSlowly": (-_LONG_LIMIT - 1, _LONG_LIMIT),
}
"""The ranges of a group's numbers; some are stored as 32 bits elsewhere."""
_JAVA_DEFAULTS: Mapping[str, Any] = {
    "attributes": {},
    "brokerId": 0,
    "consumeBroadcastEnable": True,
    "consumeFromMinEnable": True,
    "consumeTimeoutMinute": 15,
    "groupRetryPolicy": {"type": "CUSTOMIZED"},
    "groupSysFlag": 0,
    "notifyConsumerIdsChangedEnable": True,
    "retryQueueNums": 1,
    "whichBrokerWhenConsumeSlowly": 1,
}
_KINDS: Mapping[type, str] = {str: "a text", bool: "true or false", int: "a whole number", dict: "an object"}
_FIELDS: Mapping[str, tuple[tuple[type, ...], str]] = {
    name: ((kind,), _KINDS[kind])
    for name, kind in {
        **{name: type(value) for name, value in _JAVA_DEFAULTS.items() if name != "attributes"},
        "groupName": str,
        "consumeEnable": bool,
        "consumeMessageOrderly": bool,
        "retryMaxTimes": int,
    }.items()
} | {"subscriptionDataSet": ((list,), "a list")}
"""The fields that an administrator may send, and their types."""


class GroupTable:
    """
    The consumer groups of a broker; thread-safe.

    A change is on disk before the call returns, and before *push* gets the name and the group (None: deleted), or
    *forbid* gets a group and the topics that it may not read. Raises `CorruptStore` as `TopicTable` does.
    """

    def __init__(
        self,
        config: Callable[[], BrokerConfig],
        directory: Path,
        now_ms: Callable[[], int],
        push: Callable[[str, GroupConfig | None], None],
        forbid: Callable[[str, list[str]], None] = lambda _group, _topics: None,
    ) -> None:
        self._config = config
        self._forbid = forbid
        # The last push must be of the newest content.
        self._forbidding = threading.Lock()
        self._listeners: list[Callable[[str], None]] = []
        self._seldom = LimitedLog(_log)
        self._table = MetadataTable(directory / "config" / "subscriptionGroup.json", _FORM, now_ms, push)
        self._table.seed({name: GroupConfig(name) for name in naming.SYSTEM_GROUPS}, frozenset(), now_ms())

    def add_listener(self, listener: Callable[[str], None]) -> None:
        """Call *listener* with the name of each group after it changed."""
        self._listeners.append(listener)

    def remove_listener(self, listener: Callable[[str], None]) -> None:
        """Call *listener* no more, and drop the reference to it."""
        self._listeners.remove(listener)

    @property
    def content(self) -> TableContent[GroupConfig]:
        """All groups, the version of the table, and forbidden reads (`forbiddenTable`)."""
        return self._table.content

    def get(self, name: str) -> GroupConfig | None:
        """Return the group; None if it does not exist."""
        return self.content.entries.get(name)

    def all(self) -> list[GroupConfig]:
        """Return every group."""
        return list(self.content.entries.values())

    def merge_journal(self) -> None:
        """Write the journal of a large table into RocketMQ's file."""
        self._table.merge_journal()

    def close(self) -> None:
        """Write the journal into RocketMQ's file, for the broker that opens the directory next."""
        self._table.close()

    def push_again(self, name: str) -> bool:
        """Push a group to the hot path once more; returns whether the group exists."""
        return self._table.push_again(name)

    def push_all(self) -> None:
        """Push every group and its forbidden topics."""
        self._table.push_all()
        for group in _forbidden(self.content):
            self._push_forbidden(group)

    def ensure(self, name: str, peer: str, check: Callable[[], None] = lambda: None) -> GroupConfig | None:
        """
        Return the group, and create it if first use may create groups; else None.

        On a full disk the group is kept in memory, so that it can read; the next change writes it. *check* runs before
        a group is created and may raise to prevent it. Raises `IllegalName`.
        """
        group = self.get(name)
        if group is not None:
            return group
        naming.check_group(name)
        # A slave takes its groups from the master.
        if not self._config().auto_create_groups or self._config().membership.is_slave:
            return None
        check()

        def decide(content: TableContent[GroupConfig]) -> TableChange[GroupConfig]:
            return TableChange({} if name in content.entries else {name: GroupConfig(name)})

        try:
            return self._change(decide, peer).entries[name]
        except OSError as error:
            if error.errno not in _FULL:
                raise
            text = "group not on disk yet, the next change writes it group=%s: %s"
            self._seldom.log(logging.WARNING, text, name, error)
            self._table.add_unwritten(name, GroupConfig(name))
            return self.get(name)

    def put(self, group: GroupConfig, changes: Mapping[str, str | None], peer: str) -> GroupConfig:
        """
        Create or replace a group; *changes* alters its attributes (None removes one).

        Raises `IllegalName`, and `RequestError` for an attribute that is not allowed.
        """
        return self.put_all([(group, changes)], peer)[0]

    def put_all(self, changes: Sequence[tuple[GroupConfig, Mapping[str, str | None]]], peer: str) -> list[GroupConfig]:
        """Create or replace several groups with one write, all or none."""
        for group, _ in changes:
            naming.check_group(group.name)

        def decide(content: TableContent[GroupConfig]) -> TableChange[GroupConfig]:
            put: dict[str, GroupConfig | None] = {}
            for group, attributes in changes:
                present = put.get(group.name) or content.entries.get(group.name)
                kept = altered(OF_GROUPS, present.attributes if present else None, attributes)
                changed = dataclasses.replace(group, others={**group.others, "attributes": kept})
                is_same = present is not None and changed.to_json() == present.to_json()
                put[group.name] = present if is_same else changed
            return TableChange(put)

        content = self._change(decide, peer)
        return [content.entries[group.name] for group, _ in changes]

    def delete(self, name: str, peer: str) -> bool:
        """Delete a group and its forbidden topics; returns whether it existed. The store keeps its offsets."""
        was_there = name in self.content.entries

        def decide(content: TableContent[GroupConfig]) -> TableChange[GroupConfig]:
            forbidden = {group: topics for group, topics in _forbidden(content).items() if group != name}
            return TableChange({name: None} if name in content.entries else {}, {FORBIDDEN: forbidden})

        self._change(decide, peer)
        return was_there

    def adopt(
        self,
        groups: Mapping[str, GroupConfig],
        forbidden: Mapping[str, Mapping[str, int]],
        version: DataVersion,
        peer: str,
        *,
        held: Collection[str] = (),
    ) -> None:
        """
        Take over the groups, forbidden topics and version of a master.

        Groups in *held* stay: they have offsets in this broker's log.
        """

        def decide(content: TableContent[GroupConfig]) -> TableChange[GroupConfig]:
            gone = dict.fromkeys(name for name in content.entries if name not in groups and name not in held)
            others = {FORBIDDEN: {group: dict(topics) for group, topics in forbidden.items()}}
            return TableChange({**groups, **gone}, others, version)

        self._change(decide, peer)

    def is_readable(self, group: str, topic: str) -> bool:
        """Return whether no administrator has forbidden a group to read a topic."""
        return not _forbidden(self.content).get(group, {}).get(topic, 0) & _FORBIDDEN_READ

    def set_readable(self, group: str, topic: str, peer: str, *, is_readable: bool) -> None:
        """Allow or forbid a group to read a topic."""

        def decide(content: TableContent[GroupConfig]) -> TableChange[GroupConfig]:
            forbidden = {name: dict(topics) for name, topics in _forbidden(content).items()}
            of_group = forbidden.setdefault(group, {})
            bits = of_group.get(topic, 0)
            of_group[topic] = bits & ~_FORBIDDEN_READ if is_readable else bits | _FORBIDDEN_READ
            kept = {name: {topic: bits for topic, bits in topics.items() if bits} for name, topics in forbidden.items()}
            return TableChange(others={FORBIDDEN: {name: topics for name, topics in kept.items() if topics}})

        self._change(decide, peer)

    def _change(
        self, decide: Callable[[TableContent[GroupConfig]], TableChange[GroupConfig]], peer: str
    ) -> TableContent[GroupConfig]:
        before = _forbidden(self.content)
        content, names = self._table.change(decide)
        if _forbidden(content) != before:
            for group in before.keys() | _forbidden(content).keys():
                self._push_forbidden(group)
        for name in names:
            _log.info("group %s group=%s peer=%s", "changed" if name in content.entries else "deleted", name, peer)
            for listener in self._listeners:
                listener(name)
        return content

    def _push_forbidden(self, group: str) -> None:
        with self._forbidding:
            bits = _forbidden(self.content).get(group, {})
            self._forbid(group, [topic for topic, value in bits.items() if value & _FORBIDDEN_READ])


FORBIDDEN = "forbiddenTable"
"""The field of RocketMQ's file with the topics that groups may not read."""
_FULL = {errno.ENOSPC, errno.EDQUOT}
# RocketMQ's bit for a forbidden read.
_FORBIDDEN_READ = 1 << 2
_FORM = TableFormat("groups", "subscriptionGroupTable", GroupConfig.from_json, GroupConfig.to_json, others=(FORBIDDEN,))


def _forbidden(content: TableContent[GroupConfig]) -> Mapping[str, Mapping[str, int]]:
    return content.others.get(FORBIDDEN) or {}
