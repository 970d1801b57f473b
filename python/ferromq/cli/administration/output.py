"""What the commands print: tables for people, JSON for programs, errors with the way out."""

import base64
import dataclasses
import importlib
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeGuard

import click

from ferromq._ferromq import MessageView, StoredMessage
from ferromq.admin.results import Unreachable
from ferromq.errors import (
    ConfigError,
    FerromqError,
    GroupNotFound,
    IllegalFilter,
    IllegalName,
    OutcomeUnknown,
    PolicyNotFound,
    TopicNotFound,
    UserNotFound,
)
from ferromq.terminal.commands import in_commands
from ferromq.terminal.formatting import instant, table

DONE, FAILED, WRONG_USAGE, NOT_FOUND, UNREACHABLE = range(5)
"""The exit codes. UNREACHABLE is also that of a result without the part of a broker that did not answer."""
_COMPRESSED = 1
_WIDE = 4096
"""Columns of a table at most."""
_HIGH = 25
"""Lines of a terminal, which a table does not depend on."""
CARRIED_OUT = "the command itself was carried out"
"""What an error of the output says once a change is made."""


_LINES = "\n"


def visible(text: str, but: str = "") -> str:
    """Return *text* with characters that a terminal would obey, or not show, as escapes; those of *but* stay."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each in but else json.dumps(each)[1:-1] for each in text)


class Missing(FerromqError):  # noqa: N818 (as the others)
    """What was looked for is not there."""


class OutputError(FerromqError):
    """The standard output cannot be written, as on a full disk."""


@contextmanager
def printing() -> Iterator[None]:
    """Raise `OutputError` if the standard output cannot be written."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(f"cannot write to the standard output: {error.strerror or error}") from error


@contextmanager
def told(done: str) -> Iterator[None]:
    """Add to an `OutputError` what the command has done."""
    try:
        yield
    except OutputError as error:
        raise OutputError(f"{error}; {done}") from error.__cause__


class Output:
    """Prints results as people or programs read them. Its methods raise `OutputError`."""

    def __init__(self, *, is_json: bool) -> None:
        self.is_json = is_json

    def document(self, value: Any) -> None:
        """Print one JSON document."""
        with printing():
            click.echo(visible(json.dumps(plain(value), indent=2, ensure_ascii=False), _LINES))

    def line(self, value: Any) -> None:
        """Print one line of JSON, at once."""
        with printing():
            click.echo(visible(json.dumps(plain(value), ensure_ascii=False)))

    def text(self, text: str) -> None:
        """Print a line for people."""
        with printing():
            click.echo(visible(text, _LINES))

    def done(self, text: str, value: Mapping[str, Any]) -> None:
        """Print that a change is made, by its text or its value."""
        with told(CARRIED_OUT):
            if self.is_json:
                self.document(value)
            else:
                self.text(text)

    def table(self, head: Sequence[str], rows: Iterable[Sequence[object]], alignment: str) -> None:
        """Print a table; *alignment* has `<` or `>` for each column. By rich if it is there, and at a terminal."""
        cells = [[shown(cell) for cell in row] for row in rows]
        rich = _rich() if sys.stdout.isatty() else None
        if rich is None:
            with printing():
                for line in table(head, cells, alignment):
                    click.echo(line)
            return
        made = rich[1].Table(box=None, pad_edge=False, header_style="bold")
        for name, side in zip(head, alignment, strict=True):
            made.add_column(name, justify="left" if side == "<" else "right", no_wrap=True)
        for row in cells:
            made.add_row(*(rich[2].Text(cell) for cell in row))
        # Narrower, rich would break ids and addresses apart; the terminal wraps lines that are too long. Without a
        # height, it has 80 columns at a terminal that is TERM=dumb.
        with printing():
            rich[0].Console(width=_WIDE, height=_HIGH).print(made)


def _rich() -> tuple[Any, Any, Any] | None:
    try:
        return tuple(importlib.import_module(f"rich.{name}") for name in ("console", "table", "text"))  # type: ignore[return-value]
    except ModuleNotFoundError:
        return None


