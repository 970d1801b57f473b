"""The public calls write the same thing in the same way: durations, times, `flush` and `close`."""

import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import is_dataclass
from datetime import UTC, datetime, timedelta
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest

import ferromq
from ferromq import Clock, aio, store_tools
from ferromq.client import options as client_options

DURATION = timedelta | float
TIME = datetime | int
NAMES_OF_DURATIONS = re.compile(
    r"(.*_)?(timeout|wait|delay|delays|duration|linger|interval|period|seconds|after|lease|age)"
)
NAMES_OF_TIMES = re.compile(r"(.*_)?(timestamp|when|since|until|start|time)")
NAMED_BY_UNIT = {"Clock.advance"}
"""Their parameters are days, hours, minutes, seconds and milliseconds."""


def functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield the public functions and methods of the client API that Python defines."""
    for module in (ferromq, aio, store_tools):
        for name in module.__all__:
            found = getattr(module, name)
            is_data = is_dataclass(found)  # results, and the options of servers
            if inspect.isfunction(found):
                yield f"{module.__name__}.{name}", found
            elif inspect.isclass(found) and found.__module__.startswith("ferromq.") and not is_data:
                for method, each in vars(found).items():
                    plain = getattr(each, "__func__", each)
                    if inspect.isfunction(plain) and (method[0] != "_" or method == "__init__"):
                        yield f"{module.__name__}.{name}.{method}", plain


def parameters() -> Iterator[tuple[str, str, Any]]:
    """Yield each parameter: its function, its name and its type; those of typed keyword arguments included."""
    for function, found in functions():
        hints = get_type_hints(found)
        for each in inspect.signature(found).parameters:
            if each in hints and function.partition(".")[2] not in NAMED_BY_UNIT:
                yield function, each, hints[each]
    for options in client_options.__dict__.values():
        if isinstance(options, type) and hasattr(options, "__total__"):
            for name, kind in get_type_hints(options).items():
                yield options.__name__, name, kind


def alternatives(kind: Any) -> set[Any]:
    """Return the types of a union without None and words; of a sequence, those of its elements."""
    members = get_args(kind) if get_origin(kind) in {Union, UnionType} else (kind,)
    found = set[Any]()
    for member in members:
        if get_origin(member) is Sequence:
            found |= alternatives(*get_args(member))
        elif member is not NoneType and get_origin(member) is not Literal:
            found.add(member)
    return found


ALL = list(parameters())


def test_durations_and_times_are_among_the_parameters() -> None:
    """Else the test below would find nothing."""
    names = {(function, name) for function, name, _ in ALL}
    assert {("ferromq.Producer.close", "timeout"), ("ferromq.aio.Consumer.receive", "wait")} <= names
    assert {("MessageOptions", "delivery_timestamp"), ("ferromq.Clock.manual", "start")} <= names


def test_a_duration_is_a_timedelta_or_seconds_and_a_time_a_datetime_or_milliseconds() -> None:
    """In every public parameter, whatever its name; and one with the name of either has that type."""
    wrong = []
    for function, name, kind in ALL:
        types = alternatives(kind)
        wanted = None
        if timedelta in types or NAMES_OF_DURATIONS.fullmatch(name):
            wanted = set(get_args(DURATION))
        elif datetime in types or NAMES_OF_TIMES.fullmatch(name):
            wanted = set(get_args(TIME))
        if wanted is not None and types != wanted:
            wrong.append((function, name, kind))
    assert wrong == []


CLIENTS = [
    getattr(module, name)
    for module in (ferromq, aio)
    for name in ("Producer", "Consumer", "Reader", "Admin", "Connection")
]


@pytest.mark.parametrize("client", [*CLIENTS, ferromq.Embedded], ids=lambda kind: f"{kind.__module__}.{kind.__name__}")
def test_close_and_flush_have_the_same_arguments_everywhere(client: type[Any]) -> None:
    """`close(timeout=5.0)`, and `flush(timeout=None) -> bool` where there is something to flush."""
    close = inspect.signature(client.close)
    assert [(each.name, each.default) for each in close.parameters.values()][1:] == [("timeout", 5.0)]
    flush = getattr(client, "flush", None)
    assert (flush is None) == (client.__name__ not in {"Producer", "Consumer"})
    if flush is not None:
        found = inspect.signature(flush)
        assert [(each.name, each.default) for each in found.parameters.values()][1:] == [("timeout", None)]
        assert found.return_annotation is bool


def test_a_manual_clock_begins_at_a_datetime_or_at_milliseconds() -> None:
    """A datetime needs its time zone: its milliseconds depend on it."""
    begin = datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)
    assert Clock.manual(begin).now_ms() == Clock.manual(1_767_323_045_678).now_ms() == 1_767_323_045_678
    with pytest.raises(ValueError, match="without a time zone"):
        Clock.manual(begin.replace(tzinfo=None))
