"""Options of `spark.read.format("ferromq-log")`: what was given, what is allowed."""

import pytest

from ferromq.errors import ConfigError
from ferromq.spark.log.options import LogOptions
from ferromq.spark.row_filter import ALL, Interval, RowFilter
from ferromq.spark.schema import COLUMNS
from ferromq.spark.topics import Topics

GIVEN = {"path": "/var/lib/ferromq"}


def test_only_the_path_is_required() -> None:
    """A read without more options is every topic of the store but internal ones."""
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


def test_topics_times_tags_and_keys_say_which_rows_are_wanted() -> None:
    """Topics that are named are looked for in Rust; patterns are matched where the names come by."""
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
    """`load` hands a Python list over as JSON."""
    assert LogOptions.parse({"paths": '["/a", "s3://b/c"]'}).paths == ("/a", "s3://b/c")


def test_what_an_object_store_is_told_is_not_shown() -> None:
    """Options may hold secrets."""
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
    """The error names the option, what was given and what is allowed."""
    with pytest.raises(ConfigError) as raised:
        LogOptions.parse(options)
    assert [word for word in words if word not in str(raised.value)] == []
