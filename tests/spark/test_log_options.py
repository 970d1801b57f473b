"""Parsing and errors of the options of `spark.read.format("ferromq-log")`."""

import pytest

from ferromq.errors import ConfigError
from ferromq.spark.log.options import LogOptions
from ferromq.spark.row_filter import ALL, Interval, RowFilter
from ferromq.spark.schema import COLUMNS
from ferromq.spark.topics import Topics

GIVEN = {"path": "/var/lib/ferromq"}


def test_only_the_path_is_required() -> None:
    """By default every topic of the store is read, except internal ones."""
    expected = LogOptions(
        paths=("/var/lib/ferromq",),
        topics=Topics(),
        rows=RowFilter(),
        columns=COLUMNS,
        commit_log_paths=(),
        include_expired=False,
        on_corrupt="fail",
        max_bytes_per_partition=256 << 20,
        storage_options={},
    )
    assert LogOptions.parse(GIVEN) == expected


def test_topics_times_tags_and_keys_select_rows() -> None:
    """Rust filters named topics; patterns are matched in Python."""
    more = {
        "topics": "a,b",
        "startingTimestamp": "1000",
        "tags": "t,u",
        "keys": "k",
        "onCorrupt": "SKIP",
        "columns": "body",
    }
    parsed = LogOptions.parse({**GIVEN, **more})
    wanted = RowFilter(
        topics=frozenset("ab"), tags=frozenset("tu"), keys=frozenset("k"), stored=Interval(1000, ALL.end)
    )
    assert (parsed.rows, parsed.columns, parsed.on_corrupt) == (wanted, ("body",), "skip")
    matched = LogOptions.parse({**GIVEN, "topicPattern": "fl.*", "endingTimestamp": "1970-01-01T00:00:01Z"})
    assert (matched.topics.pattern, matched.rows) == ("fl.*", RowFilter(stored=Interval(ALL.first, 1000)))
    assert LogOptions.parse({**GIVEN, "includeSystemTopics": "true"}).topics == Topics(system=True)


def test_several_paths_are_a_list() -> None:
    """`load` passes a Python list as JSON."""
    assert LogOptions.parse({"paths": '["/a", "s3://b/c"]'}).paths == ("/a", "s3://b/c")


def test_storage_options_are_not_shown() -> None:
    """They may hold secrets."""
    parsed = LogOptions.parse({**GIVEN, "storageOptions": '{"secret": "hunter2"}'})
    assert parsed.storage_options == {"secret": "hunter2"}
    assert "hunter2" not in repr(parsed)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, ["'path'", "is missing", ".load("]),
        ({**GIVEN, "paths": '["b"]'}, ["'path'", "'paths'", "one of them"]),
        ({"paths": "[]"}, ["'paths'", "'[]'", "a JSON list of paths"]),
        ({**GIVEN, "onCorrupt": "skp"}, ["'onCorrupt'", "'skp'", "did you mean 'skip'?", "fail, skip"]),
        ({**GIVEN, "maxBytesPerPartition": "1g"}, ["'maxBytesPerPartition'", "'1g'", "from 1"]),
        ({**GIVEN, "storageOptions": "[]"}, ["'storageOptions'", "'[]'", "a JSON object"]),
        ({**GIVEN, "storageOptions": "{"}, ["'storageOptions'", "'{'", "a JSON object"]),
        ({**GIVEN, "startingOffsets": "latest"}, ["'startingOffsets'", "not known", "did you mean"]),
        ({**GIVEN, "topic": "a", "topicPattern": "b"}, ["'topic'", "'topicPattern'", "one of them"]),
    ],
)
def test_a_wrong_option_says_what_is_allowed(options: dict[str, str], words: list[str]) -> None:
    """The error has the option, its value and the allowed values."""
    with pytest.raises(ConfigError) as raised:
        LogOptions.parse(options)
    assert [word for word in words if word not in str(raised.value)] == []
