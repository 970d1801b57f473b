"""
Ends transactions by commit or rollback.

The send path stores half messages. The committed message and the op message, which marks the half message as ended,
are one append: after a crash both exist or neither, so a transaction is committed once or still open.
`half_message_index` knows which half messages are open; `check_back` asks their producers.
"""

import logging
import re
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import TYPE_CHECKING, TypeAlias

from ferromq._ferromq import Request, Store, StoredMessage
from ferromq._proto import messages as pb
from ferromq.broker.grpc_answers import OK, Refused, topic_name
from ferromq.broker.transactions.half_message_index import HalfMessageIndex
from ferromq.broker.transactions.half_records import (
    COMMITTED,
    KIND_BITS,
    MAY_WAIT,
    MOVED,
    OP_TAG,
    PRODUCER_GROUP,
    QUEUE,
    REAL_QUEUE,
    REAL_TOPIC,
    UNIQUE_KEY,
    identity,
    real_queue,
)
from ferromq.errors import Forbidden, MessageTooLarge, StoreFull
from ferromq.process.limited_log import LimitedLog
from ferromq.protocol import naming
from ferromq.protocol.codes import ResponseCode
from ferromq.protocol.remoting import Answer, BadRequest, failure, flag, integer, required, success

if TYPE_CHECKING:
    from ferromq._ferromq import NewStoredMessage

_log = logging.getLogger("ferromq.transactions")

Allows: TypeAlias = Callable[[Request, str, str], bool]
"""Whether the user of a request may act on a topic: request, topic, action."""

# Properties that only the half message has. `TRAN_MSG` stays, so consumers see that a transaction sent the message.
_HALF_PROPERTIES = frozenset({REAL_TOPIC, REAL_QUEUE})
# Physical offset, then queue offset, of the half message.
_TRANSACTION_ID = re.compile(r"[0-9A-F]{32}\Z")
_OFFSET_DIGITS = 16
_ID_VERSION = "01"
"""The beginning of message ids of gRPC clients."""


class Decision(IntEnum):
    """A producer's decision; the numbers are the transaction's bits in RocketMQ's system flag."""

    UNKNOWN = 0
    COMMIT = COMMITTED
    ROLLBACK = 12


class EndRefused(Exception):  # noqa: N818 (an answer, not a failure of ours)
    """A transaction cannot be ended; the text is for the producer."""

    def __init__(self, code: ResponseCode, remark: str) -> None:
        super().__init__(remark)
        self.code = code


@dataclass(frozen=True, slots=True)
class EndRequest:
    """A producer's decision about a half message, and its reference to that message."""

    group: str
    physical_offset: int
    queue_offset: int
    decision: Decision
    is_checked: bool = False
    """Whether this answers a check-back."""
    topic: str | None = None
    """The topic of the message; None if not given."""
    message_id: str | None = None
    """The producer's id of the message; None if not given."""
    may_send: Callable[[str], bool] = lambda _topic: True
    """Whether the user may send to the topic of the half message, which a remoting request need not name."""


_RESOLUTIONS = {
    pb.TransactionResolution.COMMIT: Decision.COMMIT,
    pb.TransactionResolution.ROLLBACK: Decision.ROLLBACK,
}
_DISCARDED = f"the transaction was discarded; its message is in {naming.DISCARD_TOPIC}, request 323 restores it"
_OTHERWISE = {
    Decision.COMMIT: "the transaction was rolled back before: another producer of its group answered a check-back",
    Decision.ROLLBACK: "the transaction was committed before: another producer of its group answered a check-back",
}
_RECENT = 10_000
_COUNTED = 10_000
"""Topics that are counted by name; further ones are counted together."""
_GRPC_CODES = {
    ResponseCode.SYSTEM_ERROR: pb.Code.INVALID_TRANSACTION_ID,
    ResponseCode.MESSAGE_ILLEGAL: pb.Code.MESSAGE_BODY_TOO_LARGE,
    ResponseCode.SERVICE_NOT_AVAILABLE: pb.Code.INTERNAL_SERVER_ERROR,
    ResponseCode.NO_PERMISSION: pb.Code.FORBIDDEN,
}


