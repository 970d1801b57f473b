"""
Transactions: how a half message ends, by commit or by rollback.

The send path stores half messages; what is decided here is their end. The committed message and the op message, the
mark that the half message ended, are one append: after a crash both are there or none, so a transaction is visible once
or open still. Which half messages have ended is known from the op messages, of ours and of RocketMQ's 4.x and 5.x.
Asking the producer of an open one (check-back) begins with `EndedHalves` and `Transactions.end`.
"""

import logging
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

from ferromq import _names
from ferromq._codes import ResponseCode
from ferromq._ferromq import Request, Store, StoredMessage
from ferromq._remoting import Answer, BadRequest, failure, flag, integer, required, success
from ferromq.errors import Forbidden, MessageTooLarge, StoreFull

if TYPE_CHECKING:
    from ferromq._ferromq import NewStoredMessage

_log = logging.getLogger("ferromq.transactions")

GROUP = "CID_RMQ_SYS_TRANS"
"""The group under which RocketMQ keeps how far half and op messages are looked through."""
_KIND_BITS = 12
_OP_TAG = "d"
_PRODUCER_GROUP = "PGROUP"
_REAL_TOPIC = "REAL_TOPIC"
_REAL_QUEUE = "REAL_QID"
# What a half message has and the committed one has not.
_HALF_PROPERTIES = frozenset({_REAL_TOPIC, _REAL_QUEUE, "TRAN_MSG"})
_OPS_AT_ONCE = 1_000


class Decision(IntEnum):
    """What a producer decided; the numbers are the transaction's bits in RocketMQ's system flag."""

    UNKNOWN = 0
    COMMIT = 8
    ROLLBACK = 12


class EndRefused(Exception):  # noqa: N818 (an answer, not a failure of ours)
    """A transaction cannot be ended so; the text tells the producer."""

    def __init__(self, code: ResponseCode, remark: str) -> None:
        super().__init__(remark)
        self.code = code


@dataclass(frozen=True, slots=True)
class End:
    """A producer's decision about a half message, and how it names that message."""

    group: str
    physical_offset: int
    queue_offset: int
    decision: Decision
    is_checked: bool = False
    """Whether the producer was asked."""


class EndedHalves:
    """
    The queue offsets of half messages that ended: ranges, so that only open ones cost memory.

    Not locked; whoever shares it does that.
    """

    def __init__(self, below: int = 0) -> None:
        """Begin with everything *below* a queue offset ended."""
        self._begins: list[int] = [0] if below > 0 else []
        self._ends: list[int] = [below] if below > 0 else []

    def __contains__(self, queue_offset: int) -> bool:
        place = bisect_right(self._begins, queue_offset) - 1
        return place >= 0 and queue_offset < self._ends[place]

    def add(self, queue_offset: int) -> None:
        """Note that a half message ended; a second time changes nothing."""
        if queue_offset in self:
            return
        place = bisect_right(self._begins, queue_offset)
        joins_before = place > 0 and self._ends[place - 1] == queue_offset
        joins_after = place < len(self._begins) and self._begins[place] == queue_offset + 1
        if joins_before and joins_after:
            self._ends[place - 1] = self._ends[place]
            del self._begins[place], self._ends[place]
        elif joins_before:
            self._ends[place - 1] += 1
        elif joins_after:
            self._begins[place] -= 1
        else:
            self._begins.insert(place, queue_offset)
            self._ends.insert(place, queue_offset + 1)

    def ranges(self) -> list[tuple[int, int]]:
        """Return first and last + 1 of each range, in order."""
        return list(zip(self._begins, self._ends, strict=True))


