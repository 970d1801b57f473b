"""
Ends the leases of a consumer, on threads: acknowledgements together and in the background, changes of duration at once.

The rules without threads are in `core.leases`; the asynchronous twin is `aio._leases`.
"""

import logging
import threading
import time
import weakref
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from ferromq._ferromq import AckQueue, InUse, any_settled, settle_all, unsettle_all
from ferromq.client.client import Client
from ferromq.client.connection import remaining
from ferromq.client.renewing import LeaseCalls, each_by_broker
from ferromq.core import plans
from ferromq.core.leases import (
    FLUSH_AFTER,
    FLUSH_COUNT,
    MAX_IN_REQUEST,
    MAX_WAITING_ACKS,
    Refusals,
    check_returned,
    ended,
    left_to_return,
    unsettle,
)
from ferromq.core.requests import seconds
from ferromq.core.retry import Cause, InOrder
from ferromq.core.subscriptions import Subscription
from ferromq.errors import FerromqError, OutcomeUnknown
from ferromq.message import MessageView

_log = logging.getLogger("ferromq.client")

_ALONE_AWAITED = 4
"""How many leases one thread changes alone while a call waits for them."""


@dataclass(slots=True)
class _Lane:
    """The acknowledgements for one broker: those that wait for company, and how many are being sent, or were."""

    endpoint: str
    queue: AckQueue
    under_way: int = 0
    ended: int = 0
    again: tuple[list[MessageView], OutcomeUnknown | None] | None = None
    """What a receive carried in vain, and why its outcome is unknown; it is under way."""
    is_woken: bool = False
    """Whether the thread was told of the first that waits, and gathers others for a while."""
    is_left: bool = False
    """Whether the broker is gone: the thread ends once there is nothing to send."""

    @property
    def waiting(self) -> int:
        """How many wait."""
        return self.queue.count(self.endpoint)

    @property
    def has_work(self) -> bool:
        """Whether there is something to send, and no receive carries what there was before."""
        return self.again is not None or (self.waiting > 0 and not self.under_way)

    @property
    def is_over(self) -> bool:
        """Whether the broker is gone, and there is nothing to send."""
        return self.is_left and not self.under_way and not self.waiting

    @property
    def is_full(self) -> bool:
        """Whether what waits is sent at once."""
        return self.again is not None or self.waiting >= FLUSH_COUNT

    @property
    def taken(self) -> int:
        """How many there were so far; they end in their order."""
        return self.ended + self.under_way + self.waiting


