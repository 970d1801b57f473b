"""
The check-back request to a producer: which producer gets it, and its encoding in both protocols.

`check_back` decides when to send it.
"""

import itertools
import logging
import struct
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol

from ferromq._ferromq import StoredMessage, decode_records
from ferromq.broker.clients.client import Client, PushChannel
from ferromq.broker.clients.table import ClientTable
from ferromq.broker.transactions.end_transaction import transaction_id
from ferromq.broker.transactions.half_message_index import Location
from ferromq.broker.transactions.half_records import PRODUCER_GROUP, REAL_QUEUE, REAL_TOPIC, UNIQUE_KEY
from ferromq.errors import MessageTooLarge
from ferromq.protocol.codes import RequestCode
from ferromq.protocol.properties import format_properties

_log = logging.getLogger("ferromq.transactions")

_MAGIC, _MAGIC_LONG_TOPIC = 0xDAA320A7, 0xDAA320AB
_LONG_TOPIC = 128
_BORN_HOST_V6, _STORE_HOST_V6 = 1 << 4, 1 << 5
_HOST, _HOST_V6 = 8, 20
# Up to the system flag: length, magic, body's CRC, queue id, flag, queue offset, physical offset.
_HEAD = struct.Struct(">iIIiiqq")
_SYS_FLAG_END = 40
_OFFSET_DIGITS = 16
_PREPARED = 8
_NOT_PREPARED = bytes(_PREPARED)
# Of protobuf: the bit that says that a number goes on, and what begins the fields of a TelemetryCommand that recovers a
# transaction: number 5, and 1 and 2 in it, all of variable length.
_MORE = 0x80
_RECOVER, _MESSAGE, _TRANSACTION_ID = b"\x2a", b"\x0a", b"\x12"

_PAUSE_SECONDS, _MOST_WAITS = 0.01, 100
"""The length of a wait for a group with full buffers, and the most waits in a round."""

_Producer = tuple[Client, int | None]
_TELEMETRY = "Telemetry"
_CHECK = RequestCode.CHECK_TRANSACTION_STATE


class ProducerChannel(PushChannel, Protocol):
    """The part of `Server` that sends to producers."""

    def allows(self, user: str | None, peer: str, topic: str, action: str) -> bool:
        """Return whether a user may act on a topic."""

    def send_telemetry(self, stream: int, message: bytes) -> bool:
        """Send an encoded TelemetryCommand to a client; returns False if the stream is gone."""


class CheckOutcome(Enum):
    """The outcome of a check request."""

    SENT = "sent"
    UNREACHABLE = "unreachable"
    """No producer of the group is reachable, or accepts it."""
    BACKPRESSURE = "backpressure"
    """The reachable producers' buffers are full: retry later."""


@dataclass(slots=True)
class PendingCheck:
    """
    An open half message, its current location, and its properties there.

    Never modified; not frozen, since a hundred thousand are made in a round.
    """

    half: StoredMessage
    properties: Mapping[str, str]
    place: Location

    @property
    def group(self) -> str:
        """The producer group."""
        return self.properties.get(PRODUCER_GROUP, "")


class CheckSender:
    """Sends check requests to producers; thread-safe."""

    def __init__(
        self,
        server: ProducerChannel,
        broker_name: str,
        table: ClientTable,
        needs_nothing: Callable[[int | str], bool],
    ) -> None:
        """*needs_nothing* returns whether a request is exempt from signatures and policies."""
        self._server = server
        self._needs_nothing = needs_nothing
        self._broker_name = broker_name
        self._table = table
        self._turn = itertools.count()

    def send(self, checks: Sequence[PendingCheck]) -> list[CheckOutcome]:
        """Send each request to a live producer of its group, in turns; returns the outcomes in order."""
        groups = [check.group for check in checks]
        producers = {group: self._table.reachable_producers(group) for group in set(groups)}
        # All are encoded before the first is sent, so that they leave in one write.
        requests = [
            (check, producers[group], self._encode(check, producers[group]))
            for check, group in zip(checks, groups, strict=True)
        ]
        return [self._send(check, reachable, encoded) for check, reachable, encoded in requests]

    def _encode(self, check: PendingCheck, producers: Sequence[_Producer]) -> "_EncodedCheck | None":
        """Encode a request for the protocols of its producers; None without producers, or if it cannot be encoded."""
        if not producers:
            return None
        try:
            content = as_sent(check.half, check.place, check.properties)
            streams = {stream is not None for _, stream in producers}
            return _EncodedCheck(
                content,
                _command(content, check.place) if True in streams else b"",
                self._fields(check.half, check.place, check.properties) if False in streams else {},
            )
        except Exception:  # noqa: BLE001 (one bad message must not stop the checks of others)
            # It is counted, so it is discarded in the end.
            _log.exception("producer cannot be asked message_id=%s", check.half.message_id)
            return None

    def _send(
        self, check: PendingCheck, producers: Sequence[_Producer], encoded: "_EncodedCheck | None"
    ) -> CheckOutcome:
        if encoded is None:
            return CheckOutcome.UNREACHABLE
        begin, outcome = next(self._turn), CheckOutcome.UNREACHABLE
        for number in range(len(producers)):
            client, stream = producers[(begin + number) % len(producers)]
            # Any client can say that it belongs to a producer group.
            if not self._may_be_asked(client, check.properties.get(REAL_TOPIC, "")):
                continue
            try:
                if stream is None:
                    is_sent = self._server.push(client.connection, _CHECK, encoded.fields, encoded.content)
                else:
                    is_sent = self._server.send_telemetry(stream, encoded.command)
            except MessageTooLarge as error:
                _log.warning("producer not asked group=%s peer=%s: %s", check.group, client.peer, error)
                continue
            except Exception:  # noqa: BLE001 (one bad message must not stop the checks of others)
                _log.exception("producer not asked group=%s peer=%s", check.group, client.peer)
                continue
            if is_sent:
                return CheckOutcome.SENT
            outcome = CheckOutcome.BACKPRESSURE
        return outcome

    def _may_be_asked(self, client: Client, topic: str) -> bool:
        """Return whether a client may send to a topic, or is one of those that need not say who they are."""
        introduction = _TELEMETRY if client.is_grpc else RequestCode.HEART_BEAT
        if client.user is None and self._needs_nothing(introduction):
            return True
        return self._server.allows(client.user, client.peer, topic, "Pub")

    def _fields(self, half: StoredMessage, place: Location, properties: Mapping[str, str]) -> dict[str, str]:
        fields = {
            # RocketMQ names the half topic, which is for super users alone. Its client 5.5 repeats the name that stands
            # here when it ends the transaction.
            "topic": properties[REAL_TOPIC],
            "commitLogOffset": str(place.physical_offset),
            "tranStateTableOffset": str(place.queue_offset),
            "offsetMsgId": f"{half.offset_message_id[:-_OFFSET_DIGITS]}{place.physical_offset:0{_OFFSET_DIGITS}X}",
            "bname": self._broker_name,
        }
        unique_key = properties.get(UNIQUE_KEY)
        if unique_key is not None:
            fields |= {"msgId": unique_key, "transactionId": unique_key}
        return fields


