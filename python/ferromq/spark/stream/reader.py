"""
The stream reader of the data source `ferromq` as Spark calls it.

Spark calls all but `read` in one process for each query, and `read` in the workers. What the offsets mean is
`stream_offsets`' business. PySpark 4.1 knows neither limits nor Trigger.AvailableNow of data sources: there Spark
itself fixes the end of the latter, and options that need a limit are an error.
"""

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyspark
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from ferromq.errors import FerromqError
from ferromq.spark.arrow import arrow_schema, record_batch
from ferromq.spark.read import pull
from ferromq.spark.source import QueuePartition
from ferromq.spark.stream.offsets import StreamOffsets
from ferromq.spark.stream.options import StreamOptions
from ferromq.spark.stream.plan import ALL, Offsets
from ferromq.spark.stream.read import PatientReader
from ferromq.spark.stream.watch import Patience, Watch

if TYPE_CHECKING:
    from ferromq.spark.stream.group import GroupOffsets

try:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, SupportsTriggerAvailableNow
except ImportError:  # PySpark 4.1
    HAS_ADMISSION = False
    ReadAllAvailable = ReadMaxRows = None
    SupportsTriggerAvailableNow = object
else:
    HAS_ADMISSION = True

_log = logging.getLogger("ferromq.spark")


def parse_options(options: Any) -> StreamOptions:
    """Read Spark's *options* for the PySpark that runs. Raises ConfigError."""
    return StreamOptions.parse(options, pyspark=pyspark.__version__, has_admission=HAS_ADMISSION)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Reads what comes, batch for batch, from where Spark's checkpoint says."""

    def __init__(self, options: StreamOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._made: StreamOffsets | None = None
        self._group: GroupOffsets | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Go to a worker without what the driver knows and has open."""
        return type(self), (self._options, self._schema)

    def initialOffset(self) -> Offsets:  # noqa: N802 (Spark's name, as below)
        """Return where a new query begins."""
        return self._offsets.initial()

    def getDefaultReadLimit(self) -> Any:  # noqa: N802
        """
        Return the limit of the options; without one, a limit that limits nothing.

        ReadAllAvailable is left to Spark, which asks with it for Trigger.Once.
        """
        return ReadMaxRows(self._options.max_offsets or ALL)

    def latestOffset(self, start: Offsets | None = None, limit: Any = None) -> Offsets:  # noqa: N802
        """Return where the next batch ends."""
        is_all = limit is None or isinstance(limit, ReadAllAvailable)
        return self._offsets.latest(start, None if is_all else limit.max_rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the end of the query."""
        self._offsets.prepare()

    def reportLatestOffset(self) -> Offsets | None:  # noqa: N802
        """Return the max offsets seen last, which Spark's progress shows as `latestOffset`."""
        return self._offsets.report()

    def partitions(self, start: Offsets, end: Offsets) -> list[QueuePartition]:
        """Return the ranges of a batch."""
        return [QueuePartition(part) for part in self._offsets.ranges(start, end)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the rows of *partition* as Arrow batches."""
        options = self._options
        # Where a read goes on after a failure is told by the offsets of its rows.
        columns = list(dict.fromkeys([*self._schema.fieldNames(), "queue_offset"]))
        wanted_rows = options.read.rows.rows().mapping()
        reader = PatientReader(
            options.read.where,
            Patience(options.patience),
            fail_on_data_loss=options.fail_on_data_loss,
            pull_range=lambda wanted: pull.pull(wanted, columns=columns, filter=wanted_rows),
        )
        schema = arrow_schema(self._schema)
        for rows, found in reader.read(partition.range):
            yield record_batch(found, rows, schema)

    def commit(self, end: Offsets) -> None:
        """Write the next offsets to the group of the options, for display; a failure is logged."""
        if self._options.group is None:
            return
        if self._group is None:
            from ferromq.spark.stream.group import GroupOffsets  # noqa: PLC0415 (it imports gRPC)

            self._group = GroupOffsets(self._options.group)
        try:
            self._group.write(self._offsets.committed(end))
        except (FerromqError, OSError, ValueError):
            _log.warning("offsets not written for display group=%s", self._options.group, exc_info=True)

    def stop(self) -> None:
        """Close connections."""
        if self._group is not None:
            self._group.close()

    @property
    def _offsets(self) -> StreamOffsets:
        if self._made is None:
            read = self._options.read
            watch = Watch(read.where, read.topics, Patience(self._options.patience))
            self._made = StreamOffsets(self._options, watch)
        return self._made
