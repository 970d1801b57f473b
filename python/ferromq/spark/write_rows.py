"""
Rows of a DataFrame as messages to send: which columns there may be, and what their values become.

Needs PyArrow, no sockets. An error of a row names the row of its partition and the column.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from difflib import get_close_matches
from typing import Any, NamedTuple

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

from ferromq import _names
from ferromq.client._batching import Sendable
from ferromq.errors import ConfigError, FerromqError
from ferromq.message import Message

SEQUENCE = "FERROMQ_SEQUENCE"
"""The property by which brokers know a row that is sent again; never taken from the column `properties`."""

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
_SAID = {
    "tag": "tag",
    "key": "keys",
    "property": "properties",
    "properties": "properties",
    "message group": "message_group",
    "priority": "priority",
    "delivery timestamp": "delivery_timestamp",
    "delay": "delay",
    "body": "body",
}
"""How messages say what is wrong with them, and the column it comes from."""


class Outgoing(NamedTuple):
    """A message and where it comes from."""

    topic: str
    row: int
    """Its row in the partition, from 0."""
    message: Sendable
    group: str | None
    is_alone: bool
    """Whether it travels in a request of its own, as delayed messages do."""


class RowError(FerromqError):
    """A row cannot become a message."""


def check_schema(schema: StructType, topic: str | None) -> None:
    """Raise ConfigError where a column is missing, not known, or of another type; *topic* is the option."""
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


def messages(batch: Any, first: int, topic: str | None, numbered: str | None) -> Iterator[Outgoing]:
    """
    Yield the rows of an Arrow *batch*, whose first one is number *first* of its partition, as messages.

    *topic* is for rows that name none; *numbered* what comes before the row in the sequence of a row that is to be
    stored once. Raises `RowError`.
    """
    import pyarrow as pa  # noqa: PLC0415 (the driver checks schemas without it)

    columns: dict[str, Sequence[Any]] = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if name == "body":
            column = column.cast(pa.binary())  # noqa: PLW2901 (texts become their UTF-8)
        elif pa.types.is_timestamp(column.type):
            column = column.cast(pa.timestamp("ms", column.type.tz), safe=False).cast(pa.int64())  # noqa: PLW2901
        columns[name] = column.to_pylist()
    bodies, topics = columns.pop("body"), columns.pop("topic", None)
    is_plain = not columns and numbered is None
    for index, body in enumerate(bodies):
        row = first + index
        to = (topics[index] if topics is not None else None) or topic
        if to is None:
            raise RowError(f"row {row}: column 'topic' is null; give it a topic, or set option 'topic'")
        if not body:
            what = "null" if body is None else "empty"
            raise RowError(f"row {row}: column 'body' is {what}; RocketMQ takes at least one byte")
        if is_plain:
            yield Outgoing(to, row, body, None, is_alone=False)
            continue
        values = {name: value for name, column in columns.items() if (value := column[index]) is not None}
        sequence = None if numbered is None else f"{numbered}/{row}"
        yield _message(to, row, body, values, sequence)


def _message(topic: str, row: int, body: bytes, values: dict[str, Any], sequence: str | None) -> Outgoing:
    properties = {name: value for name, value in values.pop("properties", ()) if name != SEQUENCE}
    nothing = next((name for name, value in properties.items() if value is None), None)
    if nothing is not None:
        raise RowError(f"row {row}: column 'properties' has no value for {nothing!r}; leave it out of the map")
    if sequence is not None:
        properties[SEQUENCE] = sequence
    delay = values.get("delay")
    if delay is not None:
        milliseconds = delay / timedelta(milliseconds=1) if isinstance(delay, timedelta) else delay
        values.pop("delay")
        if milliseconds > 0:  # 0 is at once
            values["delay"] = timedelta(milliseconds=milliseconds)
        elif milliseconds < 0:
            raise RowError(f"row {row}: column 'delay' is {milliseconds:g} ms; it must not be negative")
    if any(key is None for key in values.get("keys", ())):
        raise RowError(f"row {row}: column 'keys' holds null; leave it out of the array")
    try:
        message = Message(body, properties=properties or None, **values)
    except (ValueError, TypeError, OverflowError) as error:
        raise RowError(f"row {row}: {_column(str(error), values)}{error}") from error
    is_alone = "delay" in values or "delivery_timestamp" in values
    return Outgoing(topic, row, message, values.get("message_group"), is_alone)


def _column(text: str, values: Mapping[str, Any]) -> str:
    """Return the column an error of `Message` is about."""
    given = {*values, "properties"}
    said = [(text.find(word), name) for word, name in _SAID.items() if word in text and name in given]
    return f"column {min(said)[1]!r}: " if said else ""


def check_topics(names: set[str], row: int) -> None:
    """Raise `RowError` for a name that no topic can have."""
    for name in names:
        try:
            _names.check_topic(name)
        except FerromqError as error:
            raise RowError(f"row {row}: column 'topic': {error}") from error
