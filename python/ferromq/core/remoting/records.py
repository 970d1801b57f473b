"""Stored records, as brokers answer them over remoting, as the messages of RocketMQ's gRPC protocol."""

from collections.abc import Sequence

from ferromq import _ferromq
from ferromq._ferromq import StoredMessage
from ferromq._proto import messages as pb
from ferromq.errors import ServerError

_COMPRESSED, _KIND = 1, 0x700
_INFLATED = (0, 0x300)
"""Kinds of compression that every decoder of messages reads: gzip and zlib; 4.x producers write no kind."""


def decode(body: bytes, address: str) -> Sequence[StoredMessage]:
    """Return the records of an answer. Raises `ServerError` for other bytes."""
    try:
        return _ferromq.decode_records(body)
    except ValueError as error:
        raise ServerError(f"{address} answered with bytes that are no records: {error}") from None


def message_of(record: StoredMessage, topic: str) -> pb.Message:
    """Return a record as a message of *topic*, for which it may lie in a retry topic."""
    message = pb.Message.FromString(record.grpc_message())
    message.topic.name = topic
    flag = record.sys_flag
    if flag & _COMPRESSED and flag & _KIND not in _INFLATED:
        body = _decompressed(record)
        if body is not None:  # else it stays as it is, and reading it raises
            message.body = body
            message.system_properties.body_encoding = pb.Encoding.IDENTITY
            message.system_properties.ClearField("body_digest")
    return message


def _decompressed(record: StoredMessage) -> bytes | None:
    """Return the body of a record that is compressed by lz4 or zstd; None if it does not decompress."""
    columns = _ferromq.record_columns([record.raw], columns=["body", "sys_flag"])["columns"]
    (flags,), (_, body) = columns["sys_flag"][2], columns["body"][2]
    return None if bytes(flags)[0] & _COMPRESSED else bytes(body)
