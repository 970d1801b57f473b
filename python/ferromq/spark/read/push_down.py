"""
Turns Spark's filters into conditions of readers, so that less is read.

Spark keeps a row if its filters are true, not false or NULL. A filter is handled only if the reader drops exactly the
same rows; Spark evaluates all others again.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql.datasource import (
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from ferromq.spark.row_filter import ALL, Interval, RowFilter

__all__ = ["PushingReader", "push"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SETS = {"topic": ("topics", str), "queue_id": ("queue_ids", int), "tag": ("tags", str)}
_SPANS = {"queue_offset": "offsets", "store_timestamp": "stored", "born_timestamp": "born"}
_BOUNDS = {GreaterThan: "after", GreaterThanOrEqual: "first", LessThan: "end", LessThanOrEqual: "last"}
_NEVER_NULL = {"topic", "queue_id", *_SPANS}


def push(filters: Sequence[Filter], rows: RowFilter) -> tuple[RowFilter, list[Filter]]:
    """Return *rows* narrowed by *filters*, and the filters that Spark must still evaluate."""
    left = []
    for one in filters:
        rows, handled = _narrowed(one, rows)
        if not handled:
            left.append(one)
    if rows.tags is not None:
        left = [one for one in left if one != IsNotNull(("tag",))]
    return rows, left


def _narrowed(one: Filter, rows: RowFilter) -> tuple[RowFilter, bool]:
    """Return *rows* narrowed by one filter, and whether the filter is handled."""
    match one:
        case EqualTo((column,), value) | EqualNullSafe((column,), value) if value is not None:
            return _equal(column, [value], rows)
        case In((column,), values):
            return _equal(column, [value for value in values if value is not None], rows)
        case GreaterThan() | GreaterThanOrEqual() | LessThan() | LessThanOrEqual() if len(one.attribute) == 1:
            return _between(one.attribute[0], rows, **{_BOUNDS[type(one)]: one.value})
        case IsNotNull((column,)):
            return rows, column in _NEVER_NULL
    return rows, False


def _equal(column: str, values: Sequence[Any], rows: RowFilter) -> tuple[RowFilter, bool]:
    if column == "keys":
        return _with_keys(values, rows), False
    if column in _SETS:
        name, kind = _SETS[column]
        if any(type(value) is not kind for value in values):
            return rows, False
        before = getattr(rows, name)
        changes: dict[str, Any] = {name: frozenset(values) if before is None else before & frozenset(values)}
        return replace(rows, **changes), True
    if column in _SPANS:
        spans = [span for value in values if (span := _span(first=value, last=value)) is not None]
        if len(spans) < len(values):
            return rows, False
        spans = [span for span in spans if not span.is_empty]
        hull = Interval(min(span.first for span in spans), max(span.end for span in spans)) if spans else Interval(0, 0)
        return _within(_SPANS[column], hull, rows), len(set(spans)) <= 1
    return rows, False


def _between(column: str, rows: RowFilter, **bounds: Any) -> tuple[RowFilter, bool]:
    span = _span(**bounds) if column in _SPANS else None
    return (rows, False) if span is None else (_within(_SPANS[column], span, rows), True)


def _within(name: str, span: Interval, rows: RowFilter) -> RowFilter:
    return replace(rows, **{name: getattr(rows, name) & span})


def _with_keys(values: Iterable[Any], rows: RowFilter) -> RowFilter:
    """Narrow to the first key of each wanted list; a message with that key may have others."""
    firsts: list[Any] = [value[0] if isinstance(value, list) and value else None for value in values]
    if rows.keys is not None or not all(isinstance(first, str) for first in firsts):
        return rows
    return replace(rows, keys=frozenset(firsts))


def _span(*, first: Any = None, after: Any = None, last: Any = None, end: Any = None) -> Interval | None:
    """Return the numbers, or milliseconds of times, between the bounds; None for a bound of another type."""
    bounds = [(first, 0, True), (after, 1, True), (last, 1, False), (end, 0, False)]
    span = ALL
    for bound, step, is_lower in bounds:
        if bound is None:
            continue
        place = _number(bound, step)
        if place is None:
            return None
        span &= Interval(first=place) if is_lower else Interval(end=place)
    return span


def _number(bound: Any, step: int) -> int | None:
    """Return the first number or millisecond at *bound* or later; with *step* 1, the first one after it."""
    if type(bound) is int:
        return bound + step
    if isinstance(bound, datetime) and bound.tzinfo is not None:
        micros = (bound - _EPOCH) // timedelta(microseconds=1)
        return micros // 1000 + 1 if step else -(-micros // 1000)
    return None


class _PushFilters:
    """
    The method `pushFilters` of a reader.

    While `spark.sql.python.filterPushdown.enabled` is off, its default, PySpark rejects a reader that overrides the
    method, which it detects by `__func__`. This object is called if pushdown is on, and does not look overridden if it
    is off.
    """

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, reader: "PushingReader") -> None:
        self._reader = reader

    def __call__(self, filters: Sequence[Filter]) -> Iterable[Filter]:
        self._reader.rows, left = push(filters, self._reader.rows)
        # Spark compares filters by identity.
        return left


class PushingReader(DataSourceReader):  # type: ignore[misc]
    """A reader that narrows its `rows` by Spark's filters."""

    rows: RowFilter

    @property
    def pushFilters(self) -> Any:  # noqa: N802 (PySpark's name)
        """Return the function that takes filters and returns those it does not handle."""
        return _PushFilters(self)
