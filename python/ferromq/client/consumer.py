"""
The consumer: receives messages under a lease, acknowledges them, or iterates over them as they come.

What is asked and answered is in `_plans`; how much is received ahead in `_leases`.
"""

import logging
import os
import threading
import time
from collections.abc import Iterable, Iterator
from copy import copy
from datetime import timedelta
from types import TracebackType
from typing import Self

from ferromq import _names
from ferromq.client import _plans
from ferromq.client._client import Client, Options
from ferromq.client._connection import remaining
from ferromq.client._leases import FLUSH_AFTER, FLUSH_COUNT, Acks, Ahead, Leased, by_endpoint
from ferromq.client._plans import Subscription, Wish
from ferromq.client._protocol import RETRYABLE, seconds
from ferromq.client._tls import Tls, TlsFile
from ferromq.errors import FerromqError
from ferromq.message import MessageView

__all__ = ["Consumer"]

_log = logging.getLogger("ferromq.client")

_LONG_POLL = 20.0
_MAX_WAITING_ACKS = 16_384


class Consumer:
    """
    Receives the messages of a topic on behalf of a consumer group; thread-safe. Use it in a `with`, or call `close`.

    *endpoint* is the gRPC address of a broker, `host:port`, or several joined by `;`. *tags* are joined by `||`. Each
    message is leased for *invisible_duration*; unless it is acknowledged until then it comes again, to any member of
    the group. Iteration receives ahead, about a quarter of a second's work, and goes on over restarts of brokers:

        for message in consumer:
            ...
            message.ack()
    """

    def __init__(
        self,
        endpoint: str,
        group: str,
        topic: str,
        *,
        tags: str = "*",
        invisible_duration: timedelta | float = timedelta(seconds=30),
        timeout: timedelta | float = 3.0,
        attempts: int = 3,
        tls: bool | TlsFile | Tls = False,
    ) -> None:
        _names.check_topic(topic)
        _names.check_group(group)
        self._subscription = Subscription(group, topic, tags)
        self._client = Client("consumer", Options(endpoint, timeout, attempts, tls), self._subscription.settings())
        self._invisible = seconds(invisible_duration)
        self._leases = _Leases(self._client, self._subscription)
        self._ahead = _ReceiveAhead(self._client, self._subscription, self._leases, self._invisible)

    def receive(
        self,
        max_messages: int = 32,
        *,
        wait: timedelta | float = timedelta(seconds=20),
        invisible_duration: timedelta | float | None = None,
    ) -> list[MessageView]:
        """
        Receive up to *max_messages*, waiting for the first one; an empty list when none came in time.

        Acknowledgements that wait are sent first. Raises `ConnectionFailed` or `RequestTimeout` where no broker
        answered for the whole wait.
        """
        self._client.check()
        if max_messages < 1:
            raise ValueError(f"at least one message must be asked for, not {max_messages}")
        self._leases.send_waiting()
        invisible = self._invisible if invisible_duration is None else seconds(invisible_duration)
        wish = Wish(max_messages, seconds(wait), invisible)
        return self._client.run(_plans.receive(self._client.common, self._subscription, wish, self._leases))

    def ack(self, messages: MessageView | Iterable[MessageView]) -> None:
        """
        Acknowledge messages and return once the broker knows.

        Raises the error of the first that was refused, `ReceiptHandleExpired` where its lease had ended; the others are
        acknowledged.
        """
        self._client.check()
        some = [messages] if isinstance(messages, MessageView) else list(messages)
        refused = [failure for _, failure in self._leases.send(by_endpoint(some))]
        if refused:
            raise refused[0]

    def change_invisible_duration(self, message: MessageView, duration: timedelta | float) -> None:
        """Let the lease of *message* end *duration* from now; zero gives it back at once."""
        self._client.check()
        self._leases.change_invisible_duration(message, duration)

    def flush(self, timeout: timedelta | float = 5.0) -> None:
        """
        Send the acknowledgements that wait; raises the first failure since the last `flush`.

        Raises `RequestTimeout` where some are not through within *timeout*; they stay on their way.
        """
        self._client.check()
        waiting = self._leases.flush(time.monotonic() + seconds(timeout))
        failure = self._leases.take_failure()
        if failure is not None:
            raise failure
        if waiting:
            raise _plans.no_answer(f"sending acknowledgements ({waiting} are still on their way)", seconds(timeout))

    def __iter__(self) -> Iterator[MessageView]:
        """Yield messages as they come, until the consumer is closed."""
        self._client.check()
        return self._ahead.messages()

    def close(self, timeout: timedelta | float = 5.0) -> None:
        """
        Send waiting acknowledgements, give back what was received ahead, say good-bye, and end.

        Returns within about *timeout* whatever the brokers do. Raises the first acknowledgement that failed and was not
        raised before. Idempotent.
        """
        until = time.monotonic() + seconds(timeout)
        if self._client.is_closed or not self._client.is_here:
            return
        unused = self._ahead.stop()
        self._leases.flush(until)
        self._leases.give_back(unused, until)
        if self._client.close(until):
            self._leases.stop()
            failure = self._leases.take_failure()
            if failure is not None:
                raise failure

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except FerromqError as failure:
            if error is None:
                raise
            error.add_note(f"closing the consumer failed, too: {failure}")


