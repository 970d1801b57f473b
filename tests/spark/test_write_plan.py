"""Options, columns, rows and queues of the writer, without Spark."""

import datetime as dt
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DayTimeIntervalType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from ferromq import _ferromq
from ferromq._proto import messages as pb
from ferromq.core.routes import Queue
from ferromq.errors import ConfigError, RowError
from ferromq.message import Message
from ferromq.spark.write.options import WriteOptions
from ferromq.spark.write.plan import BLOCK, Layout, names_of, text_of
from ferromq.spark.write.rows import check_schema, read_rows

WHERE = {"endpoint": "127.0.0.1:8081"}


TYPES = {
    "binary": BinaryType(),
    "string": StringType(),
    "int": IntegerType(),
    "smallint": ShortType(),
    "bigint": LongType(),
    "timestamp": TimestampType(),
    "interval": DayTimeIntervalType(),
    "array<string>": ArrayType(StringType()),
    "array<int>": ArrayType(IntegerType()),
    "map<string,string>": MapType(StringType(), StringType()),
    "map<string,int>": MapType(StringType(), IntegerType()),
}


def schema(text: str) -> StructType:
    """Return the schema of a DataFrame; Spark's own parser would need Java."""
    columns = (column.split(" ") for column in text.split(", "))
    return StructType([StructField(name, TYPES[kind]) for name, kind in columns])


def rows(numbered: str | None = None, first: int = 0, to: str | None = "orders", **columns: Any) -> _ferromq.Rows:
    """Return the rows of a batch of these columns."""
    return read_rows(pa.record_batch(columns), first, to, numbered)


BORN = 1_700_000_000_000


def encoded(found: _ferromq.Rows, part: _ferromq.Part) -> bytes:
    """Return the request of a part, with placeholder ids."""
    ids = _ferromq.MessageIds.reserve(bytes(8), 0, len(part))
    return found.encode(part, ids, 3, BORN, "here", 1 << 20)


def messages(found: _ferromq.Rows) -> list[Any]:
    """Return all messages of the request, by row."""
    by_row = {}
    for part in found.lanes(256, 1 << 20):
        request = pb.SendMessageRequest.FromString(encoded(found, part))
        by_row |= dict(zip(part.numbers, request.messages, strict=True))
    return [by_row[row] for row in sorted(by_row)]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, ["endpoint", "8081"]),
        ({"endpoint": "x"}, ["endpoint", "'x'", "host:port"]),
        ({**WHERE, "topic": "a b"}, ["topic", "'a b'"]),
        ({**WHERE, "delivery": "once"}, ["delivery", "'once'", "exactly-once"]),
        ({**WHERE, "delivery": "exactly-once"}, ["writerId", "exactly-once"]),
        ({**WHERE, "delivery": "exactly-once", "writerId": "a/b"}, ["writerId", "'a/b'", "letters"]),
        ({**WHERE, "writerId": "w"}, ["writerId", "delivery"]),
        ({**WHERE, "timeout": "0"}, ["timeout", "'0'"]),
        ({"namesrv": "a:1"}, ["namesrv", "endpoint"]),
        ({**WHERE, "path": "orders"}, ["'path' is 'orders'", "option('topic'"]),
        ({**WHERE, "topc": "x"}, ["topc", "did you mean 'topic'"]),
    ],
)
def test_wrong_options_name_the_option_what_was_given_and_what_is_allowed(
    options: dict[str, str], words: list[str]
) -> None:
    """The message suffices to correct the option."""
    with pytest.raises(ConfigError) as caught:
        WriteOptions.parse(options, is_stream=False)
    assert all(word in str(caught.value) for word in words), caught.value


def test_a_stream_needs_no_writer_id() -> None:
    """The id of its query names it; Spark's own options are ignored."""
    options = WriteOptions.parse(
        {**WHERE, "delivery": "exactly-once", "queryName": "q", "checkpointLocation": "c"}, is_stream=True
    )
    assert options.is_once
    assert options.writer is None
    with pytest.raises(ConfigError, match="'writerId' is 'w', but the id of its query"):
        WriteOptions.parse({**WHERE, "delivery": "exactly-once", "writerId": "w"}, is_stream=True)


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ("body binary, topik string", ["'topik'", "did you mean 'topic'"]),
        ("topic string", ["'body' is missing"]),
        ("body int", ["'body' is int", "binary or string"]),
        ("body binary, keys array<int>", ["'keys'", "array<int>"]),
        ("body binary, properties map<string,int>", ["'properties'", "map<string,int>"]),
        ("body binary, priority string", ["'priority' is string"]),
        ("body binary", ["option 'topic' is missing"]),
    ],
)
def test_wrong_columns_are_refused_by_name(columns: str, words: list[str]) -> None:
    """A column that is missing, unknown or of another type."""
    with pytest.raises(ConfigError) as caught:
        check_schema(schema(columns), None)
    assert all(word in str(caught.value) for word in words), caught.value


