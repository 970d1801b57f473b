"""
Measure how many rows of 1 KiB a second Spark gets from ferromq, and from Kafka through Spark's own source.

    spark_rows.py KAFKA_JARS KAFKA_ADDRESS NAMESRV ENDPOINT STORE_DIRECTORY TOPIC ROWS ROUNDS

One session, `local[2]`, reads the same rows by turns, so that all see the same machine and the same warm Java. Lengths
of all bodies are summed, so that each one really arrives. Prints a line `engine load<TAB>value<TAB>unit` for each
figure; what Kafka does is set beside every way of ours to do the same.
"""

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ferromq import spark

BODY_BYTES = 1024
SETTINGS = {
    "spark.driver.memory": "4g",
    "spark.log.level": "ERROR",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


class Peers:
    """The sources: each takes a reader and returns the frame of the bodies."""

    def __init__(self, kafka: str, namesrv: str, endpoint: str, directory: str, topic: str) -> None:
        self._kafka, self._topic = kafka, topic
        self._remoting = {"namesrv": namesrv, "topic": topic, "startingOffsets": "earliest"}
        self._grpc = {"endpoint": endpoint, "topic": topic, "startingOffsets": "earliest"}
        self._files = {"path": directory, "topic": topic}

    def kafka(self, reader: Any) -> Any:
        """Read with Spark's own source for Kafka."""
        options = {"kafka.bootstrap.servers": self._kafka, "subscribe": self._topic, "startingOffsets": "earliest"}
        return reader.format("kafka").options(**options).load().selectExpr("value AS body")

    def remoting(self, reader: Any) -> Any:
        """Read from the broker over remoting."""
        return reader.format("ferromq").options(columns="body", **self._remoting).load()

    def grpc(self, reader: Any) -> Any:
        """Read from the broker over gRPC."""
        return reader.format("ferromq").options(columns="body", **self._grpc).load()

    def all_columns(self, reader: Any) -> Any:
        """Read from the broker over remoting, each column of the schema."""
        return reader.format("ferromq").options(**self._remoting).load()

    def files(self, reader: Any) -> Any:
        """Read the files of the commit log."""
        return reader.format("ferromq-log").options(columns="body", **self._files).load()


def batch(session: Any, load: Callable[[Any], Any], rows: int) -> float:
    """Return the seconds of one batch query over all rows."""
    start = time.perf_counter()
    found = load(session.read).selectExpr("count(1) AS count", "sum(length(body)) AS bytes").first()
    elapsed = time.perf_counter() - start
    check(found["count"], found["bytes"], rows)
    return elapsed


def stream(session: Any, load: Callable[[Any], Any], rows: int) -> float:
    """Return the seconds of one stream query that reads what there is and ends."""
    sums: list[tuple[int, int]] = []

    def take(frame: Any, _epoch: int) -> None:
        row = frame.selectExpr("count(1) AS count", "sum(length(body)) AS bytes").first()
        sums.append((row["count"], row["bytes"] or 0))

    with tempfile.TemporaryDirectory() as checkpoint:
        writer = load(session.readStream).writeStream.foreachBatch(take).option("checkpointLocation", checkpoint)
        start = time.perf_counter()
        writer.trigger(availableNow=True).start().awaitTermination()
        elapsed = time.perf_counter() - start
    check(sum(count for count, _ in sums), sum(size for _, size in sums), rows)
    return elapsed


def check(count: int, size: int, rows: int) -> None:
    """Stop where a source left rows out, or gave some twice."""
    if (count, size) != (rows, rows * BODY_BYTES):
        raise SystemExit(f"{count} rows of {size} bytes came instead of {rows}")


Measure = Callable[[Any, Callable[[Any], Any], int], float]


def loads(peers: Peers) -> Iterator[tuple[Measure, dict[str, Callable[[Any], Any]]]]:
    """Yield each measure and, by name, the ways of ferromq that are set beside Kafka's."""
    ways = {
        "spark: batch read": peers.remoting,
        "spark: batch read over gRPC": peers.grpc,
        "spark: batch read, all columns": peers.all_columns,
        "spark: batch read from the files of the log": peers.files,
    }
    yield batch, ways
    yield stream, {"spark: stream read": peers.remoting}


def main() -> None:
    """Measure by turns; the first round warms up and is not printed."""
    jars, kafka, namesrv, endpoint, directory, topic, rows, rounds = sys.argv[1:]
    settings = {**SETTINGS, "spark.jars": ",".join(map(str, sorted(Path(jars).glob("*.jar"))))}
    session = spark.session("local[2]", config=settings)
    peers = Peers(kafka, namesrv, endpoint, directory, topic)
    for number in range(int(rounds) + 1):
        for measure, ways in loads(peers):
            theirs = measure(session, peers.kafka, int(rows))
            for load, source in ways.items():
                ours = measure(session, source, int(rows))
                if number:
                    print(f"kafka {load}\t{int(rows) / theirs}\trow/s", flush=True)
                    print(f"ferromq {load}\t{int(rows) / ours}\trow/s", flush=True)
    session.stop()


if __name__ == "__main__":
    main()
