"""Spark's schemas as Arrow's, and record batches of them."""

import inspect

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from ferromq.columns import record_batch

__all__ = ["arrow_schema", "record_batch"]


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return *schema* as an Arrow schema with times in UTC, the only zone of PySpark 4.1."""
    knows_others = "timezone" in inspect.signature(to_arrow_schema).parameters
    return to_arrow_schema(schema, timezone="UTC") if knows_others else to_arrow_schema(schema)
