"""
The reader of the data source `ferromq-log` as Spark calls it.

It makes partitions of files in the driver and Arrow batches in the workers, with `_ferromq.LogScan`.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from ferromq import _ferromq
from ferromq.spark.arrow import arrow_schema, record_batch
from ferromq.spark.log import files
from ferromq.spark.log.files import LogPart, on_disk
from ferromq.spark.log.options import LogOptions
from ferromq.spark.log.split import split
from ferromq.spark.read.push_down import PushingReader
from ferromq.spark.schema import schema_of
from ferromq.spark.topics import Topics

_log = logging.getLogger("ferromq.spark.log")

_SHOWN = 10
"""How many damaged records a warning lists; it counts all of them."""


@dataclass(frozen=True)
class LogPartition(InputPartition):  # type: ignore[misc]
    """The part of one commit-log file that one task reads."""

    part: LogPart


class LogReader(PushingReader):
    """Reads the messages that the files hold when the query is planned; of an open store, the flushed ones."""

    def __init__(
        self, options: LogOptions, schema: StructType, parts: Sequence[LogPart], starts: Mapping[str, Mapping[str, Any]]
    ) -> None:
        self._options = options
        self._schema = schema
        self._parts = parts
        self._starts = starts
        self.rows = options.rows

    @classmethod
    def of(cls, options: LogOptions, schema: StructType) -> "LogReader":
        """
        List the files now.

        Spark pickles the reader for the workers before it asks for partitions, so it must hold what they need.
        """
        elsewhere = options.commit_log_paths
        parts = files.find(options.paths, options.storage_options, elsewhere)
        stores = () if options.include_expired else sorted({part.store for part in parts if part.store is not None})
        return cls(options, schema, parts, {store: files.queue_starts(store, elsewhere) for store in stores})

    def partitions(self) -> list[LogPartition]:
        """Split the large files."""
        if self.rows.is_empty:
            return []
        return [LogPartition(part) for part in split(self._parts, self._options.max_bytes_per_partition)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """
        Yield the rows of *partition* as Arrow batches; runs in a worker.

        A damaged record raises `CorruptStore` with file, offset and reason, or is logged with onCorrupt skip.
        """
        if isinstance(partition, LogPartition):  # for a read without partitions Spark makes an empty one
            wanted = self.rows.mapping()
            starts = self._starts.get(partition.part.store or "")
            if starts is not None:
                wanted["starts"] = starts
            yield from _Scan(self._options, self._schema, wanted).batches(partition.part)


class _Scan:
    """Reads one part in a worker."""

    def __init__(self, options: LogOptions, schema: StructType, wanted: dict[str, Any]) -> None:
        self._options = options
        self._schema = schema
        self._wanted = wanted
        self._corrupt: list[tuple[int, str]] = []
        topics = options.topics
        self._filters_topics = not topics.names and (topics.pattern is not None or not topics.system)
        """Whether a batch may hold messages of topics that the options exclude."""

    def batches(self, part: LogPart) -> Iterator[Any]:
        """Yield the rows of *part*."""
        columns = self._schema.fieldNames()
        read = columns if "topic" in columns or not self._filters_topics else [*columns, "topic"]
        schema = arrow_schema(schema_of(read))
        for found in self._scan(part, read):
            self._corrupt += found["corrupt"]
            batch = record_batch(found["columns"], found["rows"], schema)
            if self._filters_topics:
                batch = _of_topics(batch, self._options.topics).select(columns)
            if batch.num_rows:
                yield batch
        self._warn(part)

    def _scan(self, part: LogPart, columns: list[str]) -> Iterator[Mapping[str, Any]]:
        with on_disk(part, self._options.storage_options) as path:
            yield from _ferromq.LogScan(
                str(path),
                part.first_offset,
                part.begin,
                part.end,
                columns=columns,
                filter=self._wanted,
                on_corrupt=self._options.on_corrupt,
            )

    def _warn(self, part: LogPart) -> None:
        if not self._corrupt:
            return
        shown = "; ".join(f"physical offset {offset}: {reason}" for offset, reason in self._corrupt[:_SHOWN])
        more = len(self._corrupt) - _SHOWN
        rest = f"; and {more} more" if more > 0 else ""
        _log.warning("%d damaged places of %s were skipped: %s%s", len(self._corrupt), part.url, shown, rest)


def _of_topics(batch: pa.RecordBatch, topics: Topics) -> pa.RecordBatch:
    """Return the rows of *batch* whose topic is in *topics*; the batch itself if that is all of them."""
    names = batch.column("topic")
    present = names.unique().to_pylist()
    kept = [name for name in present if topics.includes(name)]
    if len(kept) == len(present):
        return batch
    return batch.filter(pc.is_in(names, value_set=pa.array(kept, names.type)))
