"""
Converts the columns of an Arrow batch for `_ferromq.Rows`: numbers and offsets of eight bytes, and the first row.

Buffers are copied, because Arrow's may change. For a slice of a batch the whole buffers are copied.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import pyarrow as pa

Column = tuple[int, bytes | None, bytes]
"""Index of the first row's value, validity (None: no nulls), values or offsets."""
Texts = tuple[Column, bytes]
"""Offsets, and data."""


def columns_of(batch: pa.RecordBatch) -> dict[str, Any]:
    """Return the columns of *batch* by name; lists of keys as `keys`, single keys as `key`."""
    columns: dict[str, Any] = {}
    for name, array in zip(batch.schema.names, batch.columns, strict=True):
        is_one = name == "keys" and not _is_list(array.type)
        lay: Callable[[Any], Any] = _LAID.get(name, _texts)
        columns["key" if is_one else name] = lay(array)
    return columns


def _column(array: pa.Array, validity: pa.Buffer | None, values: pa.Buffer | None) -> Column:
    return array.offset, _bytes(validity) if validity is not None and array.null_count else None, _bytes(values)


def _bytes(buffer: Any) -> bytes:
    return b"" if buffer is None else bytes(buffer.to_pybytes())


def _texts(array: pa.Array, kind: pa.DataType | None = None) -> Texts:
    laid = array.cast(kind or pa.large_string())
    validity, offsets, data = laid.buffers()
    return _column(laid, validity, offsets), _bytes(data)


def _bodies(array: pa.Array) -> Texts:
    return _texts(array, pa.large_binary())


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _keys(array: pa.Array) -> Texts | tuple[Column, Texts]:
    return (_spans(array), _texts(array.values)) if _is_list(array.type) else _texts(array)


def _properties(array: pa.Array) -> tuple[Column, Texts, Texts]:
    return _spans(array), _texts(array.keys), _texts(array.items)


def _spans(array: pa.Array) -> Column:
    """Return the offsets of the items of each list or map, relative to the first row, also for a slice."""
    first, validity, _ = _column(array, array.buffers()[0], None)
    offsets = array.offsets.cast(pa.int64())
    values = _bytes(offsets.buffers()[1])[8 * offsets.offset :]
    return first, validity, b"\0" * (8 * first) + values


def _numbers(array: pa.Array) -> Column:
    laid = array.cast(pa.int64())
    return _column(laid, *laid.buffers())


def _times(array: pa.Array) -> Column:
    return _numbers(array.cast(pa.timestamp("ms", array.type.tz), safe=False))


def _delays(array: pa.Array) -> tuple[Column, int]:
    """Return the delays, and the number of their units in a millisecond."""
    if pa.types.is_duration(array.type):
        return _numbers(array.cast(pa.duration("us"))), 1000
    return _numbers(array), 1


_LAID: Mapping[str, Callable[[pa.Array], Any]] = MappingProxyType(
    {
        "body": _bodies,
        "keys": _keys,
        "properties": _properties,
        "delivery_timestamp": _times,
        "delay": _delays,
        "priority": _numbers,
    }
)
