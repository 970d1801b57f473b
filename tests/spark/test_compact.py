"""`compact`: the last message for each key."""

import random
from functools import reduce
from typing import Any

import pytest
from pipeline_rows import frame, row
from pyspark.sql import DataFrame, Observation
from pyspark.sql.functions import lit

from ferromq.errors import ConfigError
from ferromq.pipeline.compact import compact


def last(session: Any, rows: list[dict[str, Any]], **options: Any) -> dict[tuple[str, str | None], bytes]:
    """Return the remaining body for each topic and key."""
    found = compact(frame(session, rows), **options).collect()
    assert len({(one.topic, one.key) for one in found}) == len(found)
    return {(one.topic, one.key): bytes(one.body) for one in found}


def test_the_last_message_of_each_key_is_left(session: Any) -> None:
    """The result equals a walk over each queue in order, with every other column."""
    rng = random.Random(5)
    rows = [
        row(number, at=number, keys=[f"k{rng.randrange(40)}"], body=b"%d" % number, tag=f"t{number}", topic=topic)
        for topic in ("orders", "%RETRY%g")
        for number in range(500)
    ]
    expected = {(made["topic"], made["keys"][0]): made for made in rows}
    found = compact(frame(session, rows)).collect()
    assert {(one.topic, one.key): (one.tag, one.queue_offset, bytes(one.body)) for one in found} == {
        key: (made["tag"], made["queue_offset"], made["body"]) for key, made in expected.items()
    }


def test_order_is_that_of_the_queue_then_of_store_times(session: Any) -> None:
    """In a queue the offset decides, whatever the clock; across queues store time, then offset, then queue."""
    rows = [
        row(5, keys=["clock"], at=9, body=b"before the clock was set back"),
        row(6, keys=["clock"], at=3, body=b"after"),
        row(9, keys=["queues"], at=1, body=b"earlier, with the higher offset"),
        row(2, keys=["queues"], at=2, queue_id=1, body=b"later"),
        row(3, keys=["tie"], at=4, body=b"lower offset"),
        row(4, keys=["tie"], at=4, queue_id=1, body=b"higher offset"),
        row(7, keys=["both"], at=4, body=b"lower queue"),
        row(7, keys=["both"], at=4, queue_id=1, body=b"higher queue"),
        row(8, keys=["brokers"], at=4, store_host="a:1", body=b"one broker"),
        row(8, keys=["brokers"], at=5, store_host="b:1", body=b"another broker"),
    ]
    found = {key: body for (_, key), body in last(session, rows).items()}
    assert found == {
        "clock": b"after",
        "queues": b"later",
        "tie": b"higher offset",
        "both": b"higher queue",
        "brokers": b"another broker",
    }


def test_tombstones_are_configurable(session: Any) -> None:
    """A tombstone deletes its key unless a later message exists."""
    rows = [
        row(0, keys=["empty"], body=b"1"),
        row(1, keys=["empty"], body=b""),
        row(2, keys=["back"], body=b""),
        row(3, keys=["back"], body=b"2"),
        row(4, keys=["tag"], body=b"3", tag="gone"),
        row(5, keys=["property"], body=b"4", properties={"gone": ""}),
    ]

    given = frame(session, rows)
    expected = {
        "empty": {"back", "tag", "property"},
        "none": {"empty", "back", "tag", "property"},
        "tag:gone": {"empty", "back", "property"},
        "property:gone": {"empty", "back", "tag"},
    }
    # In one job.
    by_tombstone = [compact(given, tombstone=said).select(lit(said).alias("said"), "key") for said in expected]
    found = reduce(DataFrame.unionByName, by_tombstone).collect()
    assert {said: {one.key for one in found if one.said == said} for said in expected} == expected


def test_messages_without_a_key_and_with_several(session: Any) -> None:
    """Messages without a key are counted, and dropped or kept. A message counts for each of its keys."""
    rows = [
        row(0, keys=["a", "b", "a"], body=b"0"),
        row(1, keys=["b"], body=b"1"),
        row(2, body=b"2"),
        row(3, body=b"2"),
        row(4, keys=["c"], body=b""),
    ]
    counts = Observation("counts")
    assert last(session, rows, counts=counts) == {("orders", "a"): b"0", ("orders", "b"): b"1"}
    assert counts.get == {"messages": 5, "without_key": 2, "tombstones": 1}
    kept = compact(frame(session, rows), without_key="keep").where("key IS NULL")
    assert sorted(one.queue_offset for one in kept.collect()) == [2, 3]


def test_wrong_arguments_name_what_is_allowed(session: Any) -> None:
    """The error has the value and the allowed values."""
    rows = frame(session, [row(0)])
    with pytest.raises(ConfigError, match="tombstone is 'tag:'; allowed: empty, none, tag:NAME, property:NAME"):
        compact(rows, tombstone="tag:")
    with pytest.raises(ConfigError, match="without_key is 'maybe'; allowed: drop, keep"):
        compact(rows, without_key="maybe")
