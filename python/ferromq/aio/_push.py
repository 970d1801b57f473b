"""Awaits a handler with each message; what becomes of one that failed is decided as in `ferromq.client.push`."""

import asyncio
import inspect
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from ferromq.aio._ahead import ReceiveAhead
from ferromq.aio._connection import AsyncClient
from ferromq.aio._leases import Leases
from ferromq.client.connection import LOOK_UP, remaining
from ferromq.client.push import GIVE_BACK, Orders, say_failed, say_failed_after_end, say_requester_gone
from ferromq.client.signals import stopped_by_sigterm
from ferromq.core.ahead import Held
from ferromq.core.batches import failures_of, sort_batch
from ferromq.core.handlers import check_awaitable
from ferromq.core.retry import Retry, Verdict, order_of
from ferromq.core.subscriptions import Subscription
from ferromq.errors import FerromqError, RequesterGone
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

    async def run(
        self,
        handler: Callable[[Any], Awaitable[object]],
        tasks: int,
        stop_timeout: float,
        batch: int | None = None,
        linger: float = 0.0,
    ) -> None:
        """Work until it is stopped; see `Consumer.run`."""
        self._ahead.workers = tasks
        self._ahead.at_least = tasks * batch if batch else 1
        work = partial(self._work, handler) if batch is None else partial(self._work_batches, handler, batch, linger)
        self._tasks = [asyncio.create_task(work()) for _ in range(tasks)]
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

    def pause(self) -> None:
        """Hand out no messages until `resume`."""
        self._ahead.pause()

    def resume(self) -> None:
        """Go on after `pause`."""
        self._ahead.resume()

    async def wait(self, until: float) -> None:
        """Wait until `run` has ended, unless a handler asks for it, at most *until* (monotonic)."""
        if asyncio.current_task() not in self._tasks:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), remaining(until))

    async def _give_back_all(self) -> None:
        until = time.monotonic() + GIVE_BACK
        ahead = await self._ahead.stop(until)
        waiting = [held.message for held in await self._ahead.finish() if not held.is_over]
        await self._leases.flush(until)
        await self._leases.give_back([*ahead, *self._unused, *waiting], until)

    async def _work(self, handler: Callable[[MessageView], Awaitable[object]]) -> None:
        while (held := await self._take()) is not None:
            following: Held | None = held
            while following is not None and not await self._is_returned([following]):
                await self._handle(handler, following)
                following = await self._after(following)

    async def _work_batches(
        self, handler: Callable[[list[MessageView]], Awaitable[object]], count: int, linger: float
    ) -> None:
        while (held := await self._take()) is not None:
            following: Held | None = held
            while following is not None:
                batch = await self._fill(following, count, linger)
                if self._stopping.is_set():
                    return
                if await self._is_returned(batch):
                    break
                following = await self._handle_batch(handler, batch)

    async def _fill(self, first: Held, count: int, linger: float) -> list[Held]:
        """Return a batch that begins with *first*; in order it has messages of one order, and waits for none."""
        batch, until = [first], time.monotonic() + linger
        while len(batch) < count:
            if first.order is None:
                held = await self._ahead.next(until=until, unless_paused=True)
            else:
                held = self._ahead.next_alike(first.order)
            if held is None:
                break
            if held.is_behind:
                self._ahead.end(held, is_used=False)
                await self._give_back([held.message])
            else:
                batch.append(held)
        return batch if first.order is None else self._orders.first(first, count)

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
        await self._give_back([each.message for each in behind if not each.message.is_settled])
        return following

    async def _is_returned(self, batch: list[Held]) -> bool:
        """Give back what is to be handled next, and what waits behind it, if it is paused; return whether it is."""
        is_paused = self._ahead.is_paused
        if is_paused:
            await self._return_all(batch)
        return is_paused

    async def _return_all(self, batch: list[Held]) -> None:
        some = batch if batch[0].order is None else batch[:1]
        await self._return(some)
        for held in some:
            await self._after(held)

    async def _return(self, some: list[Held]) -> None:
        for held in some:
            held.is_over = held.comes_again = True
        await self._give_back([held.message for held in some])

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
            except RequesterGone as error:
                say_requester_gone(message, error)
                await self._end(held, self._leases.ack([message]))
                return
            except Exception as error:  # noqa: BLE001 (whatever it is, the message was not handled)
                if message.is_settled:
                    say_failed_after_end(message)
                    await self._end(held, self._leases.ack([message]))
                    return
                verdict = Verdict.of(error, retry, attempt)
                say_failed(message, attempt, verdict, error)
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
            await self._ahead.rest(verdict.delay)
            if self._ahead.is_paused:
                await self._return([held])
                return
        await self._end(held)
        self._unused.append(message)

    async def _handle_batch(
        self, handler: Callable[[list[MessageView]], Awaitable[object]], batch: list[Held]
    ) -> Held | None:
        """Await the handler until each message has its end, and return the next message of their order."""
        in_order, following = batch[0].order is not None, None
        attempts = {held: held.message.delivery_attempt for held in batch}
        left = batch
        while left and not self._stopping.is_set() and not self._ahead.is_paused:
            done, failed, left = sort_batch(left, await self._call(handler, left), in_order=in_order)
            await self._end_handled(done, in_order=in_order)
            delay, told = 0.0, None
            for held, cause in failed:
                verdict = Verdict.of(cause, self._retry(), attempts[held])
                say_failed(held.message, attempts[held], verdict, None if cause is told else cause)
                told = cause
                if held.message.is_settled:
                    await self._end(held, self._leases.ack([held.message]))
                elif verdict.delay is None:
                    await self._end(held, self._leases.forward_to_dead_letter(held.message, verdict.cause))
                elif not in_order:
                    await self._end(held, self._leases.change_invisible_duration(held.message, verdict.delay))
                else:
                    attempts[held] += 1
                    left, delay = [held, *left], verdict.delay
                    continue
                done.append(held)
            for held in done:
                following = await self._after(held)
                if held.comes_again and in_order:  # what follows it was given back
                    return None
            await self._ahead.rest(delay)
        await self._leave(left)
        return None if left else following

    async def _leave(self, left: list[Held]) -> None:
        """Leave messages that are not handed out once more, because of the end or a pause."""
        if left and not self._stopping.is_set():
            await self._return_all(left)
            return
        for held in left:
            await self._end(held)
            self._unused.append(held.message)

    async def _call(
        self, handler: Callable[[list[MessageView]], Awaitable[object]], batch: list[Held]
    ) -> Mapping[MessageView, Exception]:
        """Await the handler with a batch, and return what failed."""
        error = None
        try:
            result = handler([held.message for held in batch])
            if inspect.isawaitable(result):
                await result
        except Exception as raised:  # noqa: BLE001 (whatever it is, the messages were not handled)
            error = raised
        else:
            check_awaitable(handler, result)
        return failures_of(error, batch)

    async def _end_handled(self, done: list[Held], *, in_order: bool) -> None:
        """Acknowledge messages; in order the next batch begins when the broker knows of these."""
        if not in_order:
            for held in done:
                await self._end(held, self._ack(held.message))
            return
        for held in done:
            held.is_over = True
        try:
            await self._leases.ack([held.message for held in done])
        except FerromqError as error:
            for held in done:
                held.comes_again = not held.message.is_settled
            self._seldom.log(logging.WARNING, "messages of a batch are redelivered: %s", error)

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
