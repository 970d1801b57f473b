"""
The journal of a table: changes since its file was last written, one line each.

With it a change of a large table is one small write.

It lies in `ferromq/` and names the file it continues by its checksum: where another broker wrote that file since, the
journal is not used. What a change means is decided by `tables`.
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
    Lines that continue a table's file; used by one thread at a time.

    A line is on disk when `append` returns. A torn line ends the journal: nothing behind it was acknowledged.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[bytes] | None = None
        self._base = 0
        self._size = 0
        self.length = 0
        """How many lines it has."""
        self.is_open = False
        """Whether lines can be added; else the file has to be written as a whole first."""

    def read(self, table: bytes | None, holds: Callable[[Changes], bool]) -> Changes:
        """
        Return the changes that follow the file with the content *table*; None: the file is damaged.

        A damaged file cannot say whether the journal continues it. No broker leaves one behind, so it does. *holds*
        says whether the file has changes already: it was written, and a kill came before the journal began anew.
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
            text = "journal not used, the table was written since changes=%d file=%s"
            _log.log(logging.DEBUG if holds(changes) else logging.WARNING, text, len(changes), self._path)
            return []
        self.length = len(changes)
        return changes

    def begin(self, table: bytes) -> None:
        """Begin anew behind a file that has the content *table* now, which is on disk."""
        self.close()
        self._path.unlink(missing_ok=True)
        self._base, self._size, self.length, self.is_open = zlib.crc32(table), 0, 0, True

    def append(self, change: dict[str, Any]) -> None:
        """Write a change. Raises `OSError`; the lines before it stay."""
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
            # Lines without the first one, or in a file that a crash takes away, would be lost: the next is first again.
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
            # A torn line would hide all that come later.
            self.is_open = False
            file.truncate(self._size)
            file.seek(self._size)
            self.is_open = True
            raise
        self._size += len(line)

    def close(self) -> None:
        """Close the file; what was written stays."""
        self.is_open = False
        if self._file is not None:
            self._file.close()
            self._file = None


def _line(value: dict[str, Any]) -> bytes:
    text = java_json.dumps(value)
    return b"%08x %s\n" % (zlib.crc32(text), text)


def _checked(line: bytes) -> dict[str, Any] | None:
    """Return what a line says; None for one that is torn."""
    checksum, _, text = line.partition(b" ")
    if checksum != b"%08x" % zlib.crc32(text):
        return None
    value = json.loads(text)
    return value if isinstance(value, dict) else None
