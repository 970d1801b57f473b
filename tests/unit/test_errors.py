"""The tree of exceptions."""

import inspect
import pickle
from typing import Any

import pytest

from ferromq import errors

ALL = [getattr(errors, name) for name in errors.__all__]


@pytest.mark.parametrize("kind", ALL)
def test_exceptions_survive_pickling(kind: Any) -> None:
    """Spark and multiprocessing send them between processes."""
    told: Any = {errors.RetryAfter: 300.0, errors.Failed: {"message": "why"}}.get(kind, "what happened")
    is_answer = issubclass(kind, errors.RequestError | errors.NotDurable)
    error = kind(told, 40402, "what the server said") if is_answer else kind(told)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert str(again) == str(told)
    assert vars(again) == vars(error)


def test_the_docstring_draws_every_class() -> None:
    """And __all__ names every class, sorted."""
    defined = [n for n, c in vars(errors).items() if inspect.isclass(c) and not n.startswith("_")]
    assert sorted(defined) == errors.__all__
    assert errors.__doc__ is not None
    for name in defined:
        assert name in errors.__doc__


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [
        (errors.ConfigError, ValueError),
        (errors.CorruptMessage, ValueError),
        (errors.MessageTooLarge, ValueError),
        (errors.IllegalName, ValueError),
        (errors.ConnectionFailed, ConnectionError),
        (errors.RequestTimeout, TimeoutError),
    ],
)
def test_builtin_errors_catch_them(kind: type[errors.FerromqError], builtin: type[Exception]) -> None:
    """Code without ferromq's classes catches them."""
    assert issubclass(kind, builtin)


def test_the_remark_is_the_message_where_none_came() -> None:
    """A local refusal has a text, but no code."""
    error = errors.IllegalName("no")
    assert (error.remark, error.code) == ("no", None)
