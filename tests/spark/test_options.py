"""Options of `spark.read.format("ferromq")`: what was given, what is allowed."""

import pytest

from ferromq.errors import ConfigError
from ferromq.spark.options import ReadOptions

GIVEN = {"endpoint": "127.0.0.1:8081", "topic": "flights"}


def test_only_endpoint_and_topic_are_required() -> None:
    """A read without more options is the whole topic, a partition a queue of up to a million messages."""
    assert ReadOptions.parse(GIVEN) == ReadOptions("127.0.0.1:8081", "flights", "earliest", "latest", 1_000_000, 1)


def test_names_are_not_case_sensitive() -> None:
    """Spark hands over option names in lower case."""
    given = {**GIVEN, "startingoffsets": '{"0": 5}', "ENDINGOFFSETS": "Latest", "minpartitions": "4"}
    parsed = ReadOptions.parse(given)
    assert (parsed.starting_offsets, parsed.ending_offsets, parsed.min_partitions) == ({"0": 5}, "latest", 4)


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("endpoint", "127.0.0.1", ["'endpoint'", "'127.0.0.1'", "host:port"]),
        ("endpoint", "host:0", ["'endpoint'", "'host:0'", "host:port"]),
        ("endpoint", "a:1;b:2", ["'endpoint'", "'a:1;b:2'", "one host:port"]),
        ("startingOffsets", "first", ["'startingOffsets'", "'first'", "earliest, latest, or JSON"]),
        ("startingOffsets", '{"0": -1}', ["'startingOffsets'", "-1", "earliest, latest, or JSON"]),
        ("endingOffsets", '{"0": 1.5}', ["'endingOffsets'", "1.5", "earliest, latest, or JSON"]),
        ("endingOffsets", "[1]", ["'endingOffsets'", "'[1]'", "earliest, latest, or JSON"]),
        ("endingOffsets", '{"0": true}', ["'endingOffsets'", "true", "earliest, latest, or JSON"]),
        ("minPartitions", "0", ["'minPartitions'", "'0'", "from 1"]),
        ("maxRecordsPerPartition", "many", ["'maxRecordsPerPartition'", "'many'", "from 1"]),
        (
            "startingOffset",
            "latest",
            ["'startingOffset'", "'latest'", "did you mean 'startingOffsets'?", "minPartitions"],
        ),
        ("path", "flights", ["'path'", "'flights'", "is not known. Allowed: endpoint, topic, "]),
    ],
)
def test_a_wrong_option_says_what_is_allowed(option: str, value: str, words: list[str]) -> None:
    """The error names the option, what was given and what is allowed."""
    with pytest.raises(ConfigError) as raised:
        ReadOptions.parse({**GIVEN, option: value})
    assert [word for word in words if word not in str(raised.value)] == []


@pytest.mark.parametrize("missing", ["endpoint", "topic"])
def test_a_missing_option_shows_how_to_write_it(missing: str) -> None:
    """The error shows the call that is missing."""
    with pytest.raises(ConfigError, match=rf"\.option\('{missing}', "):
        ReadOptions.parse({name: value for name, value in GIVEN.items() if name != missing})
