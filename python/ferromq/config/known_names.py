"""Errors for names of options that do not exist, with the nearest name that does."""

import difflib
from collections.abc import Callable, Mapping
from typing import Any

from ferromq.errors import ConfigError

# Longer lists of names are not part of an error.
_LISTED = 150


def check_known(values: Mapping[str, Any], known: list[str], what: str) -> None:
    """Raise `ConfigError` for the first unknown name in *values*; *what* is its kind, as in `unknown option`."""
    for name in values:
        if name not in known:
            raise unknown(name, known, what)


def unknown(name: str, known: list[str], what: str) -> ConfigError:
    """Return the error for an unknown name."""
    return ConfigError(f"unknown {what}: {name}{hint(name, known)}")


def _listed(known: list[str], show: Callable[[str], str]) -> str:
    if len(known) > _LISTED:
        return "mqbroker --help lists those of a broker, mqnamesrv --help those of a name server"
    return f"known are {', '.join(map(show, sorted(known)))}"


def hint(name: str, known: list[str], show: Callable[[str], str] = str) -> str:
    """Return the end of an error text: the nearest known name, else all of them."""
    nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    return f"; did you mean {show(nearest[0])}?" if nearest else f"; {_listed(known, show)}"
