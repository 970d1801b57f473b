"""The same rows through brokers, over either protocol, and from the files of their store."""

import json
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict, EqualTo, GreaterThanOrEqual, In, LessThan

import ferromq
from ferromq._ferromq import RemotingClient
from ferromq.spark.log.source import FerromqLogSource
from ferromq.spark.schema import COLUMNS
from ferromq.spark.source import FerromqSource

Table = Callable[..., Any]
Read = Callable[..., list[dict[str, Any]]]

TOPIC = "mixed"
SEND = 310
COMPRESSED = 1


def remote(mq: ferromq.Embedded, body: bytes, sys_flag: int = 0, topic: str = TOPIC, **properties: str) -> None:
    """Send as a client of RocketMQ 4 does."""
    text = "".join(f"{name}\x01{value}\x02" for name, value in properties.items())
    fields = {"a": "PG", "b": topic, "c": "TBW102", "d": "4", "e": "1", "f": str(sys_flag), "g": "1700000000123"}
    client = RemotingClient()
    try:
        code, remark, *_ = client.call(
            mq.remoting, SEND, {**fields, "h": "7", "i": text, "j": "2", "k": "false", "m": "false"}, body
        )
    finally:
        client.close()
    assert code == 0, remark


def send_everything(mq: ferromq.Embedded) -> int:
    """Send messages that differ in every column, and return their number."""
    mixed = [
        ferromq.Message(b"no keys"),
        ferromq.Message(b"one key", keys=["k"]),
        ferromq.Message(b"many keys", keys=[f"key-{number}" for number in range(50)], tag="a"),
        ferromq.Message(bytes(range(256)) * 20, tag="b", keys=["k", "all"]),
        ferromq.Message(b"\x00\xff\xfe", tag="täg", properties={"gruß": "schön 🦀", "empty-ish": " "}),
        ferromq.Message("ü".encode() * 10_000, properties={f"p{number}": str(number) for number in range(40)}),
    ]
    with mq.producer() as producer:
        producer.send_all(TOPIC, mixed * 5)
    with mq.admin() as admin:
        admin.create_topic("remote", 4)
        admin.alter_topic(TOPIC, message_type="DELAY")
    with mq.producer() as producer:
        for number in range(3):
            producer.send(TOPIC, b"later %d" % number, tag="late", keys=["l"], delay=60)
    for topic in (TOPIC, "remote"):
        remote(mq, b"", topic=topic, KEYS="k  two", TAGS="a")
        remote(mq, b"", topic=topic)
        remote(mq, zlib.compress(b"packed " * 500), COMPRESSED, topic, UNIQ_KEY="7F0000010001", KEYS="k")
        remote(mq, b"not packed", COMPRESSED, topic, UNIQ_KEY="7F0000010002")
        remote(mq, b"old \xf0\x9f", topic=topic, DELAY="1", TAGS="late")
    return 5 * len(mixed) + 3 + 5


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the store of the module's broker."""
    return tmp_path_factory.mktemp("store")


@pytest.fixture(scope="module")
def mq(store: Path) -> Iterator[tuple[ferromq.Embedded, int]]:
    """Serve a topic with all kinds of messages; delayed ones have been delivered."""
    with ferromq.embedded(store, flush="group", commit_log_file_size=64 << 10) as mq:
        count = send_everything(mq)
        mq.clock.advance(minutes=2)
        deadline = time.monotonic() + 50
        while sum(end for _, end in held(mq)) < count and time.monotonic() < deadline:
            time.sleep(0.05)
        yield mq, count


def held(mq: ferromq.Embedded) -> list[tuple[int, int]]:
    """Return min and max offset of the topic's queues."""
    queues = mq.store.queues().get(TOPIC, [])
    return [(mq.store.min_offset(TOPIC, queue), mq.store.max_offset(TOPIC, queue)) for queue in queues]


@pytest.fixture
def ways(mq: tuple[ferromq.Embedded, int], store: Path, table: Table) -> dict[str, Read]:
    """Return the sources, each a function that reads the topic with options and filters."""
    broker, _ = mq

    def way(source: type[Any], where: dict[str, object]) -> Read:
        def read(filters: list[Any] | None = None, **options: object) -> list[dict[str, Any]]:
            rows = table(source, {**where, **options}, filters or []).to_pylist()
            return sorted(rows, key=lambda row: (row["topic"], row["queue_id"], row["queue_offset"]))

        return read

    return {
        "grpc": way(FerromqSource, {"endpoint": broker.endpoint, "topic": TOPIC}),
        "remoting": way(FerromqSource, {"namesrv": broker.namesrv, "topic": TOPIC}),
        "log": way(FerromqLogSource, {"path": store, "topic": TOPIC}),
    }