class TransactionEnder:
    """Answers request 37 and EndTransaction; thread-safe."""

    def __init__(
        self,
        store: Store,
        halves: HalfMessageIndex,
        *,
        is_slave: Callable[[], bool] = lambda: False,
        count_put: Callable[[str, int, int], None] = lambda _topic, _messages, _size: None,
        allows: Allows,
    ) -> None:
        """*count_put* is called for committed messages: topic, count, bytes of the records."""
        self._store = store
        self._halves = halves
        self._is_slave = is_slave
        self._count_put = count_put
        self._allows = allows
        self._seldom = LimitedLog(_log)
        self._recent: OrderedDict[tuple[str | None, int, str | None], Decision] = OrderedDict()
        """The last decisions: readers of the store do not see them at once."""
        self._ended: Counter[tuple[str, str]] = Counter()
        self._counting = threading.Lock()

    def ended(self) -> dict[tuple[str, str], int]:
        """Return how many transactions ended since the start, by decision and topic; an empty one sums the rest."""
        with self._counting:
            return dict(self._ended)

    def end_transaction(self, request: Request) -> Answer:
        """Answer request 37: end a half message as its producer decided; repeated requests change nothing."""
        if self._is_slave():
            return failure(ResponseCode.SLAVE_NOT_AVAILABLE, "this broker is a slave; ask its master")
        end = replace(_read(request.fields), may_send=lambda topic: self._allows(request, topic, "Pub"))
        if end.decision is Decision.UNKNOWN:
            text = "transaction still open group=%s peer=%s offset=%d"
            self._seldom.log(logging.INFO, text, end.group, request.peer, end.queue_offset)
            return success()
        try:
            is_new = self.end(end)
        except EndRefused as refused:
            text = "transaction not ended group=%s peer=%s: %s"
            self._seldom.log(logging.WARNING, text, end.group, request.peer, refused)
            return failure(refused.code, str(refused))
        return success() if is_new else (ResponseCode.SUCCESS, "the transaction had ended before", {}, b"")

    def end_over_grpc(self, message: pb.EndTransactionRequest, request: Request) -> pb.EndTransactionResponse:
        """Answer EndTransaction, which names the half message by the transaction id of its send or check-back."""
        topic = topic_name(message.topic)
        if self._is_slave():
            raise Refused(pb.Code.INTERNAL_SERVER_ERROR, "this broker is a slave; ask its master")
        end = _read_grpc(message, topic)
        if end.decision is Decision.UNKNOWN:
            text = "transaction still open topic=%s peer=%s offset=%d"
            self._seldom.log(logging.INFO, text, topic, request.peer, end.queue_offset)
            return pb.EndTransactionResponse(status=OK)
        try:
            self.end(end)
        except EndRefused as refused:
            self._seldom.log(
                logging.WARNING, "transaction not ended topic=%s peer=%s: %s", topic, request.peer, refused
            )
            raise Refused(_GRPC_CODES[refused.code], str(refused)) from refused
        return pb.EndTransactionResponse(status=OK)

    def end(self, end: EndRequest) -> bool:
        """
        End a half message; returns False if it had ended before, with the same decision.

        Any location where check-back put it is accepted. Durable on return as the flush policy promises. Raises
        `EndRefused`.
        """
        half = self._half(end)
        is_new = self._end(half, end.decision)
        if not is_new:
            copy = self._halves.open_copy(half)
            is_new = copy is not None and self._end(copy, end.decision)
        if not is_new:
            self._check_decision(half, end.decision)
        return is_new

    def _check_decision(self, half: StoredMessage, decision: Decision) -> None:
        """Raise `EndRefused` if a half message ended with another decision; of one without an id it is not known."""
        key = identity(half)
        if key[0] is None:
            return
        ended = self._recent.get(key)
        if ended is None:
            if decision is Decision.COMMIT and self._halves.is_discarded(half):
                raise EndRefused(ResponseCode.SYSTEM_ERROR, _DISCARDED)
            ended = Decision.COMMIT if self._halves.was_committed(half) else Decision.ROLLBACK
        if ended is not decision:
            raise EndRefused(ResponseCode.SYSTEM_ERROR, _OTHERWISE[decision])

    def _end(self, half: StoredMessage, decision: Decision) -> bool:
        with self._halves.lock(half) as place:
            if place is None:
                return False
            if place.physical_offset != half.physical_offset:
                half = self._store.message_at(place.physical_offset) or half
            messages = [op_message(half.queue_offset)]
            if decision is Decision.COMMIT:
                messages.insert(0, self._committed(half))
            places = self._append(messages)
            self._halves.end(half, places[-1][0])
            self._recent[identity(half)] = decision
            if len(self._recent) > _RECENT:
                self._recent.popitem(last=False)
        self._count(decision.name, half.properties.get(REAL_TOPIC, ""))
        if decision is Decision.COMMIT:
            self._count_put(messages[0]["topic"], 1, places[0][2])
        return True

    def _count(self, decision: str, topic: str) -> None:
        key = (decision, topic)
        with self._counting:
            if key not in self._ended and len(self._ended) >= _COUNTED:
                key = (decision, "")
            self._ended[key] += 1

    def _half(self, end: EndRequest) -> StoredMessage:
        """Return the half message, after checking that the producer sent it."""
        half = self._store.message_at(end.physical_offset) if end.physical_offset >= 0 else None
        if half is None or half.topic != naming.HALF_TOPIC:
            raise EndRefused(ResponseCode.SYSTEM_ERROR, "Find prepared transaction message failed")
        properties = half.properties
        if not end.may_send(properties.get(REAL_TOPIC, "")):
            raise EndRefused(ResponseCode.NO_PERMISSION, "the user may not Pub the topic of this half message")
        for is_wrong, what in (
            (properties.get(PRODUCER_GROUP) != end.group, "The producer group"),
            (half.queue_offset != end.queue_offset, "The transaction state table offset"),
            (end.topic is not None and properties.get(REAL_TOPIC) != end.topic, "The topic"),
            (not _is_named(end.message_id, properties.get(UNIQUE_KEY, "")), "The message id"),
        ):
            if is_wrong:
                raise EndRefused(ResponseCode.SYSTEM_ERROR, f"{what} wrong")
        return half

    def _committed(self, half: StoredMessage) -> "NewStoredMessage":
        """Return the message for consumers, or for the delayed delivery of one with a delay."""
        properties = half.properties
        topic, queue = properties.get(REAL_TOPIC), real_queue(properties)
        if not topic or queue is None:
            raise EndRefused(ResponseCode.SYSTEM_ERROR, "the half message names no topic or queue")
        sys_flag = (half.sys_flag & ~KIND_BITS) | Decision.COMMIT
        for name in _HALF_PROPERTIES:
            properties.pop(name, None)
        if MAY_WAIT & properties.keys():
            try:
                waiting = self._store.delayed(topic, queue, properties, sys_flag=sys_flag)
            except ValueError as error:
                raise EndRefused(ResponseCode.MESSAGE_ILLEGAL, str(error)) from error
            topic, queue, properties = waiting or (topic, queue, properties)
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

    def _append(self, messages: "list[NewStoredMessage]") -> list[tuple[int, int, int]]:
        try:
            return self._store.append_as_one(messages)
        except MessageTooLarge as error:
            raise EndRefused(ResponseCode.MESSAGE_ILLEGAL, str(error)) from error
        except StoreFull as error:
            raise EndRefused(ResponseCode.SERVICE_NOT_AVAILABLE, str(error)) from error
        except Forbidden as error:
            raise EndRefused(ResponseCode.NO_PERMISSION, str(error)) from error


