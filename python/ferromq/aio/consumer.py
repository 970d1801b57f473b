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
from ferromq.aio._push import Runner
from ferromq.client import _plans, _pull_plans
from ferromq.client._client import Options
from ferromq.client._connection import remaining
from ferromq.client._filters import Sql, filter_expression
from ferromq.client._leases import FLUSH_AFTER, FLUSH_COUNT, Acks, Ahead, by_endpoint
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
        self._leases = _Leases(self._client, self._subscription)
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
        await self._leases.send_waiting()
        invisible = self._invisible if invisible_duration is None else seconds(invisible_duration)
        wish = Wish(max_messages, seconds(wait), invisible)
        return await self._client.run(_plans.receive(self._client.common, self._subscription, wish, self._leases))

    async def ack(self, messages: MessageView | Iterable[MessageView]) -> None:
        """Acknowledge messages and return once the broker knows; raises the error of the first that was refused."""
        self._client.check()
        some = [messages] if isinstance(messages, MessageView) else list(messages)
        refused = [failure for _, failure in await self._leases.send(by_endpoint(some))]
        if refused:
            raise refused[0]

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
        given back.
        """
        self._client.check()
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

    async def flush(self) -> None:
        """Send the acknowledgements that wait; raises the first failure since the last `flush`."""
        self._client.check()
        await self._leases.send_waiting()
        failure = self._leases.acks.take_failure()
        if failure is not None:
            raise failure

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
        Send waiting acknowledgements, give back what was received ahead, say good-bye, and end.

        Returns within about *timeout* whatever the brokers do. Raises the first acknowledgement that failed and was not
        raised before. Idempotent.
        """
        until = time.monotonic() + seconds(timeout)
        if self._client.base.is_closed or not self._client.base.is_here:
            return
        if self._runner is not None:
            self._runner.stop()
            await self._runner.wait(remaining(until))
        self._closing = True
        unused = await self._stop_ahead()
        try:
            async with asyncio.timeout(remaining(until)):
                await self._leases.send_waiting()
                for message in unused:
                    await self._leases.change_invisible_duration(message, 0.0, suspend=True)
        except (TimeoutError, FerromqError) as error:
            _log.debug("not everything was given back, the leases end by themselves: %s", error)
        if await self._client.close(until):
            failure = self._leases.stop()
            if failure is not None:
                raise failure

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.close()
        except FerromqError as failure:
            if error is None:
                raise
            error.add_note(f"closing the consumer failed, too: {failure}")


class _Leases:
    """Ends leases: acknowledgements together and in the background, changes of duration when awaited."""

    def __init__(self, client: AsyncClient, subscription: Subscription) -> None:
        self._client = client
        self._subscription = subscription
        self.acks = Acks()
        self.in_order: InOrder | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._sending: set[asyncio.Task[None]] = set()

    def ack_later(self, message: MessageView) -> None:
        """Take a message's acknowledgement; called by the message."""
        self._client.check()
        if self.in_order is not None:
            self.in_order.acknowledged(message)
        self.acks.messages.append(message)
        count = len(self.acks.messages)
        if count >= FLUSH_COUNT:
            self._send_soon()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(FLUSH_AFTER, self._send_soon)

    async def change_invisible_duration(
        self, message: MessageView, duration: timedelta | float, *, suspend: bool = False
    ) -> None:
        """Change a lease; called by the message, too."""
        self._client.check()
        common = self._client.common
        await self._client.run(
            _plans.change_invisible_duration(common, self._subscription, message, seconds(duration), suspend=suspend)
        )

    async def ack(self, message: MessageView) -> None:
        """Acknowledge one message at once; raises what the broker refused."""
        for _, failure in await self.send({message.endpoint: [message]}):
            raise failure

    async def forward_to_dead_letter(self, message: MessageView) -> None:
        """Put a message into the dead letter queue."""
        self._client.check()
        await self._client.run(_plans.forward_to_dead_letter(self._client.common, self._subscription, message))

    async def send(self, grouped: dict[str, list[MessageView]]) -> list[tuple[int, FerromqError]]:
        """Send acknowledgements, and return for each failure how many messages it concerns."""
        failures: list[tuple[int, FerromqError]] = []
        for endpoint, messages in grouped.items():
            try:
                plan = _plans.ack(self._client.common, self._subscription, endpoint, messages)
                failures += [(1, error) for _, error in await self._client.run(plan)]
            except FerromqError as error:
                failures.append((len(messages), error))
            if self.in_order is not None:
                for message in messages:
                    self.in_order.acknowledged(message)
        return failures

    async def send_waiting(self) -> None:
        """Send what waits, and wait for what is under way."""
        while self.acks.messages:
            self._send_soon()
        if self._sending:
            await asyncio.gather(*self._sending)

    async def keep_pace(self) -> None:
        """Wait while more than one request is under way."""
        while len(self._sending) > 1:
            await asyncio.wait(self._sending, return_when=asyncio.FIRST_COMPLETED)

    def stop(self) -> FerromqError | None:
        """Send no more, and return the first failure that was not raised yet."""
        if self._timer is not None:
            self._timer.cancel()
        if self.acks.messages:
            self.acks.refused(len(self.acks.messages), _plans.no_answer("sending acknowledgements", 0))
            self.acks.messages = []
        return self.acks.take_failure()

    def _send_soon(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        grouped = self.acks.take()
        if grouped:
            task = asyncio.create_task(self._send_taken(grouped))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    async def _send_taken(self, grouped: dict[str, list[MessageView]]) -> None:
        for count, error in await self.send(grouped):
            self.acks.refused(count, error)
