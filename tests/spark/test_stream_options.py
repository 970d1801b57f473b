"""Parsing and errors of the options of `spark.readStream.format("ferromq")`."""

import pytest

from ferromq.errors import ConfigError
from ferromq.spark.stream.options import StreamOptions


def options(**given: str) -> StreamOptions:
    """Return a user's options."""
    where = {"endpoint": "e:1", "topic": "orders"}
    return StreamOptions.parse({**where, **given}, pyspark="4.3.0", has_admission=True)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"maxOffsetsPerTrigger": "0"}, "'maxOffsetsPerTrigger' is '0'; allowed: a whole number from 1"),
        ({"maxOffsetsPerTrigger": "5", "minOffsetsPerTrigger": "6"}, "'minOffsetsPerTrigger' is 6; allowed: up to"),
        ({"maxTriggerDelay": "30s"}, "'maxTriggerDelay' is '30s' without 'minOffsetsPerTrigger'"),
        (
            {"minOffsetsPerTrigger": "6", "maxTriggerDelay": "30"},
            "'maxTriggerDelay' is '30'; allowed: a time with its unit",
        ),
        ({"unreachableTimeout": "soon"}, "'unreachableTimeout' is 'soon'; allowed: a time with its unit"),
        ({"failOnDataLoss": "no"}, "'failOnDataLoss' is 'no'"),
        ({"group": "a b"}, "'group' is 'a b'; allowed: the name of a consumer group"),
        ({"endingOffsets": "latest"}, "'endingOffsets' is 'latest', but a stream has no end; allowed: in spark.read"),
        ({"maxOffsetPerTrigger": "5"}, "did you mean 'maxOffsetsPerTrigger'"),
    ],
)
def test_wrong_options_are_named(given: dict[str, str], words: str) -> None:
    """The error has the option, its value and the allowed values."""
    with pytest.raises(ConfigError) as raised:
        options(**given)
    assert words in str(raised.value)


@pytest.mark.parametrize("name", ["maxOffsetsPerTrigger", "minOffsetsPerTrigger"])
def test_limits_that_pyspark_cannot_keep_are_an_error(name: str) -> None:
    """An option is never ignored."""
    given = {"endpoint": "e:1", "topic": "orders", name: "5"}
    with pytest.raises(ConfigError, match=rf"'{name}' is '5' and needs PySpark 4.2 .* this is PySpark 4.1.1"):
        StreamOptions.parse(given, pyspark="4.1.1", has_admission=False)


def test_options_have_defaults() -> None:
    """Losses fail the query; the rest is off or as documented."""
    chosen = options()
    assert (chosen.fail_on_data_loss, chosen.unreachable_timeout, chosen.max_delay, chosen.group) == (
        True,
        60.0,
        900.0,
        None,
    )
    assert options(unreachableTimeout="500ms").unreachable_timeout == 0.5
