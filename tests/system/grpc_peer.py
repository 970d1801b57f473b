"""
A gRPC client of the tests: RocketMQ's v2 messages over a plain channel, without ferromq's client.

Each method is one call, and returns the server's answer; each test decides which answer is right.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import grpc

from ferromq._proto import messages as pb

_SERVICE = "/apache.rocketmq.v2.MessagingService"
_PATIENCE = 20.0
_numbers = itertools.count(1)


@dataclass(frozen=True)
class Received:
    """A message under a lease, with the fields that tests read."""

    body: str
    attempt: int
    handle: str
    message_id: str
    queue_id: int
    queue_offset: int
    properties: dict[str, str] = field(default_factory=dict, compare=False)


class GrpcPeer:
    """One client of one broker."""

    def __init__(self, endpoint: str, *, client_id: str = "peer@1") -> None:
        self._channel = grpc.insecure_channel(endpoint)
        self._metadata = (("x-mq-client-id", client_id), ("x-mq-language", "PYTHON"))
        # Packed answers come after any wait, also one below RocketMQ's five seconds.
        self._any_wait = (*self._metadata, ("x-ferromq-packed", "1"))

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()

    def call(self, method: str, request: Any) -> Any:
        """Ask a unary method, and return its response."""
        call = self._channel.unary_unary(f"{_SERVICE}/{method}")
        answer = call(request.SerializeToString(), metadata=self._metadata, timeout=_PATIENCE)
        return getattr(pb, f"{method}Response").FromString(answer)

    def send(self, topic: str, body: str, *, wanted: int | None = pb.Code.OK, **system: Any) -> Any:
        """
        Send one message and return its entry; *system* are system properties.

        The status must be *wanted*, unless that is None; then the whole response is returned.
        """
        number = next(_numbers)
        properties = pb.SystemProperties(message_id=f"01AB{number:030X}", **system)
        message = pb.Message(topic=pb.Resource(name=topic), body=body.encode(), system_properties=properties)
        response = self.call("SendMessage", pb.SendMessageRequest(messages=[message]))
        if wanted is None:
            return response
        assert response.status.code == wanted, response.status
        return response.entries[0]

    def receive(
        self,
        group: str,
        topic: str,
        count: int = 32,
        *,
        invisible: float = 30,
        wait: float = 0,
        queue_id: int = -1,
        attempt_id: str | None = None,
        expression: Any = None,
    ) -> list[Received]:
        """Receive messages; none if none arrives within *wait* seconds. Any other status fails."""
        request = pb.ReceiveMessageRequest(
            group=pb.Resource(name=group),
            message_queue=pb.MessageQueue(topic=pb.Resource(name=topic), id=queue_id),
            filter_expression=expression or pb.FilterExpression(type=pb.FilterType.TAG, expression="*"),
            batch_size=count,
            attempt_id=attempt_id,
        )
        request.invisible_duration.FromMilliseconds(int(invisible * 1000))
        request.long_polling_timeout.FromMilliseconds(int(wait * 1000))
        call = self._channel.unary_stream(f"{_SERVICE}/ReceiveMessage")
        packets = call(request.SerializeToString(), metadata=self._any_wait, timeout=wait + _PATIENCE)
        received: list[Received] = []
        for part in map(pb.ReceiveMessageResponse.FromString, _unpacked(packets)):
            if part.WhichOneof("content") == "status":
                assert part.status.code in {pb.Code.OK, pb.Code.MESSAGE_NOT_FOUND}, part.status
            elif part.WhichOneof("content") == "message":
                received.append(_received(part.message))
        return received

    def ack(self, group: str, topic: str, message: Received) -> int:
        """Acknowledge a message, and return the code."""
        entry = pb.AckMessageEntry(message_id=message.message_id, receipt_handle=message.handle)
        request = pb.AckMessageRequest(group=pb.Resource(name=group), topic=pb.Resource(name=topic), entries=[entry])
        response = self.call("AckMessage", request)
        return int(response.entries[0].status.code if response.entries else response.status.code)

    def change(self, group: str, topic: str, message: Received, invisible: float) -> tuple[int, str]:
        """Let the lease end *invisible* seconds from now; return the code and the new handle."""
        request = pb.ChangeInvisibleDurationRequest(
            group=pb.Resource(name=group),
            topic=pb.Resource(name=topic),
            receipt_handle=message.handle,
            message_id=message.message_id,
        )
        request.invisible_duration.FromMilliseconds(int(invisible * 1000))
        response = self.call("ChangeInvisibleDuration", request)
        return int(response.status.code), response.receipt_handle

    def forward(self, group: str, topic: str, message: Received, *, max_attempts: int = 16) -> int:
        """Send a message to the dead letters, and return the code."""
        request = pb.ForwardMessageToDeadLetterQueueRequest(
            group=pb.Resource(name=group),
            topic=pb.Resource(name=topic),
            receipt_handle=message.handle,
            message_id=message.message_id,
            delivery_attempt=message.attempt,
            max_delivery_attempts=max_attempts,
        )
        return int(self.call("ForwardMessageToDeadLetterQueue", request).status.code)

    def end(self, topic: str, entry: Any, *, commit: bool) -> int:
        """End the transaction of a send's *entry*, and return the code."""
        resolution = pb.TransactionResolution.COMMIT if commit else pb.TransactionResolution.ROLLBACK
        request = pb.EndTransactionRequest(
            topic=pb.Resource(name=topic),
            message_id=entry.message_id,
            transaction_id=entry.transaction_id,
            resolution=resolution,
            source=pb.TransactionSource.SOURCE_CLIENT,
        )
        return int(self.call("EndTransaction", request).status.code)

    def recall(self, topic: str, handle: str) -> int:
        """Recall a delayed message, and return the code."""
        request = pb.RecallMessageRequest(topic=pb.Resource(name=topic), recall_handle=handle)
        return int(self.call("RecallMessage", request).status.code)


def timestamp(at_ms: int) -> Any:
    """Return milliseconds since 1970 as protobuf has them."""
    stamp = pb.SystemProperties().delivery_timestamp
    stamp.FromMilliseconds(at_ms)
    return stamp


def _unpacked(packets: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the responses of a packed stream; each follows a varint with its length."""
    for packet in packets:
        at = 0
        while at < len(packet):
            length = shift = 0
            while packet[at] & 0x80:
                length, shift, at = length | (packet[at] & 0x7F) << shift, shift + 7, at + 1
            length, at = length | packet[at] << shift, at + 1
            yield packet[at : at + length]
            at += length


def _received(message: Any) -> Received:
    system = message.system_properties
    return Received(
        message.body.decode(),
        system.delivery_attempt,
        system.receipt_handle,
        system.message_id,
        system.queue_id,
        system.queue_offset,
        dict(message.user_properties),
    )


def bodies(messages: Sequence[Received]) -> list[str]:
    """Return what they hold."""
    return [message.body for message in messages]