def op_message(*halves: int, is_moved: bool = False) -> "NewStoredMessage":
    """Return the op message that ends half messages, by queue offset; *is_moved*: their copies are elsewhere."""
    return {
        "topic": naming.OP_TOPIC,
        "queue_id": QUEUE,
        "body": b",".join(b"%d" % queue_offset for queue_offset in halves),
        "properties": {"TAGS": OP_TAG, MOVED: "true"} if is_moved else {"TAGS": OP_TAG},
    }


def _read(fields: Mapping[str, str]) -> EndRequest:
    decision = integer(fields, "commitOrRollback")
    if decision not in {kind.value for kind in Decision}:
        raise BadRequest(f"commitOrRollback is {decision}; it may be 0 (unknown), 8 (commit) or 12 (rollback)")
    return EndRequest(
        group=required(fields, "producerGroup"),
        physical_offset=integer(fields, "commitLogOffset"),
        queue_offset=integer(fields, "tranStateTableOffset"),
        decision=Decision(decision),
        is_checked=flag(fields, "fromTransactionCheck"),
    )


def transaction_id(queue_offset: int, physical_offset: int) -> str:
    """Return the transaction id that gRPC clients use for a half message."""
    return f"{physical_offset:0{_OFFSET_DIGITS}X}{queue_offset:0{_OFFSET_DIGITS}X}"


def _is_named(message_id: str | None, unique_key: str) -> bool:
    """
    Return whether a request names the message with *unique_key*, or no message at all.

    RocketMQ's Python client 5.0.1 omits the id's version in answers to check-back; RocketMQ ignores the id.
    """
    return message_id in {None, unique_key, unique_key.removeprefix(_ID_VERSION)}


def _read_grpc(message: pb.EndTransactionRequest, topic: str) -> EndRequest:
    given = message.transaction_id
    if not given.strip():
        raise Refused(pb.Code.INVALID_TRANSACTION_ID, "transaction id cannot be empty")
    if not _TRANSACTION_ID.match(given):
        raise Refused(
            pb.Code.INVALID_TRANSACTION_ID,
            f"transaction id {given[:100]!r} is not from this broker; end the transaction at the broker that began it",
        )
    return EndRequest(
        # In RocketMQ the producer group of a gRPC client is named like the topic.
        group=topic,
        physical_offset=int(given[:_OFFSET_DIGITS], 16),
        queue_offset=int(given[_OFFSET_DIGITS:], 16),
        decision=_RESOLUTIONS.get(message.resolution, Decision.UNKNOWN),
        is_checked=message.source == pb.TransactionSource.SOURCE_SERVER_CHECK,
        topic=topic,
        message_id=message.message_id or None,
    )
