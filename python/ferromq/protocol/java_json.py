"""
The JSON of RocketMQ's Java serializer.

Java writes maps with integer keys as `{0:"a"}`, which is not JSON. `loads` takes both forms; `dumps` writes only the
standard one.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# Built once: building an encoder takes longer than encoding a small value.
_COMPACT = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
# Strings match first and stay as they are, so that digits inside them are not keys.
_STRING_OR_BARE_KEY = re.compile(r'"(?:[^"\\]|\\.)*"|([{,]\s*)(-?\d+)(?=\s*:)')


def loads(data: bytes | str) -> Any:
    """
    Parse JSON, with or without quotes around integer keys.

    Raises `ValueError` for anything else.
    """
    text = data.decode() if isinstance(data, bytes) else data
    try:
        try:
            return json.loads(text)
        except json.JSONDecodeError:
            return json.loads(_STRING_OR_BARE_KEY.sub(_quote_key, text))
    except RecursionError:
        raise ValueError("JSON nested too deeply") from None


def _quote_key(match: re.Match[str]) -> str:
    return match[0] if match[2] is None else f'{match[1]}"{match[2]}"'


def loads_object(data: bytes | str) -> dict[str, Any]:
    """Parse a JSON object. Raises `ValueError` for anything else."""
    value = loads(data)
    if not isinstance(value, dict):
        raise ValueError(f"expected a JSON object, not {type(value).__name__}")  # noqa: TRY004 (one error for bad bytes)
    return value


def dumps(value: Any) -> bytes:
    """Encode as compact standard JSON in UTF-8. Raises `ValueError` for numbers that JSON cannot represent."""
    return _COMPACT(value).encode()


@dataclass(frozen=True, slots=True)
class ObjectMap:
    """A map whose keys are objects. Java writes and reads it as `{{"queueId":0}:{"offset":1}}`, which is not JSON."""

    pairs: Sequence[tuple[Mapping[str, Any], Any]]


def dumps_java(value: Any) -> bytes:
    """Encode a value, with `ObjectMap`s in it, as Java's serializer does."""
    return _java(value).encode()


def _java(value: Any) -> str:
    if isinstance(value, ObjectMap):
        return "{" + ",".join(f"{_java(key)}:{_java(entry)}" for key, entry in value.pairs) + "}"
    if isinstance(value, dict):
        return "{" + ",".join(f"{_java(str(key))}:{_java(entry)}" for key, entry in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_java, value)) + "]"
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
