"""The clients of both interfaces have the same methods and properties, with the same arguments."""

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import ferromq
from ferromq import aio

TWINS = ("Admin", "Connection", "Consumer", "Producer", "Reader", "Transaction")


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


def test_both_interfaces_are_entered_in_the_same_way() -> None:
    """`connect` takes the same arguments."""
    assert arguments(ferromq.connect) == arguments(aio.connect)
