"""Filters of Spark as conditions of readers: exactly the same rows, whatever is pushed."""

import operator
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from ferromq.spark.read.push_down import PushingReader, push
from ferromq.spark.row_filter import Interval, RowFilter

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
COMPARISONS = {
    EqualTo: operator.eq,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
}


def micros(count: int) -> datetime:
    """Return the time *number* microseconds after 1970."""
    return EPOCH + timedelta(microseconds=count)


def truth(one: Filter, row: Mapping[str, Any]) -> bool | None:
    """Return SQL's result of a filter: true, false or NULL."""
    if isinstance(one, Not):
        child = truth(one.child, row)
        return None if child is None else not child
    found = row[one.attribute[0]]
    match one:
        case IsNull() | IsNotNull():
            said: bool | None = (found is None) is isinstance(one, IsNull)
        case EqualNullSafe():
            said = found == one.value
        case _ if found is None:
            said = None
        case In():
            said = found in one.value or (None if None in one.value else False)
        case StringStartsWith():
            said = found.startswith(one.value)
        case _:
            said = COMPARISONS[type(one)](found, one.value)
    return said


def accepts(wanted: Mapping[str, Any], row: Mapping[str, Any]) -> bool:
    """Return whether a reader yields the row, as `_ferromq.record_columns` promises."""
    stored, born = ((row[name] - EPOCH) // timedelta(milliseconds=1) for name in ("store_timestamp", "born_timestamp"))
    numbers = {"store_{}_ms": stored, "born_{}_ms": born, "offset_{}": row["queue_offset"]}
    sets = {"topics": [row["topic"]], "queue_ids": [row["queue_id"]], "tags": [row["tag"]], "keys": row["keys"]}
    assert all(value >= 0 for name, value in wanted.items() if name.startswith("offset"))
    return all(set(found) & set(wanted[name]) for name, found in sets.items() if name in wanted) and all(
        wanted.get(name.format("from"), found) <= found < wanted.get(name.format("to"), found + 1)
        for name, found in numbers.items()
    )


words = st.sampled_from(["a", "b", "c"])
small = st.integers(0, 4)
rows = st.fixed_dictionaries(
    {
        "topic": words,
        "queue_id": small,
        "queue_offset": small,
        "tag": st.none() | words,
        "keys": st.lists(words, max_size=2),
        "store_timestamp": small.map(lambda ms: micros(ms * 1000)),
        "born_timestamp": small.map(lambda ms: micros(ms * 1000)),
        "message_id": st.none() | words,
    }
)
times = st.integers(-1500, 5500).map(micros)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "topic": words,
    "queue_id": st.integers(-1, 5),
    "queue_offset": st.integers(-1, 5),
    "tag": words,
    "keys": st.lists(words, max_size=2),
    "store_timestamp": times,
    "born_timestamp": times,
    "message_id": words,
}


@st.composite
def filters(draw: st.DrawFn) -> Filter:
    """Return a filter on any column, as Spark may push it."""
    column = draw(st.sampled_from(sorted(VALUES)))
    values = VALUES[column]
    kind = draw(st.sampled_from([*COMPARISONS, EqualNullSafe, In, IsNull, IsNotNull, StringStartsWith]))
    if kind in {IsNull, IsNotNull}:
        one = kind((column,))
    elif kind is In:
        one = In((column,), tuple(draw(st.lists(st.none() | values, max_size=3))))
    elif kind is StringStartsWith:
        one = StringStartsWith((draw(st.sampled_from(["topic", "tag"])),), draw(words))
    else:
        one = kind((column,), draw(values))
    return Not(one) if draw(st.booleans()) else one


@given(st.lists(rows, max_size=20), st.lists(filters(), max_size=5))
def test_pushed_filters_leave_exactly_the_rows_that_spark_would(
    given_rows: list[dict[str, Any]], offered: list[Filter]
) -> None:
    """The reader's conditions and Spark's remaining filters equal all filters, also for NULLs."""
    wanted, left = push(offered, RowFilter())
    assert all(any(one is other for other in offered) for one in left)
    expected = [row for row in given_rows if all(truth(one, row) for one in offered)]
    read = [row for row in given_rows if accepts(wanted.mapping(), row)]
    assert [row for row in read if all(truth(one, row) for one in left)] == expected
    if wanted.is_empty:
        assert expected == []


@pytest.mark.parametrize(
    ("one", "wanted"),
    [
        (EqualTo(("queue_id",), 3), {"queue_ids": [3]}),
        (In(("queue_id",), (3, 1, None)), {"queue_ids": [1, 3]}),
        (EqualTo(("tag",), "a"), {"tags": ["a"]}),
        (In(("tag",), ("b", "a")), {"tags": ["a", "b"]}),
        (In(("topic",), ("b", "a")), {"topics": ["a", "b"]}),
        (GreaterThan(("store_timestamp",), micros(1500)), {"store_from_ms": 2}),
        (LessThanOrEqual(("born_timestamp",), micros(1500)), {"born_to_ms": 2}),
        (GreaterThanOrEqual(("queue_offset",), 7), {"offset_from": 7}),
        (EqualTo(("queue_offset",), 7), {"offset_from": 7, "offset_to": 8}),
    ],
)
def test_the_reader_handles_filters_on_time_queue_offset_topic_and_tag(one: Filter, wanted: dict[str, Any]) -> None:
    """Spark has no filter left to evaluate."""
    found, left = push([one, IsNotNull(one.attribute)], RowFilter())
    assert (found.mapping(), left) == (wanted, [])


def test_filters_on_keys_are_shared() -> None:
    """The reader finds messages with the first key of the list; Spark compares the others."""
    one = EqualTo(("keys",), ["a", "b"])
    found, left = push([one], RowFilter())
    assert (found.mapping(), left) == ({"keys": ["a"]}, [one])
    assert push([one], RowFilter(keys=frozenset({"z"})))[0].mapping() == {"keys": ["z"]}


def test_contradicting_filters_match_no_row() -> None:
    """No broker has to be queried."""
    assert push([EqualTo(("tag",), "a"), EqualTo(("tag",), "b")], RowFilter())[0].is_empty
    assert push([LessThan(("queue_offset",), 3), GreaterThan(("queue_offset",), 2)], RowFilter())[0].is_empty
    assert not RowFilter(stored=Interval(1, 2)).is_empty


def test_push_filters_does_not_look_overridden() -> None:
    """PySpark rejects readers that override the method while the setting is off, its default."""
    reader = PushingReader.__new__(type("Reader", (PushingReader,), {"read": lambda *_: iter(())}))
    reader.rows = RowFilter()
    assert getattr(reader.pushFilters, "__func__", None) is DataSourceReader.pushFilters
    left = IsNull(("tag",))
    assert list(reader.pushFilters([EqualTo(("tag",), "a"), left])) == [left]
    assert reader.rows == RowFilter(tags=frozenset({"a"}))
