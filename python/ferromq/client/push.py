"""
Calls a handler with each message, on threads, and does what its outcome asks for.

What becomes of a message that failed is decided in `core.retry`; the asynchronous twin is `aio._push`.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from itertools import islice
from queue import Empty, SimpleQueue
from typing import Any

from ferromq.client.client import Client
from ferromq.client.connection import LOOK_UP, remaining
from ferromq.client.leases import Leases
from ferromq.client.receive_ahead import ReceiveAhead
from ferromq.client.signals import stopped_by_sigterm
from ferromq.core.ahead import Held
from ferromq.core.batches import failures_of, sort_batch
from ferromq.core.handlers import UnusableResult, check_result
from ferromq.core.retry import Retry, Verdict, order_of
from ferromq.core.subscriptions import Subscription
from ferromq.errors import FerromqError, Reject, RequesterGone, RetryAfter
from ferromq.message import MessageView
from ferromq.process.limited_log import LimitedLog

_log = logging.getLogger("ferromq.client")

GIVE_BACK = 3.0
"""Seconds for giving back, at the end, what was not handled."""


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

    def first(self, held: Held, count: int) -> list[Held]:
        """Return up to *count* messages of an order whose first one, *held*, may begin; they follow each other."""
        return [held] if held.order is None else list(islice(self._waiting[held.order], count))

    def behind(self, held: Held) -> list[Held]:
        """End the order of *held*, and return what waited behind it."""
        if held.order is None:
            return []
        self._broken[held.order] = time.monotonic()
        return [each for each in self._waiting.pop(held.order) if each is not held]


class Runner:
    """One call of `Consumer.run`."""

    def __init__(
        self, client: Client, subscription: Subscription, leases: Leases, invisible: float, prefetch: int | None
    ) -> None:
        self._client = client
        self._leases = leases
        self._ahead = ReceiveAhead(client, subscription, leases, invisible, prefetch=prefetch, place=self._place)
        self._lock = threading.Lock()
        self._orders = Orders()
        self._unused: list[MessageView] = []
        self._seldom = LimitedLog(_log)
        self._stopping = threading.Event()
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
        self._stopping.set()
        self._wake.put(None)
        self._ahead.cease()

    def pause(self) -> None:
        """Hand out no messages until `resume`."""
        self._ahead.pause()

    def resume(self) -> None:
        """Go on after `pause`."""
        self._ahead.resume()

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

    def _work(self, handler: Callable[[MessageView], object]) -> None:
        while (held := self._take()) is not None:
            following: Held | None = held
            while following is not None and not self._is_returned([following]):
                self._handle(handler, following)
                following = self._after(following)

    def _work_batches(self, handler: Callable[[list[MessageView]], object], count: int, linger: float) -> None:
        while (held := self._take()) is not None:
            following: Held | None = held
            while following is not None:
                batch = self._fill(following, count, linger)
                if self._stopping.is_set():
                    return
                if self._is_returned(batch):
                    break
                following = self._handle_batch(handler, batch)

    def _fill(self, first: Held, count: int, linger: float) -> list[Held]:
        """Return a batch that begins with *first*; in order it has messages of one order, and waits for none."""
        batch, until = [first], time.monotonic() + linger
        while len(batch) < count:
            if first.order is None:
                held = self._ahead.next(until=until, unless_paused=True)
            else:
                held = self._ahead.next_alike(first.order)
            if held is None:
                break
            if held.is_behind:
                self._ahead.end(held, is_used=False)
                self._give_back([held.message])
            else:
                batch.append(held)
        with self._lock:  # in order there may be others, which another thread took
            return batch if first.order is None else self._orders.first(first, count)

    def _place(self, held: Held) -> None:
        """Decide whether a message that is taken may begin, in the order in which messages are taken."""
        held.order = order_of(held.message) if self._retry().is_fifo else None
        with self._lock:
            held.is_behind = self._orders.is_behind(held)
            held.may_begin = not held.is_behind and self._orders.may_begin(held)

    def _take(self) -> Held | None:
        """Return the next message whose order is free, None when it is over."""
        while not self._stopping.is_set():
            held = self._ahead.next()
            if held is None:
                self.stop()
                return None
            if held.may_begin:
                return held
            if held.is_behind:
                self._ahead.end(held, is_used=False)
                self._give_back([held.message])
        return None

    def _after(self, held: Held) -> Held | None:
        """Return the next message of the order, None where there is none or no order."""
        with self._lock:
            following = None if held.comes_again else self._orders.after(held)
            behind = self._orders.behind(held) if held.comes_again else []
        self._ahead.end(held)
        for each in behind:
            self._ahead.end(each, is_used=False)
        self._give_back([each.message for each in behind if not each.message.is_settled])
        return following

    def _is_returned(self, batch: list[Held]) -> bool:
        """Give back what is to be handled next, and what waits behind it, if it is paused; return whether it is."""
        is_paused = self._ahead.is_paused
        if is_paused:
            self._return_all(batch)
        return is_paused

    def _return_all(self, batch: list[Held]) -> None:
        some = batch if batch[0].order is None else batch[:1]
        self._return(some)
        for held in some:
            self._after(held)

    def _return(self, some: list[Held]) -> None:
        for held in some:
            held.leave()
            held.comes_again = True
        self._ahead.wait_for_receive()
        self._give_back([held.message for held in some])

    def _give_back(self, messages: list[MessageView]) -> None:
        self._leases.give_back(messages, time.monotonic() + self._client.common.attempt_timeout)

    def _retry(self) -> Retry:
        return Retry.of(self._client.settings)

    def _handle(self, handler: Callable[[MessageView], object], held: Held) -> None:
        message, retry = held.message, self._retry()
        attempt = message.delivery_attempt
        held.is_begun = True
        while not self._stopping.is_set():
            try:
                result = handler(message)
            except RequesterGone as error:
                say_requester_gone(message, error)
                self._end(held, partial(self._leases.ack, [message]))
                return
            except Exception as error:  # noqa: BLE001 (whatever it is, the message was not handled)
                if message.is_settled:
                    say_failed_after_end(message)
                    self._end(held, partial(self._leases.ack, [message]))
                    return
                verdict = Verdict.of(error, retry, attempt)
                say_failed(message, attempt, verdict, error)
            except BaseException:
                self._unused.append(message)
                raise
            else:
                self._check_result(handler, message, result)
                # In order the next one begins when the broker knows of this one.
                self._end(held, message.ack if held.order is None else partial(self._leases.ack, [message]))
                return
            if verdict.delay is None:
                self._end(held, partial(self._leases.forward_to_dead_letter, message, verdict.cause))
                return
            if held.order is None:
                self._end(held, partial(self._leases.change_invisible_duration, message, verdict.delay))
                return
            attempt += 1
            self._ahead.rest(verdict.delay)
            if self._ahead.is_paused:
                self._return([held])
                return
        held.leave()
        self._unused.append(message)

    def _handle_batch(self, handler: Callable[[list[MessageView]], object], batch: list[Held]) -> Held | None:
        """Call the handler until each message has its end, and return the next message of their order."""
        in_order, following = batch[0].order is not None, None
        attempts = {held: held.message.delivery_attempt for held in batch}
        for held in batch:
            held.is_begun = True
        left = batch
        while left and not self._stopping.is_set() and not self._ahead.is_paused:
            done, failed, left = sort_batch(left, self._call(handler, left), in_order=in_order)
            self._end_handled(done, in_order=in_order)
            delay, told = 0.0, None
            for held, cause in failed:
                verdict = Verdict.of(cause, self._retry(), attempts[held])
                say_failed(held.message, attempts[held], verdict, None if cause is told else cause)
                told = cause
                if held.message.is_settled:
                    self._end(held, partial(self._leases.ack, [held.message]))
                elif verdict.delay is None:
                    self._end(held, partial(self._leases.forward_to_dead_letter, held.message, verdict.cause))
                elif not in_order:
                    self._end(held, partial(self._leases.change_invisible_duration, held.message, verdict.delay))
                else:
                    attempts[held] += 1
                    left, delay = [held, *left], verdict.delay
                    continue
                done.append(held)
            for held in done:
                following = self._after(held)
                if held.comes_again and in_order:  # what follows it was given back
                    return None
            self._ahead.rest(delay)
        self._leave(left)
        return None if left else following

    def _leave(self, left: list[Held]) -> None:
        """Leave messages that are not handed out once more, because of the end or a pause."""
        if left and not self._stopping.is_set():
            self._return_all(left)
            return
        for held in left:
            held.leave()
            self._unused.append(held.message)

    def _call(
        self, handler: Callable[[list[MessageView]], object], batch: list[Held]
    ) -> Mapping[MessageView, Exception]:
        """Call the handler with a batch, and return what failed; the messages are given back if that ends `run`."""
        messages, error = [held.message for held in batch], None
        try:
            try:
                check_result(handler, handler(list(messages)))
            except UnusableResult:
                raise
            except Exception as raised:  # noqa: BLE001 (whatever it is, the messages were not handled)
                error = raised
            return failures_of(error, batch)
        except BaseException:
            for held in batch:
                held.leave()
            self._unused += messages
            raise

    def _end_handled(self, done: list[Held], *, in_order: bool) -> None:
        """Acknowledge messages; in order the next batch begins when the broker knows of these."""
        if not in_order:
            for held in done:
                self._end(held, held.message.ack)
            return
        for held in done:
            held.leave()
        try:
            self._leases.ack([held.message for held in done])
        except FerromqError as error:
            for held in done:
                held.comes_again = not held.message.is_settled
            self._seldom.log(logging.WARNING, "messages of a batch are redelivered: %s", error)

    def _check_result(self, handler: Callable[[MessageView], object], message: MessageView, result: object) -> None:
        try:
            check_result(handler, result)
        except TypeError:
            self._unused.append(message)
            raise

    def _end(self, held: Held, end: Callable[[], object]) -> None:
        """End a lease, which is not renewed any more."""
        held.leave()
        try:
            end()
        except FerromqError as error:
            held.comes_again = True
            self._seldom.log(
                logging.WARNING, "message is redelivered message_id=%s: %s", held.message.message_id, error
            )


def say_failed(message: MessageView, attempt: int, verdict: Verdict, error: Exception | None) -> None:
    """Log what a handler raised, and what becomes of the message; *error*: has the traceback, if it was not logged."""
    delay = verdict.delay
    then = "it goes to the dead letter queue" if delay is None else f"it is redelivered after {delay:g} s"
    _log.warning(
        "handler failed topic=%s message_id=%s attempt=%d, %s: %s",
        message.topic,
        message.message_id,
        attempt,
        then,
        verdict.cause.reason or verdict.cause.exception,
        exc_info=None if verdict.is_planned else error,
    )


def say_undecodable(message: MessageView, error: Reject | RetryAfter) -> None:
    """Log what becomes of a message that a loop or a receive does not get, because its body does not decode."""
    then = (
        f"it is redelivered after {error.seconds:g} s" if isinstance(error, RetryAfter) else "it is a dead letter now"
    )
    _log.warning("body not decoded topic=%s message_id=%s, %s: %s", message.topic, message.message_id, then, error)


def say_redelivered(message: MessageView, error: FerromqError) -> None:
    """Log why such a message stays in its queue: the broker could not be told."""
    _log.warning("message is redelivered message_id=%s: %s", message.message_id, error)


def say_requester_gone(message: MessageView, error: RequesterGone) -> None:
    """Log that nothing takes a reply: another attempt at the request would be as useless."""
    _log.warning("reply dropped topic=%s message_id=%s: %s", message.topic, message.message_id, error)


def say_failed_after_end(message: MessageView) -> None:
    """Log what a handler raised that had acknowledged or forwarded its message."""
    _log.warning("handler failed after it ended its message message_id=%s", message.message_id, exc_info=True)
