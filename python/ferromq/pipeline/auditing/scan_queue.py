"""
Scans a consume queue: its entries, and problems that need no records to be seen.

`joins` compares the entries with the records.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from ferromq.pipeline.auditing import scan_rows
from ferromq.pipeline.auditing.store_files import ENTRY, QueueFiles, RowFile

_KIND = np.dtype([("physical_offset", ">i8"), ("size", ">i4"), ("tag_hash", ">i8")])
_FILLER_SIZE = 0x7FFFFFFF
_PIECE = 65_536
"""Entries read at once."""
_MOST_RUNS = 1000
"""Maximum findings for one piece of a queue."""


@dataclass
class _Walk:
    """The state of a scan of one queue."""

    queue: QueueFiles
    log_start: int
    until: int | None
    next: int
    min_offset: int
    max_offset: int
    has_entry: bool = False
    kept: int = 0
    """Entries whose record must exist."""
    last_place: int = -1
    """Physical offset of the previous entry."""
    is_ended: bool = False
    findings: list[dict[str, Any]] = field(default_factory=list)

    def find(self, kind: str, file: RowFile, offset: int, detail: str, physical_offset: int | None = None) -> None:
        """Add a finding at a queue offset."""
        place = {"topic": self.queue.topic, "queue_id": self.queue.queue_id, "queue_offset": offset}
        place |= {"file": file.path, "at": offset * ENTRY - file.base, "physical_offset": physical_offset}
        self.findings.append({"kind": kind, "detail": detail, **place})


def scan(queue: QueueFiles, log_start: int, until: int | None) -> Iterator[pa.RecordBatch]:
    """
    Yield the entries of *queue* that lead to *log_start* or later, its findings, and its figures.

    Earlier entries, whose records have expired, are skipped. In an open store, the scan ends at the first entry that
    leads to *until* or later. Figures: `min_offset`, `max_offset`, `entries`.
    """
    first = queue.files[0].base // ENTRY if queue.files else 0
    walk = _Walk(queue, log_start, until, first, first, first)
    for file in queue.files:
        walk.next = max(walk.next, file.base // ENTRY)  # listing has reported missing files
        with open(file.path, "rb") as stream:  # noqa: PTH123 (a path from a table)
            at = 0
            while not walk.is_ended and at < file.length and (data := stream.read(_PIECE * ENTRY)):
                data = data[: len(data) // ENTRY * ENTRY]
                piece = _take(walk, file, (file.base + at) // ENTRY, np.frombuffer(data, _KIND))
                if piece is not None:
                    yield piece
                if walk.findings:
                    yield scan_rows.findings(walk.findings[:_MOST_RUNS])
                    walk.findings.clear()
                at += len(data)
    values = {"min_offset": walk.min_offset, "max_offset": walk.max_offset, "entries": walk.kept}
    yield scan_rows.figures("queue", values, topic=queue.topic, queue_id=queue.queue_id)


def _take(walk: _Walk, file: RowFile, first: int, slots: np.ndarray) -> pa.RecordBatch | None:
    """Return the entries in *slots*; the first slot has the queue offset *first*."""
    places, sizes = slots["physical_offset"].astype(np.int64), slots["size"].astype(np.int64)
    is_written = (places != 0) | (sizes != 0) | (slots["tag_hash"] != 0)
    is_filler = (places == 0) & (sizes == _FILLER_SIZE)
    is_entry = (sizes > 0) & (places >= 0) & ~is_filler
    if walk.until is not None:
        beyond = np.flatnonzero(is_entry & (places >= walk.until))
        if beyond.size:
            walk.is_ended = True
            is_written[beyond[0] :] = False
    written = np.flatnonzero(is_written)
    if not written.size:
        return None
    _find_gaps(walk, file, first + written)
    invalid = written[~is_entry[written] & ~is_filler[written]]
    for place in invalid:
        walk.find("entry-without-record", file, int(first + place), "bytes that are no entry")
    entries = written[is_entry[written]]
    _find_fillers(walk, file, first, written[is_filler[written]], entries)
    real = written[~is_filler[written]]
    if real.size:
        walk.max_offset = int(first + real[-1] + 1)
    _find_disorder(walk, file, first, entries, places)
    entries = _kept(walk, first, entries, places)
    if not entries.size:
        return None
    walk.kept += int(entries.size)
    columns = {
        "topic": walk.queue.topic,
        "queue_id": walk.queue.queue_id,
        "queue_offset": first + entries,
        "physical_offset": places[entries],
        "size": sizes[entries],
        "tag_hash": slots["tag_hash"][entries],
        "at": (first + entries) * ENTRY - file.base,
    }
    return scan_rows.batch(scan_rows.ENTRY, entries.size, file.path, columns)


def _kept(walk: _Walk, first: int, entries: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Drop the entries before the first one whose record is kept."""
    if walk.kept:
        return entries
    is_kept = places[entries] >= walk.log_start
    gone = int(np.argmax(is_kept)) if is_kept.any() else entries.size
    if gone:
        walk.min_offset = int(first + entries[gone - 1] + 1)
    return entries[gone:]


def _find_gaps(walk: _Walk, file: RowFile, offsets: np.ndarray) -> None:
    before = np.concatenate([[walk.next], offsets[:-1] + 1])
    for place in np.flatnonzero(offsets > before):
        begin, end = int(before[place]), int(offsets[place])
        walk.find("queue-gap", file, begin, f"no entries at the queue offsets {begin} to {end - 1}")
    walk.next = int(offsets[-1] + 1)


def _find_fillers(walk: _Walk, file: RowFile, first: int, fillers: np.ndarray, entries: np.ndarray) -> None:
    begun = 0 if walk.has_entry else int(entries[0]) if entries.size else _PIECE
    for place in fillers[fillers >= begun]:
        walk.find("filler-inside", file, int(first + place), "a filler after an entry")
    leading = fillers[fillers < begun]
    if leading.size:
        walk.min_offset = walk.max_offset = int(first + leading[-1] + 1)
    walk.has_entry = walk.has_entry or bool(entries.size)


def _find_disorder(walk: _Walk, file: RowFile, first: int, entries: np.ndarray, places: np.ndarray) -> None:
    """Find entries that do not lead behind the record of the previous entry."""
    if not entries.size:
        return
    before = np.concatenate([[walk.last_place], places[entries][:-1]])
    for number in np.flatnonzero(places[entries] <= before):
        place, earlier = int(places[entries[number]]), int(before[number])
        detail = f"it leads to {place}, the entry before it to {earlier}"
        walk.find("entry-order", file, int(first + entries[number]), detail, place)
    walk.last_place = int(places[entries[-1]])


def last_place(queue: QueueFiles) -> int:
    """Return the physical offset of the last entry of *queue*, by bisection; -1 if there is none."""
    for file in reversed(queue.files):
        with open(file.path, "rb") as stream:  # noqa: PTH123
            low, high = -1, file.length // ENTRY
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if _place(stream, middle) is not None else (low, middle)
            if low >= 0:
                return _place(stream, low) or 0
    return -1


def _place(stream: Any, number: int) -> int | None:
    stream.seek(number * ENTRY)
    data = stream.read(ENTRY)
    if len(data) < ENTRY or not any(data):
        return None
    return int(np.frombuffer(data, _KIND)["physical_offset"][0])
