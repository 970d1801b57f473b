"""
The trace of a message: what RocketMQ's clients wrote into the trace topic about its sends and consumptions.

A client with `enableMsgTrace` sends its records in batches. Each batch is a message with the ids of its records as
keys, so a trace is found in the index of each broker that has the trace topic.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from ferromq._ferromq import StoredMessage
from ferromq.admin.asking import Ask, each
from ferromq.admin.calls import Calls
from ferromq.admin.results import Unreachable
from ferromq.protocol import message_traces
from ferromq.protocol.codes import RequestCode, ResponseCode
from ferromq.protocol.message_traces import Begun, Ended, Recalled, Result, SendKind, Sent, State, TransactionEnded
from ferromq.terminal.objects import html_of

END_OF_TIME = 2**63 - 1
_PAGE = 64
"""Messages of one answer; brokers of RocketMQ answer no more."""
_LARGE = 2 << 20
"""
Bytes of an answer behind which more may follow: brokers answer up to 4 MiB, and clients' trace messages have 128 KB at
most.
"""
_SECOND = 1000
"""Milliseconds, which are the finest time of an index."""
_MOST = 1024
"""Trace messages that are read of one broker."""
_MOST_RECORDS = 4096
"""Records of the message that are kept, of all brokers together."""
_MOST_BYTES = 16 << 20
"""
Bytes of trace messages after which no further one is decoded, of all brokers together: about five seconds of a
processor. A message that cannot be read counts as the largest one.
"""


@dataclass(frozen=True, slots=True)
class TracedSend:
    """A send of the message. Times are in milliseconds since 1970."""

    began: int
    latency: int
    """Milliseconds until the answer."""
    is_success: bool
    group: str
    """The producer group."""
    client: str
    """The address of the producer's host."""
    broker: str | None
    """The remoting address of the broker that it was sent to."""
    topic: str
    kind: SendKind
    body_size: int
    """Bytes."""

    def _repr_html_(self) -> str:
        return html_of(self)


@dataclass(frozen=True, slots=True)
class TracedConsumption:
    """One delivery to a listener. Times are in milliseconds since 1970."""

    group: str | None
    """None: the client is old, and the record of the begin is missing."""
    client: str
    """The address of the consumer's host."""
    began: int | None
    """None: the record of the begin is missing."""
    deliveries_before: int | None
    latency: int | None
    """Milliseconds in the listener; None: the record of the end is missing, as it is while the listener works."""
    result: Result | None
    """
    `success`; `failed`: the listener asked for another delivery; `exception`: it threw one; `null`: it returned
    nothing; `timeout`: it took longer than the consumer's `consumeTimeout`.
    """

    def _repr_html_(self) -> str:
        return html_of(self)


@dataclass(frozen=True, slots=True)
class TracedTransactionEnd:
    """An end of the message's transaction that the producer told."""

    at: int
    """Milliseconds since 1970."""
    state: State
    is_checked: bool
    """Whether the broker asked for the outcome."""
    group: str
    client: str
    transaction_id: str | None

    def _repr_html_(self) -> str:
        return html_of(self)


@dataclass(frozen=True, slots=True)
class TracedRecall:
    """A recall of the message while it was delayed."""

    at: int
    """Milliseconds since 1970."""
    is_success: bool
    group: str
    client: str

    def _repr_html_(self) -> str:
        return html_of(self)


