"""
The data source `ferromq-log`, which reads commit-log files without a broker.

Spark imports this module in every application whose Python has ferromq, so the reader is imported when it is used.
"""

from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from ferromq.errors import ConfigError
from ferromq.spark.log.options import LogOptions
from ferromq.spark.requirements import require
from ferromq.spark.schema import check_schema, schema_of

if TYPE_CHECKING:
    from ferromq.spark.log.reader import LogReader

__all__ = ["FerromqLogSource"]


class FerromqLogSource(DataSource):  # type: ignore[misc]
    """Messages of store directories and commit-log files. The options are in `ferromq.spark.log.options`."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(…)`."""
        return "ferromq-log"

    def schema(self) -> StructType:
        """Return the columns. Wrong options raise here already, while the user's line is on the stack."""
        return schema_of(LogOptions.parse(self.options).columns)

    def reader(self, schema: StructType) -> "LogReader":
        """Return the reader of a batch query."""
        require("pyarrow")
        from ferromq.spark.log.reader import LogReader  # noqa: PLC0415 (see above)

        options = LogOptions.parse(self.options)
        check_schema(schema, options.columns)
        return LogReader.of(options, schema)

    def streamReader(self, schema: StructType) -> Any:  # noqa: N802 (PySpark's name)
        """Raise ConfigError: a stream needs a broker that keeps its offsets."""
        del schema
        raise ConfigError("format 'ferromq-log' has no stream; allowed: spark.read, or readStream.format('ferromq')")
