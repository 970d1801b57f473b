"""
RocketMQ's attributes of topics and consumer groups: which there are, what each may be, and which may change.

They are RocketMQ 5.5's. What a file holds beside them stays there: a newer broker may have written it.
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
    """What one attribute may be."""

    expected: str
    """What it may be, for errors."""
    allows: Callable[[str], bool]
    changes: bool = True
    """Whether it may change once a topic has it."""


def _one_of(*values: str, changes: bool = True) -> Attribute:
    return Attribute(", ".join(values), values.__contains__, changes)


def _between(lowest: int, highest: int) -> Attribute:
    def allows(text: str) -> bool:
        digits = text[1:] if text[:1] in {"+", "-"} else text
        # What Java's parseLong takes, of which no number has more digits.
        return digits.isascii() and digits.isdigit() and len(digits) <= _DIGITS and lowest <= int(text) <= highest

    return Attribute(f"a whole number from {lowest} to {highest}", allows)


_DIGITS = 40
_TRUE_OR_FALSE = Attribute("true or false", lambda text: text.lower() in {"true", "false"})
_TEXT = Attribute("a text", lambda _text: True)

OF_TOPICS: Mapping[str, Attribute] = {
    # What else RocketMQ allows for the first two has no meaning here.
    "cleanup.policy": _one_of("DELETE", changes=False),
    "queue.type": _one_of("SimpleCQ", changes=False),
    "lite.topic.expiration": _between(-1, _LITE_EXPIRATION_MINUTES),
    MESSAGE_TYPE: _one_of(*MESSAGE_TYPES),
    "reserve.time": _between(-1, _LONG_LIMIT),
}
"""The attributes a topic may have."""

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
"""The attributes a consumer group may have."""


def altered(
    known: Mapping[str, Attribute], present: Mapping[str, str] | None, changes: Mapping[str, str | None]
) -> dict[str, str]:
    """
    Return the attributes after *changes* (None removes one); *present* None: what has them is only being created.

    Raises `RequestError` as RocketMQ refuses: for an unknown attribute, a value it may not have, one that may not
    change, or one to remove that is not there.
    """
    before = present or {}
    for name, value in changes.items():
        attribute = known.get(name)
        if attribute is None:
            raise RequestError(f"unknown attribute {name}; known are {', '.join(sorted(known))}")
        if value is None and present is None:
            raise RequestError(f"the attribute {name} cannot be removed from what is only being created; give +{name}=")
        if value is None and name not in before:
            raise RequestError(f"the attribute {name} cannot be removed, it is not there; leave -{name} out")
        if value is not None and not attribute.allows(value):
            raise RequestError(f"the attribute {name} is {value[:100]!r}; it may be {attribute.expected}")
        if present is not None and not attribute.changes and value != before.get(name):
            raise RequestError(f"the attribute {name} cannot change once it is there; create another topic with it")
    merged = {**before, **changes}
    return {name: value for name, value in merged.items() if value is not None}
