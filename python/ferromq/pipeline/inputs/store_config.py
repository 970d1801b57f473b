"""Topics, queues and committed offsets of a store directory, read from its files without a broker."""

from os import PathLike, fspath
from pathlib import Path

from ferromq._ferromq import inspect_store
from ferromq.protocol import java_json


def queue_ends(directory: str | PathLike[str]) -> dict[tuple[str, int], int]:
    """Return the max offset of each queue of the store in *directory*, by (topic, queue id)."""
    found = inspect_store(fspath(directory))
    return {
        (topic, queue["queue_id"]): queue["max_offset"] for topic, queues in found["topics"].items() for queue in queues
    }


def topics(directory: Path) -> set[str] | None:
    """Return the topics of `config/topics.json`, or None if it cannot be read."""
    table = _table(directory / "config" / "topics.json", "topicConfigTable")
    return None if table is None else set(table)


def consumer_offsets(directory: Path) -> dict[tuple[str, str], dict[int, int]]:
    """Return the committed offsets of `config/consumerOffset.json` by (topic, group) and queue."""
    table = _table(directory / "config" / "consumerOffset.json", "offsetTable") or {}
    offsets = {}
    for name, queues in table.items():
        topic, separator, group = name.partition("@")
        if separator and isinstance(queues, dict):
            offsets[topic, group] = {int(queue): int(offset) for queue, offset in queues.items()}
    return offsets


def _table(path: Path, name: str) -> dict[str, object] | None:
    try:
        table = java_json.loads(path.read_bytes())[name]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return table if isinstance(table, dict) else None
