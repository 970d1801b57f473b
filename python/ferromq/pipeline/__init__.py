"""
Pipelines on Spark: what is done to data at rest or in bulk, from a laptop to a cluster.

Each is a function with a Spark session and DataFrames, and a command `ferromq pipeline NAME`; its file is also a
program for `spark-submit`. What they are and what they promise is in docs/pipelines.md. Needs the extra:
`pip install 'ferromq[spark]'`.
"""

from ferromq.spark._requirements import require

require("pyspark")

from ferromq.pipeline.audit import audit  # noqa: E402 (only where there is PySpark)

__all__ = ["audit"]
