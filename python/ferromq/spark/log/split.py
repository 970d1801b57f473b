"""
Splits the commit-log files of a store at records that its consume queues point to.

A body may contain bytes that look like a record, so the log alone does not show where records begin. Files outside a
store are not split.
"""

import mmap
import re
from bisect import bisect_left
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Self

from ferromq.spark.log.files import LogPart

ENTRY = 20
"""Bytes of an entry: physical offset (8), size (4), tag hash (8)."""
MAX_QUEUES = 64
"""The number of queues that are searched, those with the most messages."""

_FILE_NAME = re.compile(r"[0-9]{20}\Z")
_UNWRITTEN = 1 << 64


def split(parts: Sequence[LogPart], max_bytes: int) -> list[LogPart]:
    """Return *parts*, with those above *max_bytes* split to about that size."""
    found: list[LogPart] = []
    with ExitStack() as opened:
        queues: dict[str, list[_Queue]] = {}
        for part in parts:
            if part.store is None or len(part) <= max_bytes:
                found.append(part)
                continue
            if part.store not in queues:
                queues[part.store] = [opened.enter_context(queue) for queue in _queues(Path(part.store))]
            wanted = range(part.begin + max_bytes, part.end, max_bytes)
            places = {_record_from(offset, queues[part.store]) for offset in wanted}
            bounds = sorted({part.begin, part.end, *(place for place in places if part.begin < place < part.end)})
            found += [replace(part, begin=begin, end=end) for begin, end in pairwise(bounds)]
    return found


def _record_from(offset: int, queues: Sequence["_Queue"]) -> int:
    """Return the physical offset of the nearest known record at *offset* or later."""
    return min((queue.record_from(offset) for queue in queues), default=_UNWRITTEN)


def _queues(store: Path) -> list["_Queue"]:
    """Return the consume queues of *store* with the most messages."""
    found = []
    for folder in (store / "consumequeue").glob("*/*"):
        files = sorted(file for file in folder.glob("0*") if _FILE_NAME.match(file.name)) if folder.is_dir() else []
        if files:
            found.append(files)
    found.sort(key=lambda files: files[-1].name, reverse=True)
    return [_Queue(files) for files in found[:MAX_QUEUES]]


class _Queue:
    """The entries of a consume queue, in the order of their physical offsets."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._files = files
        self._maps: list[mmap.mmap] = []

    def __enter__(self) -> Self:
        for file in self._files:
            if file.stat().st_size >= ENTRY:
                with file.open("rb") as handle:
                    self._maps.append(mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ))
        return self

    def __exit__(self, *_: object) -> None:
        for mapped in self._maps:
            mapped.close()

    def record_from(self, offset: int) -> int:
        """Return the first physical offset at *offset* or later that an entry points to, or else `_UNWRITTEN`."""
        for mapped in self._maps:
            entries = range(len(mapped) // ENTRY)
            place = bisect_left(entries, offset, key=partial(_physical, mapped))
            if place < len(entries):
                return _physical(mapped, place)
        return _UNWRITTEN


def _physical(mapped: mmap.mmap, entry: int) -> int:
    """Return the physical offset of an entry, or `_UNWRITTEN`."""
    at = entry * ENTRY
    physical, size = int.from_bytes(mapped[at : at + 8]), int.from_bytes(mapped[at + 8 : at + 12])
    return physical if size else _UNWRITTEN
