"""
Writes rows to Parquet files by topic, date and hour, within a bounded memory, and reads them back.

It uses pyarrow only: no Spark, no store. `publisher` moves the files into the archive.
"""

import os
import zlib
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ferromq.errors import CorruptStore

COMPRESSION = "zstd"
BUFFERED = 64 << 20
"""Bytes of rows in memory above which the largest groups are written."""
MAX_OPEN = 256
"""Files open at once. If a group's file was closed to make room, its next rows go to another file."""
NULL = "__HIVE_DEFAULT_PARTITION__"
"""Hive, Spark and DuckDB read it as null: for a store time outside the calendar."""

_HOUR_US = 3600 * 1_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_REPEATED = ["queue_id", "tag", "born_host", "store_host", "reconsume_times", "sys_flag"]
"""Columns with few distinct values, which are dictionary-encoded."""
_SAFE = frozenset("-_.")

Digest = Mapping[str, int]
"""Checksums of columns; they do not depend on how rows are divided into batches."""


@dataclass(frozen=True, slots=True)
class ParquetPart:
    """One Parquet file, written and on disk, but not yet in the archive."""

    name: str
    """Path in the archive: `topic=…/date=…/hour=…/NAME.parquet`."""
    written: Path
    rows: int
    bytes: int
    first_offset: int
    """Physical offset of its first record."""
    last_offset: int
    crc32: int
    """Checksum of all columns; see `checksum`."""


def partition_path(topic: str, hour: int) -> str:
    """Return the Hive folder of *topic* in *hour* (hours since 1970, UTC): `topic=%25RETRY%25g/date=…`."""
    try:
        moment = _EPOCH + timedelta(hours=hour)
        when = f"date={moment:%Y-%m-%d}/hour={moment:%H}"
    except OverflowError:
        when = f"date={NULL}/hour={NULL}"
    return f"topic={escaped(topic)}/{when}"


def escaped(value: str) -> str:
    """Escape `%` and the characters that are not allowed in a path; letters of any alphabet stay."""
    return "".join(
        char if char.isalnum() or char in _SAFE or not char.isascii() else f"%{ord(char):02X}" for char in value
    )


def split(batch: pa.RecordBatch) -> Iterator[tuple[str, int, pa.RecordBatch]]:
    """Yield the rows of each topic and hour of store time, in their order."""
    topics = batch.column("topic").dictionary_encode()
    micros = batch.column("store_timestamp").cast(pa.int64())
    hours = pc.floor(pc.divide(micros.cast(pa.float64()), _HOUR_US)).cast(pa.int64())
    first = pc.min(hours).as_py()
    codes = pc.add(pc.multiply(pc.subtract(hours, first), len(topics.dictionary)), topics.indices.cast(pa.int64()))
    names = topics.dictionary.to_pylist()
    rows = batch.drop_columns(["topic"])
    if pc.min_max(codes).as_py()["min"] == pc.max(codes).as_py():
        yield names[topics.indices[0].as_py()], hours[0].as_py(), rows
        return
    order = pc.sort_indices(codes)  # stable
    runs = pc.run_end_encode(codes.take(order), run_end_type=pa.int64())
    start = 0
    for end, code in zip(runs.run_ends.to_pylist(), runs.values.to_pylist(), strict=True):
        # A copy, so that a small group does not keep the memory of the whole batch.
        yield names[code % len(names)], first + code // len(names), rows.take(order.slice(start, end - start))
        start = end


# --- checksums ---------------------------------------------------------------------------------------------------


def checksum(digest: Digest) -> int:
    """Return one number for the checksums of all columns."""
    return zlib.crc32(repr(sorted(digest.items())).encode())


def add_rows(digest: dict[str, int], batch: pa.RecordBatch) -> None:
    """Add the rows of *batch* to the checksums of their columns."""
    for name in batch.schema.names:
        _add(digest, name, batch.column(name))


def _add(digest: dict[str, int], name: str, array: pa.Array) -> None:
    kind = array.type
    if pa.types.is_map(kind) or pa.types.is_list(kind):
        offsets = array.offsets
        begin, end = (offsets[0].as_py(), offsets[-1].as_py()) if len(array) else (0, 0)
        _numbers(digest, f"{name}#", pc.subtract(offsets[1:], offsets[:-1]))
        children = {"k": array.keys, "v": array.items} if pa.types.is_map(kind) else {"i": array.values}
        for child, values in children.items():
            _add(digest, f"{name}.{child}", values.slice(begin, end - begin))
    elif pa.types.is_string(kind) or pa.types.is_binary(kind):
        _numbers(digest, f"{name}#", pc.binary_length(array).fill_null(-1))
        _, offsets_buffer, data = array.buffers()
        if data is not None and len(array):
            offsets = memoryview(offsets_buffer).cast("i")
            content = memoryview(data)[offsets[array.offset] : offsets[array.offset + len(array)]]
            digest[name] = zlib.crc32(content, digest.get(name, 0))
    else:
        _numbers(digest, name, array)
    if array.null_count:
        digest[f"{name}?"] = digest.get(f"{name}?", 0) + array.null_count


