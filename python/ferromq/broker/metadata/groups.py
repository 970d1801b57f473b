"""
The consumer groups of a broker and RocketMQ's file for them, `config/subscriptionGroup.json`.

What a group has consumed is the store's business, who is in it now that of `clients`; how the table is kept is in
`tables`. Fields of the file that have no meaning here are kept as they are, for the Java broker that may open the
directory next.
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
    """Whether the messages of one message group are received one after the other."""
    retries: int = 16
    """How often a message comes again before it counts as dead."""
    retry: RetryPolicy = DEFAULT
    """How long a message that failed waits before it comes again."""
    others: Mapping[str, Any] = field(default_factory=dict)
    """Java's other fields, kept as they came."""

    @property
    def max_attempts(self) -> int:
        """How often a message is delivered at most."""
        return self.retries + 1

    @property
    def attributes(self) -> Mapping[str, str]:
        """What RocketMQ keeps of it by name."""
        return self.others.get("attributes") or {}

    @property
    def priority_factor(self) -> int:
        """How many of a hundred receives look at queues of a higher priority first."""
        value = self.attributes.get(PRIORITY_FACTOR, "")
        return int(value) if OF_GROUPS[PRIORITY_FACTOR].allows(value) else _ALWAYS

    @property
    def broadcast(self) -> bool:
        """Whether its members may each read all messages."""
        return bool(self.others.get("consumeBroadcastEnable", True))

    @property
    def retry_queues(self) -> int:
        """How many queues its retry topic has; 0: what is given back is dropped."""
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
        Read Java's form; absent fields have Java's defaults.

        Raises `ValueError` naming the number that may not be so, and `TypeError`, `AttributeError` or `OverflowError`
        for another form.
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
        Read Java's form as an administrator sent it; what Java does not know is left out.

        Raises `ValueError` naming the field that may not be so.
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
    # RocketMQ takes -1 for "never again"; attempts are one more.
    "retryMaxTimes": (-1, _INT_LIMIT - 1),
    "retryQueueNums": (0, LIMIT_FOR_QUEUES),
    "whichBrokerWhenConsumeSlowly": (-_LONG_LIMIT - 1, _LONG_LIMIT),
}
"""The numbers of a group, and what they may be: some become numbers of 32 bits elsewhere."""
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
"""The fields an administrator may send, and what each holds."""


class GroupTable:
    """
    The consumer groups of a broker; thread-safe.

    A change is on disk before the call returns, and before *push* (a name, and the group or None) or *forbid* (a group,
    and the topics it may not read) hears of it. Raises `CorruptStore` as `TopicTable` does.
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
        # What is pushed last is what holds.
        self._forbidding = threading.Lock()
        self._listeners: list[Callable[[str], None]] = []
        self._seldom = LimitedLog(_log)
        self._table = MetadataTable(directory / "config" / "subscriptionGroup.json", _FORM, now_ms, push)
        self._table.seed({name: GroupConfig(name) for name in naming.SYSTEM_GROUPS}, frozenset(), now_ms())

    def add_listener(self, listener: Callable[[str], None]) -> None:
        """Call *listener* with the name of each group that changed, after it did."""
        self._listeners.append(listener)

    def remove_listener(self, listener: Callable[[str], None]) -> None:
        """Call *listener* no more; whoever holds this table does not hold him for its sake then."""
        self._listeners.remove(listener)

    @property
    def content(self) -> TableContent[GroupConfig]:
        """All groups, with the version of the table, and who may not read what (`forbiddenTable`)."""
        return self._table.content

    def get(self, name: str) -> GroupConfig | None:
        """Return the group; None where there is none."""
        return self.content.entries.get(name)

    def all(self) -> list[GroupConfig]:
        """Return every group."""
        return list(self.content.entries.values())

    def merge_journal(self) -> None:
        """Have RocketMQ's file hold every group: of a large table it is written from time to time only."""
        self._table.merge_journal()

    def close(self) -> None:
        """Leave RocketMQ's file for the broker that opens the directory next."""
        self._table.close()

    def push_again(self, name: str) -> bool:
        """Push a group, and say whether it is there, for somebody who met it missing a moment ago."""
        return self._table.push_again(name)

    def push_all(self) -> None:
        """Push every group, and what groups may not read."""
        self._table.push_all()
        for group in _forbidden(self.content):
            self._push_forbidden(group)

    def ensure(self, name: str, peer: str, check: Callable[[], None] = lambda: None) -> GroupConfig | None:
        """
        Return the group, created where it is missing and groups may be created on first use; else None.

        On a full disk it is kept in memory, so that a new group can read, and written with the next change.
        *check* is called before it is created: where that raises, no group is.

        Raises `IllegalName` for a name that breaks the rules.
        """
        group = self.get(name)
        if group is not None:
            return group
        naming.check_group(name)
        # A slave has those of its master.
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
            text = "group not on disk yet, it is written with the next change group=%s: %s"
            self._seldom.log(logging.WARNING, text, name, error)
            self._table.add_unwritten(name, GroupConfig(name))
            return self.get(name)

    def put(self, group: GroupConfig, changes: Mapping[str, str | None], peer: str) -> GroupConfig:
        """
        Create or replace a group; *changes* alters the attributes it has (None removes one).

        Raises `IllegalName` for a name that breaks the rules, `RequestError` for an attribute that may not be.
        """
        return self.put_all([(group, changes)], peer)[0]

    def put_all(self, changes: Sequence[tuple[GroupConfig, Mapping[str, str | None]]], peer: str) -> list[GroupConfig]:
        """Create or replace several groups as `put` does: all of them, with one write, or none."""
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
        """Delete a group, and what it was forbidden; say whether there was one. Its progress stays."""
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
        Become the table of a master: its groups, what they are forbidden, its version.

        Groups that are *held* stay: they have read what lies here.
        """

        def decide(content: TableContent[GroupConfig]) -> TableChange[GroupConfig]:
            gone = dict.fromkeys(name for name in content.entries if name not in groups and name not in held)
            others = {FORBIDDEN: {group: dict(topics) for group, topics in forbidden.items()}}
            return TableChange({**groups, **gone}, others, version)

        self._change(decide, peer)

    def is_readable(self, group: str, topic: str) -> bool:
        """Say whether a group may read a topic, as far as an administrator forbade it."""
        return not _forbidden(self.content).get(group, {}).get(topic, 0) & _FORBIDDEN_READ

    def set_readable(self, group: str, topic: str, peer: str, *, is_readable: bool) -> None:
        """Allow a group to read a topic, or forbid it."""

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
"""The field of RocketMQ's file that says which group may not read which topic."""
_FULL = {errno.ENOSPC, errno.EDQUOT}
# Bit 2 of a topic's permission, as RocketMQ counts them.
_FORBIDDEN_READ = 1 << 2
_FORM = TableFormat("groups", "subscriptionGroupTable", GroupConfig.from_json, GroupConfig.to_json, others=(FORBIDDEN,))


def _forbidden(content: TableContent[GroupConfig]) -> Mapping[str, Mapping[str, int]]:
    return content.others.get(FORBIDDEN) or {}
