"""Command-line flags for the options in `config`: `--name value` by an option's name or by RocketMQ's key."""

import argparse
from collections.abc import Sequence
from typing import Any

from ferromq.config.known_names import check_known
from ferromq.config.reader import Config
from ferromq.config.rocketmq_keys import NAME_SERVER_REFUSED, REFUSED
from ferromq.errors import ConfigError

_REFUSED = REFUSED.keys() | NAME_SERVER_REFUSED.keys()
_OPTION = "option "
_KEY = "key "


def add_options(parser: argparse.ArgumentParser, kind: type[Config]) -> None:
    """Add a flag for each option and each key of *kind*, except the flags that *parser* already has."""
    group = parser.add_argument_group("options", "by ferromq's name or RocketMQ's key, with the values of a file")
    taken = {flag for action in parser._actions for flag in action.option_strings}  # noqa: SLF001 (there is no public way)
    for name in kind.names():
        _add(group, taken, name.replace("_", "-"), _OPTION + name, None)
    for key in kind.keys_known():
        _add(
            group, taken, key, _KEY + key, argparse.SUPPRESS if key in kind.without_effect or key in _REFUSED else None
        )


def _add(group: Any, taken: set[str], flag: str, target: str, shown: str | None) -> None:
    if f"--{flag}" not in taken:
        taken.add(f"--{flag}")
        group.add_argument(f"--{flag}", dest=target, metavar="VALUE", help=shown)


def given(options: argparse.Namespace) -> tuple[dict[str, str], dict[str, Any]]:
    """Return the given flags: RocketMQ's keys, and ferromq's options."""
    values = {name: value for name, value in vars(options).items() if value is not None}
    keys = {name.removeprefix(_KEY): value for name, value in values.items() if name.startswith(_KEY)}
    return keys, {name.removeprefix(_OPTION): value for name, value in values.items() if name.startswith(_OPTION)}


def refuse(unknown: Sequence[str], kind: type[Config]) -> None:
    """Raise `ConfigError` for the first of the *unknown* words, with the nearest flag."""
    for word in unknown:
        if not word.startswith("--"):
            raise ConfigError(f"{word} is not a flag; give options as --name value")
        names = [*(name.replace("_", "-") for name in kind.names()), *kind.keys_known()]
        check_known({word[2:].partition("=")[0]: None}, names, "flag")
