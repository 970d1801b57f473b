"""
The producer: sends messages one by one, many at once, or gathered in the background.

Batching is decided in `core.batching`, retries and routes in `core.plans`.
"""

import logging
import threading
import time
import weakref
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime, timedelta
from types import TracebackType
from typing import Self, TypedDict, TypeVar, Unpack

from ferromq.client.client import Client, Options
from ferromq.client.connection import end_of, remaining
from ferromq.client.direct_sends import DirectSends
from ferromq.client.tls import Tls, TlsFile
from ferromq.client.transactions import Checks, Decisions, Open, no_checker
from ferromq.core import send_plans
from ferromq.core.batching import IN_FLIGHT, Gathered, Linger, Sendable, Slice, batches, is_ordered, size
from ferromq.core.requests import may_be_one, seconds
from ferromq.errors import ClientClosed, FerromqError
from ferromq.message import Batch, Message, MessageView, Resolution, SendReceipt, SendSummary
from ferromq.process.clock import Clock
from ferromq.protocol import naming
from ferromq.terminal.objects import described

__all__ = ["Producer", "Transaction"]

F = TypeVar("F")

_log = logging.getLogger("ferromq.client")

_SENDERS = 2
"""Threads that send what was submitted."""
_MOST_SENDERS = 8
"""As many where some wait for a broker that does not answer."""


class MessageOptions(TypedDict, total=False):
    """What `Message` takes beside the body."""

    keys: str | Iterable[str] | None
    tag: str | None
    properties: Mapping[str, str] | None
    message_group: str | None
    delivery_timestamp: datetime | int | None
    delay: timedelta | float | None
    priority: int | None


def given_limit(timeout: timedelta | float | None) -> float | None:
    """Return the seconds a call has; None: those of its producer. Raises `ValueError` for a negative time."""
    return None if timeout is None else seconds(timeout)


def make_message(body: Sendable, options: MessageOptions) -> Message:
    """Return a message; one that is given as such is taken as it is."""
    if not isinstance(body, Message):
        return Message(body, **options)
    given = [name for name, value in options.items() if value is not None]
    if given:
        raise TypeError(f"a Message brings its own {' and '.join(given)}")
    return body


def in_order(done: Sequence[tuple[Slice, Batch]]) -> SendSummary:
    """Return the receipts of the slices of one call, in the order of their messages."""
    sent = [batch for _, batch in done]
    if all(isinstance(part.numbers, range) for part, _ in done):
        return SendSummary(sent)
    places = array("Q", bytes(8 * sum(len(part.messages) for part, _ in done)))
    place = 0
    for part, _ in done:
        for number in part.numbers:
            places[number] = place
            place += 1
    return SendSummary(sent, places)


def note_stored(error: BaseException, count: int) -> None:
    """Say what became of the others."""
    error.add_note(f"{count} messages of the same call are stored")


