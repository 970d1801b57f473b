"""
A program whose writer is killed -9 once: `batch` in a task that Spark runs again, `stream` together with the driver.

killed_writer.py batch|stream ENDPOINT DIRECTORY
"""

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pyspark import TaskContext

from ferromq import spark
from ferromq.spark.write.send import Sender
from ferromq.spark.write.writer import BATCH_ID, BatchWriter, Sent, StreamWriter, parse_options

BATCHES = 3
"""The writer is killed when it asks for that many: all but the last are stored then, and that one is under way."""


def dying(batches: Iterator[Any], settle: Callable[[], None], marker: Path, pids: list[int]) -> Iterator[Any]:
    """Yield batches; kill *pids* and this process in the middle, but only once. *settle* waits until all is stored."""
    for number, batch in enumerate(batches):
        if number == BATCHES - 1:
            settle()
        if number == BATCHES and not marker.exists():
            marker.touch()
            for pid in (*pids, os.getpid()):
                os.kill(pid, signal.SIGKILL)
        yield batch


class DyingBatch(BatchWriter):
    """Kills its worker in partition 1."""

    marker: Path
    sender: Sender

    def _sender(self, partition: int, epoch: int, writer: str | None) -> Sender:
        self.sender = super()._sender(partition, epoch, writer)
        return self.sender

    def settle(self) -> None:
        """Wait until all accepted messages are stored."""
        self.sender.finish()

    def write(self, iterator: Iterator[Any]) -> Sent:
        """Send, and be killed meanwhile."""
        if TaskContext.get().partitionId() == 1:
            iterator = dying(iterator, self.settle, self.marker, [])
        return super().write(iterator)


class DyingStream(StreamWriter):
    """Kills its worker and the driver in epoch 1."""

    marker: Path
    drivers: list[int]
    sender: Sender

    def _sender(self, partition: int, epoch: int, writer: str | None) -> Sender:
        self.sender = super()._sender(partition, epoch, writer)
        return self.sender

    def settle(self) -> None:
        """Wait until all accepted messages are stored."""
        self.sender.finish()

    def write(self, iterator: Iterator[Any]) -> Sent:
        """Send, and be killed meanwhile."""
        if TaskContext.get().getLocalProperty(BATCH_ID) == "1":
            iterator = dying(iterator, self.settle, self.marker, self.drivers)
        return super().write(iterator)


class Dying(spark.FerromqSource):
    """The format with a writer that is killed, as the options `marker` and `drivers` say."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(…)`."""
        return "dying"

    def _options(self) -> tuple[dict[str, str], Path, list[int]]:
        given = dict(self.options)
        return given, Path(given.pop("marker")), [int(pid) for pid in given.pop("drivers").split()]

    def writer(self, schema: Any, overwrite: bool) -> DyingBatch:
        """Return the writer of a batch."""
        given, marker, _ = self._options()
        writer = DyingBatch(parse_options(given, is_stream=False, overwrite=overwrite), schema)
        writer.marker = marker
        return writer

    def streamWriter(self, schema: Any, overwrite: bool) -> DyingStream:  # noqa: N802
        """Return the writer of a stream."""
        given, marker, drivers = self._options()
        writer = DyingStream(parse_options(given, is_stream=True, overwrite=overwrite), schema)
        writer.marker, writer.drivers = marker, drivers
        return writer


def batch(session: Any, endpoint: str, directory: Path) -> dict[str, int]:
    """Write the same rows with both deliveries; in each, one task is killed."""
    frame = session.range(0, 4000, 1, 2).selectExpr("cast(id as string) body")
    for topic, options in (("once", {"delivery": "exactly-once", "writerId": "w"}), ("each", {})):
        given = {"endpoint": endpoint, "topic": topic, "marker": directory / topic, "drivers": "", **options}
        frame.write.format("dying").options(**given).mode("append").save()
    return {"killed": sum((directory / topic).exists() for topic in ("once", "each"))}


def stream(session: Any, endpoint: str, directory: Path) -> dict[str, int]:
    """Write three files, one epoch each."""
    lines = session.readStream.option("maxFilesPerTrigger", 1).text(str(directory / "source"))
    given = {"endpoint": endpoint, "topic": "stream", "delivery": "exactly-once"}
    writer = lines.selectExpr("value body").writeStream.format("dying").options(**given)
    # The driver has two processes: Python, and Java, which runs the query.
    java = session.sparkContext._jvm.java.lang.ProcessHandle.current().pid()
    writer = writer.options(marker=directory / "marker", drivers=f"{java} {os.getpid()}")
    writer = writer.queryName("lines").option("checkpointLocation", str(directory / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return {"batch": query.lastProgress["batchId"]}


def main() -> None:
    """Run the command line and print the result."""
    what, endpoint, directory = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    config = {"spark.sql.execution.arrow.maxRecordsPerBatch": "200", "spark.ui.enabled": "false"}
    session = spark.session("local[2,3]", config=config)
    session.dataSource.register(Dying)
    said = {"batch": batch, "stream": stream}[what](session, endpoint, directory)
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()
    session.stop()


if __name__ == "__main__":
    main()
