"""
What all pipelines have in common: arguments, the session, the progress bar, the summary, errors and exit codes.

A pipeline's `run` does its work inside `started` and ends with a `Summary`::

    def run(arguments: argparse.Namespace) -> int:
        with _frame.started(arguments, "audit") as spark:
            findings = audit(spark, arguments.directory).persist()
            …
        summary.show(arguments)
        return _frame.FOUND if … else _frame.FINE
"""

import argparse
import importlib
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from ferromq.errors import ConfigError, FerromqError
from ferromq.pipeline._tasks import TaskProgress
from ferromq.spark.session import session
from ferromq.terminal import text as texts

FINE = 0
"""Exit code: it ran, and nothing was found."""
FOUND = 1
"""Exit code: it ran, and something is not as it should be."""
WRONG = 2
"""Exit code: wrong usage, or it could not run through; the error is on stderr."""
STOPPED = 130
"""Exit code: stopped by Ctrl-C."""

_LOCAL = {
    "spark.log.level": "ERROR",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
}
"""Settings of a session that a command starts on this machine; `--config` counts more."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that every pipeline takes."""
    group = parser.add_argument_group("Spark")
    group.add_argument(
        "--master", metavar="URL", help="where it runs: local[*] (the default), local[2], spark://HOST:PORT, …"
    )
    group.add_argument(
        "--config", metavar="KEY=VALUE", action="append", default=[], help="a setting of Spark; may be repeated"
    )
    shown = parser.add_argument_group("output")
    shown.add_argument("--json", action="store_true", help="the summary as one JSON object, for programs")
    shown.add_argument("--quiet", action="store_true", help="no progress bar")


def add_output(parser: argparse.ArgumentParser, what: str) -> None:
    """Add `--output`, the place `write` puts *what*."""
    parser.add_argument(
        "--output",
        metavar="PATH",
        help=f"write {what} there, a directory that does not exist yet: CSV or JSON lines where the name ends in .csv "
        "or .json, else Parquet",
    )


def write(frame: DataFrame, path: str) -> None:
    """Write *frame* to *path* in the format that its name says; refused by Spark where something is there."""
    kind = path.rsplit(".", 1)[-1].lower()
    writer = frame.write
    if kind == "csv":
        writer.csv(path, header=True)
    elif kind == "json":
        writer.json(path)
    else:
        writer.parquet(path, compression="zstd")


@contextmanager
def started(arguments: argparse.Namespace, name: str) -> Iterator[SparkSession]:
    """
    Give a session for the pipeline *name*, with a progress bar while it works.

    The active session where there is one, which is left running; under `spark-submit` the one it was asked for; else a
    new one at `--master`, stopped at the end. Raises ConfigError where `--config` is no KEY=VALUE.
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


# --- the end -----------------------------------------------------------------------------------------------------


class Summary:
    """
    What a pipeline says at its end: figures with their names, then tables.

    On a terminal as text, with `--json` as one object: names with `_` for blanks, and tables as lists of objects.
    """

    def __init__(self, title: str) -> None:
        self._title = title
        self._figures: list[tuple[str, Any, str]] = []
        self._tables: list[tuple[str, Sequence[str], Sequence[Sequence[Any]], str, int]] = []

    def add(self, name: str, value: Any, text: str | None = None) -> None:
        """Add a figure; *text* is how people read it."""
        shown = f"{value:,}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)
        self._figures.append((name, value, shown if text is None else text))

    def table(
        self, name: str, head: Sequence[str], rows: Sequence[Sequence[Any]], alignment: str, *, more: int = 0
    ) -> None:
        """Add a table; *alignment* has `<` or `>` for each column. *more* rows are not shown, and said to be there."""
        self._tables.append((name, head, rows, alignment, more))

    def text(self) -> str:
        """Return it as people read it."""
        width = max((len(name) for name, _, _ in self._figures), default=0)
        lines = [self._title, *(f"  {name:<{width}}  {text}" for name, _, text in self._figures)]
        for name, head, rows, alignment, more in self._tables:
            if rows:
                cells = [["" if cell is None else _cell(cell) for cell in row] for row in rows]
                lines += ["", name, *(f"  {line}" for line in texts.table(head, cells, alignment))]
                lines += [f"  … and {more:,} more"] if more else []
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        """Return it as programs read it."""
        figures = {name.replace(" ", "_"): value for name, value, _ in self._figures}
        keys = {name: [word.replace(" ", "_") for word in head] for name, head, *_ in self._tables}
        tables = {
            name.replace(" ", "_"): [dict(zip(keys[name], row, strict=True)) for row in rows]
            for name, _, rows, *_ in self._tables
        }
        return figures | tables

    def show(self, arguments: argparse.Namespace) -> None:
        """Print it to stdout, as *arguments* ask for it."""
        text = json.dumps(self.as_dict(), default=str, ensure_ascii=False) if arguments.json else self.text()
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()


def _cell(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"


# --- errors ------------------------------------------------------------------------------------------------------


def guarded(run: Callable[[argparse.Namespace], int], arguments: argparse.Namespace) -> int:
    """Call *run*; what it raises for the user's sake becomes one line on stderr and the exit code WRONG or STOPPED."""
    try:
        return run(arguments)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FINE
    except KeyboardInterrupt:
        sys.stderr.write("ferromq: stopped by Ctrl-C\n")
        return STOPPED
    except (PySparkException, Py4JJavaError) as error:
        text = cause(str(error))
    except (ModuleNotFoundError, FerromqError, OSError, ValueError, RuntimeError) as error:
        text = str(error)
    sys.stderr.write(f"ferromq: {text}\n")
    return WRONG


def cause(text: str) -> str:
    """Return what a worker or a data source said, out of all that Spark puts around it."""
    ours = re.findall(r"^(?:ferromq\.errors\.\w+|OSError|\w*Error): (.+)$", text, re.MULTILINE)
    return ours[-1].strip() if ours else text.strip().split("\n", 1)[0]


def main(name: str) -> int:
    """Run pipeline *name* with the arguments of this process, as `spark-submit` starts it; return the exit code."""
    # The program's file is `__main__`: Spark's workers need its functions under the module's own name.
    module = importlib.import_module(f"ferromq.pipeline.{name.replace('-', '_')}")
    parser = argparse.ArgumentParser(prog=f"ferromq pipeline {name}")
    module.add_arguments(parser)
    add_arguments(parser)
    return guarded(module.run, parser.parse_args())
