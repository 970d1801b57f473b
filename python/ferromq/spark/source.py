"""
The data source `ferromq` as Spark sees it.

Options become partitions in the driver, and partitions become Arrow batches in the workers. What a partition is, is
`plan`'s business; what a broker says, `pull`'s.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.types import StructType

from ferromq.spark.options import STREAM_OPTIONS, ReadOptions
from ferromq.spark.read import plan
from ferromq.spark.read.push_down import PushingReader
from ferromq.spark.requirements import require
from ferromq.spark.schema import check_schema, schema_of

__all__ = ["FerromqSource", "QueuePartition", "read_range"]


class FerromqSource(DataSource):  # type: ignore[misc]
    """Topics, read through their brokers. The options are in `ferromq.spark.options`."""

    @classmethod
    def name(cls) -> str:
        """Return the word for `format(…)`."""
        return "ferromq"

    def schema(self) -> StructType:
        """Return the columns; wrong options are an error already here, where the user's line is on the stack."""
        if any(name.lower() in self.options for name in STREAM_OPTIONS):
            from ferromq.spark.stream.reader import parse_options  # noqa: PLC0415 (as below)

            parse_options(self.options)
        return schema_of(ReadOptions.parse(self.options, also=STREAM_OPTIONS).rows.columns)

    def reader(self, schema: StructType) -> "BatchReader":
        """Return the reader of a batch query."""
        require("pyarrow")
        options = ReadOptions.parse(self.options)
        check_schema(schema, options.rows.columns)
        return BatchReader(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 (Spark's name)
        """Return the reader of a stream query."""
        from ferromq.spark.stream.reader import StreamReader, parse_options  # noqa: PLC0415 (it takes QueuePartition from here)

        require("pyarrow")
        options = parse_options(self.options)
        check_schema(schema, options.read.rows.columns)
        return StreamReader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of a batch."""
        from ferromq.spark.write.writer import BatchWriter, parse_options  # noqa: PLC0415 (reading does not need it)

        require("pyarrow")
        return BatchWriter(parse_options(self.options, is_stream=False, overwrite=overwrite), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 (as above)
        """Return the writer of a stream."""
        from ferromq.spark.write.writer import StreamWriter, parse_options  # noqa: PLC0415 (as above)

        require("pyarrow")
        return StreamWriter(parse_options(self.options, is_stream=True, overwrite=overwrite), schema)


@dataclass(frozen=True)
class QueuePartition(InputPartition):  # type: ignore[misc]
    """The range of one queue that one task reads."""

    range: plan.QueueRange


class BatchReader(PushingReader):
    """Reads what the topics hold when the query is planned; what comes later is not in the result."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self.rows = options.rows.rows()

    def partitions(self) -> list[QueuePartition]:
        """Ask the brokers for their queues and offsets, and cut the ranges."""
        from ferromq.spark.read import pull  # noqa: PLC0415 (keeps the search for data sources light)

        options = self._options
        queues = pull.queues(options.where, options.topics)
        ranges = plan.ranges(queues, options.starting, options.ending, pull.offsets_by_time)
        ranges = plan.narrow(ranges, self.rows, pull.offsets_by_time)
        most, least = options.max_records_per_partition, options.min_partitions
        cut = plan.partitions(ranges, max_records=most, min_partitions=least)
        return [QueuePartition(part) for part in cut]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the rows of *partition* as Arrow batches."""
        if not isinstance(partition, QueuePartition):  # Spark makes one empty partition where there are none
            return
        yield from read_range(partition, self._schema, self.rows.mapping())


def read_range(partition: QueuePartition, schema: StructType, wanted: Mapping[str, Any] | None = None) -> Iterator[Any]:
    """
    Yield the rows of *partition* with the columns of *schema* as Arrow batches; runs in a worker.

    *wanted*: which rows, as `_ferromq.record_columns` takes filters; None is all.
    """
    from ferromq.spark.arrow import arrow_schema, record_batch  # noqa: PLC0415
    from ferromq.spark.read import pull  # noqa: PLC0415

    columns_of_arrow = arrow_schema(schema)
    for rows, columns in pull.pull(partition.range, columns=schema.fieldNames(), filter=wanted):
        yield record_batch(columns, rows, columns_of_arrow)
