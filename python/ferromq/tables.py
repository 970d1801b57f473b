"""Received or stored messages as an Arrow table or a data frame; needs pyarrow, of the extra `arrow`."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

from ferromq import _ferromq
from ferromq._ferromq import MessageView, StoredMessage
from ferromq.errors import ConfigError, CorruptMessage
from ferromq.terminal.objects import html

__all__ = ["MessageTable", "PulledTable", "to_arrow", "to_pandas"]

_PIP = {"pyarrow": "pip install 'ferromq[arrow]'", "pandas": "pip install pandas", "polars": "pip install polars"}


def _body(message: MessageView | StoredMessage) -> bytes | None:
    try:
        return message.body
    except CorruptMessage:
        return None


_COLUMNS: dict[str, Callable[[MessageView | StoredMessage], object]] = {
    "message_id": lambda message: message.message_id,
    "topic": lambda message: message.topic,
    "queue_id": lambda message: message.queue_id,
    "queue_offset": lambda message: message.queue_offset,
    "keys": lambda message: list(message.keys),
    "tag": lambda message: message.tag,
    "properties": lambda message: list(message.properties.items()),
    "body": _body,
    "born_timestamp": lambda message: message.born_timestamp * 1000,
    "store_timestamp": lambda message: message.store_timestamp * 1000,
}


def to_arrow(messages: Iterable[MessageView | StoredMessage]) -> Any:
    """
    Return messages as a `pyarrow.Table`, a row each, in their order.

    Columns: message_id, topic (string), queue_id (int32), queue_offset (int64), keys (list of strings), tag (string,
    null without one), properties (map of strings), body (binary), born_timestamp and store_timestamp (timestamp in µs,
    UTC), as in `ferromq.spark`. The body of a received message is decompressed, that of a stored message is as stored.
    A body that does not match its checksum or cannot be decompressed is null: reading it from its message raises
    `CorruptMessage`. Raises `ConfigError` without pyarrow.
    """
    pa, schema = _pyarrow()
    given: object = messages
    if not isinstance(given, Iterable):
        raise TypeError(f"messages must be an iterable of messages, not {given!r}")
    rows = list(messages)
    arrays = [
        pa.array([read(message) for message in rows], type=schema.field(name).type) for name, read in _COLUMNS.items()
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def to_pandas(messages: Iterable[MessageView | StoredMessage]) -> Any:
    """
    Return messages as a `pandas.DataFrame`, with the columns and errors of `to_arrow`; `properties` holds dicts.

    Raises `ConfigError` without pyarrow or pandas, too.
    """
    return _pandas(to_arrow(messages))


def _pandas(table: Any) -> Any:
    _module("pandas")  # pyarrow's own error names no package to install
    return table.to_pandas(maps_as_pydicts="strict")


def _polars(table: Any) -> Any:
    return _module("polars").from_arrow(table)


def _module(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise ConfigError(f"tables of messages need {name}, which is not installed: {_PIP[name]}") from error


class MessageTable:
    """
    Received messages as columns; `Consumer.ack` and `give_back` take it as they take a list of its messages.

    `table` is a `pyarrow.Table` with the columns of `to_arrow`; a damaged body is null there. Iterating makes the
    messages one by one. It has the Arrow PyCapsule interface, so `polars.DataFrame`, `pyarrow.table` and DuckDB's
    queries take it as it is.
    """

    def __init__(self, table: Any, messages: Callable[[], list[MessageView]]) -> None:
        self.table = table
        self._make = messages
        self._messages: list[MessageView] | None = None

    @property
    def messages(self) -> list[MessageView]:
        """The messages, with their leases, in the order of the rows."""
        if self._messages is None:
            self._messages = self._make()
        return self._messages

    def to_pandas(self) -> Any:
        """Return a `pandas.DataFrame`; `properties` holds dicts. Raises `ConfigError` without pandas."""
        return _pandas(self.table)

    def to_polars(self) -> Any:
        """Return a `polars.DataFrame`. Raises `ConfigError` without polars."""
        return _polars(self.table)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.table.__arrow_c_stream__(requested_schema)

    def __iter__(self) -> Iterator[MessageView]:
        return iter(self.messages)

    def __len__(self) -> int:
        rows: int = self.table.num_rows
        return rows

    def __repr__(self) -> str:
        return f"<MessageTable of {len(self)} messages>"

    def _repr_html_(self) -> str:
        return _html_of_table(f"MessageTable of {len(self):,} messages", self.table)


class PulledTable(NamedTuple):
    """Messages of a pull as columns, and where the next pull begins."""

    table: Any
    """A `pyarrow.Table` with the columns of `to_arrow`."""
    next_offset: int

    def to_pandas(self) -> Any:
        """Return a `pandas.DataFrame`; `properties` holds dicts. Raises `ConfigError` without pandas."""
        return _pandas(self.table)

    def to_polars(self) -> Any:
        """Return a `polars.DataFrame`. Raises `ConfigError` without polars."""
        return _polars(self.table)

    def __repr__(self) -> str:
        return f"<PulledTable of {self.table.num_rows} messages next_offset={self.next_offset}>"

    def _repr_html_(self) -> str:
        title = f"PulledTable of {self.table.num_rows:,} messages, next offset {self.next_offset:,}"
        return _html_of_table(title, self.table)


_SHOWN = 10
"""Messages that a notebook shows."""
_SHOWN_COLUMNS = ("message_id", "topic", "queue_id", "queue_offset", "tag", "keys", "body")


def html_of_messages(title: str, messages: Sequence[MessageView]) -> str:
    """Return the first messages as a table for notebooks."""
    rows = [[_COLUMNS[name](message) for name in _SHOWN_COLUMNS] for message in messages[:_SHOWN]]
    return html(title, _SHOWN_COLUMNS, _with_rest(rows, len(messages)))


def _html_of_table(title: str, table: Any) -> str:
    rows = [tuple(row.values()) for row in table.slice(0, _SHOWN).select(_SHOWN_COLUMNS).to_pylist()]
    return html(title, _SHOWN_COLUMNS, _with_rest(rows, table.num_rows))


def _with_rest(rows: Sequence[Sequence[object]], count: int) -> list[Sequence[object]]:
    """Return rows of texts, and one more for those that are not shown."""
    whole: list[Sequence[object]] = [["" if cell is None else cell for cell in row] for row in rows]
    if count > len(rows):
        whole.append((f"and {count - len(rows):,} more", *[""] * (len(_SHOWN_COLUMNS) - 1)))
    return whole


def check_arrow() -> None:
    """Raise `ConfigError` without pyarrow."""
    _pyarrow()


def table_of(messages: list[MessageView]) -> MessageTable:
    """Return messages as columns."""
    return MessageTable(to_arrow(messages), lambda: messages)


def message_columns(size: int) -> _ferromq.MessageColumns:
    """Begin the columns of about *size* bytes of records, which are decoded without a Python object for each."""
    return _ferromq.MessageColumns(size, columns=list(_COLUMNS))


def table_of_columns(columns: _ferromq.MessageColumns, named: Callable[[str], str] | None) -> Any:
    """
    Return columns as a `pyarrow.Table`.

    *named* returns the name of a topic; None: topics are named as they are.
    """
    pa, schema = _pyarrow()
    decoded = columns.finish()
    batch = import_module("ferromq.columns").record_batch(decoded["columns"], decoded["rows"], schema)
    table = pa.Table.from_batches([batch], schema=schema)
    if named is not None:
        column = schema.get_field_index("topic")
        topics = table.column(column).combine_chunks().dictionary_encode()
        names = pa.array([named(topic) for topic in topics.dictionary.to_pylist()], pa.string())
        table = table.set_column(column, schema.field(column), names.take(topics.indices))
    return table


def _pyarrow() -> tuple[Any, Any]:
    """Return the module pyarrow and the schema of tables."""
    return _module("pyarrow"), _schema()


@cache
def _schema() -> Any:
    pa = _module("pyarrow")
    time = pa.timestamp("us", "UTC")
    kinds = {
        "queue_id": pa.int32(),
        "queue_offset": pa.int64(),
        "keys": pa.list_(pa.string()),
        "properties": pa.map_(pa.string(), pa.string()),
        "body": pa.binary(),
        "born_timestamp": time,
        "store_timestamp": time,
    }
    return pa.schema([(name, kinds.get(name, pa.string())) for name in _COLUMNS])
