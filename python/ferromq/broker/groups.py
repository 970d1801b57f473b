"""
The consumer groups of a broker and RocketMQ's file for them, `config/subscriptionGroup.json`.

What a group has consumed is the store's business, who is in it now that of `clients`. Fields of the file that have no
meaning here are kept as they are, for the Java broker that may open the directory next.
"""

import dataclasses
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ferromq import _json, _names
from ferromq.config import BrokerConfig
from ferromq.errors import CorruptStore
from ferromq.route import DataVersion

_log = logging.getLogger("ferromq.broker")

_SECOND, _MINUTE, _HOUR = 1_000, 60_000, 3_600_000
BACKOFF_MS = (
    *(_SECOND, 5 * _SECOND, 10 * _SECOND, 30 * _SECOND),
    *(minutes * _MINUTE for minutes in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30)),
    *(_HOUR, 2 * _HOUR),
)
"""How long a message that failed waits before it comes again, by attempt."""


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """A consumer group as one broker serves it."""

    name: str
    enabled: bool = True
    fifo: bool = False
    """Whether the messages of one message group are received one after the other."""
    retries: int = 16
    """How often a message comes again before it counts as dead."""
    backoff_ms: tuple[int, ...] = BACKOFF_MS
    others: Mapping[str, Any] = field(default_factory=dict)
    """Java's other fields, kept as they came."""

    @property
    def max_attempts(self) -> int:
        """How often a message is delivered at most."""
        return self.retries + 1

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
        """Read Java's form; absent fields have Java's defaults."""
        policy = value.get("groupRetryPolicy") or {}
        custom = (policy.get("customizedRetryPolicy") or {}).get("next") if policy.get("type") == "CUSTOMIZED" else None
        return cls(
            name,
            bool(value.get("consumeEnable", True)),
            bool(value.get("consumeMessageOrderly", False)),
            int(value.get("retryMaxTimes", 16)),
            tuple(int(delay) for delay in custom or BACKOFF_MS),
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
        if not 0 <= group.retries < _INT_LIMIT:
            raise ValueError(f"retryMaxTimes is {group.retries}; it may be 0 to {_INT_LIMIT - 1}")
        return group


_INT_LIMIT = (1 << 31) - 1
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

    A change is on disk before the call returns, and before `on_change` hears of it. Raises `CorruptStore` as
    `TopicTable` does.
    """

    def __init__(
        self, config: BrokerConfig, directory: Path, now_ms: Callable[[], int], on_change: Callable[[GroupConfig], None]
    ) -> None:
        self._config = config
        self._path = directory / "config" / "subscriptionGroup.json"
        self._now_ms = now_ms
        self._on_change = on_change
        self._lock = threading.Lock()
        self._groups, self._forbidden, self._version = self._load()

    def get(self, name: str) -> GroupConfig | None:
        """Return the group; None where there is none."""
        return self._groups.get(name)

    def all(self) -> list[GroupConfig]:
        """Return every group."""
        with self._lock:
            return list(self._groups.values())

    def ensure(self, name: str, peer: str) -> GroupConfig | None:
        """
        Return the group, created where it is missing and groups may be created on first use; else None.

        Raises `IllegalName` for a name that breaks the rules.
        """
        group = self.get(name)
        if group is not None:
            return group
        _names.check_group(name)
        if not self._config.auto_create_groups:
            return None
        return self._put(GroupConfig(name), peer, replace=False)

    def put(self, group: GroupConfig, changes: Mapping[str, str | None], peer: str) -> GroupConfig:
        """
        Create or replace a group; *changes* alters the attributes it has (None removes one).

        Raises `IllegalName` for a name that breaks the rules.
        """
        _names.check_group(group.name)
        present = self._groups.get(group.name)
        attributes = {**((present.others.get("attributes") or {}) if present else {}), **changes}
        kept = {name: value for name, value in attributes.items() if value is not None}
        changed = dataclasses.replace(group, others={**group.others, "attributes": kept})
        if present is not None and changed.to_json() == present.to_json():
            return present
        return self._put(changed, peer, replace=True)

    def _put(self, group: GroupConfig, peer: str, *, replace: bool) -> GroupConfig:
        with self._lock:
            if not replace and group.name in self._groups:
                return self._groups[group.name]
            groups = {**self._groups, group.name: group}
            version = self._version.next(self._now_ms())
            _json.write_file(self._path, self._file(groups, version))
            self._groups, self._version = groups, version
        _log.info("group changed group=%s peer=%s", group.name, peer)
        self._on_change(group)
        return group

    def _load(self) -> tuple[dict[str, GroupConfig], dict[str, Any], DataVersion]:
        try:
            content = _json.read_file(self._path) or {}
            table = content.get("subscriptionGroupTable") or {}
            groups = {str(name): GroupConfig.from_json(str(name), value) for name, value in table.items()}
            return groups, content.get("forbiddenTable") or {}, DataVersion.from_json(content.get("dataVersion"))
        except (ValueError, TypeError, AttributeError) as error:
            raise CorruptStore(f"{self._path} is no table of groups: {error}; restore it from its .bak") from error

    def _file(self, groups: Mapping[str, GroupConfig], version: DataVersion) -> dict[str, Any]:
        return {
            "dataVersion": version.to_json(),
            "forbiddenTable": self._forbidden,
            "subscriptionGroupTable": {name: group.to_json() for name, group in sorted(groups.items())},
        }
