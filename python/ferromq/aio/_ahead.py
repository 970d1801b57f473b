"""Receives what fits and renews what is in use, on an event loop; the synchronous twin is `client.holding`."""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from copy import copy
from typing import Self

from ferromq.aio._connection import AsyncClient
from ferromq.aio._leases import Leases
from ferromq.client.connection import remaining
from ferromq.core import plans
from ferromq.core.ahead import IN_ORDER, RENEWALS, Ahead, Held, sort_out
from ferromq.core.leases import NOT_RENEWED
from ferromq.core.plans import Subscription, Wish
from ferromq.core.requests import RETRYABLE
from ferromq.core.retry import InOrder
from ferromq.errors import FerromqError, RequestError
from ferromq.message import MessageView
from ferromq.process.limited_log import LimitedLog

_log = logging.getLogger("ferromq.client")

_LONG_POLL = 20.0


class ReceiveAhead:
    """Receives in a task of its own what fits, and renews in others what is in use."""

    def __init__(
        self,
        client: AsyncClient,
        subscription: Subscription,
        leases: Leases,
        invisible: float,
        *,
        prefetch: int | None = None,
        place: Callable[[Held], None] | None = None,
    ) -> None:
        self._client = client
        self._subscription = subscription
        self._leases = leases
        self._invisible = invisible
        self._place = place
        """Called with each message that is taken, in their order; None: they are taken by loops that keep order."""
        self._ahead = Ahead(invisible, prefetch)
        self.workers = 1
        """How many take messages, at least."""
        self._changed = asyncio.Event()
        """Of now: it is set, and another one takes its place, with every change."""
        self._more = asyncio.Event()
        self._failure: FerromqError | None = None
        self._failures = 0
        self._told = 0
        self._stopped = False
        self._hungry = 0
        """How many wait for a message."""
        self._receiving = False
        self._task: asyncio.Task[None] | None = None
        self._renewer: asyncio.Task[None] | None = None
        self._seldom = LimitedLog(_log)

    async def next(self) -> Held | None:
        """Return the next message, in use until `end`; None when it is stopped. Raises what ended receiving."""
        held = None if self._stopped else self._taken()
        if held is not None:
            return held
        told = self._told  # a failure after that is for all that wait now
        self._hungry += 1
        try:
            while not self._stopped:
                held = self._taken()
                if held is not None:
                    return held
                if self._failures > told:
                    self._told = self._failures
                    assert self._failure is not None
                    raise copy(self._failure)  # a traceback for each task
                self._start()
                self._more.set()
                await self._changed.wait()
        finally:
            self._hungry -= 1
        return None

    def _taken(self) -> Held | None:
        held = self._ahead.take(time.monotonic())
        if held is not None:
            if self._place is not None:
                self._place(held)
            self._leases.in_use[held.message] = held
        return held

    def end(self, held: Held, *, is_used: bool = True) -> None:
        """Note that a message is no longer in use; it is not renewed any more."""
        held.is_over = True
        self._leases.in_use.pop(held.message, None)
        if self._ahead.end(held, time.monotonic(), is_used=is_used) and not self._receiving and self._may_receive():
            self._more.set()

    async def take_ahead(self, count: int, until: float, invisible: float | None = None) -> list[MessageView] | None:
        """
        Return what was received ahead, after a receive under way; None: nothing was. *until* is monotonic.

        With *invisible* their leases are changed. What cannot be changed is kept as it is; raises why where it is all.
        """
        if not self._ahead.waiting and not self._receiving:
            return None
        with suppress(TimeoutError):
            async with asyncio.timeout(remaining(until)):
                while not self._ahead.waiting and self._receiving and not self._stopped:
                    await self._changed.wait()
        if not self._ahead.waiting:
            return [] if self._receiving else None
        taken = self._ahead.take_some(count, time.monotonic())
        if invisible is not None:
            taken = await self._change(taken, invisible, until + plans.LATE)
        return [held.message for held in taken] or None

    async def _change(self, taken: list[Held], invisible: float, until: float) -> list[Held]:
        kept, behind = taken, list[Held]()  # all, where it is cancelled
        try:
            failures = await self._leases.change_all([held.message for held in taken], invisible, until)
            for held in taken:
                if held.message not in failures:
                    held.renewed(time.monotonic(), invisible)
            taken, kept, behind = sort_out(taken, failures, in_order=self._is_fifo())
        finally:
            if self._stopped:
                behind = [*kept, *behind]
            else:
                self._ahead.put_back(kept)
                self._pulse()
            if behind:
                await self._leases.give_back([held.message for held in behind], until)
        if kept and not taken:
            raise failures[kept[0].message]
        return taken

    def _start(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        if self._renewer is None:
            self._renewer = asyncio.create_task(self._renew())

    def _pulse(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _is_fifo(self) -> bool:
        return bool(self._client.base.settings.subscription.fifo)

    def _may_receive(self) -> int:
        """Return how many messages to receive now."""
        if not self._is_fifo():
            return self._ahead.room(self._hungry)
        if self._ahead.waiting or not self._hungry:
            return 0  # nothing ahead: what comes depends on what is acknowledged
        return self._ahead.room(self._hungry, IN_ORDER if self.workers > 1 else 1)

    async def _run(self) -> None:
        outage = False
        with suppress(FerromqError):  # which a receive tells
            await self._client.run(plans.introduce(self._client.common, self._subscription.topic))
        while True:
            while not (room := self._may_receive()):
                self._more.clear()
                await self._more.wait()
            await self._leases.keep_pace()
            if self._is_fifo():
                # As long as they wait, what follows is not handed out.
                await self._leases.flush(time.monotonic() + self._client.common.attempt_timeout)
            wish = Wish(room, _LONG_POLL, self._invisible)
            plan = plans.receive(self._client.common, self._subscription, wish, self._leases)
            self._receiving = True
            messages: list[MessageView] = []
            try:
                messages = await self._client.run(plan)
            except RETRYABLE as error:
                if self._client.base.is_closed:
                    return
                if not outage:
                    _log.warning("no messages for now topic=%s: %s", self._subscription.topic, error)
                outage = True
            except FerromqError as error:
                self._failure = error
                self._failures += 1
                self._task = None
                return
            else:
                if outage:
                    outage = False
                    _log.info("messages again topic=%s", self._subscription.topic)
            finally:
                self._receiving = False
                self._add(messages)

    def _add(self, messages: list[MessageView]) -> None:
        if messages:
            in_order = InOrder() if self._place is None and self._is_fifo() else None
            if in_order is not None:
                self._leases.in_order = in_order
            self._ahead.add(messages, time.monotonic(), in_order)
        self._pulse()

    async def _renew(self) -> None:
        period = self._invisible / RENEWALS / 2
        giving: set[asyncio.Task[None]] = set()
        while True:
            await asyncio.sleep(period)
            renewed, given = self._ahead.aging(time.monotonic(), keep=self._is_fifo())
            if given:
                # Half of their leases is left.
                until = time.monotonic() + self._invisible / 2
                task = asyncio.create_task(self._leases.give_back(given, until))
                giving.add(task)
                task.add_done_callback(giving.discard)
            for held in renewed:
                if held.renewal is None and not held.message.is_settled:
                    held.renewal = self._leases.renewals[held.message] = asyncio.create_task(self._renew_one(held))

    async def _renew_one(self, held: Held) -> None:
        try:
            await self._leases.change(held.message, self._invisible)
        except FerromqError as error:
            # A lease that was lost is not held any longer.
            held.is_over = held.is_over or isinstance(error, RequestError)
            self._seldom.log(logging.WARNING, NOT_RENEWED, held.message.message_id, error)
        else:
            held.renewed(time.monotonic(), self._invisible)
        finally:
            held.renewal = None
            self._leases.renewals.pop(held.message, None)

    def cease(self) -> None:
        """Hand out no more messages."""
        self._stopped = True
        self._pulse()

    async def stop(self) -> list[MessageView]:
        """Receive no more, and return what waits; what is in use is still renewed."""
        self.cease()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        return self.take_all()

    def take_all(self) -> list[MessageView]:
        """Return what waits; it is held no longer."""
        return self._ahead.take_all()

    async def finish(self) -> list[Held]:
        """Renew no more, and return what is in use."""
        if self._renewer is not None:
            self._renewer.cancel()
            await asyncio.wait({self._renewer})
        in_use = list(self._ahead.in_use)
        for held in in_use:
            self._leases.in_use.pop(held.message, None)
        return in_use


class Iteration:
    """One loop over the messages; each is in use until the next one is asked for, or the loop is left."""

    def __init__(self, ahead: ReceiveAhead, leases: Leases, timeout: float) -> None:
        self._ahead = ahead
        self._leases = leases
        self._timeout = timeout
        self._held: Held | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> MessageView:
        self._end()
        while (held := await self._ahead.next()) is not None:
            if held.in_order is None or held.in_order.may_use(held.message):
                self._held = held
                return held.message
            self._ahead.end(held, is_used=False)
            await self._leases.give_back([held.message], time.monotonic() + self._timeout)
        raise StopAsyncIteration

    def _end(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            self._ahead.end(held)

    def __del__(self) -> None:
        self._end()
