"""
What a reader without a group does: reads all queues of its topics by offsets that it keeps itself. No I/O.

`client.reader` and `aio.reader` carry it out. `pull_plans` has the requests.
"""

import logging
import math
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, Generic, cast

from ferromq._ferromq import MessageView
from ferromq._proto import messages as pb
from ferromq.core import pull_plans
from ferromq.core.payloads import Decode, Decoder, M
from ferromq.core.plans import LEAST, Common, Tries
from ferromq.core.pull_plans import Queue
from ferromq.core.receive_plans import LATE, LONG_POLL, Wish
from ferromq.core.requests import RETRYABLE, Pause, Plan, backoff, decode_table
from ferromq.core.routes import Route
from ferromq.core.subscriptions import Start, Subscription, start_text
from ferromq.core.watch import receiving
from ferromq.errors import ConnectionFailed, Reject, RequestError, RetryAfter
from ferromq.tables import MessageTable, table_of

_log = logging.getLogger("ferromq.client")

_BATCH = 256
"""Messages that a loop reads at once."""
_TURN_OF_A_QUEUE = 0.03
_LONGEST_TURN = 1.0
"""Seconds to wait at one queue where there are several: more with each queue, so that requests do not become more."""


class Reading(Generic[M]):
    """How far a reader is in each queue. Not thread-safe."""

    def __init__(
        self,
        filters: dict[str, pb.FilterExpression],
        begin: Start,
        namespace: str = "",
        decode: Decode[Any] | None = None,
    ) -> None:
        start_text(begin)
        self._decoder = Decoder(decode)
        self.subscription = Subscription("", filters, namespace=namespace)
        self.positions: dict[Queue, int] = {}
        """The next offset to hand out."""
        self._begin = begin
        self._first: dict[str, frozenset[Queue]] = {}
        """The queues of each topic that begin at `begin`."""
        self._routes: dict[str, Route] = {}
        """The routes whose queues all have a position."""
        self._turn = 0
        self._waiting: deque[MessageView] = deque()
        """Messages of one queue that were read and not handed out."""
        self._source: tuple[Queue, int] | None = None
        """Their queue, and its position behind them."""

    def take(self, count: int) -> list[M]:
        """
        Hand out up to *count* messages that were read, as far as they decode.

        Raises the error of a first one that does not, whose position is left behind unless it is a `RetryAfter`.
        """
        if not self._decoder.is_on:
            return cast("list[M]", self._take(count))
        given: list[M] = []
        while self._waiting and len(given) < count:
            message = self._waiting[0]
            try:
                given.append(cast("M", self._decoder.given(message)))
            except (Reject, RetryAfter) as error:
                if given:
                    break
                if isinstance(error, Reject):
                    self._take(1)
                error.add_note(
                    f"it is message {message.message_id} of topic {message.topic}, queue {message.queue_id}, "
                    f"offset {message.queue_offset}"
                )
                raise
            self._take(1)
        return given

    def _take(self, count: int) -> list[MessageView]:
        taken = [self._waiting.popleft() for _ in range(min(count, len(self._waiting)))]
        if taken and self._source is not None:
            queue, behind = self._source
            self.positions[queue] = taken[-1].queue_offset + 1 if self._waiting else behind
        return taken

    def seek(self, positions: Mapping[Queue, int]) -> None:
        """Read on at these offsets; other queues stay where they are. Raises `ValueError` for an offset below 0."""
        given: object = positions
        if not isinstance(given, Mapping):
            raise TypeError(f"positions must be a mapping of queues to offsets, not {given!r}")
        whole = {}
        for queue, offset in positions.items():
            pull_plans.check_offset(offset)
            topic = pull_plans.topic_of(self.subscription, queue)
            whole[Queue(queue.broker_name, queue.queue_id, topic)] = offset
        self._drop()
        self.positions.update(whole)

    def restart(self, begin: Start) -> None:
        """Read on where *begin* says, in all queues."""
        start_text(begin)
        self._drop()
        self._begin = begin
        self.positions.clear()
        self._first.clear()
        self._routes.clear()

    def _drop(self) -> None:
        self._waiting.clear()
        self._source = None

    def read(self, common: Common, max_messages: int, wait: float) -> Plan[list[M]]:
        """Return up to *max_messages* of one queue, waiting for the first; an empty list if none came in time."""
        if not self._waiting:
            self._waiting.extend((yield from self._found(common, Wish(max_messages, wait, 0.0), None)))
        return self.take(max_messages)

    def read_table(self, common: Common, max_messages: int, wait: float) -> Plan[MessageTable]:
        """Return messages as `read` does, as columns; what was read ahead comes first."""
        if self._waiting:
            return table_of(self._take(max_messages))
        found = yield from self._found(common, Wish(max_messages, wait, 0.0, decode=decode_table), None)
        if not found or self._source is None:
            return table_of([])
        queue, behind = self._source
        self.positions[queue] = behind
        return cast("MessageTable", found)

    def read_on(self, common: Common, idle: float | None, ends: Mapping[Queue, int] | None) -> Plan[bool]:
        """
        Read the next messages for a loop; return False at its end.

        It ends once all *ends* are reached, or after *idle* seconds without a message. It goes on over outages.
        """
        until = math.inf if idle is None else common.now() + idle
        is_outage = False
        while not self._waiting:
            left = max(0.0, until - common.now())
            try:
                wish = Wish(_BATCH, min(left, LONG_POLL), 0.0)
                self._waiting.extend((yield from self._found(common, wish, ends)))
            except RETRYABLE as error:
                if not is_outage:
                    _log.warning("no messages for now topic=%s: %s", self.subscription.topics, error)
                is_outage = True
            else:
                if is_outage:
                    _log.info("messages again topic=%s", self.subscription.topics)
                is_outage = False
                if not self._waiting and ends is not None and not self._open_queues(ends):
                    return False
            if not self._waiting and common.now() >= until:
                return False
        return True

    def ends(self, common: Common, until: datetime | int | str) -> Plan[dict[Queue, int]]:
        """Return the offset of each queue at *until*, a time or `end`, for a loop that ends there."""
        self._drop()  # what was read before may be behind the end
        return (yield from pull_plans.ends(common, self.subscription, until))

    def _open_queues(self, ends: Mapping[Queue, int]) -> list[Queue]:
        """Return the queues that have not reached their end."""
        return [queue for queue, end in ends.items() if self.positions.get(queue, 0) < end]

    def _found(
        self, common: Common, wish: Wish, ends: Mapping[Queue, int] | None
    ) -> Plan[list[MessageView] | MessageTable]:
        """Read messages of one queue, and tell of the receive."""
        with receiving(common.watch, self.subscription.topics) as received:
            found = yield from self._found_untold(common, wish, ends)
            if common.watch is not None:
                received.extend(found)
            return found

    def _found_untold(
        self, common: Common, wish: Wish, ends: Mapping[Queue, int] | None
    ) -> Plan[list[MessageView] | MessageTable]:
        """
        Read messages of one queue, waiting for the first.

        *ends* limits it to messages below these offsets; it does not wait once all are reached. A broker that does not
        answer is asked again until the wait is over; then, if no broker answered, its error is raised.
        """
        until = common.now() + wish.wait
        tries = Tries(until + LATE)
        failures = asked = 0
        has_answer = False
        while True:
            try:
                queues = yield from self._queues(common, tries, ends)
                if not queues:
                    return []
                # Each once without waiting, before a wait at one. Before an end all messages are there already: a wait
                # would be for one behind it, if the filter skips the last ones.
                is_short = len(queues) > 1 or ends is not None
                is_sweep = is_short and asked % (len(queues) + 1) < len(queues)
                left = max(0.0, until - common.now())
                turn = min(_LONGEST_TURN, _TURN_OF_A_QUEUE * len(queues)) if is_short else left
                queue = queues[self._turn % len(queues)]
                self._turn += 1
                asked += 1
                once = replace(wish, wait=0.0 if is_sweep else min(left, turn))
                found = yield from self._pull(common, queue, once, tries, None if ends is None else ends[queue])
            except RETRYABLE:
                failures += 1
                for topic in self.subscription.filters:
                    common.routes.distrust(topic)
                left = tries.until - common.now()
                if common.now() >= until and (failures >= common.attempts or left < LEAST):
                    if has_answer:
                        return []
                    raise
                yield Pause(min(backoff(min(failures, 3)), max(0.0, left / 2)))
                continue
            has_answer = True
            if found or (common.now() >= until and asked >= len(queues)):
                return found

    def _queues(self, common: Common, tries: Tries, ends: Mapping[Queue, int] | None) -> Plan[list[Queue]]:
        """Return the queues to ask now, on brokers that answer if there are any."""
        found: dict[Queue, str] = {}
        for topic in self.subscription.filters:
            route = yield from common.route(topic, tries)
            if self._routes.get(topic) is not route:
                yield from self._place(common, route, tries)
            for each in route.readable_queues:
                queue = Queue(each.broker_name, each.queue_id, topic)
                position = self.positions.get(queue)
                if position is not None and (ends is None or position < ends.get(queue, 0)):
                    found[queue] = each.endpoint
        if not found and (ends is None or self._open_queues(ends)):
            raise ConnectionFailed(f"no broker answers that has a queue of {self.subscription.topics} to read")
        failing = common.routes.failing()
        return [queue for queue, endpoint in found.items() if endpoint not in failing] or [*found]

    def _place(self, common: Common, route: Route, tries: Tries) -> Plan[None]:
        """Find where to begin in the queues of a route that have no position; brokers that do not answer come later."""
        topic = route.topic
        route.to_read()  # raises if no queue may be read
        queues = [Queue(each.broker_name, each.queue_id, topic) for each in route.readable_queues]
        # A queue that came later begins at its first message: none of it may be missed.
        is_new = all(queue.topic != topic for queue in self.positions)
        first = self._first.setdefault(topic, frozenset(queues if is_new else ()))
        silent = set[str]()
        for queue in queues:
            if queue in self.positions or queue.broker_name in silent:
                continue
            begin = self._begin if queue in first else "first"
            try:
                self.positions[queue] = yield from pull_plans.offset_once(common, topic, queue, begin, tries)
            except RETRYABLE:
                silent.add(queue.broker_name)
        if not silent:
            self._routes[topic] = route

    def _pull(
        self, common: Common, queue: Queue, wish: Wish, tries: Tries, end: int | None
    ) -> Plan[list[MessageView] | MessageTable]:
        """Pull from a queue once. If the pull brings no message, the position moves to where the broker says."""
        position = self.positions[queue]
        try:
            messages, behind = yield from pull_plans.pull_once(
                common, self.subscription, (queue, position), wish, tries
            )
        except RequestError as error:
            if error.code != pb.Code.ILLEGAL_OFFSET:
                raise
            messages, behind = [], (yield from pull_plans.offset_once(common, queue.topic, queue, "first", tries))
            if behind <= position:
                raise error from None
            _log.warning(
                "messages were deleted before they were read topic=%s broker=%s queue=%d first=%d next=%d",
                *(queue.topic, queue.broker_name, queue.queue_id, position, behind),
            )
        if self.positions.get(queue) != position:
            return []  # a seek came meanwhile
        if end is not None and behind > end:
            messages, behind = [message for message in messages if message.queue_offset < end], end
        if messages:
            self._source = queue, behind
        else:
            self.positions[queue] = behind
        return messages
