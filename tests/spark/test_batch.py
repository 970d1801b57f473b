"""`spark.read.format("ferromq")`: Spark reads the messages that were sent."""

import json
import socket
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from dispatching import dispatched
from pyspark.errors import AnalysisException

import ferromq
from ferromq.spark.options import ClusterAddress
from ferromq.spark.read import pull
from ferromq.spark.topics import Topics


def read(session: Any, mq: ferromq.Embedded, topic: str = "orders", **options: object) -> Any:
    """Return the topic as a DataFrame."""
    reader = session.read.format("ferromq").option("endpoint", mq.endpoint).option("topic", topic)
    return reader.options(**{name: str(value) for name, value in options.items()}).load()


def send(mq: ferromq.Embedded, count: int, topic: str = "orders", size: int = 10) -> list[ferromq.SendReceipt]:
    """Send messages that differ in every field."""
    messages = [
        ferromq.Message(
            b"%d " % number + b"x" * size,
            keys=[f"key-{number}", "all"][: number % 3],
            tag=f"tag-{number % 5}" if number % 7 else None,
            properties={"number": str(number), "gruß": "schön"} if number % 2 else None,
        )
        for number in range(count)
    ]
    with mq.producer() as producer:
        receipts = list(producer.send_all(topic, messages))
    dispatched(mq)
    return receipts


def test_every_column_is_read(session: Any, mq: ferromq.Embedded) -> None:
    """Each message is one row, with the fields of its producer and of the broker."""
    begin = datetime.now(UTC).replace(tzinfo=None) - timedelta(seconds=1)
    receipts = send(mq, 1000)
    rows = {row.message_id: row for row in read(session, mq).collect()}
    assert len(rows) == 1000
    for number, receipt in enumerate(receipts):
        row = rows[receipt.message_id]
        assert (row.topic, row.queue_id, row.queue_offset) == ("orders", receipt.queue_id, receipt.queue_offset)
        assert bytes(row.body) == b"%d " % number + b"x" * 10
        assert row["keys"] == [f"key-{number}", "all"][: number % 3]
        assert row.tag == (f"tag-{number % 5}" if number % 7 else None)
        assert row.properties == ({"number": str(number), "gruß": "schön"} if number % 2 else {})
        assert row.born_host == socket.gethostname()
        assert row.store_host.startswith("127.0.0.1:")
        assert row.reconsume_times == 0
        assert row.sys_flag == 0
    assert len({row.physical_offset for row in rows.values() if row.physical_offset is not None}) == 1000
    stored = (
        read(session, mq).selectExpr("min(unix_micros(born_timestamp))", "max(unix_micros(store_timestamp))").first()
    )
    earliest, latest = (datetime.fromtimestamp(micros / 1e6, UTC).replace(tzinfo=None) for micros in stored)
    assert begin < earliest <= latest < datetime.now(UTC).replace(tzinfo=None) + timedelta(seconds=1)


def test_large_ranges_are_split_and_nothing_is_read_twice(
    session: Any, mq: ferromq.Embedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every offset is in one partition, and results end at the partition's end."""
    receipts = send(mq, 5000, size=2000)
    frame = read(session, mq, maxRecordsPerPartition=300, minPartitions=20)
    places = frame.select("queue_id", "queue_offset").collect()
    assert sorted((row.queue_id, row.queue_offset) for row in places) == sorted(
        (receipt.queue_id, receipt.queue_offset) for receipt in receipts
    )
    assert frame.rdd.getNumPartitions() >= 20


def test_offsets_choose_the_rows(session: Any, mq: ferromq.Embedded) -> None:
    """The first offset is included, the last one is not; other queues are read completely."""
    send(mq, 2000)
    held = {queue.queue_id: queue.max_offset for queue in pull.queues(ClusterAddress(mq.endpoint), Topics(("orders",)))}
    queue_id = max(held, key=lambda queue_id: held[queue_id])
    starting, ending = json.dumps({str(queue_id): 3}), json.dumps({str(queue_id): 7})
    frame = read(session, mq, startingOffsets=starting, endingOffsets=ending)
    counts = {row.queue_id: row["count"] for row in frame.groupBy("queue_id").count().collect()}
    assert counts == {**{other: end for other, end in held.items() if end}, queue_id: 4}
    assert read(session, mq, startingOffsets="latest").count() == 0


def test_a_schema_chooses_the_columns(session: Any, mq: ferromq.Embedded) -> None:
    """Fewer columns, in another order, give the same rows."""
    send(mq, 50)
    reader = session.read.format("ferromq").schema("body BINARY, queue_offset BIGINT")
    frame = reader.option("endpoint", mq.endpoint).option("topic", "orders").load()
    assert frame.columns == ["body", "queue_offset"]
    assert frame.count() == 50


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"startingOffsets": "first"}, "option 'startingOffsets' is 'first'; allowed: earliest, latest, or JSON"),
        ({"endingOffsets": '{"0": 12345}'}, "option 'endingOffsets' is 12345 for queue 0 of topic 'orders'"),
        ({"topc": "orders"}, "option 'topc' (given 'orders') is not known; did you mean 'topic'?"),
        ({"endpoint": "nowhere"}, "option 'endpoint' is 'nowhere'; allowed: host:port"),
    ],
)
def test_a_wrong_option_reaches_the_user(
    session: Any, mq: ferromq.Embedded, options: dict[str, str], words: str
) -> None:
    """Spark's error has the option, its value and the allowed values."""
    send(mq, 10)
    with pytest.raises(AnalysisException) as raised:
        read(session, mq, **options).count()
    assert words in str(raised.value)


def test_a_wrong_schema_reaches_the_user(session: Any, mq: ferromq.Embedded) -> None:
    """Spark's error has the column, its type and the allowed type."""
    reader = session.read.format("ferromq").schema("body STRING")
    frame = reader.option("endpoint", mq.endpoint).option("topic", "orders")
    with pytest.raises(AnalysisException, match="column 'body' of the schema is string; allowed: binary"):
        frame.load().count()
