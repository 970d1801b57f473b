"""The clients of both interfaces have the same methods and properties: arguments, types and docstrings."""

import asyncio
import inspect
import re
import runpy
import sys
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest

import ferromq
from ferromq import aio
from ferromq.aio._connection import AsyncClient
from ferromq.client.client import Client
from ferromq.client.options import AsyncProducerOptions, ProducerOptions

TOOLS = Path(__file__).parents[2] / "tools"
TWINS = ("Admin", "Connection", "Consumer", "Producer", "Reader", "Transaction")
TYPES: dict[Any, Any] = {
    asyncio.Future: Future,
    AsyncClient: Client,
    AsyncIterator: Iterator,
    AsyncProducerOptions: ProducerOptions,
    **{getattr(aio, kind): getattr(ferromq, kind) for kind in TWINS},
}
"""The types that differ, beside `Awaitable[X]`, which is X, and `AsyncIterable`, which the synchronous client lacks."""


@pytest.fixture(scope="module")
def tool() -> Iterator[dict[str, Any]]:
    """Return the names of the program that writes the synchronous client."""
    sys.path.insert(0, str(TOOLS))
    yield runpy.run_path(str(TOOLS / "sync_from_async.py"))
    sys.path.remove(str(TOOLS))


def members(kind: type[Any]) -> dict[str, Any]:
    """Return the public methods and properties of a class, and its constructor."""
    found = {name: each for base in reversed(kind.__mro__[:-1]) for name, each in vars(base).items()}
    return {
        name: each
        for name, each in found.items()
        if (callable(each) or isinstance(each, property)) and (name[0] != "_" or name == "__init__")
    }


def arguments(function: Callable[..., Any]) -> list[tuple[str, Any, Any]]:
    """Return names, kinds and defaults."""
    return [(each.name, each.kind, each.default) for each in inspect.signature(function).parameters.values()]


def plain(kind: Any) -> Any:
    """Return a type as the synchronous client has it, in a form that is compared."""
    if isinstance(kind, list):
        return [plain(each) for each in kind]
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Awaitable:
        return plain(inner[0])
    if origin in {Union, UnionType}:
        members = [plain(each) for each in inner if get_origin(each) is not AsyncIterable]
        whole = {str(each): each for one in members for each in (one if isinstance(one, tuple) else (one,))}
        return tuple(sorted(whole)) if len(members) > 1 else members[0]
    if inner:
        return [TYPES.get(origin, origin), *map(plain, inner)]
    return TYPES.get(kind, kind)


def types(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the types of arguments and result."""
    return {name: plain(kind) for name, kind in get_type_hints(function).items()}


def pairs() -> Iterator[tuple[str, str]]:
    """Yield each class and each of its methods."""
    for kind in TWINS:
        for name, each in members(getattr(ferromq, kind)).items():
            if not isinstance(each, property):
                yield kind, name


@pytest.mark.parametrize("kind", TWINS)
def test_twins_have_the_same_members(kind: str) -> None:
    """None is missing on either side."""
    sync, awaited = (members(getattr(module, kind)) for module in (ferromq, aio))
    assert sync.keys() == awaited.keys()
    assert [name for name, each in sync.items() if isinstance(each, property)] == [
        name for name, each in awaited.items() if isinstance(each, property)
    ]


@pytest.mark.parametrize(("kind", "name"), list(pairs()))
def test_methods_of_twins_have_the_same_arguments(kind: str, name: str) -> None:
    """In the same order, with the same defaults."""
    assert arguments(getattr(getattr(ferromq, kind), name)) == arguments(getattr(getattr(aio, kind), name))


@pytest.mark.parametrize(("kind", "name"), list(pairs()))
def test_methods_of_twins_have_the_same_types(kind: str, name: str) -> None:
    """What is awaited is returned, and what is iterated over is the same."""
    assert types(getattr(getattr(ferromq, kind), name)) == types(getattr(getattr(aio, kind), name))


@pytest.mark.parametrize("kind", TWINS)
def test_twins_have_the_same_docstrings(kind: str, tool: dict[str, Any]) -> None:
    """But for the words that the program lists."""
    sync, awaited = (getattr(module, kind) for module in (ferromq, aio))
    there = {"": sync, **members(sync)}
    here = {"": awaited, **members(awaited)}
    assert {name: words(each.__doc__) for name, each in there.items()} == {
        name: tool["replaced"](words(each.__doc__), tool["WORDS"] | tool["CODE"]) for name, each in here.items()
    }


def words(docstring: str | None) -> str:
    """Return a docstring without its lines; a constructor has none."""
    return " ".join((docstring or "").split())


def test_both_interfaces_are_entered_in_the_same_way(tool: dict[str, Any]) -> None:
    """`connect` takes the same arguments, and says the same."""
    assert arguments(ferromq.connect) == arguments(aio.connect)
    assert types(ferromq.connect) == types(aio.connect)
    translated = tool["replaced"](words(aio.connect.__doc__), tool["WORDS"] | tool["CODE"])
    assert words(ferromq.connect.__doc__) == translated


def test_the_generated_modules_are_up_to_date(tool: dict[str, Any]) -> None:
    """A change of one client alone is found."""
    package = tool["PACKAGE"]
    for source, target in tool["GENERATED"].items():
        assert (package / target).read_text() == tool["generated"](source, target), f"run `make sync`: {target}"


def test_every_rule_of_the_program_has_a_use(tool: dict[str, Any]) -> None:
    """Words that a source no longer has would differ without a rule."""
    sources = [(tool["PACKAGE"] / path).read_text() for pair in tool["GENERATED"].items() for path in pair]
    texts = "\n".join([*sources, *map(words, sources)])
    rules = [*tool["WORDS"], *tool["CODE"], *(rf"\bferromq\.{module}\b" for module in tool["MODULES"])]
    assert [rule for rule in rules if not re.search(rule, texts, re.MULTILINE)] == []


def test_marked_lines_are_in_one_of_the_clients_alone(tool: dict[str, Any]) -> None:
    """And a paragraph of a docstring whose words change is filled anew."""
    source = '''
async def close(self):
    """
    End it.

    The task that closes it goes on.
    """
    await self.end()  # async
    # sync: self.finish()
'''
    assert (
        tool["synchronous"](source)
        == '''
def close(self):
    """
    End it.

    The thread that closes it goes on.
    """
    self.finish()
'''
    )
