"""
The question to a producer what became of its transaction: to whom it goes, and how it is written on either protocol.

When it is asked is decided by `check_back`.
"""

import itertools
import logging
import struct
from collections.abc import Mapping
from typing import Protocol

from ferromq import _names
from ferromq._codes import RequestCode
from ferromq._ferromq import StoredMessage, decode_records
from ferromq._proto import messages as pb
from ferromq.broker.clients import ClientTable, Pusher
from ferromq.broker.half_records import PRODUCER_GROUP, REAL_QUEUE, REAL_TOPIC, UNIQUE_KEY
from ferromq.broker.halves import Place
from ferromq.broker.replies import format_properties
from ferromq.broker.transactions import transaction_id
from ferromq.errors import MessageTooLarge

_log = logging.getLogger("ferromq.transactions")

_MAGIC, _MAGIC_LONG_TOPIC = 0xDAA320A7, 0xDAA320AB
_LONG_TOPIC = 128
_BORN_HOST_V6, _STORE_HOST_V6 = 1 << 4, 1 << 5
_HOST, _HOST_V6 = 8, 20
# Up to the system flag: length, magic, body's CRC, queue id, flag, queue offset, physical offset.
_HEAD = struct.Struct(">iIIiiqq")
_SYS_FLAG_END = 40
_OFFSET_DIGITS = 16


class Channel(Pusher, Protocol):
    """What reaches producers: the part of `Server` that is used for it."""

    def send_telemetry(self, stream: int, message: bytes) -> bool:
        """Send an encoded TelemetryCommand to a client; False where the stream is gone."""


class CheckRequests:
    """Asks producers; thread-safe."""

    def __init__(self, server: Channel, broker_name: str, table: ClientTable) -> None:
        self._server = server
        self._broker_name = broker_name
        self._table = table
        self._turn = itertools.count()

    def ask(self, half: StoredMessage, place: Place, properties: Mapping[str, str]) -> bool:
        """
        Ask a live producer of its group about a half message that lies at *place* now, with other *properties*.

        Producers take turns; False where there is none that can be reached.
        """
        group = properties.get(PRODUCER_GROUP, "")
        producers = self._table.reachable_producers(group)
        begin = next(self._turn)
        content = as_sent(half, place, properties) if producers else b""
        for number in range(len(producers)):
            client, stream = producers[(begin + number) % len(producers)]
            try:
                if stream is not None:
                    is_asked = self._server.send_telemetry(stream, _command(content, place))
                else:
                    fields = self._fields(half, place, properties)
                    is_asked = self._server.push(
                        client.connection, RequestCode.CHECK_TRANSACTION_STATE, fields, content
                    )
            except MessageTooLarge as error:
                _log.warning("producer not asked group=%s peer=%s: %s", group, client.peer, error)
                continue
            if is_asked:
                return True
        return False

    def _fields(self, half: StoredMessage, place: Place, properties: Mapping[str, str]) -> dict[str, str]:
        fields = {
            "topic": _names.HALF_TOPIC,
            "commitLogOffset": str(place.physical_offset),
            "tranStateTableOffset": str(place.queue_offset),
            "offsetMsgId": f"{half.offset_message_id[:-_OFFSET_DIGITS]}{place.physical_offset:0{_OFFSET_DIGITS}X}",
            "bname": self._broker_name,
        }
        unique_key = properties.get(UNIQUE_KEY)
        if unique_key is not None:
            fields |= {"msgId": unique_key, "transactionId": unique_key}
        return fields


def _command(content: bytes, place: Place) -> bytes:
    (message,) = decode_records(content)
    command = pb.RecoverOrphanedTransactionCommand(
        message=pb.Message.FromString(message.grpc_message()),
        transaction_id=transaction_id(place.queue_offset, place.physical_offset),
    )
    encoded: bytes = pb.TelemetryCommand(recover_orphaned_transaction_command=command).SerializeToString()
    return encoded


def as_sent(half: StoredMessage, place: Place, properties: Mapping[str, str]) -> bytes:
    """Return the record of a half message as its producer meant it: of its own topic and queue."""
    raw, sys_flag = half.raw, half.sys_flag
    _, _, body_crc, _, flag, _, _ = _HEAD.unpack_from(raw)
    hosts = (_HOST_V6 if sys_flag & bit else _HOST for bit in (_BORN_HOST_V6, _STORE_HOST_V6))
    # The rest up to the prepared transaction offset: system flag, two times and hosts, times consumed.
    rest = raw[_SYS_FLAG_END - 4 : _SYS_FLAG_END + 8 + next(hosts) + 8 + next(hosts) + 4]
    topic, body = properties[REAL_TOPIC].encode(), half.body
    text = format_properties(properties).encode()
    is_long = len(topic) >= _LONG_TOPIC
    tail = b"".join(
        (
            rest,
            struct.pack(">qi", 0, len(body)),
            body,
            len(topic).to_bytes(2 if is_long else 1),
            topic,
            struct.pack(">H", len(text)),
            text,
        )
    )
    magic = _MAGIC_LONG_TOPIC if is_long else _MAGIC
    queue_id = int(properties[REAL_QUEUE])
    size = _HEAD.size + len(tail)
    return _HEAD.pack(size, magic, body_crc, queue_id, flag, place.queue_offset, place.physical_offset) + tail
