"""
RocketMQ's JSON: what Java's serializer writes, and small files replaced atomically.

Java writes maps with integer keys as `{0:"a"}`, which is no JSON; `loads` takes both forms, `dumps` writes only the
standard one. What the values mean is decided elsewhere.
"""

import json
import logging
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_log = logging.getLogger("ferromq.files")

# Made once: making one takes longer than a small value.
_COMPACT = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
# A string is matched first and left alone, so digits inside it are never taken for a key.
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
    """Parse a JSON object; raises `ValueError` for anything else."""
    value = loads(data)
    if not isinstance(value, dict):
        raise ValueError(f"a JSON object is expected, not {type(value).__name__}")  # noqa: TRY004 (one error for bad bytes)
    return value


def dumps(value: Any) -> bytes:
    """Encode as compact standard JSON in UTF-8. Raises `ValueError` for numbers JSON has no word for."""
    return _COMPACT(value).encode()


@dataclass(frozen=True, slots=True)
class ObjectMap:
    """A map whose keys are objects; Java writes and reads it as `{{"queueId":0}:{"offset":1}}`, which is no JSON."""

    pairs: Sequence[tuple[Mapping[str, Any], Any]]


def dumps_java(value: Any) -> bytes:
    """Encode what may have an `ObjectMap` in it as Java's serializer does."""
    return _java(value).encode()


def _java(value: Any) -> str:
    if isinstance(value, ObjectMap):
        return "{" + ",".join(f"{_java(key)}:{_java(entry)}" for key, entry in value.pairs) + "}"
    if isinstance(value, dict):
        return "{" + ",".join(f"{_java(str(key))}:{_java(entry)}" for key, entry in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_java, value)) + "]"
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def read_file(path: Path) -> dict[str, Any] | None:
    """
    Return the object in *path*, else the one in its `.bak`; None where there is neither.

    RocketMQ moves the old file to `.bak` before it writes the new one, so a crash may leave only the `.bak`.
    A damaged file whose `.bak` is used is logged, and kept under another name.
    Raises `ValueError` naming the file where a file is there and none can be read.
    """
    return read_whole(path)[0]


def read_whole(path: Path) -> tuple[dict[str, Any] | None, bytes | None]:
    """Return what `read_file` does, and the bytes of it; no bytes where *path* is damaged and its `.bak` is used."""
    failure: ValueError | None = None
    for candidate in (path, _backup(path)):
        try:
            content = candidate.read_bytes()
        except FileNotFoundError:
            continue
        try:
            value = loads_object(content)
        except ValueError as error:
            failure = failure or ValueError(f"{candidate} is no JSON object: {error}")
            continue
        if failure is not None:
            _put_aside(path, failure, candidate)
            return value, None
        if candidate != path:
            _log.warning("file is missing, its backup is used file=%s used=%s", path, candidate)
        return value, content
    if failure is not None:
        raise failure
    return None, None


def _put_aside(path: Path, failure: ValueError, used: Path) -> None:
    """Log that a file is damaged, and rename it: the next write would make it the backup."""
    aside = path.with_name(path.name + ".damaged")
    _log.error(
        "file is damaged, its backup is used, without the last change: %s file=%s used=%s kept_as=%s",
        *(failure, path, used, aside),
    )
    try:
        path.replace(aside)
    except OSError as error:
        _log.warning("damaged file not renamed: %s", error)


def write_file(path: Path, value: dict[str, Any]) -> None:
    """Replace *path* by *value*, the old to `.bak`; at every moment the old or the new content is whole on disk."""
    replace_file(path, json.dumps(value, ensure_ascii=False, allow_nan=False, indent="\t").encode())


def replace_file(path: Path, content: bytes) -> None:
    """Replace *path* by *content*, which is already encoded, as `write_file` does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(path.name + ".tmp")
    with fresh.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    backup = _backup(path)
    if path.exists():
        backup.unlink(missing_ok=True)
        os.link(path, backup)
    fresh.replace(path)
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Flush a directory, so that the files that were made in it stay."""
    directory = os.open(path, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _backup(path: Path) -> Path:
    return path.with_name(path.name + ".bak")
