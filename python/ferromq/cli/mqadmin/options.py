"""
Commands and their options, in the syntax of RocketMQ's `mqadmin`: how they are declared, parsed and explained.

An option has a letter and a name: `-t orders`, `-t=orders`, `-torders`, `--topic orders`, `--topic=orders`, or a part
of the name that no other one begins with. Usage texts and the errors about options are those of Apache Commons CLI.
"""

import getopt
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from ferromq.errors import ConfigError

if TYPE_CHECKING:
    from ferromq.cli.mqadmin.session import Session

_WIDTH = 110
"""Columns of a usage text."""
_USAGE = "usage: "
_SHORT_WITH_VALUE = re.compile(r"-(\w)=(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Option:
    """An option of a command."""

    letter: str
    """Empty for an option without one."""
    name: str
    help: str
    is_required: bool = False
    has_value: bool = True
    group: int = 0
    """One option of those with the same number, if it is not 0, is required, and excludes the others."""

    @property
    def key(self) -> str:
        """What a command finds its value by."""
        return self.letter or self.name

    @property
    def word(self) -> str:
        """The option as it is written in a usage."""
        return (f"-{self.letter}" if self.letter else f"--{self.name}") + " <arg>" * self.has_value


def must(letter: str, name: str, text: str) -> Option:
    """Return an option that is required."""
    return Option(letter, name, text, is_required=True)


def may(letter: str, name: str, text: str) -> Option:
    """Return an option that may be left out."""
    return Option(letter, name, text)


def flag(letter: str, name: str, text: str) -> Option:
    """Return an option without a value."""
    return Option(letter, name, text, has_value=False)


def one_of(*options: Option, group: int = 1) -> tuple[Option, ...]:
    """Return options of which exactly one is required."""
    return tuple(replace(option, group=group) for option in options)


LITE_PARENT = may("c", "cluster", "Cluster name or lmq parent topic, lmq is used to find the route.")
"""Of commands about one queue, which may be that of a lite topic."""
_EVERYWHERE = (
    flag("h", "help", "Print help"),
    may("n", "namesrvAddr", "Name server address list, eg: '192.168.0.1:9876;192.168.0.2:9876'"),
)


class UsageError(Exception):
    """The options of a command are wrong."""


class Given:
    """The options that are given to a command, by their letter, or by the name of one without a letter."""

    def __init__(self, values: dict[str, str]) -> None:
        self._values = values

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def __getitem__(self, key: str) -> str:
        return self._values[key].strip()

    def get(self, key: str) -> str | None:
        """Return a value; None if the option is not given."""
        value = self._values.get(key)
        return None if value is None else value.strip()

    def number(self, key: str, default: int) -> int:
        """Return a whole number. Raises `ConfigError` for anything else."""
        if key not in self:
            return default
        try:
            return int(self[key])
        except ValueError:
            raise ConfigError(f"-{key} is {self[key]!r}; a whole number is expected") from None

    def truth(self, key: str, *, default: bool) -> bool:
        """Return whether an option is `true`. Raises `ConfigError` for neither `true` nor `false`."""
        value = self.get(key)
        if value is None:
            return default
        if value.lower() not in {"true", "false"}:
            raise ConfigError(f"-{key} is {value!r}; true or false is expected")
        return value.lower() == "true"

    def words(self, key: str) -> list[str]:
        """Return the values between the commas of one; empty if the option is not given."""
        return [word.strip() for word in (self.get(key) or "").split(",") if word.strip()]


@dataclass(frozen=True, slots=True)
class Command:
    """A command of `mqadmin`."""

    name: str
    help: str
    run: "Callable[[Session, Given], None]"
    options: tuple[Option, ...]

    @property
    def all_options(self) -> tuple[Option, ...]:
        """Its options, with those of every command."""
        return (*_EVERYWHERE, *self.options)


def parse(command: Command, words: Sequence[str]) -> Given:
    """Return the given options. Raises `UsageError` for unknown, missing and incompatible ones, and other words."""
    known = {key: option for option in command.all_options for key in (option.letter, option.name) if key}
    words = [part for word in words for part in _split(word, known)]
    _check_values(words, known)
    letters = "".join(option.letter + ":" * option.has_value for option in command.all_options)
    names = [option.name + "=" * option.has_value for option in command.all_options]
    try:
        found, rest = getopt.gnu_getopt(list(words), letters, names)
    except getopt.GetoptError as error:
        option = known.get(error.opt or "")
        if option is not None and option.has_value:
            raise UsageError(f"Missing argument for option: {option.key}") from None
        raise UsageError(f"Unrecognized option: {'-' if len(error.opt or '') == 1 else '--'}{error.opt}") from None
    if rest:
        raise UsageError(f"Unrecognized argument: {rest[0]}")
    values: dict[str, str] = {}
    for word, value in found:
        values.setdefault(known[word.lstrip("-")].key, value)
    if "h" not in values:
        _check(command, values)
    return Given(values)


def _split(word: str, known: Mapping[str, Option]) -> Iterator[str]:
    """Yield `-t` and `orders` for `-t=orders`; any other word as it is."""
    short = _SHORT_WITH_VALUE.fullmatch(word)
    if short is not None and short[1] in known and known[short[1]].has_value:
        yield f"-{short[1]}"
        yield short[2]
    else:
        yield word


def _check_values(words: Sequence[str], known: Mapping[str, Option]) -> None:
    """Raise `UsageError` for an option in the place of a value, which would be taken as the value."""
    options = {f"-{key}" if len(key) == 1 else f"--{key}": option for key, option in known.items()}
    for word, following in pairwise(words):
        if word in options and options[word].has_value and following in options:
            raise UsageError(f"Missing argument for option: {options[word].key}")


def _check(command: Command, values: dict[str, str]) -> None:
    missing, seen = [], set[int]()
    for option in command.options:
        if option.group and option.group not in seen:
            seen.add(option.group)
            members = [each for each in command.options if each.group == option.group]
            chosen = [key for key in values if key in {each.key for each in members}]
            if len(chosen) > 1:
                raise UsageError(
                    f"The option '{chosen[1]}' was specified but an option from this group has already been selected: "
                    f"'{chosen[0]}'"
                )
            if not chosen:
                missing.append("[" + ", ".join(f"-{each.key} {each.help}" for each in members) + "]")
        elif option.is_required and option.key not in values:
            missing.append(option.key)
    if missing:
        raise UsageError(f"Missing required option{'s' if len(missing) > 1 else ''}: {', '.join(missing)}")


def usage(command: Command) -> str:
    """Return the usage of a command."""
    options = sorted(command.all_options, key=lambda option: option.key.lower())
    heads = [
        (f" -{option.letter},--{option.name}" if option.letter else f"    --{option.name}")
        + " <arg>" * option.has_value
        for option in options
    ]
    column = max(map(len, heads)) + 3
    lines = _wrapped(_USAGE + f"mqadmin {command.name} " + " ".join(_parts(options)), len(_USAGE))
    for head, option in zip(heads, options, strict=True):
        lines += _wrapped(head.ljust(column) + option.help, column)
    return "\n".join(lines) + "\n"


def _parts(options: Sequence[Option]) -> Iterator[str]:
    """Yield the words of the line of the usage; options of a group stand together, where its first one is."""
    seen = set[int]()
    for option in options:
        if not option.group:
            yield option.word if option.is_required else f"[{option.word}]"
        elif option.group in seen:
            yield ""
        else:
            seen.add(option.group)
            yield " | ".join(each.word for each in options if each.group == option.group)


def _wrapped(text: str, indent: int) -> list[str]:
    """Return the lines of a text; those after the first are indented, and a word that is too long is cut."""
    lines = []
    while len(text) > _WIDTH:
        end = text.rfind(" ", indent, _WIDTH + 1)
        cut = end if text[:end].strip() and end > indent else _WIDTH
        lines.append(text[:cut].rstrip())
        text = " " * indent + text[cut:].strip()
    return [*lines, text.rstrip()]
