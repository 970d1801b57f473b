"""
Channels of grpc.aio that carry bytes, and the way to run a plan on an event loop.

The synchronous twin is `ferromq.client.connection`; what is sent is decided by plans.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, cast

import grpc

from ferromq import _ferromq
from ferromq._proto import messages as pb
from ferromq.aio._completions import LoopCompletions
from ferromq.client.client import Client, Options
from ferromq.client.connection import Use, check_known, failure, has_packed, open_channel, remaining
from ferromq.client.session import Session
from ferromq.core.plans import no_answer
from ferromq.core.requests import (
    PACKED,
    SERVICE,
    Arrive,
    Await,
    Begin,
    Call,
    End,
    Join,
    Packets,
    Pause,
    Plan,
    Step,
    Stream,
    T,
    decode_messages,
)
from ferromq.errors import ClientClosed, FerromqError, RequestTimeout
from ferromq.message import MessageView

if TYPE_CHECKING:
    from concurrent.futures import Future

_LATE = 1.0
"""Seconds in which a broker answers a receive that is released, and takes a new connection."""


class _GivesBack(Protocol):
    """What keeps leases on an event loop; see `Leases`."""

    async def give_back(self, messages: Sequence[MessageView], until: float) -> None:
        """End leases of messages that were not used."""


class AsyncClient:
    """A client whose calls are awaited; its session is that of the synchronous one."""

    def __init__(self, what: str, options: Options, subscription: pb.Subscription | None = None) -> None:
        self.base = Client(what, options, subscription)
        self.common = self.base.common
        self._channels: dict[str, Any] = {}
        self._methods: dict[tuple[str, str], Any] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self.on_first_use: Callable[[], None] | None = None
        """Called on the loop."""
        self._completions: LoopCompletions | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._giving: set[asyncio.Task[None]] = set()
        """Give back what was leased for receivers that wait no more."""
        self._begun: set[asyncio.Task[Any]] = set()
        """Requests whose answers are awaited later."""
        self._connecting: dict[str, asyncio.Future[bool]] = {}
        """The brokers whose connections were released, and the attempts to connect again."""
        self._use = Use()
        self._use.is_needed = self.base.channels.use.is_needed
        self.base.session.on_left = self._left

    def check(self) -> None:
        """Raise unless the client may be used here: as the synchronous one, and on the loop of its first use."""
        self.base.check()
        loop = asyncio.get_running_loop()
        if self._loop is None:
            if self.on_first_use is not None:
                self.on_first_use()
            self._loop = loop
        elif self._loop is not loop:
            raise RuntimeError("this client belongs to another event loop; make one for each loop")

    @property
    def completions(self) -> LoopCompletions:
        """What ends futures of the loop; made at the first use."""
        if self._completions is None:
            self._completions = LoopCompletions(asyncio.get_running_loop())
        return self._completions

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The loop of its first use."""
        return self._loop

    async def run(self, plan: Plan[T]) -> T:
        """Take the plan's steps and return its result."""
        try:
            step = next(plan)
            while True:
                try:
                    answer = await self._take(step)
                except FerromqError as error:
                    step = plan.throw(error)
                else:
                    step = plan.send(answer)
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            plan.close()  # one that was cancelled would end when nothing refers to it any more

    async def _take(self, step: Step) -> Any:
        if self.base.remoting is not None and isinstance(step, Call | Stream | Join):
            return await self.run(self.base.remoting.answer(step))
        match step:
            case Call() | Stream() | End():
                return await (step.begun if isinstance(step, End) else self._answer(step))
            case Begin(stream):
                return await self._begin(stream)
            case Join(endpoint, timeout, topic):
                await self._join(endpoint, timeout, topic)
            case Arrive(watched, timeout):
                return await self._arrive(watched, timeout)
            case Await(future, timeout):
                return await self._result(future, timeout)
            case Pause(duration):
                await asyncio.sleep(duration)
                self.base.check()
        return None

    async def _answer(self, step: Call | Stream) -> Any:
        try:
            return await self._call(step)
        except grpc.RpcError as error:
            raise failure(error, step.endpoint, step.method, step.timeout) from None
        except (asyncio.CancelledError, grpc.aio.UsageError) as error:
            # A channel that is closed cancels its calls, too, and refuses new ones.
            if isinstance(error, asyncio.CancelledError) and not self._was_closed():
                raise
            raise ClientClosed("the client was closed meanwhile; make a new one") from None

    async def _begin(self, stream: Stream) -> "asyncio.Task[Any]":
        """Return a task that sends the request, and has begun."""
        begun = asyncio.create_task(self._take(stream))
        self._begun.add(begun)
        begun.add_done_callback(self._ended)
        await asyncio.sleep(0)
        return begun

    def _ended(self, begun: "asyncio.Task[Any]") -> None:
        self._begun.discard(begun)
        if not begun.cancelled():
            begun.exception()  # it may have no one that awaits it

    def _was_closed(self) -> bool:
        """Say whether a call was cancelled because the client was closed, not because its task was cancelled."""
        task = asyncio.current_task()
        return self.base.is_closed and task is not None and not task.cancelling()

    async def _result(
        self,
        future: "Future[Any]",
        timeout: float,  # noqa: ASYNC109 (the step says how long)
    ) -> Any:
        # Not cancelled with its waiting: what ends it does so for a later step, too.
        done, _ = await asyncio.wait({asyncio.wrap_future(future)}, timeout=timeout)
        if not done:
            raise RequestTimeout("no answer in time")
        if future.cancelled():  # not this task: the connections ended
            raise ClientClosed("the client was closed meanwhile; make a new one")
        return done.pop().result()

    def _left(self, endpoint: str) -> None:
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._forget, endpoint)

    def _forget(self, endpoint: str) -> None:
        """Close the channel to *endpoint*; it is made anew where it is needed again."""
        channel = self._channels.pop(endpoint, None)
        for key in [key for key in self._methods if key[0] == endpoint]:
            del self._methods[key]
        if channel is not None:
            closing = asyncio.ensure_future(channel.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    async def _call(self, step: Call | Stream) -> bytes | Packets | _ferromq.Records:
        self._use.begin(step.endpoint, step.timeout)
        if self.base.channels.is_framed(step):
            answer = await self._call_framed(step)
            if answer is not None:
                return answer
        check_known(step)
        metadata = self.common.identity.metadata()
        if isinstance(step, Call):
            method = self._method(step.endpoint, step.method, "unary_unary")
            answered: bytes = await method(step.request, timeout=step.timeout, metadata=(*metadata, *step.metadata))
            return answered
        method = self._method(step.endpoint, step.method, "unary_stream")
        call = method(step.request, timeout=step.timeout, metadata=(*metadata, (PACKED, "1")))
        packets = [packet async for packet in call]
        return Packets(packets, has_packed(await call.initial_metadata()))

    async def _call_framed(self, step: Call | Stream) -> bytes | _ferromq.Records | None:
        """Return the answer; None if no connection is open."""
        connecting = self._connecting.get(step.endpoint)
        if connecting is not None:  # over HTTP/2, an answer that its receiver does not take is lost
            begin = time.monotonic()
            await asyncio.wait({connecting}, timeout=min(_LATE, step.timeout / 2))
            step = replace(step, timeout=step.timeout - (time.monotonic() - begin))
        number, future = self.completions.expect(step.timeout)
        try:
            is_started = self.base.channels.start_framed(step, self.completions.queue, number)
        except BaseException:
            self.completions.forget(number)
            raise
        if not is_started:
            self.completions.forget(number)
            self.base.channels.reopen()
            return None
        try:
            answered = await future
        except asyncio.CancelledError:
            if isinstance(step, Stream):  # nothing is leased for a receiver that waits no more
                self._release(step.endpoint)
                self._give_back_soon(step, number, future)
            raise
        answer: bytes | _ferromq.Records = self.base.channels.framed_answer(step, answered)
        return answer

    def _release(self, endpoint: str) -> None:
        """Have a broker answer receives under way at once, and connect to it again for later calls."""
        self.base.channels.release(endpoint)
        if endpoint not in self._connecting and not self.base.is_closed:
            connecting = self._connecting[endpoint] = asyncio.wrap_future(self.base.channels.reconnect(endpoint))
            connecting.add_done_callback(lambda _: self._connecting.pop(endpoint, None))

    def _give_back_soon(self, step: Stream, number: int, future: asyncio.Future[Any]) -> None:
        """Give back the messages of an answer that came when its receiver waited no more, or that is on its way."""
        if step.lease is None or self.base.is_closed:
            return
        if future.cancelled() or future.exception() is not None:
            future = self.completions.late(number, _LATE)
        giving = asyncio.create_task(self._give_back(step, future))
        self._giving.add(giving)
        giving.add_done_callback(self._giving.discard)

    async def _give_back(self, step: Stream, future: asyncio.Future[Any]) -> None:
        assert step.lease is not None
        with suppress(FerromqError):
            answer = self.base.channels.framed_answer(step, await future)
            _, messages, _ = decode_messages(answer, step.lease, step.endpoint, self.common.namespace)
            await cast("_GivesBack", step.lease).give_back(messages, time.monotonic() + self.common.attempt_timeout)

    async def _arrive(
        self,
        watched: list[tuple[str, str, bytes]],
        timeout: float,  # noqa: ASYNC109 (the step says how long)
    ) -> list[str]:
        arrivals = self.base.channels.arrivals
        number, future = self.completions.expect(timeout)
        arrivals.watch(watched, self.completions.queue, number)
        with suppress(RequestTimeout):
            await future
        return arrivals.take()

    def _method(self, endpoint: str, method: str, kind: str) -> Any:
        found = self._methods.get((endpoint, method))
        if found is None:
            self.base.check()
            channel = self._channels.get(endpoint)
            if channel is None:
                for idle in self._use.idle(self._channels):
                    self._forget(idle)
                channel = self._channels[endpoint] = open_channel(grpc.aio, endpoint, self.base.tls)
            found = self._methods[endpoint, method] = getattr(channel, kind)(SERVICE + method)
        return found

    async def _join(
        self,
        endpoint: str,
        timeout: float,  # noqa: ASYNC109 (the step says how long)
        topic: str | None,
    ) -> None:
        session = self.base.session
        assert isinstance(session, Session)
        if topic is not None:
            session.publish(topic)
        if session.is_known(endpoint):
            return
        known = asyncio.wrap_future(session.join(endpoint))
        # Shielded: others wait for the same answer.
        done, _ = await asyncio.wait({asyncio.ensure_future(asyncio.shield(known))}, timeout=timeout)
        if not done:
            raise no_answer(f"waiting for the settings of {endpoint}", timeout)
        done.pop().result()

    async def close(self, until: float) -> bool:
        """End everything before *until* (monotonic); says whether it was this call that did."""
        if self._giving:
            await asyncio.wait(self._giving, timeout=remaining(until))
        closed = await asyncio.to_thread(self.base.close, until)
        if closed:
            if self._completions is not None:
                self._completions.close()
            channels = list(self._channels.values())
            self._channels.clear()
            self._methods.clear()
            for channel in channels:
                await channel.close()
        return closed
