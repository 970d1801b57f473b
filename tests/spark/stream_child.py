"""
A driver that is killed: reads the topic orders into a Parquet directory for each batch, until it is stopped.

    stream_child.py ENDPOINT DIRECTORY [BATCH MOMENT]

In batch number BATCH it kills itself and its Java with -9, at MOMENT `inside` (rows are in the sink's process and not
written) or `written` (they are written, and Spark does not know). Before that, a worker kills itself once, in the
middle of a partition. Without BATCH it prints the number of each batch and goes on.
"""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException

from ferromq import spark
from ferromq.spark import FerromqSource
from ferromq.spark.stream.reader import StreamReader, parse_options

SETTINGS = {
    "spark.log.level": "OFF",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "1",
}
OPTIONS = {"topic": "orders", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "40"}


class MortalReader(StreamReader):
    """Kills its worker once, after Spark has received rows of a partition."""

    def read(self, partition: Any) -> Iterator[Any]:
        """Yield rows, and be killed."""
        mark = Path(os.environ["FERROMQ_TEST_MARK"])
        for batch in super().read(partition):
            yield batch
            try:
                mark.touch(exist_ok=False)
            except FileExistsError:
                continue
            os.kill(os.getpid(), signal.SIGKILL)


class MortalSource(FerromqSource):
    """The format with mortal readers."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(…)`."""
        return "mortal"

    def streamReader(self, schema: Any) -> MortalReader:  # noqa: N802 (Spark's name)
        """Return the reader."""
        return MortalReader(parse_options(self.options), schema)


def main(endpoint: str, directory: Path, fatal: int, moment: str) -> None:
    """Run the query."""
    os.environ["FERROMQ_TEST_MARK"] = str(directory / "worker-died")
    session = spark.session("local[2,4]", config=SETTINGS)
    session.dataSource.register(MortalSource)
    java = session._jvm.java.lang.ProcessHandle.current().pid()

    def die() -> None:
        os.kill(java, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)

    def write(frame: Any, number: int) -> None:
        if number >= fatal and moment == "inside":
            frame.collect()
            die()
        frame.write.mode("overwrite").parquet(str(directory / "sink" / str(number)))
        if number >= fatal and moment == "written":
            die()
        sys.stdout.write(f"{number}\n")
        sys.stdout.flush()

    frame = session.readStream.format("mortal").options(endpoint=endpoint, **OPTIONS).load()
    writer = frame.select("queue_id", "queue_offset", "body").writeStream.foreachBatch(write)
    writer = writer.option("checkpointLocation", str(directory / "checkpoint"))
    while True:
        try:
            writer.start().awaitTermination()
        except StreamingQueryException as error:
            # Spark gives a Python process ten seconds to start, which a busy machine may not.
            if "connect back" not in str(error):
                raise


if __name__ == "__main__":
    main(
        sys.argv[1],
        Path(sys.argv[2]),
        int(sys.argv[3]) if len(sys.argv) > 3 else sys.maxsize,
        sys.argv[4] if len(sys.argv) > 4 else "",
    )
