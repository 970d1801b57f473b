"""Stored records, as brokers answer them over remoting, as the messages of RocketMQ's gRPC protocol."""

from collections.abc import Sequence

from ferromq import _ferromq
from ferromq._ferromq import StoredMessage
from ferromq._proto import messages as pb
from ferromq.errors import ServerError


def decode(body: bytes, address: str) -> Sequence[StoredMessage]:
    """
    Return the records of an answer. Raises `ServerError` for other bytes.

    A body is compared with its checksum when it is read: one that is damaged holds up no other message.
    """
    try:
        return _ferromq.decode_records(body, check=False)
    except ValueError as error:
        raise ServerError(f"{address} answered with bytes that are no records: {error}") from None


def message_of(record: StoredMessage, topic: str) -> pb.Message:
    """Return a record as a message of *topic*, for which it may lie in a retry topic."""
    message = pb.Message.FromString(record.grpc_message(stored_digest=True))
    message.topic.name = topic
    return message
