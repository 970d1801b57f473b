"""A topic of a live broker of Apache RocketMQ in Spark: the same rows as from its files and from ferromq."""

import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import ferromq
from ferromq._ferromq import RemotingClient
from ferromq.config.namesrv import NameServerConfig
from ferromq.namesrv.server import NamesrvController
from ferromq.spark.options import ClusterAddress
from ferromq.spark.read import pull
from ferromq.spark.topics import Topics

sys.path.insert(0, str(Path(__file__).parents[1] / "compat"))
import compat_peer
from java_processes import JavaBroker

REASON = compat_peer.missing()
pytestmark = [pytest.mark.java, pytest.mark.skipif(bool(REASON), reason=str(REASON))]

TOPIC, TICKS = "orders", "ticks"
SEND, UPDATE_TOPIC = 310, 17
COMPRESSED = 1
QUEUES = 3
NAME = "broker-java"
# A Java broker writes its checkpoint once a minute by default.
OFTEN = {"flushCommitLogThoroughInterval": 200, "flushConsumeQueueThoroughInterval": 200}

Row = dict[str, Any]


class Java(NamedTuple):
    """A live broker of RocketMQ, registered with a name server."""

    broker: JavaBroker
    namesrv: str

    def send(self, body: bytes, topic: str = TOPIC, *, queue: int = 0, sys_flag: int = 0, **properties: str) -> None:
        """Send as a client of RocketMQ 4 does."""
        text = "".join(f"{name}\x01{value}\x02" for name, value in properties.items())
        fields = {
            "a": "PG",
            "b": topic,
            "c": "TBW102",
            "d": "4",
            "e": str(queue),
            "f": str(sys_flag),
            "g": "1700000000123",
        }
        self.call(SEND, {**fields, "h": "7", "i": text, "j": "2", "k": "false", "m": "false"}, body)

    def create(self, topic: str) -> None:
        """Create a topic."""
        numbers = {"readQueueNums": str(QUEUES), "writeQueueNums": str(QUEUES), "perm": "6", "order": "false"}
        fields = {"topic": topic, "defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0"}
        self.call(UPDATE_TOPIC, {**fields, **numbers})

    def call(self, code: int, fields: dict[str, str], body: bytes = b"") -> None:
        """Send a request to the broker, and fail on an error."""
        client = RemotingClient()
        try:
            answer, remark, *_ = client.call(self.broker.address, code, fields, body, timeout=30)
        finally:
            client.close()
        assert answer == 0, remark


@pytest.fixture
def java(tmp_path: Path) -> Iterator[Java]:
    """Run a broker of RocketMQ with a ferromq name server."""
    names = NamesrvController(NameServerConfig(listen="127.0.0.1:0"))
    try:
        with JavaBroker(tmp_path / "java", names.address, brokerName=NAME, **OFTEN) as broker:
            java = Java(broker, names.address)
            java.create(TOPIC)
            yield java
    finally:
        names.close()


def send_all_kinds(java: Java) -> int:
    """Send messages that differ in every column, and return their expected number."""
    for number in range(60):
        java.send(
            b"body %d" % number, queue=number % QUEUES, KEYS=f"k{number} all", TAGS="ab"[number % 2], n=str(number)
        )
    java.send(b"\x00\xff\xfe", UNIQ_KEY="7F0000010000")
    java.send("ü".encode() * 3_000, queue=1, gruß="schön 🦀")
    java.send(zlib.compress(b"packed " * 500), queue=2, sys_flag=COMPRESSED, UNIQ_KEY="7F0000010001", KEYS="k")
    java.send(b"later", DELAY="1", TAGS="late")
    return 64


def wait_for(where: ClusterAddress, count: int) -> None:
    """Wait until the queues of the topic hold *count* messages."""
    pause = threading.Event()
    for _ in range(600):
        if sum(queue.max_offset for queue in pull.queues(where, Topics((TOPIC,)))) == count:
            return
        pause.wait(0.1)
    raise AssertionError(f"the topic does not come to hold {count} messages")


def place(row: Row) -> tuple[int, int]:
    """Return the position of a row."""
    return row["queue_id"], row["queue_offset"]


def batch(session: Any, source: str, **options: object) -> list[Row]:
    """Return the topic's rows in their order."""
    given = {name: str(value) for name, value in options.items()}
    frame = session.read.format(source).options(topic=TOPIC, **given).load()
    return sorted((row.asDict() for row in frame.collect()), key=place)


def stream(session: Any, begin: Callable[[Any], Any], namesrv: str, checkpoint: Path) -> list[Row]:
    """Continue a query up to the current end, and return its new rows."""
    rows: list[Row] = []
    frame = session.readStream.format("ferromq").options(namesrv=namesrv, topic=TOPIC, maxOffsetsPerTrigger="40").load()
    writer = frame.writeStream.foreachBatch(lambda found, _: rows.extend(row.asDict() for row in found.collect()))
    begin(writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)).awaitTermination()
    return sorted(rows, key=place)


@pytest.mark.timeout(600)
def test_a_live_java_brokers_topic_reads_like_its_files_and_our_broker(
    session: Any, java: Java, begin: Callable[[Any], Any], tmp_path: Path
) -> None:
    """Batch, stream, log files of the live store; then a ferromq broker serves the store and the stream goes on."""
    count = send_all_kinds(java)
    wait_for(ClusterAddress(namesrv=java.namesrv), count)
    rows = batch(session, "ferromq", namesrv=java.namesrv)
    assert len(rows) == count
    assert {row["body"] for row in rows} >= {b"later", b"packed " * 500, b"\x00\xff\xfe", "ü".encode() * 3_000}
    assert all(row[name] is not None for row in rows for name in row if name != "tag")
    assert batch(session, "ferromq", namesrv=java.namesrv, tags="late,a") == [
        r for r in rows if r["tag"] in {"late", "a"}
    ]

    checkpoint = tmp_path / "checkpoint"
    assert stream(session, begin, java.namesrv, checkpoint) == rows
    java.send(b"one more", queue=1)
    wait_for(ClusterAddress(namesrv=java.namesrv), count + 1)
    (one,) = stream(session, begin, java.namesrv, checkpoint)
    assert (one["body"], one["queue_id"]) == (b"one more", 1)
    rows = sorted([*rows, one], key=place)

    assert log_once_flushed(session, java, len(rows)) == rows
    java.broker.stop()
    assert batch(session, "ferromq-log", path=java.broker.store) == rows
    with ferromq.embedded(java.broker.store, name=NAME) as mq:
        wait_for(ClusterAddress(mq.endpoint), count + 1)
        assert batch(session, "ferromq", namesrv=mq.namesrv) == rows
        assert batch(session, "ferromq", endpoint=mq.endpoint) == rows
        with mq.producer() as producer:
            producer.send(TOPIC, b"from ferromq's days")
        wait_for(ClusterAddress(mq.endpoint), count + 2)
        assert [row["body"] for row in stream(session, begin, mq.namesrv, checkpoint)] == [b"from ferromq's days"]


def log_once_flushed(session: Any, java: Java, count: int) -> list[Row]:
    """
    Return the rows of the live store's files once they are all known to be flushed.

    Java notes the time of the last flushed message; only what is three seconds older is surely there.
    """
    pause = threading.Event()
    java.create(TICKS)
    for _ in range(60):
        java.send(b"tick", TICKS)
        rows = batch(session, "ferromq-log", path=java.broker.store)
        if len(rows) == count:
            break
        assert len(rows) < count
        pause.wait(0.5)
    return rows
