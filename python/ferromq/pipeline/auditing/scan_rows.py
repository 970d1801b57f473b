"""
The rows that the tasks of an audit yield: records, queue entries, index entries, findings and figures.

All have one schema and differ in `part`, so one job reads the store once. Each scanned file or queue ends with a row of
figures, as JSON in `detail`.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

RECORD, ENTRY, KEY, FINDING, FIGURES = "record", "entry", "key", "finding", "figures"

ARROW = pa.schema(
    [
        pa.field("part", pa.string(), nullable=False),
        ("kind", pa.string()),
        ("topic", pa.string()),
        ("queue_id", pa.int32()),
        ("queue_offset", pa.int64()),
        ("physical_offset", pa.int64()),
        ("size", pa.int32()),
        ("tag_hash", pa.int64()),
        ("sys_flag", pa.int32()),
        ("store_timestamp", pa.int64()),
        ("hashes", pa.list_(pa.int32())),
        ("hash", pa.int32()),
        ("file", pa.string()),
        ("at", pa.int64()),
        ("detail", pa.string()),
    ]
)
"""`hashes` are the key hashes of a record; `hash` is that of an index entry, or of a record's tag."""

SPARK = (
    "part string not null, kind string, topic string, queue_id int, queue_offset bigint, physical_offset bigint, "
    "size int, tag_hash bigint, sys_flag int, store_timestamp bigint, hashes array<int>, hash int, file string, "
    "at bigint, detail string"
)


def batch(part: str, rows: int, file: str | None, columns: Mapping[str, Any]) -> pa.RecordBatch:
    """Return *rows* rows of *part*. A column is a NumPy or Arrow array, or one value; missing columns are null."""
    given = {"part": part, "file": file, **columns}
    return pa.RecordBatch.from_arrays([_array(field, given.get(field.name), rows) for field in ARROW], schema=ARROW)


def _array(field: pa.Field, value: Any, rows: int) -> pa.Array:
    match value:
        case None:
            return pa.nulls(rows, field.type)
        case pa.Array():
            return value
        case np.ndarray():
            native = np.ascontiguousarray(value, dtype=field.type.to_pandas_dtype())
            return pa.array(native, field.type)
        case _:
            return pa.repeat(pa.scalar(value, field.type), rows)


def findings(rows: Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
    """Return findings as a batch; missing columns are null."""
    return pa.RecordBatch.from_pylist([{"part": FINDING, **row} for row in rows], schema=ARROW)


def figures(kind: str, values: Mapping[str, Any], **columns: Any) -> pa.RecordBatch:
    """Return the row of figures of a *kind* of file (`log`, `queue`, `index`)."""
    row = {"part": FIGURES, "kind": kind, "detail": json.dumps(values), **columns}
    return pa.RecordBatch.from_pylist([row], schema=ARROW)
