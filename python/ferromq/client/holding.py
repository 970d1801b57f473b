"""
What a consumer holds, on threads: leases that end, and batches received ahead of their use.

The rules without threads are in `core.leases` and `core.retry`; the asynchronous twins in `aio.consumer`.
"""

import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Container, Generator, Iterable, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field
from datetime import timedelta

from ferromq.client.at_once import at_once
from ferromq.client.client import Client
from ferromq.client.connection import LOOK_UP, Cancel, Cancelled, remaining
from ferromq.core import plans
from ferromq.core.ahead import IN_ORDER, RENEWALS, Ahead, Held, sort_out
from ferromq.core.leases import (
    FLUSH_AFTER,
    FLUSH_COUNT,
    MAX_IN_REQUEST,
    MAX_WAITING_ACKS,
    NOT_RENEWED,
    Refusals,
    by_endpoint,
    unsettle,
)
from ferromq.core.plans import Subscription, Wish
from ferromq.core.requests import RETRYABLE, seconds
from ferromq.core.retry import Cause, InOrder
from ferromq.errors import FerromqError, OutcomeUnknown, RequestError
from ferromq.message import MessageView
from ferromq.process.limited_log import LimitedLog

_log = logging.getLogger("ferromq.client")

_LONG_POLL = 20.0
_AT_ONCE = 8
"""How many threads give messages of one broker back at once, or change their leases, at most."""
_ALONE = 16
"""How many messages one thread gives back alone."""
_RENEWAL = 1.0
"""Seconds in which a renewal may be answered, however short the lease: without the answer its handle is unknown."""
_ALONE_AWAITED = 4
"""How many leases one thread changes alone while a call waits for them."""


