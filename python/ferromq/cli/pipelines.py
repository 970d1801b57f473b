"""
`ferromq pipeline NAME …`: which pipelines there are.

Only the table is here. PySpark is imported when a pipeline is named, so that the list costs nothing and needs nothing;
what a pipeline takes and does is in `ferromq.pipeline`.
"""

import argparse
import importlib
import sys
from collections.abc import Mapping, Sequence

from ferromq.errors import ConfigError

PIPELINES: Mapping[str, str] = {
    "archive": "commit-log files as Parquet, by topic, date and hour",
    "audit": "whether a store is sound: records, queues and index against each other",
    "compact": "the last message for each key, as Parquet or to a topic",
    "dead-letters": "what groups gave up, by cause, and a list to replay it from",
    "replay": "messages of an archive, a topic or a log to a topic again",
    "stats": "messages, bytes, tags, keys, delays and lags by topic, time and queue",
}
"""What each does, by the name on the command line; the module has `_` where the name has `-`."""


def add_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]", words: Sequence[str]) -> None:
    """
    Add the command `pipeline` to those of the command line that was given as *words*.

    ConfigError with the line to type where *words* name a pipeline, and a package it needs is not installed.
    """
    pipeline = commands.add_parser("pipeline", help="Spark over data at rest: archive, replay, audit, statistics")
    pipeline.set_defaults(run=lambda _options: _usage(pipeline))
    names = pipeline.add_subparsers(title="pipelines", metavar="NAME")
    for name, text in PIPELINES.items():
        parser = names.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
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