class Leases:
    """
    Ends leases: acknowledgements together and in the background, changes of duration at once.

    Each broker's acknowledgements are sent on a thread of their own: a broker that hangs delays no other's.
    """

    def __init__(self, client: Client, subscription: Subscription) -> None:
        self._client = client
        self._subscription = subscription
        self._calls = LeaseCalls(client, subscription)
        self._refusals = Refusals()
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._lanes: dict[str, _Lane] = {}
        self._hurry = 0
        self._stopped = False
        self.in_use = InUse()
        """What is in use, and renewed meanwhile."""
        self._in_order: InOrder | None = None
        grown = weakref.WeakMethod(self._grown)
        self.acks = AckQueue(
            client.check,
            lambda endpoint: (left := grown()) and left(endpoint),
            self.in_use,
            full=FLUSH_COUNT,
            most=MAX_WAITING_ACKS,
        )
        """Takes the acknowledgements of messages."""
        client.before_exit(self._finish_at_exit)
        reference = weakref.WeakMethod(self._left)
        client.session.on_left = lambda endpoint: (left := reference()) and left(endpoint)

    def ack_later(self, message: MessageView) -> None:
        """Take a message's acknowledgement."""
        message.ack()

    def keep_order(self, in_order: InOrder) -> None:
        """Tell *in_order*, what loops that keep order know of the messages they used, of each acknowledgement."""
        self._in_order = in_order
        self.acks.keep_order(in_order)

    def _grown(self, endpoint: str) -> None:
        """Have the acknowledgements of a broker sent; waits while there are very many."""
        with self._changed:
            lane = self._lanes.get(endpoint) or self._open(endpoint)
            if not lane.is_woken or lane.is_full:
                lane.is_woken = True
                self._changed.notify_all()
            while lane.waiting >= MAX_WAITING_ACKS and not self._stopped:
                self._changed.wait()

    def ack(self, messages: Sequence[MessageView]) -> None:
        """Acknowledge messages at once, unless they are already; raises the first refusal."""
        timeout = self._client.common.timeout
        until = time.monotonic() + timeout
        if any_settled(messages):
            # One of them may be on its way.
            waiting = self.flush(until, {message.endpoint for message in messages})
            if waiting:
                raise plans.no_answer("sending the acknowledgements before", timeout)
        for message in messages if len(self.in_use) else ():
            self._leave(message)
        refused = self._send(settle_all(messages), until)
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

    def change(
        self, message: MessageView, duration: float, timeout: float | None = None, *, suspend: bool = False
    ) -> None:
        """Change a lease that is not renewed meanwhile; times in seconds. *suspend*: count no attempt."""
        self._calls.change(message, duration, timeout, suspend=suspend)

    def _leave(self, message: MessageView) -> None:
        """Let a lease be renewed no more, once it is not renewed just now: its end needs the last receipt handle."""
        held = self.in_use.get(message)
        if held is not None:
            held.leave()

    def forward_to_dead_letter(self, message: MessageView, cause: Cause) -> None:
        """Put a message into the dead letter queue. Raises `LeaseExpired` if its life in the group has ended."""
        self._leave(message)
        if not settle_all([message]):
            raise ended(message)
        try:
            self._client.run(plans.forward_to_dead_letter(self._client.common, self._subscription, message, cause))
        except BaseException:  # an interrupt, too: nothing is known
            unsettle_all([message])
            raise
        self._is_done([message])

    def _send(self, brokers: Mapping[str, list[MessageView]], until: float) -> list[tuple[int, FerromqError]]:
        """Send acknowledgements, to all brokers at once, and return each failure and how many messages it concerns."""
        failures: list[tuple[int, FerromqError]] = []
        (first, *others) = brokers.items() or [("", [])]

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
        self,
        endpoint: str,
        messages: list[MessageView],
        until: float | None = None,
        lost: OutcomeUnknown | None = None,
    ) -> list[tuple[int, FerromqError]]:
        if not messages:
            return []
        timeout = None if until is None else remaining(until)
        try:
            plan = plans.ack(self._client.common, self._subscription, endpoint, messages, lost, timeout=timeout)
            refused = self._client.run(plan)
        except FerromqError as error:
            unsettle_all(messages)
            return [(len(messages), error)]
        except BaseException:  # interrupted: nothing is known
            unsettle_all(messages)
            raise
        finally:
            self._is_done(messages)
        return _failures(messages, refused)

    def take_for_receive(self, endpoint: str, taken: list[MessageView]) -> bool:
        """
        Add all that waits to *taken*, for a receive from a broker. Return False, and take nothing, where it cannot.

        That is so while acknowledgements are on their way, wait for other brokers, or are too many. `were_sent` or
        `send_again` follows unless there were none.
        """
        if not self._lanes:
            return True
        with self._lock:
            lane = self._lanes.get(endpoint)
            if lane is None or len(self._lanes) > 1 or lane.under_way or lane.waiting > MAX_IN_REQUEST or self._stopped:
                return False
            taken += self.acks.take(endpoint, MAX_IN_REQUEST)
            lane.under_way = len(taken)
            return True

    def were_sent(self, endpoint: str, messages: list[MessageView], refused: list[tuple[str, FerromqError]]) -> None:
        """Note what became of acknowledgements that a receive carried."""
        self._has_sent(self._lanes[endpoint], messages, _failures(messages, refused))

    def send_again(self, endpoint: str, messages: list[MessageView], lost: OutcomeUnknown | None) -> None:
        """Have the thread send acknowledgements that a receive carried in vain; *lost*: their outcome is unknown."""
        with self._changed:
            lane = self._lanes[endpoint]
            lane.under_way = len(messages)
            if not self._stopped and (lost is None or self._client.common.attempts > 1):
                lane.again = messages, lost
                self._changed.notify_all()
                return
        unsettle_all(messages)
        failure = lost or plans.no_answer("sending acknowledgements", 0)
        self._has_sent(lane, messages, [(len(messages), failure)])

    def _has_sent(self, lane: _Lane, messages: list[MessageView], failures: Sequence[tuple[int, FerromqError]]) -> None:
        with self._changed:
            lane.under_way = 0
            lane.ended += len(messages)
            self._refusals.add(failures)
            if self._hurry or lane.waiting or lane.is_left:
                self._changed.notify_all()

    def _is_done(self, messages: list[MessageView]) -> None:
        in_order = self._in_order
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
        self._calls.give_back(messages, until)

    def change_all(
        self, messages: Sequence[MessageView], duration: float, until: float, *, suspend: bool = False
    ) -> dict[MessageView, FerromqError]:
        """Change leases that are not renewed, by *until* (monotonic), and return what those failed with that did."""
        ended: dict[MessageView, FerromqError | None] = {}

        def change(message: MessageView) -> None:
            try:
                self.change(message, duration, remaining(until), suspend=suspend)
            except FerromqError as error:
                ended[message] = error
            else:
                ended[message] = None

        each_by_broker(change, messages, _ALONE_AWAITED, until)
        outcomes = {message: ended.get(message, plans.not_changed()) for message in messages}
        return {message: error for message, error in outcomes.items() if error is not None}

    def return_all(self, messages: Sequence[MessageView]) -> None:
        """End the leases of messages, used or not, without counting an attempt; raises the first failure."""
        given = left_to_return(messages)
        for message in given:
            self._leave(message)
        check_returned(self.change_all(given, 0.0, time.monotonic() + self._client.common.timeout, suspend=True))

    def stop(self) -> None:
        """Send no more; what is not sent counts as refused."""
        with self._changed:
            self._stopped = True
            self.acks.close()
            for lane in self._lanes.values():
                left = self.acks.take(lane.endpoint, MAX_WAITING_ACKS)
                if lane.again is not None:
                    left += lane.again[0]
                    lane.again, lane.under_way = None, 0
                if left:
                    unsettle_all(left)
                    self._refusals.add([(len(left), plans.no_answer("sending acknowledgements", 0))])
                    lane.ended += len(left)
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
        lane = self._lanes[endpoint] = _Lane(endpoint, self.acks)
        threading.Thread(target=self._run, args=(lane,), name="ferromq-ack", daemon=True).start()
        return lane

    def _run(self, lane: _Lane) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: lane.is_woken or lane.has_work or lane.is_over or self._stopped)
                if not lane.is_left:
                    self._changed.wait_for(lambda: lane.is_full or self._hurry or self._stopped, FLUSH_AFTER)
                lane.is_woken = False
                if self._stopped:
                    return
                if lane.again is not None:
                    (messages, lost), lane.again = lane.again, None
                elif lane.has_work:
                    messages, lost = self.acks.take(lane.endpoint, MAX_IN_REQUEST), None
                elif lane.is_over:
                    del self._lanes[lane.endpoint]
                    return
                else:
                    continue  # a receive carries them
                lane.under_way = len(messages)
                self._changed.notify_all()
            self._has_sent(lane, messages, self._send_to(lane.endpoint, messages, lost=lost))


def _failures(
    messages: list[MessageView], refused: Sequence[tuple[str, FerromqError]]
) -> list[tuple[int, FerromqError]]:
    """Unsettle what was refused, and return each failure and how many messages it concerns."""
    unsettle(messages, (message_id for message_id, _ in refused))
    return [(1, error) for _, error in refused]