def _numbers(digest: dict[str, int], name: str, array: pa.Array) -> None:
    if pa.types.is_timestamp(array.type):
        array = array.cast(pa.int64())
    if array.null_count:
        array = array.fill_null(0)
    width = array.type.bit_width // 8
    begin = array.offset * width
    content = memoryview(array.buffers()[1])[begin : begin + len(array) * width] if len(array) else b""
    digest[name] = zlib.crc32(content, digest.get(name, 0))


# --- writing -----------------------------------------------------------------------------------------------------


@dataclass
class _Group:
    """The rows of one topic and hour."""

    folder: str
    waiting: list[pa.RecordBatch] = field(default_factory=list)
    bytes: int = 0
    parts: int = 0


@dataclass
class _Open:
    """A Parquet file being written."""

    name: str
    path: Path
    writer: pq.ParquetWriter
    first_offset: int
    last_offset: int = -1
    rows: int = 0
    digest: dict[str, int] = field(default_factory=dict)


class PartitionedWriter:
    """
    Writes batches into *directory*, a file for each topic, date and hour, whose name begins with *name*.

    The same batches always give the same files. Rows of a topic and hour keep their order.
    """

    def __init__(self, directory: Path, name: str, *, buffered: int = BUFFERED, max_open: int = MAX_OPEN) -> None:
        self._directory, self._name = directory, name
        self._buffered, self._max_open = buffered, max_open
        self._groups: dict[tuple[str, int], _Group] = {}
        self._waiting = 0
        self._open: OrderedDict[tuple[str, int], _Open] = OrderedDict()
        self._done: list[ParquetPart] = []
        self._files = 0
        self.rows = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Add the rows of *batch*; write the largest groups if too many rows are in memory."""
        if batch.num_rows == 0:
            return
        self.rows += batch.num_rows
        for topic, hour, rows in split(batch):
            key = (topic, hour)
            if key not in self._groups:
                self._groups[key] = _Group(partition_path(topic, hour))
            group, size = self._groups[key], rows.nbytes
            group.waiting.append(rows)
            group.bytes += size
            self._waiting += size
        if self._waiting > self._buffered:
            for key in sorted(self._groups, key=lambda key: self._groups[key].bytes, reverse=True):
                self._write(key)
                if self._waiting <= self._buffered // 2:
                    break

    def close(self) -> list[ParquetPart]:
        """Write the remaining rows, close and sync every file, and return the files."""
        for key in list(self._groups):
            self._write(key)
        while self._open:
            self._finish()
        return sorted(self._done, key=lambda part: part.name)

    def abort(self) -> None:
        """Close the files without finishing them."""
        for file in self._open.values():
            file.writer.close()
        self._open.clear()

    def _write(self, key: tuple[str, int]) -> None:
        group = self._groups[key]
        if not group.waiting:
            return
        file = self._file(key, group)
        for batch in group.waiting:
            add_rows(file.digest, batch)
        table = pa.Table.from_batches(group.waiting)
        file.writer.write_table(table, row_group_size=table.num_rows)
        file.rows += table.num_rows
        file.last_offset = group.waiting[-1].column("physical_offset")[-1].as_py()
        self._waiting -= group.bytes
        group.waiting, group.bytes = [], 0

    def _file(self, key: tuple[str, int], group: _Group) -> _Open:
        if key in self._open:
            self._open.move_to_end(key)
            return self._open[key]
        if len(self._open) >= self._max_open:
            self._finish()
        batch = group.waiting[0]
        self._files += 1
        path = self._directory / f"{self._files}.part"
        writer = pq.ParquetWriter(
            path, batch.schema, compression=COMPRESSION, use_dictionary=_REPEATED, write_page_checksum=True
        )
        name = f"{group.folder}/{self._name}-{group.parts}.parquet"
        group.parts += 1
        self._open[key] = _Open(name, path, writer, batch.column("physical_offset")[0].as_py())
        return self._open[key]

    def _finish(self) -> None:
        """Close the least recently written file, sync it, and check its content."""
        _, file = self._open.popitem(last=False)
        file.writer.close()
        with file.path.open("rb") as written:
            os.fsync(written.fileno())
        read_back(file.path, file.rows, file.digest)
        size = file.path.stat().st_size
        part = ParquetPart(
            file.name, file.path, file.rows, size, file.first_offset, file.last_offset, checksum(file.digest)
        )
        self._done.append(part)


def read_back(path: Path, rows: int, digest: Digest) -> None:
    """Read a whole Parquet file. Raises CorruptStore unless it holds *rows* rows with these checksums."""
    found: dict[str, int] = {}
    count = 0
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            for batch in file.iter_batches():
                add_rows(found, batch)
                count += batch.num_rows
    except (pa.ArrowException, OSError) as error:
        raise CorruptStore(f"{path}, just written, cannot be read back: {error}") from error
    wrong: list[Any] = [name for name in {*digest, *found} if digest.get(name, 0) != found.get(name, 0)]
    if count != rows or wrong:
        what = f"columns {', '.join(sorted(wrong))} differ" if wrong else "they match"
        raise CorruptStore(f"{path}, just written, holds {count:,} rows where {rows:,} were written; {what}")
