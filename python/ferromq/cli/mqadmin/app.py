"""The command `ferromq mqadmin`: finds a command of RocketMQ's `mqadmin`, and runs it."""

import sys
from collections.abc import Sequence

import click
from click.shell_completion import CompletionItem

from ferromq.cli.administration.output import DONE, WRONG_USAGE, fail, visible
from ferromq.cli.mqadmin import brokers, clients, groups, messages, topics, users
from ferromq.cli.mqadmin.options import Command, Given, UsageError, parse, usage
from ferromq.cli.mqadmin.session import opened
from ferromq.errors import FerromqError, ServerError

COMMANDS = {
    command.name: command
    for module in (topics, groups, brokers, clients, messages, users)
    for command in module.COMMANDS
}
"""All commands, by name."""


def _complete(context: click.Context, _parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """Return the commands that begin like the first word, in any case, and like the one behind `help`."""
    words = context.params.get("words") or ()
    if tuple(words) not in {(), ("help",)}:
        return []
    known = [each for each in COMMANDS.values() if each.name.lower().startswith(begun.lower())]
    return [CompletionItem(each.name, help=each.help) for each in known]


@click.command("mqadmin", add_help_option=False, context_settings={"ignore_unknown_options": True})
@click.argument("words", nargs=-1, type=click.UNPROCESSED, shell_complete=_complete)
def mqadmin(words: Sequence[str]) -> int:
    """Run a command of RocketMQ's mqadmin, without a JVM."""
    return run(words)


def run(words: Sequence[str]) -> int:
    """Run a command line without the word `mqadmin`, and return the exit code."""
    if not words:
        return _list()
    name, *rest = words
    asks_for_help = name == "help" and len(rest) == 1
    command = _find(rest[0] if asks_for_help else name)
    if command is None:
        text = f"The sub command {rest[0] if asks_for_help else name} not exist; ferromq mqadmin lists all."
        click.echo(visible(text), err=True)
        return WRONG_USAGE
    if asks_for_help:
        click.echo(usage(command))
        return DONE
    return _run(command, rest)


def _list() -> int:
    click.echo("The most commonly used mqadmin commands are:")
    for command in COMMANDS.values():
        click.echo(f"   {command.name:<35} {command.help}")
    click.echo("\nSee 'mqadmin help <command>' for more information on a specific command.")
    return DONE


def _find(name: str) -> Command | None:
    """Return a command by its name in any case, as RocketMQ does."""
    names = {known.lower(): command for known, command in COMMANDS.items()}
    return names.get(name.lower())


def _run(command: Command, words: Sequence[str]) -> int:
    try:
        given = parse(command, words)
    except UsageError as error:
        click.echo(visible(str(error)), err=True)
        click.echo(usage(command))
        return WRONG_USAGE
    if "h" in given:
        click.echo(usage(command))
        return DONE
    return _do(command, given)


def _do(command: Command, given: Given) -> int:
    try:
        with opened(given.get("n")) as session:
            command.run(session, given)
            sys.stdout.flush()
            return session.code
    except BrokenPipeError:
        raise  # as for the other commands
    except KeyboardInterrupt:
        if command.name == "clusterList" and "i" in given:
            return DONE
        raise
    except (FerromqError, OSError, ValueError) as error:
        return fail(error)
    except (LookupError, TypeError, AttributeError, OverflowError) as error:
        # The commands read answers field by field, of servers of any version or of another program.
        return fail(ServerError(f"a server answered {command.name} with something else: {error!r:.200}"))
