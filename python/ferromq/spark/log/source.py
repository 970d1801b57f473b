"""
The data source `ferromq-log` as Spark sees it: commit-log files, read without a broker.

Files become partitions in the driver, and partitions become Arrow batches in the workers, by `_ferromq.LogScan`.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import DataSource, InputPartition
from pyspark.sql.types import StructType

from ferromq.errors import ConfigError
from ferromq.spark.log.files import LogPart
from ferromq.spark.log.options import LogOptions
from ferromq.spark.read.push_down import PushingReader
from ferromq.spark.requirements import require
from ferromq.spark.schema import check_schema, schema_of
from ferromq.spark.topics import Topics

__all__ = ["FerromqLogSource", "LogPartition", "LogReader"]

_log = logging.getLogger("ferromq.spark.log")

PLACES_SHOWN = 10
"""How many damaged places a warning lists; it counts all of them."""


class FerromqLogSource(DataSource):  # type: ignore[misc]
    """Messages of store directories and commit-log files. The options are in `ferromq.spark.log.options`."""

    @classmethod
    def name(cls) -> str:
        """Return the word for `format(…)`."""
        return "ferromq-log"

    def schema(self) -> StructType:
        """Return the columns; wrong options are an error already here, where the user's line is on the stack."""
        return schema_of(LogOptions.parse(self.options).columns)

    def reader(self, schema: StructType) -> "LogReader":
        """Return the reader of a batch query."""
        require("pyarrow")
        options = LogOptions.parse(self.options)
        check_schema(schema, options.columns)
        return LogReader.of(options, schema)

    def streamReader(self, schema: StructType) -> Any:  # noqa: N802 (PySpark's name)
        """Refuse: a stream needs a broker that knows its offsets."""
        del schema
        raise ConfigError("format 'ferromq-log' has no stream; allowed: spark.read, or readStream.format('ferromq')")


@dataclass(frozen=True)
class LogPartition(InputPartition):  # type: ignore[misc]
    """The part of one commit-log file that one task reads."""

    part: LogPart


class LogReader(PushingReader):
    """Reads what the files hold when the query is planned, up to what is flushed of a running broker's."""

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
        Look at the files now.

        Spark hands the reader to workers as it is before it asks for partitions: what they need is found here.
        """
        from ferromq.spark.log import files  # noqa: PLC0415 (keeps the search for data sources light)

        elsewhere = options.commit_log_paths
        parts = files.find(options.paths, options.storage_options, elsewhere)
        stores = () if options.include_expired else sorted({part.store for part in parts if part.store is not None})
        return cls(options, schema, parts, {store: files.queue_starts(store, elsewhere) for store in stores})

    def partitions(self) -> list[LogPartition]:
        """Cut the files that are large."""
        from ferromq.spark.log import cuts  # noqa: PLC0415

        if self.rows.is_empty:
            return []
        return [LogPartition(part) for part in cuts.cut(self._parts, self._options.max_bytes_per_partition)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """
        Yield the rows of *partition* as Arrow batches; runs in a worker.

        `CorruptStore` names file, offset and reason where something is damaged; with onCorrupt skip, a warning does.
        """
        if isinstance(partition, LogPartition):  # Spark makes one empty partition where there are none
            wanted = self.rows.mapping()
            starts = self._starts.get(partition.part.store or "")
            if starts is not None:
                wanted["starts"] = starts
            yield from _Scan(self._options, self._schema, wanted).batches(partition.part)


class _Scan:
    """The reading of one part, in a worker."""

    def __init__(self, options: LogOptions, schema: StructType, wanted: dict[str, Any]) -> None:
        self._options = options
        self._schema = schema
        self._wanted = wanted
        self._corrupt: list[tuple[int, str]] = []
        topics = options.topics
        self._looks_at_topics = not topics.names and (topics.pattern is not None or not topics.system)
        """Says whether a batch may hold messages of topics that are not meant."""

    def batches(self, part: LogPart) -> Iterator[Any]:
        """Yield the rows of *part*."""
        from ferromq.spark.arrow import arrow_schema, record_batch  # noqa: PLC0415

        columns = self._schema.fieldNames()
        read = columns if "topic" in columns or not self._looks_at_topics else [*columns, "topic"]
        schema = arrow_schema(schema_of(read))
        for found in self._scan(part, read):
            self._corrupt += found["corrupt"]
            batch = record_batch(found["columns"], found["rows"], schema)
            if self._looks_at_topics:
                batch = of_topics(batch, self._options.topics).select(columns)
            if batch.num_rows:
                yield batch
        self._warn(part)

    def _scan(self, part: LogPart, columns: list[str]) -> Iterator[Mapping[str, Any]]:
        from ferromq import _ferromq  # noqa: PLC0415
        from ferromq.spark.log.files import on_disk  # noqa: PLC0415

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
        places = "; ".join(f"physical offset {offset}: {reason}" for offset, reason in self._corrupt[:PLACES_SHOWN])
        more = len(self._corrupt) - PLACES_SHOWN
        rest = f"; and {more} more" if more > 0 else ""
        _log.warning("%d damaged places of %s were skipped: %s%s", len(self._corrupt), part.url, places, rest)


def of_topics(batch: Any, topics: Topics) -> Any:
    """Return the rows of *batch* whose topic is meant; the batch itself where that is all of them."""
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.compute as pc  # noqa: PLC0415

    names = batch.column("topic")
    there = names.unique().to_pylist()
    meant = [name for name in there if topics.means(name)]
    if len(meant) == len(there):
        return batch
    return batch.filter(pc.is_in(names, value_set=pa.array(meant, names.type)))
