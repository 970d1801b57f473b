"""
The steps of `ferromq demo`, on real rows.

The demo sends every row of the `flights` table to an embedded broker, consumes them in a group, queries two of them,
reads the topic with Spark, and kills a broker with -9 while rows are sent to it. Each step is a function that compares
the result with the table and raises `Mismatch` if they differ. It uses the public API only, so it is also an example.
"""

import contextlib
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import ferromq
from ferromq.demo import flights as data
from ferromq.demo import killed_broker
from ferromq.terminal.progress import Progress

TOPIC = "flights"
QUEUES = 8
KILLED_ROWS = 20_000
PATIENCE = timedelta(seconds=20)
"""Missing messages count as lost after this long without a new one."""


@dataclass(frozen=True, slots=True)
class Step:
    """A line of the table at the end of the demo."""

    what: str
    count: int
    seconds: float
    checked: str


def main(rows: int | None = None) -> int:
    """Run all steps and print the table; return 1 if a row differs or is missing, or a step fails."""
    begin = time.monotonic()
    try:
        steps = run(rows)
    except data.Mismatch as mismatch:
        _say(f"MISMATCH: {mismatch}")
        return 1
    except (ferromq.FerromqError, ImportError, RuntimeError) as error:
        _say(f"failed: {type(error).__name__}: {error}")
        return 1
    print_table(steps)
    print(f"All rows were as expected, in {time.monotonic() - begin:.0f} s.")  # noqa: T201
    return 0


def run(rows: int | None = None) -> list[Step]:
    """Do the steps with the first *rows* rows, by default all."""
    from ferromq.spark.requirements import find_java, require  # noqa: PLC0415 (the command line imports this module)

    require("pyarrow", "pandas")
    find_java()
    steps = []
    _say("Reading the flights table")
    flights = data.load(rows)
    with tempfile.TemporaryDirectory(prefix="ferromq-demo-") as directory:
        with ferromq.embedded(Path(directory) / "store") as mq:
            _say(f"Name server at {mq.namesrv} and broker at {mq.endpoint}, in this process, in {directory}")
            message_ids, step = send(mq, flights)
            steps += [step, consume(mq, flights, message_ids), query(mq, flights, message_ids)]
            steps.append(read_with_spark(mq, flights))
        steps.append(survive_kill(data.load(min(len(flights), KILLED_ROWS)), Path(directory) / "killed"))
    return steps


def send(mq: ferromq.Embedded, flights: data.Flights) -> tuple[list[str], Step]:
    """Send every row; return the message ids in the order of the rows."""
    with mq.admin() as admin:
        admin.create_topic(TOPIC, queues=QUEUES)
    with mq.producer() as producer, Progress("sending", len(flights)) as progress:
        receipts = producer.send_all(TOPIC, flights.messages(), on_progress=progress.update)
        message_ids = [receipt.message_id for receipt in receipts]
        progress.update(len(message_ids))
        seconds = progress.seconds
    data.expect("receipts", len(message_ids), len(flights))
    data.expect("different message ids", len(set(message_ids)), len(flights))
    return message_ids, Step("sent", len(flights), seconds, f"each acknowledged by the broker, {QUEUES} queues")


def consume(mq: ferromq.Embedded, flights: data.Flights, message_ids: list[str]) -> Step:
    """Receive and acknowledge every row in a group, and compare each with the table."""
    row_of = {message_id: row for row, message_id in enumerate(message_ids)}
    bodies: dict[int, bytes] = {}
    again = 0
    with mq.consumer("demo", TOPIC) as consumer, Progress("consuming", len(flights)) as progress:
        for message in until_quiet(consumer, lambda: len(bodies) == len(flights)):
            row = row_of.get(message.message_id)
            if row is None:
                raise data.Mismatch(f"message {message.message_id} was received, but never sent")
            again += row in bodies
            data.expect(f"tag of row {row}", message.tag, flights.tags[row])
            data.expect(f"keys of row {row}", tuple(message.keys), (flights.keys[row],))
            bodies[row] = message.body
            message.ack()
            progress.update(len(bodies))
        seconds = progress.seconds
    data.expect("rows received", len(bodies), len(flights))
    flights.compare(bodies[row] for row in range(len(flights)))
    return Step("consumed", len(bodies), seconds, f"each row equals the table's, {again:,} redelivered")


