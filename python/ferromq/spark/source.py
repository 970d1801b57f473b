"""
The data source `ferromq`, which Spark asks for readers and writers.

Spark imports this module in every application whose Python has ferromq. Readers and writers are therefore imported when
they are first used: Arrow and the protocols would slow the start of every application and of every Python worker.
"""
# ruff: noqa: PLC0415 (see above)

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, DataSourceStreamWriter, DataSourceWriter
from pyspark.sql.types import StructType

from ferromq.spark.options import STREAM_OPTIONS, ReadOptions
from ferromq.spark.requirements import require
from ferromq.spark.schema import check_schema, schema_of

if TYPE_CHECKING:
    from ferromq.spark.read.reader import BatchReader

__all__ = ["FerromqSource"]


class FerromqSource(DataSource):  # type: ignore[misc]
    """Topics, read and written through their brokers. The options are in `ferromq.spark.options`."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(…)`."""
        return "ferromq"

    def schema(self) -> StructType:
        """Return the columns. Wrong options raise here already, while the user's line is on the stack."""
        if any(name.lower() in self.options for name in STREAM_OPTIONS):
            from ferromq.spark.stream.reader import parse_options

            parse_options(self.options)
        return schema_of(ReadOptions.parse(self.options, also=STREAM_OPTIONS).rows.columns)

    def reader(self, schema: StructType) -> "BatchReader":
        """Return the reader of a batch query."""
        require("pyarrow")
        from ferromq.spark.read.reader import BatchReader

        options = ReadOptions.parse(self.options)
        check_schema(schema, options.rows.columns)
        return BatchReader(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 (Spark's name)
        """Return the reader of a stream query."""
        require("pyarrow")
        from ferromq.spark.stream.reader import StreamReader, parse_options

        options = parse_options(self.options)
        check_schema(schema, options.read.rows.columns)
        return StreamReader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of a batch."""
        require("pyarrow")
        from ferromq.spark.write.writer import BatchWriter, parse_options

        return BatchWriter(parse_options(self.options, is_stream=False, overwrite=overwrite), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 (as above)
        """Return the writer of a stream."""
        require("pyarrow")
        from ferromq.spark.write.writer import StreamWriter, parse_options

        return StreamWriter(parse_options(self.options, is_stream=True, overwrite=overwrite), schema)
