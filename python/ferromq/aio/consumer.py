"""The consumer for asyncio; see `ferromq.client.consumer`, whose names and promises it has."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from datetime import datetime, timedelta
from types import TracebackType
from typing import Literal, Self

from ferromq import _names
from ferromq.aio._connection import AsyncClient
from ferromq.aio._leases import Leases
from ferromq.aio._push import Runner
from ferromq.client import _plans, _pull_plans
from ferromq.client._client import Options
from ferromq.client._connection import remaining
from ferromq.client._filters import Sql, filter_expression
from ferromq.client._handlers import check_async
from ferromq.client._leases import Ahead
from ferromq.client._plans import Subscription, Wish
from ferromq.client._protocol import RETRYABLE, seconds
from ferromq.client._pull_plans import Pulled, Queue
from ferromq.client._retry import InOrder, Retry
from ferromq.client._tls import Tls, TlsFile
from ferromq.errors import FerromqError
from ferromq.message import MessageView

__all__ = ["Consumer"]

_log = logging.getLogger("ferromq.client")

_LONG_POLL = 20.0


class Consumer:
    """
    Receives the messages of a topic on behalf of a consumer group; it belongs to the loop of its first use.

    The arguments are those of `ferromq.Consumer`. It is its own asynchronous iterator:

        async for message in consumer:
            ...
            message.ack()  # travels with others; `await consumer.ack(message)` waits for the broker
    """

    def __init__(
        self,
        endpoint: str,
        group: str,
        topic: str,
        *,
        filter: str | Sql = "*",  # noqa: A002 (what it is called everywhere)
        invisible_duration: timedelta | float = timedelta(seconds=30),
        timeout: timedelta | float = 3.0,
        attempts: int = 3,
        tls: bool | TlsFile | Tls = False,
    ) -> None:
        _names.check_topic(topic)
        _names.check_group(group)
        self._subscription = Subscription(group, topic, filter_expression(filter))
        self._client = AsyncClient("consumer", Options(endpoint, timeout, attempts, tls), self._subscription.settings())
        self._invisible = seconds(invisible_duration)
        self._leases = Leases(self._client, self._subscription)
        self._ahead = Ahead(self._invisible)
        self._batch: deque[MessageView] = deque()
        self._usable_until = 0.0
        self._batch_size = 0
        self._batch_begin = 0.0
        self._next: asyncio.Task[list[MessageView]] | None = None
        self._closing = False
        self._runner: Runner | None = None
        self._in_order: InOrder | None = None

    async def receive(
        self,
        max_messages: int = 32,
        *,
        wait: timedelta | float = timedelta(seconds=20),
        invisible_duration: timedelta | float | None = None,
    ) -> list[MessageView]:
        """Receive up to *max_messages*, waiting for the first one; an empty list when none came in time."""
        self._client.check()
        if max_messages < 1:
            raise ValueError(f"at least one message must be asked for, not {max_messages}")
        await self._leases.flush(time.monotonic() + self._client.common.timeout)
        invisible = self._invisible if invisible_duration is None else seconds(invisible_duration)
        wish = Wish(max_messages, seconds(wait), invisible)
        return await self._client.run(_plans.receive(self._client.common, self._subscription, wish, self._leases))

    async def ack(self, messages: MessageView | Iterable[MessageView]) -> None:
        """
        Acknowledge messages and return once the broker has answered; see `ferromq.Consumer.ack`.

        Raises the error of the first that was refused: `LeaseExpired` or an `OutcomeUnknown`.
        """
        self._client.check()
        await self._leases.ack([messages] if isinstance(messages, MessageView) else list(messages))

    async def change_invisible_duration(self, message: MessageView, duration: timedelta | float) -> None:
        """Let the lease of *message* end *duration* from now; zero gives it back at once."""
        self._client.check()
        await self._leases.change_invisible_duration(message, duration)

    async def forward_to_dead_letter(self, message: MessageView) -> None:
        """Put *message* into the group's dead letter queue, and end its life in the group."""
        self._client.check()
        await self._leases.forward_to_dead_letter(message)

    async def run(
        self,
        handler: Callable[[MessageView], Awaitable[object]],
        *,
        tasks: int = 1,
        stop_timeout: timedelta | float = timedelta(seconds=30),
    ) -> None:
        """
        Await *handler* with each message, in *tasks* tasks, until `stop` or `close` is called.

        What becomes of the messages is said at `ferromq.Consumer.run`. At the end handlers that need longer than
        *stop_timeout* are cancelled; cancelling `run` itself cancels them at once. Either way what was not handled is
        given back. Raises `TypeError` for a handler that cannot be awaited.
        """
        self._client.check()
        check_async(handler)
        if tasks < 1:
            raise ValueError(f"at least one task is needed, not {tasks}")
        if self._runner is not None:
            raise RuntimeError("this consumer runs already; give run more tasks, or make another consumer")
        self._runner = Runner(
            self,
            self._stop_ahead,
            self._leases,
            self._invisible,
            retry=lambda: Retry.of(self._client.base.settings),
            received=lambda: self._batch_begin,
        )
        try:
            await self._runner.run(handler, tasks, seconds(stop_timeout))
        finally:
            self._runner = None

    def stop(self) -> None:
        """End `run`: it returns once the handlers under way have ended. The consumer stays usable. Not thread-safe."""
        if self._runner is not None:
            self._runner.stop()

    async def queues(self) -> list[Queue]:
        """Return the queues of the topic, for those who keep their own offsets."""
        self._client.check()
        return await self._client.run(_pull_plans.queues(self._client.common, self._subscription.topic))

    async def pull(self, queue: Queue, offset: int, max_messages: int = 32, *, wait: timedelta | float = 0.0) -> Pulled:
        """
        Read up to *max_messages* from *offset* on, waiting for the first; nothing is leased.

        The result says where the next pull begins: past what the filter passed over, too. Keep the offset yourself, or
        `commit_offset` it for the group. Raises `RequestError` for an offset the queue does not hold, saying which it
        holds.
        """
        self._client.check()
        if max_messages < 1:
            raise ValueError(f"at least one message must be asked for, not {max_messages}")
        wish = Wish(max_messages, seconds(wait), 0.0)
        plan = _pull_plans.pull(self._client.common, self._subscription, queue, offset, wish)
        return await self._client.run(plan)

    async def offset_at(self, queue: Queue, when: datetime | int | Literal["begin", "end"]) -> int:
        """Return the offset of the first message stored at *when* or later, the min offset, or the max offset."""
        self._client.check()
        return await self._client.run(_pull_plans.offset_at(self._client.common, self._subscription.topic, queue, when))

    async def committed_offset(self, queue: Queue) -> int | None:
        """Return the next offset the group will read, None where it has read nothing of the queue."""
        self._client.check()
        return await self._client.run(_pull_plans.committed_offset(self._client.common, self._subscription, queue))

    async def commit_offset(self, queue: Queue, offset: int) -> None:
        """Set the next offset the group will read."""
        self._client.check()
        await self._client.run(_pull_plans.commit_offset(self._client.common, self._subscription, queue, offset))

    async def flush(self, timeout: timedelta | float = 5.0) -> None:  # noqa: ASYNC109 (as the synchronous one)
        """
        Send the acknowledgements that wait; raises the first failure since the last `flush`.

        Raises `RequestTimeout` when some are not through within *timeout* (float: seconds); they stay on their way.
        """
        self._client.check()
        waiting = await self._leases.flush(time.monotonic() + seconds(timeout))
        failure = self._leases.refusals.take()
        if failure is not None:
            raise failure
        if waiting:
            raise _plans.no_answer(f"sending acknowledgements ({waiting} are still on their way)", seconds(timeout))

    def __aiter__(self) -> AsyncIterator[MessageView]:
        return self

    async def __anext__(self) -> MessageView:
        while True:
            if self._closing:
                raise StopAsyncIteration
            while self._batch and time.monotonic() <= self._usable_until:
                message = self._batch.popleft()
                if self._in_order is None or self._in_order.may_use(message):
                    return message
            # Leases that ended meanwhile: those messages come again, maybe elsewhere.
            self._batch.clear()
            await self._next_batch()

    async def _next_batch(self) -> None:
        self._client.check()
        if self._batch_size:
            self._ahead.used(self._batch_size, time.monotonic() - self._batch_begin)
        await self._leases.keep_pace()
        if self._next is None:
            self._next = asyncio.create_task(self._receive_ahead())
        try:
            messages = await asyncio.shield(self._next)
        except asyncio.CancelledError:
            if self._closing and (self._next is None or self._next.cancelled()):
                raise StopAsyncIteration from None
            raise
        except FerromqError:
            self._next = None
            raise
        is_fifo = Retry.of(self._client.base.settings).is_fifo
        if is_fifo:
            # Nothing ahead: what comes depends on what is acknowledged.
            self._next = None
        else:
            self._next = asyncio.create_task(self._receive_ahead())
        in_order = is_fifo and self._runner is None
        self._in_order = self._leases.in_order = InOrder() if in_order else None
        self._batch.extend(messages)
        self._batch_size, self._batch_begin = len(messages), time.monotonic()
        self._usable_until = self._batch_begin + self._invisible

    async def _receive_ahead(self) -> list[MessageView]:
        outage = False
        while True:
            wish = Wish(self._ahead.size, _LONG_POLL, self._invisible)
            try:
                return await self._client.run(
                    _plans.receive(self._client.common, self._subscription, wish, self._leases)
                )
            except RETRYABLE as error:
                self._client.check()
                if not outage:
                    _log.warning("no messages for now topic=%s: %s", self._subscription.topic, error)
                outage = True

    async def _stop_ahead(self) -> list[MessageView]:
        """Receive no more ahead, and return what was not used."""
        unused = list(self._batch)
        self._batch.clear()
        coming, self._next = self._next, None
        if coming is not None:
            coming.cancel()
            await asyncio.wait({coming})
            if not coming.cancelled() and not coming.exception():
                unused += coming.result()
        return unused

    async def close(self, timeout: timedelta | float = 5.0) -> None:  # noqa: ASYNC109 (as the synchronous one)
        """
        Send waiting acknowledgements, give back what was received ahead, unregister, and end.

        Returns within about *timeout* whatever the brokers do. Acknowledgements that were refused are in the log; it
        raises none of them. Idempotent.
        """
        until = time.monotonic() + seconds(timeout)
        if self._client.base.is_closed or not self._client.base.is_here:
            return
        if self._runner is not None:
            self._runner.stop()
            await self._runner.wait(remaining(until))
        self._closing = True
        unused = await self._stop_ahead()
        await self._leases.flush(until)
        await self._leases.give_back(unused, until)
        await self._client.close(until)
        self._leases.stop()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
