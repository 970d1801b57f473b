"""Times as `mqadmin` prints and takes them, in the time zone of this machine."""

import re
from datetime import datetime

from ferromq.errors import ConfigError

HOUR_MS = 3_600_000
_TIME = re.compile(r"(\d{4}-\d\d-\d\d)#(\d\d:\d\d:\d\d):(\d{3})")


def stamp(milliseconds: int) -> str:
    """Return a time with its milliseconds."""
    return f"{second(milliseconds)},{milliseconds % 1000:03d}"


def second(milliseconds: int) -> str:
    """Return a time in whole seconds."""
    return f"{datetime.fromtimestamp(milliseconds // 1000):%Y-%m-%d %H:%M:%S}"  # noqa: DTZ006 (as RocketMQ prints it)


def parsed(letter: str, text: str) -> int:
    """Return the milliseconds since 1970 in a number, or in a time `2026-11-21#07:30:00:000`. Raises `ConfigError`."""
    if text.lstrip("-").isdecimal():
        return int(text)
    match = _TIME.fullmatch(text)
    try:
        if match is not None:
            return int(datetime.fromisoformat(f"{match[1]} {match[2]}").timestamp() * 1000) + int(match[3])
    except ValueError:
        pass
    raise ConfigError(f"-{letter} is {text!r}; milliseconds since 1970, or a time yyyy-MM-dd#HH:mm:ss:SSS, is expected")
