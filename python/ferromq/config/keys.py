"""RocketMQ's configuration keys as data: which option a key sets, and how its value is read and written."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple, TypeAlias

from ferromq.config.values import boolean, from_zero, split_list, whole

Keys: TypeAlias = Mapping[str, Callable[[str], dict[str, Any]]]
"""Key → function that returns the options it sets."""
JoinedKeys: TypeAlias = Mapping[tuple[str, ...], Callable[[Mapping[str, str]], dict[str, Any]]]
"""Keys that have a meaning only together → function that returns the options they set."""

_MILLISECOND = timedelta(milliseconds=1)
_SECOND = timedelta(seconds=1)


class Form(NamedTuple):
    """How a value is read from RocketMQ's text and written as such."""

    read: Callable[[str], Any]
    write: Callable[[Any], str]


TEXT = Form(str, str)
WHOLE = Form(whole, str)
NATURAL = Form(from_zero, str)
BOOLEAN = Form(boolean, lambda value: str(value).lower())
MILLISECONDS = Form(lambda text: whole(text) * _MILLISECOND, lambda value: str(value // _MILLISECOND))
SECONDS = Form(lambda text: whole(text) * _SECOND, lambda value: str(value // _SECOND))
LIST = Form(split_list, ";".join)
DURATION = Form(str, lambda value: f"{value // _MILLISECOND}ms")


def divided(unit: int) -> Form:
    """Return the form of a number that RocketMQ counts in parts of *unit*; a remainder counts as a whole one."""
    return Form(lambda text: -(-whole(text) // unit), lambda value: str(value * unit))


@dataclass(frozen=True, slots=True)
class Key:
    """A key that sets one option."""

    option: str
    form: Form = TEXT

    def __call__(self, text: str) -> dict[str, Any]:
        """Return the option and its value. Raises `ValueError`."""
        return {self.option: self.form.read(text)}


def written_keys(keys: Keys, options: Mapping[str, Any]) -> dict[str, str]:
    """Return the keys that set one option each, with the values in *options*; an option that is None has no key."""
    return {
        key: entry.form.write(options[entry.option])
        for key, entry in keys.items()
        if isinstance(entry, Key) and options[entry.option] is not None
    }