class Producer:
    """
    Sends messages to topics; thread-safe. Use it in a `with`, or call `close`.

    *endpoint* is the gRPC address of a broker, `host:port`, or several joined by `;`. Nothing is connected before the
    first message. A call ends within *timeout* seconds, repetitions and look-ups included; one attempt has at most 3.
    What fails is repeated with the same message id while there is time, on another broker where there is one: a broker
    that restarts within *timeout* is waited for. *attempts* of 1 means no repetition. *linger* is how long `submit`
    waits for company; *max_pending_bytes* is how much it keeps before it makes its caller wait. *tls* speaks TLS: True
    trusts what the system trusts, a path the certificates in that file; `ferromq.Tls` has the rest. Delays count from
    *clock*. Times are seconds.

    *checker* is for transactions: when a broker does not know the end of one, it is called with the message, on a
    thread of its own, and returns a `Resolution`; an exception is logged and counts as `UNKNOWN`, after which the
    broker asks again later. Transactions of *topics* are asked for from the start, whichever producer began them.
    """

    def __init__(
        self,
        endpoint: str,
        *topics: str,
        checker: Callable[[MessageView], Resolution | None] | None = None,
        timeout: timedelta | float = 10.0,
        attempts: int = 3,
        linger: timedelta | float = timedelta(milliseconds=5),
        max_pending_bytes: int = 64 << 20,
        tls: bool | TlsFile | Tls = False,
        clock: Clock | None = None,
    ) -> None:
        for topic in topics:
            naming.check_topic(topic)
        self._client = Client("producer", Options(endpoint, timeout, attempts, tls, clock))
        self._direct = DirectSends(self._client)
        self._submitted = _Submitted(self._client, seconds(linger), max_pending_bytes)
        self._decisions = Decisions()
        self._checks: Checks | None = None
        if checker is not None:
            self._checks = Checks(self._client, self._decisions, checker)
            self._checks.watch(topics)

    def send(
        self,
        topic: str,
        body: Sendable,
        *,
        timeout: timedelta | float | None = None,
        **options: Unpack[MessageOptions],
    ) -> SendReceipt:
        """
        Send one message and return once the broker has stored it, as durably as it promises.

        The options are those of `Message`; a *body* that is a `Message` brings its own. *timeout* (seconds) is for this
        call; None: the producer's.
        """
        self._client.check()
        return self._direct.send(topic, make_message(body, options), given_limit(timeout))

    def recall(self, receipt: SendReceipt) -> str:
        """
        Recall a delayed message that is not due yet, and return its id.

        Raises `ValueError` for a message that was not delayed, and `RequestError` where the broker cannot recall it.
        """
        self._client.check()
        return self._client.run(send_plans.recall(self._client.common, receipt))

    def transaction(self, *, check_after: timedelta | float | None = None) -> "Transaction":
        """
        Begin a transaction: what is sent in it is delivered once it is committed.

            with producer.transaction() as tx:
                tx.send("orders", b"paid")
                database.commit()

        Leaving the `with` commits, an exception rolls back. The broker asks the checker about a message *check_after*
        it was stored; None: after the time of the broker's own settings. Raises `ConfigError` without a checker.
        """
        self._client.check()
        if self._checks is None:
            raise no_checker()
        return Transaction(self._client, self._decisions, recovery_ms(check_after))

    def send_all(
        self, topic: str, messages: Iterable[Sendable], *, on_progress: Callable[[int], None] | None = None
    ) -> SendSummary:
        """
        Send many messages and return their receipts, in order, once all are stored.

        They travel in batches, several at once; a batch goes to one queue and keeps its order, and so do the batches
        of a message group. *on_progress* is called with the number stored so far. Raises at the first failure, naming
        the messages; a note says how many others are stored. Of a message group nothing is sent after a failure.
        """
        self._client.check()
        naming.check_topic(topic)
        pending: deque[tuple[Slice, Future[Batch]]] = deque()
        done: list[tuple[Slice, Batch]] = []
        stored = 0

        def collect() -> None:
            nonlocal stored
            part, future = pending.popleft()
            done.append((part, future.result()))
            stored += len(part.messages)
            if on_progress is not None:
                on_progress(stored)

        with ThreadPoolExecutor(IN_FLIGHT, "ferromq-send") as senders:
            try:
                for part in batches(messages):
                    before = predecessor(part, pending)
                    pending.append((part, senders.submit(self._send_after, before, topic, part)))
                    if len(pending) >= IN_FLIGHT:
                        collect()
                while pending:
                    collect()
            except Exception as error:
                others = [part for part, future in pending if future.exception() is None]
                note_stored(error, stored + sum(len(part.messages) for part in others))
                raise
        return in_order(done)

    def _send_after(self, before: "Future[Batch] | None", topic: str, part: Slice) -> Batch:
        if before is not None:
            before.result()  # its failure is ours, too: what comes after a gap would be out of order
        return self._client.run(send_plans.send(self._client.common, topic, part.messages, part.numbers))

    def submit(self, topic: str, body: Sendable, **options: Unpack[MessageOptions]) -> "Future[SendReceipt]":
        """
        Send one message in the background, together with others; the future ends with its receipt or its error.

        Waits while more than *max_pending_bytes* are on their way. The messages of a group are sent in the order of the
        calls; one that fails is missing among them. Where its broker does not answer, a message fails *timeout* after
        it was to go, however many wait before it.
        """
        self._client.check()
        if self._client.common.routes.known(topic) is None:
            naming.check_topic(topic)
        return self._submitted.add(topic, make_message(body, options))

    def flush(self, timeout: timedelta | float | None = None) -> bool:
        """
        Send at once what `submit` keeps, and wait until the brokers have answered.

        Returns whether all of it has ended within *timeout* (float: seconds); None waits as long as it takes.
        """
        self._client.check()
        return self._submitted.flush(end_of(timeout))

    def close(self, timeout: timedelta | float = 5.0) -> None:
        """
        Send what `submit` keeps, unregister, and end.

        Returns within about *timeout* (float: seconds) whatever the brokers do. Futures of messages that were on their
        way end with `ConnectionFailed`, those of messages that were never sent with `ClientClosed`. Idempotent.
        """
        until = end_of(timeout)
        if not self._client.is_closed and self._client.is_here:
            self._submitted.flush(until)
            if self._checks is not None:
                self._checks.close()
            if self._client.close(until):
                self._submitted.close()

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._client.is_closed

    def __repr__(self) -> str:
        endpoint = ";".join(self._client.common.endpoints)
        return described("Producer", self._client.state, endpoint=endpoint)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def predecessor(part: Slice, pending: Iterable[tuple[Slice, F]]) -> F | None:
    """Return what must have ended before a slice is sent: the last one of its message group."""
    if not is_ordered(part.lane):
        return None
    return next((other for before, other in reversed([*pending]) if before.lane == part.lane), None)


