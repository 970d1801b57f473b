"""
The columns of the format, the same for every way in.

`message_id` is the producer's id, or where it gave none, the one made of store host and physical offset.
`properties` holds the user's properties without RocketMQ's own, which are columns or belong to the protocol; of a
message that consumers gave back also where it comes from: RETRY_TOPIC, ORIGIN_MESSAGE_ID, DLQ_ORIGIN_TOPIC,
DLQ_ORIGIN_MESSAGE_ID.
`body` is what the producer gave, decompressed where it travelled compressed; where that fails it is as stored, and
`sys_flag` keeps the bit 1 that says so.
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
    Raise ConfigError where *wanted*, which a user may give to read fewer columns, asks for what is not there.

    *columns* are those of the option, which says the same in another way.
    """
    if tuple(columns) != COLUMNS and tuple(wanted.fieldNames()) != tuple(columns):
        raise ConfigError(
            f"option 'columns' is {','.join(columns)!r}, and the schema has {', '.join(wanted.fieldNames())}; "
            "allowed: one of the two"
        )
    for field in wanted.fields:
        if field.name not in COLUMNS:
            raise ConfigError(f"column {field.name!r} of the schema is not known; allowed: {', '.join(COLUMNS)}")
        expected = SCHEMA[field.name].dataType
        if field.dataType != expected:
            given, allowed = field.dataType.simpleString(), expected.simpleString()
            raise ConfigError(f"column {field.name!r} of the schema is {given}; allowed: {allowed}")