def shown(value: object) -> str:
    """Return a cell of a table."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else visible(str(value))


def plain(value: Any) -> Any:
    """Return a value in JSON's types: of a result its fields and properties."""
    if isinstance(value, FerromqError):
        return in_commands(str(value))
    if isinstance(value, MessageView | StoredMessage):
        return message_fields(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        kinds = reversed(type(value).__mro__)
        members = {name: each for kind in kinds for name, each in vars(kind).items() if name[0] != "_"}
        properties = [name for name, each in members.items() if isinstance(each, property)]
        names = [field.name for field in dataclasses.fields(value)] + properties
        return {name: plain(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value


def message_fields(message: MessageView | StoredMessage) -> dict[str, Any]:
    """Return a message as JSON: the body as text if it is UTF-8, else in base64."""
    fields: dict[str, Any] = {
        "topic": message.topic,
        "message_id": message.message_id,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "broker": message.store_host or None,
        "keys": list(message.keys),
        "tag": message.tag,
        "properties": dict(message.properties),
        "born_timestamp": message.born_timestamp,
        "store_timestamp": message.store_timestamp,
    }
    if isinstance(message, MessageView):
        fields["message_group"] = message.message_group
    elif message.sys_flag & _COMPRESSED:
        return fields | {"body_base64": base64.b64encode(message.body).decode(), "compressed": True}
    try:
        return fields | {"body": message.body.decode()}
    except UnicodeDecodeError:
        return fields | {"body_base64": base64.b64encode(message.body).decode()}


def message_line(message: MessageView | StoredMessage) -> str:
    """Return a message on one line, for people."""
    place = f"queue {message.queue_id} offset {message.queue_offset}"
    if message.store_host:
        place += f" at {message.store_host}"
    parts = [instant(message.store_timestamp), place, message.message_id]
    if message.tag is not None:
        parts.append(f"tag {message.tag}")
    if message.keys:
        parts.append(f"keys {' '.join(message.keys)}")
    fields = message_fields(message)
    if fields.get("compressed"):
        parts.append(f"{len(message.body)} bytes, compressed")
    elif "body" in fields:
        parts.append(repr(fields["body"]))
    else:
        parts.append(repr(message.body)[1:])
    return visible("  ".join(parts))


def partial(unreachable: Sequence[Unreachable]) -> int:
    """Name on stderr each broker whose part is missing, and return the exit code."""
    for broker in unreachable:
        text = f"ferromq: the part of the broker at {broker.address} is missing: {in_commands(str(broker.error))}"
        click.echo(visible(text), err=True)
    return UNREACHABLE if unreachable else DONE


def fail(error: Exception) -> int:
    """Tell an error on stderr, with the command that mends it, and return the exit code."""
    notes = "".join(f"\n  {note}" for note in getattr(error, "__notes__", ()))
    text = f"{error.object!r:.80} is not valid UTF-8; correct it" if _is_surrogate(error) else str(error)
    click.echo(visible(f"ferromq: {in_commands(f'{text}{notes}')}", _LINES), err=True)
    code, way_out = _kind(error)
    if way_out:
        click.echo(f"  {way_out}", err=True)
    return code


_KINDS: Sequence[tuple[tuple[type[Exception], ...], int, str]] = (
    (
        (TopicNotFound,),
        NOT_FOUND,
        "ferromq topic list shows the topics; ferromq topic create NAME creates one",
    ),
    (
        (GroupNotFound,),
        NOT_FOUND,
        "ferromq group list shows the groups; ferromq group create NAME creates one",
    ),
    ((UserNotFound,), NOT_FOUND, "ferromq user list shows the users; ferromq user create NAME creates one"),
    ((PolicyNotFound,), NOT_FOUND, "ferromq acl list shows the entries of policies"),
    ((Missing,), NOT_FOUND, ""),
    (
        (OutcomeUnknown,),
        UNREACHABLE,
        "ferromq cluster list shows which brokers answer; ferromq context list shows the addresses",
    ),
    ((ConfigError, IllegalName, IllegalFilter), WRONG_USAGE, ""),
)
"""Exceptions, the exit code, and the command that helps."""


def _kind(error: Exception) -> tuple[int, str]:
    for kinds, code, way_out in _KINDS:
        if isinstance(error, kinds):
            return code, way_out
    # For a wrong argument clients raise `ValueError` itself, before they do anything; its subclasses are failures.
    return (WRONG_USAGE if type(error) is ValueError or _is_surrogate(error) else FAILED), ""


def _is_surrogate(error: Exception) -> TypeGuard[UnicodeEncodeError]:
    """Say whether it is the error of text without UTF-8, as Python reads other bytes of the command line."""
    return isinstance(error, UnicodeEncodeError) and error.encoding == "utf-8"
