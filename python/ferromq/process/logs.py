"""
Logs of a process of ours: Python's in the same line format as Rust's, one filter for both.

Only `cli` calls this; a library installs no handler.
"""

import logging
import sys
import time

from ferromq import _ferromq
from ferromq.errors import ConfigError

_TRACE = 5
_LEVELS = {
    "trace": _TRACE,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "error": logging.ERROR,
    "off": logging.CRITICAL + 1,
}
# What has a level of its own since `install`.
_targets: list[str] = []
_NAMES = {_TRACE: "TRACE", logging.WARNING: "WARN", logging.CRITICAL: "ERROR"}


def install(directives: str) -> None:
    """
    Print logs to stderr, filtered as `info,ferromq_store=debug,ferromq::broker=debug`.

    Python's loggers are named as Rust's targets, with `::` for the dot. Raises `ConfigError` for a filter that is none.
    """
    levels = parse(directives)
    try:
        _ferromq.init_logging(directives)
    except ValueError as error:
        raise ConfigError(f"the log filter {directives!r}: {error}") from error
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Line())
    logging.basicConfig(handlers=[handler], level=levels.pop("", logging.ERROR), force=True)
    for target, level in levels.items():
        logging.getLogger(target.replace("::", ".")).setLevel(level)
    _targets[:] = levels


def change(level: str) -> None:
    """
    Print everything of *level* and above from now on, whatever the filter was.

    Raises `ConfigError` for what is no level, and where the logs are not ours: a library's are its program's to set.
    """
    parse(level)
    if not _ferromq.change_logging(level):
        raise ConfigError("the logs of this process belong to the program that runs it; set their level there")
    for target in _targets:
        logging.getLogger(target.replace("::", ".")).setLevel(logging.NOTSET)
    logging.getLogger().setLevel(_LEVELS[level.lower()])


def parse(directives: str) -> dict[str, int]:
    """Return Python's level for each target; the empty target stands for all others. Raises `ConfigError`."""
    levels: dict[str, int] = {}
    for directive in filter(None, (part.strip() for part in directives.split(","))):
        target, _, level = directive.rpartition("=")
        if level.lower() not in _LEVELS:
            known = ", ".join(_LEVELS)
            raise ConfigError(f"the log filter {directives!r} has the level {level!r}; known are {known}")
        levels[target] = _LEVELS[level.lower()]
    return levels


class Line(logging.Formatter):
    """Formats a record as `time LEVEL target event key=value …`, in UTC and microseconds."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line; a traceback follows on lines of its own."""
        seconds, microseconds = divmod(int(record.created * 1_000_000), 1_000_000)
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
        level = _NAMES.get(record.levelno, record.levelname)
        target = record.name.replace(".", "::")
        line = f"{moment}.{microseconds:06d}Z {level} {target} {record.getMessage()}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line
