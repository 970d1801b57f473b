"""
Calls a handler with each message, and does what its outcome asks for.

What becomes of a message that failed is decided in `core.retry`; `push` starts and ends the workers.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

from ferromq.aio._ahead import ReceiveAhead
from ferromq.aio._connection import AsyncClient
from ferromq.aio._leases import Leases
from ferromq.core.ahead import Held
from ferromq.core.batches import failures_of, sort_batch
from ferromq.core.handlers import UnusableResult, call_async
from ferromq.core.orders import Orders
from ferromq.core.outcomes import say_failed, say_failed_after_end, say_requester_gone
from ferromq.core.retry import Retry, Verdict, order_of
from ferromq.core.subscriptions import Subscription
from ferromq.errors import FerromqError, RequesterGone
from ferromq.message import MessageView
from ferromq.process.limited_log import LimitedLog

_log = logging.getLogger("ferromq.client")


class Handling:
    """What the workers of one call of `Consumer.run` do."""

    def __init__(
        self, client: AsyncClient, subscription: Subscription, leases: Leases, invisible: float, prefetch: int | None
    ) -> None:
        self._client = client
        self._leases = leases
        self._ahead = ReceiveAhead(client, subscription, leases, invisible, prefetch=prefetch, place=self._place)
        self._orders = Orders()
        self._unused: list[MessageView] = []
        """What was taken and not handled, to be given back at the end."""
        self._seldom = LimitedLog(_log)
        self._stopping = asyncio.Event()

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
        held.order = order_of(held.message) if self._client.base.retry.is_fifo else None
        self._orders.place(held)

    async def _take(self) -> Held | None:
        """Return the next message whose order is free, None when it is over."""
        while not self._stopping.is_set():
            held = await self._ahead.next()
            if held is None:
                self.stop()
                return None
            if held.may_begin:
                return held
            if held.is_behind:
                self._ahead.end(held, is_used=False)
                await self._give_back([held.message])
        return None

    async def _after(self, held: Held) -> Held | None:
        """Return the next message of the order, None where there is none or no order."""
        following, behind = self._orders.leave(held)
        self._ahead.end(held)
        if behind:
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
            held.is_over = True
            held.comes_again = True
        # sync: self._ahead.wait_for_receive()
        await self._give_back([held.message for held in some])

    async def _give_back(self, messages: list[MessageView]) -> None:
        await self._leases.give_back(messages, time.monotonic() + self._client.common.attempt_timeout)

    async def _handle(self, handler: Callable[[MessageView], Awaitable[object]], held: Held) -> None:
        message, retry = held.message, self._client.base.retry
        attempt = message.delivery_attempt
        held.is_begun = True
        while not self._stopping.is_set():
            try:
                await call_async(handler, message)
            except UnusableResult:
                self._unused.append(message)
                raise
            except Exception as error:  # noqa: BLE001 (whatever it is, the message was not handled)
                verdict = _verdict(message, retry, attempt, error)
                if verdict is None:
                    await self._end(held, partial(self._leases.ack, [message]))
                    return
            except BaseException:
                self._unused.append(message)
                raise
            else:
                if held.order is None:
                    self._ack(held)
                else:  # the next one begins when the broker knows of this one
                    await self._end(held, partial(self._leases.ack, [message]))
                return
            if verdict.delay is None or held.order is None:
                await self._end_failed(held, verdict)
                return
            attempt += 1
            await self._ahead.rest(verdict.delay)
            if self._ahead.is_paused:
                await self._return([held])
                return
        held.is_over = True
        self._unused.append(message)

    async def _handle_batch(
        self, handler: Callable[[list[MessageView]], Awaitable[object]], batch: list[Held]
    ) -> Held | None:
        """Call the handler until each message has its end, and return the next message of their order."""
        in_order, following = batch[0].order is not None, None
        attempts = {held: held.message.delivery_attempt for held in batch}
        for held in batch:
            held.is_begun = True
        left = batch
        while left and not self._stopping.is_set() and not self._ahead.is_paused:
            done, failed, left = sort_batch(left, await self._call(handler, left), in_order=in_order)
            await self._end_handled(done, in_order=in_order)
            delay, told = 0.0, None
            for held, cause in failed:
                verdict = Verdict.of(cause, self._client.base.retry, attempts[held])
                say_failed(held.message, attempts[held], verdict, None if cause is told else cause)
                told = cause
                if held.message.is_settled:
                    await self._end(held, partial(self._leases.ack, [held.message]))
                elif verdict.delay is None or not in_order:
                    await self._end_failed(held, verdict)
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
            held.is_over = True
            self._unused.append(held.message)

    async def _call(
        self, handler: Callable[[list[MessageView]], Awaitable[object]], batch: list[Held]
    ) -> Mapping[MessageView, Exception]:
        """Call the handler with a batch, and return what failed; the messages are given back if that ends `run`."""
        messages, error = [held.message for held in batch], None
        try:
            try:
                await call_async(handler, list(messages))
            except UnusableResult:
                raise
            except Exception as raised:  # noqa: BLE001 (whatever it is, the messages were not handled)
                error = raised
            return failures_of(error, batch)
        except BaseException:
            for held in batch:
                held.is_over = True
            self._unused += messages
            raise

    async def _end_handled(self, done: list[Held], *, in_order: bool) -> None:
        """Acknowledge messages; in order the next batch begins when the broker knows of these."""
        if not in_order:
            for held in done:
                self._ack(held)
            return
        for held in done:
            held.is_over = True
        try:
            await self._leases.ack([held.message for held in done])
        except FerromqError as error:
            for held in done:
                held.comes_again = not held.message.is_settled
            self._seldom.log(logging.WARNING, "messages of a batch are redelivered: %s", error)

    def _ack(self, held: Held) -> None:
        """Have a message acknowledged in the background; its lease is not renewed any more."""
        held.is_over = True
        try:
            held.message.ack()
        except FerromqError as error:
            self._say_again(held, error)

    async def _end(self, held: Held, end: Callable[[], Awaitable[None]]) -> None:
        """End a lease, which is not renewed any more."""
        held.is_over = True
        try:
            await end()
        except FerromqError as error:
            self._say_again(held, error)

    async def _end_failed(self, held: Held, verdict: Verdict) -> None:
        """Make a message a dead letter, or have it redelivered."""
        if verdict.delay is None:
            await self._end(held, partial(self._leases.forward_to_dead_letter, held.message, verdict.cause))
        else:
            await self._end(held, partial(self._leases.change_invisible_duration, held.message, verdict.delay))

    def _say_again(self, held: Held, error: FerromqError) -> None:
        held.comes_again = True
        self._seldom.log(logging.WARNING, "message is redelivered message_id=%s: %s", held.message.message_id, error)


def _verdict(message: MessageView, retry: Retry, attempt: int, error: Exception) -> Verdict | None:
    """Log what a handler raised, and return what becomes of the message; None: it is acknowledged."""
    if isinstance(error, RequesterGone):
        say_requester_gone(message, error)
    elif message.is_settled:
        say_failed_after_end(message)
    else:
        verdict = Verdict.of(error, retry, attempt)
        say_failed(message, attempt, verdict, error)
        return verdict
    return None
