"""Makes Arrow record batches of buffers that Rust filled, without a copy or a Python object for each message."""

from collections.abc import Mapping, Sequence

import pyarrow as pa

from ferromq._ferromq import ColumnBuffer

Column = tuple[int, bytes | ColumnBuffer | None, Sequence[bytes | ColumnBuffer]]
"""Null count, validity bitmap (None: no nulls), and the buffers in the order of `_ferromq.record_columns`."""


def record_batch(columns: Mapping[str, Column], rows: int, schema: pa.Schema) -> pa.RecordBatch:
    """Return *rows* rows of *schema*; a column that *columns* lacks is null."""
    arrays = [
        _array(field.type, rows, columns[field.name]) if field.name in columns else pa.nulls(rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _array(kind: pa.DataType, rows: int, column: Column) -> pa.Array:
    null_count, validity, data = column
    bitmap = None if validity is None else _buffer(validity)
    first, *rest = map(_buffer, data)
    if not kind.num_fields:
        return pa.Array.from_buffers(kind, rows, [bitmap, first, *rest], null_count)
    if pa.types.is_list(kind):
        return pa.Array.from_buffers(kind, rows, [bitmap, first], null_count, children=[_texts(kind.value_type, rest)])
    keys, values = _texts(kind.key_type, rest[:2]), _texts(kind.item_type, rest[2:])
    fields = pa.struct([kind.key_field, kind.item_field])
    entries = pa.Array.from_buffers(fields, len(keys), [None], 0, children=[keys, values])
    return pa.Array.from_buffers(kind, rows, [bitmap, first], null_count, children=[entries])


def _buffer(data: bytes | ColumnBuffer) -> pa.Buffer:
    """Wrap *data* without a copy; Arrow keeps it alive."""
    if isinstance(data, ColumnBuffer):
        return pa.foreign_buffer(data.address, len(data), data)
    return pa.py_buffer(data)


def _texts(kind: pa.DataType, buffers: Sequence[pa.Buffer]) -> pa.Array:
    """Return the items of lists or maps, without nulls: one less than there are offsets."""
    offsets, data = buffers
    return pa.Array.from_buffers(kind, offsets.size // 4 - 1, [None, offsets, data], 0)
