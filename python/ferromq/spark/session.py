"""
A Spark session that runs where ferromq runs: the same Python in the workers, and a Java that fits.

A convenience for laptops, tests and the demo. A session made in any other way reads the format just as well,
as long as its Python workers can import ferromq.
"""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pyspark import java_gateway
from pyspark.sql import SparkSession

from ferromq.spark.requirements import find_java, require

SETTINGS = {"spark.sql.python.filterPushdown.enabled": "true"}
"""What a session has unless its maker says otherwise."""


def session(
    master: str = "local[*]", *, app_name: str = "ferromq", config: Mapping[str, str] | None = None
) -> SparkSession:
    """
    Return the running Spark session, or start one at *master*, with the settings of *config*.

    Filters are pushed down to the format, which Spark only does where `spark.sql.python.filterPushdown.enabled` is on.
    Raises RuntimeError with the line to type where no fitting Java is found.
    """
    running = SparkSession.getActiveSession()
    if running is None:
        require("pyarrow", "pandas")
        find_java()
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        if master.startswith("local"):
            # A laptop's host name often resolves to nothing, or to a network that is down.
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.master(master).appName(app_name)
    for key, value in {**SETTINGS, **(config or {})}.items():
        builder = builder.config(key, value)
    with _started_without_fork():
        return builder.getOrCreate()


@contextmanager
def _started_without_fork() -> Iterator[None]:
    """
    Let PySpark start its Java process without a fork.

    PySpark passes a `preexec_fn`, so Python forks and runs code in the child, and so do gRPC's fork handlers: unsafe
    while its threads run. The function only shields Java from Ctrl-C; a process group of its own does too.
    """
    original = java_gateway.Popen

    def start(command: list[str], **options: Any) -> Any:
        options.pop("preexec_fn", None)
        return original(command, **options, **({} if sys.platform == "win32" else {"process_group": 0}))

    java_gateway.Popen = start
    try:
        yield
    finally:
        java_gateway.Popen = original
