"""
Arguments, Spark session, errors and exit codes that all pipeline commands share.

A pipeline's `run` works inside `started` and ends with a `Summary`::

    def run(arguments: SimpleNamespace) -> int:
        with shared.started(arguments, "audit") as spark:
            findings = audit(spark, arguments.directory).persist()
            …
        summary.show(arguments)
        return shared.FINDINGS if … else shared.OK
"""

import importlib
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from ferromq.errors import ConfigError, FerromqError
from ferromq.pipeline.command.parameters import Parameters
from ferromq.pipeline.command.task_progress import TaskProgress
from ferromq.spark.session import session

if TYPE_CHECKING:
    import click

OK = 0
"""Exit code: the pipeline ran and found nothing wrong."""
FINDINGS = 1
"""Exit code: the pipeline ran and found a problem."""
ERROR = 2
"""Exit code: wrong usage, or the pipeline failed; the error is on stderr."""
INTERRUPTED = 130
"""Exit code: stopped by Ctrl-C."""

_LOCAL = {
    "spark.log.level": "ERROR",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
}
"""Settings of a local session that a command starts; `--config` overrides them."""

_Run = Callable[[SimpleNamespace], int]


def add_arguments(parameters: Parameters) -> None:
    """Add the arguments that every pipeline takes."""
    add = parameters.option
    add("--master", metavar="URL", help="Spark master: local[*] (the default), local[2], spark://HOST:PORT, …")
    add("--config", metavar="KEY=VALUE", multiple=True, help="Spark setting; may be repeated")
    add("--json", is_flag=True, help="print the summary as one JSON object")
    add("--quiet", is_flag=True, help="no progress bar")


def parameters_of(pipeline: ModuleType) -> "list[click.Parameter]":
    """Return the parameters of the command of a pipeline's module."""
    parameters = Parameters()
    pipeline.add_arguments(parameters)
    add_arguments(parameters)
    return parameters.all


def add_output(parameters: Parameters, what: str) -> None:
    """Add `--output`, the path to which `write` writes *what*."""
    parameters.option(
        "--output",
        metavar="PATH",
        help=f"write {what} to this new directory: CSV or JSON lines if the name ends in .csv or .json, else Parquet",
    )


def write(frame: DataFrame, path: str) -> None:
    """Write *frame* to *path* in the format of its suffix. Spark raises if *path* exists."""
    kind = path.rsplit(".", 1)[-1].lower()
    writer = frame.write
    if kind == "csv":
        writer.csv(path, header=True)
    elif kind == "json":
        writer.json(path)
    else:
        writer.parquet(path, compression="zstd")


@contextmanager
def started(arguments: SimpleNamespace, name: str) -> Iterator[SparkSession]:
    """
    Yield a Spark session for the pipeline *name*, with a progress bar.

    An active session is used and left running. Under `spark-submit` its settings apply. Otherwise a new session starts
    at `--master` and is stopped at the end. Raises ConfigError if `--config` is not KEY=VALUE.
    """
    config = _settings(arguments.config)
    running = SparkSession.getActiveSession()
    spark = running if running is not None else _start(arguments.master, name, config)
    try:
        with TaskProgress(spark, name, is_quiet=arguments.quiet):
            yield spark
    finally:
        if running is None:
            spark.stop()


def _start(master: str | None, name: str, config: Mapping[str, str]) -> SparkSession:
    app_name = f"ferromq {name}"
    if master is None and "PYSPARK_GATEWAY_PORT" in os.environ:
        builder = SparkSession.builder.appName(app_name)  # spark-submit knows master and settings
        for key, value in config.items():
            builder = builder.config(key, value)
        return builder.getOrCreate()
    master = master or "local[*]"
    return session(master, app_name=app_name, config={**_LOCAL, **config} if master.startswith("local") else config)


def _settings(pairs: Sequence[str]) -> dict[str, str]:
    settings = {}
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not (key and separator):
            raise ConfigError(f"--config is {pair!r}; allowed: KEY=VALUE, such as spark.executor.memory=4g")
        settings[key] = value
    return settings


# --- errors ------------------------------------------------------------------------------------------------------


def guarded(run: _Run, arguments: SimpleNamespace) -> int:
    """Call *run*; print an expected error as one line on stderr and return its exit code."""
    try:
        return run(arguments)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except KeyboardInterrupt:
        sys.stderr.write("ferromq: stopped by Ctrl-C\n")
        return INTERRUPTED
    except (PySparkException, Py4JJavaError) as error:
        text = cause(str(error))
    except (ModuleNotFoundError, FerromqError, OSError, ValueError, RuntimeError) as error:
        text = str(error)
    sys.stderr.write(f"ferromq: {text}\n")
    return ERROR


def cause(text: str) -> str:
    """Return the message of the innermost error in *text*, without Spark's and Python's stack traces."""
    ours = re.findall(r"^(?:ferromq\.errors\.\w+|OSError|\w*Error): (.+)$", text, re.MULTILINE)
    return ours[-1].strip() if ours else text.strip().split("\n", 1)[0]


def main(name: str) -> int:
    """Run pipeline *name* with the arguments of this process, as `spark-submit` starts it; return the exit code."""
    # The program's file is `__main__`: Spark's workers need its functions under the module's own name.
    import click  # noqa: PLC0415 (Spark's workers import this module)

    module = importlib.import_module(f"ferromq.pipeline.{name.replace('-', '_')}")
    command = click.Command(name, params=parameters_of(module))
    try:
        arguments = command.make_context(f"ferromq pipeline {name}", sys.argv[1:]).params
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.ClickException as error:
        error.show()
        return ERROR
    return guarded(module.run, SimpleNamespace(**arguments))
