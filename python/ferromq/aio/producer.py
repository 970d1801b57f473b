"""
The producer: sends messages one by one, many at once, or gathered in the background.

Batching is decided in `core.batching`, retries and routes in `core.plans`.
"""

from asyncio import Future
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Iterator
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import Generic, Self, Unpack

from ferromq.aio._checks import Checks
from ferromq.aio._connection import AsyncClient
from ferromq.aio._direct_sends import DirectSends
from ferromq.aio._send_all import send_all
from ferromq.aio._submitted import Submitted
from ferromq.client.client import Options
from ferromq.client.connection import end_of
from ferromq.client.options import MessageOptions
from ferromq.client.tls import Tls, TlsFile
from ferromq.client.transactions import Decisions, Open, no_checker, recovery_ms
from ferromq.core import send_plans
from ferromq.core.arguments import flag, function, whole_number
from ferromq.core.numbering import Numbering
from ferromq.core.payloads import COMPRESS_OVER, Compression, Encode, Encoder, V
from ferromq.core.requests import seconds
from ferromq.core.watch import Watch, carrier, carry, over, stored
from ferromq.errors import FerromqError
from ferromq.message import Message, MessageView, Reply, Resolution, SendReceipt, SendSummary
from ferromq.process.clock import Clock
from ferromq.protocol import naming
from ferromq.telemetry import Telemetry
from ferromq.terminal.objects import Shown

__all__ = ["Producer", "Transaction"]