@dataclass(slots=True)
class _Lane:
    """The acknowledgements for one broker: those that wait for company, and how many are being sent, or were."""

    endpoint: str
    messages: list[MessageView] = field(default_factory=list)
    under_way: int = 0
    ended: int = 0
    is_left: bool = False
    """Whether the broker is gone: the thread ends once there is nothing to send."""

    @property
    def taken(self) -> int:
        """How many there were so far; they end in their order."""
        return self.ended + self.under_way + len(self.messages)


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
        self.in_use: dict[MessageView, Held] = {}
        """What is in use, and renewed meanwhile."""
        self.in_order: InOrder | None = None
        """What loops that keep order know of the messages they used."""
        client.before_exit(self._finish_at_exit)
        reference = weakref.WeakMethod(self._left)
        client.session.on_left = lambda endpoint: (left := reference()) and left(endpoint)

    def ack_later(self, message: MessageView) -> None:
        """Take a message's acknowledgement; called by the message."""
        if self._stopped or os.getpid() != self._process:
            self._client.check()
        self._leave(message)
        if not message.settle():
            return
        with self._lock:  # the condition's own, without its detour: this runs for each message
            if self.in_order is not None:
                self.in_order.acknowledged(message)
            endpoint = message.endpoint
            lane = self._lanes.get(endpoint) or self._open(endpoint)
            lane.messages.append(message)
            if len(lane.messages) in {1, FLUSH_COUNT}:
                self._changed.notify_all()
            while len(lane.messages) >= MAX_WAITING_ACKS and not self._stopped:
                self._changed.wait()

    def ack(self, messages: Sequence[MessageView]) -> None:
        """Acknowledge messages at once, unless they are already; raises the first refusal."""
        timeout = self._client.common.timeout
        until = time.monotonic() + timeout
        if any(message.is_settled for message in messages):
            # One of them may be on its way.
            waiting = self.flush(until, {message.endpoint for message in messages})
            if waiting:
                raise plans.no_answer("sending the acknowledgements before", timeout)
        for message in messages:
            self._leave(message)
        refused = self._send([message for message in messages if message.settle()], until)
        if refused:
            raise refused[0][1]

    def change_invisible_duration(self, message: MessageView, duration: timedelta | float) -> None:
        """Change a lease; called by the message, too."""
        self._client.check()
        length = seconds(duration)
        held = self.in_use.get(message)
        if held is None:
            self.change(message, length)
            return
        was_over = held.is_over
        held.leave()
        try:
            self.change(message, length)
        except BaseException:  # the lease there was is renewed as before
            held.is_over = was_over or message.is_settled
            raise
        if length:  # it is renewed again when this one is about to end
            held.renewed(time.monotonic(), length, 2 / 3)
            held.is_over = message.is_settled

    def change(self, message: MessageView, duration: float, timeout: float | None = None) -> None:
        """Change a lease that is not renewed meanwhile; times in seconds."""
        common, subscription = self._client.common, self._subscription
        self._client.run(plans.change_invisible_duration(common, subscription, message, duration, timeout=timeout))

    def _leave(self, message: MessageView) -> None:
        """Let a lease be renewed no more, once it is not renewed just now: its end needs the last receipt handle."""
        held = self.in_use.get(message)
        if held is not None:
            held.leave()

    def forward_to_dead_letter(self, message: MessageView, cause: Cause) -> None:
        """Put a message into the dead letter queue, unless its life in the group has ended already."""
        self._leave(message)
        if not message.settle():
            return
        try:
            self._client.run(plans.forward_to_dead_letter(self._client.common, self._subscription, message, cause))
        except BaseException:  # an interrupt, too: nothing is known
            message.unsettle()
            raise
        self._is_done([message])

    def _send(self, messages: Sequence[MessageView], until: float) -> list[tuple[int, FerromqError]]:
        """Send acknowledgements, to all brokers at once, and return each failure and how many messages it concerns."""
        failures: list[tuple[int, FerromqError]] = []
        (first, *others) = by_endpoint(messages).items() or [("", [])]

        def send(endpoint: str, some: list[MessageView]) -> None:
            failures.extend(self._send_to(endpoint, some, until))

        threads = [threading.Thread(target=send, args=each, daemon=True) for each in others]
        for thread in threads:
            thread.start()
        send(*first)
        for thread in threads:
            thread.join()
        return failures

    def _send_to(
        self, endpoint: str, messages: list[MessageView], until: float | None = None
    ) -> list[tuple[int, FerromqError]]:
        if not messages:
            return []
        timeout = None if until is None else remaining(until)
        try:
            plan = plans.ack(self._client.common, self._subscription, endpoint, messages, timeout=timeout)
            refused = self._client.run(plan)
        except FerromqError as error:
            for message in messages:
                message.unsettle()
            return [(len(messages), error)]
        except BaseException:  # interrupted: nothing is known
            for message in messages:
                message.unsettle()
            raise
        finally:
            self._is_done(messages)
        unsettle(messages, (message_id for message_id, _ in refused))
        return [(1, error) for _, error in refused]

    def _is_done(self, messages: list[MessageView]) -> None:
        in_order = self.in_order
        if in_order is not None:
            for message in messages:
                in_order.acknowledged(message)

    def flush(self, until: float, endpoints: Container[str] | None = None) -> int:
        """
        Have sent what there is now, at most *until* (monotonic), and return how many of it are not through.

        *endpoints* limits it to these brokers; None means all.
        """
        with self._changed:
            awaited = [
                (lane, lane.taken) for lane in self._lanes.values() if endpoints is None or lane.endpoint in endpoints
            ]
            self._hurry += 1
            self._changed.notify_all()
            try:
                self._changed.wait_for(lambda: all(lane.ended >= taken for lane, taken in awaited), remaining(until))
            finally:
                self._hurry -= 1
            return sum(max(0, taken - lane.ended) for lane, taken in awaited)

    def _finish_at_exit(self, until: float) -> None:
        left = self.flush(until)
        if left:
            _log.warning("acknowledgements were not sent before the program ended count=%d", left)

    def give_back(self, messages: Sequence[MessageView], until: float) -> None:
        """
        End the leases of messages that were not used, without counting an attempt; after *until* they expire.

        Many are given back by several threads: one call after the other would take longer than their leases last.
        """
        common, subscription = self._client.common, self._subscription

        def give(message: MessageView) -> None:
            left = remaining(until)
            plan = plans.change_invisible_duration(common, subscription, message, 0.0, suspend=True, timeout=left)
            try:
                self._client.run(plan)
            except FerromqError as error:
                _log.debug("not given back, the lease expires message_id=%s: %s", message.message_id, error)

        _each_by_broker(give, messages, _ALONE, until)

    def change_all(
        self, messages: Sequence[MessageView], duration: float, until: float
    ) -> dict[MessageView, FerromqError]:
        """Change leases that are not renewed, by *until* (monotonic), and return what those failed with that did."""
        ended: dict[MessageView, FerromqError | None] = {}

        def change(message: MessageView) -> None:
            try:
                self.change(message, duration, remaining(until))
            except FerromqError as error:
                ended[message] = error
            else:
                ended[message] = None

        _each_by_broker(change, messages, _ALONE_AWAITED, until)
        outcomes = {message: ended.get(message, plans.not_changed()) for message in messages}
        return {message: error for message, error in outcomes.items() if error is not None}

    def stop(self) -> None:
        """Send no more; what is not sent counts as refused."""
        with self._changed:
            self._stopped = True
            for lane in self._lanes.values():
                if lane.messages:
                    self._refusals.add([(len(lane.messages), plans.no_answer("sending acknowledgements", 0))])
                    lane.ended += len(lane.messages)
                    lane.messages = []
            self._refusals.end()
            self._changed.notify_all()

    def take_failure(self) -> FerromqError | None:
        """Return the first refusal since the last call."""
        with self._changed:
            return self._refusals.take()

    def _left(self, endpoint: str) -> None:
        """End the thread of a broker that is gone; another acknowledgement for it begins a new one."""
        with self._changed:
            if endpoint in self._lanes:
                self._lanes[endpoint].is_left = True
                self._changed.notify_all()

    def _open(self, endpoint: str) -> _Lane:
        lane = self._lanes[endpoint] = _Lane(endpoint)
        threading.Thread(target=self._run, args=(lane,), name="ferromq-ack", daemon=True).start()
        return lane

    def _run(self, lane: _Lane) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: lane.messages or lane.is_left or self._stopped)
                if self._stopped:
                    return
                if not lane.messages:
                    del self._lanes[lane.endpoint]
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
                lane.ended += len(messages)
                self._refusals.add(failures)
                self._changed.notify_all()


