"""
Checks the columns of a DataFrame and turns its rows into messages.

An error names the row of the partition and the column.
"""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    DayTimeIntervalType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from ferromq import _ferromq
from ferromq.errors import ConfigError, FerromqError, RowError
from ferromq.protocol import naming
from ferromq.spark.write.arrow import columns_of

_WHOLE = (ByteType, ShortType, IntegerType, LongType)
_COLUMNS: dict[str, tuple[tuple[type[DataType], ...], str]] = {
    "topic": ((StringType,), "string"),
    "body": ((BinaryType, StringType), "binary or string"),
    "keys": ((StringType, ArrayType), "string or array<string>"),
    "tag": ((StringType,), "string"),
    "properties": ((MapType,), "map<string,string>"),
    "delivery_timestamp": ((TimestampType,), "timestamp"),
    "delay": ((*_WHOLE, DayTimeIntervalType), "milliseconds as a whole number, or interval day to second"),
    "message_group": ((StringType,), "string"),
    "priority": (_WHOLE, "a whole number"),
}
COLUMNS = tuple(_COLUMNS)


def check_schema(schema: StructType, topic: str | None) -> None:
    """Raise ConfigError if a column is missing, unknown, or of the wrong type; *topic* is the option."""
    names = schema.fieldNames()
    for field in schema.fields:
        if field.name not in _COLUMNS:
            near = get_close_matches(field.name, COLUMNS, n=1)
            meant = f"; did you mean {near[0]!r}?" if near else "."
            raise ConfigError(f"column {field.name!r} is not known{meant} Allowed: {', '.join(COLUMNS)}")
        types, allowed = _COLUMNS[field.name]
        if not isinstance(field.dataType, types) or not _has_texts(field.dataType):
            raise ConfigError(f"column {field.name!r} is {field.dataType.simpleString()}; allowed: {allowed}")
    if "body" not in names:
        raise ConfigError(f"column 'body' is missing; there are {', '.join(names) or 'none'}")
    if "topic" not in names and topic is None:
        raise ConfigError("option 'topic' is missing, and there is no column 'topic'; write .option('topic', 'orders')")


def _has_texts(kind: DataType) -> bool:
    match kind:
        case ArrayType():
            return isinstance(kind.elementType, StringType)
        case MapType():
            return isinstance(kind.keyType, StringType) and isinstance(kind.valueType, StringType)
    return True


def read_rows(batch: Any, first: int, topic: str | None, numbered: str | None) -> _ferromq.Rows:
    """
    Return the rows of an Arrow *batch*, ready to send; its first row is number *first* of its partition.

    *topic* is the default topic; *numbered* is the prefix of a row's sequence for exactly-once. Raises `RowError`.
    """
    columns = columns_of(batch)
    body = columns.pop("body")
    try:
        rows = _ferromq.Rows(batch.num_rows, body, columns, first=first, topic=topic, numbered=numbered)
    except ValueError as error:
        raise RowError(str(error)) from None
    check_topics(rows.topics)
    return rows


def check_topics(names: Iterable[tuple[str, int]]) -> None:
    """Raise `RowError` for an invalid topic; each name comes with its first row."""
    for name, row in names:
        try:
            naming.check_topic(name)
        except FerromqError as error:
            raise RowError(f"row {row}: column 'topic': {error}") from error
