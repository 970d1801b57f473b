"""
The columns of both formats.

`message_id` is the producer's id, or else one made of store host and physical offset. `properties` are the user's.
RocketMQ's own are columns or belong to the protocol, except the origin of a retried or dead letter message:
RETRY_TOPIC, ORIGIN_MESSAGE_ID, DLQ_ORIGIN_TOPIC, DLQ_ORIGIN_MESSAGE_ID. `body` is decompressed. If that fails it is as
stored, and bit 1 of `sys_flag` stays set.
"""

from collections.abc import Sequence

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

from ferromq.errors import ConfigError

SCHEMA = (
    StructType()
    .add("topic", StringType())
    .add("queue_id", IntegerType())
    .add("queue_offset", LongType())
    .add("physical_offset", LongType())
    .add("message_id", StringType())
    .add("keys", ArrayType(StringType()))
    .add("tag", StringType())
    .add("properties", MapType(StringType(), StringType()))
    .add("body", BinaryType())
    .add("born_timestamp", TimestampType())
    .add("store_timestamp", TimestampType())
    .add("born_host", StringType())
    .add("store_host", StringType())
    .add("reconsume_times", IntegerType())
    .add("sys_flag", IntegerType())
)
COLUMNS = tuple(SCHEMA.fieldNames())


def schema_of(columns: Sequence[str]) -> StructType:
    """Return the schema of these columns, in this order."""
    return StructType([SCHEMA[column] for column in columns])


def check_schema(wanted: StructType, columns: Sequence[str]) -> None:
    """
    Raise ConfigError if *wanted*, a user's schema with fewer columns, does not match the format.

    *columns* are those of the option `columns`, which the schema must not contradict.
    """
    if tuple(columns) != COLUMNS and tuple(wanted.fieldNames()) != tuple(columns):
        raise ConfigError(
            f"option 'columns' is {','.join(columns)!r}, but the schema has {', '.join(wanted.fieldNames())}; "
            "allowed: one of the two"
        )
    for field in wanted.fields:
        if field.name not in COLUMNS:
            raise ConfigError(f"column {field.name!r} of the schema is not known; allowed: {', '.join(COLUMNS)}")
        expected = SCHEMA[field.name].dataType
        if field.dataType != expected:
            given, allowed = field.dataType.simpleString(), expected.simpleString()
            raise ConfigError(f"column {field.name!r} of the schema is {given}; allowed: {allowed}")