class _EncodedCheck(NamedTuple):
    """An encoded request."""

    content: bytes
    """The record of the half message, with its own topic and queue."""
    command: bytes
    """For producers over gRPC."""
    fields: Mapping[str, str]
    """For producers over remoting."""


class CheckRound:
    """
    The check requests of one round; waits a while for slow producers, then skips their group.

    Not thread-safe.
    """

    def __init__(self, sender: CheckSender, pause: Callable[[float], bool]) -> None:
        """*pause* waits so many seconds, and returns whether to stop."""
        self._sender = sender
        self._pause = pause
        self._waits = Counter[str]()

    def is_skipped(self, group: str) -> bool:
        """Return whether the round skips a group, whose producers' buffers stayed full."""
        return self._waits.get(group, 0) >= _MOST_WAITS

    def send(self, checks: Sequence[PendingCheck]) -> list[CheckOutcome]:
        """Send the requests; returns their outcomes in order."""
        outcomes = self._sender.send(checks)
        while True:
            late = [
                number
                for number, outcome in enumerate(outcomes)
                if outcome is CheckOutcome.BACKPRESSURE and not self.is_skipped(checks[number].group)
            ]
            if not late or self._pause(_PAUSE_SECONDS):
                return outcomes
            answers = self._sender.send([checks[number] for number in late])
            for number, outcome in zip(late, answers, strict=True):
                outcomes[number] = outcome
            # A group without late requests reads fast enough.
            self._waits.update(
                {checks[number].group for number in late if outcomes[number] is CheckOutcome.BACKPRESSURE}
            )


def _command(content: bytes, place: Location) -> bytes:
    """Return an encoded TelemetryCommand around the message, which Rust encodes."""
    (message,) = decode_records(content)
    encoded, name = message.grpc_message(), transaction_id(place.queue_offset, place.physical_offset).encode()
    inner = b"".join((_MESSAGE, _length(encoded), encoded, _TRANSACTION_ID, _length(name), name))
    return b"".join((_RECOVER, _length(inner), inner))


def _length(content: bytes) -> bytes:
    """Return the length of a field in protobuf's encoding."""
    value = len(content)
    encoded = bytearray()
    while value >= _MORE:
        encoded.append(value & (_MORE - 1) | _MORE)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def as_sent(half: StoredMessage, place: Location, properties: Mapping[str, str]) -> bytes:
    """Return the record of a half message with its own topic and queue."""
    raw, sys_flag = half.raw, half.sys_flag
    _, _, body_crc, _, flag, _, _ = _HEAD.unpack_from(raw)
    hosts = (sys_flag & _BORN_HOST_V6 > 0) + (sys_flag & _STORE_HOST_V6 > 0)
    # System flag, two times and hosts, times consumed; then the prepared transaction offset, which is left out.
    prepared = _SYS_FLAG_END + 8 + _HOST + 8 + _HOST + 4 + hosts * (_HOST_V6 - _HOST)
    length = prepared + _PREPARED
    body_end = length + 4 + int.from_bytes(raw[length : length + 4])
    topic, text = properties[REAL_TOPIC].encode(), format_properties(properties).encode()
    is_long = len(topic) >= _LONG_TOPIC
    tail = b"".join(
        (
            raw[_SYS_FLAG_END - 4 : prepared],
            _NOT_PREPARED,
            raw[length:body_end],
            len(topic).to_bytes(2 if is_long else 1),
            topic,
            len(text).to_bytes(2),
            text,
        )
    )
    magic = _MAGIC_LONG_TOPIC if is_long else _MAGIC
    size = _HEAD.size + len(tail)
    return _HEAD.pack(size, magic, body_crc, int(properties[REAL_QUEUE]), flag, *place) + tail
