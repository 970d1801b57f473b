"""JSON objects in files, as RocketMQ keeps its tables: `x.json`, and the content before in `x.json.bak`."""

import json
import logging
from pathlib import Path
from typing import Any

from ferromq.files import atomic
from ferromq.files.atomic import backup_of
from ferromq.protocol.java_json import loads_object

_log = logging.getLogger("ferromq.files")


def read(path: Path) -> dict[str, Any] | None:
    """
    Return the object in *path*, else the one in its backup; None if neither exists.

    RocketMQ moves the old file to the backup before it writes the new one, so a crash may leave only the backup.
    If *path* is damaged and the backup is used, this logs it and renames the damaged file.
    Raises `ValueError` with the file's name if no file can be read.
    """
    return read_with_content(path)[0]


def read_with_content(path: Path) -> tuple[dict[str, Any] | None, bytes | None]:
    """Return what `read` returns, and the file's bytes; no bytes if *path* is damaged and the backup is used."""
    failure: ValueError | None = None
    for candidate in (path, backup_of(path)):
        try:
            content = candidate.read_bytes()
        except FileNotFoundError:
            continue
        try:
            value = loads_object(content)
        except ValueError as error:
            failure = failure or ValueError(f"{candidate} is not a JSON object: {error}")
            continue
        if failure is not None:
            _set_aside(path, failure, candidate)
            return value, None
        if candidate != path:
            _log.warning("file is missing, using its backup file=%s used=%s", path, candidate)
        return value, content
    if failure is not None:
        raise failure
    return None, None


def _set_aside(path: Path, failure: ValueError, used: Path) -> None:
    """Log and rename a damaged file; the next write would make it the backup."""
    aside = path.with_name(path.name + ".damaged")
    _log.error(
        "file is damaged, using its backup, which lacks the last change: %s file=%s used=%s kept_as=%s",
        *(failure, path, used, aside),
    )
    try:
        path.replace(aside)
    except OSError as error:
        _log.warning("damaged file not renamed: %s", error)


def write(path: Path, value: dict[str, Any], mode: int = 0o666) -> None:
    """Replace *path* by *value*; see `atomic.replace_file`."""
    atomic.replace_file(path, json.dumps(value, ensure_ascii=False, allow_nan=False, indent="\t").encode(), mode)
