"""`spark.readStream.format("ferromq")`: what is sent is what a query reads, each message once."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ferromq
from ferromq.spark.stream_plan import flat


def send(mq: ferromq.Embedded, topic: str, numbers: range) -> list[tuple[int, int]]:
    """Send a message for each number, and return where they are."""
    with mq.producer() as producer:
        receipts = list(producer.send_all(topic, [ferromq.Message(b"%d" % number) for number in numbers]))
    return [(receipt.queue_id, receipt.queue_offset) for receipt in receipts]


class Sink:
    """Remembers the numbers that each batch brought."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []

    def __call__(self, frame: Any, _: int) -> None:
        """Take a batch."""
        self.batches.append(sorted(int(bytes(row.body)) for row in frame.collect()))

    @property
    def numbers(self) -> list[int]:
        """Return all numbers."""
        return sorted(number for batch in self.batches for number in batch)


def stream(session: Any, mq: ferromq.Embedded, **options: object) -> Any:
    """Return a stream of the topic orders, from its beginning if nothing else is said."""
    given = {"endpoint": mq.endpoint, "startingOffsets": "earliest", "unreachableTimeout": "1s", **options}
    if not given.keys() & {"topics", "topicPattern"}:
        given.setdefault("topic", "orders")
    reader = session.readStream.format("ferromq")
    return reader.options(**{name: str(value) for name, value in given.items()}).load()


@contextmanager
def run(frame: Any, sink: Any, checkpoint: Path, **trigger: Any) -> Iterator[Any]:
    """Run a query until the block ends."""
    writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(checkpoint))
    query = (writer.trigger(**trigger) if trigger else writer).start()
    try:
        yield query
    finally:
        query.stop()


def sources(progress: list[Any]) -> list[Any]:
    """Return what each progress says of the only source."""
    return [source for batch in progress for source in batch.sources]


def run_to_end(frame: Any, sink: Any, checkpoint: Path) -> list[Any]:
    """Read what is there now, and return the progress of every batch."""
    with run(frame, sink, checkpoint, availableNow=True) as query:
        query.awaitTermination()
        return list(query.recentProgress)


def test_available_now_reads_each_message_once_in_batches_of_the_limit(
    session: Any, mq: ferromq.Embedded, tmp_path: Path
) -> None:
    """What is there when it starts is read, whole batches at most as large as allowed; the next run reads the rest."""
    send(mq, "orders", range(100))
    sink = Sink()
    progress = run_to_end(stream(session, mq, maxOffsetsPerTrigger=30), sink, tmp_path / "c")
    ends = [(flat(json.loads(source.endOffset)), flat(json.loads(source.latestOffset))) for source in sources(progress)]
    assert [sum(end.values()) for end, _ in ends] == [0, 30, 60, 90, 100]
    assert [sum(latest.values()) for _, latest in ends] == [100] * 5
    assert sink.numbers == list(range(100))
    assert max(map(len, sink.batches)) == 30
    send(mq, "orders", range(100, 110))
    run_to_end(stream(session, mq), sink, tmp_path / "c")
    assert sink.numbers == list(range(110))