def test_all_columns_are_taken() -> None:
    """Each allowed type, and the topic from the option or the column."""
    check_schema(
        schema(
            "topic string, body string, keys array<string>, tag string, properties map<string,string>, "
            "delivery_timestamp timestamp, delay interval, message_group string, priority smallint"
        ),
        None,
    )
    check_schema(schema("body binary, keys string, delay bigint"), "orders")


def test_a_row_becomes_the_message_its_columns_say() -> None:
    """Texts are UTF-8, nulls are omitted, times are kept to the millisecond."""
    at = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)
    found = rows(
        body=["é", "b", "c", "d"],
        topic=["other", None, None, None],
        keys=[["k1", "k2"], None, [], ["k"]],
        tag=["t", None, None, None],
        properties=pa.array(
            [[("a", "1"), ("FERROMQ_SEQUENCE", "x")], None, [], []], type=pa.map_(pa.string(), pa.string())
        ),
        delivery_timestamp=pa.array([None, at, None, None], type=pa.timestamp("us", "UTC")),
        message_group=[None, None, "g", None],
        delay=[None, None, None, 1500],
    )
    sent = messages(found)
    assert [message.topic.name for message in sent] == ["other", "orders", "orders", "orders"]
    first, second, third, fourth = sent
    system = first.system_properties
    assert (first.body, list(system.keys), system.tag) == ("é".encode(), ["k1", "k2"], "t")
    assert dict(first.user_properties) == {"a": "1"}
    assert second.system_properties.delivery_timestamp.ToMilliseconds() == int(at.timestamp() * 1000)
    assert third.system_properties.message_group == "g"
    assert fourth.system_properties.delivery_timestamp.ToMilliseconds() == BORN + 1500
    assert [part.numbers for part in found.lanes(256, 1 << 20)] == [[0], [1], [2], [3]]


def test_a_numbered_row_tells_its_sequence() -> None:
    """Numbers continue over the batches of a partition."""
    found = rows("w/3/7", 10, body=[b"a", b"b"])
    properties = [dict(message.user_properties) for message in messages(found)]
    assert properties == [{"FERROMQ_SEQUENCE": "w/3/7/10"}, {"FERROMQ_SEQUENCE": "w/3/7/11"}]
    assert [part.numbers for part in found.lanes(256, 1 << 20)] == [[10, 11]]


WORDS = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"], exclude_characters="|"), min_size=1)
KINDS = st.sampled_from(["plain", "message_group", "delivery_timestamp", "delay", "priority"])
ROW = st.fixed_dictionaries(
    {"body": st.binary(min_size=1), "kind": KINDS},
    optional={
        "keys": st.lists(WORDS, max_size=3),
        "tag": WORDS,
        "properties": st.dictionaries(WORDS, WORDS, max_size=3),
        "number": st.integers(1, 2**31 - 1),
    },
)


def as_message(row: dict[str, Any], sequence: str) -> Message:
    """Return a row as a message of the client."""
    number = row.get("number", 7)
    kinds = {
        "plain": {},
        "message_group": {"message_group": f"g{number % 3}"},
        "delivery_timestamp": {"delivery_timestamp": number},
        "delay": {"delay": dt.timedelta(milliseconds=number)},
        "priority": {"priority": number},
    }
    properties = {**row.get("properties", {}), "FERROMQ_SEQUENCE": sequence}
    kind: Any = kinds[row["kind"]]
    return Message(row["body"], keys=row.get("keys"), tag=row.get("tag"), properties=properties, **kind)


