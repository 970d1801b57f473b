"""Buffers in the order of `grpc/columns.rs`, as Arrow record batches."""

import struct

import pyarrow as pa
import pytest

from ferromq.spark import arrow
from ferromq.spark.arrow import record_batch
from ferromq.spark.schema import SCHEMA as ALL

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("tag", pa.string()),
        pa.field("absent", pa.int32()),
        pa.field("keys", pa.list_(pa.string())),
        pa.field("properties", pa.map_(pa.string(), pa.string())),
        pa.field("at", pa.timestamp("us", tz="UTC")),
        pa.field("body", pa.binary()),
    ]
)


def ints(*values: int) -> bytes:
    """Return little-endian 32-bit numbers."""
    return struct.pack(f"<{len(values)}i", *values)


def longs(*values: int) -> bytes:
    """Return little-endian 64-bit numbers."""
    return struct.pack(f"<{len(values)}q", *values)


COLUMNS = {
    "id": (1, b"\x05", [longs(7, 0, -9)]),
    "tag": (1, b"\x06", [ints(0, 0, 2, 2), "é".encode()]),
    "keys": (0, None, [ints(0, 2, 2, 3), ints(0, 1, 3, 3), b"abb"]),
    "properties": (0, None, [ints(0, 1, 1, 2), ints(0, 1, 2), b"kl", ints(0, 0, 1), b"v"]),
    "at": (0, None, [longs(0, 1_000_000, -1)]),
    "body": (0, None, [ints(0, 1, 1, 3), b"\xff\x00\x01"]),
    "not asked for": (0, None, [b"", b""]),
}


def test_every_type_of_column_is_converted() -> None:
    """Numbers, text, lists, maps, times and bytes, with their nulls; missing columns are null."""
    batch = record_batch(COLUMNS, 3, SCHEMA)
    batch.validate(full=True)
    assert batch.schema == SCHEMA
    assert batch.drop_columns(["at"]).to_pydict() == {
        "id": [7, None, -9],
        "tag": [None, "é", ""],
        "absent": [None, None, None],
        "keys": [["a", "bb"], [], [""]],
        "properties": [[("k", "")], [], [("l", "v")]],
        "body": [b"\xff", b"", b"\x00\x01"],
    }
    assert batch.column("at").cast(pa.int64()).to_pylist() == [0, 1_000_000, -1]


def test_fewer_columns_are_fewer_arrays() -> None:
    """A schema may omit columns, and name them in another order."""
    schema = pa.schema([SCHEMA.field("body"), SCHEMA.field("id")])
    assert record_batch(COLUMNS, 3, schema).to_pydict() == {"body": [b"\xff", b"", b"\x00\x01"], "id": [7, None, -9]}


def test_arrow_schemas_are_the_same_for_every_pyspark(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """PySpark 4.1 always uses UTC; later ones take a time zone, by default none."""
    now = arrow.arrow_schema(ALL)

    def of_4_1(_schema: object) -> pa.Schema:
        return now

    monkeypatch.setattr(arrow, "to_arrow_schema", of_4_1)
    assert arrow.arrow_schema(ALL).equals(now)
    assert now.field("store_timestamp").type == pa.timestamp("us", tz="UTC")