def test_every_column_of_every_message_is_the_same(mq: tuple[ferromq.Embedded, int], ways: dict[str, Read]) -> None:
    """Keys or none, empty, compressed and binary bodies, delivered delays, tags, properties in Unicode."""
    _, count = mq
    log = ways["log"]()
    assert len(log) == count
    assert ways["grpc"]() == log
    assert ways["remoting"]() == log
    assert {row["body"] for row in log} >= {b"", b"packed " * 500, b"later 2", b"old \xf0\x9f", bytes(range(256)) * 20}
    assert not [row for row in log if None in [row[column] for column in COLUMNS if column != "tag"]]
    unicode = next(row for row in log if row["tag"] == "täg")
    assert dict(unicode["properties"]) == {"gruß": "schön 🦀", "empty-ish": " "}
    assert unicode["keys"] == []
    packed = next(row for row in log if row["message_id"] == "7F0000010001")
    assert (packed["keys"], packed["reconsume_times"], packed["sys_flag"]) == (["k"], 2, 0)
    # A producer with a wrong flag must not block other messages.
    wrong = next(row for row in log if row["message_id"] == "7F0000010002")
    assert (wrong["body"], wrong["sys_flag"]) == (b"not packed", COMPRESSED)


def test_filters_choose_the_same_rows_on_every_way(ways: dict[str, Read]) -> None:
    """By tag, queue, offset, time, or an option for tags and keys; exactly the matching rows."""
    whole = ways["log"]()
    moments = sorted(row["store_timestamp"] for row in whole)
    middle = moments[len(moments) // 2]
    cases: list[tuple[list[Any], dict[str, object], Callable[[dict[str, Any]], bool]]] = [
        ([In(("tag",), ("a", "late"))], {}, lambda row: row["tag"] in {"a", "late"}),
        ([EqualTo(("tag",), "täg")], {}, lambda row: row["tag"] == "täg"),
        ([EqualTo(("queue_id",), 1)], {}, lambda row: row["queue_id"] == 1),
        ([GreaterThanOrEqual(("queue_offset",), 2)], {}, lambda row: row["queue_offset"] >= 2),
        ([GreaterThanOrEqual(("store_timestamp",), middle)], {}, lambda row: row["store_timestamp"] >= middle),
        ([LessThan(("store_timestamp",), middle)], {}, lambda row: row["store_timestamp"] < middle),
        ([LessThan(("born_timestamp",), middle)], {}, lambda row: row["born_timestamp"] < middle),
        ([EqualTo(("topic",), "another")], {}, lambda _: False),
        ([], {"keys": "l,two"}, lambda row: bool({"l", "two"} & set(row["keys"]))),
        ([], {"tags": "b"}, lambda row: row["tag"] == "b"),
        ([], {"startingTimestamp": middle.isoformat()}, lambda row: row["store_timestamp"] >= middle),
        ([], {"endingTimestamp": middle.isoformat()}, lambda row: row["store_timestamp"] < middle),
    ]
    for filters, options, holds in cases:
        expected = [row for row in whole if holds(row)]
        for name, read in ways.items():
            assert read(filters, **options) == expected, (name, filters, options)


def test_columns_are_those_that_are_named(ways: dict[str, Read]) -> None:
    """From every source."""
    names = ["topic", "queue_id", "queue_offset", "keys"]
    expected = [{name: row[name] for name in names} for row in ways["log"]()]
    for read in ways.values():
        assert read(columns=",".join(names)) == expected


def test_several_topics_are_read_at_once(
    mq: tuple[ferromq.Embedded, int], ways: dict[str, Read], store: Path, table: Table
) -> None:
    """By list over either protocol, by pattern with a list of all topics; offsets name their topic."""
    broker, _ = mq
    log = table(FerromqLogSource, {"path": store, "topics": f"{TOPIC},remote"}).num_rows
    assert log > len(ways["log"]())
    listed = {"endpoint": broker.endpoint, "topics": f"{TOPIC},remote"}
    assert table(FerromqSource, listed).num_rows == log
    matched = {"namesrv": broker.namesrv, "topicPattern": "mix.*|remote"}
    assert table(FerromqSource, matched).num_rows == log
    starting = json.dumps({"remote": {"1": "latest"}})
    assert table(FerromqSource, {**listed, "startingOffsets": starting}).num_rows == len(ways["log"]())


def test_a_stream_gives_the_rows_and_columns_that_a_batch_does(
    mq: tuple[ferromq.Embedded, int], ways: dict[str, Read]
) -> None:
    """Tags, keys and columns work alike."""
    options = {"endpoint": mq[0].endpoint, "topic": TOPIC, "tags": "b,late", "columns": "message_id,tag"}
    source = FerromqSource(CaseInsensitiveDict(options))
    reader = source.streamReader(source.schema())
    start = reader.initialOffset()
    parts = reader.partitions(start, reader.latestOffset(start))
    rows = [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]
    reader.stop()
    expected = [{"message_id": row["message_id"], "tag": row["tag"]} for row in ways["log"](tags="b,late")]
    assert {row["tag"] for row in expected} == {"b", "late"}
    assert sorted(rows, key=str) == sorted(expected, key=str)
