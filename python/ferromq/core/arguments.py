"""Checks what callers give, at the call: the error names the argument, the value, and the limit. No I/O."""

from collections.abc import Callable
from datetime import timedelta
from operator import index
from typing import SupportsIndex

from ferromq.core.requests import seconds
from ferromq.errors import ConfigError

MOST = 2**31 - 1
"""The largest number of messages that a request has room for."""


def whole_number(name: str, value: SupportsIndex, least: int, most: int | None = None) -> int:
    """Return a whole number. Raises `TypeError` for anything else, a bool too, and `ConfigError` outside the limits."""
    if type(value) is not int and (isinstance(value, bool) or not isinstance(value, SupportsIndex)):
        raise TypeError(f"{name} must be a whole number, not {value!r}")
    number = index(value)
    if number < least:
        raise ConfigError(f"{name} must be at least {least}, not {number}")
    if most is not None and number > most:
        raise ConfigError(f"{name} must be at most {most}, not {number}")
    return number


def flag(name: str, value: bool) -> bool:
    """Return True or False. Raises `TypeError` for anything else."""
    given: object = value
    if not isinstance(given, bool):
        raise TypeError(f"{name} must be True or False, not {given!r}")
    return given


def text(name: str, value: str) -> str:
    """Return a text. Raises `TypeError` for anything else."""
    given: object = value
    if not isinstance(given, str):
        raise TypeError(f"{name} must be a str, not {given!r}")
    return given


def function(name: str, value: Callable[..., object] | None) -> None:
    """Raise `TypeError` unless it is a function, or None."""
    if value is not None and not callable(value):
        raise TypeError(f"{name} must be a function, not {value!r}")


def lease(value: timedelta | float) -> float:
    """Return an invisible duration in seconds. Raises `ConfigError` for zero, and what `seconds` raises."""
    length = seconds(value)
    if not length:
        raise ConfigError("invisible_duration must be longer than 0 s")
    return length
