"""
The writers of the data source `ferromq` as Spark calls them.

Each task sends its rows as they come and returns how many it sent; nothing is undone where another one fails. What a
task that is run again sends again is stored again, unless the brokers are told to know it (`delivery`).
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
"""The local property of a task that names its stream query: the same after a restart from the checkpoint."""
BATCH_ID = "streaming.sql.batchId"
_PLACED = frozenset({"message_group", "priority"})
"""Columns by which a broker chooses the queue of a row."""


def parse_options(options: Any, *, is_stream: bool, overwrite: bool) -> WriteOptions:
    """Read Spark's *options*. Raises ConfigError, also for a mode that would replace what a topic holds."""
    if overwrite:
        raise ConfigError("mode 'overwrite' cannot be: a topic is only added to; allowed: .mode('append')")
    return WriteOptions.parse(options, is_stream=is_stream)


@dataclass(frozen=True)
class Sent(WriterCommitMessage):  # type: ignore[misc]
    """What a task sent."""

    partition: int
    rows: int
    bytes: int


class _Writer:
    """What both writers do; carried by Spark from the driver to its tasks."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        check_schema(schema, options.topic)
        self._options = options
        self._is_placed = not _PLACED.isdisjoint(schema.fieldNames())
        self._layouts: dict[str, Layout] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Look at the queues on the way from the driver to the tasks, which then need not do so themselves."""
        if self._layouts is None:
            topic = self._options.topic
            is_fixed = self._options.is_once and topic is not None
            self._layouts = layouts(self._options, [str(topic)]) if is_fixed else {}
        return self.__dict__

    def _sender(self, partition: int, epoch: int, writer: str | None) -> Sender:
        cutter: Batching = AtLeastOnceBatching()
        if writer is not None and self._options.is_once:
            layouts = FirstLayouts(writer, epoch, self._layouts or {}, is_placed=self._is_placed)
            cutter = ExactlyOnceBatching(partition, layouts)
        return Sender(self._options, cutter)

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
            error.add_note(f"partition {partition}; what it sent before stays in the topics")
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
        """Log what was sent."""
        _tell("batch written", messages)

    def abort(self, messages: Sequence[Sent | None]) -> None:
        """Log what was sent: it is in the topics, though the job failed."""
        _tell("batch failed; what its tasks sent stays", messages)


class StreamWriter(_Writer, DataSourceStreamArrowWriter):  # type: ignore[misc]
    """Writes a stream, epoch for epoch."""

    def write(self, iterator: Iterator[Any]) -> Sent:
        """Send the rows of one partition of an epoch; runs in a worker."""
        context = TaskContext.get()
        query, batch = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
        if self._options.is_once and (query is None or batch is None):
            raise ConfigError(
                f"'delivery' 'exactly-once' needs the properties {QUERY_ID} and {BATCH_ID} of a stream's task; "
                f"they are {query!r} and {batch!r}: write batches, with 'writerId', in foreachBatch"
            )
        return self._write(iterator, context, int(batch or 0), query)

    def commit(self, messages: Sequence[Sent | None], batchId: int) -> None:  # noqa: N803 (Spark's name)
        """Log what was sent."""
        _tell(f"epoch {batchId} written", messages)

    def abort(self, messages: Sequence[Sent | None], batchId: int) -> None:  # noqa: N803
        """Log what was sent: it is in the topics, though the epoch failed."""
        _tell(f"epoch {batchId} failed; what its tasks sent stays", messages)


def _tell(what: str, sent: Sequence[Sent | None]) -> None:
    known = [message for message in sent if message is not None]
    rows, size = sum(message.rows for message in known), sum(message.bytes for message in known)
    _log.info("%s tasks=%d of %d rows=%d bytes=%d", what, len(known), len(sent), rows, size)
