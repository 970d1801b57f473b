"""Awaits a handler with each message; what becomes of one that failed is decided as in `ferromq.client._push`."""

import asyncio
import inspect
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress

from ferromq.aio._leases import Leases
from ferromq.client._handlers import check_awaitable
from ferromq.client._push import RENEWALS, Held, Orders, say_failed, say_failed_after_end
from ferromq.client._retry import Retry
from ferromq.errors import FerromqError
from ferromq.message import MessageView

_log = logging.getLogger("ferromq.client")

_GIVE_BACK = 3.0
"""Seconds for giving back, at the end, what was not handled."""


class Runner:
    """One call of `Consumer.run`."""

    def __init__(
        self,
        messages: AsyncIterator[MessageView],
        stop_ahead: Callable[[], Awaitable[list[MessageView]]],
        leases: Leases,
        invisible: float,
        *,
        retry: Callable[[], Retry],
        received: Callable[[], float],
    ) -> None:
        self._messages = messages
        self._stop_ahead = stop_ahead
        self._leases = leases
        self._invisible = invisible
        self._retry = retry
        self._received = received
        self._taking = asyncio.Lock()
        self._orders = Orders()
        self._held: set[Held] = set()
        self._renewing: dict[Held, asyncio.Task[None]] = {}
        self._unused: list[MessageView] = []
        self._stopping = asyncio.Event()
        self._ended = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def run(self, handler: Callable[[MessageView], Awaitable[object]], tasks: int, stop_timeout: float) -> None:
        """Work until it is stopped; see `Consumer.run`."""
        self._tasks = [asyncio.create_task(self._work(handler)) for _ in range(tasks)]
        renewer = asyncio.create_task(self._renew())
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait({stopping, *self._tasks}, return_when=asyncio.FIRST_COMPLETED)
            self._stopping.set()
            if any(task.done() and not task.cancelled() and task.exception() for task in self._tasks):
                stop_timeout = min(stop_timeout, 1.0)
            await asyncio.wait(self._tasks, timeout=stop_timeout)
        finally:
            self._stopping.set()
            for task in (stopping, renewer, *self._tasks):
                task.cancel()
            results = await asyncio.gather(*self._tasks, renewer, stopping, return_exceptions=True)
            await self._give_back()
            self._ended.set()
        for result in results:
            if isinstance(result, Exception):
                raise result

    def stop(self) -> None:
        """Take no more messages; `run` returns soon."""
        self._stopping.set()

    async def wait(self, timeout: float) -> None:  # noqa: ASYNC109 (as the synchronous one)
        """Wait until `run` has ended, unless a handler asks for it."""
        if asyncio.current_task() not in self._tasks:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), timeout)

    async def _give_back(self) -> None:
        until = time.monotonic() + _GIVE_BACK
        ahead = await self._stop_ahead()
        await self._leases.flush(until)
        left = [*ahead, *self._unused, *(held.message for held in self._held if not held.is_over)]
        await self._leases.give_back(left, until)

    async def _work(self, handler: Callable[[MessageView], Awaitable[object]]) -> None:
        while (held := await self._take()) is not None:
            following: Held | None = held
            while following is not None:
                held = following
                await self._handle(handler, held)
                self._held.discard(held)
                if held.comes_again:
                    await self._give_up(self._orders.behind(held))
                    break
                following = self._orders.after(held)

    async def _give_up(self, behind: list[Held]) -> None:
        """Give back what must not go before a message that comes again."""
        for held in behind:
            await self._end(held, self._leases.change_invisible_duration(held.message, 0.0, suspend=True))
            self._held.discard(held)

    async def _take(self) -> Held | None:
        """Return the next message whose order is free, None when it is over."""
        while True:
            async with self._taking:
                message = await self._next()
                if message is None:
                    self._stopping.set()
                    return None
                held = Held.of(message, self._retry(), self._received())
                self._held.add(held)
                is_behind = self._orders.is_behind(held)
                if not is_behind and self._orders.may_begin(held):
                    return held
            if is_behind:
                await self._give_up([held])

    async def _next(self) -> MessageView | None:
        """Return the next message; None when it is over, or stopped meanwhile."""
        if self._stopping.is_set():
            return None
        coming = asyncio.ensure_future(anext(self._messages))
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait({coming, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            # Nothing is lost: the receive itself is shielded, and goes on for the consumer's next user.
            coming.cancel()
        try:
            return await coming
        except StopAsyncIteration:
            return None
        except asyncio.CancelledError:
            if self._stopping.is_set():
                return None
            raise

    async def _handle(self, handler: Callable[[MessageView], Awaitable[object]], held: Held) -> None:
        message, retry = held.message, self._retry()
        attempt = message.delivery_attempt
        while not self._stopping.is_set():
            try:
                result = handler(message)
                if inspect.isawaitable(result):
                    await result
            except Exception:  # noqa: BLE001 (whatever it is, the message was not handled)
                if message.is_settled:
                    say_failed_after_end(message)
                    await self._end(held, self._leases.ack([message]))
                    return
                delay = retry.after(attempt)
                say_failed(message, attempt, delay)
            else:
                check_awaitable(handler, result)
                # In order the next one begins when the broker knows of this one.
                await self._end(held, None if held.order is None else self._leases.ack([message]))
                if held.order is None:
                    self._leases.ack_later(message)
                return
            if delay is None:
                await self._end(held, self._leases.forward_to_dead_letter(message))
                return
            if held.order is None:
                await self._end(held, self._leases.change_invisible_duration(message, delay))
                return
            attempt += 1
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), delay)
        await self._end(held)
        self._unused.append(message)

    async def _end(self, held: Held, end: Awaitable[None] | None = None) -> None:
        """End a lease once it is not made longer just now."""
        held.is_over = True
        try:
            renewal = self._renewing.get(held)
            if renewal is not None:
                await asyncio.wait({renewal})
            if end is not None:
                await end
        except FerromqError as error:
            held.comes_again = True
            _log.warning("a message comes again message_id=%s: %s", held.message.message_id, error)

    async def _renew(self) -> None:
        period = self._invisible / RENEWALS
        while True:
            await asyncio.sleep(period / 2)
            for held in [held for held in self._held if time.monotonic() - held.renewed >= period]:
                if not held.is_over and held not in self._renewing:
                    held.renewed = time.monotonic()
                    task = self._renewing[held] = asyncio.create_task(self._renew_one(held))
                    task.add_done_callback(lambda _, held=held: self._renewing.pop(held))  # type: ignore[misc]

    async def _renew_one(self, held: Held) -> None:
        try:
            await self._leases.change_invisible_duration(held.message, self._invisible)
        except FerromqError as error:
            _log.warning("lease not renewed message_id=%s: %s", held.message.message_id, error)
