"""
Starts a Spark session with this Python in the workers and a supported Java, for laptops, tests and the demo.

Any other session reads the format as well, if its Python workers can import ferromq.
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
"""Default settings of a session."""


def session(
    master: str = "local[*]", *, app_name: str = "ferromq", config: Mapping[str, str] | None = None
) -> SparkSession:
    """
    Return the running Spark session, or start one at *master*, with the settings of *config*.

    The session pushes filters down to the format (`spark.sql.python.filterPushdown.enabled`). Raises RuntimeError with
    the command to run if no supported Java is found.
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

    PySpark passes a `preexec_fn`, so Python forks and runs it, and gRPC's fork handlers, in the child: unsafe while
    gRPC's threads run. The function only shields Java from Ctrl-C; a process group of its own does so as well.
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
