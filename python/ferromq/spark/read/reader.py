"""
The batch reader of the data source `ferromq` as Spark calls it.

It makes partitions in the driver and Arrow batches in the workers. `plan` cuts the partitions, `pull` asks the brokers.
"""

from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from ferromq.spark.arrow import arrow_schema, record_batch
from ferromq.spark.options import ReadOptions
from ferromq.spark.partition import QueuePartition
from ferromq.spark.read import plan, pull
from ferromq.spark.read.push_down import PushingReader


class BatchReader(PushingReader):
    """Reads the messages that the topics hold when the query is planned."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self.rows = options.rows.row_filter()

    def partitions(self) -> list[QueuePartition]:
        """Ask the brokers for queues and offsets, and cut the ranges into partitions."""
        options = self._options
        queues = pull.queues(options.address, options.topics)
        ranges = plan.ranges(queues, options.starting, options.ending, pull.offsets_by_time)
        ranges = plan.narrow(ranges, self.rows, pull.offsets_by_time)
        most, least = options.max_records_per_partition, options.min_partitions
        return [QueuePartition(part) for part in plan.partitions(ranges, max_records=most, min_partitions=least)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the rows of *partition* as Arrow batches; runs in a worker."""
        if not isinstance(partition, QueuePartition):  # for a read without partitions Spark makes an empty one
            return
        schema = arrow_schema(self._schema)
        found = pull.pull(partition.range, columns=self._schema.fieldNames(), filter=self.rows.mapping())
        for rows, columns in found:
            yield record_batch(columns, rows, schema)
