"""
Handlers of messages that run beside an application: in the lifespan of FastAPI and Starlette, or in any event loop.

It imports neither of them: a lifespan is a function that returns an asynchronous context.
"""

import asyncio
import logging
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from ferromq.aio.connecting import Connection, connect
from ferromq.client.options import ClientOptions, ConsumerOptions
from ferromq.core.batches import check_batch
from ferromq.core.handlers import check_async
from ferromq.core.payloads import Encode, T, V
from ferromq.core.requests import seconds
from ferromq.core.subscriptions import Topics
from ferromq.errors import ConfigError
from ferromq.terminal.objects import Shown

if TYPE_CHECKING:
    from ferromq.aio.consumer import Consumer

__all__ = ["Workers"]

_log = logging.getLogger("ferromq.client")

H = TypeVar("H", bound=Callable[[Any], Awaitable[object]])


@dataclass(frozen=True, slots=True)
class _Worker:
    """A handler, and the arguments of its consumer."""

    handler: Callable[[Any], Awaitable[object]]
    group: str
    topics: Topics
    batch: int | None
    linger: timedelta | float
    concurrency: int
    stop_timeout: timedelta | float
    options: ConsumerOptions[Any]

    @property
    def names(self) -> str:
        """The topics, joined by commas."""
        return self.topics if isinstance(self.topics, str) else ",".join(self.topics)

    async def run(self, consumer: "Consumer[Any]") -> None:
        """Call the handler until it is stopped."""
        run = consumer.run if self.batch is None else partial(consumer.run, batch=self.batch)
        await run(self.handler, linger=self.linger, concurrency=self.concurrency, stop_timeout=self.stop_timeout)


class Workers(Shown):
    """
    Handlers that receive messages while an application runs.

        workers = ferromq.aio.Workers()

        @workers.handler("billing", "orders", concurrency=8)
        async def bill(message):
            ...

        app = FastAPI(lifespan=workers.lifespan("127.0.0.1:8081"))

    At the end of the application, handlers at work end as of `Consumer.run`. A worker that dies, because its topic does
    not exist or the broker forbids it to receive, ends the application: see `running`. `run` is for a program that does
    nothing else.
    """

    _kind = "aio.Workers"

    def __init__(self) -> None:
        self._workers: list[_Worker] = []

    def handler(
        self,
        group: str,
        topics: Topics,
        *,
        batch: int | None = None,
        linger: timedelta | float = 0.0,
        concurrency: int = 1,
        stop_timeout: timedelta | float = timedelta(seconds=30),
        **options: Unpack[ConsumerOptions[T]],
    ) -> Callable[[H], H]:
        """
        Return a decorator that makes an asynchronous function the handler of a consumer in *group* of *topics*.

        *batch*, *linger*, *concurrency* and *stop_timeout* are as of `Consumer.run`, *topics* and the options as of
        `Consumer`. What becomes of a message is said there. Raises `TypeError` for a function that cannot be awaited,
        and `ConfigError` for a batch that cannot be.
        """
        check_batch(batch, seconds(linger), options.get("prefetch"))

        def register(handler: H) -> H:
            check_async(handler)
            whole: ConsumerOptions[Any] = {**options}
            self._workers.append(_Worker(handler, group, topics, batch, linger, concurrency, stop_timeout, whole))
            return handler

        return register

    def lifespan(
        self,
        endpoint: str | Sequence[str] | None = None,
        *,
        encode: Encode[V] | None = None,
        **options: Unpack[ClientOptions],
    ) -> Callable[[Any], AbstractAsyncContextManager[dict[str, Any]]]:
        """
        Return a lifespan for FastAPI and Starlette, which connects, runs the handlers, and closes all at the end.

        *endpoint* and the options are as of `connect`. Requests find the `Connection` as `request.state.mq`, and a
        producer with *encode* as `request.state.producer`.
        """

        @asynccontextmanager
        async def lifespan(_app: object) -> AsyncIterator[dict[str, Any]]:
            mq = connect(endpoint, **options)
            async with mq, mq.producer(encode=encode) as producer, self.running(mq):
                yield {"mq": mq, "producer": producer}

        return lifespan

    @asynccontextmanager
    async def running(self, connection: Connection) -> AsyncIterator[None]:
        """
        Run the handlers for the length of an `async with`, with consumers of *connection*.

        If a worker dies, its error is logged, and raised at the end of the block. A program that handles SIGTERM, as
        web servers do, is sent it, so that it stops gracefully. In others the block is cancelled, as by a `TaskGroup`.
        """
        async with self._running(connection):
            yield

    async def run(self, connection: Connection) -> None:
        """
        Run the handlers until SIGTERM, for a program that does nothing else. Cancelling it stops them gracefully, too.

        Raises the error of a worker that dies, and `ConfigError` if there are no handlers.
        """
        if not self._workers:
            raise ConfigError("there is no handler to run: decorate a function with Workers.handler")
        async with self._running(connection) as tasks:
            await asyncio.wait(tasks)

    @property
    def _state(self) -> str:
        return f"{len(self._workers)} handlers"

    def _facts(self) -> Iterator[tuple[str, object]]:
        yield from ((worker.group, worker.names) for worker in self._workers)

    @asynccontextmanager
    async def _running(self, connection: Connection) -> AsyncIterator[list[asyncio.Task[None]]]:
        is_served = _handles_sigterm()
        body = asyncio.current_task()
        assert body is not None
        failures: list[BaseException] = []
        is_ending = False

        def ended(worker: _Worker, task: asyncio.Task[None]) -> None:
            failure = None if task.cancelled() else task.exception()
            if failure is None:
                return
            failures.append(failure)
            _log.critical("worker died group=%s topic=%s", worker.group, worker.names, exc_info=failure)
            if is_ending or len(failures) > 1:
                return
            if is_served:
                signal.raise_signal(signal.SIGTERM)
            else:
                body.cancel()

        async with AsyncExitStack() as stack:
            consumers: list[Consumer[Any]] = [
                await stack.enter_async_context(connection.consumer(each.group, each.topics, **each.options))
                for each in self._workers
            ]
            tasks = []
            for worker, consumer in zip(self._workers, consumers, strict=True):
                name = f"ferromq-worker {worker.group} {worker.names}"
                tasks.append(asyncio.create_task(worker.run(consumer), name=name))
                tasks[-1].add_done_callback(partial(ended, worker))
            try:
                await asyncio.sleep(0)  # each run begins: before that, `stop` ends nothing
                yield tasks
            except asyncio.CancelledError:
                if not failures or is_served or body.uncancel():
                    raise
            finally:
                is_ending = True
                for consumer in consumers:
                    consumer.stop()
                await asyncio.gather(*tasks, return_exceptions=True)
        if failures:
            raise failures[0]


def _handles_sigterm() -> bool:
    """Say whether the program handles SIGTERM itself, and this is the thread to send it in."""
    is_default = signal.getsignal(signal.SIGTERM) in {signal.SIG_DFL, signal.SIG_IGN, None}
    return threading.current_thread() is threading.main_thread() and not is_default
