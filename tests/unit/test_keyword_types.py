"""Keyword arguments that are passed on have types, and the types are those of the function that takes them."""

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

import pytest

import ferromq
from ferromq import aio
from ferromq.client import options as client_options
from ferromq.config.broker import BrokerConfig
from ferromq.config.options import BrokerOptions, StoreChanges, StoreOptions
from ferromq.config.store import StoreConfig
from ferromq.testing import Broker

OF_EMBEDDED = {"store", "archive"}
"""Options of a broker that `embedded` takes as arguments of its own."""
TEXTS = {str: (str, str | os.PathLike[str]), int: (int | str,), bool: (bool,), timedelta: (timedelta | float | str,)}
TABLES = {
    tuple[str, ...]: (Sequence[str] | str,),
    tuple[int, ...]: (Sequence[int] | int | str,),
    tuple[float, ...]: (Sequence[float] | str,),
    Mapping[str, int]: (Mapping[str, int] | str,),
    Mapping[str, timedelta]: (Mapping[str, timedelta | str] | str,),
}
ACCEPTED: Mapping[Any, tuple[Any, ...]] = {**TEXTS, **TABLES}
"""The type of an option → the types of a keyword argument that sets it."""
WITH_UNIT = {"retention_age": timedelta | str}
"""Ages, for which a bare number is ambiguous: RocketMQ counts them in hours."""


def fields(kind: type[Any]) -> dict[str, Any]:
    """Return the options of a configuration with their types, those of its parts included."""
    found: dict[str, Any] = dict(kind._types())
    for part in kind.parts.values():
        found |= fields(part)
    return found


def keywords(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the types of the keyword-only parameters of a function."""
    hints = get_type_hints(function)
    given = inspect.signature(function).parameters.values()
    return {each.name: hints[each.name] for each in given if each.kind is each.KEYWORD_ONLY}


@pytest.mark.parametrize(
    ("options", "config", "without"),
    [(BrokerOptions, BrokerConfig, OF_EMBEDDED), (StoreOptions, StoreConfig, set[str]())],
)
def test_embedded_takes_exactly_the_options_of_a_broker(options: Any, config: type[Any], without: set[str]) -> None:
    """Each by its name and with its type; None is allowed where it is the default."""
    types, wanted = get_type_hints(options), fields(config)
    assert types.keys() == wanted.keys() - without
    for name, kind in types.items():
        parts = set(get_args(wanted[name])) - {NoneType} or {wanted[name]}
        is_optional = NoneType in get_args(wanted[name])
        (plain,) = parts if is_optional else {wanted[name]}
        allowed = (WITH_UNIT[name],) if name in WITH_UNIT else ACCEPTED[plain]
        assert kind in {each | None if is_optional else each for each in allowed}, name


def test_a_running_store_takes_the_options_that_can_change() -> None:
    """Flush and retention."""
    names = {name for name in StoreConfig.names() if name.startswith(("flush", "retention_"))}
    assert get_type_hints(StoreChanges).keys() == names


@pytest.mark.parametrize(
    ("options", "client"),
    [
        (client_options.ProducerOptions, ferromq.Producer),
        (client_options.AsyncProducerOptions, aio.Producer),
        (client_options.ConsumerOptions, ferromq.Consumer),
        (client_options.ConsumerOptions, aio.Consumer),
        (client_options.ReaderOptions, ferromq.Reader),
        (client_options.ReaderOptions, aio.Reader),
        (client_options.AdminOptions, ferromq.Admin),
        (client_options.AdminOptions, aio.Admin),
    ],
)
def test_a_connection_takes_exactly_the_options_of_its_clients(options: Any, client: type[Any]) -> None:
    """By name and type; the endpoint is its own."""
    taken = keywords(client.__init__)
    taken.pop("endpoint", None)
    assert get_type_hints(options) == taken


@pytest.mark.parametrize("connect", [ferromq.connect, aio.connect])
def test_connect_takes_what_all_its_clients_have_in_common(connect: Callable[..., Any]) -> None:
    """With the same defaults as the clients; beside the address."""
    taken = keywords(connect)
    del taken["namesrv"]
    assert taken == get_type_hints(client_options.ClientOptions)
    own, of_client = (inspect.signature(each).parameters for each in (connect, ferromq.Producer))
    assert all(own[name].default == of_client[name].default for name in taken)


@pytest.mark.parametrize("name", ["producer", "consumer", "reader", "admin", "close"])
def test_an_embedded_broker_takes_the_same_arguments_as_a_connection(name: str) -> None:
    """So that code written against one runs with the other."""
    assert inspect.signature(getattr(ferromq.Embedded, name)) == inspect.signature(getattr(ferromq.Connection, name))


@pytest.mark.parametrize("name", ["producer", "consumer", "reader"])
def test_the_broker_of_tests_takes_the_same_arguments_as_a_connection(name: str) -> None:
    """Type checkers find a wrong one, and know the type of what is decoded."""
    assert inspect.signature(getattr(Broker, name)) == inspect.signature(getattr(ferromq.Connection, name))


PUBLIC = [ferromq.embedded, ferromq.connect, aio.connect, ferromq.Embedded.configure]
PUBLIC += [
    getattr(kind, name) for kind in (ferromq.Connection, aio.Connection) for name in ("producer", "consumer", "reader")
]
PUBLIC += [kind.admin for kind in (ferromq.Connection, aio.Connection)]
PUBLIC += [Broker.connect, Broker.producer, Broker.consumer, Broker.reader]


@pytest.mark.parametrize("function", PUBLIC, ids=lambda function: f"{function.__module__}.{function.__qualname__}")
def test_no_keyword_argument_is_untyped(function: Callable[..., Any]) -> None:
    """An editor completes all of them."""
    for each in inspect.signature(function).parameters.values():
        if each.name == "self":
            continue
        assert each.annotation not in {Any, inspect.Parameter.empty}, each
        if each.kind is each.VAR_KEYWORD:
            (options,) = get_args(each.annotation)
            assert get_type_hints(get_origin(options) or options), each
