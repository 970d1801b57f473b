"""How groups ask for messages, pull or pop, as set by administrators: RocketMQ's `messageRequestMode.json`."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ferromq.errors import CorruptStore
from ferromq.files import json_file
from ferromq.protocol import java_json

PULL, POP = "PULL", "POP"
_MODES = (PULL, POP)
_TABLE = "messageRequestModeMap"
_EACH_FOR_ITSELF = -1
_INT_LIMIT = 1 << 31


@dataclass(frozen=True, slots=True)
class RequestMode:
    """How a group asks for the messages of one topic."""

    mode: str = PULL
    pop_share: int = _EACH_FOR_ITSELF
    """With POP, the number of members that share a member's queues; 0, less, or all others: each asks all queues."""

    def to_json(self, topic: str, group: str) -> dict[str, Any]:
        """Return Java's form."""
        return {"consumerGroup": group, "mode": self.mode, "popShareQueueNum": self.pop_share, "topic": topic}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "RequestMode":
        """Read Java's form; raises `ValueError` naming the wrong field."""
        mode, share = value.get("mode") or PULL, value.get("popShareQueueNum", 0)
        if mode not in _MODES:
            raise ValueError(f"mode is {mode!r}; it may be PULL or POP")
        if type(share) is not int or not -_INT_LIMIT <= share < _INT_LIMIT:
            raise ValueError(f"popShareQueueNum is {share!r}; a whole number is expected")
        return cls(mode, share)


class RequestModes:
    """
    The modes that administrators set; thread-safe.

    A change is on disk before the call returns. Raises `CorruptStore` if the file exists and cannot be read.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / "config" / "messageRequestMode.json"
        self._lock = threading.Lock()
        try:
            self._modes = _parse(json_file.read(self._path) or {})
        except (ValueError, TypeError, AttributeError) as error:
            raise CorruptStore(
                f"{self._path} is not a table of request modes: {error}; restore it from its .bak"
            ) from error

    def get(self, topic: str, group: str) -> RequestMode:
        """Return how a group asks for messages of a topic; retries are always pulled."""
        return self._modes.get(topic, {}).get(group, RequestMode())

    def put(self, topic: str, group: str, mode: RequestMode) -> None:
        """Set the mode of a group for a topic."""
        with self._lock:
            self._write({**self._modes, topic: {**self._modes.get(topic, {}), group: mode}})

    def encode(self) -> bytes:
        """Return the whole table as Java writes it."""
        return java_json.dumps(_table(self._modes))

    def replace(self, body: bytes) -> None:
        """Take over another broker's table, as `encode` returns it. Raises `ValueError` for anything else."""
        try:
            content = java_json.loads_object(body)
            modes = _parse({_TABLE: content[_TABLE]})
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a table of request modes: {error}") from error
        with self._lock:
            if modes != self._modes:
                self._write(modes)

    def _write(self, modes: dict[str, dict[str, RequestMode]]) -> None:
        json_file.write(self._path, _table(modes))
        self._modes = modes


def _parse(content: Mapping[str, Any]) -> dict[str, dict[str, RequestMode]]:
    return {
        str(topic): {str(group): RequestMode.from_json(mode) for group, mode in groups.items()}
        for topic, groups in (content.get(_TABLE) or {}).items()
    }


def _table(modes: Mapping[str, Mapping[str, RequestMode]]) -> dict[str, Any]:
    return {
        _TABLE: {
            topic: {group: mode.to_json(topic, group) for group, mode in groups.items()}
            for topic, groups in modes.items()
        }
    }
