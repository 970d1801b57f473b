"""
The command lines `ferromq`, `mqbroker` and `mqnamesrv`.

Exit codes: 0 done, or a stream that was ended by Ctrl-C; 1 failed; 2 wrong usage or configuration; 3 not found;
4 a server did not answer, at least one of several; 130 a question, or another command, that was ended by Ctrl-C. The
commands `store` and `pipeline` have exit codes of their own.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import click

import ferromq
from ferromq.cli.output import say
from ferromq.cli.parsing import Command, LazyGroup, ReaderGoneError
from ferromq.errors import FerromqError
from ferromq.process import logs

_ADMINISTRATION = "ferromq.cli.administration"
_STREAMS = ("--follow", "--watch")
_STOPPED = 130
"""The exit code of a command that was ended by Ctrl-C, as shells have it."""


@click.group(
    cls=LazyGroup,
    places={
        "Administration": {
            "topic": (f"{_ADMINISTRATION}.topics:topic", "List, describe, create, alter and delete topics."),
            "group": (
                f"{_ADMINISTRATION}.groups:group",
                "List, describe, create, alter, delete, reset and skip consumer groups.",
            ),
            "lag": (f"{_ADMINISTRATION}.groups:lag", "Print how far groups are behind."),
            "send": (f"{_ADMINISTRATION}.messages:send", "Send a message, or many."),
            "tail": (f"{_ADMINISTRATION}.messages:tail", "Print messages of a topic, without a group."),
            "message": (f"{_ADMINISTRATION}.messages:message", "Find stored messages."),
            "explain": (f"{_ADMINISTRATION}.messages:explain", "Print what became of a message in each group."),
            "dlq": (f"{_ADMINISTRATION}.messages:dlq", "List dead letters of a group, and send them again."),
            "cluster": (
                f"{_ADMINISTRATION}.brokers:cluster",
                "Look at clusters; drain, retire and stop brokers; export and import metadata.",
            ),
            "config": (
                f"{_ADMINISTRATION}.brokers:config",
                "Print and change options of a running broker or name server.",
            ),
            "user": (f"{_ADMINISTRATION}.access:user", "List, create, update and delete users of access control."),
            "acl": (f"{_ADMINISTRATION}.access:acl", "List, create, update and delete what users may do."),
            "bench": (f"{_ADMINISTRATION}.bench:bench", "Measure how fast a cluster takes and gives messages."),
            "dashboard": (
                f"{_ADMINISTRATION}.dashboard:dashboard",
                "Serve pages about the cluster for a browser, until Ctrl-C.",
            ),
            "context": (f"{_ADMINISTRATION}.brokers:context", "Keep addresses of clusters under names."),
            "mqadmin": ("ferromq.cli.mqadmin.app:mqadmin", "Run a command of RocketMQ's mqadmin, without a JVM."),
            "completion": (f"{_ADMINISTRATION}.brokers:completion", "Print the code that completes words in a shell."),
        },
        "Servers, stores and jobs": {
            "demo": (
                "ferromq.cli.main:demo",
                "Send, consume, query and analyse 336,776 real rows, and survive a kill.",
            ),
            "dev": ("ferromq.cli.servers:dev", "Run a name server and a broker in one process, on 127.0.0.1."),
            "namesrv": ("ferromq.cli.servers:namesrv", "Run a name server."),
            "broker": ("ferromq.cli.servers:broker", "Run a broker."),
            "store": (
                "ferromq.cli.store:store",
                "Show, verify, compare, copy and mend a store directory of ferromq or a Java broker.",
            ),
            "pipeline": ("ferromq.cli.pipelines:pipeline", "Run a Spark job: archive, replay, audit, statistics."),
            "version": ("ferromq.cli.main:version", "Print the version."),
        },
    },
)
@click.version_option(ferromq.__version__, prog_name="ferromq", message="%(prog)s %(version)s")
def root() -> None:
    """Apache RocketMQ in one wheel."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command `ferromq` and return the exit code."""
    return _run(root, "ferromq", arguments)


def mqnamesrv(arguments: Sequence[str] | None = None) -> int:
    """Run a name server with RocketMQ's command line and RocketMQ's path of the key-value table."""
    from ferromq.cli import servers  # noqa: PLC0415 (other commands need no servers)

    return _run(servers.mqnamesrv, "mqnamesrv", arguments)


def mqbroker(arguments: Sequence[str] | None = None) -> int:
    """Run a broker with RocketMQ's command line and defaults."""
    from ferromq.cli import servers  # noqa: PLC0415 (other commands need no servers)

    return _run(servers.mqbroker, "mqbroker", arguments)


def _run(command: click.Command, name: str, arguments: Sequence[str] | None) -> int:
    words = sys.argv[1:] if arguments is None else list(arguments)
    for stream, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, stream) is None:  # it was closed before the start
            setattr(sys, stream, Path(os.devnull).open(mode))  # noqa: SIM115 (it stays open as the stream would)
    try:
        code = command.main(words, name, standalone_mode=False, help_option_names=["-h", "--help"])
        sys.stdout.flush()
    except click.UsageError as error:
        error.show()
        return 2
    except click.ClickException as error:
        error.show()
        return 1
    except (click.Abort, KeyboardInterrupt):
        return 0 if set(words) & set(_STREAMS) else _STOPPED
    except (ReaderGoneError, BrokenPipeError):
        # Nothing can be written, also not at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (FerromqError, OSError, ValueError) as error:
        from ferromq.cli.administration.output import fail  # noqa: PLC0415 (servers need no clients)

        return fail(error)
    return code if isinstance(code, int) else 0


@click.command("demo", cls=Command)
@click.option("--rows", type=click.IntRange(1), metavar="N", help="Only the first N rows (all 336,776).")
def demo(rows: int | None) -> int:
    """Send, consume, query and analyse 336,776 real rows, and survive a kill."""
    from ferromq.demo import main as steps  # noqa: PLC0415 (servers need neither clients nor pandas)

    logs.install(os.environ.get("FERROMQ_LOG", "warn"))
    return steps.main(rows)


@click.command("version", cls=Command)
def version() -> None:
    """Print the version."""
    say(f"ferromq {ferromq.__version__}")


if __name__ == "__main__":
    sys.exit(main())
