"""The findings of an audit. docs/storage-format.md and docs/pipelines.md list the kinds."""

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
    """One problem of a store, with the known parts of its location."""

    kind: str
    topic: str | None = None
    queue_id: int | None = None
    queue_offset: int | None = None
    physical_offset: int | None = None
    file: str | None = None
    detail: str | None = None

    def row(self) -> tuple[Any, ...]:
        """Return the fields in the order of `SCHEMA`."""
        return astuple(self)
