"""
The entries of the option `limits`: messages and bytes a second, for users and for topics, and connections of users.

An entry is `user=NAME topic=NAME send=1000 send_bytes=4MiB receive=1000 receive_bytes=4MiB connections=100`, without
what it leaves open. `*` stands for each user or each topic without an entry of its own.
"""

from typing import NamedTuple

from ferromq.config.values import CONVERTERS
from ferromq.errors import ConfigError

_NAMES = ("user", "topic")
_RATES = ("send", "send_bytes", "receive", "receive_bytes")
_CONNECTIONS = "connections"
_LIMITS = (*_RATES, _CONNECTIONS)
_MOST = (1 << 63) - 1
_FORM = (
    "it is user=NAME, topic=NAME or both, then some of send, send_bytes, receive, receive_bytes and, without a topic, "
    "connections, each =NUMBER"
)


Rate = tuple[int | None, int | None]
"""Messages and bytes a second; None: not limited."""


class Limit(NamedTuple):
    """One entry."""

    user: str | None
    topic: str | None
    rates: tuple[Rate, Rate] | None
    """What is stored and what is handed out; None: the entry gives no rate, so that the next closest one holds."""
    connections: int | None = None
    """Open connections of the user; None: the entry gives none. `_MOST` lifts the limit."""


def parse_limits(entries: tuple[str, ...]) -> list[Limit]:
    """Return the entries. Raises `ConfigError` that names a wrong one."""
    limits = [_parsed(entry) for entry in entries]
    seen: set[tuple[str | None, str | None]] = set()
    for entry, limit in zip(entries, limits, strict=True):
        if limit[:2] in seen:
            raise ConfigError(f"limits has two entries like {entry!r}, for the same user and topic; join them")
        seen.add(limit[:2])
    return limits


def _parsed(entry: str) -> Limit:
    words: dict[str, str] = {}
    for word in entry.split():
        name, separator, value = word.partition("=")
        if name not in (*_NAMES, *_LIMITS) or not separator or not value or name in words:
            raise ConfigError(f"limits has {entry!r}, where {word!r} is wrong: {_FORM}")
        words[name] = value
    if not words.keys() & set(_NAMES) or not words.keys() & set(_LIMITS):
        raise ConfigError(f"limits has {entry!r}, which is not complete: {_FORM}")
    if _CONNECTIONS in words and ("topic" in words or "user" not in words):
        raise ConfigError(
            f"limits has {entry!r}, but connections are limited for users in all topics; give connections in an entry "
            "with user=NAME and without topic"
        )
    send, send_bytes, receive, receive_bytes = (_number(entry, name, words.get(name, "none")) for name in _RATES)
    rates = ((send, send_bytes), (receive, receive_bytes)) if words.keys() & set(_RATES) else None
    connections = _number(entry, _CONNECTIONS, words[_CONNECTIONS]) or _MOST if _CONNECTIONS in words else None
    return Limit(words.get("user"), words.get("topic"), rates, connections)


def _number(entry: str, name: str, text: str) -> int | None:
    """Return the number of a limit; `none` lifts the one that `*` would set."""
    if text == "none":
        return None
    try:
        number: int = CONVERTERS[int](text)
    except ValueError as error:
        raise ConfigError(f"limits has {entry!r}, where {name} is {text}: {error}") from error
    if not 1 <= number <= _MOST:
        raise ConfigError(f"limits has {entry!r}, where {name} is {text}; it may be 1 to {_MOST}, or none for no limit")
    return number
