"""
RocketMQ 5.5's attributes of topics and consumer groups: names, allowed values, and which of them can change.

Unknown attributes in a file stay there: a newer broker may have written them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ferromq.errors import RequestError

_LONG_LIMIT = (1 << 63) - 1
_LITE_EXPIRATION_MINUTES = 30 * 24 * 60

MESSAGE_TYPE = "message.type"
PRIORITY_FACTOR = "priority.factor"
MESSAGE_TYPES = ("NORMAL", "FIFO", "DELAY", "TRANSACTION", "PRIORITY", "LITE", "MIXED", "UNSPECIFIED")


@dataclass(frozen=True, slots=True)
class Attribute:
    """The allowed values of one attribute."""

    expected: str
    """The allowed values, for errors."""
    allows: Callable[[str], bool]
    changes: bool = True
    """Whether it can change after its topic or group was created."""


def _one_of(*values: str, changes: bool = True) -> Attribute:
    return Attribute(", ".join(values), values.__contains__, changes)


def _between(lowest: int, highest: int) -> Attribute:
    def allows(text: str) -> bool:
        digits = text[1:] if text[:1] in {"+", "-"} else text
        # As Java's parseLong.
        return digits.isascii() and digits.isdigit() and len(digits) <= _DIGITS and lowest <= int(text) <= highest

    return Attribute(f"a whole number from {lowest} to {highest}", allows)


_DIGITS = 40
_TRUE_OR_FALSE = Attribute("true or false", lambda text: text.lower() in {"true", "false"})
_TEXT = Attribute("a text", lambda _text: True)

OF_TOPICS: Mapping[str, Attribute] = {
    # RocketMQ's other values of the first two are not supported.
    "cleanup.policy": _one_of("DELETE", changes=False),
    "queue.type": _one_of("SimpleCQ", changes=False),
    "lite.topic.expiration": _between(-1, _LITE_EXPIRATION_MINUTES),
    MESSAGE_TYPE: _one_of(*MESSAGE_TYPES),
    "reserve.time": _between(-1, _LONG_LIMIT),
}
"""The attributes of a topic."""

OF_GROUPS: Mapping[str, Attribute] = {
    "lite.bind.topic": _TEXT,
    "lite.sub.client.max.event.cnt": _between(10, _LONG_LIMIT),
    "lite.sub.client.quota": _between(-1, _LONG_LIMIT),
    "lite.sub.model": _one_of("Shared", "Exclusive"),
    "lite.sub.reset.offset.exclusive": _TRUE_OR_FALSE,
    "lite.sub.reset.offset.unsubscribe": _TRUE_OR_FALSE,
    "lite.sub.wildcard": _TEXT,
    PRIORITY_FACTOR: _between(0, 100),
}
"""The attributes of a consumer group."""


def altered(
    known: Mapping[str, Attribute], present: Mapping[str, str] | None, changes: Mapping[str, str | None]
) -> dict[str, str]:
    """
    Return the attributes after *changes* (None removes one); *present* is None for a new topic or group.

    Raises `RequestError` for an unknown attribute, a value that is not allowed, a change of a fixed attribute, and the
    removal of a missing one.
    """
    before = present or {}
    for name, value in changes.items():
        attribute = known.get(name)
        if attribute is None:
            raise RequestError(f"unknown attribute {name}; known are {', '.join(sorted(known))}")
        if value is None and present is None:
            raise RequestError(f"the attribute {name} cannot be removed at creation; use +{name}=")
        if value is None and name not in before:
            raise RequestError(f"the attribute {name} cannot be removed, it is not set; leave -{name} out")
        if value is not None and not attribute.allows(value):
            raise RequestError(f"the attribute {name} is {value[:100]!r}; it may be {attribute.expected}")
        if present is not None and not attribute.changes and value != before.get(name):
            raise RequestError(f"the attribute {name} cannot change after creation; create another topic with it")
    merged = {**before, **changes}
    return {name: value for name, value in merged.items() if value is not None}
