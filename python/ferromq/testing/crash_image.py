"""
Copies the directory of a running store as a killed process would leave it.

A kill loses nothing that the process wrote: the system has the pages. So a copy of the files, made while the store is
open, is what the next start would find. It is not what a loss of power leaves, which also drops unflushed pages.
"""

import contextlib
import os
import shutil
from pathlib import Path

_CHUNK = 1 << 20
_LOCK = "lock"
_LOG = "commitlog"
# What says how far other files are, first: an old position is replayed, one ahead of its files would skip messages.
_POSITIONS = ("abort", "checkpoint", "config", "ferromq")


def copy_image(store: Path, to: Path) -> None:
    """
    Copy the files of an open store to the new directory *to*, without its lock.

    Positions are copied first and the commit log last, so that no file of the copy is ahead of one that it depends on.
    Holes stay holes.
    """
    to.mkdir()
    for part in sorted(store.iterdir(), key=_turn):
        if part.name != _LOCK:
            _copy(part, to / part.name)


def _turn(part: Path) -> tuple[int, str]:
    last = len(_POSITIONS) + 1
    if part.name == _LOG:
        return last, part.name
    return _POSITIONS.index(part.name) if part.name in _POSITIONS else last - 1, part.name


def _copy(path: Path, to: Path) -> None:
    if path.is_dir():
        to.mkdir()
        for inside in sorted(path.iterdir()):
            _copy(inside, to / inside.name)
        return
    # The store may replace a file meanwhile; the new one has its name already, or the copy has the old one.
    with contextlib.suppress(FileNotFoundError):
        _copy_file(path, to)


def _copy_file(path: Path, to: Path) -> None:
    with path.open("rb", buffering=0) as source, to.open("wb", buffering=0) as copy:
        size = os.fstat(source.fileno()).st_size
        while chunk := source.read(_CHUNK):
            if chunk.count(0) == len(chunk):
                copy.seek(len(chunk), os.SEEK_CUR)
            else:
                copy.write(chunk)
        copy.truncate(max(size, copy.tell()))
    shutil.copystat(path, to)
