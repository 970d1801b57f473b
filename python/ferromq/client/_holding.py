"""
What a consumer holds, on threads: leases that end, and batches received ahead of their use.

The rules without threads are in `_leases` and `_retry`; the asynchronous twins in `aio.consumer`.
"""

import logging
import os
import threading
import time
from collections.abc import Generator
from copy import copy
from datetime import timedelta

from ferromq.client import _plans
from ferromq.client._client import Client
from ferromq.client._connection import Cancel, Cancelled, remaining
from ferromq.client._leases import FLUSH_AFTER, FLUSH_COUNT, Acks, Ahead, Leased
from ferromq.client._plans import Subscription, Wish
from ferromq.client._protocol import RETRYABLE, seconds
from ferromq.client._retry import InOrder, Retry
from ferromq.errors import FerromqError
from ferromq.message import MessageView

_log = logging.getLogger("ferromq.client")

_LONG_POLL = 20.0
_MAX_WAITING_ACKS = 16_384


class Leases:
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
        self._watching: tuple[InOrder, ...] = ()
        client.before_exit(self._finish_at_exit)

    def ack_later(self, message: MessageView) -> None:
        """Take a message's acknowledgement; called by the message."""
        if self._stopped or os.getpid() != self._process:
            self._client.check()
        with self._lock:  # the condition's own, without its detour: this runs for each message
            for in_order in self._watching:
                in_order.acknowledged(message)
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

    def ack(self, message: MessageView) -> None:
        """Acknowledge one message at once; raises what the broker refused."""
        for _, failure in self.send({message.endpoint: [message]}):
            raise failure

    def watch(self, in_order: InOrder) -> None:
        """Tell it of acknowledgements until it is `unwatch`ed."""
        with self._lock:
            self._watching = (*(each for each in self._watching if each is not in_order), in_order)

    def unwatch(self, in_order: InOrder) -> None:
        """Tell it nothing more."""
        with self._lock:
            self._watching = tuple(each for each in self._watching if each is not in_order)

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
            for in_order in self._watching:
                for message in messages:
                    in_order.acknowledged(message)
        return failures

    def forward_to_dead_letter(self, message: MessageView) -> None:
        """Put a message into the dead letter queue."""
        self._client.run(_plans.forward_to_dead_letter(self._client.common, self._subscription, message))

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


class ReceiveAhead:
    """Receives on a thread of its own, one batch ahead of the one in use."""

    def __init__(
        self, client: Client, subscription: Subscription, leases: Leases, invisible: float, *, keeps_order: bool = True
    ) -> None:
        self._client = client
        self._subscription = subscription
        self._leases = leases
        self._invisible = invisible
        self._ahead = Ahead(invisible)
        self.received = 0.0
        """When what `messages` yields now was received (monotonic)."""
        self._keeps_order = keeps_order
        self._changed = threading.Condition()
        self._batches: list[Leased] = []
        self._failure: FerromqError | None = None
        self._failures = 0
        self._told = 0
        """How many of the failures were raised to somebody."""
        self._stopped = False
        self._cancel = Cancel()
        self._wanted = 0
        """Who waits for a batch."""
        self._thread: threading.Thread | None = None
        client.before_exit(self._finish_at_exit)

    def messages(self) -> Generator[MessageView]:
        while (batch := self._next()) is not None:
            rest = iter(batch.messages)
            self.received = batch.until - self._invisible
            in_order = self._in_order(batch)
            begin = time.monotonic()
            used = 0
            try:
                for message in rest:
                    if time.monotonic() > batch.until:
                        # Its lease has ended, and so have the others': they come again, maybe elsewhere.
                        rest = iter(())
                        break
                    used += 1
                    if in_order is None or in_order.may_use(message):
                        yield message
            finally:
                self._ahead.used(used, time.monotonic() - begin)
                self._put_back(Leased(list(rest), batch.until, in_order))

    def _in_order(self, batch: Leased) -> InOrder | None:
        """Return what says which messages of a batch may be used; what was begun before goes on."""
        if batch.in_order is not None:
            return batch.in_order
        if not self._keeps_order or not Retry.of(self._client.settings).is_fifo:
            return None
        in_order = InOrder()
        self._leases.watch(in_order)
        return in_order

    def _next(self) -> Leased | None:
        with self._changed:
            self._wanted += 1
            try:
                return self._take()
            finally:
                self._wanted -= 1

    def _take(self) -> Leased | None:
        told = self._told  # a failure after that is for everybody who waits now
        if self._thread is None and not self._stopped and self._failures == told:
            self._thread = threading.Thread(target=self._run, name="ferromq-receive", daemon=True)
            self._thread.start()
        self._changed.notify_all()
        self._changed.wait_for(lambda: self._batches or self._failures > told or self._stopped)
        if self._stopped:
            return None
        if self._batches:
            batch = self._batches.pop(0)
            self._changed.notify_all()
            return batch
        self._told = self._failures
        assert self._failure is not None
        raise copy(self._failure)  # a traceback for each thread

    def _put_back(self, batch: Leased) -> None:
        with self._changed:
            if batch.messages:
                self._batches.insert(0, batch)
                return
        if batch.in_order is not None:
            self._leases.unwatch(batch.in_order)

    def _run(self) -> None:
        outage = False
        while True:
            with self._changed:
                # A group that keeps order is given nothing ahead: what comes depends on what is acknowledged.
                self._changed.wait_for(self._may_receive)
                if self._stopped:
                    return
            try:
                wish = Wish(self._ahead.size, _LONG_POLL, self._invisible)
                plan = _plans.receive(self._client.common, self._subscription, wish, self._leases)
                messages = self._client.run(plan, self._cancel)
            except Cancelled:
                return
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

    def _may_receive(self) -> bool:
        is_fifo = Retry.of(self._client.settings).is_fifo
        return self._stopped or (not self._batches and (not is_fifo or self._wanted > 0))

    def _finish_at_exit(self, until: float) -> None:
        self._leases.give_back(self.stop(until), until)

    def stop(self, until: float) -> list[MessageView]:
        """End before *until* (monotonic), and return what was not used; what is given back now comes to others."""
        with self._changed:
            self._stopped = True
            thread = self._thread
            self._changed.notify_all()
        self._cancel.set()
        if thread is not None:
            thread.join(remaining(until))
        with self._changed:
            left, self._batches = self._batches, []
            self._changed.notify_all()
        for batch in left:
            if batch.in_order is not None:
                self._leases.unwatch(batch.in_order)
        self._client.forget(self._finish_at_exit)
        return [message for batch in left for message in batch.messages]
