"""A message's properties as one text, in RocketMQ's format."""

from collections.abc import Mapping

_NAME_END, _PROPERTY_END = "\x01", "\x02"


def parse_properties(text: str) -> dict[str, str]:
    """Parse properties; those without a value are skipped."""
    found = {}
    for part in text.split(_PROPERTY_END):
        name, separator, value = part.partition(_NAME_END)
        if separator and name:
            found[name] = value
    return found


def format_properties(properties: Mapping[str, str]) -> str:
    """Return properties as text."""
    return "".join([f"{name}{_NAME_END}{value}{_PROPERTY_END}" for name, value in properties.items()])
