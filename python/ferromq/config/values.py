"""How the text of an option becomes a value: durations, sizes, lists, addresses."""

import os
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any, cast

from ferromq.errors import ConfigError

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?\Z")
_LONGEST_DAYS = 100_000_000
"""Of a duration that is not `forever`: more than RocketMQ's 2^31 - 1 hours, which stand for it there."""
_MOST = 2**63 - 1
_DURATION_UNITS = {"ms": 0.001, "s": 1.0, None: 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_NO_HOST = re.compile(r"[/\s]")
_WHOLE = re.compile(r"[+-]?[0-9]{1,30}")
_SIZE = re.compile(r"(\d{1,30})\s*(?:(K|M|G|T)i?B?)?\Z", re.IGNORECASE)
_SIZE_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_ADVERTISED = re.compile(r"(\[[^\[\]\s]+\]|[^\[\]:\s]+)(?::(\d{1,5}))?\Z")
_MAX_PORT = 65535


def boolean(text: str) -> bool:
    """Read true or false in RocketMQ's files. Other words are errors; Java reads them as false."""
    if text.lower() not in {"true", "false"}:
        raise ValueError(f"expected true or false; RocketMQ reads {text or 'an empty value'} as false")
    return text.lower() == "true"


def truth(value: Any) -> bool:
    """Read true or false in ferromq's own options; also yes, no, on, off, 1 and 0."""
    if isinstance(value, bool):
        return value
    text = str(value).lower()
    if text in {"true", "yes", "on", "1"}:
        return True
    if text in {"false", "no", "off", "0"}:
        return False
    raise ValueError("expected true or false")


def duration(value: Any) -> timedelta:
    """Read a duration: `500ms`, `30s`, a number of seconds, or `forever`."""
    if isinstance(value, timedelta):
        return value
    if value == "forever":
        return timedelta.max
    match = _DURATION.match(str(value).strip())
    if match is None:
        raise ValueError("expected a duration, such as 500ms, 30s, 2m, 1h, or forever")
    seconds = float(match[1]) * _DURATION_UNITS[match[2]]
    if seconds > _LONGEST_DAYS * _DURATION_UNITS["d"]:
        raise ValueError(f"expected a duration of 0s to {_LONGEST_DAYS}d, or forever")
    return timedelta(seconds=seconds)


def written(value: timedelta) -> str:
    """Return a duration in the form of files and flags."""
    if value == timedelta.max:
        return "forever"
    units = ((unit, timedelta(seconds=_DURATION_UNITS[unit])) for unit in ("d", "h", "m", "s"))
    unit, length = next(
        ((unit, length) for unit, length in units if value and not value % length), ("ms", timedelta(milliseconds=1))
    )
    return f"{value // length}{unit}"


def _age(value: Any) -> timedelta:
    """Read a duration with a unit. A bare number is ambiguous: RocketMQ counts ages in hours."""
    text = str(value).strip()
    if value == "none":
        return timedelta.max
    if re.fullmatch(r"-?\d+(\.\d+)?", text):
        raise ValueError(f"an age needs a unit; use {text}h or {text}s")
    age = duration(value)
    if age <= timedelta():
        raise ValueError("an age must be more than 0; to keep everything, use forever")
    return age


def or_none(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a function that reads `none`, or what *convert* reads."""
    return lambda value: None if value == "none" else convert(value)


def whole(text: str) -> int:
    """Read a whole number in RocketMQ's files."""
    if _WHOLE.fullmatch(text) is None:
        raise ValueError("expected a whole number without a unit")
    if not -_MOST <= int(text) <= _MOST:
        raise ValueError(f"expected a whole number of {-_MOST} to {_MOST}")
    return int(text)


def from_zero(text: str) -> int:
    """Read a whole number of 0 or more in RocketMQ's files."""
    if whole(text) < 0:
        raise ValueError("expected a whole number of 0 or more")
    return whole(text)


def number(text: str) -> float:
    """Read a number, with or without a fraction."""
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{text} is not a number") from None


def _hours(value: Any) -> tuple[int, ...]:
    try:
        return tuple(int(entry) for entry in _entries(value))
    except ValueError:
        raise ValueError("expected hours of the day, 0 to 23, such as 4 or 4,16") from None


def _size(value: Any) -> int:
    match = _SIZE.match(str(value).strip())
    found = -1 if match is None else int(match[1]) * _SIZE_UNITS[(match[2] or "").lower()]
    if not 0 <= found <= _MOST:
        raise ValueError(f"expected a whole number of 0 to {_MOST}, or a size such as 64MiB")
    return found


def _entries(value: Any) -> Iterable[Any]:
    """Read a list, text whose parts are joined by commas or semicolons, or one number."""
    if isinstance(value, str):
        return re.split(r"[;,]", value)
    return [value] if isinstance(value, int | float) else cast("Iterable[Any]", value)


def split_list(value: Any) -> tuple[str, ...]:
    """Read a list of strings, or text whose parts are joined by commas or semicolons."""
    return tuple(str(part).strip() for part in _entries(value) if str(part).strip())


def _table(value: Any) -> dict[str, Any]:
    """Read a mapping, or text such as `orders=10,clicks=1000`."""
    if isinstance(value, Mapping):
        return {str(name): entry for name, entry in value.items()}
    pairs = [part.partition("=") for part in split_list(value)]
    if not all(name and separator for name, separator, _ in pairs):
        raise ValueError("expected NAME=VALUE, several joined by commas")
    return {name.strip(): entry.strip() for name, _, entry in pairs}


def _text(value: Any) -> str:
    if not isinstance(value, str | os.PathLike):
        raise TypeError("expected a string")
    return os.fspath(value)


CONVERTERS: Mapping[Any, Callable[[Any], Any]] = {
    str: _text,
    int: _size,
    int | None: _size,
    str | None: _text,
    bool | None: truth,
    bool: truth,
    timedelta: duration,
    timedelta | None: duration,
    tuple[str, ...]: split_list,
    tuple[str, ...] | None: split_list,
    tuple[int, ...] | None: _hours,
    tuple[float, ...] | None: lambda value: tuple(number(entry) for entry in _entries(value)),
    Mapping[str, int] | None: lambda value: {name: _size(entry) for name, entry in _table(value).items()},
    Mapping[str, timedelta] | None: lambda value: {name: _age(entry) for name, entry in _table(value).items()},
}
RETENTION_CONVERTERS: Mapping[str, Callable[[Any], Any]] = {
    "retention_age": _age,
    "retention_total_bytes": or_none(CONVERTERS[int]),
    "retention_disk_usage": or_none(CONVERTERS[tuple[float, ...] | None]),
}
"""The options of retention that accept `none`, for no deletion."""


def only(text: str, allowed: str, why: str) -> dict[str, Any]:
    """Accept only one value of a RocketMQ key. The key sets no option."""
    if text != allowed:
        raise ValueError(f"{text} is not supported: {why}; use {allowed or 'an empty value'}")
    return {}


def check_address(name: str, address: str) -> None:
    """Raise `ConfigError` for an address that is not `HOST:PORT`."""
    host, _, port = address.rpartition(":")
    if not host or _NO_HOST.search(host) or not port.isdecimal() or int(port) > _MAX_PORT:
        raise ConfigError(f"{name} is {address!r}; expected HOST:PORT, such as 127.0.0.1:9876")


def split_advertised(address: str) -> tuple[str, str]:
    """Split `HOST` or `HOST:PORT`; the port may be empty. A bare IPv6 address gets its brackets."""
    bare = address if address.startswith("[") else f"[{address}]"
    match = _ADVERTISED.match(bare if address.count(":") > 1 else address)
    if match is None or int(match[2] or 0) > _MAX_PORT:
        raise ValueError("expected HOST or HOST:PORT, such as mq.example:10911")
    return match[1], match[2] or ""


def check_positive(name: str, value: Any, zero: Any) -> None:
    """Raise `ConfigError` for a value that is not more than *zero*."""
    if value <= zero:
        shown = written(value) if isinstance(value, timedelta) else value
        raise ConfigError(f"{name} is {shown}; it must be more than 0")
