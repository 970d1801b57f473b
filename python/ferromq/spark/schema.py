"""
The columns of the format, the same for every way in.

PullMessage does not carry everything that a record holds: `physical_offset` and `sys_flag` are null in rows that
came through a broker. `properties` holds the user's properties without RocketMQ's own, which are columns
or belong to the protocol. `body` is what the producer gave, decompressed where it travelled compressed.
"""

from pyspark.sql.types import StructType

from ferromq.errors import ConfigError

SCHEMA = StructType.fromDDL(
    "topic STRING, queue_id INT, queue_offset BIGINT, physical_offset BIGINT, message_id STRING, "
    "keys ARRAY<STRING>, tag STRING, properties MAP<STRING, STRING>, body BINARY, "
    "born_timestamp TIMESTAMP, store_timestamp TIMESTAMP, born_host STRING, store_host STRING, "
    "reconsume_times INT, sys_flag INT"
)


def check_schema(wanted: StructType) -> None:
    """Raise ConfigError where *wanted*, which a user may give to read fewer columns, asks for what is not there."""
    for field in wanted.fields:
        if field.name not in SCHEMA.fieldNames():
            known = ", ".join(SCHEMA.fieldNames())
            raise ConfigError(f"column {field.name!r} of the schema is not known; allowed: {known}")
        expected = SCHEMA[field.name].dataType
        if field.dataType != expected:
            given, allowed = field.dataType.simpleString(), expected.simpleString()
            raise ConfigError(f"column {field.name!r} of the schema is {given}; allowed: {allowed}")
