"""
Sets up the logs of a server process: one line format and one filter for Python and Rust.

Only `cli` calls this. As a library, ferromq installs no handler.
"""

import contextlib
import json
import logging
import os
import re
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any, Final

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
_JOIN_SECONDS = 1.0
_AUDIT = "ferromq::audit"
FORMATS: Final = ("text", "json")
"""How lines can look."""
# A place for a value in the text of a line, with its name before it if there is one.
_PLACE = re.compile(r"(?: ?\b([a-zA-Z_]\w*)=)?%(?:\.\d+)?[sdrfg]")
# Loggers with a level of their own since `install`.
_targets: list[str] = []
_NAMES = {_TRACE: "TRACE", logging.WARNING: "WARN", logging.CRITICAL: "ERROR"}


def install(directives: str, line_format: str = "text") -> None:
    """
    Print logs to stderr, filtered as `info,ferromq_store=debug,ferromq::broker=debug`, as *line_format* text or json.

    Rust's targets and Python's loggers have the same names, with `::` for the dot. Raises `ConfigError`.
    """
    levels = parse(directives)
    if line_format not in FORMATS:
        raise ConfigError(f"the log format is {line_format!r}; it may be {' or '.join(FORMATS)}")
    try:
        _ferromq.init_logging(directives, line_format)
    except ValueError as error:
        raise ConfigError(f"the log filter {directives!r}: {error}") from error
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Line() if line_format == "text" else JsonLine())
    logging.basicConfig(handlers=[handler], level=levels.pop("", logging.ERROR), force=True)
    for target, level in levels.items():
        logging.getLogger(target.replace("::", ".")).setLevel(level)
    _targets[:] = levels
    if _AUDIT not in levels:
        # The level of the other logs does not decide: a change of it would hide later changes.
        logging.getLogger(_AUDIT.replace("::", ".")).setLevel(logging.INFO)


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
        line = f"{_moment(record)} {_level(record)} {_target(record)} {record.getMessage()}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonLine(logging.Formatter):
    """Formats a record as one JSON object with the fields of Rust's lines; a traceback is the field `exception`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the object, in one line."""
        message, fields = parts(record)
        line = {"time": _moment(record), "level": _level(record), "target": _target(record), "message": message}
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps({**line, "fields": fields}, default=str)


def parts(record: logging.LogRecord) -> tuple[str, dict[str, Any]]:
    """Return the message of a record without its `name=value` parts, and their values by name."""
    text, given = str(record.msg), record.args
    values = list(given) if isinstance(given, tuple) else []
    places = list(_PLACE.finditer(text))
    if not values or len(places) != len(values) or "%%" in text:
        return record.getMessage(), {}
    named = {place[1]: value for place, value in zip(places, values, strict=True) if place[1]}
    rest = _PLACE.sub(lambda place: "" if place[1] else place[0], text)
    shown = tuple(value for place, value in zip(places, values, strict=True) if not place[1])
    return (rest % shown).strip(), named


def _moment(record: logging.LogRecord) -> str:
    seconds, microseconds = divmod(int(record.created * 1_000_000), 1_000_000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{microseconds:06d}Z"


def _level(record: logging.LogRecord) -> str:
    return _NAMES.get(record.levelno, record.levelname)


def _target(record: logging.LogRecord) -> str:
    return record.name.replace(".", "::")


class _Passing:
    """The thread that passes warnings on, and how many servers of which process want it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.users = 0
        self.pid = 0
        self.thread: threading.Thread | None = None

    def begin(self) -> None:
        """Start the thread for the first user. In a forked child, the parent's users do not count."""
        with self.lock:
            if self.pid != os.getpid():
                self.users, self.pid, self.thread = 0, os.getpid(), None
            self.users += 1
            if self.users == 1 and _ferromq.keep_warnings():
                self.thread = threading.Thread(target=_pass_on, name="ferromq-log", daemon=True)
                self.thread.start()

    def end(self) -> None:
        """End the thread with the last user, after the warnings until then."""
        with self.lock:
            self.users -= 1
            if self.users == 0 and self.thread is not None:
                _ferromq.end_warnings()
                self.thread.join(_JOIN_SECONDS)
                self.thread = None


_passing = _Passing()


@contextlib.contextmanager
def warnings_passed() -> Iterator[None]:
    """
    Pass warnings of the Rust core to Python's loggers below `ferromq`, for programs that embed a server.

    It changes nothing in a process whose logs `install` prints.
    """
    _passing.begin()
    try:
        yield
    finally:
        _passing.end()


def _pass_on() -> None:
    while (taken := _ferromq.next_warnings()) is not None:
        lines, left_out = taken
        for level, target, text in lines:
            # Rust's targets begin with the crate: `ferromq_store::log`.
            name = "ferromq." + target.removeprefix("ferromq_").replace("::", ".")
            logging.getLogger(name).log(level, "%s", text)
        if left_out:
            logging.getLogger("ferromq").warning("warnings of the core left out=%d", left_out)
