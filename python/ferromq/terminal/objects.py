"""
How objects show themselves: one line for `repr`, a small table for notebooks.

`import ferromq` imports this module, and must not wait for what it imports on first use.
"""

from collections.abc import Iterable, Iterator, Sequence

_LONGEST = 200
"""More characters of a cell are cut off."""
_PREVIEW = 64
"""The bytes of a body that are shown."""

_RECEIVED = (
    *("topic", "message_id", "queue_id", "queue_offset", "tag", "keys", "properties", "message_group"),
    *("delivery_attempt", "born_timestamp", "store_timestamp", "body"),
)
_FIELDS = {
    "MessageView": _RECEIVED,
    "DecodedMessage": ("value", *_RECEIVED),
    "Message": ("tag", "keys", "properties", "message_group", "delivery_timestamp", "delay", "priority", "body"),
    "StoredMessage": (
        *("topic", "message_id", "queue_id", "queue_offset", "physical_offset", "tag", "keys", "properties"),
        *("reconsume_times", "born_timestamp", "store_timestamp", "body"),
    ),
    "SendReceipt": (
        *("message_id", "offset_message_id", "topic", "queue_id", "queue_offset", "broker_name", "durability"),
        "recall_handle",
    ),
    "ExpiredFile": ("path", "begin", "end", "oldest_ms", "newest_ms"),
    "DeadLetter": ("group", "topic", "message_id", "origin_message_id", "reason", "exception", "attempts", "broker"),
}
"""What is shown of classes that are neither a `NamedTuple` nor a dataclass, or that have more to show than fields."""


class Shown:
    """Shows an object by its kind, its facts and its state."""

    @property
    def _kind(self) -> str:
        """Its name in `ferromq`."""
        return type(self).__name__

    @property
    def _state(self) -> str:
        return ""

    def _facts(self) -> Iterator[tuple[str, object]]:
        """Yield names and values."""
        yield from ()

    def __repr__(self) -> str:
        import json  # noqa: PLC0415

        facts = (f"{name}={json.dumps(str(value), ensure_ascii=False)}" for name, value in self._facts())
        return f"<{' '.join(filter(None, (self._kind, *facts, self._state)))}>"

    def _repr_html_(self) -> str:
        """Return a table for notebooks."""
        return html(f"{self._kind} ({self._state})" if self._state else self._kind, (), self._facts())


def html_of(shown: object) -> str:
    """Return the fields of a message, a `NamedTuple` or a dataclass as a table for notebooks, without empty ones."""
    import dataclasses  # noqa: PLC0415

    kind = type(shown)
    names = _FIELDS.get(kind.__name__) or getattr(kind, "_fields", None)
    if names is None:
        assert dataclasses.is_dataclass(shown)
        names = tuple(field.name for field in dataclasses.fields(shown) if field.repr)
    rows = ((name, _value(shown, name)) for name in names)
    return html(kind.__name__, (), [row for row in rows if not _is_empty(row[1])])


def html(title: str, head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table for notebooks, with all texts escaped; without a head, the first cell of a row is its heading."""
    from html import escape  # noqa: PLC0415

    def cells(row: Sequence[object]) -> Iterator[str]:
        for number, cell in enumerate(row):
            text = escape(short(cell))
            yield f"<td>{text}</td>" if head or number else f"<th>{text}</th>"

    top = f"<tr>{''.join(f'<th>{escape(name)}</th>' for name in head)}</tr>" if head else ""
    body = "".join(f"<tr>{''.join(cells(row))}</tr>" for row in rows)
    return f"<div><b>{escape(title)}</b><table>{top}{body}</table></div>"


def short(value: object) -> str:
    """Return a value as it is shown: the beginning of bytes and of long texts."""
    if isinstance(value, bytes):
        return repr(value) if len(value) <= _PREVIEW else f"{value[:_PREVIEW]!r}… ({len(value):,} bytes)"
    text = str(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _is_empty(value: object) -> bool:
    # Values of programs may not know whether they are true: arrays, for example.
    return value is None or (isinstance(value, (str, bytes, tuple, dict)) and not value)


def _value(shown: object, name: str) -> object:
    try:
        return getattr(shown, name)
    except ValueError as error:  # a body that is damaged
        return error
