"""What `Producer.submit` was given: tasks send it in batches; the synchronous twin is `client.submitted`."""

import asyncio
import time

from ferromq.aio._connection import AsyncClient
from ferromq.client.connection import remaining
from ferromq.core import send_plans
from ferromq.core.batching import Gathered, Linger, size
from ferromq.core.requests import may_be_one
from ferromq.errors import ClientClosed, ConnectionFailed, FerromqError
from ferromq.message import Batch, Message, SendReceipt

_Receipt = asyncio.Future[SendReceipt]


class Submitted:
    """Gathers submitted messages, and sends each batch in a task."""

    def __init__(self, client: AsyncClient, linger: float, limit: int) -> None:
        self._client = client
        self._linger: Linger[_Receipt] = Linger(linger)
        self._limit = limit
        self._pending_bytes = 0
        self._room = asyncio.Condition()
        self._sending: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._orders: dict[tuple[str, str], asyncio.Task[None]] = {}
        """The last batch under way of what must stay in order."""

    async def add(self, topic: str, message: Message) -> _Receipt:
        """Gather a message and return the future of its receipt; waits while too many bytes are on their way."""
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

    async def flush(self, until: float) -> bool:
        """Send at once what is gathered, and return whether all of it has ended before *until* (monotonic)."""
        for batch in self._linger.all():
            self._start(batch)
        if not self._sending:
            return True
        _, unfinished = await asyncio.wait(self._sending, timeout=remaining(until))
        return not unfinished

    async def close(self) -> None:
        """End the tasks; futures of messages that were not sent end with `ClientClosed`."""
        if self._timer is not None:
            self._timer.cancel()
        left = list(self._sending)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        for batch in self._linger.all():  # submitted while the producer was flushed
            await self._finish(batch, _closed())


def _closed() -> ClientClosed:
    return ClientClosed("the producer was closed before the message was sent")
