"""
`replay`: send the messages of an archive, a topic or a log to a topic again.

Order: the messages of one source queue keep their order and go to one queue of the target. Delivery: at least once.
With a *state* directory a restarted replay continues from its last save, at most a second or one batch of rows before
it was killed, and sends those messages again. With a *writer* the brokers drop the duplicates.
"""

import hashlib
import json
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 (PySpark's own habit)

from ferromq.client.tls import Tls, TlsFile, check_tls
from ferromq.core.numbering import SEQUENCE
from ferromq.errors import ConfigError, FerromqError
from ferromq.message import Message
from ferromq.pipeline.command import shared
from ferromq.pipeline.command.parameters import Parameters
from ferromq.pipeline.command.summary import Summary
from ferromq.pipeline.inputs import row_source
from ferromq.pipeline.replaying import rate_limit
from ferromq.pipeline.replaying.ordered_sender import OrderedSender
from ferromq.pipeline.replaying.rate_limit import RateLimit
from ferromq.pipeline.replaying.sent_offsets import Queue, SentOffsets
from ferromq.protocol import naming
from ferromq.protocol.dead_letters import ORIGINS
from ferromq.protocol.endpoints import parse_endpoints

__all__ = ["replay"]

REPORT = "topic string, store_host string, queue_id int, sent long, sent_before long, next_offset long"
ORIGIN = "FERROMQ_ORIGIN_"
"""Prefix of the properties that describe the original: TOPIC, ID, HOST, QUEUE, OFFSET, BORN, STORED."""
_SAVE_INTERVAL = 1.0
"""Seconds between two saves of the progress."""
_LEFT_OUT = frozenset({*ORIGINS, SEQUENCE})
"""
Properties that are not sent again. With the sequence of its first write, a message would be dropped as a duplicate.
"""
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
    tls: bool | TlsFile | Tls = False,
) -> DataFrame:
    """
    Send the rows of *frame*, which has the columns of the format, and return a row for each queue (`REPORT`).

    A message keeps its body, keys, tag and properties; the properties `FERROMQ_ORIGIN_…` describe the original. It goes
    to the topic *to*, by default its own, through the broker at *endpoint* (gRPC). *rate* is the maximum number of
    messages a second. *speed* keeps the intervals of the store times, divided by it. With either of them, one task
    sends everything in the order of store times; otherwise Spark spreads the queues over tasks.

    *with_groups* gives the messages of a queue a message group, which a FIFO topic requires. *state* is a directory
    that all machines share; it holds the progress of the replay named *job*. With *writer*, a unique name, each message
    is stored once however often the replay is started; the limits of numbered messages apply. *tls* is that of
    `ferromq.Producer`; every node has its files.

    Raises ConfigError for wrong arguments. A broker's error ends the task, which Spark may run again.
    """
    check_writer(writer)
    rate_limit.check(rate, speed)
    parse_endpoints(endpoint)
    check_tls(tls)
    if to is not None:
        naming.check_topic(to)
    job = f"{job} to {to or 'the same topics'}".strip()
    if state is not None:
        SentOffsets(state, job)  # raises before Spark runs if the directory belongs to something else
    is_paced = rate is not None or speed is not None
    rows = _ordered(frame, is_paced=is_paced)

    def task(batches: Iterator[Any]) -> Iterator[Any]:
        context = TaskContext.get()
        number = context.partitionId() if context is not None else 0
        sent_offsets = None if state is None else SentOffsets(state, job)
        with OrderedSender(endpoint, with_groups=with_groups, writer=writer, tls=tls) as sender:
            task_replay = _TaskReplay(sender, RateLimit(rate, speed), to, sent_offsets, number, writer=writer)
            for batch in batches:
                task_replay.send(batch.to_pydict())
            task_replay.save()
        yield task_replay.report()

    done = rows.mapInArrow(task, REPORT).collect()
    return frame.sparkSession.createDataFrame(done, REPORT)


def check_writer(name: str | None) -> None:
    """Raise ConfigError unless *name* is None or a valid writer name."""
    if name is not None and not _WRITER.match(name):
        raise ConfigError(f"writer is {name!r}; allowed: 1 to 100 letters, digits and _ . : -")