class Transactions:
    """Ends transactions; thread-safe."""

    def __init__(self, store: Store, *, is_slave: Callable[[], bool] = lambda: False) -> None:
        """Find out from the op messages in *store* which half messages have ended."""
        self._store = store
        self._is_slave = is_slave
        self._ended = _load_ended(store)
        self._ending: set[int] = set()
        self._changed = threading.Condition()

    def end_transaction(self, request: Request) -> Answer:
        """Answer request 37: end a half message as its producer decided, once however often it is asked."""
        if self._is_slave():
            return failure(ResponseCode.SLAVE_NOT_AVAILABLE, "this broker is a slave; ask its master")
        end = _read(request.fields)
        if end.decision is Decision.UNKNOWN:
            _log.info("transaction still open group=%s peer=%s offset=%d", end.group, request.peer, end.queue_offset)
            return success()
        try:
            is_new = self.end(end)
        except EndRefused as refused:
            _log.warning("transaction not ended group=%s peer=%s: %s", end.group, request.peer, refused)
            return failure(refused.code, str(refused))
        return success() if is_new else (ResponseCode.SUCCESS, "the transaction had ended before", {}, b"")

    def end(self, end: End) -> bool:
        """
        End a half message; return False where it had ended before, whatever was decided then.

        Durable as the flush policy promises when this returns. Raises `EndRefused`.
        """
        half = self._half(end)
        with self._turn(half.queue_offset) as is_open:
            if not is_open:
                return False
            messages = [_op_message(half)]
            if end.decision is Decision.COMMIT:
                messages.insert(0, self._committed(half))
            self._append(messages)
        return True

    def is_ended(self, queue_offset: int) -> bool:
        """Say whether the half message with this queue offset has ended."""
        with self._changed:
            return queue_offset in self._ended

    @contextmanager
    def _turn(self, queue_offset: int) -> Iterator[bool]:
        """Yield whether the half message is open; who gets True ends it, and nobody else meanwhile."""
        with self._changed:
            self._changed.wait_for(lambda: queue_offset not in self._ending)
            is_open = queue_offset not in self._ended
            if is_open:
                self._ending.add(queue_offset)
        if not is_open:
            yield False
            return
        is_done = False
        try:
            yield True
            is_done = True
        finally:
            with self._changed:
                self._ending.remove(queue_offset)
                if is_done:
                    self._ended.add(queue_offset)
                self._changed.notify_all()

    def _half(self, end: End) -> StoredMessage:
        """Return the half message, which must be the one the producer sent."""
        half = self._store.message_at(end.physical_offset) if end.physical_offset >= 0 else None
        if half is None or half.topic != _names.HALF_TOPIC:
            raise EndRefused(ResponseCode.SYSTEM_ERROR, "Find prepared transaction message failed")
        for is_wrong, what in (
            (half.properties.get(_PRODUCER_GROUP) != end.group, "The producer group"),
            (half.queue_offset != end.queue_offset, "The transaction state table offset"),
        ):
            if is_wrong:
                raise EndRefused(ResponseCode.SYSTEM_ERROR, f"{what} wrong")
        return half

    def _committed(self, half: StoredMessage) -> "NewStoredMessage":
        """Return the message consumers will see, or that waits where it has a delay level."""
        topic, queue_id = half.properties.get(_REAL_TOPIC), half.properties.get(_REAL_QUEUE, "")
        if not topic or not queue_id.isdecimal():
            raise EndRefused(ResponseCode.SYSTEM_ERROR, "the half message does not say where it goes")
        sys_flag = (half.sys_flag & ~_KIND_BITS) | Decision.COMMIT
        properties = {name: value for name, value in half.properties.items() if name not in _HALF_PROPERTIES}
        place = (topic, int(queue_id), properties)
        topic, queue, properties = self._store.delayed(*place, sys_flag=sys_flag) or place
        return {
            "topic": topic,
            "queue_id": queue,
            "body": half.body,
            "properties": properties,
            "flag": half.flag,
            "sys_flag": sys_flag,
            "born_timestamp": half.born_timestamp,
            "born_host": half.born_host,
            "reconsume_times": half.reconsume_times,
            "prepared_transaction_offset": half.physical_offset,
        }

    def _append(self, messages: "list[NewStoredMessage]") -> None:
        try:
            self._store.append_as_one(messages)
        except MessageTooLarge as error:
            raise EndRefused(ResponseCode.MESSAGE_ILLEGAL, str(error)) from error
        except StoreFull as error:
            raise EndRefused(ResponseCode.SERVICE_NOT_AVAILABLE, str(error)) from error
        except Forbidden as error:
            raise EndRefused(ResponseCode.NO_PERMISSION, str(error)) from error


def op_offsets(message: StoredMessage) -> Iterator[int]:
    """Yield the queue offsets of half messages an op message ends: one in RocketMQ 4.x, joined by commas in 5.x."""
    if message.tag != _OP_TAG:
        return
    for text in message.body.split(b","):
        if text.strip().isdigit():
            yield int(text)


def _op_message(half: StoredMessage) -> "NewStoredMessage":
    return {
        "topic": _names.OP_TOPIC,
        "queue_id": half.queue_id,
        "body": b"%d" % half.queue_offset,
        "properties": {"TAGS": _OP_TAG},
    }


def _load_ended(store: Store) -> EndedHalves:
    """
    Read the op messages that count.

    RocketMQ commits how far it has looked: half messages before that offset are done with, and so are the op messages.
    """
    halves = store.committed_offset(GROUP, _names.HALF_TOPIC, 0) or 0
    ended = EndedHalves(max(halves, store.min_offset(_names.HALF_TOPIC, 0)))
    begin = store.committed_offset(GROUP, _names.OP_TOPIC, 0) or 0
    offset, end = max(begin, store.min_offset(_names.OP_TOPIC, 0)), store.max_offset(_names.OP_TOPIC, 0)
    while offset < end:
        _, messages, following = store.get(_names.OP_TOPIC, 0, offset, _OPS_AT_ONCE)
        for message in messages:
            for queue_offset in op_offsets(message):
                ended.add(queue_offset)
        if following <= offset:
            _log.error("op messages cannot be read from offset=%d on; ended transactions may look open", offset)
            break
        offset = following
    return ended


def _read(fields: Mapping[str, str]) -> End:
    decision = integer(fields, "commitOrRollback")
    if decision not in {kind.value for kind in Decision}:
        raise BadRequest(f"commitOrRollback is {decision}; it may be 0 (unknown), 8 (commit) or 12 (rollback)")
    return End(
        group=required(fields, "producerGroup"),
        physical_offset=integer(fields, "commitLogOffset"),
        queue_offset=integer(fields, "tranStateTableOffset"),
        decision=Decision(decision),
        is_checked=flag(fields, "fromTransactionCheck"),
    )
