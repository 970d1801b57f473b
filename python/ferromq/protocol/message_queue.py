"""
Queues in the bodies of remoting requests, and Java's tables of offsets by queue.

Java writes a map whose keys are objects as `{{"brokerName":…}:12}`, which is not JSON.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ferromq.protocol import java_json

# Strings match first and stay as they are. A flat object before a colon is a key.
_STRING_OR_OBJECT_KEY = re.compile(r'"(?:[^"\\]|\\.)*"|(\{(?:[^{}"]|"(?:[^"\\]|\\.)*")*\})(?=\s*:)')


@dataclass(frozen=True, slots=True, order=True)
class MessageQueue:
    """A queue of a topic on a broker. It sorts as in Java."""

    topic: str
    broker_name: str
    queue_id: int

    def to_json(self) -> dict[str, Any]:
        """Return Java's form."""
        return {"brokerName": self.broker_name, "queueId": self.queue_id, "topic": self.topic}

    @classmethod
    def from_json(cls, value: Any) -> "MessageQueue":
        """Read Java's form. Raises `ValueError` for anything else."""
        match value:
            case {"topic": str(topic), "brokerName": str(broker_name), "queueId": int(queue_id)}:
                # Raises ValueError for names without UTF-8, which no answer could contain.
                (topic + broker_name).encode()
                return cls(topic, broker_name, queue_id)
        raise ValueError(f"expected a queue with topic, brokerName and queueId, not {str(value)[:100]}")


def dump_offsets(offsets: Mapping[MessageQueue, int]) -> bytes:
    """Return a table of offsets in Java's form."""
    entries = (java_json.dumps(queue.to_json()) + b":%d" % offset for queue, offset in offsets.items())
    return b"{" + b",".join(entries) + b"}"


def load_offsets(body: bytes, field: str) -> dict[MessageQueue, int]:
    """Return the table of offsets in one field of a body in Java's form. Raises `ValueError` for anything else."""
    table = load_table(body, field)
    if not all(type(offset) is int for offset in table.values()):
        raise ValueError(f"{field} has offsets that are not whole numbers")
    return table


def load_table(body: bytes, field: str) -> dict[MessageQueue, Any]:
    """Return the table by queue in one field of a body in Java's form. Raises `ValueError` for anything else."""
    return table_of(load_nested(body), field)


def load_nested(body: bytes) -> dict[str, Any]:
    """Parse a body in Java's form, whose keys that are objects become texts. Raises `ValueError` for anything else."""
    return java_json.loads_object(_STRING_OR_OBJECT_KEY.sub(_quote_key, body.decode()))


def table_of(content: Mapping[str, Any], field: str) -> dict[MessageQueue, Any]:
    """Return the table by queue in one field of what `load_nested` parsed. Raises `ValueError` for anything else."""
    table = content.get(field) or {}
    if not isinstance(table, dict):
        raise ValueError(f"{field} is not a table of offsets")  # noqa: TRY004 (one error for bad bytes)
    return {MessageQueue.from_json(java_json.loads(key)): value for key, value in table.items()}


def _quote_key(match: re.Match[str]) -> str:
    return match[0] if match[1] is None else json.dumps(match[1])
