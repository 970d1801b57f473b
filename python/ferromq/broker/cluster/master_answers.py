"""
Decodes and checks a master's answers to its slave.

The bytes come from another process, perhaps of another version: an answer is used whole or not at all. `replication`
decides what to do with it.
"""

import functools
import json
import struct
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, ParamSpec, TypeVar

from ferromq.broker.metadata.groups import GroupConfig
from ferromq.broker.metadata.topics import TopicConfig
from ferromq.protocol import java_json
from ferromq.protocol.route import DataVersion

P = ParamSpec("P")
T = TypeVar("T")

_INT_LIMIT = 1 << 31
_LONG_LIMIT = 1 << 63
_NAME_LIMIT = 255
_CHECKPOINT = struct.Struct(">qqqq")
_CHECKPOINT_VERSION = struct.Struct(">qqq")

Offsets = dict[str, dict[int, int]]
"""Committed offsets by `topic@group` and queue id."""


class Topics(NamedTuple):
    """The topics of a master, or a page of them."""

    version: DataVersion
    entries: dict[str, TopicConfig]


class Groups(NamedTuple):
    """The consumer groups of a master, or a page of them, and their forbidden topics: flags by group and topic."""

    version: DataVersion
    entries: dict[str, GroupConfig]
    forbidden: dict[str, dict[str, int]]


class TimerCheckpoint(NamedTuple):
    """The progress of a master's timer."""

    read_ms: int
    queue_offset: int
    version: DataVersion


def _checked(decode: Callable[P, T]) -> Callable[P, T]:
    """Make a decoder raise nothing but `ValueError`."""

    @functools.wraps(decode)
    def checked(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return decode(*args, **kwargs)
        except (KeyError, TypeError, AttributeError, OverflowError, RecursionError, struct.error) as error:
            raise ValueError(f"an unexpected form: {error!r}") from error

    return checked


@_checked
def topics(body: bytes) -> Topics:
    """Decode the answer to request 21. Raises `ValueError`."""
    value = _object(body)
    table = _named(_table(value, "topicConfigTable"))
    return Topics(_version(value), {name: TopicConfig.from_json(name, topic) for name, topic in table})


@_checked
def groups(body: bytes) -> Groups:
    """Decode the answer to request 201. Raises `ValueError`."""
    value = _object(body)
    entries = {
        name: GroupConfig.from_json(name, group) for name, group in _named(_table(value, "subscriptionGroupTable"))
    }
    forbidden = {
        group: {topic: _within("forbidden flags", int(flags), _INT_LIMIT) for topic, flags in _named(table)}
        for group, table in _named(value.get("forbiddenTable") or {})
    }
    return Groups(_version(value), entries, forbidden)


@_checked
def consumer_offsets(body: bytes) -> Offsets:
    """Decode the answer to request 43, without queues at -1, which stands for unknown. Raises `ValueError`."""
    found: Offsets = {}
    for name, queues in _named(_table(_object(body), "offsetTable"), limit=2 * _NAME_LIMIT + 1):
        offsets = {
            _within("queue id", int(queue_id), _INT_LIMIT): _within("offset", int(offset) + 1, _LONG_LIMIT) - 1
            for queue_id, offset in queues.items()
        }
        known = {queue_id: offset for queue_id, offset in offsets.items() if offset >= 0}
        if known:
            found[name] = known
    return found


@_checked
def delay_offsets(body: bytes) -> dict[str, Any]:
    """Decode the answer to request 45, in the form of delayOffset.json. Raises `ValueError`."""
    value = _object(body)
    table = {
        str(_within("delay level", int(level), _INT_LIMIT)): _within("offset", int(offset), _LONG_LIMIT)
        for level, offset in _table(value, "offsetTable").items()
    }
    return {"dataVersion": _version(value).to_json(), "offsetTable": table}


@_checked
def request_modes(body: bytes) -> bytes:
    """Return the answer to request 402 if it holds a table, as `RequestModes` takes it. Raises `ValueError`."""
    for _, groups in _named(_table(_object(body), "messageRequestModeMap")):
        _named(groups)
    return body


@_checked
def timer_checkpoint(body: bytes) -> TimerCheckpoint:
    """Decode the answer to request 60; masters before 5.0 send no version. Raises `ValueError`."""
    read_ms, _, _, queue_offset = _CHECKPOINT.unpack_from(body)
    state, timestamp, counter = (
        _CHECKPOINT_VERSION.unpack_from(body, _CHECKPOINT.size) if len(body) > _CHECKPOINT.size else (0, 0, 0)
    )
    return TimerCheckpoint(
        _within("time", read_ms, _LONG_LIMIT),
        _within("offset", queue_offset, _LONG_LIMIT),
        DataVersion(timestamp, counter, state),
    )


@_checked
def timer_metrics(body: bytes) -> dict[str, Any]:
    """Decode the answer to request 61, in the form of the file `timermetrics`. Raises `ValueError`."""
    value = _object(body)
    counts = {name: dict(count.items()) for name, count in _named(_table(value, "timingCount"))}
    return {"dataVersion": _version(value).to_json(), "timingCount": counts}


def _object(body: bytes) -> dict[str, Any]:
    value = java_json.loads_object(body)
    # Rejects what no file can hold: NaN and infinity, lone surrogates.
    json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    return value


def _table(value: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a required table: an empty answer must not look like an empty table."""
    table = value[name]
    if not isinstance(table, dict):
        raise TypeError(f"{name} is not a table")
    return table


def _named(table: Mapping[str, Any], *, limit: int = _NAME_LIMIT) -> list[tuple[str, Any]]:
    """Return the entries of a table. Names become directories, so they must not be paths."""
    entries = [(str(name), value) for name, value in table.items()]
    for name, _ in entries:
        is_path = name in {".", ".."} or any(character in name for character in "/\\\0")
        if not 0 < len(name.encode()) <= limit or is_path:
            raise ValueError(f"{name[:40]!r} is not a name of a topic or group")
    return entries


def _version(value: Mapping[str, Any]) -> DataVersion:
    version = DataVersion.from_json(_table(value, "dataVersion"))
    for number in (version.timestamp, version.counter, version.state_version):
        _within("data version", number, _LONG_LIMIT)
    return version


def _within(what: str, value: int, limit: int) -> int:
    if not 0 <= value < limit:
        raise ValueError(f"the {what} is {value}; it may be 0 to {limit - 1}")
    return value
