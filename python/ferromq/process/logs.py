"""
Sets up the logs of a server process: one line format and one filter for Python and Rust.

Only `cli` calls this. As a library, ferromq installs no handler.
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
# Loggers with a level of their own since `install`.
_targets: list[str] = []
_NAMES = {_TRACE: "TRACE", logging.WARNING: "WARN", logging.CRITICAL: "ERROR"}


def install(directives: str) -> None:
    """
    Print logs to stderr, filtered as `info,ferromq_store=debug,ferromq::broker=debug`.

    Rust's targets and Python's loggers have the same names, with `::` for the dot. Raises `ConfigError`.
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
    Replace the filter: print everything of *level* and above.

    Raises `ConfigError` for an unknown level, or if the program that embeds ferromq owns the logs.
    """
    parse(level)
    if not _ferromq.change_logging(level):
        raise ConfigError("the logs of this process belong to the embedding program; set their level there")
    for target in _targets:
        logging.getLogger(target.replace("::", ".")).setLevel(logging.NOTSET)
    logging.getLogger().setLevel(_LEVELS[level.lower()])


def parse(directives: str) -> dict[str, int]:
    """Return Python's level of each target; the empty target means all others. Raises `ConfigError`."""
    levels: dict[str, int] = {}
    for directive in filter(None, (part.strip() for part in directives.split(","))):
        target, _, level = directive.rpartition("=")
        if level.lower() not in _LEVELS:
            known = ", ".join(_LEVELS)
            raise ConfigError(f"the log filter {directives!r} has the level {level!r}; it may be {known}")
        levels[target] = _LEVELS[level.lower()]
    return levels


class Line(logging.Formatter):
    """Formats a record as `time LEVEL target event key=value …`, in UTC and microseconds."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, followed by the lines of a traceback."""
        seconds, microseconds = divmod(int(record.created * 1_000_000), 1_000_000)
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
        level = _NAMES.get(record.levelno, record.levelname)
        target = record.name.replace(".", "::")
        line = f"{moment}.{microseconds:06d}Z {level} {target} {record.getMessage()}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line