class _Leases:
    """Ends leases: acknowledgements together and in the background, changes of duration at once."""

    def __init__(self, client: Client, subscription: Subscription) -> None:
        self._client = client
        self._subscription = subscription
        self._process = os.getpid()
        self._acks = Acks()
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._under_way = 0
        self._hurry = False
        self._stopped = False
        self._thread: threading.Thread | None = None
        client.before_exit(self._finish_at_exit)

    def ack_later(self, message: MessageView) -> None:
        """Take a message's acknowledgement; called by the message."""
        if self._stopped or os.getpid() != self._process:
            self._client.check()
        with self._lock:  # the condition's own, without its detour: this runs for each message
            waiting = self._acks.messages
            waiting.append(message)
            count = len(waiting)
            if count in {1, FLUSH_COUNT}:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="ferromq-ack", daemon=True)
                    self._thread.start()
                self._changed.notify_all()
            while len(self._acks.messages) >= _MAX_WAITING_ACKS and not self._stopped:
                self._changed.wait()

    def change_invisible_duration(self, message: MessageView, duration: timedelta | float) -> None:
        """Change a lease; called by the message, too."""
        self._client.check()
        plan = _plans.change_invisible_duration(self._client.common, self._subscription, message, seconds(duration))
        self._client.run(plan)

    def send(self, grouped: dict[str, list[MessageView]]) -> list[tuple[int, FerromqError]]:
        """Send acknowledgements, and return for each failure how many messages it concerns."""
        failures: list[tuple[int, FerromqError]] = []
        for endpoint, messages in grouped.items():
            try:
                refused = self._client.run(_plans.ack(self._client.common, self._subscription, endpoint, messages))
            except FerromqError as error:
                failures.append((len(messages), error))
            else:
                failures += [(1, error) for _, error in refused]
        return failures

    def send_waiting(self) -> None:
        """Send all that waits, in this thread, and wait for what is under way."""
        while True:
            with self._changed:
                grouped = self._take()
            if not grouped:
                break
            self._send_taken(grouped)
        with self._changed:
            self._changed.wait_for(lambda: not self._under_way or self._stopped)

    def flush(self, until: float) -> int:
        """Have everything sent, at most *until* (monotonic), and return how many are not through."""
        with self._changed:
            self._hurry = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._acks.messages and not self._under_way, remaining(until))
            self._hurry = False
            return len(self._acks.messages) + self._under_way

    def _finish_at_exit(self, until: float) -> None:
        left = self.flush(until)
        if left:
            _log.warning("acknowledgements were not sent before the program ended count=%d", left)

    def give_back(self, messages: list[MessageView], until: float) -> None:
        """End the leases of messages nobody used, without counting an attempt; those left at *until* come later."""
        common, subscription = self._client.common, self._subscription
        for number, message in enumerate(messages):
            try:
                left = remaining(until)
                if not left:
                    raise _plans.no_answer("giving back what was received ahead", 0)
                self._client.run(
                    _plans.change_invisible_duration(common, subscription, message, 0.0, suspend=True, timeout=left)
                )
            except FerromqError as error:
                _log.debug("not given back, the leases end by themselves count=%d: %s", len(messages) - number, error)
                return

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            if self._acks.messages:
                self._acks.refused(len(self._acks.messages), _plans.no_answer("sending acknowledgements", 0))
                self._acks.messages = []
            self._changed.notify_all()

    def take_failure(self) -> FerromqError | None:
        with self._changed:
            return self._acks.take_failure()

    def _take(self) -> dict[str, list[MessageView]]:
        grouped = self._acks.take()
        self._under_way += sum(map(len, grouped.values()))
        return grouped

    def _send_taken(self, grouped: dict[str, list[MessageView]]) -> None:
        failures: list[tuple[int, FerromqError]] = []
        try:
            failures = self.send(grouped)
        finally:
            with self._changed:
                self._under_way -= sum(map(len, grouped.values()))
                for count, error in failures:
                    self._acks.refused(count, error)
                self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._acks.messages or self._stopped)
                if self._stopped:
                    return
                self._changed.wait_for(
                    lambda: len(self._acks.messages) >= FLUSH_COUNT or self._hurry or self._stopped, FLUSH_AFTER
                )
                grouped = self._take()
            if grouped:
                self._send_taken(grouped)


