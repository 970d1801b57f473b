"""
The clients of `ferromq.aio` with calls that block, so that one test runs for both interfaces.

A test calls a `Blocking` as it calls the synchronous client: its handlers are plain functions, and its loops a `for`.
"""

import asyncio
import concurrent.futures
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

from ferromq import aio

PATIENCE = 60.0


class Blocking:
    """An object of `ferromq.aio`: its calls run on an event loop in another thread."""

    def __init__(self, wrapped: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._wrapped, self._loop = wrapped, loop

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._wrapped, name)
        if not callable(found):
            return found

        def call(*arguments: Any, **options: Any) -> Any:
            return self._on_loop(lambda: found(*arguments, **options))

        return call

    def run(self, handler: Callable[[Any], object], **options: Any) -> None:
        """Run with a handler that may block."""

        async def handle(given: Any) -> None:
            await asyncio.to_thread(handler, given)

        self._on_loop(lambda: self._wrapped.run(handle, **options))

    def __iter__(self) -> Iterator[Any]:
        return iter(self._on_loop(lambda: aiter(self._wrapped)))

    def __repr__(self) -> str:
        return repr(self._wrapped)

    def __enter__(self) -> Self:
        self._on_loop(self._wrapped.__aenter__)
        return self

    def __exit__(self, *error: object) -> None:
        self._on_loop(lambda: self._wrapped.__aexit__(*error))

    def _on_loop(self, begin: Callable[[], Any]) -> Any:
        async def run() -> Any:
            result = begin()
            return await result if inspect.isawaitable(result) else result

        result = asyncio.run_coroutine_threadsafe(run(), self._loop).result(PATIENCE)
        if isinstance(result, asyncio.Future):  # of `submit`
            return asyncio.run_coroutine_threadsafe(_result(result), self._loop)
        if isinstance(result, AsyncIterator):
            return self._steps(result)
        return Blocking(result, self._loop) if isinstance(result, _OF_AIO) else result

    def _steps(self, messages: AsyncIterator[Any]) -> Iterator[Any]:
        end = object()
        while (message := self._on_loop(lambda: anext(messages, end))) is not end:
            yield message


_OF_AIO = (aio.Connection, aio.Producer, aio.Consumer, aio.Reader, aio.Transaction)


async def _result(future: "asyncio.Future[Any]") -> Any:
    return await future


@contextmanager
def loop_in_thread() -> Iterator[asyncio.AbstractEventLoop]:
    """Yield an event loop that runs in a thread, which lets many handlers block."""
    loop = asyncio.new_event_loop()
    loop.set_default_executor(concurrent.futures.ThreadPoolExecutor(64))
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(PATIENCE)
        loop.close()


@contextmanager
def connected(*address: Any, **options: Any) -> Iterator[Blocking]:
    """Yield an `aio.Connection`."""
    with loop_in_thread() as loop, Blocking(aio.connect(*address, **options), loop) as connection:
        yield connection