def _ordered(frame: DataFrame, *, is_paced: bool) -> DataFrame:
    """Return the rows in the order of sending: by time `at` if *is_paced*, else queue by queue."""
    queue = Window.partitionBy("topic", "store_host", "queue_id").orderBy("queue_offset")
    # If a broker's clock was set back, a message is due with its predecessor.
    at = F.max(F.unix_micros("store_timestamp")).over(queue.rowsBetween(Window.unboundedPreceding, 0))
    names = ("topic", "store_host", "queue_id", "queue_offset", "message_id", "keys", "tag", "properties", "body")
    born = F.unix_millis("born_timestamp").alias("born")
    stored = F.unix_millis("store_timestamp").alias("stored")
    rows = frame.repartition("topic", "queue_id").select(*names, born, stored, at.alias("at"))
    if is_paced:
        return rows.repartition(1).sortWithinPartitions("at", "topic", "store_host", "queue_id", "queue_offset")
    return rows.sortWithinPartitions("topic", "queue_id", "at", "store_host", "queue_offset")


class _TaskReplay:
    """Sends the rows of one task when they are due, and counts them."""

    def __init__(
        self,
        sender: OrderedSender,
        limit: RateLimit,
        to: str | None,
        sent_offsets: SentOffsets | None,
        task: int,
        *,
        writer: str | None,
    ) -> None:
        self._sender, self._rate_limit, self._to = sender, limit, to
        self._sent_offsets, self._task, self._writer = sent_offsets, task, writer
        self._counts: dict[Queue, list[int]] = {}
        """Sent, sent before, and the next queue offset, of each queue."""
        self._seen: dict[Queue, int] = {}
        """The last queue offset of each queue."""
        self._saved = time.monotonic()

    def send(self, columns: Mapping[str, Sequence[Any]]) -> None:
        """Send the rows of *columns* that were not sent before. FerromqError names a message that cannot be sent."""
        rows = [row for row in range(len(columns["at"])) if self._is_new(columns, row)]
        for start, end in self._rate_limit.slices([columns["at"][row] for row in rows]):
            try:
                self._send(columns, rows[start:end])
            except BaseException:
                self.save()
                raise
            if time.monotonic() - self._saved >= _SAVE_INTERVAL:
                self.save()

    def save(self) -> None:
        """Save the progress, if the replay has a state directory."""
        if self._sent_offsets is not None and self._counts:
            self._sent_offsets.save(self._task)
        self._saved = time.monotonic()

    def report(self) -> pa.RecordBatch:
        """Return the rows of `REPORT`."""
        rows = [(*queue, *counts) for queue, counts in sorted(self._counts.items())]
        kinds = [pa.string(), pa.string(), pa.int32(), pa.int64(), pa.int64(), pa.int64()]
        columns = zip(*rows, strict=True) if rows else [()] * len(kinds)
        arrays = [pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, [field.split()[0] for field in REPORT.split(", ")])

    def _is_new(self, columns: Mapping[str, Sequence[Any]], row: int) -> bool:
        queue, offset = _place(columns, row)
        counts = self._counts.setdefault(queue, [0, 0, 0])
        self._check_offset(queue, offset)
        if self._sent_offsets is None or offset >= self._sent_offsets.next_offset(queue):
            return True
        counts[1] += 1
        counts[2] = max(counts[2], offset + 1)
        return False

    def _check_offset(self, queue: Queue, offset: int) -> None:
        """Raise for a repeated offset: the second message would be skipped as already sent."""
        is_identity = self._sent_offsets is not None or self._writer is not None
        if is_identity and offset <= self._seen.get(queue, -1):
            raise FerromqError(
                f"{_describe(queue, offset)}: there are two messages of this offset, as after a RocketMQ topic was "
                "deleted and created again; replay each time range by itself, or without state and writer"
            )
        self._seen[queue] = offset

    def _send(self, columns: Mapping[str, Sequence[Any]], rows: Sequence[int]) -> None:
        topics: dict[str, list[int]] = {}
        for row in rows:
            topics.setdefault(self._to or columns["topic"][row], []).append(row)
        with_groups, writer = self._sender.with_groups, self._writer
        for topic, some in topics.items():
            messages = [
                (f"queue-{columns['queue_id'][row]}", _message(columns, row, with_groups=with_groups, writer=writer))
                for row in some
            ]
            self._sender.send(topic, messages)
            for row in some:
                queue, offset = _place(columns, row)
                counts = self._counts[queue]
                counts[0] += 1
                counts[2] = offset + 1
                if self._sent_offsets is not None:
                    self._sent_offsets.record(queue, offset + 1)