def recovery_ms(check_after: timedelta | float | None) -> int:
    """Return the milliseconds after which the broker asks; 0: as its settings say."""
    return 0 if check_after is None else max(1, round(seconds(check_after) * 1000))


class Transaction:
    """
    Messages that are delivered once the transaction is committed, and never when it is rolled back.

    Made by `Producer.transaction`. Each message is ended on its own, in the order of sending. Not thread-safe.
    """

    def __init__(self, client: Client, decisions: Decisions, recovery: int) -> None:
        self._client = client
        self._open = Open(decisions)
        self._recovery_ms = recovery

    @property
    def resolution(self) -> Resolution:
        """What was decided; UNKNOWN while it is open."""
        return self._open.resolution

    def send(self, topic: str, body: Sendable, **options: Unpack[MessageOptions]) -> SendReceipt:
        """
        Store a message that nobody sees before the commit; keys, tag and properties are as in `Producer.send`.

        Raises `RuntimeError` once the transaction has ended. One that failed with `OutcomeUnknown` is not repeated;
        should the broker have it nevertheless, it is rolled back.
        """
        self._client.check()
        message = make_message(body, options)
        return self._client.run(self._open.send(self._client.common, topic, message, self._recovery_ms)).receipt(0)

    def commit(self) -> None:
        """
        Deliver the messages.

        `OutcomeUnknown` means that it is decided and the broker may not know yet: it asks, and this producer answers
        `COMMIT`; after the end of this process its checker is asked. Calling it again tells the broker again, which
        RocketMQ's own delivers twice if it had heard the first. Raises `RuntimeError` after `rollback`.
        """
        self._end(Resolution.COMMIT)

    def rollback(self) -> None:
        """Drop the messages; failures as of `commit`. Raises `RuntimeError` after `commit`."""
        self._end(Resolution.ROLLBACK)

    def _end(self, resolution: Resolution) -> None:
        self._client.check()
        self._open.decide(resolution)
        self._client.run(self._open.end(self._client.common))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.resolution is not Resolution.UNKNOWN:
            return
        if error is None:
            self.commit()
            return
        try:
            self.rollback()
        except FerromqError as failure:
            error.add_note(f"rolling the transaction back failed, too: {failure}")


class _Submitted:
    """Gathers submitted messages on a thread of its own, and hands the batches to senders."""

    def __init__(self, client: Client, linger: float, limit: int) -> None:
        self._client = client
        self._limit = limit
        self._linger: Linger[Future[SendReceipt]] = Linger(linger)
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._ready: deque[Gathered[Future[SendReceipt]]] = deque()
        self._sending: list[Gathered[Future[SendReceipt]]] = []
        """Those under way; the next ones of the same order wait."""
        self._idle = 0
        self._bytes = 0
        self._unfinished = 0
        self._closed = False
        self._threads: list[threading.Thread] = []
        client.before_exit(self._finish_at_exit)
        reference = weakref.WeakMethod(self._failed)
        client.common.routes.on_failed = lambda endpoint: (failed := reference()) and failed(endpoint)

    def add(self, topic: str, message: Message) -> "Future[SendReceipt]":
        future: Future[SendReceipt] = Future()
        length = size(message)
        with self._lock:  # the condition's own, without its detour: this runs for each message
            if not self._threads:
                self._start()
            while self._bytes and self._bytes + length > self._limit and not self._closed:
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

    def _hand(self, gathered: Iterable[Gathered[Future[SendReceipt]]]) -> None:
        """Give batches to the senders: the time that each has begins."""
        until = time.monotonic() + self._client.common.timeout
        for batch in gathered:
            batch.until = until
            self._ready.append(batch)

    def flush(self, until: float | None) -> bool:
        with self._changed:
            self._hand(self._linger.all())
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

    def _is_late(self, batch: Gathered[Future[SendReceipt]], failing: set[str]) -> bool:
        return bool(failing) and send_plans.brokers_of(self._client.common, batch) <= failing

    def _next(self) -> Gathered[Future[SendReceipt]] | None:
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

    def _take(self) -> Gathered[Future[SendReceipt]] | None:
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
            self._leave(batch)

    def _leave(self, batch: Gathered[Future[SendReceipt]]) -> None:
        """Let the next batch of its order go."""
        self._sending = [other for other in self._sending if other is not batch]
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
            self._leave(batch)
