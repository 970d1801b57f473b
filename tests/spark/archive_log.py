"""A log file of made-up records, and the expected content of its archive. Needs neither Spark nor a store."""

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from ferromq.pipeline import archive
from ferromq.pipeline.archiving.publisher import LogPart
from ferromq.spark.arrow import arrow_schema
from ferromq.spark.schema import SCHEMA

SCHEMA_ARROW = arrow_schema(SCHEMA)
BEGIN = datetime(2026, 3, 29, 22, 30, tzinfo=UTC)
TOPICS = ["orders", "%RETRY%billing", "a|b_c-d", "%DLQ%g%1"]
SIZE = 100
"""Bytes of a record of the log in these tests."""


def rows(count: int, start: int = 0) -> list[dict[str, Any]]:
    """Return rows that differ in every column; a thousand cover three hours of two days."""
    made = []
    for number in range(start, start + count):
        random_of = random.Random(number)
        at = BEGIN + timedelta(seconds=10 * number)
        made.append(
            {
                "topic": random_of.choice(TOPICS),
                "queue_id": number % 4,
                "queue_offset": number // 4,
                "physical_offset": number * SIZE,
                "message_id": f"id-{number}",
                "keys": [f"k{number}", "all"][: number % 3],
                "tag": None if number % 5 == 0 else f"tag-{number % 3}",
                "properties": [(f"p{i}", f"ü{number}") for i in range(number % 3)],
                "body": random_of.randbytes(number % 40),
                "born_timestamp": at - timedelta(seconds=1),
                "store_timestamp": at,
                "born_host": "h:1",
                "store_host": "127.0.0.1:10911",
                "reconsume_times": number % 2,
                "sys_flag": 0,
            }
        )
    return made


class Log:
    """A log file of the records `rows`, scanned in batches of *batch* rows."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch, batch: int = 64) -> None:
        self.path, self.batch = path, batch
        self.rows: list[dict[str, Any]] = []
        monkeypatch.setattr(archive, "_scan", self.scan)

    def grow(self, count: int) -> LogPart:
        """Append records, and return the file up to them."""
        new = rows(count, len(self.rows))
        with self.path.open("ab") as file:
            for row in new:
                file.write(SIZE.to_bytes(4, "big") + repr(row).encode()[:SIZE].ljust(SIZE - 4, b"."))
        self.rows += new
        return LogPart(str(self.path), 0, len(self.rows) * SIZE)

    def scan(self, part: LogPart, _on_corrupt: str, _corrupt: list[tuple[int, str]]) -> Iterator[pa.RecordBatch]:
        """Yield the records before the end of *part*."""
        whole = self.rows[: part.end // SIZE]
        for start in range(0, len(whole), self.batch):
            yield pa.RecordBatch.from_pylist(whole[start : start + self.batch], SCHEMA_ARROW)


def archived(out: Path) -> list[dict[str, Any]]:
    """Read the archive with DuckDB, in the order of the log."""
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone='UTC'")
        found = connection.sql(
            f"SELECT * FROM read_parquet('{out}/**/*.parquet', hive_partitioning=true) ORDER BY physical_offset"
        ).to_arrow_table()
    for row in (made := found.to_pylist()):
        at = row["store_timestamp"]
        assert (row.pop("date"), int(row.pop("hour"))) == (at.date(), at.hour)
    return made


def as_read(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row in DuckDB's types."""
    return {**row, "properties": [tuple(item) for item in row["properties"]]}