@dataclass(frozen=True, slots=True)
class MessageTrace:
    """What clients traced of a message, each part in the order of time."""

    message_id: str
    sends: tuple[TracedSend, ...]
    consumptions: tuple[TracedConsumption, ...]
    transaction_ends: tuple[TracedTransactionEnd, ...]
    recalls: tuple[TracedRecall, ...]
    unreadable: int
    """
    Records of an unknown form in the trace messages that were read, of this message or of others. A trace message that
    is damaged or has more than 1 MiB counts as one.
    """
    is_complete: bool
    """
    Whether all records were read. Else the newest trace messages were read up to a limit: 1,024 of a broker, of these
    64 of one second, and 4,096 records and 16 MiB of all brokers together.
    """
    unreachable: tuple[Unreachable, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether no client traced anything of the message."""
        return not (self.sends or self.consumptions or self.transaction_ends or self.recalls)

    def _repr_html_(self) -> str:
        return html_of(self)


class Search(NamedTuple):
    """Which trace messages are read."""

    topic: str
    """The trace topic."""
    message_id: str
    """Of the message whose trace is wanted."""
    begin: int
    """Stored at this time or later, in milliseconds since 1970."""
    end: int
    """Stored at this time or earlier."""


def trace(calls: Calls, brokers: Iterable[str], search: Search) -> MessageTrace:
    """Return what the brokers' trace messages have of a message."""
    found = _Collected()
    answers, unreachable = each(calls, brokers, lambda ask: _read_at(ask, search, found))
    return found.trace(
        search.message_id, unreachable, is_complete=all(whole for _, whole in answers) and not found.is_full
    )


class _Collected:
    """What was read so far."""

    def __init__(self) -> None:
        self._sends: set[TracedSend] = set()
        self._begun: dict[str, tuple[Begun, str]] = {}
        """By request, with the client's host."""
        self._ended: dict[str, tuple[Ended, str]] = {}
        self._transaction_ends: set[TracedTransactionEnd] = set()
        self._recalls: set[TracedRecall] = set()
        self._unreadable = 0
        self._records = self._bytes = 0
        self.is_full = False
        """Whether records were left out."""

    def add(self, message: StoredMessage, message_id: str) -> None:
        """Add the records about a message. A client may have sent them twice."""
        if self._bytes > _MOST_BYTES:
            self.is_full = True
            return
        host = message.born_host.rpartition(":")[0].strip("[]")
        body = message_traces.plain(message)
        self._bytes += message_traces.LARGEST if body is None else len(body)
        if body is None:
            self._unreadable += 1
            return
        for record in message_traces.decode(body):
            if record is None:
                self._unreadable += 1
            elif record.message_id == message_id:
                if self._records == _MOST_RECORDS:
                    self.is_full = True
                    return
                self._records += 1
                self._add(record, host)

    def _add(self, record: message_traces.Record, host: str) -> None:
        match record:
            case Sent():
                place = (record.client_host or host, record.store_host, record.topic, record.kind, record.body_size)
                self._sends.add(TracedSend(record.at, record.latency, record.is_success, record.group, *place))
            case Begun():
                self._begun[record.request] = (record, host)
            case Ended():
                self._ended[record.request] = (record, host)
            case TransactionEnded():
                who = (record.group, host, record.transaction_id)
                self._transaction_ends.add(TracedTransactionEnd(record.at, record.state, record.is_checked, *who))
            case Recalled():
                self._recalls.add(TracedRecall(record.at, record.is_success, record.group, host))

    def _consumptions(self) -> Iterator[TracedConsumption]:
        for request in self._begun.keys() | self._ended.keys():
            begun, host = self._begun.get(request, (None, ""))
            ended, host = self._ended.get(request, (None, host))
            group = begun.group if begun is not None else ended and ended.group
            began, before = (None, None) if begun is None else (begun.at, begun.deliveries_before)
            latency, result = (None, None) if ended is None else (ended.latency, ended.result)
            yield TracedConsumption(group, host, began, before, latency, result)

    def trace(self, message_id: str, unreachable: tuple[Unreachable, ...], *, is_complete: bool) -> MessageTrace:
        """Return all of it."""
        return MessageTrace(
            message_id,
            tuple(sorted(self._sends, key=lambda send: (send.began, send.latency))),
            tuple(sorted(self._consumptions(), key=lambda one: (one.began or 0, one.deliveries_before or 0))),
            tuple(sorted(self._transaction_ends, key=lambda end: end.at)),
            tuple(sorted(self._recalls, key=lambda recall: recall.at)),
            self._unreadable,
            is_complete,
            unreachable,
        )


def _read_at(ask: Ask, search: Search, into: _Collected) -> bool:
    """
    Read a broker's newest messages with an id as key, up to `_MOST`, and return whether these are all.

    An answer is limited in messages and bytes, so the next question ends at the oldest message of the last answer. If
    one second, which is the finest time of the index, has more than one answer, the next question ends before it.
    """
    seen: set[int] = set()
    end, is_all = search.end, True
    while len(seen) < _MOST and not into.is_full:
        fields = {
            "topic": search.topic,
            "key": search.message_id,
            "maxNum": str(_PAGE),
            "beginTimestamp": str(search.begin),
            "endTimestamp": str(end),
            "_UNIQUE_KEY_QUERY": "false",
        }
        body = ask(RequestCode.QUERY_MESSAGE, fields, ResponseCode.QUERY_NOT_FOUND)
        answer = ask.messages(body)
        new = [message for message in answer if message.physical_offset not in seen]
        for message in new:
            # The index holds hashes only, so the answer may contain messages with other keys.
            if search.message_id in message.keys:
                into.add(message, search.message_id)
        if len(answer) < _PAGE and len(body) < _LARGE:
            return is_all
        seen.update(message.physical_offset for message in new)
        oldest = min((message.store_timestamp for message in answer), default=0)
        if new:
            end = oldest
        elif end > oldest - _SECOND:
            end, is_all = oldest - _SECOND, False
        else:  # the answer has messages that are newer than what was asked for
            return False
    return False
