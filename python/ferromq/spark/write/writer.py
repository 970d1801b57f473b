"""
The writers of the data source `ferromq` as Spark calls them.

Each task sends its rows and returns their number. If another task fails, sent rows stay. A repeated task sends its rows
again; with exactly-once delivery the brokers drop the duplicates.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from ferromq.errors import ConfigError, FerromqError
from ferromq.spark.write.layouts import FirstLayouts
from ferromq.spark.write.options import WriteOptions
from ferromq.spark.write.rows import check_schema, read_rows
from ferromq.spark.write.send import AtLeastOnceBatching, Batching, ExactlyOnceBatching, Sender, layouts

if TYPE_CHECKING:
    from ferromq.spark.write.plan import Layout

_log = logging.getLogger("ferromq.spark")

QUERY_ID = "sql.streaming.queryId"
"""Local property of a task with the id of its stream query, which a restart from the checkpoint keeps."""
BATCH_ID = "streaming.sql.batchId"
_PLACED = frozenset({"message_group", "priority"})
"""Columns that let the broker choose the queue of a row."""


def parse_options(options: Any, *, is_stream: bool, overwrite: bool) -> WriteOptions:
    """Parse Spark's *options*. Raises ConfigError, also for mode 'overwrite'."""
    if overwrite:
        raise ConfigError("mode 'overwrite' is not supported: a topic only grows; allowed: .mode('append')")
    return WriteOptions.parse(options, is_stream=is_stream)


@dataclass(frozen=True)
class Sent(WriterCommitMessage):  # type: ignore[misc]
    """The totals of a task."""

    partition: int
    rows: int
    bytes: int


class _Writer:
    """The part that both writers share; Spark pickles it for the tasks."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        check_schema(schema, options.topic)
        self._options = options
        self._is_placed = not _PLACED.isdisjoint(schema.fieldNames())
        self._layouts: dict[str, Layout] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Pickle with the layouts of the queues, so that the driver queries them once for all tasks."""
        if self._layouts is None:
            topic = self._options.topic
            is_fixed = self._options.is_once and topic is not None
            self._layouts = layouts(self._options, [str(topic)]) if is_fixed else {}
        return self.__dict__

    def _sender(self, partition: int, epoch: int, writer: str | None) -> Sender:
        batching: Batching = AtLeastOnceBatching()
        if writer is not None and self._options.is_once:
            layouts = FirstLayouts(writer, epoch, self._layouts or {}, is_placed=self._is_placed)
            batching = ExactlyOnceBatching(partition, layouts)
        return Sender(self._options, batching)

    def _write(self, batches: Iterator[Any], context: Any, epoch: int, writer: str | None) -> Sent:
        options, partition = self._options, context.partitionId()
        numbered = f"{writer}/{partition}/{epoch}" if options.is_once else None
        sender = self._sender(partition, epoch, writer)
        first = size = 0
        try:
            for batch in batches:
                sender.send(read_rows(batch, first, options.topic, numbered), first, batch.num_rows)
                first += batch.num_rows
                size += batch.nbytes
            sender.finish()
        except FerromqError as error:
            error.add_note(f"partition {partition}; the rows it sent before stay in the topics")
            raise
        finally:
            sender.close()
        return Sent(partition, first, size)


class BatchWriter(_Writer, DataSourceArrowWriter):  # type: ignore[misc]
    """Writes a DataFrame."""

    def write(self, iterator: Iterator[Any]) -> Sent:
        """Send the rows of one partition; runs in a worker."""
        return self._write(iterator, TaskContext.get(), 0, self._options.writer)

    def commit(self, messages: Sequence[Sent | None]) -> None:
        """Log the totals."""
        _log_totals("batch written", messages)

    def abort(self, messages: Sequence[Sent | None]) -> None:
        """Log the totals: sent rows stay in the topics although the job failed."""
        _log_totals("batch failed; rows already sent stay", messages)


class StreamWriter(_Writer, DataSourceStreamArrowWriter):  # type: ignore[misc]
    """Writes a stream, epoch by epoch."""

    def write(self, iterator: Iterator[Any]) -> Sent:
        """Send the rows of one partition of an epoch; runs in a worker."""
        context = TaskContext.get()
        query, batch = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
        if self._options.is_once and (query is None or batch is None):
            raise ConfigError(
                f"'delivery' 'exactly-once' needs the properties {QUERY_ID} and {BATCH_ID} of a stream's task; "
                f"they are {query!r} and {batch!r}: use foreachBatch, and write batches with 'writerId'"
            )
        return self._write(iterator, context, int(batch or 0), query)

    def commit(self, messages: Sequence[Sent | None], batchId: int) -> None:  # noqa: N803 (Spark's name)
        """Log the totals."""
        _log_totals(f"epoch {batchId} written", messages)

    def abort(self, messages: Sequence[Sent | None], batchId: int) -> None:  # noqa: N803
        """Log the totals: sent rows stay in the topics although the epoch failed."""
        _log_totals(f"epoch {batchId} failed; rows already sent stay", messages)


def _log_totals(what: str, sent: Sequence[Sent | None]) -> None:
    known = [message for message in sent if message is not None]
    rows, size = sum(message.rows for message in known), sum(message.bytes for message in known)
    _log.info("%s tasks=%d of %d rows=%d bytes=%d", what, len(known), len(sent), rows, size)
