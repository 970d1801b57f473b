"""
One thing that an audit found, and the table of them.

What the kinds mean is listed in docs/storage-format.md and docs/pipelines.md.
"""

from dataclasses import astuple, dataclass
from typing import Any

from pyspark.sql.types import IntegerType, LongType, StringType, StructType

SCHEMA = (
    StructType()
    .add("kind", StringType(), nullable=False)
    .add("topic", StringType())
    .add("queue_id", IntegerType())
    .add("queue_offset", LongType())
    .add("physical_offset", LongType())
    .add("file", StringType())
    .add("detail", StringType())
)


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is not as it should be, with as much of its place as is known."""

    kind: str
    topic: str | None = None
    queue_id: int | None = None
    queue_offset: int | None = None
    physical_offset: int | None = None
    file: str | None = None
    detail: str | None = None

    def row(self) -> tuple[Any, ...]:
        """Return it in the order of `SCHEMA`."""
        return astuple(self)
