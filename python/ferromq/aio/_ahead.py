"""
Receives what fits, on an event loop; the synchronous twin is `client.receive_ahead`.

A thread renews what is in use, and gives back what waits too long: a handler that blocks the loop prevents neither.
"""

import asyncio
import logging
import math
import threading
import time
import weakref
from collections.abc import Awaitable, Callable
from contextlib import suppress
from copy import copy
from typing import Generic, Self

from ferromq.aio._connection import AsyncClient
from ferromq.aio._leases import Leases
from ferromq.client.connection import remaining
from ferromq.client.renewing import Aging, Renewer
from ferromq.core import receive_plans
from ferromq.core.ahead import Ahead, Held, sort_out, take_alike, to_receive
from ferromq.core.payloads import M
from ferromq.core.progress import Ending
from ferromq.core.receive_plans import LONG_POLL, Wish
from ferromq.core.requests import RETRYABLE
from ferromq.core.retry import InOrder
from ferromq.core.subscriptions import Subscription
from ferromq.core.watch import Watch, receiving
from ferromq.errors import FerromqError
from ferromq.message import MessageView

_log = logging.getLogger("ferromq.client")


class ReceiveAhead:
    """Receives in a task of its own what fits, and renews on a thread what is in use."""

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
        self._ahead = Ahead(invisible, prefetch, leases.in_use)
        # The thread that renews looks into it, too. Reentrant: the garbage collector may end an abandoned loop.
        self._lock = threading.RLock()
        self.workers = 1
        """How many take messages, at least."""
        self.at_least = 1
        """How many messages the workers take together for their batches."""
        self._changed = asyncio.Event()
        """Of now: it is set, and another one takes its place, with every change."""
        self._more = asyncio.Event()
        self._failure: Exception | None = None
        self._failures = 0
        self._told = 0
        self._stopped = False
        self._paused = False
        self._resumed = -math.inf
        self._is_cut = False
        """Whether `pause` cancelled the receive under way."""
        self._giving: set[asyncio.Task[None]] = set()
        """What gives back."""
        self._task: asyncio.Task[None] | None = None
        # It ends with its consumer, and with the loop, also where neither is closed.
        aging = weakref.WeakMethod(self._aging)
        self._renewer = Renewer(leases.calls, invisible, lambda: (age := aging()) and age(), leases.renewals)

    def messages(self, ending: Ending | None = None) -> "Iteration":
        """Return a loop over the messages; *ending* says when it ends."""
        return Iteration(self, self._leases, self._client, ending)

    async def next(self, until: float = math.inf, *, unless_paused: bool = False) -> Held | None:
        """
        Return the next message, in use until `end`; None when it is stopped, or at *until* (monotonic).

        A pause is waited for, or ends the wait (*unless_paused*). Raises what ended receiving.
        """
        held = None if self._stopped else self._taken()
        if held is not None:
            return held
        told = self._told  # a failure after that is for all that wait now
        self._ahead.hungry += 1
        try:
            while not self._stopped and not (unless_paused and self._paused) and (left := remaining(until)):
                held = self._taken()
                if held is not None:
                    return held
                if self._failures > told:
                    self._told = self._failures
                    assert self._failure is not None
                    raise copy(self._failure)  # a traceback for each task
                self._start()
                self._more.set()
                with suppress(TimeoutError):
                    async with asyncio.timeout(None if left == math.inf else left):
                        await self._changed.wait()
        finally:
            self._ahead.hungry -= 1
        return None

    def next_alike(self, order: str) -> Held | None:
        """Return the next message of an order, as `next`, if one was received ahead."""
        if self._stopped:
            return None
        with self._lock:
            return self._placed(take_alike(self._ahead, order, time.monotonic()))

    def _taken(self) -> Held | None:
        with self._lock:
            return self._placed(self._ahead.take(time.monotonic()))

    def _placed(self, held: Held | None) -> Held | None:
        if held is not None and self._place is not None:
            self._place(held)
        return held

    def end(self, held: Held, *, is_used: bool = True) -> None:
        """Note that a message is no longer in use; it is not renewed any more."""
        held.is_over = True
        with self._lock:
            is_time = self._ahead.end(held, time.monotonic(), is_used=is_used)
        if is_time and not self._ahead.is_receiving and self._may_receive():
            self._more.set()

    @property
    def has_messages(self) -> bool:
        """Whether messages were received ahead, or are being received."""
        return self._ahead.count > 0 or self._ahead.is_receiving

    async def take_ahead(self, count: int, until: float, invisible: float | None = None) -> list[MessageView] | None:
        """
        Return what was received ahead, after a receive under way; None: nothing was. *until* is monotonic.

        With *invisible* their leases are changed. What cannot be changed is kept as it is; raises why where it is all.
        """
        if not self._ahead.count and not self._ahead.is_receiving:
            return None
        with suppress(TimeoutError):
            async with asyncio.timeout(remaining(until)):
                while not self._ahead.count and self._ahead.is_receiving and not self._stopped:
                    await self._changed.wait()
        if not self._ahead.count:
            return [] if self._ahead.is_receiving else None
        with self._lock:
            taken = self._ahead.take_some(count, time.monotonic())
        if invisible is not None:
            taken = await self._change(taken, invisible, until + receive_plans.LATE)
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
            if self._stopped or self._paused:
                behind = [*kept, *behind]
            else:
                with self._lock:
                    self._ahead.put_back(kept)
                self._pulse()
            if behind:
                await self._leases.give_back([held.message for held in behind], until)
        if kept and not taken:
            raise failures[kept[0].message]
        return taken

    @property
    def is_here(self) -> bool:
        """Whether this process made the consumer."""
        return self._client.base.is_here

    def _start(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        self._renewer.start()

    def _pulse(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _is_fifo(self) -> bool:
        return bool(self._client.base.settings.subscription.fifo)

    def _may_receive(self) -> int:
        """Return how many messages to receive now."""
        if self._paused:
            return 0
        in_order, can_be_ended = self._is_fifo(), self._client.base.remoting is None
        return to_receive(
            self._ahead, self._ahead.hungry, self.workers, self.at_least, in_order=in_order, can_be_ended=can_be_ended
        )

    async def _run(self) -> None:
        outage = await self._introduce()
        while True:
            while not (room := self._may_receive()):
                self._more.clear()
                await self._more.wait()
            await self._leases.keep_pace()
            if self._is_fifo():
                # As long as they wait, what follows is not handed out.
                await self._leases.flush(time.monotonic() + self._client.common.attempt_timeout)
            messages: list[MessageView] = []
            try:
                messages = await self._receive(room)
            except RETRYABLE as error:
                if self._client.base.is_closed:
                    return
                if not outage:
                    self._say_outage(error)
                outage = True
            except Exception as error:  # noqa: BLE001 (whatever it is, those that wait for messages get it)
                self._failure = error
                self._failures += 1
                self._task = None
                return
            else:
                if outage and not self._paused:
                    outage = False
                    _log.info("messages again topic=%s", self._subscription.topics)
            finally:
                self._add(messages)

    async def _introduce(self) -> bool:
        """Make the client known to a broker, and return whether none answers."""
        plan = receive_plans.introduce(self._client.common, self._subscription.first_topic)
        try:
            await self._client.run(plan)
        except RETRYABLE as error:
            self._say_outage(error)
            return True
        except FerromqError:
            pass  # which a receive tells
        return False

    def _say_outage(self, error: Exception) -> None:
        if not self._stopped and not self._client.base.is_closed:
            _log.warning("no messages for now topic=%s: %s", self._subscription.topics, error)

    async def _receive(self, room: int) -> list[MessageView]:
        """Receive messages; none where a pause ends it."""
        wish = Wish(room, LONG_POLL, self._invisible)
        self._ahead.is_receiving = True
        try:
            return await self._client.run(
                receive_plans.receive(self._client.common, self._subscription, wish, self._leases)
            )
        except asyncio.CancelledError:  # the end of the consumer is a cancellation of its own
            if not self._is_cut or self._task is None or self._task.uncancel():
                raise
            return []
        finally:
            self._ahead.is_receiving = self._is_cut = False

    def _add(self, messages: list[MessageView]) -> None:
        if messages and self._paused:
            self._give_back_soon(messages)
        elif messages:
            in_order = InOrder() if self._place is None and self._is_fifo() else None
            if in_order is not None:
                self._leases.keep_order(in_order)
            with self._lock:
                self._ahead.add(messages, time.monotonic(), in_order)
        self._pulse()

    def pause(self) -> None:
        """Hand out and receive nothing until `resume`; end the receive under way, and begin to give back what waits."""
        if self._paused or self._stopped:
            return
        self._paused = True
        if self._ahead.is_receiving and self._task is not None and not self._is_cut:
            self._is_cut = True
            self._task.cancel()
        self._give_back_soon(self.take_all())
        self._pulse()

    def resume(self) -> None:
        """Go on after `pause`."""
        if self._paused:
            self._paused, self._resumed = False, time.monotonic()
            self._pulse()

    def paused_until(self, now: float) -> float:
        """Return the end of the last pause, *now* if it lasts."""
        return now if self._paused else self._resumed

    @property
    def is_paused(self) -> bool:
        """Whether it hands out nothing until `resume`."""
        return self._paused

    async def rest(self, duration: float) -> None:
        """Wait so many seconds, or until it is paused or stopped."""
        until = time.monotonic() + duration
        while not self._stopped and not self._paused and (left := remaining(until)):
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._changed.wait()

    def _give_back_soon(self, messages: list[MessageView]) -> None:
        if messages:
            until = time.monotonic() + self._client.common.attempt_timeout
            giving = asyncio.create_task(self._leases.give_back(messages, until))
            self._giving.add(giving)
            giving.add_done_callback(self._giving.discard)

    def _aging(self) -> Aging | None:
        loop = self._client.loop
        if loop is None or loop.is_closed():
            return None
        with self._lock:
            return self._ahead.aging(time.monotonic(), keep=self._is_fifo())

    @property
    def is_stopped(self) -> bool:
        """Whether it hands out no more messages."""
        return self._stopped

    def cease(self) -> None:
        """Hand out no more messages."""
        self._stopped = True
        self._pulse()

    async def stop(self, until: float) -> list[MessageView]:
        """Receive no more, and return what waits; what is in use is still renewed. *until* is monotonic."""
        self.cease()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        if self._giving:
            await asyncio.wait(self._giving, timeout=remaining(until))
        return self.take_all()

    def take_all(self) -> list[MessageView]:
        """Return what waits; it is held no longer."""
        with self._lock:
            return self._ahead.take_all()

    async def finish(self) -> list[Held]:
        """Renew no more, and return what is in use."""
        self._renewer.stop()
        with self._lock:
            return self._ahead.finish()


class Iteration:
    """One loop over the messages; each is in use until the next one is asked for, or the loop is left."""

    def __init__(self, ahead: ReceiveAhead, leases: Leases, client: AsyncClient, ending: Ending | None = None) -> None:
        self._ahead = ahead
        self._leases = leases
        self._client = client
        self._timeout = client.common.attempt_timeout
        self._ending = ending
        self._is_begun = ending is None
        self._held: Held | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> MessageView:
        before = self._held
        self._end()
        if not self._is_begun and self._ending is not None:
            await self._client.run(self._ending.begin(self._client.common))
            self._is_begun = True
        while (held := await self._next(before)) is not None:
            if held.in_order is None or held.in_order.may_use(held.message):
                self._held = held
                return held.message
            self._ahead.end(held, is_used=False)
            await self._leases.give_back([held.message], time.monotonic() + self._timeout)
        raise StopAsyncIteration

    async def _next(self, before: Held | None) -> Held | None:
        """Return the next message; None when it is stopped, or at the end."""
        ending = self._ending
        if ending is None:
            return await self._ahead.next()
        ending.waits(time.monotonic(), None if before is None else before.message)
        while True:
            held = await self._ahead.next(ending.wakes())
            now = time.monotonic()
            if held is None:
                ending.rests(self._ahead.paused_until(now))
                if self._ahead.is_stopped or ending.is_idle(now):
                    return None
                if ending.must_look(now) and await self._is_over_at(ending):
                    return None
            elif not ending.waits_in_vain(held.message, now, self._ahead.paused_until) and not (
                ending.may_be_over(self._client.common, held.message) and await self._is_over_at(ending)
            ):
                return held
            else:
                self._ahead.end(held, is_used=False)
                await self._leases.give_back([held.message], time.monotonic() + self._timeout)
                return None

    async def _is_over_at(self, ending: Ending) -> bool:
        await self._leases.flush(time.monotonic() + self._timeout)
        try:
            return await self._client.run(ending.look(self._client.common))
        except RETRYABLE:
            return False  # receiving logs the outage

    def _end(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            self._ahead.end(held)

    def __del__(self) -> None:
        # In a child that a fork made, a thread that is not there may hold the lock.
        if self._ahead.is_here:
            self._end()


def values(
    messages: Iteration,
    hand_out: Callable[[MessageView], Awaitable[M | None]],
    watch: Watch | None,
    topics: str,
) -> "Values[M]":
    """Return the messages of a loop as *hand_out* makes them, and tell a telemetry."""
    return Values(messages, hand_out, watch, topics)


class Values(Generic[M]):
    """The messages of a loop that are decoded, or told to a telemetry."""

    def __init__(
        self,
        messages: Iteration,
        hand_out: Callable[[MessageView], Awaitable[M | None]],
        watch: Watch | None,
        topics: str,
    ) -> None:
        self._messages = messages
        self._hand_out = hand_out
        self._watch = watch
        self._topics = topics

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> M:
        while True:
            with receiving(self._watch, self._topics) as received:
                received.append(await anext(self._messages))
            given = await self._hand_out(received[0])
            if given is not None:
                return given
