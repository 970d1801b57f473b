"""Command-line flags for the options in `config`: `--name value` by an option's name or by RocketMQ's key."""

import functools
from collections.abc import Iterator
from typing import Any, NoReturn

import click

from ferromq.cli.parsing import Command
from ferromq.config.known_names import check_known
from ferromq.config.reader import Config
from ferromq.config.rocketmq_keys import NAME_SERVER_REFUSED, REFUSED
from ferromq.errors import ConfigError

_REFUSED = REFUSED.keys() | NAME_SERVER_REFUSED.keys()


class ConfigCommand(Command):
    """A command with a flag for each option and each key of *kind*, except the flags that it has of its own."""

    def __init__(self, *args: Any, kind: type[Config], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._kind = kind

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return its own parameters, and the flags."""
        return [*self.params, *self._flags, *super().get_params(ctx)[len(self.params) :]]

    @functools.cached_property
    def _flags(self) -> list["_Flag"]:
        taken = {flag for parameter in self.params for flag in parameter.opts}
        return [flag for flag in _flags(self._kind) if flag.opts[0] not in taken]

    def given(self, options: dict[str, Any]) -> tuple[dict[str, str], dict[str, Any]]:
        """Remove the flags from *options*, and return those given: RocketMQ's keys, and ferromq's options."""
        keys: dict[str, str] = {}
        named: dict[str, Any] = {}
        for flag in self._flags:
            value = options.pop(flag.name)
            if value is not None:
                (keys if flag.is_key else named)[flag.target] = value
        return keys, named

    def reject(self, ctx: click.Context, word: str, flags: list[str]) -> NoReturn:  # noqa: ARG002 (as that of others)
        """Raise `ConfigError` for an unknown word, with the nearest flag."""
        if not word.startswith("--"):
            raise ConfigError(f"{word} is not a flag; give options as --name value")
        names = [flag[2:] for flag in flags if flag.startswith("--")]
        check_known({word[2:].partition("=")[0]: None}, names, "flag")
        raise AssertionError(word)


class _Flag(click.Option):
    """The flag of an option, or of a key."""

    def __init__(self, flag: str, target: str, *, is_key: bool, hidden: bool) -> None:
        kind = "key" if is_key else "option"
        name = f"{kind}_{''.join(each if each.isalnum() else '_' for each in target)}"
        super().__init__([f"--{flag}", name], metavar="VALUE", hidden=hidden)
        self.target = target
        self.is_key = is_key


def _flags(kind: type[Config]) -> Iterator[_Flag]:
    names = {name.replace("_", "-"): name for name in kind.names()}
    for flag, name in names.items():
        yield _Flag(flag, name, is_key=False, hidden=False)
    for key in kind.keys_known():
        if key not in names:
            yield _Flag(key, key, is_key=True, hidden=key in kind.without_effect or key in _REFUSED)
