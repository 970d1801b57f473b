"""
The command `ferromq` on click: its commands for running servers, and the help that lists the others, too.

Exit codes: 0 done, or a stream that was ended by Ctrl-C; 1 failed; 2 wrong usage or configuration; 3 not found;
4 a server did not answer, at least one of several; 130 a question that was answered by Ctrl-C.
"""

import os
import sys
from collections.abc import Iterable, Mapping, Sequence

import click

import ferromq
from ferromq.cli.administration import brokers, groups, messages, topics
from ferromq.cli.administration.output import DONE, FAILED, STOPPED, WRONG_USAGE, fail
from ferromq.errors import FerromqError

_COMMANDS: tuple[click.Command, ...] = (
    *(topics.topic, groups.group, groups.lag, messages.send, messages.tail, messages.message),
    *(messages.explain, messages.dlq),
    *(brokers.cluster, brokers.config, brokers.context, brokers.completion),
)
_STREAMS = ("--follow", "--watch")


class _Formatter(click.HelpFormatter):
    """Writes usage as the other commands do."""

    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:
        """Write the line of the usage."""
        super().write_usage(prog, args, "usage: " if prefix is None else prefix)


class _Context(click.Context):
    formatter_class = _Formatter


class _Root(click.Group):
    """Lists the commands of `others` in the help, too; `ferromq.cli.main` runs them."""

    others: Mapping[str, str] = {}

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 (click's)
        """Write both lists of commands."""
        own = [(name, self.commands[name].get_short_help_str(80)) for name in self.commands]
        for title, rows in (("Administration", own), ("Servers, stores and jobs", list(self.others.items()))):
            with formatter.section(title):
                formatter.write_dl(rows)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return all names, which shells complete."""
        return [*super().list_commands(ctx), *self.others]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command; of one of the others its name alone."""
        if cmd_name in self.others:
            return click.Command(cmd_name, short_help=self.others[cmd_name])
        return super().get_command(ctx, cmd_name)


@click.group(cls=_Root, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(ferromq.__version__, prog_name="ferromq", message="%(prog)s %(version)s")
def root() -> None:
    """Apache RocketMQ in one wheel."""


def _take(parent: click.Group, commands: Iterable[click.Command]) -> None:
    """Add commands to a group, with the formatter."""
    parent.context_class = _Context
    for command in commands:
        command.context_class = _Context
        parent.add_command(command)
        if isinstance(command, click.Group):
            _take(command, list(command.commands.values()))


_take(root, _COMMANDS)


def _check(words: Sequence[str]) -> None:
    """Raise `click.UsageError` for a command line without a command; a shell that completes gives none."""
    if not words and brokers.COMPLETE_VARIABLE not in os.environ:
        raise click.UsageError("a COMMAND is missing; ferromq --help lists all", _Context(root, info_name="ferromq"))


def run(words: Sequence[str], others: Mapping[str, str]) -> int:
    """Run a command line and return the exit code. *others*: the commands that are run elsewhere, with their help."""
    assert isinstance(root, _Root)
    root.others = others
    try:
        _check(words)
        code = root.main(list(words), "ferromq", complete_var=brokers.COMPLETE_VARIABLE, standalone_mode=False)
        sys.stdout.flush()
    except click.UsageError as error:
        error.show()
        return WRONG_USAGE
    except click.ClickException as error:
        error.show()
        return FAILED
    except (click.Abort, KeyboardInterrupt):
        return DONE if set(words) & set(_STREAMS) else STOPPED
    except BrokenPipeError:
        # The reader, such as `head`, closed the pipe. Nothing can be written, also not at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except (FerromqError, OSError, ValueError) as error:
        return fail(error)
    return code if isinstance(code, int) else DONE
