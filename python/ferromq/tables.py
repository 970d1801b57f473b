"""Received or stored messages as an Arrow table or a pandas DataFrame; needs pyarrow, of the extra `spark`."""

from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from typing import Any, NamedTuple

from ferromq import _ferromq
from ferromq._ferromq import MessageView, StoredMessage
from ferromq.errors import ConfigError, CorruptMessage

__all__ = ["MessageTable", "PulledTable", "to_arrow", "to_pandas"]

_PIP = "pip install 'ferromq[spark]'"


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
    `CorruptMessage`. `polars.from_arrow` takes the table. Raises `ConfigError` without pyarrow.
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
    table = to_arrow(messages)
    try:
        import pandas as pd  # noqa: PLC0415, F401 (an extra; pyarrow's own error names no package to install)
    except ImportError as error:
        raise ConfigError(f"data frames of messages need pandas, which is not installed: {_PIP}") from error
    return table.to_pandas(maps_as_pydicts="strict")


class MessageTable:
    """
    Received messages as columns; `Consumer.ack` and `give_back` take it as they take a list of its messages.

    `table` is a `pyarrow.Table` with the columns of `to_arrow`; a damaged body is null there. Iterating makes the
    messages one by one.
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

    def renamed(self, name: Callable[[str], str], messages: Callable[[], list[MessageView]]) -> "MessageTable":
        """Return the table with *name* of each topic; *messages* makes its messages."""
        column = self.table.schema.get_field_index("topic")
        topics = [name(topic) for topic in self.table.column(column).to_pylist()]
        field = self.table.schema.field(column)
        return MessageTable(self.table.set_column(column, field, [topics]), messages)

    def __iter__(self) -> Iterator[MessageView]:
        return iter(self.messages)

    def __len__(self) -> int:
        rows: int = self.table.num_rows
        return rows

    def __repr__(self) -> str:
        return f"<MessageTable of {len(self)} messages>"

    def _repr_html_(self) -> str:
        """Return the first rows, for notebooks."""
        shown: str = self.table.slice(0, _SHOWN).to_pandas(maps_as_pydicts="strict")._repr_html_()
        return f"<p>MessageTable of {len(self):,} messages</p>{shown}"


_SHOWN = 10
"""Rows that a notebook shows."""


class PulledTable(NamedTuple):
    """Messages of a pull as columns, and where the next pull begins."""

    table: Any
    """A `pyarrow.Table` with the columns of `to_arrow`."""
    next_offset: int


def check_arrow() -> None:
    """Raise `ConfigError` without pyarrow."""
    _pyarrow()


def table_of(messages: list[MessageView]) -> MessageTable:
    """Return messages as columns."""
    return MessageTable(to_arrow(messages), lambda: messages)


def table_of_records(records: _ferromq.Records, messages: Callable[[], list[MessageView]]) -> MessageTable:
    """Return records as columns, decoded without a Python object for each; *messages* makes their messages."""
    pa, schema = _pyarrow()
    decoded = _ferromq.message_columns(records, columns=list(_COLUMNS))
    batch = import_module("ferromq.columns").record_batch(decoded["columns"], decoded["rows"], schema)
    return MessageTable(pa.Table.from_batches([batch], schema=schema), messages)


def _pyarrow() -> tuple[Any, Any]:
    """Return the module pyarrow and the schema of tables."""
    try:
        import pyarrow as pa  # noqa: PLC0415 (an extra)
    except ImportError as error:
        raise ConfigError(f"tables of messages need pyarrow, which is not installed: {_PIP}") from error
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
    return pa, pa.schema([(name, kinds.get(name, pa.string())) for name in _COLUMNS])
