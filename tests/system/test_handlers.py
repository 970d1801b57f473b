"""Handlers of `run`: one of the other kind is refused, and never acknowledges an unhandled message."""

import asyncio
import functools
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

import ferromq
from ferromq import MessageView, aio

PATIENCE = 20.0


@pytest.fixture
def mq() -> Iterator[ferromq.Embedded]:
    """Yield an embedded broker with one message of the topic `orders`."""
    with ferromq.embedded() as embedded:
        with embedded.producer() as producer:
            producer.send("orders", b"x")
        yield embedded


class Async:
    """Holds asynchronous handlers."""

    async def __call__(self, message: MessageView) -> None:
        """Handle a message."""

    async def method(self, message: MessageView) -> None:
        """Handle a message."""


class Plain:
    """Holds synchronous handlers."""

    def __call__(self, message: MessageView) -> None:
        """Handle a message."""

    def method(self, message: MessageView) -> None:
        """Handle a message."""


async def asynchronous(message: MessageView) -> None:
    """Handle a message."""


async def asynchronous_of_two(_other: int, message: MessageView) -> None:
    """Handle a message."""


def plain(message: MessageView) -> None:
    """Handle a message."""


def generator(message: MessageView) -> Iterator[MessageView]:
    """Yield a message."""
    yield message


async def asynchronous_generator(message: MessageView) -> AsyncIterator[MessageView]:
    """Yield a message."""
    yield message


@pytest.mark.parametrize(
    "handler",
    [
        asynchronous,
        Async(),
        Async().method,
        functools.partial(asynchronous_of_two, 1),
        functools.partial(functools.partial(Async())),
        asynchronous_generator,
        generator,
        None,
    ],
)
def test_a_handler_that_run_would_not_run_is_refused(mq: ferromq.Embedded, handler: Any) -> None:
    """By the call, before any message is received."""
    with mq.consumer("billing", "orders") as consumer:
        with pytest.raises(TypeError, match="handler"):
            consumer.run(handler)
        (message,) = consumer.receive(wait=PATIENCE)
        assert message.delivery_attempt == 1


@pytest.mark.parametrize(
    "handler",
    [
        plain,
        Plain(),
        Plain().method,
        functools.partial(plain),
        functools.partial(Plain()),
        print,
        asynchronous_generator,
        generator,
        None,
    ],
)
def test_a_handler_that_cannot_be_awaited_is_refused(mq: ferromq.Embedded, handler: Any) -> None:
    """By the call, before any message is received."""

    async def use() -> None:
        async with aio.Consumer(mq.endpoint, "billing", "orders") as consumer:
            with pytest.raises(TypeError, match="handler"):
                await consumer.run(handler)
            (message,) = await consumer.receive(wait=PATIENCE)
            assert message.delivery_attempt == 1

    asyncio.run(use())


@pytest.mark.parametrize("function", [asynchronous, generator, asynchronous_generator])
def test_a_result_that_still_has_to_run_ends_run_and_acknowledges_nothing(mq: ferromq.Embedded, function: Any) -> None:
    """The program is wrong, not the message: no attempt is counted."""
    with mq.consumer("billing", "orders") as consumer:
        with pytest.raises(TypeError, match="not acknowledged"):
            consumer.run(lambda message: function(message))  # noqa: PLW0108 (which shows nothing before it is called)
        (message,) = consumer.receive(wait=PATIENCE)
        assert message.delivery_attempt == 1


def test_a_result_that_cannot_be_awaited_ends_run_and_acknowledges_nothing(mq: ferromq.Embedded) -> None:
    """The asynchronous interface promises the same."""
    calls: list[MessageView] = []
    appending: Any = lambda message: calls.append(message)  # noqa: E731, PLW0108 (a lambda is what is tested)

    async def use() -> None:
        async with aio.Consumer(mq.endpoint, "billing", "orders") as consumer:
            with pytest.raises(TypeError, match="not acknowledged"):
                await consumer.run(appending)
            (message,) = await consumer.receive(wait=PATIENCE)
            assert message.delivery_attempt == 1

    asyncio.run(use())
    assert len(calls) == 1


@functools.wraps(asynchronous)
def wrapper(message: MessageView) -> Any:
    """Return an awaitable."""
    return asynchronous(message)


@pytest.mark.parametrize("handler", [Async(), Async().method, functools.partial(Async()), wrapper])
def test_asynchronous_handlers_of_all_kinds_are_awaited(mq: ferromq.Embedded, handler: Any) -> None:
    """Functions, methods, partials, objects, and wrappers that return what is awaited."""

    async def use() -> None:
        async with aio.Consumer(mq.endpoint, "billing", "orders") as consumer:
            running = asyncio.create_task(consumer.run(handler))
            async with asyncio.timeout(PATIENCE):
                while mq.broker._server.stats()["acked"] != 1:  # noqa: ASYNC110 (the broker has no event for it)
                    await asyncio.sleep(0.01)
            consumer.stop()
            await running

    asyncio.run(use())
