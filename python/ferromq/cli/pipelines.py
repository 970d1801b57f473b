"""
The command `ferromq pipeline NAME`.

It imports PySpark and the pipeline only when a pipeline is named.
"""

import argparse
import importlib
import sys
from collections.abc import Mapping, Sequence

from ferromq.errors import ConfigError

PIPELINES: Mapping[str, str] = {
    "archive": "write commit log files as Parquet, by topic, date and hour",
    "audit": "check a store: compare records, queues and index with each other",
    "compact": "keep the last message of each key, as Parquet or in a topic",
    "dead-letters": "list dead letters by group and cause, and write a list for replay",
    "replay": "send messages of an archive, a topic or a log again",
    "stats": "count messages, bytes, tags, keys, delays and lags by topic, time and queue",
}
"""Name on the command line → help text. The module's name has `_` instead of `-`."""


def add_commands(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]", words: Sequence[str], text: str
) -> None:
    """
    Add the command `pipeline` with the help *text*.

    If *words*, the command line, name a pipeline, add that pipeline's arguments.

    Raises `ConfigError` with the pip command if the pipeline needs a package that is not installed.
    """
    pipeline = commands.add_parser("pipeline", help=text)
    pipeline.set_defaults(run=lambda _options: _usage(pipeline))
    names = pipeline.add_subparsers(title="pipelines", metavar="NAME")
    for name, told in PIPELINES.items():
        parser = names.add_parser(name, help=told, description=f"{told[0].upper()}{told[1:]}.")
        if list(words[:2]) == ["pipeline", name]:
            _add_pipeline(parser, name)


def _add_pipeline(parser: argparse.ArgumentParser, name: str) -> None:
    try:
        frame = importlib.import_module("ferromq.pipeline.command.shared")
        module = importlib.import_module(f"ferromq.pipeline.{name.replace('-', '_')}")
    except ModuleNotFoundError as error:
        raise ConfigError(str(error)) from error
    module.add_arguments(parser)
    frame.add_arguments(parser)
    parser.set_defaults(run=lambda arguments: frame.guarded(module.run, arguments))


def _usage(parser: argparse.ArgumentParser) -> int:
    parser.print_help(sys.stderr)
    return 2
