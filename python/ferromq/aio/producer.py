"""The producer for asyncio; see `ferromq.client.producer`, whose names and promises it has."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable
from concurrent.futures import CancelledError, Future, wait
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import Generic, Self, Unpack

from ferromq.aio._connection import AsyncClient
from ferromq.aio._direct_sends import DirectSends
from ferromq.client.client import Options
from ferromq.client.connection import end_of, remaining
from ferromq.client.producer import (
    MessageOptions,
    Stored,
    given_limit,
    in_order,
    note_stored,
    predecessor,
    recovery_ms,
)
from ferromq.client.tls import Tls, TlsFile
from ferromq.client.transactions import Checks, Decisions, Open, no_checker
from ferromq.core import send_plans
from ferromq.core.batching import IN_FLIGHT, MAX_MESSAGES, Gathered, Linger, Sendable, Slice, batches, size
from ferromq.core.numbering import Numbering
from ferromq.core.payloads import COMPRESS_OVER, Compression, Encode, Encoder, V
from ferromq.core.requests import may_be_one, seconds
from ferromq.core.watch import Watch, carrier, carry, over, stored
from ferromq.errors import ClientClosed, ConnectionFailed, FerromqError
from ferromq.message import Batch, Message, MessageView, Reply, Resolution, SendReceipt, SendSummary
from ferromq.process.clock import Clock
from ferromq.protocol import naming
from ferromq.telemetry import Telemetry
from ferromq.terminal.objects import described

__all__ = ["Producer", "Transaction"]

_log = logging.getLogger("ferromq.client")

_LOOK_AT_LOOP = 1.0
"""Seconds between looks whether the loop of a checker has ended, which it tells nobody."""

_Receipt = asyncio.Future[SendReceipt]


class Producer(Generic[V]):
    """
    Sends messages to topics. Use it in an `async with`, or await `close`; it belongs to the loop of its first use.

    The arguments are those of `ferromq.Producer`. *checker* may be a coroutine function; either way it runs on the
    loop. Transactions of *topics* are asked for from the first use on.
    """

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
    ) -> None:
        for topic in topics:
            naming.check_topic(topic, namespace)
        self._client = AsyncClient("producer", Options(endpoint, timeout, attempts, tls, clock, namespace=namespace))
        self._client.common.watch = None if telemetry is None else Watch(telemetry, endpoint, namespace=namespace)
        if idempotent:
            self._client.common.numbering = Numbering()
        self._direct = DirectSends(self._client)
        self._encoder = Encoder(encode, compress, compress_over)
        self._client.common.compression = compress
        self._topics = topics
        self._checker = checker
        self._decisions = Decisions()
        self._checks: Checks | None = None
        self._linger: Linger[_Receipt] = Linger(seconds(linger))
        self._limit = max_pending_bytes
        self._pending_bytes = 0
        self._room = asyncio.Condition()
        self._sending: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._orders: dict[tuple[str, str], asyncio.Task[None]] = {}
        """The last batch under way of what must stay in order."""
        self._answers: set[Future[Resolution | None]] = set()
        self._checking: set[asyncio.Task[Resolution | None]] = set()

    def _check(self) -> None:
        """Raise unless the producer may be used here; with its loop it has what its checker needs."""
        self._client.check()
        if self._checks is None and self._checker is not None:
            self._checks = Checks(self._client.base, self._decisions, self._ask)
            self._checks.watch(self._topics)

    def _ask(self, message: MessageView) -> Resolution | None:
        loop = self._client.loop
        assert loop is not None
        answer: Future[Resolution | None] = Future()
        self._answers.add(answer)
        try:
            # The coroutine is made on the loop: one that ends meanwhile would never await it.
            loop.call_soon_threadsafe(self._begin_check, message, answer)
            while not wait({answer}, _LOOK_AT_LOOP).done:
                if loop.is_closed():
                    return None
            return answer.result()
        except (CancelledError, RuntimeError) as error:
            if not answer.cancelled() and not loop.is_closed():
                raise
            _log.debug("check-back not answered, the broker asks again message_id=%s: %r", message.message_id, error)
        finally:
            self._answers.discard(answer)
        return None

    def _begin_check(self, message: MessageView, answer: "Future[Resolution | None]") -> None:
        if not answer.set_running_or_notify_cancel():
            return
        task = asyncio.ensure_future(self._call_checker(message))
        self._checking.add(task)
        task.add_done_callback(partial(self._end_check, answer))

    def _end_check(self, answer: "Future[Resolution | None]", task: "asyncio.Task[Resolution | None]") -> None:
        self._checking.discard(task)
        if task.cancelled():
            answer.set_result(None)
        elif (error := task.exception()) is not None:
            answer.set_exception(error)
        else:
            answer.set_result(task.result())

    async def _call_checker(self, message: MessageView) -> Resolution | None:
        assert self._checker is not None
        answer = self._checker(message)
        return await answer if isinstance(answer, Awaitable) else answer

    async def send(
        self,
        topic: str,
        body: Message | V,
        *,
        timeout: timedelta | float | None = None,  # noqa: ASYNC109 (as the synchronous one)
        **options: Unpack[MessageOptions],
    ) -> SendReceipt:
        """Send one message and return once the broker has stored it, as durably as it promises; see the synchronous."""
        self._check()
        message = self._encoder.sendable(body, options)
        limit = given_limit(timeout)
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
        timeout: timedelta | float | None = None,  # noqa: ASYNC109 (as the synchronous one)
        **options: Unpack[MessageOptions],
    ) -> Reply:
        """Send a request to the consumers of *topic*, and return the reply of one of them; see the synchronous."""
        self._check()
        limit = self._client.common.timeout if timeout is None else seconds(timeout)
        requests = self._client.base.requests
        message = self._encoder.message(body, options)
        with over(self._client.common.watch, "send", topic, message) as sending:
            request = carry(sending, message)
            return await self._client.run(requests.request(self._client.common, topic, request, limit))

    async def recall(self, receipt: SendReceipt) -> str:
        """Recall a delayed message that is not due yet, and return its id."""
        self._check()
        return await self._client.run(send_plans.recall(self._client.common, receipt))

    def transaction(self, *, check_after: timedelta | float | None = None) -> "Transaction[V]":
        """Begin a transaction: `async with producer.transaction() as tx: await tx.send(…)`."""
        self._check()
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
        """Send many messages and return their receipts, in order, once all are stored."""
        self._check()
        naming.check_topic(topic)
        with over(self._client.common.watch, "send", topic) as sending:
            parts = _batches(messages, carrier(sending, self._encoder.numbered()))
            return await self._send_all(topic, parts, on_progress)

    async def _send_all(
        self, topic: str, parts: AsyncIterator[Slice], on_progress: Callable[[int], None] | None
    ) -> SendSummary:
        pending: deque[tuple[Slice, asyncio.Task[Batch]]] = deque()
        stored = Stored(on_progress)

        async def collect() -> None:
            part, task = pending.popleft()
            try:
                stored.add(part, await task)
            except send_plans.MustPartError:
                for each in part.apart():
                    stored.add(each, await self._send_after(None, topic, each))

        try:
            async for part in parts:
                before = predecessor(part, pending)
                pending.append((part, asyncio.create_task(self._send_after(before, topic, part))))
                if len(pending) >= IN_FLIGHT:
                    await collect()
            while pending:
                await collect()
        except Exception as error:
            others = await asyncio.gather(*(task for _, task in pending), return_exceptions=True)
            note_stored(error, stored.count + sum(len(batch.ids) for batch in others if isinstance(batch, Batch)))
            raise
        finally:
            for _, task in pending:
                task.cancel()
        return in_order(stored.done)

    async def _send_after(self, before: "asyncio.Task[Batch] | None", topic: str, part: Slice) -> Batch:
        if before is not None:
            await asyncio.shield(before)
        return await self._client.run(send_plans.send(self._client.common, topic, part.messages, part.numbers))

    async def submit(
        self, topic: str, body: Message | V, **options: Unpack[MessageOptions]
    ) -> "asyncio.Future[SendReceipt]":
        """
        Send one message in the background, together with others; the future ends with its receipt or its error.

        Waits while more than *max_pending_bytes* are on their way; what does not get out is as of the synchronous one.
        """
        self._check()
        naming.check_topic(topic)
        message, watch = self._encoder.sendable(body, options), self._client.common.watch
        if watch is None:
            return await self._submit(topic, message)
        sending = watch.begin("send", topic, (message,))
        try:
            future = await self._submit(topic, carry(sending, message))
        except BaseException as error:
            watch.end(sending, error)
            raise
        future.add_done_callback(partial(watch.end_with, sending))
        return future

    async def _submit(self, topic: str, message: Message) -> _Receipt:
        length = size(message)
        async with self._room:
            await self._room.wait_for(lambda: not self._pending_bytes or self._pending_bytes + length <= self._limit)
            self._client.check()
            self._pending_bytes += length
        return self._add(topic, message, length)

    def _add(self, topic: str, message: Message, length: int) -> _Receipt:
        loop = asyncio.get_running_loop()
        future: _Receipt = loop.create_future()
        for batch in self._linger.add(topic, message, length, future, time.monotonic()):
            self._start(batch)
        if self._timer is None and self._linger:
            self._timer = loop.call_later(self._linger.seconds, self._send_due)
        return future

    def _send_due(self) -> None:
        self._timer = None
        for batch in self._linger.due(time.monotonic()):
            self._start(batch)
        due = self._linger.next_due()
        if due is not None:
            self._timer = asyncio.get_running_loop().call_later(remaining(due), self._send_due)

    def _start(self, batch: Gathered[_Receipt]) -> None:
        batch.until = time.monotonic() + self._client.common.timeout
        before = None if batch.order is None else self._orders.get(batch.order)
        task = asyncio.create_task(self._send_batch(batch, before))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)
        if batch.order is not None:
            order = batch.order
            self._orders[order] = task
            task.add_done_callback(lambda done: self._orders.pop(order) if self._orders.get(order) is done else None)

    async def _send_batch(self, batch: Gathered[_Receipt], before: asyncio.Task[None] | None = None) -> None:
        closed: FerromqError = _closed()
        try:
            if before is not None:
                await asyncio.wait({before})
            closed = ConnectionFailed("the producer was closed while the message was sent")
            sent = await self._client.run(send_plans.send_gathered(self._client.common, batch))
        except asyncio.CancelledError:
            await self._finish(batch, closed)
            raise
        except Exception as error:  # noqa: BLE001 (whatever it is, it is the senders' to know)
            if len(batch.messages) > 1 and may_be_one(error):
                await self._send_apart(batch)
            else:
                await self._finish(batch, error)
        else:
            await self._finish(batch, sent)

    async def _send_apart(self, batch: Gathered[_Receipt]) -> None:
        """Send each message alone: one may have spoilt the batch for the others, of which nothing was stored."""
        left = batch.apart()
        try:
            while left:
                await self._send_batch(left.pop())
        except asyncio.CancelledError:
            for alone in left:
                await self._finish(alone, _closed())
            raise

    async def _finish(self, batch: Gathered[_Receipt], outcome: Batch | Exception) -> None:
        for index, future in enumerate(batch.futures):
            if future.done():
                continue
            if isinstance(outcome, Exception):
                future.set_exception(outcome)
            else:
                future.set_result(outcome.receipt(index))
        async with self._room:
            self._pending_bytes -= batch.bytes
            self._room.notify_all()

    async def flush(self, timeout: timedelta | float | None = None) -> bool:  # noqa: ASYNC109 (as the synchronous one)
        """
        Send at once what `submit` keeps, and wait until the brokers have answered.

        Returns whether all of it has ended within *timeout* (float: seconds); None waits as long as it takes.
        """
        self._client.check()
        until = end_of(timeout)
        for batch in self._linger.all():
            self._start(batch)
        if not self._sending:
            return True
        _, unfinished = await asyncio.wait(self._sending, timeout=remaining(until))
        return not unfinished

    async def close(self, timeout: timedelta | float = 5.0) -> None:  # noqa: ASYNC109 (as the synchronous one)
        """
        Send what `submit` keeps, unregister, and end.

        Returns within about *timeout* (float: seconds) whatever the brokers do. Futures of messages that were not sent
        end as those of `ferromq.Producer.close`. Idempotent.
        """
        until = end_of(timeout)
        if self._client.base.is_closed or not self._client.base.is_here:
            return
        await self.flush(remaining(until))
        if self._timer is not None:
            self._timer.cancel()
        left = list(self._sending)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        if self._checks is not None:
            self._checks.close()
            for answer in list(self._answers):
                answer.cancel()
            for checking in list(self._checking):
                checking.cancel()
        await self._client.close(until)

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._client.base.is_closed

    def __repr__(self) -> str:
        endpoint = self._client.common.address
        return described("aio.Producer", self._client.base.state, endpoint=endpoint)

    async def __aenter__(self) -> Self:
        self._check()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class Transaction(Generic[V]):
    """As `ferromq.Transaction`, awaited; made by `Producer.transaction`."""

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
        """Store a message that nobody sees before the commit."""
        self._client.check()
        message = self._encoder.sendable(body, options)
        common = self._client.common
        with over(common.watch, "send", topic, message) as sending:
            plan = self._open.send(common, topic, carry(sending, message), self._recovery_ms)
            return stored(sending, (await self._client.run(plan)).receipt(0))

    async def commit(self) -> None:
        """Deliver the messages; what `OutcomeUnknown` means is said at `ferromq.Transaction.commit`."""
        await self._end(Resolution.COMMIT)

    async def rollback(self) -> None:
        """Drop the messages."""
        await self._end(Resolution.ROLLBACK)

    async def _end(self, resolution: Resolution) -> None:
        self._client.check()
        self._open.decide(resolution)
        await self._client.run(self._open.end(self._client.common))

    def __repr__(self) -> str:
        is_open = self.resolution is Resolution.UNKNOWN
        return described("aio.Transaction", "open" if is_open else self.resolution.value)

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


def _closed() -> ClientClosed:
    return ClientClosed("the producer was closed before the message was sent")


async def _batches(
    messages: Iterable[Message | V] | AsyncIterable[Message | V], sendable: Callable[[Message | V], Sendable]
) -> AsyncIterator[Slice]:
    if isinstance(messages, Iterable):
        for part in batches(map(sendable, messages)):
            yield part
        return
    waiting: list[Sendable] = []
    first = 0
    async for message in messages:
        waiting.append(sendable(message))
        if len(waiting) >= MAX_MESSAGES:
            for part in batches(waiting, first):
                yield part
            first += len(waiting)
            waiting = []
    for part in batches(waiting, first):
        yield part
