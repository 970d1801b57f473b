"""What Spark hands to a task that reads a queue."""

from dataclasses import dataclass

from pyspark.sql.datasource import InputPartition

from ferromq.spark.read.plan import QueueRange


@dataclass(frozen=True)
class QueuePartition(InputPartition):  # type: ignore[misc]
    """The range of one queue that one task reads."""

    range: QueueRange
