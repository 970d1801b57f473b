"""Which functions `run` may call: one that is not awaited, or not run at all, must not acknowledge messages."""

import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from ferromq._ferromq import MessageView
from ferromq.core.payloads import Decoder

M = TypeVar("M")
R = TypeVar("R")


def of_messages(handler: Callable[[Any], R], decoder: Decoder[Any]) -> Callable[[MessageView], R]:
    """Return a handler of messages as they are received, which gives *handler* what the decoder makes of them."""
    if not decoder.is_on:
        return handler

    @functools.wraps(handler)
    def decoded(message: MessageView) -> R:
        return handler(decoder.given(message))

    return decoded


class UnusableResult(TypeError):  # noqa: N818 (users see it as a `TypeError`)
    """A handler returned something that says that its body did not run."""


def check_sync(handler: Callable[..., Any]) -> None:
    """Raise `TypeError` unless calling *handler* runs its body."""
    if _has(handler, inspect.iscoroutinefunction):
        raise TypeError(f"{_name(handler)} is asynchronous, and run does not await it: use ferromq.aio.Consumer.run")
    _check(handler)


def check_async(handler: Callable[..., Any]) -> None:
    """Raise `TypeError` unless *handler* is asynchronous, or may be: lambdas and wrappers show it by their result."""
    _check(handler)
    if not _has(handler, _may_be_awaited):
        raise TypeError(
            f"{_name(handler)} is not asynchronous: define it with async def, or use ferromq.Consumer.run with threads"
        )


def call_sync(handler: Callable[[M], object], argument: M) -> None:
    """Call a handler. Raises `UnusableResult` where it returned what still has to run."""
    result = handler(argument)
    if result is None:
        return
    if inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result):
        if inspect.iscoroutine(result):
            result.close()  # it will never be awaited, as the error says
        raise UnusableResult(
            f"{_name(handler)} returned {type(result).__name__}, which run does not run; "
            "the message is not acknowledged: use ferromq.aio.Consumer.run"
        )


async def call_async(handler: Callable[[M], Awaitable[object]], argument: M) -> None:
    """Await a handler. Raises `UnusableResult` where it returned nothing to await."""
    result = handler(argument)
    if not inspect.isawaitable(result):
        raise UnusableResult(
            f"{_name(handler)} returned {type(result).__name__}, which cannot be awaited; "
            "the message is not acknowledged: define the handler with async def"
        )
    await result


def _check(handler: Callable[..., Any]) -> None:
    if not callable(handler):
        raise TypeError(f"a handler is a function of one message, not {type(handler).__name__}")
    if _has(handler, inspect.isgeneratorfunction) or _has(handler, inspect.isasyncgenfunction):
        raise TypeError(f"{_name(handler)} is a generator: calling it runs nothing; a handler must not yield")


def _has(handler: Callable[..., Any], predicate: Callable[[Any], bool]) -> bool:
    """Say whether a callable, or what its partials, decorators, or `__call__` lead to, is of a kind."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    if predicate(handler):
        return True
    call = None if inspect.isroutine(handler) or inspect.isclass(handler) else type(handler).__call__
    return call is not None and predicate(call)


def _may_be_awaited(function: Any) -> bool:
    return inspect.iscoroutinefunction(inspect.unwrap(function)) or getattr(function, "__name__", "") == "<lambda>"


def _name(handler: Callable[..., Any]) -> str:
    while isinstance(handler, functools.partial):
        handler = handler.func
    return f"the handler {getattr(handler, '__qualname__', type(handler).__qualname__)}"
