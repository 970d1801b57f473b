"""
How many rows of 1 KiB a second does Spark get, from ferromq in its three ways and from Kafka through Spark's own source?

    spark_rows.py KAFKA_JARS KAFKA_ADDRESS FERROMQ_ENDPOINT STORE_DIRECTORY TOPIC ROWS ROUNDS

One session, `local[2]`, reads the same rows by turns, so that all see the same machine and the same warm Java. Lengths of all bodies
are summed, so that each one really arrives. Prints a line `engine load<TAB>value<TAB>unit` for each round.
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
    """The sources, each as a function from a reader to the loaded frame, and the column of its bodies."""

    def __init__(self, kafka: str, endpoint: str, directory: str, topic: str) -> None:
        self._kafka, self._endpoint, self._directory, self._topic = kafka, endpoint, directory, topic

    def kafka(self, reader: Any) -> Any:
        """Spark's own source for Kafka."""
        options = {"kafka.bootstrap.servers": self._kafka, "subscribe": self._topic, "startingOffsets": "earliest"}
        return reader.format("kafka").options(**options).load().selectExpr("value AS body")

    def broker(self, reader: Any) -> Any:
        """The broker, asked by each task."""
        options = {"endpoint": self._endpoint, "topic": self._topic, "startingOffsets": "earliest"}
        return reader.format("ferromq").options(**options).load()

    def files(self, reader: Any) -> Any:
        """The files of its commit log."""
        return reader.format("ferromq-log").options(path=self._directory, topic=self._topic).load()


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


def measurements(peers: Peers) -> Iterator[tuple[str, str, Callable[..., float], Callable[[Any], Any]]]:
    """Yield who is measured in what, in the order of a round."""
    yield "kafka", "spark: batch read", batch, peers.kafka
    yield "ferromq", "spark: batch read", batch, peers.broker
    yield "kafka", "spark: batch read from the files of the log", batch, peers.kafka
    yield "ferromq", "spark: batch read from the files of the log", batch, peers.files
    yield "kafka", "spark: stream read", stream, peers.kafka
    yield "ferromq", "spark: stream read", stream, peers.broker


def main() -> None:
    """Measure by turns; the first round warms up and is not printed."""
    jars, kafka, endpoint, directory, topic, rows, rounds = sys.argv[1:]
    settings = {**SETTINGS, "spark.jars": ",".join(map(str, sorted(Path(jars).glob("*.jar"))))}
    session = spark.session("local[2]", config=settings)
    peers = Peers(kafka, endpoint, directory, topic)
    for number in range(int(rounds) + 1):
        for engine, load, measure, source in measurements(peers):
            seconds = measure(session, source, int(rows))
            if number:
                print(f"{engine} {load}\t{int(rows) / seconds}\trow/s", flush=True)
    session.stop()


if __name__ == "__main__":
    main()