@settings(max_examples=50, deadline=None)
@given(st.lists(ROW, min_size=1, max_size=12), st.integers(0, 5), st.booleans())
def test_rows_become_the_bytes_that_the_client_sends(
    given_rows: list[dict[str, Any]], cut: int, is_large: bool
) -> None:
    """Any rows, also of a slice of a batch and with offsets of either size, give the bytes of `Producer`."""
    text = pa.large_string() if is_large else pa.string()

    def of(kind: str, value: Any) -> list[Any]:
        return [value(row.get("number", 7)) if row["kind"] == kind else None for row in given_rows]

    batch = pa.record_batch(
        {
            "body": pa.array([row["body"] for row in given_rows], pa.large_binary() if is_large else pa.binary()),
            "keys": pa.array([row.get("keys") for row in given_rows], pa.list_(text)),
            "tag": pa.array([row.get("tag") for row in given_rows], text),
            "properties": pa.array(
                [[*row["properties"].items()] if "properties" in row else None for row in given_rows],
                pa.map_(text, text),
            ),
            "message_group": pa.array(of("message_group", lambda number: f"g{number % 3}"), text),
            "delivery_timestamp": pa.array(
                of("delivery_timestamp", lambda number: number * 1000 + 999), pa.timestamp("us", "UTC")
            ),
            "delay": pa.array(of("delay", lambda number: number * 1000), pa.duration("us")),
            "priority": pa.array(of("priority", lambda number: number), pa.int32()),
        }
    ).slice(min(cut, len(given_rows) - 1))
    given_rows = given_rows[-batch.num_rows :]
    found = read_rows(batch, 40, "orders", "w/1/2")
    for part in found.lanes(256, 1 << 20):
        theirs = [as_message(given_rows[row - 40], f"w/1/2/{row}") for row in part.numbers]
        assert len({message.lane for message in theirs}) == 1
        ids = _ferromq.MessageIds.reserve(bytes(8), 0, len(part))
        assert found.encode(part, ids, 3, BORN, "here", 1 << 20) == _ferromq.encode_send(
            "orders", theirs, ids, 3, BORN, "here", 1 << 20
        )


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"body": [b"a", None]}, ["row 6", "'body' is null"]),
        ({"body": [b"a", b""]}, ["row 6", "'body' is empty"]),
        ({"body": [b"a", b"b"], "tag": ["t", "a|b"]}, ["row 6", "column 'tag'", "a|b"]),
        ({"body": [b"a", b"b"], "keys": [["k"], ["a b"]]}, ["row 6", "column 'keys'", "a b"]),
        ({"body": [b"a", b"b"], "keys": [["k"], [None]]}, ["row 6", "column 'keys'"]),
        ({"body": [b"a", b"b"], "priority": [1, -1]}, ["row 6", "column 'priority'", "-1"]),
        ({"body": [b"a", b"b"], "delay": [0, -5]}, ["row 6", "column 'delay'", "-5"]),
        ({"body": [b"a", b"b"], "delay": [0, 2**33]}, ["row 6", "column 'delay'", "49 days"]),
        ({"body": [b"a", b"b"], "priority": [1, 2], "message_group": [None, "g"]}, ["'message_group' and 'priority'"]),
    ],
)
def test_an_error_of_a_row_names_row_and_column(columns: dict[str, Any], words: list[str]) -> None:
    """The number is that of the row in its partition."""
    with pytest.raises(RowError) as caught:
        rows(first=5, **columns)
    assert all(word in str(caught.value) for word in words), caught.value


def test_a_row_without_a_topic_and_an_illegal_one_are_named() -> None:
    """Neither column nor option has a topic, and an invalid name."""
    with pytest.raises(RowError, match="row 0: column 'topic' is null"):
        rows(to=None, body=[b"a"])
    with pytest.raises(RowError, match=r"column 'topic'.*'a b'"):
        rows(to="a b", body=[b"a"])


def layout(*names: str) -> Layout:
    """Return the layout of queues `broker:id`."""
    queues = tuple(Queue(int(name[2:]), name[0], f"{name[0]}:8081") for name in sorted(names))
    return Layout("orders", queues, queues)


def test_blocks_of_rows_spread_over_all_queues() -> None:
    """No queue has less than half of its share, and a block stays together."""
    where = layout(*(f"a:{queue}" for queue in range(8)))
    blocks = [where.queue_of(partition, block * BLOCK) for partition in range(40) for block in range(50)]
    counts = Counter(blocks)
    assert len(counts) == 8
    assert min(counts.values()) > 2000 / 8 / 2
    assert len({where.queue_of(3, row) for row in range(BLOCK)}) == 1


@given(st.sets(st.integers(0, 15), min_size=2), st.integers(0, 99), st.integers(0, 99), st.data())
def test_a_queue_that_goes_moves_only_its_own_rows(
    queues: set[int], partition: int, block: int, data: st.DataObject
) -> None:
    """An attempt with other queues finds most rows unmoved."""
    gone = data.draw(st.sampled_from(sorted(queues)))
    before = layout(*(f"a:{queue}" for queue in queues)).queue_of(partition, block * BLOCK)
    after = layout(*(f"a:{queue}" for queue in queues - {gone})).queue_of(partition, block * BLOCK)
    assert after == before or before.queue_id == gone


def test_the_queue_of_a_row_is_the_same_in_every_process() -> None:
    """It does not depend on Python's hash seed: the expected values are constants."""
    where = layout(*(f"a:{queue}" for queue in range(4)))
    found = [where.queue_of(partition, block * BLOCK).queue_id for partition in range(2) for block in range(4)]
    assert found == [3, 1, 3, 1, 3, 0, 3, 3]


@given(st.frozensets(st.tuples(st.sampled_from(["a", "b-0", "c:1"]), st.integers(0, 12)), min_size=1))
def test_a_layout_is_read_as_it_was_written(names: frozenset[tuple[str, int]]) -> None:
    """Runs of queues are one word; equal layouts have equal texts."""
    assert names_of(text_of(names)) == names
    assert text_of(sorted(names, reverse=True)) == text_of(names)


def test_a_layout_is_written_by_brokers_and_runs_of_queues() -> None:
    """As errors show it."""
    names = [("b", 0), ("a", 3), ("a", 0), ("a", 1), ("a", 5), ("a", 6)]
    assert text_of(names) == "a:0-1,3,5-6;b:0"
