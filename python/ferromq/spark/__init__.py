"""
A topic as a Spark DataFrame: `spark.read.format("ferromq")`, without a jar and without registration.

    from ferromq import spark

    flights = (
        spark.session()
        .read.format("ferromq")
        .option("endpoint", "127.0.0.1:8081")
        .option("topic", "flights")
        .load()
    )

Spark 4 finds the format by the top-level module `pyspark_ferromq` of the same wheel. `format("ferromq-log")` reads a
store's files without its broker; Spark finds it by `pyspark_ferromq_log`. `session` is a convenience: any SparkSession
works whose Python has ferromq installed. The options are in `options` and `log.options`, the columns in `schema`.

Needs the extra: `pip install 'ferromq[spark]'`.
"""

from ferromq.spark.requirements import require_pyspark

require_pyspark()

from ferromq.spark.package import pack  # noqa: E402 (after the check for PySpark)
from ferromq.spark.session import session  # noqa: E402
from ferromq.spark.source import FerromqSource  # noqa: E402

__all__ = ["FerromqSource", "pack", "session"]
