"""How far a group is in each queue, and when a loop over its messages ends. No I/O."""

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from ferromq._ferromq import MessageView
from ferromq.core import pull_plans
from ferromq.core.plans import Common, Tries
from ferromq.core.pull_plans import Queue
from ferromq.core.requests import RETRYABLE, Join, Plan
from ferromq.core.subscriptions import Subscription
from ferromq.errors import ClientClosed
from ferromq.terminal.objects import html, html_of

_log = logging.getLogger("ferromq.client")

_FIRST_LOOK, _LONGEST_PAUSE = 0.05, 1.0
"""Seconds without a message after which a loop asks whether its end is reached; then twice as long each time."""
_IN_VAIN = 0.5
"""The share of a lease for which a loop waits, and gets nothing but what it has left, before it ends: a renewed message
that is left comes again after two thirds."""


class QueueProgress(NamedTuple):
    """How far a group is in one queue."""

    topic: str
    broker_name: str
    queue_id: int
    committed_offset: int | None
    """The lowest offset that the group has not acknowledged; None: it has read nothing of the queue."""
    min_offset: int
    """The first message that is kept."""
    max_offset: int
    """Behind the last message."""

    @property
    def lag(self) -> int:
        """How many messages there are from the committed offset on; of a queue that was not read: all that are kept."""
        begin = self.min_offset if self.committed_offset is None else self.committed_offset
        return max(0, self.max_offset - max(begin, self.min_offset))

    def _repr_html_(self) -> str:
        return html_of(self)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a group is in the queues of its topics."""

    group: str
    queues: tuple[QueueProgress, ...]
    """By topic, broker and id."""

    @property
    def lag(self) -> int:
        """The lag of all queues together. Messages that the filter will skip count, too."""
        return sum(queue.lag for queue in self.queues)

    def _repr_html_(self) -> str:
        """Return a table for notebooks."""
        head = ("topic", "broker", "queue", "committed offset", "min offset", "max offset", "lag")
        rows = [("" if cell is None else cell for cell in (*queue, queue.lag)) for queue in self.queues]
        return html(f"Progress of {self.group}: lag {self.lag}", head, [tuple(row) for row in rows])


def progress(common: Common, subscription: Subscription) -> Plan[Progress]:
    """Return how far the group is in each queue."""
    rows = []
    for queue in (yield from pull_plans.queues(common, subscription)):
        committed = yield from pull_plans.committed_offset(common, subscription, queue)
        first = yield from pull_plans.offset_at(common, subscription, queue, "begin")
        # Last: what is stored meanwhile is no negative lag.
        behind = yield from pull_plans.offset_at(common, subscription, queue, "end")
        rows.append(QueueProgress(queue.topic, queue.broker_name, queue.queue_id, committed, first, behind))
    return Progress(subscription.group, tuple(rows))


class Ending:
    """
    When a loop over messages ends; *lease* is how long a message is invisible.

    After a time without a message, or once the group has acknowledged what was there. A loop that leaves messages
    unacknowledged ends without the latter, once it waited in vain: else they came again to it until they are dead
    letters.
    """

    def __init__(
        self, subscription: Subscription, idle: float | None, until: datetime | int | str | None, lease: float
    ) -> None:
        self._subscription = subscription
        self._idle = math.inf if idle is None else idle
        pull_plans.check_until(until)
        self._until = until
        self._patience = lease * _IN_VAIN
        self._ends: dict[Queue, int] | None = None
        """Of the queues that are not through; None: not asked for yet."""
        self._left: dict[tuple[str, str, int], tuple[int, int]] = {}
        """The lowest and the highest offset that the loop left unacknowledged in a queue."""
        self._waited = 0.0
        """How long it waited since a message came that it had not left."""
        self._waiting_since = math.inf
        self._pause = _FIRST_LOOK
        self._next_look = math.inf
        self._last_look = -math.inf

    def begin(self, common: Common) -> Plan[None]:
        """Note where the queues end; without *until* connect to the brokers, so that this is no idle time."""
        subscription = self._subscription
        if self._until is None or self._ends is not None:
            yield from self._connect(common)
            return
        ends = yield from pull_plans.ends(common, subscription, self._until)
        # In a queue whose messages were all deleted there is nothing to acknowledge.
        firsts = yield from pull_plans.ends(common, subscription, "begin")
        self._ends = {queue: end for queue, end in ends.items() if end > firsts.get(queue, 0)}

    def _connect(self, common: Common) -> Plan[None]:
        tries, endpoints = Tries(), dict[str, None]()
        for topic in self._subscription.filters:
            try:
                route = yield from common.route(topic, tries)
            except (*RETRYABLE, ClientClosed):
                return  # receiving logs an outage
            endpoints |= dict.fromkeys(route.readable)
        for endpoint in endpoints:
            try:
                yield Join(endpoint, common.attempt_timeout)
            except RETRYABLE:
                common.routes.failed(endpoint)
            except ClientClosed:
                return

    def waits(self, now: float, before: MessageView | None = None) -> None:
        """Note that the loop asks for a message, after *before*."""
        if before is not None and self._ends is not None and not before.is_settled:
            queue, offset = _queue_of(before), before.queue_offset
            lowest, highest = self._left.get(queue, (offset, offset))
            self._left[queue] = min(lowest, offset), max(highest, offset)
        self._waiting_since = now
        self._pause = _FIRST_LOOK
        self._look_later(now)

    def wakes(self) -> float:
        """Return when the loop must look again, if no message came (monotonic)."""
        return min(self._waiting_since + self._idle, self._next_look)

    def is_idle(self, now: float) -> bool:
        """Say whether no message came for too long."""
        return now >= self._waiting_since + self._idle

    def rests(self, until: float) -> None:
        """Note a pause that lasted until then: it is no idle time."""
        self._waiting_since = max(self._waiting_since, until)

    def must_look(self, now: float) -> bool:
        """Say whether it is time to ask whether the end is reached."""
        return now >= self._next_look

    def may_be_over(self, common: Common, message: MessageView) -> bool:
        """Say whether a message is behind the end of its queue, and it is time to ask whether all ends are reached."""
        if self._ends is None or common.now() < self._last_look + _FIRST_LOOK:
            return False
        topic = self._subscription.topic_of(message)
        route = common.routes.known(topic)
        broker_name = route.readable.get(message.endpoint, "") if route else ""
        return message.queue_offset >= self._ends.get(Queue(broker_name, message.queue_id, topic), 0)

    def waits_in_vain(self, message: MessageView, now: float, paused_until: Callable[[float], float]) -> bool:
        """
        Note a message that has come, and say whether the loop ends: it has waited for nothing but what it left before.

        *paused_until* returns when the last pause ended: that is no wait.
        """
        if not self._comes_again(message):
            self._waited = 0.0
            return False
        self.rests(paused_until(now))
        self._waited += now - self._waiting_since
        if self._waited < self._patience:
            return False
        _log.warning(
            "loop ends, what it did not acknowledge comes again topic=%s message_id=%s",
            message.topic,
            message.message_id,
        )
        return True

    def _comes_again(self, message: MessageView) -> bool:
        if message.delivery_attempt == 1 or not self._left:
            return False
        lowest, highest = self._left.get(_queue_of(message), (0, -1))
        return lowest <= message.queue_offset <= highest

    def look(self, common: Common) -> Plan[bool]:
        """Return whether the group has acknowledged all that was there when the loop began."""
        assert self._ends is not None
        try:
            for queue, end in list(self._ends.items()):
                committed = yield from pull_plans.committed_offset(common, self._subscription, queue)
                if committed is None or committed < end:
                    return False
                del self._ends[queue]
            return True
        finally:
            self._last_look = common.now()
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)
            self._look_later(self._last_look)

    def _look_later(self, now: float) -> None:
        self._next_look = math.inf if self._ends is None else now + self._pause


def _queue_of(message: MessageView) -> tuple[str, str, int]:
    return message.endpoint, message.topic, message.queue_id
