"""
The clients of all ways to a broker behind one set of blocking calls, for tests of their common promises.

A shell is a consumer. `SyncShell` calls `ferromq.Consumer`; `AioShell` calls `ferromq.aio.Consumer` on an event loop in
a thread of its own. Handlers and bodies of loops are plain functions; the loop runs them in threads. `TlsSyncShell` and
`TlsAioShell` do the same over TLS; `EmbeddedShell` and `AioEmbeddedShell` call a broker of this process without a
socket. `producer` of a shell makes a producer of the same way. `contract` lists the tests of what holds on each.
"""

import asyncio
import ssl
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Protocol, Self

from blocking import connected, loop_in_thread
from tls_files import TRUST

import ferromq
from ferromq import MessageView, aio

PATIENCE = 20.0


class Broker(Protocol):
    """An object with the address of a broker."""

    @property
    def endpoint(self) -> str:
        """`host:port` of its gRPC side."""


class Shells:
    """The calls of all."""

    consumer: Any

    @property
    def ahead(self) -> int:
        """How many messages iteration has prefetched."""
        return len(self.consumer._ahead._ahead.waiting)

    @property
    def brokers(self) -> list[str]:
        """The brokers that know it, in the order of its registrations."""
        client = self.consumer._client
        return [*(client.base if isinstance(self, AioShell) else client).session._streams]


