"""
`replay`: messages of an archive, a topic or a log, sent to a topic again: at a rate, in their rhythm, or at once.

Order: messages of one queue of the source are sent in their order and land in one queue of the target. Delivery: at
least once. With a *state* directory a replay that was killed goes on where it was known to be: what it sent since the
last note, a second or one batch of rows before, is sent again. With a *writer* brokers store once what is sent again.
"""

import argparse
import hashlib
import json
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 (PySpark's own habit)

from ferromq.errors import ConfigError, FerromqError
from ferromq.message import Message
from ferromq.pipeline import _frame, _pace, _source
from ferromq.pipeline._dead import ORIGINS
from ferromq.pipeline._lanes import LaneSender
from ferromq.pipeline._pace import Pace
from ferromq.pipeline._positions import Positions, Queue
from ferromq.protocol import naming
from ferromq.protocol.endpoints import parse_endpoints
from ferromq.spark.write.rows import SEQUENCE

__all__ = ["replay"]

REPORT = "topic string, store_host string, queue_id int, sent long, sent_before long, next_offset long"
ORIGIN = "FERROMQ_ORIGIN_"
"""The properties that say what a message was begin with it: TOPIC, ID, HOST, QUEUE, OFFSET, BORN, STORED."""
_SAVE = 1.0
"""Seconds between two notes of how far it is."""
_LEFT_OUT = frozenset({*ORIGINS, SEQUENCE})
"""Properties that are not sent again: with the number of another write it would be taken for a duplicate."""
_WRITER = re.compile(r"[A-Za-z0-9_.:-]{1,100}\Z")


def replay(
    frame: DataFrame,
    endpoint: str,
    *,
    to: str | None = None,
    rate: float | None = None,
    speed: float | None = None,
    with_groups: bool = False,
    state: str | None = None,
    job: str = "",
    writer: str | None = None,
) -> DataFrame:
    """
    Send the rows of *frame*, which has the columns of the format, and return what was sent of each queue (`REPORT`).

    Body, keys, tag and properties are those of the row; what it was is in the properties `FERROMQ_ORIGIN_…`. It goes to
    the topic *to*, or to one of the same name, through the broker at *endpoint* (gRPC). *rate*: messages a second at
    most. *speed*: in the rhythm of the store times, 1 as it was, 2 twice as fast. With either of them one task sends
    all, in the order of store times; otherwise as many tasks as Spark likes have queues of their own.

    *with_groups* gives the messages of a queue a message group, which a topic of the type FIFO asks for.

    *state*: a directory that all machines share, where it is noted how far the replay is; *job* tells one replay from
    another. *writer*: each message is stored once, however often the replay is started with this name, which no other
    has; the limits are those of numbered messages. Raises ConfigError for wrong arguments; an error of a broker ends
    the task, which Spark may start again.
    """
    check_writer(writer)
    _pace.check(rate, speed)
    parse_endpoints(endpoint)
    if to is not None:
        naming.check_topic(to)
    job = f"{job} to {to or 'the same topics'}".strip()
    if state is not None:
        Positions(state, job)  # a directory of something else is an error before anything runs
    is_paced = rate is not None or speed is not None
    rows = _ordered(frame, is_paced=is_paced)

    def task(batches: Iterator[Any]) -> Iterator[Any]:
        context = TaskContext.get()
        number = context.partitionId() if context is not None else 0
        positions = None if state is None else Positions(state, job)
        with LaneSender(endpoint, with_groups=with_groups, writer=writer) as lanes:
            sender = _Sender(lanes, Pace(rate, speed), to, positions, number, writer=writer)
            for batch in batches:
                sender.send(batch.to_pydict())
            sender.save()
        yield sender.report()

    done = rows.mapInArrow(task, REPORT).collect()
    return frame.sparkSession.createDataFrame(done, REPORT)


def check_writer(name: str | None) -> None:
    """Raise ConfigError unless *name* is None or may be that of a writer."""
    if name is not None and not _WRITER.match(name):
        raise ConfigError(f"writer is {name!r}; allowed: 1 to 100 letters, digits and _ . : -")


def _ordered(frame: DataFrame, *, is_paced: bool) -> DataFrame:
    """Return the rows in the order of sending: by time `at` where they are paced, else queue by queue."""
    queue = Window.partitionBy("topic", "store_host", "queue_id").orderBy("queue_offset")
    # Where a broker's clock was set back, a message is due with the one before it.
    at = F.max(F.unix_micros("store_timestamp")).over(queue.rowsBetween(Window.unboundedPreceding, 0))
    names = ("topic", "store_host", "queue_id", "queue_offset", "message_id", "keys", "tag", "properties", "body")
    born = F.unix_millis("born_timestamp").alias("born")
    stored = F.unix_millis("store_timestamp").alias("stored")
    rows = frame.repartition("topic", "queue_id").select(*names, born, stored, at.alias("at"))
    if is_paced:
        return rows.repartition(1).sortWithinPartitions("at", "topic", "store_host", "queue_id", "queue_offset")
    return rows.sortWithinPartitions("topic", "queue_id", "at", "store_host", "queue_offset")


class _Sender:
    """Sends rows in their order, when they are due, and keeps count."""

    def __init__(
        self,
        lanes: LaneSender,
        pace: Pace,
        to: str | None,
        positions: Positions | None,
        task: int,
        *,
        writer: str | None,
    ) -> None:
        self._lanes, self._pace, self._to = lanes, pace, to
        self._positions, self._task, self._writer = positions, task, writer
        self._counts: dict[Queue, list[int]] = {}
        """Sent, sent before, and the next queue offset, of each queue."""
        self._seen: dict[Queue, int] = {}
        """The last queue offset of each queue."""
        self._saved = time.monotonic()

    def send(self, columns: Mapping[str, Sequence[Any]]) -> None:
        """Send the rows of *columns* that have not been sent; FerromqError names the place of one that cannot be."""
        rows = [row for row in range(len(columns["at"])) if self._is_new(columns, row)]
        for start, end in self._pace.slices([columns["at"][row] for row in rows]):
            try:
                self._send(columns, rows[start:end])
            except BaseException:
                self.save()
                raise
            if time.monotonic() - self._saved >= _SAVE:
                self.save()

    def save(self) -> None:
        """Note how far it is, where there is a place for it."""
        if self._positions is not None and self._counts:
            self._positions.save(self._task)
        self._saved = time.monotonic()

    def report(self) -> pa.RecordBatch:
        """Return what was sent."""
        rows = [(*queue, *counts) for queue, counts in sorted(self._counts.items())]
        kinds = [pa.string(), pa.string(), pa.int32(), pa.int64(), pa.int64(), pa.int64()]
        columns = zip(*rows, strict=True) if rows else [()] * len(kinds)
        arrays = [pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, [field.split()[0] for field in REPORT.split(", ")])

    def _is_new(self, columns: Mapping[str, Sequence[Any]], row: int) -> bool:
        queue, offset = _place(columns, row)
        counts = self._counts.setdefault(queue, [0, 0, 0])
        self._check_offset(queue, offset)
        if self._positions is None or offset >= self._positions.next_offset(queue):
            return True
        counts[1] += 1
        counts[2] = max(counts[2], offset + 1)
        return False

    def _check_offset(self, queue: Queue, offset: int) -> None:
        """Raise for an offset that comes twice: the second message would be taken for the first."""
        is_known_by_it = self._positions is not None or self._writer is not None
        if is_known_by_it and offset <= self._seen.get(queue, -1):
            raise FerromqError(
                f"{_words(queue, offset)}: there are two messages of this offset, as where a topic of RocketMQ is made "
                "anew; replay the time of each by itself, or without state and writer"
            )
        self._seen[queue] = offset

    def _send(self, columns: Mapping[str, Sequence[Any]], rows: Sequence[int]) -> None:
        topics: dict[str, list[int]] = {}
        for row in rows:
            topics.setdefault(self._to or columns["topic"][row], []).append(row)
        for topic, some in topics.items():
            self._lanes.send(
                topic,
                [
                    (f"queue-{columns['queue_id'][row]}", _message(columns, row, self._lanes, self._writer))
                    for row in some
                ],
            )
            for row in some:
                queue, offset = _place(columns, row)
                counts = self._counts[queue]
                counts[0] += 1
                counts[2] = offset + 1
                if self._positions is not None:
                    self._positions.note(queue, offset + 1)


def _place(columns: Mapping[str, Sequence[Any]], row: int) -> tuple[Queue, int]:
    queue = (columns["topic"][row], columns["store_host"][row], columns["queue_id"][row])
    return queue, columns["queue_offset"][row]


def _words(queue: Queue, offset: int) -> str:
    topic, host, queue_id = queue
    return f"topic {topic!r}, store host {host}, queue {queue_id}, queue offset {offset}"


@lru_cache(maxsize=4096)
def _numbered(writer: str, queue: Queue) -> str:
    """Return what the numbers of the messages of *queue* begin with: each queue of the source writes by itself."""
    digest = hashlib.blake2b(json.dumps(queue).encode(), digest_size=8).hexdigest()
    return f"{writer}:{digest}/{queue[2]}/0"


def _message(columns: Mapping[str, Sequence[Any]], row: int, lanes: LaneSender, writer: str | None = None) -> Message:
    queue, offset = _place(columns, row)
    topic, host, queue_id = queue
    origin = {
        "TOPIC": topic,
        "ID": columns["message_id"][row],
        "HOST": host,
        "QUEUE": queue_id,
        "OFFSET": offset,
        "BORN": columns["born"][row],
        "STORED": columns["stored"][row],
    }
    properties = {name: value for name, value in columns["properties"][row] or () if name not in _LEFT_OUT}
    if f"{ORIGIN}OFFSET" not in properties:  # of what is replayed again the first origin stays
        properties |= {f"{ORIGIN}{name}": str(value) for name, value in origin.items() if value is not None}
    if writer is not None:
        properties[SEQUENCE] = f"{_numbered(writer, queue)}/{offset}"
    try:
        if not columns["body"][row]:
            raise ValueError("the body is empty, and a producer cannot send that")  # noqa: TRY301 (named below)
        return Message(
            columns["body"][row],
            keys=columns["keys"][row] or None,
            tag=columns["tag"][row],
            properties=properties,
            message_group=f"queue-{queue_id}" if lanes.with_groups else None,
        )
    except ValueError as error:
        raise FerromqError(f"{_words(queue, offset)}: {error}; leave it out of what is replayed") from error


# --- the command -------------------------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    _source.add_arguments(parser)
    add = parser.add_argument
    add("--to", metavar="TOPIC", help="the topic to send to; else the one of the same name")
    add("--to-endpoint", metavar="HOST:PORT", help="the gRPC endpoint of a broker of it; else --endpoint")
    add("--rate", type=float, metavar="N", help="messages a second at most")
    add("--speed", type=float, metavar="X", help="in the rhythm of the store times: 1 as it was, 2 twice as fast")
    add("--with-groups", action="store_true", help="give messages a message group: for a topic of the type FIFO")
    add("--state", metavar="DIR", help="note there how far it is, and go on from there when it is started again")
    add(
        "--exactly-once",
        metavar="WRITER",
        dest="writer",
        help="store each message once, however often the replay is started with this name, which no other may have",
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    job = _source.describe(arguments)
    target = arguments.to_endpoint or arguments.endpoint
    if not target:
        raise ConfigError("no broker is given to send to; allowed: --to-endpoint HOST:PORT")
    if arguments.endpoint and not arguments.to_endpoint and arguments.to in {None, *arguments.topic.split(",")}:
        raise ConfigError(
            f"--to is {arguments.to!r}, where the messages come from; allowed: another topic, or --to-endpoint"
        )
    _pace.check(arguments.rate, arguments.speed)
    check_writer(arguments.writer)
    begin = time.monotonic()
    with _frame.started(arguments, "replay") as spark:
        frame = _source.read(spark, arguments)
        done = replay(
            frame,
            target,
            to=arguments.to,
            rate=arguments.rate,
            speed=arguments.speed,
            with_groups=arguments.with_groups,
            state=arguments.state,
            job=job,
            writer=arguments.writer,
        ).collect()
    seconds = time.monotonic() - begin
    summary = _frame.Summary(f"replay {arguments.topic}")
    sent = sum(row.sent for row in done)
    summary.add("sent", sent)
    summary.add("sent before", sum(row.sent_before for row in done))
    summary.add("queues", len(done))
    summary.add("seconds", round(seconds, 1))
    summary.show(arguments)
    return _frame.FINE


if __name__ == "__main__":
    sys.exit(_frame.main("replay"))
