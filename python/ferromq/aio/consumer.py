"""The consumer for asyncio; see `ferromq.client.consumer`, whose names and promises it has."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from datetime import datetime, timedelta
from types import TracebackType
from typing import Literal, Self

from ferromq.aio._ahead import Iteration, ReceiveAhead
from ferromq.aio._connection import AsyncClient
from ferromq.aio._leases import Leases
from ferromq.aio._push import Runner
from ferromq.client.client import Options
from ferromq.client.connection import end_of, remaining
from ferromq.client.tls import Tls, TlsFile
from ferromq.core import plans, pull_plans
from ferromq.core.ahead import check_prefetch
from ferromq.core.filters import Sql, filter_expression
from ferromq.core.handlers import check_async
from ferromq.core.plans import Subscription, Wish
from ferromq.core.pull_plans import Pulled, Queue
from ferromq.core.requests import seconds
from ferromq.core.retry import Cause
from ferromq.message import MessageView
from ferromq.protocol import naming
from ferromq.terminal.objects import described

__all__ = ["Consumer"]

_ACKS_FIRST = 1.0
"""Seconds that a receive gives to the acknowledgements that wait, at most."""


class Consumer:
    """
    Receives the messages of a topic on behalf of a consumer group; it belongs to the loop of its first use.

    The arguments are those of `ferromq.Consumer`. Several tasks may iterate over it, each in a loop of its own:

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
        timeout: timedelta | float = 10.0,
        attempts: int = 3,
        tls: bool | TlsFile | Tls = False,
        prefetch: int | None = None,
    ) -> None:
        naming.check_topic(topic)
        naming.check_group(group)
        self._subscription = Subscription(group, topic, filter_expression(filter))
        self._client = AsyncClient("consumer", Options(endpoint, timeout, attempts, tls), self._subscription.settings())
        self._invisible = seconds(invisible_duration)
        self._leases = Leases(self._client, self._subscription)
        self._prefetch = check_prefetch(prefetch)
        self._ahead = ReceiveAhead(self._client, self._subscription, self._leases, self._invisible, prefetch=prefetch)
        self._runner: Runner | None = None

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
        invisible = self._invisible if invisible_duration is None else seconds(invisible_duration)
        until = time.monotonic() + seconds(wait)
        await self._leases.flush(time.monotonic() + _ACKS_FIRST)
        ahead = await self._ahead.take_ahead(max_messages, until, None if invisible_duration is None else invisible)
        if ahead is not None:
            return ahead
        left = remaining(until)
        grace = until + plans.LATE - time.monotonic() - left
        wish = Wish(max_messages, left, invisible, grace=max(grace, plans.LATE - _ACKS_FIRST))
        return await self._client.run(plans.receive(self._client.common, self._subscription, wish, self._leases))

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

    async def forward_to_dead_letter(self, message: MessageView, reason: str = "") -> None:
        """Put *message* into the group's dead letter queue, for a *reason*, and end its life in the group."""
        self._client.check()
        await self._leases.forward_to_dead_letter(message, Cause(reason))

    async def run(
        self,
        handler: Callable[[MessageView], Awaitable[object]],
        *,
        concurrency: int = 1,
        stop_timeout: timedelta | float = timedelta(seconds=30),
    ) -> None:
        """
        Await *handler* with each message, in as many tasks as *concurrency* says, until `stop` or `close` is called.

        What becomes of the messages is said at `ferromq.Consumer.run`, and of SIGTERM, where the loop runs in the main
        thread. At the end handlers that need longer than
        *stop_timeout* are cancelled; cancelling `run` itself cancels them at once. Either way what was not handled is
        given back. Raises `TypeError` for a handler that cannot be awaited.
        """
        self._client.check()
        check_async(handler)
        if concurrency < 1:
            raise ValueError(f"concurrency must be at least 1, got {concurrency}")
        if self._runner is not None:
            raise RuntimeError("run() is already active; raise concurrency, or create another consumer")
        self._runner = Runner(self._client, self._subscription, self._leases, self._invisible, self._prefetch)
        try:
            await self._runner.run(handler, concurrency, seconds(stop_timeout))
        finally:
            self._runner = None

    def stop(self) -> None:
        """End `run`: it returns once the handlers under way have ended. The consumer stays usable. Not thread-safe."""
        if self._runner is not None:
            self._runner.stop()

    async def queues(self) -> list[Queue]:
        """Return the queues of the topic, for those who keep their own offsets."""
        self._client.check()
        return await self._client.run(pull_plans.queues(self._client.common, self._subscription.topic))

    async def pull(self, queue: Queue, offset: int, max_messages: int = 32, *, wait: timedelta | float = 0.0) -> Pulled:
        """
        Read up to *max_messages* from *offset* on, waiting for the first; nothing is leased.

        The result says where the next pull begins: past what the filter passed over, too. Keep the offset yourself, or
        `commit_offset` it for the group. It ends within *wait* and the consumer's `timeout`, whatever hangs. Raises
        `RequestError` for an offset the queue does not hold, saying which it holds.
        """
        self._client.check()
        if max_messages < 1:
            raise ValueError(f"at least one message must be asked for, not {max_messages}")
        wish = Wish(max_messages, seconds(wait), 0.0)
        plan = pull_plans.pull(self._client.common, self._subscription, queue, offset, wish)
        return await self._client.run(plan)

    async def offset_at(self, queue: Queue, when: datetime | int | Literal["begin", "end"]) -> int:
        """Return the offset of the first message stored at *when* or later, the min offset, or the max offset."""
        self._client.check()
        return await self._client.run(pull_plans.offset_at(self._client.common, self._subscription.topic, queue, when))

    async def committed_offset(self, queue: Queue) -> int | None:
        """Return the next offset the group will read, None where it has read nothing of the queue."""
        self._client.check()
        return await self._client.run(pull_plans.committed_offset(self._client.common, self._subscription, queue))

    async def commit_offset(self, queue: Queue, offset: int) -> None:
        """Set the next offset the group will read."""
        self._client.check()
        await self._client.run(pull_plans.commit_offset(self._client.common, self._subscription, queue, offset))

    async def flush(self, timeout: timedelta | float | None = None) -> bool:  # noqa: ASYNC109 (as the synchronous one)
        """
        Send the waiting acknowledgements at once, and wait until the brokers have answered.

        Returns whether all were answered within *timeout* (float: seconds); the others stay on their way. None waits as
        long as it takes: a broker that hangs fails them. Raises the first failure since the last `flush`.
        """
        self._client.check()
        waiting = await self._leases.flush(end_of(timeout))
        failure = self._leases.refusals.take()
        if failure is not None:
            raise failure
        return not waiting

    def __aiter__(self) -> AsyncIterator[MessageView]:
        """Yield messages as they come, until the consumer is closed."""
        self._client.check()
        return Iteration(self._ahead, self._leases, self._client.common.attempt_timeout)

    async def close(self, timeout: timedelta | float = 5.0) -> None:  # noqa: ASYNC109 (as the synchronous one)
        """
        Send waiting acknowledgements, give back what was received ahead, unregister, and end.

        Returns within about *timeout* (float: seconds) whatever the brokers do. Refused acknowledgements are logged; it
        raises none of them. Idempotent.
        """
        until = end_of(timeout)
        if self._client.base.is_closed or not self._client.base.is_here:
            return
        if self._runner is not None:
            self._runner.stop()
            await self._runner.wait(remaining(until))
        unused = await self._ahead.stop()
        await self._ahead.finish()
        await self._leases.flush(until)
        await self._leases.give_back(unused, until)
        await self._client.close(until)
        self._leases.stop()

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._client.base.is_closed

    def __repr__(self) -> str:
        endpoint, subscription = ";".join(self._client.common.endpoints), self._subscription
        state = self._client.base.state
        return described("aio.Consumer", state, endpoint=endpoint, group=subscription.group, topic=subscription.topic)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
