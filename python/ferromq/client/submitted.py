"""What `Producer.submit` was given: threads send it in batches; the asynchronous twin is `aio._submitted`."""

import logging
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterable

from ferromq.client.client import Client
from ferromq.client.connection import remaining
from ferromq.client.receipt_future import ReceiptFuture, end_unseen
from ferromq.core import send_plans
from ferromq.core.batching import Gathered, Linger, size
from ferromq.core.requests import may_be_one
from ferromq.errors import ClientClosed
from ferromq.message import Batch, Message

_log = logging.getLogger("ferromq.client")

_SENDERS = 2
"""Threads that send what was submitted."""
_MOST_SENDERS = 8
"""As many where some wait for a broker that does not answer."""


class Submitted:
    """Gathers submitted messages on a thread of its own, and hands the batches to senders."""

    def __init__(self, client: Client, linger: float, limit: int) -> None:
        self._client = client
        self._limit = limit
        self._linger: Linger[ReceiptFuture] = Linger(linger)
        self._lock, self._of_futures = threading.Lock(), threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._ready: deque[Gathered[ReceiptFuture]] = deque()
        self._sending: list[Gathered[ReceiptFuture]] = []
        """Those under way; the next ones of the same order wait."""
        self._ending: dict[int, int] = {}
        """How many futures each thread ends just now, by its identity; callbacks run meanwhile."""
        self._idle = 0
        self._bytes = 0
        self._unfinished = 0
        self._closed = False
        self._threads: list[threading.Thread] = []
        client.before_exit(self._finish_at_exit)
        reference = weakref.WeakMethod(self._failed)
        client.common.routes.on_failed = lambda endpoint: (failed := reference()) and failed(endpoint)

    def add(self, topic: str, message: Message) -> ReceiptFuture:
        """Gather a message and return the future of its receipt; waits while too many bytes are on their way."""
        future = ReceiptFuture(self._of_futures)
        length = size(message)
        with self._lock:  # the condition's own, without its detour: this runs for each message
            if not self._threads:
                self._start()
            while self._bytes and self._bytes + length > self._limit and not self._closed:
                if threading.get_ident() in self._ending:
                    break  # a callback of a future: what it would wait for ends after it
                self._changed.wait()
            if self._closed:
                raise ClientClosed("the producer was closed meanwhile; make a new one")
            was_empty = not self._linger
            full = self._linger.add(topic, message, length, future, time.monotonic())
            self._bytes += length
            self._unfinished += 1
            if full:
                self._hand(full)
            if full or was_empty:
                self._changed.notify_all()
        return future

    def _hand(self, gathered: Iterable[Gathered[ReceiptFuture]]) -> None:
        """Give batches to the senders: the time that each has begins."""
        until = time.monotonic() + self._client.common.timeout
        for batch in gathered:
            batch.until = until
            self._ready.append(batch)

    def flush(self, until: float | None) -> bool:
        """Send at once what is gathered, and return whether all of it has ended before *until* (monotonic)."""
        with self._changed:
            # A callback of a future does not wait for itself, nor for another one that waits for it.
            in_callback = threading.get_ident() in self._ending

            def has_ended() -> bool:
                if self._linger:  # other threads go on: their messages are waited for, too
                    self._hand(self._linger.all())
                    self._changed.notify_all()
                return self._unfinished == (sum(self._ending.values()) if in_callback else 0)

            return self._changed.wait_for(has_ended, None if until is None else remaining(until))

    def _finish_at_exit(self, until: float) -> None:
        if not self.flush(until):
            _log.warning("submitted messages were not sent before the program ended count=%d", self._unfinished)

    def close(self) -> None:
        """End the threads; futures of messages that were not sent end with `ClientClosed`."""
        with self._changed:
            self._closed = True
            dropped = [*self._ready, *self._linger.all()]
            self._ready.clear()
            self._changed.notify_all()
        for batch in dropped:
            self._finish(batch, ClientClosed("the producer was closed before the message was sent"))

    def _start(self) -> None:
        for _ in range(_SENDERS):
            self._start_one()

    def _start_one(self) -> None:
        thread = threading.Thread(target=self._run, name=f"ferromq-submit-{len(self._threads)}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _failed(self, _endpoint: str) -> None:
        """Keep a thread for other brokers where one does not answer."""
        with self._changed:
            late = self._late(self._client.common.routes.failing())
            if late and not self._idle and len(self._threads) < _MOST_SENDERS and not self._closed:
                self._start_one()

    def _late(self, failing: set[str]) -> int:
        """Return how many of the batches under way are for brokers that are *failing*."""
        return sum(self._is_late(batch, failing) for batch in self._sending)

    def _is_late(self, batch: Gathered[ReceiptFuture], failing: set[str]) -> bool:
        return bool(failing) and send_plans.brokers_of(self._client.common, batch) <= failing

    def _next(self) -> Gathered[ReceiptFuture] | None:
        with self._changed:
            while True:
                self._hand(self._linger.due(time.monotonic()))
                if (batch := self._take()) is not None:
                    return batch
                if self._closed:
                    return None
                due = self._linger.next_due()
                self._idle += 1
                self._changed.wait(None if due is None else remaining(due))
                self._idle -= 1

    def _take(self) -> Gathered[ReceiptFuture] | None:
        failing, given_up = (routes := self._client.common.routes).failing(), routes.given_up()
        has_thread = self._late(failing) < len(self._threads) - 1
        busy = {batch.order for batch in self._sending} - {None}
        now = time.monotonic()
        for index, batch in enumerate(self._ready):
            if batch.order in busy:
                continue
            # A thread is left for those whose brokers answer; what only fails takes no time.
            is_over = batch.until <= now and self._is_late(batch, given_up)
            if not has_thread and not is_over and self._is_late(batch, failing):
                continue
            self._sending.append(batch)
            del self._ready[index]
            return batch
        return None

    def _run(self) -> None:
        while (batch := self._next()) is not None:
            try:
                sent = self._client.run(send_plans.send_gathered(self._client.common, batch))
            except Exception as error:  # noqa: BLE001 (whatever it is, it is the senders' to know)
                if len(batch.messages) > 1 and may_be_one(error):
                    self._again(batch)
                else:
                    self._finish(batch, error)
            else:
                self._finish(batch, sent)

    def _again(self, batch: Gathered[ReceiptFuture]) -> None:
        with self._changed:
            self._ready.extendleft(batch.apart())
            self._leave(batch)

    def _leave(self, batch: Gathered[ReceiptFuture]) -> None:
        """Let the next batch of its order go."""
        self._sending = [other for other in self._sending if other is not batch]
        self._changed.notify_all()

    def _finish(self, batch: Gathered[ReceiptFuture], outcome: Batch | Exception) -> None:
        thread = threading.get_ident()
        with self._changed:
            outer = self._ending.get(thread, 0)  # a callback closes the producer, which ends others
            self._ending[thread] = outer + len(batch.futures)
            self._changed.notify_all()
        for index, future in end_unseen(batch.futures, self._of_futures, outcome):
            try:
                if not future.set_running_or_notify_cancel():
                    continue
                if isinstance(outcome, Exception):
                    future.set_exception(outcome)
                else:
                    future.set_result(outcome.receipt(index))
            except BaseException:  # noqa: BLE001 (such as SystemExit: other messages need this thread)
                _log.exception("a callback of a submitted message failed")
        with self._changed:
            self._ending[thread] = outer
            if not outer:
                del self._ending[thread]
            self._bytes -= batch.bytes
            self._unfinished -= len(batch.futures)
            self._leave(batch)