class Producer(Shown, Generic[V]):
    """
    Sends messages to topics; it belongs to the loop of its first use.

    Use it in an `async with`, or await `close`. *endpoint* is the gRPC address of a broker, `host:port`, or several
    joined by `;`. Nothing is connected before the first message. A call ends within *timeout* seconds, repetitions and
    look-ups included; one attempt has at most 3. What fails is repeated with the same message id while there is time,
    on another broker where there is one: a broker that restarts within *timeout* is waited for. *attempts* of 1 means
    no repetition. *linger* is how long `submit` waits for company; *max_pending_bytes* is how much it keeps before it
    makes its caller wait. *tls* speaks TLS: True trusts what gRPC trusts, a path the certificates in that file;
    `ferromq.Tls` has the rest. Delays count from *clock*. Times are seconds.

    *encode* makes bodies of values: a function that returns bytes, or a type whose values are written as JSON, with the
    property `contentType`. Types are dataclasses, `TypedDict`s, msgspec's `Struct`s, pydantic models, lists and dicts
    of them, and builtin types; with `object` each value is written by its own type. A `Message` is sent as it is.

    *compress* compresses bodies of more than *compress_over* bytes that get smaller by it. `"zlib"` is read by every
    RocketMQ client; `"lz4"` and `"zstd"` by consumers of ferromq and by Java's from 4.9.4, over remoting. Servers of
    ferromq take all three, RocketMQ's proxy takes zlib: for others the first send raises `Unsupported`. It runs on the
    loop. A `request` is not compressed.

    *telemetry* is told of each operation; see `ferromq.telemetry`. Topics are in *namespace*, and are named without it;
    docs/reference/namespaces.md has more. Requests are signed with *access_key* and *secret_key*; without them, with
    those of the environment, FERROMQ_ACCESS_KEY and FERROMQ_SECRET_KEY.
    *idempotent*: a repetition goes to the queue of the attempt before it, if that one may be stored, and the broker
    stores each message once, as docs/reference/sending.md says. This takes ferromq brokers: at others the first send
    raises `Unsupported`. Single sends take longer, as each is a request of its own. Messages of transactions are not
    repeated either way; a `request` has no number.

    *checker* is for transactions: when a broker does not know the end of one, it is called with the message, on the
    producer's loop and awaited if it is a coroutine function, and returns a `Resolution`; an exception is logged and
    counts as `UNKNOWN`, after which the broker asks again later. Transactions of *topics* are asked for from the first
    use on, whichever producer began them.
    """

    _kind = "aio.Producer"  # async

    def __init__(
        self,
        endpoint: str,
        *topics: str,
        checker: Callable[[MessageView], Awaitable[Resolution | None] | Resolution | None] | None = None,
        timeout: timedelta | float = 10.0,
        attempts: int = 3,
        linger: timedelta | float = timedelta(milliseconds=5),
        max_pending_bytes: int = 64 << 20,
        tls: bool | TlsFile | Tls = False,
        clock: Clock | None = None,
        encode: Encode[V] | None = None,
        telemetry: Telemetry | None = None,
        idempotent: bool = False,
        compress: Compression | None = None,
        compress_over: int = COMPRESS_OVER,
        namespace: str = "",
        access_key: str | None = None,
        secret_key: str | None = None,
    ) -> None:
        for topic in topics:
            naming.check_topic(topic, namespace)
        function("checker", checker)
        whole_number("max_pending_bytes", max_pending_bytes, 1)
        options = Options(
            endpoint, timeout, attempts, tls, clock, namespace=namespace, access_key=access_key, secret_key=secret_key
        )
        self._client = AsyncClient("producer", options)
        self._client.common.watch = None if telemetry is None else Watch(telemetry, endpoint, namespace=namespace)
        if flag("idempotent", idempotent):
            self._client.common.numbering = Numbering()
        self._direct = DirectSends(self._client)
        self._encoder = Encoder(encode, compress, compress_over)
        self._client.common.compression = compress
        self._submitted = Submitted(self._client, seconds(linger), max_pending_bytes)
        self._decisions = Decisions()
        self._checks = None if checker is None else Checks(self._client, self._decisions, checker, topics)

    async def send(
        self,
        topic: str,
        body: Message | V,
        *,
        timeout: timedelta | float | None = None,
        **options: Unpack[MessageOptions],
    ) -> SendReceipt:
        """
        Send one message and return once the broker has stored it, as durably as it promises.

        The options are those of `Message`; a *body* that is a `Message` brings its own. With `encode`, *body* is a
        value. *timeout* (seconds) is for this call; None: the producer's.
        """
        self._client.check()
        message = self._encoder.sendable(body, options)
        limit = None if timeout is None else seconds(timeout)
        if self._client.common.watch is None:
            return await self._direct.send(topic, message, limit)
        with over(self._client.common.watch, "send", topic, message) as sending:
            return stored(sending, await self._direct.send(topic, carry(sending, message), limit))

    def message(self, value: Message | V, **options: Unpack[MessageOptions]) -> Message:
        """
        Return the message of a value, without sending it.

        For `send_all`, where the messages of values have keys, tags and other options: those of `Message`.
        """
        return self._encoder.message(value, options)

    async def request(
        self,
        topic: str,
        body: Message | V,
        *,
        timeout: timedelta | float | None = None,
        **options: Unpack[MessageOptions],
    ) -> Reply:
        """
        Send a request to the consumers of *topic*, and return the reply of one of them.

        The options are those of `send`, without times and priority. *timeout* (seconds) is for request and reply
        together; None: the producer's. Several tasks share a connection, and each gets the reply to its own request.
        RocketMQ has requests over remoting alone: they go to the broker's remoting listener, not to *endpoint*.

        Raises `RequestTimeout` if no reply came, which names a topic without consumers; the request is stored, and a
        consumer may still handle it. Raises `ConnectionFailed` if the producer is closed meanwhile, and `Unsupported`
        for RocketMQ's proxy, which does not tell its broker's address.
        """
        self._client.check()
        limit = self._client.common.timeout if timeout is None else seconds(timeout)
        requests = self._client.base.requests
        message = self._encoder.message(body, options)
        with over(self._client.common.watch, "send", topic, message) as sending:
            request = carry(sending, message)
            return await self._client.run(requests.request(self._client.common, topic, request, limit))

    async def recall(self, receipt: SendReceipt) -> str:
        """
        Recall a delayed message that is not due yet, and return its id.

        Raises `ValueError` for a message that was not delayed, and `RequestError` where the broker cannot recall it.
        """
        self._client.check()
        return await self._client.run(send_plans.recall(self._client.common, receipt))

    def transaction(self, *, check_after: timedelta | float | None = None) -> "Transaction[V]":
        """
        Begin a transaction: what is sent in it is delivered once it is committed.

            async with producer.transaction() as tx:
                await tx.send("orders", b"paid")
                database.commit()

        Leaving the `async with` commits, an exception rolls back. The broker asks the checker about a message
        *check_after* it was stored; None: after the time of the broker's own settings. Raises `ConfigError` without a
        checker.
        """
        self._client.check()
        if self._checks is None:
            raise no_checker()
        return Transaction(self._client, self._decisions, recovery_ms(check_after), self._encoder)

    async def send_all(
        self,
        topic: str,
        messages: Iterable[Message | V] | AsyncIterable[Message | V],
        *,
        on_progress: Callable[[int], None] | None = None,
    ) -> SendSummary:
        """
        Send many messages and return their receipts, in order, once all are stored.

        They travel in batches, several at once; a batch goes to one queue and keeps its order, and so do the batches of
        a message group. *on_progress* is called with the number stored so far. Raises at the first failure, naming the
        messages; a note says how many others are stored. Of a message group nothing is sent after a failure. *messages*
        may be an asynchronous iterable, too.
        """
        self._client.check()
        naming.check_topic(topic)
        with over(self._client.common.watch, "send", topic) as sending:
            sendable = carrier(sending, self._encoder.numbered())
            return await send_all(self._client, topic, messages, sendable, on_progress)

    async def submit(self, topic: str, body: Message | V, **options: Unpack[MessageOptions]) -> Future[SendReceipt]:
        """
        Send one message in the background, together with others; the future ends with its receipt or its error.

        Waits while more than *max_pending_bytes* are on their way. The messages
        of a group are sent in the order of the calls; one that fails is missing among them. Where its broker does not
        answer, a message fails *timeout* after it was to go, however many wait before it.
        """
        self._client.check()
        if self._client.common.routes.known(topic) is None:
            naming.check_topic(topic)
        message, watch = self._encoder.sendable(body, options), self._client.common.watch
        if watch is None:
            return await self._submitted.add(topic, message)
        sending = watch.begin("send", topic, (message,))
        try:
            future = await self._submitted.add(topic, carry(sending, message))
        except BaseException as error:
            watch.end(sending, error)
            raise
        future.add_done_callback(partial(watch.end_with, sending))
        return future

    async def flush(self, timeout: timedelta | float | None = None) -> bool:
        """
        Send at once what `submit` keeps, and wait until the brokers have answered.

        Returns whether all of it has ended within *timeout* (float: seconds); None waits as long as it takes.
        """
        self._client.check()
        return await self._submitted.flush(end_of(timeout))

    async def close(self, timeout: timedelta | float = 5.0) -> None:
        """
        Send what `submit` keeps, unregister, and end.

        Returns within about *timeout* (float: seconds) whatever the brokers do. Futures of messages that were on their
        way end with `ConnectionFailed`, those of messages that were never sent with `ClientClosed`. Idempotent.
        """
        until = end_of(timeout)
        if self._client.base.is_closed or not self._client.base.is_here:
            return
        await self._submitted.flush(until)
        await self._submitted.close()  # async
        if self._checks is not None:
            self._checks.close()
        await self._client.close(until)  # async
        # sync: if self._client.close(until):
        # sync:     self._submitted.close()

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._client.base.is_closed

    @property
    def _state(self) -> str:
        return self._client.base.state

    def _facts(self) -> Iterator[tuple[str, object]]:
        yield from self._client.base.facts()

    def __del__(self) -> None:
        if hasattr(self, "_client"):  # not if its arguments were refused
            self._client.base.warn_unclosed(self)

    async def __aenter__(self) -> Self:
        self._client.check()  # async
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class Transaction(Shown, Generic[V]):
    """
    Messages that are delivered once the transaction is committed, and never when it is rolled back.

    Made by `Producer.transaction`. Each message is ended on its own, in the order of sending. Not thread-safe.
    """

    _kind = "aio.Transaction"  # async

    def __init__(self, client: AsyncClient, decisions: Decisions, recovery: int, encoder: Encoder[V]) -> None:
        self._client = client
        self._encoder = encoder
        self._open = Open(decisions)
        self._recovery_ms = recovery

    @property
    def resolution(self) -> Resolution:
        """What was decided; UNKNOWN while it is open."""
        return self._open.resolution

    async def send(self, topic: str, body: Message | V, **options: Unpack[MessageOptions]) -> SendReceipt:
        """
        Store a message that consumers receive after the commit. Keys, tag and properties are as in `Producer.send`.

        Raises `RuntimeError` once the transaction has ended. One that failed with `OutcomeUnknown` is not repeated;
        should the broker have it nevertheless, it is rolled back.
        """
        self._client.check()
        message = self._encoder.sendable(body, options)
        common = self._client.common
        with over(common.watch, "send", topic, message) as sending:
            plan = self._open.send(common, topic, carry(sending, message), self._recovery_ms)
            batch = await self._client.run(plan)
            return stored(sending, batch.receipt(0))

    async def commit(self) -> None:
        """
        Deliver the messages.

        `OutcomeUnknown` means that it is decided and the broker may not know yet: it asks, and this producer answers
        `COMMIT`; after the end of this process its checker is asked. Calling it again tells the broker again, which
        RocketMQ's own delivers twice if it had heard the first. Raises `RuntimeError` after `rollback`, and
        `RequestError` if the broker refuses it: another producer's checker may have rolled the transaction back.
        """
        await self._end(Resolution.COMMIT)

    async def rollback(self) -> None:
        """Drop the messages; failures as of `commit`. Raises `RuntimeError` after `commit`."""
        await self._end(Resolution.ROLLBACK)

    async def _end(self, resolution: Resolution) -> None:
        self._client.check()
        self._open.decide(resolution)
        await self._client.run(self._open.end(self._client.common))

    @property
    def _state(self) -> str:
        return "open" if self.resolution is Resolution.UNKNOWN else self.resolution.value

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.resolution is not Resolution.UNKNOWN:
            return
        if error is None:
            await self.commit()
            return
        try:
            await self.rollback()
        except FerromqError as failure:
            error.add_note(f"rolling the transaction back failed, too: {failure}")