def until_quiet(consumer: ferromq.Consumer, is_complete: Callable[[], bool]) -> Iterator[ferromq.MessageView]:
    """Yield messages of *consumer* until they are complete and no more follow, or none came for a while."""
    last = time.monotonic()
    while True:
        complete = is_complete()
        messages = consumer.receive(256, wait=timedelta(milliseconds=200 if complete else 2000))
        if messages:
            last = time.monotonic()
        elif complete or time.monotonic() - last > PATIENCE.total_seconds():
            return
        yield from messages


def query(mq: ferromq.Embedded, flights: data.Flights, message_ids: list[str]) -> Step:
    """Find the rows of one key, and one row by its message id."""
    row = len(flights) // 2
    begin = time.monotonic()
    with mq.admin() as admin:
        by_key = admin.query_by_key(TOPIC, flights.keys[row])
        by_id = admin.query_by_id(TOPIC, message_ids[row])
    seconds = time.monotonic() - begin
    wanted = {message_ids[other] for other, key in enumerate(flights.keys) if key == flights.keys[row]}
    data.expect(f"messages with key {flights.keys[row]}", {message.message_id for message in by_key}, wanted)
    if by_id is None:
        raise data.Mismatch(f"no message has the id {message_ids[row]} of row {row}")
    data.expect(f"message {message_ids[row]}", by_id.body, flights.bodies[row])
    return Step("queried", 2, seconds, f"key {flights.keys[row]} and message id {message_ids[row]}")


def read_with_spark(mq: ferromq.Embedded, flights: data.Flights) -> Step:
    """Count the flights and average the departure delay of each carrier, in Spark and in the table."""
    from pyspark.sql import functions as sql  # noqa: PLC0415 (only this step needs it)

    from ferromq import spark  # noqa: PLC0415

    _say("Starting Spark")
    warnings.filterwarnings("ignore", module="pyspark")
    session = spark.session(
        config={
            "spark.log.level": "ERROR",
            "spark.sql.shuffle.partitions": "2",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": str(sys.stderr.isatty()).lower(),
        }
    )
    try:
        begin = time.monotonic()
        topic = session.read.format("ferromq").option("endpoint", mq.endpoint).option("topic", TOPIC).load()
        flight = sql.from_json(topic.body.cast("string"), "carrier STRING, dep_delay DOUBLE").alias("flight")
        carriers = (
            topic.select(flight)
            .groupBy("flight.carrier")
            .agg(sql.count("*").alias("flights"), sql.avg("flight.dep_delay").alias("delay"))
            .collect()
        )
        seconds = time.monotonic() - begin
    finally:
        session.stop()
    found = {row.carrier: (row.flights, row.delay) for row in carriers}
    flights.compare_carriers(found)
    print("\ncarrier  flights  mean departure delay")  # noqa: T201
    for carrier, (count, delay) in sorted(found.items()):
        print(f"{carrier:<7} {count:>8,}  {'' if delay is None else f'{delay:.2f} min':>20}")  # noqa: T201
    return Step(
        "Spark read", sum(count for count, _ in found.values()), seconds, f"{len(found)} carriers as in the table"
    )


def survive_kill(flights: data.Flights, directory: Path) -> Step:
    """Kill a broker with synchronous flush while it takes rows, and find every acknowledged row in its store."""
    with Progress("killing", len(flights)) as progress:
        acknowledged, seconds = killed_broker.send_and_kill(directory, len(flights), progress.update)
    with ferromq.embedded(directory) as mq, mq.consumer("after-kill", killed_broker.TOPIC) as consumer:
        found: dict[tuple[int, int], ferromq.MessageView] = {}
        for message in until_quiet(consumer, lambda: acknowledged.keys() <= found.keys()):
            found[message.queue_id, message.queue_offset] = message
            message.ack()
    killed_broker.compare(flights, acknowledged, found)
    checked = f"killed with -9; all are in the reopened store, in order ({len(found):,} stored)"
    return Step("acknowledged", len(acknowledged), seconds, checked)


def print_table(steps: list[Step]) -> None:
    """Print the steps: what was done, how often, how fast, and what was checked."""
    print(f"\n{'step':<13}{'count':>9}{'seconds':>9}{'per second':>12}  checked")  # noqa: T201
    for step in steps:
        rate = f"{step.count / step.seconds:,.0f}"
        print(f"{step.what:<13}{step.count:>9,}{step.seconds:>9.2f}{rate:>12}  {step.checked}")  # noqa: T201


def _say(text: str) -> None:
    with contextlib.suppress(BrokenPipeError):
        print(text, file=sys.stderr, flush=True)  # noqa: T201
