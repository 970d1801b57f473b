"""
Scans an index file: its entries, and whether header, slots and chains agree with them.

`joins` compares the entries with the records.
"""

import struct
from collections.abc import Iterator
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa

from ferromq.pipeline.auditing import scan_rows
from ferromq.pipeline.auditing.store_files import RowFile

_HEADER = struct.Struct(">qqqqii")
_SLOT = 4
_KIND = np.dtype([("hash", ">u4"), ("physical_offset", ">i8"), ("seconds", ">i4"), ("before", ">u4")])
_ENTRY = _KIND.itemsize
_PIECE = 65_536
_MOST = 1000
"""Maximum findings of broken chains for one piece."""


def scan(
    file: RowFile, log_start: int, until: int | None, *, slots: int | None, has_slots: bool
) -> Iterator[pa.RecordBatch]:
    """
    Yield the entries of *file* that lead to *log_start* or later, its findings, and its figures.

    *slots* is the number of hash slots if it is not a quarter of the entries. With *has_slots* the store is closed, so
    the slots must be written even if the file is not full. In an open store, entries that lead to *until* or later are
    skipped. Figures: `entries`, `last_place`.
    """
    shape = _shape(file.length, slots)
    if shape is None:
        detail = f"{file.length} bytes; expected a header, slots of 4 bytes and four entries of 20 bytes a slot"
        yield scan_rows.findings([{"kind": "file-size", "file": file.path, "at": 0, "detail": detail}])
        return
    slot_count, room = shape
    with open(file.path, "rb") as stream:  # noqa: PTH123 (a path from a table)
        header = _HEADER.unpack(stream.read(_HEADER.size))
        count = max(header[5], 1)
        if count > room:
            detail = f"{count - 1} entries; at most {room - 1} fit"
            yield scan_rows.findings([{"kind": "index-header", "file": file.path, "at": 36, "detail": detail}])
            count = room
        walk = _Walk(file, slot_count)
        stream.seek(_HEADER.size + slot_count * _SLOT + _ENTRY)
        for number in range(1, count, _PIECE):
            data = stream.read(min(_PIECE, count - number) * _ENTRY)
            entries = np.frombuffer(data[: len(data) // _ENTRY * _ENTRY], _KIND)
            yield from walk.take(number, entries, log_start, until)
        if until is None and count > 1:
            yield from walk.check_header(header)
        if count > 1 and (has_slots or count >= room):
            yield from walk.check_slots(stream, count, is_open=until is not None)
    yield scan_rows.figures("index", {"entries": count - 1, "last_place": header[3]}, file=file.path)


def _shape(length: int, slots: int | None) -> tuple[int, int] | None:
    """Return the numbers of slots and entries of a file; RocketMQ's has four entries a slot."""
    count = slots if slots is not None else (length - _HEADER.size) // (_SLOT + 4 * _ENTRY)
    room = (length - _HEADER.size - count * _SLOT) // _ENTRY
    if count <= 0 or room <= 0 or _HEADER.size + count * _SLOT + room * _ENTRY != length:
        return None
    return count, room


class _Walk:
    """The expected slots of a file, computed from its entries."""

    def __init__(self, file: RowFile, slots: int) -> None:
        self._file = file
        self._newest = np.zeros(slots, np.uint32)
        self._first = self._last = 0

    def take(self, number: int, entries: np.ndarray, log_start: int, until: int | None) -> Iterator[pa.RecordBatch]:
        """Compare entries from *number* on with the chains so far, and yield those that lead into the log."""
        if not entries.size:
            return
        places = entries["physical_offset"].astype(np.int64)
        hashes = entries["hash"].astype(np.int64)
        if number == 1:
            self._first = int(places[0])
        self._last = int(places[-1])
        numbers = np.arange(number, number + entries.size, dtype=np.int64)
        yield from self._check_chains(numbers, hashes % self._newest.size, entries["before"].astype(np.int64))
        is_looked = places >= log_start if until is None else (places >= log_start) & (places < until)
        kept = np.flatnonzero(is_looked)
        if kept.size:
            columns = {
                "physical_offset": places[kept],
                # The type of the records' hashes. Hashes are absolute values, so only a broken one changes its sign.
                "hash": hashes[kept].astype(np.uint32).view(np.int32),
                "at": self._at(numbers[kept]),
            }
            yield scan_rows.batch(scan_rows.KEY, kept.size, self._file.path, columns)

    def _at(self, numbers: Any) -> Any:
        return _HEADER.size + self._newest.size * _SLOT + numbers * _ENTRY

    def _check_chains(self, numbers: np.ndarray, slots: np.ndarray, before: np.ndarray) -> Iterator[pa.RecordBatch]:
        order = np.argsort(slots, kind="stable")
        in_order = slots[order]
        is_first = np.concatenate([[True], in_order[1:] != in_order[:-1]])
        expected = np.concatenate([[0], numbers[order][:-1]])
        expected[is_first] = self._newest[in_order[is_first]]
        wrong = np.flatnonzero(before[order] != expected)[:_MOST]
        if wrong.size:
            yield scan_rows.findings(
                [
                    {
                        "kind": "index-chain",
                        "file": self._file.path,
                        "at": int(self._at(numbers[order[place]])),
                        "detail": f"entry {numbers[order[place]]} leads to entry {before[order[place]]}; expected "
                        f"{expected[place]}, the one before it in its slot",
                    }
                    for place in wrong
                ]
            )
        is_last = np.concatenate([is_first[1:], [True]])
        self._newest[in_order[is_last]] = numbers[order][is_last]

    def check_header(self, header: tuple[int, ...]) -> Iterator[pa.RecordBatch]:
        """Compare the header with the entries."""
        begin_time, end_time, first, last, used, _ = header
        in_use = int(np.count_nonzero(self._newest))
        rows = [
            {
                "kind": "index-header",
                "file": self._file.path,
                "at": at,
                "detail": f"{what} {found}; expected {expected}",
            }
            for at, what, found, expected in (
                (16, "first physical offset", first, self._first),
                (24, "last physical offset", last, self._last),
                (32, "slots in use", used, in_use),
            )
            if found != expected
        ]
        if begin_time > end_time:
            detail = f"first time {begin_time}, last time {end_time}; expected times in order"
            rows.append({"kind": "index-header", "file": self._file.path, "at": 0, "detail": detail})
        if rows:
            yield scan_rows.findings(rows)

    def check_slots(self, stream: BinaryIO, count: int, *, is_open: bool) -> Iterator[pa.RecordBatch]:
        """Compare the slots with the newest entries; in an open store, a slot may lead to an entry not counted yet."""
        stream.seek(_HEADER.size)
        found = np.frombuffer(stream.read(self._newest.size * _SLOT), ">u4").astype(np.int64)
        is_wrong = found != self._newest
        if is_open:
            is_wrong &= ~((found >= count) & (self._newest == 0))
        wrong = np.flatnonzero(is_wrong)[:_MOST]
        if wrong.size:
            yield scan_rows.findings(
                [
                    {
                        "kind": "index-chain",
                        "file": self._file.path,
                        "at": int(_HEADER.size + slot * _SLOT),
                        "detail": f"slot {slot} leads to entry {found[slot]}; expected {self._newest[slot]}",
                    }
                    for slot in wrong
                ]
            )
