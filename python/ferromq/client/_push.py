"""
Calls a handler with each message, on threads, and does what its outcome asks for.

What becomes of a message that failed is decided in `_retry`; the asynchronous twin is `aio._push`.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from ferromq.client._client import Client
from ferromq.client._connection import LOOK_UP, remaining
from ferromq.client._handlers import check_result
from ferromq.client._holding import Leases, ReceiveAhead
from ferromq.client._plans import Subscription
from ferromq.client._retry import Retry, order_of
from ferromq.errors import FerromqError
from ferromq.message import MessageView

_log = logging.getLogger("ferromq.client")

RENEWALS = 3
"""How often a lease is renewed within its length."""


@dataclass(slots=True, eq=False)
class Held:
    """A message that is handled or waits for it, and when its lease was last made longer (monotonic)."""

    message: MessageView
    renewed: float
    order: str | None = None
    """What it shares with those it waits for; None: nothing. Decided once: the group may be another meanwhile."""
    received: float = 0.0
    """When it came (monotonic)."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    is_begun: bool = False
    is_over: bool = False
    comes_again: bool = False
    """The broker was not told its end: what is behind it must not go before it."""

    @classmethod
    def of(cls, message: MessageView, retry: Retry, received: float) -> "Held":
        """Return a message that was taken just now, and received before."""
        return cls(message, time.monotonic(), order_of(message) if retry.is_fifo else None, received)


