"""Commands and groups as click has them, loaded on first use, with errors that name the nearest argument."""

import difflib
import importlib
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, NoReturn

import click
from click.shell_completion import CompletionItem

_SHORT_WITH_VALUE = re.compile(r"(-\w)=(.*)", re.DOTALL)


class _Formatter(click.HelpFormatter):
    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:
        """Write the line of the usage."""
        super().write_usage(prog, args, "usage: " if prefix is None else prefix)


class _Context(click.Context):
    formatter_class = _Formatter


class Command(click.Command):
    """A command that rejects an unknown argument with the nearest one that it has."""

    context_class = _Context
    allow_extra_args = True
    """Passes them to `parse_args`, which rejects them."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the words of the command line. Raises `click.UsageError`."""
        flags = {
            flag: option
            for option in self.get_params(ctx)
            if isinstance(option, click.Option)
            for flag in (*option.opts, *option.secondary_opts)
        }
        words = [part for word in args for part in _split(word, flags)]
        if not ctx.resilient_parsing:
            _check_values(ctx, words, flags)
        try:
            rest = super().parse_args(ctx, list(words))  # which empties the list
        except click.NoSuchOption as error:
            name = error.option_name
            self.reject(ctx, next((word for word in words if word.startswith(name)), name), list(flags))
        if rest and not ctx.resilient_parsing:
            self.reject(ctx, rest[0], list(flags))
        return rest

    def reject(self, ctx: click.Context, word: str, flags: list[str]) -> NoReturn:
        """Raise the error for an unknown *word*; *flags* are those of the command."""
        nearest = difflib.get_close_matches(word.partition("=")[0], flags, n=1)
        ctx.fail(f"unknown argument {word}" + (f"; did you mean {nearest[0]}?" if nearest else ""))


class Number(click.FloatRange):
    """A number from *least*, or above it if *min_open*, to *most*: neither `nan` nor `inf`."""

    def __init__(self, least: float, most: float = 1e9, *, min_open: bool = False) -> None:
        super().__init__(least, most, min_open=min_open)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number; fail for anything else."""
        number = super().convert(value, param, ctx)
        if number != number:  # noqa: PLR0124 (only `nan` differs from itself; no comparison with a limit finds it)
            self.fail(
                f"{value} is not in the range {self.min:g}<{'' if self.min_open else '='}x<={self.max:g}.", param, ctx
            )
        return number


def with_options(*options: Callable[[Any], Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that adds *options* to a command, in the order of the help."""

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def _split(word: str, flags: Mapping[str, click.Option]) -> Iterator[str]:
    """Yield `-c` and `FILE` for `-c=FILE`, which RocketMQ's scripts may contain; any other word as it is."""
    short = _SHORT_WITH_VALUE.fullmatch(word)
    if short is not None and short[1] in flags and not flags[short[1]].is_flag:
        yield from short.groups()
    else:
        yield word


def _check_values(ctx: click.Context, words: list[str], flags: Mapping[str, click.Option]) -> None:
    """Raise `click.UsageError` for an option in the place of a value: click would take it as the value."""
    for word, following in pairwise(words):
        if word == "--":
            return
        if word in flags and not flags[word].is_flag and following in flags:
            raise click.BadOptionUsage(word, f"Option {word!r} requires an argument.", ctx)


class Group(click.Group):
    """A group of such commands."""

    context_class = _Context
    command_class = Command
    group_class = type

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command of the first word. Raises `click.UsageError` with the nearest one for an unknown word."""
        try:
            return super().resolve_command(ctx, args)
        except click.exceptions.NoSuchCommand:
            # click knows only commands that were added.
            names = self.list_commands(ctx)
            raise click.exceptions.NoSuchCommand(args[0], possibilities=names, ctx=ctx) from None


class ReaderGoneError(Exception):
    """The reader of the output, such as `head`, closed the pipe. Nothing more can be written."""


@contextmanager
def _reader_gone() -> Iterator[None]:
    """Raise `ReaderGoneError` for a `BrokenPipeError`, at which click ends a program with 1."""
    try:
        yield
    except BrokenPipeError as error:
        raise ReaderGoneError from error


class LazyGroup(Group):
    """
    A group that imports the module of a command when it is called.

    *places* has for each section of the help the commands, and for each the module and variable, and its help.
    """

    def __init__(self, *args: Any, places: Mapping[str, Mapping[str, tuple[str, str]]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._sections = places
        self._places = {name: place for commands in places.values() for name, place in commands.items()}

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the words of the command line. Raises `click.UsageError` without a command."""
        if not args and not ctx.resilient_parsing:
            ctx.fail(f"a COMMAND is missing; {ctx.info_name} --help lists all")
        with _reader_gone():  # its own help
            return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. Raises `ReaderGoneError`."""
        with _reader_gone():
            return super().invoke(ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 (click's)
        """Return all names."""
        return list(self._places)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 (click's)
        """Import and return a command."""
        if cmd_name not in self._places:
            return None
        module, _, variable = self._places[cmd_name][0].partition(":")
        command = getattr(importlib.import_module(module), variable)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 (click's)
        """Write the sections of commands, without their modules."""
        for title, commands in self._sections.items():
            with formatter.section(title):
                formatter.write_dl([(name, told) for name, (_, told) in commands.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete names of commands, without their modules."""
        names = [name for name in self._places if name.startswith(incomplete)]
        return [
            *(CompletionItem(name, help=self._places[name][1]) for name in names),
            *click.Command.shell_complete(self, ctx, incomplete),
        ]
