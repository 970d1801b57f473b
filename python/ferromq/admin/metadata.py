"""
The metadata of a cluster as a document: JSON, sorted, with a version. It has no messages and no secret keys.

`metadata_transfer` fills it from a cluster and applies it to one. Where settings are per broker, the name `*` means all
masters of the cluster.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from ferromq.errors import ConfigError
from ferromq.terminal.objects import html_of

VERSION = 1
EVERY = "*"
"""In place of the name of a broker or the address of a name server: all of them."""
T = TypeVar("T")
_LONG = (1 << 63) - 1
_INT = (1 << 31) - 1
_TOPIC_NUMBERS = ("perm", "readQueueNums", "topicSysFlag", "writeQueueNums")
_ENTRY_TEXTS = ("policy", "resource")

Settings = Mapping[str, Any]
ByBroker = Mapping[str, T]
"""By the name of a broker, or `*`."""


@dataclass(frozen=True, slots=True)
class Metadata:
    """
    What a cluster knows beside its messages. Names are whole, with the namespace.

    `to_json` and `from_json` are the form of a file.
    """

    topics: Mapping[str, ByBroker[Settings]] = field(default_factory=dict)
    """Settings of topics in RocketMQ's fields, without system topics, retries and dead letters."""
    groups: Mapping[str, ByBroker[Settings]] = field(default_factory=dict)
    """Settings of consumer groups in RocketMQ's fields, without system groups."""
    values: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """The key-value table of name servers by namespace; order configurations are in `ORDER_TOPIC_CONFIG`."""
    broker_options: ByBroker[Mapping[str, str]] = field(default_factory=dict)
    """Options of brokers that can change while they run."""
    name_server_options: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Options of name servers that can change while they run, by address or `*`."""
    users: Mapping[str, ByBroker[Settings]] | None = None
    """`kind` and `enabled` of users, without secret keys; None: access control is off."""
    policies: Mapping[str, ByBroker[Sequence[Settings]]] | None = None
    """The entries of each user's policies; None: access control is off."""
    offsets: Mapping[str, Mapping[str, ByBroker[Mapping[str, int]]]] | None = None
    """Committed offsets by group, topic, broker and queue; None: they were not asked for."""

    def to_json(self) -> str:
        """Return the document: sorted, so that two of them can be compared line by line."""
        found = {each.name: getattr(self, each.name) for each in fields(self)}
        written = {"version": VERSION, **found}
        return json.dumps(written, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"

    def _repr_html_(self) -> str:
        return html_of(self)

    @classmethod
    def from_json(cls, data: bytes | str) -> "Metadata":
        """Read a document. Raises `ConfigError`, which names the place, for another form or another version."""
        try:
            found = json.loads(data, parse_constant=_no_number)
            # Lone surrogates can be neither sent nor written.
            json.dumps(found, ensure_ascii=False).encode()
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"the document is no JSON: {error or 'nested too deeply'}") from error
        if not isinstance(found, dict):
            raise _wrong("the document", found, "an object")
        version = found.pop("version", None)
        if version != VERSION or isinstance(version, bool):
            raise ConfigError(f"the version of the document is {version!r:.40}; this ferromq reads version {VERSION}")
        unknown = sorted(found.keys() - _SECTIONS.keys())
        if unknown:
            raise ConfigError(f"the document has an unknown section {unknown[0]!r:.40}; known: {', '.join(_SECTIONS)}")
        return cls(**{name: _SECTIONS[name](name, value) for name, value in found.items()})


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is no number of JSON")


Check = Callable[[str, Any], Any]
"""Returns a value; raises `ConfigError` with its place for one in another form."""


def _wrong(place: str, value: object, expected: str) -> ConfigError:
    return ConfigError(f"{place} is {value!r:.60}; expected {expected}")


def _table(each: Check) -> Check:
    def check(place: str, value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise _wrong(place, value, "an object")
        if "" in value:
            raise ConfigError(f"{place} has an empty name")
        return {name: each(f"{place}.{name[:100]}", inner) for name, inner in value.items()}

    return check


def _of(kind: type, expected: str) -> Check:
    def check(place: str, value: Any) -> Any:
        if type(value) is not kind:
            raise _wrong(place, value, expected)
        return value

    return check


def _number(least: int, most: int) -> Check:
    def check(place: str, value: Any) -> int:
        if type(value) is not int or not least <= value <= most:
            raise _wrong(place, value, f"a whole number from {least} to {most}")
        return value

    return check


def _record(known: Mapping[str, Check], *, needed: Sequence[str]) -> Check:
    def check(place: str, value: Any) -> dict[str, Any]:
        found: dict[str, Any] = _table(_anything)(place, value)
        missing, unknown = [name for name in needed if name not in found], sorted(found.keys() - known.keys())
        if missing or unknown:
            what = f"has no {missing[0]}" if missing else f"has an unknown field {unknown[0]!r:.40}"
            raise ConfigError(f"{place} {what}; known: {', '.join(known)}")
        return {name: known[name](f"{place}.{name}", inner) for name, inner in found.items()}

    return check


def _list(each: Check) -> Check:
    def check(place: str, value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise _wrong(place, value, "a list")
        return [each(f"{place}[{number}]", inner) for number, inner in enumerate(value)]

    return check


def _optional(each: Check) -> Check:
    return lambda place, value: None if value is None else each(place, value)


def _anything(_place: str, value: Any) -> Any:
    return value


def _group(place: str, value: Any) -> dict[str, Any]:
    known = {"groupName": _of(str, "a text"), "attributes": _table(_text)}
    found: dict[str, Any] = _table(_anything)(place, value)
    return {name: known[name](f"{place}.{name}", inner) if name in known else inner for name, inner in found.items()}


def _queues(place: str, value: Any) -> dict[str, int]:
    found: dict[str, int] = _table(_number(0, _LONG))(place, value)
    for name in found:
        if not (name.isascii() and name.isdecimal() and len(name) < len(str(_INT))):
            raise ConfigError(f"{place} has the queue {name!r:.40}; expected the number of a queue")
    return found


_text = _of(str, "a text")
_truth = _of(bool, "true or false")
_topic = _record(
    {
        **dict.fromkeys(_TOPIC_NUMBERS, _number(0, _INT)),
        "attributes": _table(_text),
        "order": _truth,
        "topicFilterType": _text,
    },
    needed=("readQueueNums", "writeQueueNums", "perm"),
)
_entry = _record(
    {
        **dict.fromkeys(_ENTRY_TEXTS, _text),
        "actions": _list(_text),
        "allow": _truth,
        "sources": _list(_text),
    },
    needed=("policy", "resource", "actions", "allow"),
)
_SECTIONS: Mapping[str, Check] = {
    "topics": _table(_table(_topic)),
    "groups": _table(_table(_group)),
    "values": _table(_table(_text)),
    "broker_options": _table(_table(_text)),
    "name_server_options": _table(_table(_text)),
    "users": _optional(_table(_table(_record({"kind": _text, "enabled": _truth}, needed=("kind", "enabled"))))),
    "policies": _optional(_table(_table(_list(_entry)))),
    "offsets": _optional(_table(_table(_table(_queues)))),
}