def _each_by_broker(
    work: Callable[[MessageView], None], messages: Iterable[MessageView], alone: int, until: float
) -> None:
    """Call *work* with each message before *until*, so many *alone* on one thread; no broker waits for another one."""

    def each(some: list[MessageView]) -> None:
        at_once(work, some, min(1 + len(some) // alone, _AT_ONCE), until)

    brokers = by_endpoint(messages).values()
    at_once(each, brokers, len(brokers), until)


class ReceiveAhead:
    """Receives on a thread of its own what fits, and renews on another what is in use."""

    def __init__(
        self,
        client: Client,
        subscription: Subscription,
        leases: Leases,
        invisible: float,
        *,
        prefetch: int | None = None,
        place: Callable[[Held], None] | None = None,
    ) -> None:
        self._client = client
        self._subscription = subscription
        self._leases = leases
        self._invisible = invisible
        self._place = place
        """Called with each message that is taken, in their order; None: they are taken by loops that keep order."""
        self._ahead = Ahead(invisible, prefetch)
        self.workers = 1
        """How many take messages, at least."""
        # Reentrant: the garbage collector may end an abandoned loop in any thread, also in one that holds it.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._failure: FerromqError | None = None
        self._failures = 0
        self._told = 0
        """How many of the failures were raised."""
        self._stopped = False
        self._cancel = Cancel()
        self._hungry = 0
        """How many wait for a message."""
        self._receiving = False
        self._thread: threading.Thread | None = None
        self._renewer: threading.Thread | None = None
        self._giving: list[threading.Thread] = []
        self._renew_soon = threading.Event()
        self._renewing: set[str] = set()
        """Brokers at which a thread renews leases just now."""
        self._silent: set[str] = set()
        """Brokers that did not answer the last renewal."""
        self._seldom = LimitedLog(_log)
        self._is_over = False
        client.before_exit(self._finish_at_exit)

    def messages(self) -> Generator[MessageView]:
        """Yield messages, each in use until the next one is asked for."""
        held: Held | None = None
        try:
            while (held := self.next(held)) is not None:
                if held.in_order is None or held.in_order.may_use(held.message):
                    yield held.message
                    continue
                self.end(held, is_used=False)
                self._leases.give_back([held.message], time.monotonic() + self._client.common.attempt_timeout)
        finally:
            # In a child that a fork made, threads that are not there may hold the locks.
            if held is not None and self._client.is_here:
                self.end(held)

    def next(self, before: Held | None = None) -> Held | None:
        """
        Return the next message, in use until `end`; None when it is stopped. Raises what ended receiving.

        *before* is the one that is no longer in use.
        """
        if before is not None:
            before.leave()
        with self._lock:  # the condition's own, without its detour: this runs for each message
            now = time.monotonic()
            if before is not None:
                self._end(before, now, is_used=True)
            if not self._stopped:
                held = self._taken(now)
                if held is not None:
                    return held
            return self._wait_for_next()

    def _wait_for_next(self) -> Held | None:
        told = self._told  # a failure after that is for all that wait now
        self._hungry += 1
        try:
            while not self._stopped:
                held = self._taken(time.monotonic())
                if held is not None:
                    return held
                if self._failures > told:
                    self._told = self._failures
                    assert self._failure is not None
                    raise copy(self._failure)  # a traceback for each thread
                self._start()
                self._changed.notify_all()
                self._changed.wait(LOOK_UP)
        finally:
            self._hungry -= 1
        return None

    def _taken(self, now: float) -> Held | None:
        held = self._ahead.take(now)
        if held is not None:
            if self._place is not None:
                self._place(held)
            self._leases.in_use[held.message] = held
        return held

    def end(self, held: Held, *, is_used: bool = True) -> None:
        """Note that a message is no longer in use; it is not renewed any more."""
        held.leave()
        with self._lock:
            self._end(held, time.monotonic(), is_used=is_used)

    def _end(self, held: Held, now: float, *, is_used: bool) -> None:
        self._leases.in_use.pop(held.message, None)
        if self._ahead.end(held, now, is_used=is_used):
            if not self._receiving and self._may_receive():
                self._changed.notify_all()
            if self._ahead.has_surplus():
                self._renew_soon.set()

    def take_ahead(self, count: int, until: float, invisible: float | None = None) -> list[MessageView] | None:
        """
        Return what was received ahead, after a receive under way; None: nothing was. *until* is monotonic.

        With *invisible* their leases are changed. What cannot be changed is kept as it is; raises why where it is all.
        """
        with self._changed:
            if not self._ahead.waiting and not self._receiving:
                return None
            self._changed.wait_for(
                lambda: self._ahead.waiting or not self._receiving or self._stopped, remaining(until)
            )
            if not self._ahead.waiting:
                return [] if self._receiving else None
            taken = self._ahead.take_some(count, time.monotonic())
        if invisible is not None:
            taken = self._change(taken, invisible, until + plans.LATE)
        return [held.message for held in taken] or None

    def _change(self, taken: list[Held], invisible: float, until: float) -> list[Held]:
        kept, behind = taken, list[Held]()  # all, where it is interrupted
        try:
            failures = self._leases.change_all([held.message for held in taken], invisible, until)
            for held in taken:
                if held.message not in failures:
                    held.renewed(time.monotonic(), invisible)
            taken, kept, behind = sort_out(taken, failures, in_order=self._is_fifo())
        finally:
            with self._changed:
                if self._stopped:
                    behind = [*kept, *behind]
                else:
                    self._ahead.put_back(kept)
                    self._changed.notify_all()
            if behind:
                self._leases.give_back([held.message for held in behind], until)
        if kept and not taken:
            raise failures[kept[0].message]
        return taken

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="ferromq-receive", daemon=True)
            self._thread.start()
        if self._renewer is None:
            self._renewer = threading.Thread(target=self._renew, name="ferromq-renew", daemon=True)
            self._renewer.start()

    def _is_fifo(self) -> bool:
        return bool(self._client.settings.subscription.fifo)

    def _may_receive(self) -> int:
        """Return how many messages to receive now."""
        if not self._is_fifo():
            return self._ahead.room(self._hungry)
        if self._ahead.waiting or not self._hungry:
            return 0  # nothing ahead: what comes depends on what is acknowledged
        return self._ahead.room(self._hungry, IN_ORDER if self.workers > 1 else 1)

    def _run(self) -> None:
        outage = False
        with suppress(FerromqError, Cancelled):  # which a receive tells
            self._client.run(plans.introduce(self._client.common, self._subscription.topic), self._cancel)
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopped or self._may_receive())
                if self._stopped:
                    return
                wish = Wish(self._may_receive(), _LONG_POLL, self._invisible)
                self._receiving = True
            if self._is_fifo():
                # As long as they wait, what follows is not handed out.
                self._leases.flush(time.monotonic() + self._client.common.attempt_timeout)
            try:
                plan = plans.receive(self._client.common, self._subscription, wish, self._leases)
                messages = self._client.run(plan, self._cancel)
            except Cancelled:
                return
            except RETRYABLE as error:
                if not outage and not self._stopped and not self._client.is_closed:
                    _log.warning("no messages for now topic=%s: %s", self._subscription.topic, error)
                outage = True
                if self._client.is_closed:
                    return
                self._arrived([])
                continue
            except FerromqError as error:
                with self._changed:
                    self._failure = error
                    self._failures += 1
                    self._thread = None
                    self._receiving = False
                    self._changed.notify_all()
                return
            if outage:
                outage = False
                _log.info("messages again topic=%s", self._subscription.topic)
            self._arrived(messages)

    def _arrived(self, messages: list[MessageView]) -> None:
        with self._changed:
            self._receiving = False
            if messages:
                in_order = InOrder() if self._place is None and self._is_fifo() else None
                if in_order is not None:
                    self._leases.in_order = in_order
                self._ahead.add(messages, time.monotonic(), in_order)
            self._changed.notify_all()

    def _renew(self) -> None:
        period = self._invisible / RENEWALS / 2
        while True:
            self._renew_soon.wait(period)
            self._renew_soon.clear()
            if self._is_over:
                return
            with self._changed:
                renewed, given = self._ahead.aging(time.monotonic(), keep=self._is_fifo())
                for held in renewed:
                    held.renewing = held.renewing or threading.RLock()
            if given:
                # Beside the renewals, which must not wait for it. Half of their leases is left.
                until = time.monotonic() + self._invisible / 2
                giving = threading.Thread(target=self._leases.give_back, args=(given, until), daemon=True)
                giving.start()
                self._giving = [each for each in (*self._giving, giving) if each.is_alive()]
            self._renew_all(renewed, max(period, _RENEWAL))

    def _renew_all(self, renewed: list[Held], timeout: float) -> None:
        """Begin to renew leases, each broker's on a thread of its own; a broker that is still busy is left out."""
        brokers: dict[str, list[Held]] = {}
        for held in renewed:
            brokers.setdefault(held.message.endpoint, []).append(held)
        for endpoint in brokers.keys() - self._renewing:
            self._renewing.add(endpoint)
            # What ends first comes first, and what is not reached in a share of the lease is sorted anew.
            some = sorted(brokers[endpoint], key=lambda held: held.until)
            until = time.monotonic() + self._invisible / RENEWALS
            work = endpoint, some, timeout, until
            try:
                threading.Thread(target=self._renew_at, args=work, name="ferromq-renew-at", daemon=True).start()
            except RuntimeError:  # the interpreter ends: it starts no more threads
                self._renew_at(*work)

    def _renew_at(self, endpoint: str, some: list[Held], timeout: float, until: float) -> None:
        """Renew leases of one broker, one after the other, as long as it answers and until *until* (monotonic)."""
        was_silent = endpoint in self._silent
        self._silent.discard(endpoint)
        try:
            for held in some:
                if not remaining(until):
                    return
                error = self._renew_one(held, timeout)
                if error is not None and not was_silent:
                    self._seldom.log(logging.WARNING, NOT_RENEWED, held.message.message_id, error)
                if isinstance(error, OutcomeUnknown):
                    self._silent.add(endpoint)
                    return
        finally:
            self._renewing.discard(endpoint)

    def _renew_one(self, held: Held, timeout: float) -> FerromqError | None:
        with held.renewing or threading.RLock():
            if held.is_over or held.message.is_settled or self._is_over or held.renew_from > time.monotonic():
                return None
            try:
                self._leases.change(held.message, self._invisible, timeout)
            except FerromqError as error:
                # A lease that was lost is not held any longer.
                held.is_over = isinstance(error, RequestError)
                return error
            held.renewed(time.monotonic(), self._invisible)
            return None

    def _finish_at_exit(self, until: float) -> None:
        self._leases.give_back(self.stop(until), until)

    def cease(self) -> None:
        """Hand out no more messages."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def stop(self, until: float) -> list[MessageView]:
        """Receive no more, before *until* (monotonic), and return what waits; what is in use is still renewed."""
        self.cease()
        thread = self._thread
        self._cancel.set()
        if thread is not None:
            thread.join(remaining(until))
        for giving in self._giving:
            giving.join(remaining(until))
        self._client.forget(self._finish_at_exit)
        return self.take_all()

    def take_all(self) -> list[MessageView]:
        """Return what waits; it is held no longer."""
        with self._changed:
            return self._ahead.take_all()

    def finish(self) -> list[Held]:
        """Renew no more, and return what is in use."""
        self._is_over = True
        self._renew_soon.set()
        with self._changed:
            in_use = list(self._ahead.in_use)
        for held in in_use:
            self._leases.in_use.pop(held.message, None)
        return in_use
