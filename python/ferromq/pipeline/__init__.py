"""
Spark pipelines over data at rest or in bulk, from a laptop to a cluster.

Each pipeline is a module with a function of its name, from DataFrames to DataFrames, and a command
`ferromq pipeline NAME`. Its file is also a program for `spark-submit`::

    from ferromq.pipeline.audit import audit

    audit(ferromq.spark.session(), "store").show()

docs/pipelines.md describes them. They need the extra: `pip install 'ferromq[spark]'`. This module imports none of them,
so that a worker loads only the one it runs.
"""

from ferromq.spark.requirements import require

require("pyspark")
