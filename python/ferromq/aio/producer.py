"""The producer for asyncio; see `ferromq.client.producer`, whose names and promises it has."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Mapping
from datetime import timedelta
from types import TracebackType
from typing import Self

from ferromq import _names
from ferromq.aio._connection import AsyncClient
from ferromq.client import _plans
from ferromq.client._batching import IN_FLIGHT, MAX_MESSAGES, Gathered, Linger, Sendable, batches, size
from ferromq.client._connection import remaining
from ferromq.client._protocol import may_be_one, seconds
from ferromq.client.producer import make_message, note_stored
from ferromq.errors import ConnectionFailed, FerromqError
from ferromq.message import Batch, Message, SendReceipt, SendSummary

__all__ = ["Producer"]

_Receipt = asyncio.Future[SendReceipt]


class Producer:
    """
    Sends messages to topics. Use it in an `async with`, or await `close`; it belongs to the loop of its first use.

    The arguments are those of `ferromq.Producer`.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        timeout: timedelta | float = 3.0,
        attempts: int = 3,
        linger: timedelta | float = timedelta(milliseconds=5),
        max_pending_bytes: int = 64 << 20,
    ) -> None:
        self._client = AsyncClient("producer", endpoint, timeout=seconds(timeout), attempts=attempts)
        self._linger: Linger[_Receipt] = Linger(seconds(linger))
        self._limit = max_pending_bytes
        self._pending_bytes = 0
        self._room = asyncio.Condition()
        self._sending: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None

    async def send(
        self,
        topic: str,
        body: Sendable,
        *,
        keys: str | Iterable[str] | None = None,
        tag: str | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> SendReceipt:
        """Send one message and return once the broker has stored it, as durably as it promises."""
        self._client.check()
        message = make_message(body, keys, tag, properties)
        batch = await self._client.run(_plans.send(self._client.common, topic, [message]))
        return batch.receipt(0)

    async def send_all(
        self,
        topic: str,
        messages: Iterable[Sendable] | AsyncIterable[Sendable],
        *,
        on_progress: Callable[[int], None] | None = None,
    ) -> SendSummary:
        """Send many messages and return their receipts, in order, once all are stored."""
        self._client.check()
        _names.check_topic(topic)
        pending: deque[asyncio.Task[Batch]] = deque()
        done: list[Batch] = []
        stored = first = 0

        async def collect() -> None:
            nonlocal stored
            done.append(await pending.popleft())
            stored += len(done[-1].ids)
            if on_progress is not None:
                on_progress(stored)

        try:
            async for batch in _batches(messages):
                plan = _plans.send(self._client.common, topic, batch, first)
                pending.append(asyncio.create_task(self._client.run(plan)))
                first += len(batch)
                if len(pending) >= IN_FLIGHT:
                    await collect()
            while pending:
                await collect()
        except Exception as error:
            others = await asyncio.gather(*pending, return_exceptions=True)
            note_stored(error, stored + sum(len(batch.ids) for batch in others if isinstance(batch, Batch)))
            raise
        finally:
            for task in pending:
                task.cancel()
        return SendSummary(done)

    async def submit(
        self,
        topic: str,
        body: Sendable,
        *,
        keys: str | Iterable[str] | None = None,
        tag: str | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> "asyncio.Future[SendReceipt]":
        """
        Send one message in the background, together with others; the future ends with its receipt or its error.

        Waits while more than *max_pending_bytes* are on their way.
        """
        self._client.check()
        _names.check_topic(topic)
        message = make_message(body, keys, tag, properties)
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
        task = asyncio.create_task(self._send_batch(batch))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _send_batch(self, batch: Gathered[_Receipt]) -> None:
        try:
            sent = await self._client.run(_plans.send(self._client.common, batch.topic, batch.messages))
        except FerromqError as error:
            if len(batch.messages) > 1 and may_be_one(error):
                await self._send_apart(batch)
            else:
                await self._finish(batch, error)
        except asyncio.CancelledError:
            await self._finish(batch, _closed())
            raise
        except Exception as error:  # noqa: BLE001 (whatever it is, it is the senders' to know)
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
        """Send at once what `submit` keeps and wait until it has ended; says whether it did within *timeout*."""
        self._client.check()
        for batch in self._linger.all():
            self._start(batch)
        if not self._sending:
            return True
        _, unfinished = await asyncio.wait(self._sending, timeout=None if timeout is None else seconds(timeout))
        return not unfinished

    async def close(self, timeout: timedelta | float = 5.0) -> None:  # noqa: ASYNC109 (as the synchronous one)
        """Send what `submit` keeps, say good-bye, and end, within about *timeout*. Idempotent."""
        until = time.monotonic() + seconds(timeout)
        if self._client.base.is_closed or not self._client.base.is_here:
            return
        await self.flush(remaining(until))
        if self._timer is not None:
            self._timer.cancel()
        left = list(self._sending)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await self._client.close(until)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def _closed() -> ConnectionFailed:
    return ConnectionFailed("the producer was closed before the message was sent")


async def _batches(messages: Iterable[Sendable] | AsyncIterable[Sendable]) -> AsyncIterator[list[Sendable]]:
    if isinstance(messages, Iterable):
        for batch in batches(messages):
            yield batch
        return
    waiting: list[Sendable] = []
    first = 0
    async for message in messages:
        waiting.append(message)
        if len(waiting) >= MAX_MESSAGES:
            for batch in batches(waiting, first):
                yield batch
            first += len(waiting)
            waiting = []
    for batch in batches(waiting, first):
        yield batch
