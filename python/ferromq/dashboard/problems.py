"""Errors as pages tell them: a title, a status of HTTP, and whether looking again may help."""

from dataclasses import dataclass

from ferromq.dashboard.cluster import Busy
from ferromq.dashboard.forms import WrongInput
from ferromq.errors import (
    ConfigError,
    FerromqError,
    Forbidden,
    GroupNotFound,
    OutcomeUnknown,
    TopicNotFound,
    Unsupported,
)
from ferromq.terminal.commands import in_commands


class NotFound(FerromqError):  # noqa: N818 (as the others)
    """What was looked for is not there."""


class ReadOnly(FerromqError):  # noqa: N818 (as the others)
    """The dashboard takes no changes of this visitor."""


@dataclass(frozen=True, slots=True)
class Problem:
    """An error as a page tells it."""

    title: str
    text: str
    status: int
    notes: tuple[str, ...] = ()


_KINDS: tuple[tuple[type[Exception] | tuple[type[Exception], ...], str, int], ...] = (
    (Busy, "The cluster does not answer", 503),
    (OutcomeUnknown, "A server did not answer", 503),
    ((TopicNotFound, GroupNotFound, NotFound), "Not found", 404),
    (Forbidden, "Not allowed", 403),
    (ReadOnly, "Read-only", 403),
    (Unsupported, "Not supported by this server", 501),
    ((WrongInput, ConfigError, ValueError), "Check the input", 400),
    (FerromqError, "The cluster refused", 502),
)
HANDLED = (FerromqError, ValueError, OSError)
"""The errors that pages tell."""


def problem(error: Exception) -> Problem:
    """Return an error as a page tells it; the way out is a command."""
    text = in_commands(str(error))
    for kinds, title, status in _KINDS:
        if isinstance(error, kinds):
            return Problem(title, text, status, tuple(map(in_commands, getattr(error, "__notes__", ()))))
    return Problem("A server cannot be reached", text, 503)
