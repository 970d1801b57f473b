"""Runs the workers of `Consumer.run` on threads; `handling` has what they do, the asynchronous twin is `aio._push`."""

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from ferromq.client.client import Client
from ferromq.client.connection import LOOK_UP, remaining
from ferromq.client.handling import Handling
from ferromq.client.leases import Leases
from ferromq.client.signals import stopped_by_sigterm
from ferromq.core.subscriptions import Subscription

_log = logging.getLogger("ferromq.client")

GIVE_BACK = 3.0
"""Seconds for giving back, at the end, what was not handled."""


class Runner(Handling):
    """One call of `Consumer.run`."""

    def __init__(
        self, client: Client, subscription: Subscription, leases: Leases, invisible: float, prefetch: int | None
    ) -> None:
        super().__init__(client, subscription, leases, invisible, prefetch)
        self._wake: SimpleQueue[None] = SimpleQueue()
        """Ends the wait of `run`; a handler of signals may put a word here, for it waits for no lock."""
        self._ended = threading.Event()
        self._failure: BaseException | None = None
        self._workers: list[threading.Thread] = []

    def run(
        self,
        handler: Callable[[Any], object],
        threads: int,
        stop_timeout: float,
        batch: int | None = None,
        linger: float = 0.0,
    ) -> None:
        """Work until it is stopped; see `Consumer.run`."""
        self._ahead.workers = threads
        self._ahead.at_least = threads * batch if batch else 1
        work = partial(self._work, handler) if batch is None else partial(self._work_batches, handler, batch, linger)
        self._workers = [
            threading.Thread(target=self._guarded, args=(work,), name=f"ferromq-handler-{number}", daemon=True)
            for number in range(threads)
        ]
        with stopped_by_sigterm(lambda: self._wake.put(None)):
            for worker in self._workers:
                worker.start()
            try:
                # A signal that another thread receives, or that comes just before the wait, does not interrupt it.
                while not self._stopping.is_set():
                    with suppress(Empty):
                        self._wake.get(timeout=LOOK_UP)
                        break
            finally:
                self._finish(time.monotonic() + stop_timeout)
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Take no more messages; `run` returns soon."""
        self._wake.put(None)
        super().stop()

    def wait(self, until: float) -> None:
        """Wait until `run` has ended, unless a handler asks for it, at most *until* (monotonic)."""
        if threading.current_thread() not in self._workers:
            self._ended.wait(remaining(until))

    def _finish(self, until: float) -> None:
        self._stopping.set()
        unused = self._ahead.stop(until)
        for worker in self._workers:
            worker.join(remaining(until))
        busy = sum(worker.is_alive() for worker in self._workers)
        if busy:
            _log.warning("handlers still work, their messages may come again count=%d", busy)
        # Of an order whose thread ended with an exception others may wait.
        left = [held for held in self._ahead.finish() if not held.is_begun and not held.is_over]
        for held in left:
            held.leave()
        waiting = [held.message for held in left]
        unused += self._ahead.take_all() + self._unused + waiting
        until = max(until, time.monotonic() + GIVE_BACK)
        self._leases.flush(until)
        self._leases.give_back(unused, until)
        self._ended.set()

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 (raised by `run`)
            self._failure = self._failure or error
            self.stop()
