"""
The producer: sends messages one by one, many at once, or gathered in the background.

Batching is decided in `_batching`, retries and routes in `_plans`.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from types import TracebackType
from typing import Self

from ferromq import _names
from ferromq.client import _plans
from ferromq.client._batching import IN_FLIGHT, Gathered, Linger, Sendable, batches, size
from ferromq.client._client import Client
from ferromq.client._connection import remaining
from ferromq.client._protocol import may_be_one, seconds
from ferromq.errors import ConnectionFailed, FerromqError
from ferromq.message import Batch, Message, SendReceipt, SendSummary

__all__ = ["Producer"]

_log = logging.getLogger("ferromq.client")


def make_message(
    body: Sendable, keys: str | Iterable[str] | None, tag: str | None, properties: Mapping[str, str] | None
) -> Message:
    """Return a message; one that is given as such is taken as it is."""
    if isinstance(body, Message):
        if keys is not None or tag is not None or properties is not None:
            raise TypeError("a Message brings its own keys, tag and properties")
        return body
    return Message(body, keys=keys, tag=tag, properties=properties)


def note_stored(error: BaseException, count: int) -> None:
    """Say what became of the others."""
    error.add_note(f"{count} messages of the same call are stored")


class Producer:
    """
    Sends messages to topics; thread-safe. Use it in a `with`, or call `close`.

    *endpoint* is the gRPC address of a broker, `host:port`, or several joined by `;`. Nothing is connected before the
    first message. Every request has *timeout* seconds, and is repeated with the same message id until it has failed
    *attempts* times and *timeout* has passed, on another broker where there is one: a broker that restarts within
    *timeout* is waited for. *attempts* of 1 means no repetition. *linger* is how long `submit` waits for company;
    *max_pending_bytes* is how much it keeps before it makes its caller wait.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        timeout: timedelta | float = 3.0,
        attempts: int = 3,
        linger: timedelta | float = timedelta(milliseconds=5),
        max_pending_bytes: int = 64 << 20,
    ) -> None:
        self._client = Client("producer", endpoint, timeout=seconds(timeout), attempts=attempts)
        self._submitted = _Submitted(self._client, seconds(linger), max_pending_bytes)

    def send(
        self,
        topic: str,
        body: Sendable,
        *,
        keys: str | Iterable[str] | None = None,
        tag: str | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> SendReceipt:
        """Send one message and return once the broker has stored it, as durably as it promises."""
        self._client.check()
        message = make_message(body, keys, tag, properties)
        batch = self._client.run(_plans.send(self._client.common, topic, [message]))
        return batch.receipt(0)

    def send_all(
        self, topic: str, messages: Iterable[Sendable], *, on_progress: Callable[[int], None] | None = None
    ) -> SendSummary:
        """
        Send many messages and return their receipts, in order, once all are stored.

        They travel in batches, several at once; a batch goes to one queue and keeps its order. *on_progress* is called
        with the number stored so far. Raises at the first failure, naming the messages; a note says how many others
        are stored.
        """
        self._client.check()
        _names.check_topic(topic)
        pending: deque[Future[Batch]] = deque()
        done: list[Batch] = []
        stored = first = 0

        def collect() -> None:
            nonlocal stored
            done.append(pending.popleft().result())
            stored += len(done[-1].ids)
            if on_progress is not None:
                on_progress(stored)

        with ThreadPoolExecutor(IN_FLIGHT, "ferromq-send") as senders:
            try:
                for batch in batches(messages):
                    plan = _plans.send(self._client.common, topic, batch, first)
                    pending.append(senders.submit(self._client.run, plan))
                    first += len(batch)
                    if len(pending) >= IN_FLIGHT:
                        collect()
                while pending:
                    collect()
            except Exception as error:
                others = [future.result() for future in pending if future.exception() is None]
                note_stored(error, stored + sum(len(batch.ids) for batch in others))
                raise
        return SendSummary(done)

    def submit(
        self,
        topic: str,
        body: Sendable,
        *,
        keys: str | Iterable[str] | None = None,
        tag: str | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> "Future[SendReceipt]":
        """
        Send one message in the background, together with others; the future ends with its receipt or its error.

        Waits while more than *max_pending_bytes* are on their way.
        """
        self._client.check()
        if self._client.common.routes.known(topic) is None:
            _names.check_topic(topic)
        return self._submitted.add(topic, make_message(body, keys, tag, properties))

    def flush(self, timeout: timedelta | float | None = None) -> bool:
        """Send at once what `submit` keeps and wait until it has ended; says whether it did within *timeout*."""
        self._client.check()
        return self._submitted.flush(None if timeout is None else time.monotonic() + seconds(timeout))

    def close(self, timeout: timedelta | float = 5.0) -> None:
        """
        Send what `submit` keeps, say good-bye, and end; returns within about *timeout* whatever the brokers do.

        Futures of messages that did not get out end with `ConnectionFailed`. Idempotent.
        """
        until = time.monotonic() + seconds(timeout)
        if not self._client.is_closed and self._client.is_here:
            self._submitted.flush(until)
            if self._client.close(until):
                self._submitted.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Submitted:
    """Gathers submitted messages on a thread of its own, and hands the batches to senders."""

    def __init__(self, client: Client, linger: float, limit: int) -> None:
        self._client = client
        self._limit = limit
        self._linger: Linger[Future[SendReceipt]] = Linger(linger)
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._ready: deque[Gathered[Future[SendReceipt]]] = deque()
        self._bytes = 0
        self._unfinished = 0
        self._closed = False
        self._threads: list[threading.Thread] = []
        client.before_exit(self._finish_at_exit)

    def add(self, topic: str, message: Message) -> "Future[SendReceipt]":
        future: Future[SendReceipt] = Future()
        length = size(message)
        with self._lock:  # the condition's own, without its detour: this runs for each message
            if not self._threads:
                self._start()
            while self._bytes and self._bytes + length > self._limit and not self._closed:
                self._changed.wait()
            if self._closed:
                raise ConnectionFailed("the producer was closed meanwhile")
            was_empty = not self._linger
            full = self._linger.add(topic, message, length, future, time.monotonic())
            self._bytes += length
            self._unfinished += 1
            self._ready += full
            if full or was_empty:
                self._changed.notify_all()
        return future

    def flush(self, until: float | None) -> bool:
        with self._changed:
            self._ready += self._linger.all()
            self._changed.notify_all()
            timeout = None if until is None else remaining(until)
            return self._changed.wait_for(lambda: self._unfinished == 0, timeout)

    def _finish_at_exit(self, until: float) -> None:
        if not self.flush(until):
            _log.warning("submitted messages were not sent before the program ended count=%d", self._unfinished)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            dropped = [*self._ready, *self._linger.all()]
            self._ready.clear()
            self._changed.notify_all()
        for batch in dropped:
            self._finish(batch, ConnectionFailed("the producer was closed before the message was sent"))

    def _start(self) -> None:
        for number in range(2):
            thread = threading.Thread(target=self._run, name=f"ferromq-submit-{number}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _next(self) -> Gathered[Future[SendReceipt]] | None:
        with self._changed:
            while True:
                self._ready += self._linger.due(time.monotonic())
                if self._ready:
                    return self._ready.popleft()
                if self._closed:
                    return None
                due = self._linger.next_due()
                self._changed.wait(None if due is None else remaining(due))

    def _run(self) -> None:
        while (batch := self._next()) is not None:
            try:
                sent = self._client.run(_plans.send(self._client.common, batch.topic, batch.messages))
            except FerromqError as error:
                if len(batch.messages) > 1 and may_be_one(error):
                    self._again(batch)
                else:
                    self._finish(batch, error)
            except Exception as error:  # noqa: BLE001 (whatever it is, it is the senders' to know)
                self._finish(batch, error)
            else:
                self._finish(batch, sent)

    def _again(self, batch: Gathered[Future[SendReceipt]]) -> None:
        with self._changed:
            self._ready.extendleft(batch.apart())
            self._changed.notify_all()

    def _finish(self, batch: Gathered[Future[SendReceipt]], outcome: Batch | Exception) -> None:
        for index, future in enumerate(batch.futures):
            if not future.set_running_or_notify_cancel():
                continue
            if isinstance(outcome, Exception):
                future.set_exception(outcome)
            else:
                future.set_result(outcome.receipt(index))
        with self._changed:
            self._bytes -= batch.bytes
            self._unfinished -= len(batch.futures)
            self._changed.notify_all()
