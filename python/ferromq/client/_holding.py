"""
What a consumer holds, on threads: leases that end, and batches received ahead of their use.

The rules without threads are in `_leases` and `_retry`; the asynchronous twins in `aio.consumer`.
"""

import logging
import os
import threading
import time
from collections.abc import Generator, Sequence
from copy import copy
from dataclasses import dataclass, field
from datetime import timedelta

from ferromq.client import _plans
from ferromq.client._client import Client
from ferromq.client._connection import LOOK_UP, Cancel, Cancelled, remaining
from ferromq.client._leases import (
    FLUSH_AFTER,
    FLUSH_COUNT,
    MAX_IN_REQUEST,
    MAX_WAITING_ACKS,
    Ahead,
    Leased,
    Refusals,
    by_endpoint,
    unsettle,
)
from ferromq.client._plans import Subscription, Wish
from ferromq.client._protocol import RETRYABLE, seconds
from ferromq.client._retry import InOrder, Retry
from ferromq.errors import FerromqError, OutcomeUnknown
from ferromq.message import MessageView

_log = logging.getLogger("ferromq.client")

_LONG_POLL = 20.0


@dataclass(slots=True)
class _Lane:
    """The acknowledgements for one broker: those that wait for company, and how many are being sent."""

    endpoint: str
    messages: list[MessageView] = field(default_factory=list)
    under_way: int = 0


class Leases:
    """
    Ends leases: acknowledgements together and in the background, changes of duration at once.

    Each broker's acknowledgements are sent on a thread of their own: a broker that hangs delays no other's.
    """

    def __init__(self, client: Client, subscription: Subscription) -> None:
        self._client = client
        self._subscription = subscription
        self._process = os.getpid()
        self._refusals = Refusals()
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._lanes: dict[str, _Lane] = {}
        self._hurry = 0
        self._stopped = False
        self._watching: tuple[InOrder, ...] = ()
        client.before_exit(self._finish_at_exit)

    def ack_later(self, message: MessageView) -> None:
        """Take a message's acknowledgement; called by the message."""
        if self._stopped or os.getpid() != self._process:
            self._client.check()
        if not message.settle():
            return
        with self._lock:  # the condition's own, without its detour: this runs for each message
            for in_order in self._watching:
                in_order.acknowledged(message)
            endpoint = message.endpoint
            lane = self._lanes.get(endpoint) or self._open(endpoint)
            lane.messages.append(message)
            if len(lane.messages) in {1, FLUSH_COUNT}:
                self._changed.notify_all()
            while len(lane.messages) >= MAX_WAITING_ACKS and not self._stopped:
                self._changed.wait()

    def ack(self, messages: Sequence[MessageView]) -> None:
        """Acknowledge messages at once, unless they are already; raises the first refusal."""
        if any(message.is_settled for message in messages):
            timeout = self._client.common.timeout
            waiting = self.flush(time.monotonic() + timeout)  # one of them may be on its way
            if waiting:
                raise _plans.no_answer("sending the acknowledgements before", timeout)
        refused = self._send([message for message in messages if message.settle()])
        if refused:
            raise refused[0][1]

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

    def forward_to_dead_letter(self, message: MessageView) -> None:
        """Put a message into the dead letter queue, unless its life in the group has ended already."""
        if not message.settle():
            return
        try:
            self._client.run(_plans.forward_to_dead_letter(self._client.common, self._subscription, message))
        except FerromqError:
            message.unsettle()
            raise
        self._is_done([message])

    def _send(self, messages: Sequence[MessageView]) -> list[tuple[int, FerromqError]]:
        """Send acknowledgements, to all brokers at once, and return each failure and how many messages it concerns."""
        failures: list[tuple[int, FerromqError]] = []
        (first, *others) = by_endpoint(messages).items() or [("", [])]
        threads = [
            threading.Thread(target=lambda each=each: failures.extend(self._send_to(*each)), daemon=True)
            for each in others
        ]
        for thread in threads:
            thread.start()
        failures += self._send_to(*first)
        for thread in threads:
            thread.join()
        return failures

    def _send_to(self, endpoint: str, messages: list[MessageView]) -> list[tuple[int, FerromqError]]:
        if not messages:
            return []
        try:
            refused = self._client.run(_plans.ack(self._client.common, self._subscription, endpoint, messages))
        except FerromqError as error:
            for message in messages:
                message.unsettle()
            return [(len(messages), error)]
        finally:
            self._is_done(messages)
        unsettle(messages, (message_id for message_id, _ in refused))
        return [(1, error) for _, error in refused]

    def _is_done(self, messages: list[MessageView]) -> None:
        for in_order in self._watching:
            for message in messages:
                in_order.acknowledged(message)

    def flush(self, until: float) -> int:
        """Have everything sent, at most *until* (monotonic), and return how many are not through."""
        with self._changed:
            self._hurry += 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._waiting(), remaining(until))
            self._hurry -= 1
            return self._waiting()

    def _waiting(self) -> int:
        return sum(len(lane.messages) + lane.under_way for lane in self._lanes.values())

    def _finish_at_exit(self, until: float) -> None:
        left = self.flush(until)
        if left:
            _log.warning("acknowledgements were not sent before the program ended count=%d", left)

    def give_back(self, messages: list[MessageView], until: float) -> None:
        """End the leases of messages that were not used, without counting an attempt; after *until* they expire."""
        common, subscription = self._client.common, self._subscription
        silent: set[str] = set()
        for message in messages:
            left = remaining(until)
            if message.endpoint in silent or not left:
                continue
            try:
                self._client.run(
                    _plans.change_invisible_duration(common, subscription, message, 0.0, suspend=True, timeout=left)
                )
            except FerromqError as error:
                _log.debug("not given back, the lease expires message_id=%s: %s", message.message_id, error)
                if isinstance(error, OutcomeUnknown):
                    silent.add(message.endpoint)

    def stop(self) -> None:
        """Send no more; what is not sent counts as refused."""
        with self._changed:
            self._stopped = True
            for lane in self._lanes.values():
                if lane.messages:
                    self._refusals.add(len(lane.messages), _plans.no_answer("sending acknowledgements", 0))
                    lane.messages = []
            self._changed.notify_all()

    def take_failure(self) -> FerromqError | None:
        """Return the first refusal since the last call."""
        with self._changed:
            return self._refusals.take()

    def _open(self, endpoint: str) -> _Lane:
        lane = self._lanes[endpoint] = _Lane(endpoint)
        threading.Thread(target=self._run, args=(lane,), name="ferromq-ack", daemon=True).start()
        return lane

    def _run(self, lane: _Lane) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: lane.messages or self._stopped)
                if self._stopped:
                    return
                self._changed.wait_for(
                    lambda: len(lane.messages) >= FLUSH_COUNT or self._hurry or self._stopped, FLUSH_AFTER
                )
                messages, lane.messages = lane.messages[:MAX_IN_REQUEST], lane.messages[MAX_IN_REQUEST:]
                lane.under_way = len(messages)
                self._changed.notify_all()
            failures = self._send_to(lane.endpoint, messages)
            with self._changed:
                lane.under_way = 0
                for count, error in failures:
                    self._refusals.add(count, error)
                self._changed.notify_all()


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
        while not self._changed.wait_for(lambda: self._batches or self._failures > told or self._stopped, LOOK_UP):
            pass
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
