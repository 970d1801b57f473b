"""
Receives batches ahead of their use, on a thread.

The rules without threads are in `core.ahead` and `core.retry`; the asynchronous twin is `aio._ahead`.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from copy import copy
from itertools import islice

from ferromq.client.client import Client
from ferromq.client.connection import LOOK_UP, Cancel, Cancelled, remaining
from ferromq.client.direct_receives import DirectPlace
from ferromq.client.leases import Leases
from ferromq.client.renewing import Aging, Renewer
from ferromq.core import receive_plans
from ferromq.core.ahead import Ahead, Held, sort_out, take_alike, to_receive
from ferromq.core.payloads import M
from ferromq.core.progress import Ending
from ferromq.core.receive_plans import LONG_POLL, Wish
from ferromq.core.requests import RETRYABLE
from ferromq.core.retry import InOrder
from ferromq.core.subscriptions import Subscription
from ferromq.core.watch import Watch, receiving
from ferromq.errors import FerromqError
from ferromq.message import MessageView

_log = logging.getLogger("ferromq.client")

_END_OF_RECEIVE = 1.0
"""Seconds to wait for the end of a receive that was cancelled."""

Iteration = Generator[MessageView]
"""One loop over the messages; each is in use until the next one is asked for, or the loop is left."""


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
        self._ahead = Ahead(invisible, prefetch, leases.in_use)
        self._direct = DirectPlace(client, subscription)
        self.workers = 1
        """How many take messages, at least."""
        self.at_least = 1
        """How many messages the workers take together for their batches."""
        # Reentrant: the garbage collector may end an abandoned loop in any thread, also in one that holds it.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._failure: Exception | None = None
        self._failures = 0
        self._told = 0
        """How many of the failures were raised."""
        self._stopped = False
        self._paused = False
        self._resumed = -math.inf
        self._cancel = Cancel()
        """Of the next receive, or the one under way."""
        self._thread: threading.Thread | None = None
        self._renewer = Renewer(leases, invisible, self._aging, {})
        client.before_exit(self._finish_at_exit)

    def messages(self, ending: Ending | None = None) -> Iteration:
        """Yield messages, each in use until the next one is asked for; *ending* says when the loop ends."""
        held: Held | None = None
        at_hand = self._ahead.loop(time.monotonic())
        try:
            if ending is not None:
                self._client.run(ending.begin(self._client.common))
            while True:
                if ending is None and self._place is None and (held is None or held.in_order is None):
                    if held is not None:
                        at_hand.hold(held)
                        held = None
                    yield from at_hand  # one call of the core for each
                held = self.next(held) if ending is None else self._next_before(ending, held)
                if held is None:
                    return
                if held.in_order is None or held.in_order.may_use(held.message):
                    yield held.message
                    continue
                self.end(held, is_used=False)
                self._leases.give_back([held.message], time.monotonic() + self._client.common.attempt_timeout)
        finally:
            # In a child that a fork made, threads that are not there may hold the locks.
            if self._client.is_here:
                for left in (held, at_hand.leave()):
                    if left is not None:
                        self.end(left)

    def _next_before(self, ending: Ending, before: Held | None) -> Held | None:
        """Return the next message; None when it is stopped, or at the end."""
        ending.waits(time.monotonic(), None if before is None else before.message)
        while True:
            held = self.next(before, ending.wakes())
            before, now = None, time.monotonic()
            if held is None:
                ending.rests(self.paused_until(now))
                if self._stopped or ending.is_idle(now) or (ending.must_look(now) and self._is_over_at(ending)):
                    return None
            elif not ending.waits_in_vain(held.message, now, self.paused_until) and not (
                ending.may_be_over(self._client.common, held.message) and self._is_over_at(ending)
            ):
                return held
            else:
                self.end(held, is_used=False)
                self._leases.give_back([held.message], time.monotonic() + self._client.common.attempt_timeout)
                return None

    def _is_over_at(self, ending: Ending) -> bool:
        self._leases.flush(time.monotonic() + self._client.common.attempt_timeout)
        try:
            return self._client.run(ending.look(self._client.common))
        except RETRYABLE:
            return False  # receiving logs the outage

    def next(self, before: Held | None = None, until: float = math.inf, *, unless_paused: bool = False) -> Held | None:
        """
        Return the next message, in use until `end`; None when it is stopped, or at *until* (monotonic).

        *before* is the one that is no longer in use. A pause is waited for, or ends the wait (*unless_paused*). Raises
        what ended receiving.
        """
        if self._stopped or self._place is not None:
            if before is not None:
                self.end(before)
        else:  # without the lock: this runs for each message, and the core changes nothing else at the same time
            held = self._ahead.advance(before, time.monotonic())
            if self._ahead.is_due:
                self._look()
            if held is not None:
                return held
        with self._lock:
            return self._wait_for_next(until, unless_paused=unless_paused)

    def _look(self) -> None:
        """Receive more, or give back what is too much, where it is time."""
        with self._lock:
            self._ahead.is_due = False
            if not self._ahead.is_receiving and self._may_receive():
                self._changed.notify_all()
            if self._ahead.has_surplus():
                self._renewer.hurry()

    def _wait_for_next(self, until: float, *, unless_paused: bool) -> Held | None:
        told = self._told  # a failure after that is for all that wait now
        self._ahead.hungry += 1
        try:
            while not self._stopped and not (unless_paused and self._paused) and (left := remaining(until)):
                held = self._taken(time.monotonic())
                if held is not None:
                    return held
                if self._failures > told:
                    self._told = self._failures
                    assert self._failure is not None
                    raise copy(self._failure)  # a traceback for each thread
                self._start()
                self._changed.notify_all()
                self._changed.wait(min(LOOK_UP, left))
        finally:
            self._ahead.hungry -= 1
        return None

    def next_alike(self, order: str) -> Held | None:
        """Return the next message of an order, as `next`, if one was received ahead."""
        with self._lock:
            now = time.monotonic()
            return None if self._stopped else self._placed(take_alike(self._ahead, order, now))

    def _taken(self, now: float) -> Held | None:
        return self._placed(self._ahead.take(now))

    def _placed(self, held: Held | None) -> Held | None:
        if held is not None and self._place is not None:
            self._place(held)
        return held

    def end(self, held: Held, *, is_used: bool = True) -> None:
        """Note that a message is no longer in use; it is not renewed any more."""
        held.leave()
        if self._ahead.end(held, time.monotonic(), is_used=is_used):
            self._look()

    @property
    def has_messages(self) -> bool:
        """Whether messages were received ahead, or are being received."""
        return self._ahead.count > 0 or self._ahead.is_receiving

    def take_ahead(self, count: int, until: float, invisible: float | None = None) -> list[MessageView] | None:
        """
        Return what was received ahead, after a receive under way; None: nothing was. *until* is monotonic.

        With *invisible* their leases are changed. What cannot be changed is kept as it is; raises why where it is all.
        """
        with self._changed:
            if not self._ahead.count and not self._ahead.is_receiving:
                return None
            self._changed.wait_for(
                lambda: self._ahead.count or not self._ahead.is_receiving or self._stopped, remaining(until)
            )
            if not self._ahead.count:
                return [] if self._ahead.is_receiving else None
            taken = self._ahead.take_some(count, time.monotonic())
        if invisible is not None:
            taken = self._change(taken, invisible, until + receive_plans.LATE)
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
                if self._stopped or self._paused:
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
        self._renewer.start()

    def _is_fifo(self) -> bool:
        return bool(self._client.settings.subscription.fifo)

    def _may_receive(self) -> int:
        """Return how many messages to receive now."""
        if self._paused:
            return 0
        in_order, can_be_ended = self._is_fifo(), self._client.remoting is None
        return to_receive(
            self._ahead, self._ahead.hungry, self.workers, self.at_least, in_order=in_order, can_be_ended=can_be_ended
        )

    def _run(self) -> None:
        outage = self._introduce()
        while True:
            receive = self._next_wish()
            if receive is None:
                return
            wish, cancel = receive
            if self._is_fifo():
                # As long as they wait, what follows is not handed out.
                self._leases.flush(time.monotonic() + self._client.common.attempt_timeout)
            try:
                messages = self._received(wish, cancel)
            except Cancelled:  # by a pause, or by the end, which is seen above
                self._arrived([])
                continue
            except RETRYABLE as error:
                if not outage:
                    self._say_outage(error)
                outage = True
                if self._client.is_closed:
                    return
                self._arrived([])
                continue
            except Exception as error:  # noqa: BLE001 (whatever it is, those that wait for messages get it)
                with self._changed:
                    self._failure = error
                    self._failures += 1
                    self._thread = None
                    self._ahead.is_receiving = False
                    self._changed.notify_all()
                return
            if outage:
                outage = False
                _log.info("messages again topic=%s", self._subscription.topics)
            self._arrived(messages)

    def _next_wish(self) -> tuple[Wish, Cancel] | None:
        """Wait until it is time to receive; return the wish and what cancels it. None: it is stopped."""
        with self._changed:
            # What is under way is awaited, whatever happened: it may have leased messages.
            self._changed.wait_for(lambda: self._direct.following or self._stopped or self._may_receive())
            following = self._direct.following
            if following is None and self._stopped:
                return None
            self._ahead.is_receiving = True
            if following is not None:
                return following.wish, following.cancel
            return Wish(self._may_receive(), LONG_POLL, self._invisible), self._cancel

    def _received(self, wish: Wish, cancel: Cancel) -> list[MessageView]:
        messages = self._direct.receive_ahead(self._ahead, wish, cancel, self._leases)
        if messages is not None:
            return messages
        plan = receive_plans.receive(self._client.common, self._subscription, wish, self._leases)
        received: list[MessageView] = self._client.run(plan, cancel)
        return received

    def _introduce(self) -> bool:
        """Make the client known to a broker, and return whether none answers."""
        plan = receive_plans.introduce(self._client.common, self._subscription.first_topic)
        try:
            self._client.run(plan, self._cancel)
        except RETRYABLE as error:
            self._say_outage(error)
            return True
        except (FerromqError, Cancelled):
            pass  # which a receive tells
        return False

    def _say_outage(self, error: Exception) -> None:
        if not self._stopped and not self._client.is_closed:
            _log.warning("no messages for now topic=%s: %s", self._subscription.topics, error)

    def _arrived(self, messages: list[MessageView]) -> None:
        with self._changed:
            self._ahead.is_receiving = self._direct.following is not None
            if messages and self._paused:
                self._give_back_soon(messages)
            elif messages:
                in_order = InOrder() if self._place is None and self._is_fifo() else None
                if in_order is not None:
                    self._leases.keep_order(in_order)
                self._ahead.add(messages, time.monotonic(), in_order)
            self._changed.notify_all()

    def pause(self) -> None:
        """Hand out and receive nothing until `resume`; end the receive under way, and begin to give back what waits."""
        with self._changed:
            if self._paused or self._stopped:
                return
            self._paused = True
            cancel, self._cancel = self._cancel, Cancel()
            self._give_back_soon(self._ahead.take_all())
            self._changed.notify_all()
        cancel.set()

    def resume(self) -> None:
        """Go on after `pause`."""
        with self._changed:
            if self._paused:
                self._paused, self._resumed = False, time.monotonic()
                self._changed.notify_all()

    def paused_until(self, now: float) -> float:
        """Return the end of the last pause, *now* if it lasts."""
        return now if self._paused else self._resumed

    @property
    def is_paused(self) -> bool:
        """Whether it hands out nothing until `resume`."""
        return self._paused

    def rest(self, duration: float) -> None:
        """Wait so many seconds, or until it is paused or stopped."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or self._paused, duration)

    def wait_for_receive(self) -> None:
        """Wait for the end of the receive that a pause ended: what is given back before may be leased for it."""
        with self._changed:
            self._changed.wait_for(lambda: not (self._ahead.is_receiving and self._paused), _END_OF_RECEIVE)

    def _give_back_soon(self, messages: list[MessageView]) -> None:
        if messages:
            until = time.monotonic() + self._client.common.attempt_timeout
            self._renewer.give_back(messages, until, self.wait_for_receive)

    def _aging(self) -> Aging:
        with self._changed:
            return self._ahead.aging(time.monotonic(), keep=self._is_fifo())

    def _finish_at_exit(self, until: float) -> None:
        self._leases.give_back(self.stop(until), until)

    def cease(self) -> None:
        """Hand out no more messages."""
        with self._changed:
            self._stopped = True
            self._ahead.stop()
            self._changed.notify_all()

    def stop(self, until: float) -> list[MessageView]:
        """Receive no more, before *until* (monotonic), and return what waits; what is in use is still renewed."""
        self.cease()
        with self._changed:
            thread, cancel = self._thread, self._cancel
        cancel.set()
        if thread is not None:
            thread.join(remaining(until))
        self._renewer.wait_for_given(until)
        self._client.forget(self._finish_at_exit)
        return self.take_all()

    def take_all(self) -> list[MessageView]:
        """Return what waits; it is held no longer."""
        with self._changed:
            return self._ahead.take_all()

    def finish(self) -> list[Held]:
        """Renew no more, and return what is in use."""
        self._renewer.stop()
        with self._changed:
            return self._ahead.finish()


def values(
    messages: Iteration,
    hand_out: Callable[[MessageView], M | None],
    watch: Watch | None,
    topics: str,
) -> Iterator[M]:
    """Yield the messages of a loop as *hand_out* makes them, and tell a telemetry."""
    with closing(messages):
        while True:
            with receiving(watch, topics) as received:
                received.extend(islice(messages, 1))
            if not received:
                return
            given = hand_out(received[0])
            if given is not None:
                yield given