class SyncShell(Shells):
    """A `ferromq.Consumer`."""

    kind = "sync"

    def __init__(self, mq: Broker, group: str, topic: str, **options: Any) -> None:
        self.consumer = ferromq.Consumer(mq.endpoint, group, topic, **options)

    @classmethod
    @contextmanager
    def producer(cls, mq: Broker, *topics: str, **options: Any) -> Iterator[Any]:
        """Yield a producer."""
        with ferromq.Producer(mq.endpoint, *topics, **options) as producer:
            yield producer

    def call(self, result: Any) -> Any:
        """Return what a call of the consumer returned."""
        return result

    def receive(self, *arguments: Any, **options: Any) -> list[MessageView]:
        """Receive."""
        return self.consumer.receive(*arguments, **options)

    def ack(self, messages: MessageView | Iterable[MessageView]) -> None:
        """Acknowledge and wait."""
        self.consumer.ack(messages)

    def ack_later(self, message: MessageView) -> None:
        """Call `message.ack()`."""
        message.ack()

    def change(self, message: MessageView, duration: Any) -> None:
        """Call `message.change_invisible_duration`."""
        message.change_invisible_duration(duration)

    def give_back(self, messages: list[MessageView], seconds: float) -> None:
        """Give back unused messages, as `close` does."""
        self.consumer._leases.give_back(messages, time.monotonic() + seconds)

    def change_by_consumer(self, message: MessageView, duration: Any) -> None:
        """Call `Consumer.change_invisible_duration`."""
        self.consumer.change_invisible_duration(message, duration)

    def forward(self, message: MessageView, reason: str = "") -> None:
        """Forward to the dead letters."""
        self.consumer.forward_to_dead_letter(message, reason)

    def flush(self, timeout: float | None = None) -> bool:
        """Flush."""
        return bool(self.consumer.flush(timeout))

    def begin_flush(self) -> Callable[[], bool]:
        """Begin a flush, and return a function that waits for its end and returns its result."""
        pool = ThreadPoolExecutor(1)
        flushed = pool.submit(self.consumer.flush, PATIENCE)
        while not self.consumer._leases._hurry and not flushed.done():
            time.sleep(0.001)
        pool.shutdown(wait=False)
        return lambda: flushed.result(2 * PATIENCE)

    def run(self, handler: Callable[[MessageView], object], workers: int = 1, **options: Any) -> None:
        """Run until it is stopped."""
        self.consumer.run(handler, concurrency=workers, **options)

    def iterate(self, body: Callable[[MessageView], bool]) -> None:
        """Iterate until the body returns a true value, or the consumer is closed."""
        for message in self.consumer:
            if body(message):
                break

    def stop(self) -> None:
        """End `run`."""
        self.consumer.stop()

    def pause(self) -> None:
        """Pause."""
        self.consumer.pause()

    def resume(self) -> None:
        """Resume."""
        self.consumer.resume()

    def close(self, timeout: float = 5.0) -> None:
        """Close."""
        self.consumer.close(timeout)

    def leave(self) -> None:
        """Leave a `with`."""
        self.consumer.__exit__(None, None, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AioShell(Shells):
    """A `ferromq.aio.Consumer`."""

    kind = "aio"

    def __init__(self, mq: Broker, group: str, topic: str, **options: Any) -> None:
        self._running = loop_in_thread()
        self._loop = self._running.__enter__()
        self.consumer = self.made(mq, group, topic, options)

    def made(self, mq: Broker, group: str, topic: str, options: dict[str, Any]) -> aio.Consumer:
        """Return a new consumer."""
        return aio.Consumer(mq.endpoint, group, topic, **options)

    @classmethod
    @contextmanager
    def producer(cls, mq: Broker, *topics: str, **options: Any) -> Iterator[Any]:
        """Yield a producer whose calls block."""
        with connected(mq.endpoint) as connection, connection.producer(*topics, **options) as producer:
            yield producer

    def call(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine on the loop and return its result."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(3 * PATIENCE)

    def receive(self, *arguments: Any, **options: Any) -> list[MessageView]:
        """Receive."""
        messages: list[MessageView] = self.call(self.consumer.receive(*arguments, **options))
        return messages

    def ack(self, messages: MessageView | Iterable[MessageView]) -> None:
        """Acknowledge and wait."""
        self.call(self.consumer.ack(messages))

    def ack_later(self, message: MessageView) -> None:
        """Call `message.ack()`."""

        async def later() -> None:
            message.ack()

        self.call(later())

    def change(self, message: MessageView, duration: Any) -> None:
        """Call `message.change_invisible_duration`."""

        async def change() -> None:
            await message.change_invisible_duration(duration)

        self.call(change())

    def give_back(self, messages: list[MessageView], seconds: float) -> None:
        """Give back unused messages, as `close` does."""
        self.call(self.consumer._leases.give_back(messages, time.monotonic() + seconds))

    def change_by_consumer(self, message: MessageView, duration: Any) -> None:
        """Call `Consumer.change_invisible_duration`."""
        self.call(self.consumer.change_invisible_duration(message, duration))

    def forward(self, message: MessageView, reason: str = "") -> None:
        """Forward to the dead letters."""
        self.call(self.consumer.forward_to_dead_letter(message, reason))

    def flush(self, timeout: float | None = None) -> bool:
        """Flush."""
        return bool(self.call(self.consumer.flush(timeout)))

    def begin_flush(self) -> Callable[[], bool]:
        """Begin a flush, and return a function that waits for its end and returns its result."""
        flushed = asyncio.run_coroutine_threadsafe(self.consumer.flush(PATIENCE), self._loop)
        self.call(asyncio.sleep(0))  # begun after the flush
        return lambda: flushed.result(2 * PATIENCE)

    def run(self, handler: Callable[[MessageView], object], workers: int = 1, **options: Any) -> None:
        """Run until it is stopped."""

        async def handle(message: MessageView) -> None:
            await asyncio.to_thread(handler, message)

        self.call(self.consumer.run(handle, concurrency=workers, **options))

    def iterate(self, body: Callable[[MessageView], bool]) -> None:
        """Iterate until the body returns a true value, or the consumer is closed."""

        async def iterate() -> None:
            async for message in self.consumer:
                if await asyncio.to_thread(body, message):
                    break

        self.call(iterate())

    def stop(self) -> None:
        """End `run`."""
        self._loop.call_soon_threadsafe(self.consumer.stop)

    def pause(self) -> None:
        """Pause, and let the loop end what was under way."""

        async def pause() -> None:
            self.consumer.pause()

        self.call(pause())

    def resume(self) -> None:
        """Resume."""

        async def resume() -> None:
            self.consumer.resume()

        self.call(resume())

    def close(self, timeout: float = 5.0) -> None:
        """Close."""
        self.call(self.consumer.close(timeout))

    def leave(self) -> None:
        """Leave an `async with`."""
        self.call(self.consumer.__aexit__(None, None, None))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        self._running.__exit__(None, None, None)


@contextmanager
def _certificate(mq: Broker) -> Iterator[str]:
    """Yield a file with the certificate that a broker shows, and with the authority of those that tests give."""
    with tempfile.NamedTemporaryFile("w", suffix=".pem") as trust:
        host, _, port = mq.endpoint.rpartition(":")
        trust.write(ssl.get_server_certificate((host, int(port)), timeout=PATIENCE))
        trust.write(TRUST.read_text())
        trust.flush()
        yield trust.name


class OverTls(Shells):
    """Trusts the certificate that its broker shows. Checks that the broker takes its calls in frames."""

    def __init__(self, mq: Broker, group: str, topic: str, **options: Any) -> None:
        with _certificate(mq) as trust:
            super().__init__(mq, group, topic, tls=trust, **options)  # type: ignore[call-arg]

    @classmethod
    @contextmanager
    def producer(cls, mq: Broker, *topics: str, **options: Any) -> Iterator[Any]:
        """Yield a producer that trusts it, too."""
        with _certificate(mq) as trust, super().producer(mq, *topics, tls=trust, **options) as producer:  # type: ignore[misc]
            yield producer

    def __exit__(self, *of_error: object) -> None:
        client = getattr(self.consumer._client, "base", self.consumer._client)
        joined = {broker for broker in self.brokers if client.session.is_known(broker)}
        unframed = set() if client.is_closed else joined - client.channels.framed.keys()
        super().__exit__(*of_error)  # type: ignore[misc]
        assert not unframed


class TlsSyncShell(OverTls, SyncShell):
    """A `ferromq.Consumer` over TLS."""

    kind = "sync-tls"


class TlsAioShell(OverTls, AioShell):
    """A `ferromq.aio.Consumer` over TLS."""

    kind = "aio-tls"


class EmbeddedShell(SyncShell):
    """A `ferromq.Consumer` that an embedded broker made."""

    kind = "embedded"

    def __init__(self, mq: ferromq.Embedded, group: str, topic: str, **options: Any) -> None:
        self.consumer = mq.consumer(group, topic, **options)
        assert mq.endpoint in self.consumer._client.channels.here

    @classmethod
    @contextmanager
    def producer(cls, mq: ferromq.Embedded, *topics: str, **options: Any) -> Iterator[Any]:  # type: ignore[override]
        """Yield a producer that it made."""
        with mq.producer(*topics, **options) as producer:
            yield producer


class AioEmbeddedShell(AioShell):
    """A `ferromq.aio.Consumer` of `aio.connect(mq)`."""

    kind = "aio-embedded"

    def made(self, mq: Any, group: str, topic: str, options: dict[str, Any]) -> aio.Consumer:
        """Return a new consumer."""
        consumer: aio.Consumer = aio.connect(mq).consumer(group, topic, **options)
        assert mq.endpoint in consumer._client.base.channels.here
        return consumer

    @classmethod
    @contextmanager
    def producer(cls, mq: Any, *topics: str, **options: Any) -> Iterator[Any]:
        """Yield a producer whose calls block."""
        with connected(mq) as connection, connection.producer(*topics, **options) as producer:
            yield producer


Shell = type[SyncShell] | type[AioShell]
SHELLS = (SyncShell, AioShell)
"""Both interfaces over plaintext, for tests of what is between the client and the broker, or of the interface alone."""
WAYS = (*SHELLS, TlsSyncShell, TlsAioShell, EmbeddedShell, AioEmbeddedShell)
"""All ways to a broker."""
