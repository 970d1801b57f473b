"""
Pipelines on Spark: what is done to data at rest or in bulk, from a laptop to a cluster.

Each is a module with a function of its name, DataFrames in and out, and a command `ferromq pipeline NAME`; its file is
also a program for `spark-submit`::

    from ferromq.pipeline.audit import audit

    audit(ferromq.spark.session(), "store").show()

What they are and what they promise is in docs/pipelines.md. Needs the extra: `pip install 'ferromq[spark]'`. Nothing is
imported here, so that a worker loads the one it runs.
"""

from ferromq.spark.requirements import require

require("pyspark")
