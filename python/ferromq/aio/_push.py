"""Awaits a handler with each message; what becomes of one that failed is decided as in `ferromq.client.push`."""

import asyncio
import inspect
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from ferromq.aio._ahead import ReceiveAhead
from ferromq.aio._connection import AsyncClient
from ferromq.aio._leases import Leases
from ferromq.client.connection import LOOK_UP
from ferromq.client.push import GIVE_BACK, Orders, say_failed, say_failed_after_end
from ferromq.client.signals import stopped_by_sigterm
from ferromq.core.ahead import Held
from ferromq.core.handlers import check_awaitable
from ferromq.core.plans import Subscription
from ferromq.core.retry import Retry, Verdict, order_of
from ferromq.errors import FerromqError
from ferromq.message import MessageView
from ferromq.process.limited_log import LimitedLog

_log = logging.getLogger("ferromq.client")


class Runner:
    """One call of `Consumer.run`."""

    def __init__(
        self, client: AsyncClient, subscription: Subscription, leases: Leases, invisible: float, prefetch: int | None
    ) -> None:
        self._client = client
        self._leases = leases
        self._ahead = ReceiveAhead(client, subscription, leases, invisible, prefetch=prefetch, place=self._place)
        self._orders = Orders()
        self._unused: list[MessageView] = []
        self._seldom = LimitedLog(_log)
        self._stopping = asyncio.Event()
        self._ended = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def run(self, handler: Callable[[MessageView], Awaitable[object]], tasks: int, stop_timeout: float) -> None:
        """Work until it is stopped; see `Consumer.run`."""
        self._ahead.workers = tasks
        self._tasks = [asyncio.create_task(self._work(handler)) for _ in range(tasks)]
        stopping = asyncio.create_task(self._stopping.wait())
        loop = asyncio.get_running_loop()
        with stopped_by_sigterm(lambda: loop.call_soon_threadsafe(self.stop)):
            try:
                # A signal that another thread receives does not wake the loop.
                watched, done = {stopping, *self._tasks}, set[asyncio.Task[Any]]()
                while not done:
                    done, _ = await asyncio.wait(watched, timeout=LOOK_UP, return_when=asyncio.FIRST_COMPLETED)
                self.stop()
                if any(task.done() and not task.cancelled() and task.exception() for task in self._tasks):
                    stop_timeout = min(stop_timeout, 1.0)
                await asyncio.wait(self._tasks, timeout=stop_timeout)
            finally:
                self.stop()
                for task in (stopping, *self._tasks):
                    task.cancel()
                results = await asyncio.gather(*self._tasks, stopping, return_exceptions=True)
                await self._give_back_all()
                self._ended.set()
        for result in results:
            if isinstance(result, Exception):
                raise result

    def stop(self) -> None:
        """Take no more messages; `run` returns soon."""
        self._stopping.set()
        self._ahead.cease()

    async def wait(self, timeout: float) -> None:  # noqa: ASYNC109 (as the synchronous one)
        """Wait until `run` has ended, unless a handler asks for it."""
        if asyncio.current_task() not in self._tasks:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), timeout)

    async def _give_back_all(self) -> None:
        until = time.monotonic() + GIVE_BACK
        ahead = await self._ahead.stop()
        waiting = [held.message for held in await self._ahead.finish() if not held.is_over]
        await self._leases.flush(until)
        await self._leases.give_back([*ahead, *self._unused, *waiting], until)

    async def _work(self, handler: Callable[[MessageView], Awaitable[object]]) -> None:
        while (held := await self._take()) is not None:
            following: Held | None = held
            while following is not None:
                await self._handle(handler, following)
                following = await self._after(following)

    def _place(self, held: Held) -> None:
        """Decide whether a message that is taken may begin, in the order in which messages are taken."""
        held.order = order_of(held.message) if self._retry().is_fifo else None
        held.is_behind = self._orders.is_behind(held)
        held.may_begin = not held.is_behind and self._orders.may_begin(held)

    async def _take(self) -> Held | None:
        """Return the next message whose order is free, None when it is over."""
        while not self._stopping.is_set():
            held = await self._ahead.next()
            if held is None:
                self._stopping.set()
                return None
            if held.may_begin:
                return held
            if held.is_behind:
                self._ahead.end(held, is_used=False)
                await self._give_back([held.message])
        return None

    async def _after(self, held: Held) -> Held | None:
        """Return the next message of the order, None where there is none or no order."""
        following = None if held.comes_again else self._orders.after(held)
        behind = self._orders.behind(held) if held.comes_again else []
        self._ahead.end(held)
        for each in behind:
            self._ahead.end(each, is_used=False)
        await self._give_back([each.message for each in behind])
        return following

    async def _give_back(self, messages: list[MessageView]) -> None:
        await self._leases.give_back(messages, time.monotonic() + self._client.common.attempt_timeout)

    def _retry(self) -> Retry:
        return Retry.of(self._client.base.settings)

    async def _handle(self, handler: Callable[[MessageView], Awaitable[object]], held: Held) -> None:
        message, retry = held.message, self._retry()
        attempt = message.delivery_attempt
        while not self._stopping.is_set():
            try:
                result = handler(message)
                if inspect.isawaitable(result):
                    await result
            except Exception as error:  # noqa: BLE001 (whatever it is, the message was not handled)
                if message.is_settled:
                    say_failed_after_end(message)
                    await self._end(held, self._leases.ack([message]))
                    return
                verdict = Verdict.of(error, retry, attempt)
                say_failed(message, attempt, verdict)
            else:
                check_awaitable(handler, result)
                # In order the next one begins when the broker knows of this one.
                await self._end(held, self._ack(message) if held.order is None else self._leases.ack([message]))
                return
            if verdict.delay is None:
                await self._end(held, self._leases.forward_to_dead_letter(message, verdict.cause))
                return
            if held.order is None:
                await self._end(held, self._leases.change_invisible_duration(message, verdict.delay))
                return
            attempt += 1
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), verdict.delay)
        await self._end(held)
        self._unused.append(message)

    async def _ack(self, message: MessageView) -> None:
        self._leases.ack_later(message)

    async def _end(self, held: Held, end: Awaitable[None] | None = None) -> None:
        """End a lease, which is not renewed any more."""
        held.is_over = True
        try:
            if end is not None:
                await end
        except FerromqError as error:
            held.comes_again = True
            self._seldom.log(
                logging.WARNING, "message is redelivered message_id=%s: %s", held.message.message_id, error
            )
