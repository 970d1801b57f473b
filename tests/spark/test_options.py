"""Parsing and errors of the options of `spark.read.format("ferromq")`."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import CaseInsensitiveDict

from ferromq.errors import ConfigError
from ferromq.spark.log.source import FerromqLogSource
from ferromq.spark.options import STREAM_OPTIONS, ClusterAddress, ReadOptions, RowOptions
from ferromq.spark.positions import Positions, Time
from ferromq.spark.schema import COLUMNS, schema_of
from ferromq.spark.source import FerromqSource
from ferromq.spark.topics import Topics, is_internal

GIVEN = {"endpoint": "127.0.0.1:8081", "topic": "flights"}
TWO = {"endpoint": "127.0.0.1:8081", "topics": "flights, trains"}
NAMESRV = {"namesrv": "a:9876;b:9876", "topicPattern": "fl.*"}


def test_only_endpoint_and_topic_are_required() -> None:
    """By default the whole topic is read, with partitions of up to a million messages of one queue."""
    assert ReadOptions.parse(GIVEN) == ReadOptions(
        ClusterAddress(endpoint="127.0.0.1:8081"),
        Topics(("flights",)),
        Positions("earliest"),
        Positions("latest"),
        RowOptions(COLUMNS, (), ()),
        1_000_000,
        1,
    )


def test_names_are_not_case_sensitive() -> None:
    """Spark passes option names in lower case."""
    more = {"startingoffsets": '{"0": 5}', "ENDINGOFFSETS": "Latest", "minpartitions": "4"}
    parsed = ReadOptions.parse({**GIVEN, **more})
    assert parsed.starting == Positions("earliest", {"flights": {"0": 5}})
    assert (parsed.ending, parsed.min_partitions) == (Positions("latest"), 4)


def test_topics_are_named_listed_or_matched() -> None:
    """A list has each topic once; a pattern matches whole names, and internal topics only with the option."""
    assert ReadOptions.parse({**TWO, "topics": "b,a ,b"}).topics.names == ("b", "a")
    known = ["flights", "old_flights", "flat", "%RETRY%fl", "rmq_sys_fl", "%DLQ%fl"]
    assert ReadOptions.parse(NAMESRV).topics.choose(known) == ["flat", "flights"]
    every = {**NAMESRV, "topicPattern": ".*fl.*"}
    assert ReadOptions.parse(every).topics.choose(known) == ["%DLQ%fl", "flat", "flights", "old_flights"]
    assert ReadOptions.parse({**every, "includeSystemTopics": "True"}).topics.choose(known) == sorted(known)
    assert ReadOptions.parse({**GIVEN, "topic": "%RETRY%fl"}).topics.choose(known) == ["%RETRY%fl"]


@pytest.mark.parametrize(
    ("topic", "internal"),
    [
        ("RMQ_SYS_TRANS_HALF_TOPIC", True),
        ("RMQ_SYS_TRANS_OP_HALF_TOPIC", True),
        ("SCHEDULE_TOPIC_XXXX", True),
        ("rmq_sys_wheel_timer", True),
        ("RMQ_SYS_TRACE_TOPIC", True),
        ("%RETRY%group", True),
        ("%DLQ%group", False),
        ("BenchmarkTest", False),
        ("orders", False),
    ],
)
def test_internal_topics_are_those_brokers_keep_for_themselves(topic: str, internal: bool) -> None:
    """Dead-letter topics are not internal."""
    assert is_internal(topic) is internal


def test_positions_are_offsets_words_or_times_for_each_queue() -> None:
    """JSON names topic and queue; its times override the option with the time for all other queues."""
    text = '{"flights": {"0": 7, "broker-a:1": "Latest", "2": "2026-11-01T00:00:00Z"}, "trains": {"0": "earliest"}}'
    parsed = ReadOptions.parse({**TWO, "startingOffsets": text, "startingTimestamp": "1793491200123"})
    moment = Time(int(datetime(2026, 11, 1, tzinfo=UTC).timestamp()) * 1000)
    places = {"flights": {"0": 7, "broker-a:1": "latest", "2": moment}, "trains": {"0": "earliest"}}
    assert parsed.starting == Positions(Time(1793491200123), places)
    assert parsed.ending == Positions("latest")


@given(st.integers(86_400_000_000, 9_000_000_000_000_000), st.integers(-23 * 60, 23 * 60))
def test_times_are_rounded_up_to_milliseconds(micros: int, minutes: int) -> None:
    """In any zone, with any fraction of a second."""
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)
    written = moment.astimezone(timezone(timedelta(minutes=minutes))).isoformat()
    assert Time.parse(written) == Time(-(-micros // 1000))


def test_columns_tags_and_keys_are_lists() -> None:
    """Columns keep the order of the option."""
    parsed = ReadOptions.parse({**GIVEN, "columns": "body,tag", "tags": "a, b", "keys": "k"})
    assert parsed.rows == RowOptions(("body", "tag"), ("a", "b"), ("k",))


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("endpoint", "127.0.0.1", ["'endpoint'", "'127.0.0.1'", "host:port"]),
        ("endpoint", "host:0", ["'endpoint'", "'host:0'", "host:port"]),
        ("endpoint", "a:1;b:2", ["'endpoint'", "'a:1;b:2'", "one host:port"]),
        ("endpoint", " ", ["'endpoint'", "is empty"]),
        ("namesrv", "a:9876", ["'endpoint' ('127.0.0.1:8081'), 'namesrv' ('a:9876')", "one of them"]),
        ("topics", "a,b", ["'topic' ('flights'), 'topics' ('a,b')", "one of them"]),
        ("topic", "flug hafen", ["'topic'", "'flug hafen'", "names of topics"]),
        ("startingOffsets", "first", ["'startingOffsets'", "'first'", "earliest, latest, or JSON"]),
        ("startingOffsets", '{"0": -1}', ["'startingOffsets'", "-1", "earliest, latest, or JSON"]),
        ("startingOffsets", '{"0": 1, "0": 2}', ["'startingOffsets'", "a name is repeated"]),
        ("startingOffsets", '{"flights": 7, "trains": {}}', ["'startingOffsets'", "topic 'flights' has 7"]),
        ("startingOffsets", '{"0": "2026-11-01"}', ["'startingOffsets'", "'2026-11-01'", "the zone is missing"]),
        ("endingOffsets", '{"0": 1.5}', ["'endingOffsets'", "1.5", "earliest, latest, or JSON"]),
        ("endingOffsets", "[1]", ["'endingOffsets'", "'[1]'", "earliest, latest, or JSON"]),
        ("endingOffsets", '{"0": true}', ["'endingOffsets'", "true", "earliest, latest, or JSON"]),
        ("endingOffsets", '{"0": 9223372036854775808}', ["'endingOffsets'", "has 9223372036854775808"]),
        ("startingTimestamp", "yesterday", ["'startingTimestamp'", "'yesterday'", "ISO-8601 with a zone"]),
        (
            "endingTimestamp",
            "2026-11-01T10:00:00",
            ["'endingTimestamp'", "the zone is missing", "write 2026-11-01T10:00:00Z"],
        ),
        ("endingTimestamp", "1969-12-31T23:59:59Z", ["'endingTimestamp'", "before 1970"]),
        ("endingTimestamp", "9" * 20, ["'endingTimestamp'", "64 bits"]),
        ("includeSystemTopics", "yes", ["'includeSystemTopics'", "'yes'", "true, false"]),
        ("columns", "body,keyes", ["'columns'", "'keyes'", "did you mean 'keys'?", "topic, queue_id"]),
        ("columns", "body,,tag", ["'columns'", "'body,,tag'", "single commas"]),
        ("minPartitions", "0", ["'minPartitions'", "'0'", "from 1"]),
        ("minPartitions", "9" * 5000, ["'minPartitions'", "from 1"]),
        ("minPartitions", "²", ["'minPartitions'", "'²'", "from 1"]),
        ("maxRecordsPerPartition", "many", ["'maxRecordsPerPartition'", "'many'", "from 1"]),
        (
            "startingOffset",
            "latest",
            ["'startingOffset'", "'latest'", "did you mean 'startingOffsets'?", "minPartitions"],
        ),
        ("maxOffsetsPerTrigger", "5", ["'maxOffsetsPerTrigger'", "'5'", "belongs to readStream"]),
        ("path", "flights", ["'path'", "'flights'", "is not known. Allowed: endpoint, namesrv, tls, "]),
    ],
)
def test_a_wrong_option_says_what_is_allowed(option: str, value: str, words: list[str]) -> None:
    """The error has the option, its value and the allowed values."""
    with pytest.raises(ConfigError) as raised:
        ReadOptions.parse({**GIVEN, option: value})
    assert [word for word in words if word not in str(raised.value)] == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({**TWO, "startingOffsets": '{"0": 5}'}, ["'startingOffsets'", "queues must be listed by topic"]),
        ({**NAMESRV, "topicPattern": "["}, ["'topicPattern'", "'['", "a regular expression"]),
        ({**NAMESRV, "namesrv": "a"}, ["'namesrv'", "'a'", "host:port of a name server"]),
        ({"endpoint": "a:1", "topicPattern": "fl.*"}, ["'topicPattern'", "'fl.*'", "'namesrv'", "'topics'"]),
        (
            {**GIVEN, "startingOffsets": "latest", "startingTimestamp": "5"},
            ["'startingTimestamp' ('5')", "'startingOffsets' ('latest')", "one of them"],
        ),
    ],
)
def test_options_that_do_not_go_together_are_all_named(options: dict[str, str], words: list[str]) -> None:
    """The error has the allowed alternative."""
    with pytest.raises(ConfigError) as raised:
        ReadOptions.parse(options)
    assert [word for word in words if word not in str(raised.value)] == []


@pytest.mark.parametrize("missing", ["endpoint", "topic"])
def test_a_missing_option_shows_how_to_write_it(missing: str) -> None:
    """The error shows the missing call."""
    with pytest.raises(ConfigError, match=rf"\.option\('{missing}', "):
        ReadOptions.parse({name: value for name, value in GIVEN.items() if name != missing})


def test_a_stream_may_have_options_of_its_own() -> None:
    """They do not affect the schema."""
    parsed = ReadOptions.parse({**GIVEN, "maxOffsetsPerTrigger": "5"}, also=STREAM_OPTIONS)
    assert parsed == ReadOptions.parse(GIVEN)


@pytest.mark.parametrize("kind", [FerromqSource, FerromqLogSource])
def test_columns_and_a_schema_that_differ_are_an_error(kind: Any) -> None:
    """Neither is ignored."""
    options = GIVEN if kind is FerromqSource else {"path": "/nowhere"}
    source = kind(CaseInsensitiveDict({**options, "columns": "body,tag"}))
    with pytest.raises(ConfigError, match="'columns' is 'body,tag', but the schema has topic; allowed: one of the two"):
        source.reader(schema_of(["topic"]))
