"""`spark.readStream.format("ferromq")`: a query reads each message once."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from dispatching import dispatched
from pyspark.errors import AnalysisException, StreamingQueryException

import ferromq
from ferromq.spark.stream.plan import flat
from ferromq.spark.stream.reader import HAS_ADMISSION

Begin = Callable[[Any], Any]

takes_limits = pytest.mark.skipif(not HAS_ADMISSION, reason="PySpark 4.1 asks data sources without a limit")


def send(mq: ferromq.Embedded, topic: str, numbers: range) -> list[tuple[int, int]]:
    """Send a message for each number, and return their positions."""
    with mq.producer() as producer:
        receipts = list(producer.send_all(topic, [ferromq.Message(b"%d" % number) for number in numbers]))
    dispatched(mq)
    return [(receipt.queue_id, receipt.queue_offset) for receipt in receipts]


class Sink:
    """Collects the numbers of each batch."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self._came = threading.Event()

    def __call__(self, frame: Any, _: int) -> None:
        """Take a batch."""
        self.batches.append(sorted(int(bytes(row.body)) for row in frame.collect()))
        self._came.set()

    def wait(self, query: Any, count: int) -> None:
        """Wait until as many numbers have come, or the query fails."""
        while len(self.numbers) < count:
            self._came.clear()
            if len(self.numbers) < count and not self._came.wait(1):
                assert query.isActive, query.exception()

    @property
    def numbers(self) -> list[int]:
        """Return all numbers."""
        return sorted(number for batch in self.batches for number in batch)


def stream(session: Any, mq: ferromq.Embedded, **options: object) -> Any:
    """Return a stream of the topic orders, by default from its beginning."""
    given = {"endpoint": mq.endpoint, "startingOffsets": "earliest", "unreachableTimeout": "1s", **options}
    if not given.keys() & {"topics", "topicPattern"}:
        given.setdefault("topic", "orders")
    reader = session.readStream.format("ferromq")
    return reader.options(**{name: str(value) for name, value in given.items()}).load()


@contextmanager
def run(begin: Begin, frame: Any, sink: Any, checkpoint: Path, **trigger: Any) -> Iterator[Any]:
    """Run a query until the block ends."""
    writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(checkpoint))
    query = begin(writer.trigger(**trigger) if trigger else writer)
    try:
        yield query
    finally:
        query.stop()


def sources(progress: list[Any]) -> list[Any]:
    """Return the only source of each progress."""
    return [source for batch in progress for source in batch.sources]


def run_to_end(begin: Begin, frame: Any, sink: Any, checkpoint: Path) -> list[Any]:
    """Read the current messages, and return the progress of every batch."""
    with run(begin, frame, sink, checkpoint, availableNow=True) as query:
        query.awaitTermination()
        return list(query.recentProgress)


@takes_limits
def test_available_now_reads_each_message_once_in_batches_of_the_limit(
    session: Any, mq: ferromq.Embedded, begin: Begin, tmp_path: Path
) -> None:
    """The current messages are read in batches within the limit; the next run reads the rest."""
    send(mq, "orders", range(100))
    sink = Sink()
    progress = run_to_end(begin, stream(session, mq, maxOffsetsPerTrigger=30), sink, tmp_path / "c")
    ends = [(flat(json.loads(source.endOffset)), flat(json.loads(source.latestOffset))) for source in sources(progress)]
    assert [sum(end.values()) for end, _ in ends] == [30, 60, 90, 100]
    assert [sum(latest.values()) for _, latest in ends] == [100] * 4
    assert sink.numbers == list(range(100))
    assert max(map(len, sink.batches)) == 30
    send(mq, "orders", range(100, 110))
    run_to_end(begin, stream(session, mq), sink, tmp_path / "c")
    assert sink.numbers == list(range(110))


def test_a_running_query_reads_new_messages_and_queues_and_shows_its_progress(
    session: Any, mq: ferromq.Embedded, begin: Begin, tmp_path: Path
) -> None:
    """Each message once; the group gets the next offsets to read, not the last ones read."""
    with mq.admin() as admin, mq.producer() as producer:
        admin.create_topic("orders", 1)
        producer.send("orders", b"0")
        sink = Sink()
        with run(begin, stream(session, mq, group="display"), sink, tmp_path / "c") as query:
            sink.wait(query, 1)
            admin.alter_topic("orders", queues=3)
            sent = [producer.send("orders", b"%d" % number) for number in range(1, 13)]
            sink.wait(query, 13)
            # The offsets of a batch are written when the next one is planned.
            sent.append(producer.send("orders", b"13"))
            sink.wait(query, 14)
            read = {receipt.queue_id: receipt.queue_offset + 1 for receipt in sent[:-1]}
            shown = {queue_id: mq.store.committed_offset("display", "orders", queue_id) for queue_id in read}
    assert sink.numbers == list(range(14))
    assert {queue_id: offset for queue_id, offset in shown.items() if offset} == read


def test_lost_messages_fail_a_query_or_are_skipped_by_option(
    session: Any, mq: ferromq.Embedded, begin: Begin, tmp_path: Path
) -> None:
    """The error names a topic that was created again; with the option the query goes on."""
    with mq.admin() as admin:
        admin.create_topic("orders", 1)  # all that is lost is behind the query's position
    send(mq, "orders", range(10))
    sink = Sink()
    run_to_end(begin, stream(session, mq), sink, tmp_path / "c")
    send(mq, "orders", range(10, 15))
    with mq.admin() as admin:
        admin.delete_topic("orders")
    send(mq, "orders", range(20, 23))
    with pytest.raises(StreamingQueryException) as raised:
        run_to_end(begin, stream(session, mq), sink, tmp_path / "c")
    assert "of topic 'orders' was to be read from queue offset" in str(raised.value)
    assert "'failOnDataLoss'" in str(raised.value)
    run_to_end(begin, stream(session, mq, failOnDataLoss="false"), sink, tmp_path / "c")
    assert sink.numbers == [*range(10), 20, 21, 22]


@takes_limits
def test_trigger_once_reads_all_that_is_there(session: Any, mq: ferromq.Embedded, begin: Begin, tmp_path: Path) -> None:
    """In one batch, whatever the limit; a wrong option is an error before that."""
    send(mq, "orders", range(9))
    sink = Sink()
    with run(begin, stream(session, mq, maxOffsetsPerTrigger=2), sink, tmp_path / "c", once=True) as query:
        query.awaitTermination()
    assert sink.batches == [list(range(9))]
    with pytest.raises(AnalysisException, match="'maxOffsetsPerTrigger' is '0'; allowed: a whole number from 1"):
        stream(session, mq, maxOffsetsPerTrigger=0)
