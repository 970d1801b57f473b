"""
The command `ferromq` on click: its commands for running servers, and the help that lists the others, too.

Exit codes: 0 done, or a stream that was ended by Ctrl-C; 1 failed; 2 wrong usage or configuration; 3 not found;
4 a server did not answer, at least one of several; 130 a question that was answered by Ctrl-C.
"""

import os
import sys
from collections.abc import Mapping, Sequence

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


for _command in _COMMANDS:
    root.add_command(_command)


def run(words: Sequence[str], others: Mapping[str, str]) -> int:
    """Run a command line and return the exit code. *others*: the commands that are run elsewhere, with their help."""
    assert isinstance(root, _Root)
    root.others = others
    try:
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