class _ReceiveAhead:
    """Receives on a thread of its own, one batch ahead of the one in use."""

    def __init__(self, client: Client, subscription: Subscription, leases: _Leases, invisible: float) -> None:
        self._client = client
        self._subscription = subscription
        self._leases = leases
        self._invisible = invisible
        self._ahead = Ahead(invisible)
        self._changed = threading.Condition()
        self._batches: list[Leased] = []
        self._failure: FerromqError | None = None
        self._failures = 0
        self._told = 0
        """How many of the failures were raised to somebody."""
        self._stopped = False
        self._thread: threading.Thread | None = None
        client.before_exit(self._finish_at_exit)

    def messages(self) -> Iterator[MessageView]:
        while (batch := self._next()) is not None:
            rest = iter(batch.messages)
            begin = time.monotonic()
            used = 0
            try:
                for message in rest:
                    if time.monotonic() > batch.until:
                        # Its lease has ended, and so have the others': they come again, maybe elsewhere.
                        rest = iter(())
                        break
                    used += 1
                    yield message
            finally:
                self._ahead.used(used, time.monotonic() - begin)
                self._put_back(Leased(list(rest), batch.until))

    def _next(self) -> Leased | None:
        with self._changed:
            told = self._told  # a failure after that is for everybody who waits now
            if self._thread is None and not self._stopped and self._failures == told:
                self._thread = threading.Thread(target=self._run, name="ferromq-receive", daemon=True)
                self._thread.start()
            self._changed.wait_for(lambda: self._batches or self._failures > told or self._stopped)
            if self._stopped:
                return None
            if self._batches:
                batch = self._batches.pop(0)
                self._changed.notify_all()
                return batch
            self._told = self._failures
            assert self._failure is not None
            failure = copy(self._failure)  # a traceback for each thread
        raise failure

    def _put_back(self, batch: Leased) -> None:
        with self._changed:
            if batch.messages:
                self._batches.insert(0, batch)

    def _run(self) -> None:
        outage = False
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopped or not self._batches)
                if self._stopped:
                    return
            try:
                wish = Wish(self._ahead.size, _LONG_POLL, self._invisible)
                messages = self._client.run(_plans.receive(self._client.common, self._subscription, wish, self._leases))
            except RETRYABLE as error:
                if not outage and not self._stopped and not self._client.is_closed:
                    _log.warning("no messages for now topic=%s: %s", self._subscription.topic, error)
                outage = True
                if self._client.is_closed:
                    return
                continue
            except FerromqError as error:
                with self._changed:
                    self._failure = error
                    self._failures += 1
                    self._thread = None
                    self._changed.notify_all()
                return
            if outage:
                outage = False
                _log.info("messages again topic=%s", self._subscription.topic)
            with self._changed:
                if messages:
                    self._batches.append(Leased(messages, time.monotonic() + self._invisible))
                self._changed.notify_all()

    def _finish_at_exit(self, until: float) -> None:
        self._leases.give_back(self.stop(), until)

    def stop(self) -> list[MessageView]:
        """End, and return what was not used."""
        with self._changed:
            self._stopped = True
            unused = [message for batch in self._batches for message in batch.messages]
            self._batches.clear()
            self._changed.notify_all()
        return unused
