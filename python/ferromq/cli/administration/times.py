"""Times on the command line."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import click

_AGO = re.compile(r"(\d{1,9})(s|m|h|d)\Z")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_MOST_MS = 253_402_300_799_999
"""The last millisecond of the year 9999."""
_EXPECTED = "time as 2026-11-21T07:30 (with a zone if not local), 10m or 2h (so long ago), or milliseconds since 1970"


class Time(click.ParamType[Any]):
    """A time, or one of the given words."""

    name = "time"

    def __init__(self, *words: str) -> None:
        self._words = words

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:  # noqa: ARG002 (click's)
        """Return what the help shows."""
        return "|".join((*self._words, "TIME"))

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the word, an aware `datetime`, or milliseconds since 1970; fail for anything else."""
        if not isinstance(value, str) or value in self._words:
            return value
        try:
            return parse(value)
        except ValueError:
            words = "".join(f"{word}, " for word in self._words)
            self.fail(f"{value!r} is no {words}{_EXPECTED}", param, ctx)


def parse(text: str) -> datetime | int:
    """Return a time, aware or in milliseconds since 1970. Raises `ValueError` for anything else."""
    try:
        time = _parse(text)
        is_time = isinstance(time, int) or time.timestamp() >= 0
    except (ValueError, OverflowError, OSError):
        is_time = False
    if not is_time:
        raise ValueError(f"{text!r} is no {_EXPECTED}")
    return time


def _parse(text: str) -> datetime | int:
    ago = _AGO.match(text)
    if ago is not None:
        return datetime.now(UTC) - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
    if text.isascii() and text.isdecimal() and len(text) > len("20261121"):
        if len(text) > len(str(_MOST_MS)) or int(text) > _MOST_MS:
            raise OverflowError
        return int(text)
    return datetime.fromisoformat(text).astimezone()
