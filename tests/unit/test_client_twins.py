"""The consumers of both interfaces have the same methods and the same arguments."""

import inspect
from typing import Any

import pytest

import ferromq
from ferromq import aio


def methods(kind: Any) -> dict[str, Any]:
    """Return the public methods of a class, and its constructor."""
    return {
        name: each for name, each in vars(kind).items() if callable(each) and (name[0] != "_" or name == "__init__")
    }


def arguments(function: Any) -> list[tuple[str, Any, Any]]:
    """Return names, kinds and defaults; threads are tasks."""
    given = inspect.signature(function).parameters.values()
    return [("tasks" if each.name == "threads" else each.name, each.kind, each.default) for each in given]


def test_consumers_have_the_same_methods() -> None:
    """None is missing on either side."""
    assert methods(ferromq.Consumer).keys() == methods(aio.Consumer).keys()


@pytest.mark.parametrize("name", sorted(methods(ferromq.Consumer)))
def test_methods_of_consumers_have_the_same_arguments(name: str) -> None:
    """In the same order, with the same defaults."""
    assert arguments(getattr(ferromq.Consumer, name)) == arguments(getattr(aio.Consumer, name))
