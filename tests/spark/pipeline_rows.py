"""Made-up rows of the format, for tests without a broker."""

from datetime import UTC, datetime, timedelta
from typing import Any

from ferromq.spark.schema import SCHEMA

BEGIN = datetime(2026, 11, 21, 12, tzinfo=UTC)


def row(queue_offset: int, **fields: Any) -> dict[str, Any]:
    """Return a row stored *at* seconds after BEGIN, with *fields* and defaults."""
    at = BEGIN + timedelta(seconds=fields.pop("at", queue_offset))
    made = {
        "topic": "orders",
        "queue_id": 0,
        "queue_offset": queue_offset,
        "physical_offset": None,
        "message_id": None,
        "keys": [],
        "tag": None,
        "properties": {},
        "body": b"x",
        "born_timestamp": at - timedelta(seconds=1),
        "store_timestamp": at,
        "born_host": "h:1",
        "store_host": "127.0.0.1:10911",
        "reconsume_times": 0,
        "sys_flag": 0,
    }
    return made | fields


def frame(session: Any, rows: list[dict[str, Any]]) -> Any:
    """Return *rows* as a DataFrame with several partitions in random order."""
    values = [tuple(made[name] for name in SCHEMA.names) for made in rows]
    return session.createDataFrame(values, SCHEMA).repartition(3, "message_id", "queue_offset")