class Orders:
    """
    Which messages wait for one of their order that is under way. Not thread-safe.

    There are no more of an order than the broker hands out before the first is acknowledged.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, deque[Held]] = {}
        # When one of the order ended that comes again.
        self._broken: dict[str, float] = {}

    def is_behind(self, held: Held) -> bool:
        """Say whether one that comes again goes before a message, which was received before that was known."""
        if not self._broken:
            return False
        # What was received later came as it should, and so does what comes after it.
        self._broken = {order: at for order, at in self._broken.items() if at >= held.received}
        return held.order in self._broken

    def may_begin(self, held: Held) -> bool:
        """Say whether a message may begin; otherwise it waits here."""
        if held.order is None:
            return True
        waiting = self._waiting.setdefault(held.order, deque())
        waiting.append(held)
        return len(waiting) == 1

    def after(self, held: Held) -> Held | None:
        """Return what may begin now that *held* has ended."""
        if held.order is None:
            return None
        waiting = self._waiting[held.order]
        waiting.popleft()
        if waiting:
            return waiting[0]
        del self._waiting[held.order]
        return None

    def behind(self, held: Held) -> list[Held]:
        """End the order of *held*, and return what waited behind it."""
        if held.order is None:
            return []
        self._broken[held.order] = time.monotonic()
        return [each for each in self._waiting.pop(held.order) if each is not held]


class Runner:
    """One call of `Consumer.run`."""

    def __init__(self, client: Client, subscription: Subscription, leases: Leases, invisible: float) -> None:
        self._client = client
        self._leases = leases
        self._invisible = invisible
        self._ahead = ReceiveAhead(client, subscription, leases, invisible, keeps_order=False)
        self._messages = self._ahead.messages()
        self._taking = threading.Lock()
        self._lock = threading.Lock()
        self._orders = Orders()
        self._held: set[Held] = set()
        self._unused: list[MessageView] = []
        self._stopping = threading.Event()
        self._ended = threading.Event()
        self._failure: BaseException | None = None
        self._workers: list[threading.Thread] = []

    def run(self, handler: Callable[[MessageView], object], threads: int, stop_timeout: float) -> None:
        """Work until it is stopped; see `Consumer.run`."""
        self._workers = [
            threading.Thread(target=self._work, args=(handler,), name=f"ferromq-handler-{number}", daemon=True)
            for number in range(threads)
        ]
        for worker in self._workers:
            worker.start()
        threading.Thread(target=self._renew, name="ferromq-renew", daemon=True).start()
        try:
            # A signal that another thread receives, or that comes just before the wait, does not interrupt it.
            while not self._stopping.wait(LOOK_UP):
                pass
        finally:
            self._finish(time.monotonic() + stop_timeout)
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Take no more messages; `run` returns soon."""
        self._stopping.set()

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
        with self._taking:
            self._messages.close()  # puts back what it was at
        # Of an order whose thread ended with an exception others may wait.
        waiting = [held.message for held in self._held if not held.is_begun and not held.is_over]
        unused += self._ahead.stop(until) + self._unused + waiting
        self._leases.flush(until)
        self._leases.give_back(unused, until)
        self._ended.set()

    def _work(self, handler: Callable[[MessageView], object]) -> None:
        try:
            while (held := self._take()) is not None:
                while held is not None:
                    self._handle(handler, held)
                    held = self._after(held)
        except BaseException as error:  # noqa: BLE001 (raised by `run`)
            self._failure = self._failure or error
            self._stopping.set()

    def _take(self) -> Held | None:
        """Return the next message whose order is free, None when it is over."""
        while True:
            with self._taking:
                if self._stopping.is_set():
                    return None
                message = next(self._messages, None)
                if message is None:
                    self._stopping.set()
                    return None
                held = Held.of(message, self._retry(), self._ahead.received)
                with self._lock:
                    is_behind = self._orders.is_behind(held)
                    if not is_behind:
                        self._held.add(held)
                        if self._orders.may_begin(held):
                            return held
            if is_behind:
                self._give_back([message])

    def _after(self, held: Held) -> Held | None:
        """Return the next message of the order, None where there is none or no order."""
        with self._lock:
            self._held.discard(held)
            if not held.comes_again:
                return self._orders.after(held)
            behind = self._orders.behind(held)
        for each in behind:
            with each.lock:
                each.is_over = True
        self._give_back([each.message for each in behind])
        with self._lock:
            self._held.difference_update(behind)
        return None

    def _give_back(self, messages: list[MessageView]) -> None:
        self._leases.give_back(messages, time.monotonic() + self._client.common.timeout)

    def _retry(self) -> Retry:
        return Retry.of(self._client.settings)

    def _handle(self, handler: Callable[[MessageView], object], held: Held) -> None:
        message, retry = held.message, self._retry()
        attempt = message.delivery_attempt
        held.is_begun = True
        while not self._stopping.is_set():
            try:
                result = handler(message)
            except Exception:  # noqa: BLE001 (whatever it is, the message was not handled)
                if message.is_settled:
                    say_failed_after_end(message)
                    self._end(held, partial(self._leases.ack, [message]))
                    return
                delay = retry.after(attempt)
                say_failed(message, attempt, delay)
            except BaseException:
                self._unused.append(message)
                raise
            else:
                self._check_result(handler, message, result)
                # In order the next one begins when the broker knows of this one.
                self._end(held, message.ack if held.order is None else partial(self._leases.ack, [message]))
                return
            if delay is None:
                self._end(held, partial(self._leases.forward_to_dead_letter, message))
                return
            if held.order is None:
                self._end(held, partial(self._leases.change_invisible_duration, message, delay))
                return
            attempt += 1
            self._stopping.wait(delay)
        with held.lock:
            held.is_over = True
        self._unused.append(message)

    def _check_result(self, handler: Callable[[MessageView], object], message: MessageView, result: object) -> None:
        try:
            check_result(handler, result)
        except TypeError:
            self._unused.append(message)
            raise

    def _end(self, held: Held, end: Callable[[], object]) -> None:
        """End a lease, while it is not made longer."""
        with held.lock:
            held.is_over = True
            try:
                end()
            except FerromqError as error:
                held.comes_again = True
                _log.warning("a message comes again message_id=%s: %s", held.message.message_id, error)

    def _renew(self) -> None:
        period = self._invisible / RENEWALS
        while not self._ended.wait(period / 2):
            with self._lock:
                old = [held for held in self._held if time.monotonic() - held.renewed >= period]
            for held in old:
                with held.lock:
                    if held.is_over or self._ended.is_set():
                        continue
                    held.renewed = time.monotonic()
                    try:
                        self._leases.change_invisible_duration(held.message, self._invisible)
                    except FerromqError as error:
                        _log.warning("lease not renewed message_id=%s: %s", held.message.message_id, error)


def say_failed(message: MessageView, attempt: int, delay: float | None) -> None:
    """Log what a handler raised, and what becomes of the message; called while it is handled."""
    then = "it goes to the dead letter queue" if delay is None else f"it comes again after {delay:g} s"
    _log.warning("handler failed message_id=%s attempt=%d, %s", message.message_id, attempt, then, exc_info=True)


def say_failed_after_end(message: MessageView) -> None:
    """Log what a handler raised that had acknowledged or forwarded its message."""
    _log.warning("handler failed after it ended its message message_id=%s", message.message_id, exc_info=True)
