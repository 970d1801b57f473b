"""What `help` and editors show of the classes of the Rust core, which have no docstrings in a Python source."""

import ast
import inspect
from pathlib import Path

import pytest

from ferromq import _ferromq

PUBLIC = ("Clock", "ExpiredFile", "Message", "MessageView", "Store", "StoredMessage")
STUB = Path(_ferromq.__file__).with_name("_ferromq.pyi")


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_attribute_is_documented_at_run_time(name: str) -> None:
    """Units included: a time without one is a guess."""
    kind = getattr(_ferromq, name)
    public = {each for each in dir(kind) if not each.startswith("_")}
    assert {each for each in public if not inspect.getdoc(getattr(kind, each))} == set()
    assert inspect.getdoc(kind)


@pytest.mark.parametrize("name", PUBLIC)
def test_properties_have_the_text_of_the_stub(name: str) -> None:
    """So that an editor and `help` say the same."""
    classes = [each for each in ast.parse(STUB.read_text()).body if isinstance(each, ast.ClassDef)]
    (stub,) = (each for each in classes if each.name == name)
    properties = [each for each in stub.body if isinstance(each, ast.FunctionDef) and _is_property(each)]
    written = {each.name: ast.get_docstring(each) for each in properties}
    assert written == {each: inspect.getdoc(getattr(getattr(_ferromq, name), each)) for each in written}


def _is_property(function: ast.FunctionDef) -> bool:
    return any(isinstance(each, ast.Name) and each.id == "property" for each in function.decorator_list)


def test_a_received_message_has_no_methods_of_the_consumer() -> None:
    """What a message is acknowledged, renewed and settled with besides `ack` is no business of handlers."""
    methods = {each for each in dir(_ferromq.MessageView) if callable(getattr(_ferromq.MessageView, each))}
    assert {each for each in methods if not each.startswith("_")} == {"ack", "change_invisible_duration"}
