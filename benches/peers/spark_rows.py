"""
Measure how many rows of 1 KiB a second Spark reads from ferromq and writes to it, and Kafka through Spark's own source.

    spark_rows.py KAFKA_JARS KAFKA_ADDRESS NAMESRV ENDPOINT STORE_DIRECTORY TOPIC ROWS ROUNDS

One session, `local[2]`, reads the same rows by turns, each round beginning with another source, so that all see the
same machine and the same warm Java. Lengths of all bodies are summed, so that each one really arrives. Prints a line
`engine load<TAB>value<TAB>unit` for each figure; Kafka's figure is set beside each way of ours to do the same.

A stream query of either reads the messages at its start (Trigger.AvailableNow, no limit) into the same sink with a
new checkpoint. It is timed from its start to its end, and its batches alone, without the start.
"""

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ferromq import spark

Load = Callable[[Any], Any]
Seconds = dict[str, float]
"""By the part of the work: the whole has no name."""


Measure = Callable[[Any, Load, int], Seconds]

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

    def to_kafka(self, frame: Any) -> None:
        """Write with Spark's own sink for Kafka."""
        options = {"kafka.bootstrap.servers": self._kafka, "topic": f"{self._topic}-written", "kafka.acks": "1"}
        frame.selectExpr("body AS value").write.format("kafka").options(**options).save()

    def to_ferromq(self, frame: Any) -> None:
        """Write, each row at least once."""
        self._write(frame, {})

    def to_ferromq_once(self, frame: Any) -> None:
        """Write, each row once."""
        self._write(frame, {"delivery": "exactly-once", "writerId": f"bench-{time.time_ns()}"})

    def _write(self, frame: Any, delivery: dict[str, str]) -> None:
        options = {"endpoint": self._grpc["endpoint"], "topic": f"{self._topic}-written", **delivery}
        frame.write.format("ferromq").options(**options).mode("append").save()

    def files(self, reader: Any) -> Any:
        """Read the files of the commit log."""
        return reader.format("ferromq-log").options(columns="body", **self._files).load()


def batch(session: Any, load: Load, rows: int) -> Seconds:
    """Return the seconds of one batch query over all rows."""
    start = time.perf_counter()
    found = load(session.read).selectExpr("count(1) AS count", "sum(length(body)) AS bytes").first()
    elapsed = time.perf_counter() - start
    check(found["count"], found["bytes"], rows)
    return {"": elapsed}


def stream(session: Any, load: Load, rows: int) -> Seconds:
    """Return the seconds of one stream query that reads what there is and ends, and of its batches."""
    sums: list[tuple[int, int]] = []

    def take(frame: Any, _epoch: int) -> None:
        row = frame.selectExpr("count(1) AS count", "sum(length(body)) AS bytes").first()
        sums.append((row["count"], row["bytes"] or 0))

    with tempfile.TemporaryDirectory() as checkpoint:
        writer = load(session.readStream).writeStream.foreachBatch(take).option("checkpointLocation", checkpoint)
        start = time.perf_counter()
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        elapsed = time.perf_counter() - start
    check(sum(count for count, _ in sums), sum(size for _, size in sums), rows)
    batches = sum(progress.durationMs["triggerExecution"] for progress in query.recentProgress) / 1000
    return {"": elapsed, ", its batches alone": batches}


def check(count: int, size: int, rows: int) -> None:
    """Fail if a source lost or repeated rows."""
    if (count, size) != (rows, rows * BODY_BYTES):
        raise SystemExit(f"{count} rows of {size} bytes came instead of {rows}")


def write(session: Any, save: Load, rows: int) -> Seconds:
    """Return the seconds of one batch that writes rows which Spark makes."""
    body = f"to_binary(repeat('x', {BODY_BYTES}), 'utf-8') AS body"
    frame = session.range(0, rows, 1, 4).selectExpr(body)
    start = time.perf_counter()
    save(frame)
    return {"": time.perf_counter() - start}


def loads(peers: Peers) -> Iterator[tuple[Measure, Load, dict[str, Load]]]:
    """Yield each measure, Kafka's way and, by name, the ways of ferromq that are set beside it."""
    ways = {
        "spark: batch read": peers.remoting,
        "spark: batch read over gRPC": peers.grpc,
        "spark: batch read, all columns": peers.all_columns,
        "spark: batch read from the files of the log": peers.files,
    }
    yield batch, peers.kafka, ways
    yield stream, peers.kafka, {"spark: stream read": peers.remoting, "spark: stream read over gRPC": peers.grpc}
    written = {"spark: batch write": peers.to_ferromq, "spark: batch write, exactly once": peers.to_ferromq_once}
    yield write, peers.to_kafka, written


def turn(session: Any, measure: Measure, sources: dict[str, Load], rows: int, number: int) -> dict[str, Seconds]:
    """Return the time of each source in round *number*, which rotates the order."""
    names = list(sources)
    first = number % len(names)
    return {name: measure(session, sources[name], rows) for name in names[first:] + names[:first]}


def main() -> None:
    """Measure by turns; the first round warms up and is not printed."""
    jars, kafka, namesrv, endpoint, directory, topic, rows, rounds = sys.argv[1:]
    settings = {**SETTINGS, "spark.jars": ",".join(map(str, sorted(Path(jars).glob("*.jar"))))}
    session = spark.session("local[2]", config=settings)
    peers = Peers(kafka, namesrv, endpoint, directory, topic)
    for number in range(int(rounds) + 1):
        for measure, kafka_does, ways in loads(peers):
            taken = turn(session, measure, {"kafka": kafka_does, **ways}, int(rows), number)
            theirs = taken.pop("kafka")
            for load, ours in taken.items() if number else ():
                for part, seconds in ours.items():
                    print(f"kafka {load}{part}\t{int(rows) / theirs[part]}\trow/s", flush=True)
                    print(f"ferromq {load}{part}\t{int(rows) / seconds}\trow/s", flush=True)
    session.stop()


if __name__ == "__main__":
    main()
