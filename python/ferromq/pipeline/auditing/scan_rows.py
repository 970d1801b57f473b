"""
The rows that the tasks of an audit give: what records and entries of queues and index say, and what is wrong by itself.

One shape for all of them, told apart by `part`, so that one job reads the store once. A file or queue that was read to
its end gives a row with its figures, as JSON in `detail`.
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
"""`hashes` are those the index must lead from; `hash` is an index entry's, or of a record that of its tag."""

SPARK = (
    "part string not null, kind string, topic string, queue_id int, queue_offset bigint, physical_offset bigint, "
    "size int, tag_hash bigint, sys_flag int, store_timestamp bigint, hashes array<int>, hash int, file string, "
    "at bigint, detail string"
)


def batch(part: str, rows: int, file: str | None, columns: Mapping[str, Any]) -> pa.RecordBatch:
    """Return *rows* rows of *part*; columns are NumPy or Arrow arrays, or one value for all; the others are null."""
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
    """Return findings, each with the columns it has, as a batch."""
    return pa.RecordBatch.from_pylist([{"part": FINDING, **row} for row in rows], schema=ARROW)


def figures(kind: str, values: Mapping[str, Any], **columns: Any) -> pa.RecordBatch:
    """Return the row of a *kind* of file (`log`, `queue`, `index`) with what was counted in it."""
    row = {"part": FIGURES, "kind": kind, "detail": json.dumps(values), **columns}
    return pa.RecordBatch.from_pylist([row], schema=ARROW)
