"""Runs the workers of `Consumer.run` as tasks; `_handling` has what they do, the synchronous twin is `client.push`."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any

from ferromq.aio._connection import AsyncClient
from ferromq.aio._handling import Handling
from ferromq.aio._leases import Leases
from ferromq.client.connection import LOOK_UP, remaining
from ferromq.client.push import GIVE_BACK
from ferromq.client.signals import stopped_by_sigterm
from ferromq.core.subscriptions import Subscription


class Runner(Handling):
    """One call of `Consumer.run`."""

    def __init__(
        self, client: AsyncClient, subscription: Subscription, leases: Leases, invisible: float, prefetch: int | None
    ) -> None:
        super().__init__(client, subscription, leases, invisible, prefetch)
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
        await self._leases.give_back(list(dict.fromkeys([*ahead, *self._unused, *waiting])), until)
