"""
The journal of a table: the changes since its file was last written, one line each.

It makes a change of a large table one small write. It lies in `ferromq/` and names the file that it continues by
checksum. If another broker wrote that file since, the journal is ignored. `tables` decides what a change means.
"""

import json
import logging
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from ferromq.files import atomic
from ferromq.protocol import java_json

_log = logging.getLogger("ferromq.broker")

Changes = list[dict[str, Any]]


class Journal:
    """
    Lines that continue a table's file; not thread-safe.

    A line is on disk when `append` returns. A torn line ends the journal: no change behind it was acknowledged.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[bytes] | None = None
        self._base = 0
        self._size = 0
        self.length = 0
        """The number of lines."""
        self.is_open = False
        """Whether lines can be added; otherwise the whole file must be written first."""

    def read(self, table: bytes | None, holds: Callable[[Changes], bool]) -> Changes:
        """
        Return the changes that follow the file content *table*; None stands for a damaged file.

        A damaged file has no checksum to compare; no other broker leaves one behind, so the journal is used. *holds*
        returns whether the file has the changes already, as after a kill between writing it and `begin`.
        """
        try:
            head, *lines = self._path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return []
        base, changes = _checked(head), []
        for line in lines:
            change = _checked(line)
            if change is None:
                break
            changes.append(change)
        if base is None or (table is not None and base.get("table") != zlib.crc32(table)):
            text = "journal ignored, the table was written after it changes=%d file=%s"
            _log.log(logging.DEBUG if holds(changes) else logging.WARNING, text, len(changes), self._path)
            return []
        self.length = len(changes)
        return changes

    def begin(self, table: bytes) -> None:
        """Start an empty journal that continues the file content *table*, which is on disk."""
        self.close()
        self._path.unlink(missing_ok=True)
        self._base, self._size, self.length, self.is_open = zlib.crc32(table), 0, 0, True

    def append(self, change: dict[str, Any]) -> None:
        """Write a change. Raises `OSError`; earlier lines stay."""
        if self._file is None:
            self._create()
        self._write(_line(change))
        self.length += 1

    def _create(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._path.open("wb", buffering=0)
        try:
            self._write(_line({"table": self._base}))
            atomic.sync_directory(self._path.parent)
        except OSError:
            # Without its first line, or in a file whose directory entry is not durable, later lines would be lost.
            self.close()
            self._path.unlink(missing_ok=True)
            self._size, self.is_open = 0, True
            raise

    def _write(self, line: bytes) -> None:
        file = self._file
        assert file is not None
        try:
            left = memoryview(line)
            while left:
                left = left[file.write(left) :]
            os.fdatasync(file.fileno())
        except OSError:
            # A torn line would hide all later ones.
            self.is_open = False
            file.truncate(self._size)
            file.seek(self._size)
            self.is_open = True
            raise
        self._size += len(line)

    def close(self) -> None:
        """Close the file; its lines stay."""
        self.is_open = False
        if self._file is not None:
            self._file.close()
            self._file = None


def _line(value: dict[str, Any]) -> bytes:
    text = java_json.dumps(value)
    return b"%08x %s\n" % (zlib.crc32(text), text)


def _checked(line: bytes) -> dict[str, Any] | None:
    """Return the change in a line; None if the line is torn."""
    checksum, _, text = line.partition(b" ")
    if checksum != b"%08x" % zlib.crc32(text):
        return None
    value = json.loads(text)
    return value if isinstance(value, dict) else None
