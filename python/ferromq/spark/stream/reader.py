"""
The stream reader of the data source `ferromq` as Spark calls it.

Spark calls `read` in the workers, and everything else in one process for each query. `offsets` plans the batches.
PySpark 4.1 supports neither read limits nor Trigger.AvailableNow of data sources: there Spark itself fixes the end of a
query, and options that need a limit are an error.
"""

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyspark
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from ferromq.errors import FerromqError
from ferromq.spark.arrow import arrow_schema, record_batch
from ferromq.spark.partition import QueuePartition
from ferromq.spark.read import pull
from ferromq.spark.stream.offsets import StreamOffsets
from ferromq.spark.stream.options import StreamOptions
from ferromq.spark.stream.plan import ALL, Offsets
from ferromq.spark.stream.queue_monitor import QueueMonitor, RetryDeadline
from ferromq.spark.stream.retrying_reader import RetryingReader

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
    """Parse Spark's *options* for the installed PySpark. Raises ConfigError."""
    return StreamOptions.parse(options, pyspark=pyspark.__version__, has_admission=HAS_ADMISSION)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Reads new messages, batch by batch, from the offsets of Spark's checkpoint."""

    def __init__(self, options: StreamOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._made: StreamOffsets | None = None
        self._group: GroupOffsets | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without the state and connections of the driver."""
        return type(self), (self._options, self._schema)

    def initialOffset(self) -> Offsets:  # noqa: N802 (Spark's name, as below)
        """Return the start of a new query."""
        return self._offsets.initial()

    def getDefaultReadLimit(self) -> Any:  # noqa: N802
        """
        Return the limit of the options, or else a limit that is never reached.

        ReadAllAvailable is not used: Spark passes it for Trigger.Once.
        """
        return ReadMaxRows(self._options.max_offsets or ALL)

    def latestOffset(self, start: Offsets | None = None, limit: Any = None) -> Offsets:  # noqa: N802
        """Return the end of the next batch."""
        is_all = limit is None or isinstance(limit, ReadAllAvailable)
        return self._offsets.latest(start, None if is_all else limit.max_rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the end of the query at the current max offsets."""
        self._offsets.prepare()

    def reportLatestOffset(self) -> Offsets | None:  # noqa: N802
        """Return the latest known max offsets; Spark's progress shows them as `latestOffset`."""
        return self._offsets.report()

    def partitions(self, start: Offsets, end: Offsets) -> list[QueuePartition]:
        """Return the ranges of a batch."""
        return [QueuePartition(part) for part in self._offsets.ranges(start, end)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the rows of *partition* as Arrow batches."""
        options = self._options
        # After a failure the read continues from the offset of its last row.
        columns = list(dict.fromkeys([*self._schema.fieldNames(), "queue_offset"]))
        wanted_rows = options.read.rows.row_filter().mapping()
        reader = RetryingReader(
            options.read.address,
            RetryDeadline(options.unreachable_timeout),
            fail_on_data_loss=options.fail_on_data_loss,
            pull_range=lambda wanted: pull.pull(wanted, columns=columns, filter=wanted_rows),
        )
        schema = arrow_schema(self._schema)
        for rows, found in reader.read(partition.range):
            yield record_batch(found, rows, schema)

    def commit(self, end: Offsets) -> None:
        """Write the next offsets to the display group; a failure is logged."""
        if self._options.group is None:
            return
        if self._group is None:
            from ferromq.spark.stream.group import GroupOffsets  # noqa: PLC0415 (gRPC slows the start of Python workers)

            self._group = GroupOffsets(self._options.group, self._options.read.address.tls)
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
            monitor = QueueMonitor(read.address, read.topics, RetryDeadline(self._options.unreachable_timeout))
            self._made = StreamOffsets(self._options, monitor)
        return self._made
