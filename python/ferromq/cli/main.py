"""
The command lines of ferromq: parses arguments and calls the function of the command.

Exit codes: 0 done or stopped by a signal, 1 failed, 2 wrong usage or configuration. The commands for running servers,
`cli.administration`, have more of them.
"""

import argparse
import difflib
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import ferromq
from ferromq.cli.output import fail, say
from ferromq.errors import ConfigError, FerromqError
from ferromq.process import logs

if TYPE_CHECKING:
    from ferromq.config.reader import Config

_HELP = {
    "demo": "send, consume, query and analyse 336,776 real rows, and survive a kill",
    "dev": "run a name server and a broker in one process, on 127.0.0.1",
    "namesrv": "run a name server",
    "broker": "run a broker",
    "store": "read a store directory of ferromq or a Java broker, without changes",
    "pipeline": "run a Spark job: archive, replay, audit, statistics",
    "version": "print the version",
}
"""The commands of this module, with their help. All others administer running servers."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command `ferromq` and return the exit code."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    if not words or words[0] not in _HELP:
        from ferromq.cli.administration import app  # noqa: PLC0415 (servers need no click)

        return app.run(words, _HELP)

    def run() -> int:
        parser = _parser(words)
        options, unknown = parser.parse_known_args(words)
        if unknown:
            _refuse(parser, words, unknown[0])
        code: int = options.run(options)
        return code

    return _exit_code(run)


def mqnamesrv(arguments: Sequence[str] | None = None) -> int:
    """Run a name server with RocketMQ's command line and RocketMQ's path of the key-value table."""
    from ferromq.cli import servers  # noqa: PLC0415 (other commands need no servers)
    from ferromq.config.namesrv import NameServerConfig  # noqa: PLC0415

    parser = argparse.ArgumentParser(prog="mqnamesrv", description="Run a name server.", allow_abbrev=False)
    servers.add_namesrv_options(parser)
    parser.set_defaults(kv_config_default=str(Path.home() / "namesrv" / "kvConfig.json"))
    return _run_rocketmq_command(parser, arguments, NameServerConfig, servers.run_namesrv)


def mqbroker(arguments: Sequence[str] | None = None) -> int:
    """Run a broker with RocketMQ's command line and defaults."""
    from ferromq.cli import servers  # noqa: PLC0415 (other commands need no servers)
    from ferromq.config.broker import BrokerConfig  # noqa: PLC0415

    parser = argparse.ArgumentParser(prog="mqbroker", description="Run a broker.", allow_abbrev=False)
    servers.add_mqbroker_options(parser)
    return _run_rocketmq_command(parser, arguments, BrokerConfig, servers.run_mqbroker)


def _run_rocketmq_command(
    parser: argparse.ArgumentParser,
    arguments: Sequence[str] | None,
    kind: "type[Config]",
    command: Callable[[argparse.Namespace], int],
) -> int:
    from ferromq.cli import flags  # noqa: PLC0415

    options, unknown = parser.parse_known_args(sys.argv[1:] if arguments is None else list(arguments))

    def run() -> int:
        flags.refuse(unknown, kind)
        return command(options)

    return _exit_code(run)


def _exit_code(run: Callable[[], int]) -> int:
    try:
        return run()
    except ConfigError as error:
        return fail(error, code=2)
    except (FerromqError, OSError) as error:
        return fail(error, code=1)


def _refuse(parser: argparse.ArgumentParser, words: Sequence[str], unknown: str) -> NoReturn:
    """End with the usage of the given command and its nearest option."""
    for word in words:
        choices = [action.choices for action in parser._actions if isinstance(action.choices, dict)]  # noqa: SLF001 (there is no public way)
        parser = next((known[word] for known in choices if word in known), parser)
    options = [option for action in parser._actions for option in action.option_strings]  # noqa: SLF001
    nearest = difflib.get_close_matches(unknown.partition("=")[0], options, n=1)
    parser.error(f"unknown argument {unknown}" + (f"; did you mean {nearest[0]}?" if nearest else ""))


def _parser(words: Sequence[str]) -> argparse.ArgumentParser:
    from ferromq.cli import pipelines, servers, store  # noqa: PLC0415 (commands for running servers need none of them)

    parser = argparse.ArgumentParser(prog="ferromq", description="Apache RocketMQ in one wheel.")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    demo = commands.add_parser("demo", help=_HELP["demo"])
    demo.set_defaults(run=_demo)
    if "demo" in words[:1]:
        from ferromq.demo.main import add_arguments  # noqa: PLC0415 (servers need neither clients nor pandas)

        add_arguments(demo)

    dev = commands.add_parser("dev", help=_HELP["dev"])
    dev.set_defaults(run=servers.run_dev)
    servers.add_dev_options(dev)

    namesrv = commands.add_parser("namesrv", help=_HELP["namesrv"])
    namesrv.set_defaults(run=servers.run_namesrv)
    servers.add_namesrv_options(namesrv)

    broker = commands.add_parser("broker", help=_HELP["broker"])
    broker.set_defaults(run=servers.run_broker)
    servers.add_broker_options(broker)

    store.add_commands(commands, _HELP["store"])
    pipelines.add_commands(commands, words, _HELP["pipeline"])

    version = commands.add_parser("version", help=_HELP["version"])
    version.set_defaults(run=_print_version)
    return parser


def _demo(options: argparse.Namespace) -> int:
    from ferromq.demo import main as demo  # noqa: PLC0415 (servers need neither clients nor pandas)

    logs.install(os.environ.get("FERROMQ_LOG", "warn"))
    return demo.main(options)


def _print_version(_options: argparse.Namespace) -> int:
    say(f"ferromq {ferromq.__version__}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