def _place(columns: Mapping[str, Sequence[Any]], row: int) -> tuple[Queue, int]:
    queue = (columns["topic"][row], columns["store_host"][row], columns["queue_id"][row])
    return queue, columns["queue_offset"][row]


def _describe(queue: Queue, offset: int) -> str:
    topic, host, queue_id = queue
    return f"topic {topic!r}, store host {host}, queue {queue_id}, queue offset {offset}"


@lru_cache(maxsize=4096)
def _numbered(writer: str, queue: Queue) -> str:
    """Return the prefix of the sequences of *queue*: each queue of the source counts as a writer of its own."""
    digest = hashlib.blake2b(json.dumps(queue).encode(), digest_size=8).hexdigest()
    return f"{writer}:{digest}/{queue[2]}/0"


def _message(columns: Mapping[str, Sequence[Any]], row: int, *, with_groups: bool, writer: str | None) -> Message:
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
    if f"{ORIGIN}OFFSET" not in properties:  # a message that is replayed again keeps its first origin
        properties |= {f"{ORIGIN}{name}": str(value) for name, value in origin.items() if value is not None}
    if writer is not None:
        properties[SEQUENCE] = f"{_numbered(writer, queue)}/{offset}"
    try:
        if not columns["body"][row]:
            raise ValueError("the body is empty, which a producer cannot send")  # noqa: TRY301 (named below)
        return Message(
            columns["body"][row],
            keys=columns["keys"][row] or None,
            tag=columns["tag"][row],
            properties=properties,
            message_group=f"queue-{queue_id}" if with_groups else None,
        )
    except ValueError as error:
        raise FerromqError(f"{_describe(queue, offset)}: {error}; exclude this message from the replay") from error


# --- the command -------------------------------------------------------------------------------------------------


def add_arguments(parameters: Parameters) -> None:
    """Add the command's arguments."""
    row_source.add_arguments(parameters)
    add = parameters.option
    add("--to", metavar="TOPIC", help="topic to send to (default: the message's own)")
    add("--to-endpoint", metavar="HOST:PORT", help="gRPC endpoint of a broker to send to (default: --endpoint)")
    add("--rate", type=float, metavar="N", help="maximum number of messages a second")
    add("--speed", type=float, metavar="X", help="keep the intervals of the store times: 1 as stored, 2 twice as fast")
    add("--with-groups", is_flag=True, help="give messages a message group, as FIFO topics require")
    add("--state", metavar="DIR", help="save the progress there, and continue from it after a restart")
    add(
        "--exactly-once",
        "writer",
        metavar="WRITER",
        help="store each message once, however often the replay is started with this unique name",
    )


def run(arguments: SimpleNamespace) -> int:
    """Run the command and return its exit code."""
    job = row_source.describe(arguments)
    target = arguments.to_endpoint or arguments.endpoint
    if not target:
        raise ConfigError("no broker to send to; set --to-endpoint HOST:PORT")
    if arguments.endpoint and not arguments.to_endpoint and arguments.to in {None, *arguments.topic.split(",")}:
        raise ConfigError(f"--to is {arguments.to!r}, the topic that is read; allowed: another topic, or --to-endpoint")
    rate_limit.check(arguments.rate, arguments.speed)
    check_writer(arguments.writer)
    begin = time.monotonic()
    with shared.started(arguments, "replay") as spark:
        frame = row_source.read(spark, arguments)
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
            tls=row_source.tls(arguments),
        ).collect()
    seconds = time.monotonic() - begin
    summary = Summary(f"replay {arguments.topic}")
    sent = sum(row.sent for row in done)
    summary.add("sent", sent)
    summary.add("sent before", sum(row.sent_before for row in done))
    summary.add("queues", len(done))
    summary.add("seconds", round(seconds, 1))
    summary.show(arguments)
    return shared.OK


if __name__ == "__main__":
    sys.exit(shared.main("replay"))
