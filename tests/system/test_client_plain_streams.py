"""The consumer works with servers without packed streams, such as RocketMQ's."""

from collections.abc import Iterator
from concurrent import futures
from typing import Any

import grpc
import pytest

import ferromq
from ferromq._proto import messages as pb
from ferromq.core.routes import endpoints_message

OK = pb.Status(code=pb.OK, message="OK")


class Rocket(grpc.GenericRpcHandler):
    """Answers a consumer as RocketMQ's proxy does: one response a message."""

    def __init__(self) -> None:
        self.endpoint = ""
        self.metadata: dict[str, dict[str, str]] = {}
        self.acknowledged: list[str] = []

    def service(self, details: Any) -> Any:
        """Find the function for a method."""
        method = details.method.rpartition("/")[2]
        self.metadata[method] = dict(details.invocation_metadata)
        if method == "ReceiveMessage":
            return grpc.unary_stream_rpc_method_handler(self.receive)
        if method == "Telemetry":
            return grpc.stream_stream_rpc_method_handler(self.telemetry)
        return grpc.unary_unary_rpc_method_handler(getattr(self, method.lower()))

    def queryroute(self, _request: bytes, _context: Any) -> bytes:
        """One queue, here."""
        broker = pb.Broker(name="java", endpoints=endpoints_message([self.endpoint]))
        queue = pb.MessageQueue(id=0, permission=pb.Permission.READ_WRITE, broker=broker)
        return pb.QueryRouteResponse(status=OK, message_queues=[queue]).SerializeToString()

    def telemetry(self, requests: Iterator[bytes], _context: Any) -> Iterator[bytes]:
        """Confirm the settings."""
        for request in requests:
            command = pb.TelemetryCommand.FromString(request)
            yield pb.TelemetryCommand(status=OK, settings=command.settings).SerializeToString()

    def receive(self, request: bytes, _context: Any) -> Iterator[bytes]:
        """Status, messages, time; one response each."""
        wanted = pb.ReceiveMessageRequest.FromString(request)
        yield pb.ReceiveMessageResponse(status=OK).SerializeToString()
        for number in range(wanted.batch_size):
            system = pb.SystemProperties(
                message_id=f"id-{number}", receipt_handle=f"handle-{number}", queue_offset=number
            )
            message = pb.Message(topic=wanted.message_queue.topic, system_properties=system, body=b"%d" % number)
            yield pb.ReceiveMessageResponse(message=message).SerializeToString()
        yield pb.ReceiveMessageResponse(delivery_timestamp=pb.Timestamp(seconds=1)).SerializeToString()

    def ackmessage(self, request: bytes, _context: Any) -> bytes:
        """Note the handles."""
        entries = pb.AckMessageRequest.FromString(request).entries
        self.acknowledged += [entry.receipt_handle for entry in entries]
        return pb.AckMessageResponse(status=OK).SerializeToString()

    def notifyclienttermination(self, _request: bytes, _context: Any) -> bytes:
        """Unregister."""
        return pb.NotifyClientTerminationResponse(status=OK).SerializeToString()


@pytest.fixture
def rocket() -> Iterator[Rocket]:
    """Yield a server of that kind."""
    handler = Rocket()
    server = grpc.server(futures.ThreadPoolExecutor(4), handlers=[handler])
    handler.endpoint = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    yield handler
    server.stop(None).wait()


def test_plain_streams_are_understood(rocket: Rocket) -> None:
    """The consumer asks for packed streams, gets none, and takes the messages one by one."""
    with ferromq.Consumer(rocket.endpoint, "billing", "orders") as consumer:
        messages = consumer.receive(5, wait=1)
        consumer.ack(messages)
    assert [message.body for message in messages] == [b"0", b"1", b"2", b"3", b"4"]
    assert rocket.metadata["ReceiveMessage"]["x-ferromq-packed"] == "1"
    assert rocket.acknowledged == [f"handle-{number}" for number in range(5)]


def test_every_request_identifies_its_client(rocket: Rocket) -> None:
    """The metadata RocketMQ's proxy expects; the client's id is the same everywhere."""
    with ferromq.Consumer(rocket.endpoint, "billing", "orders") as consumer:
        consumer.receive(1, wait=1)
    assert rocket.metadata.keys() == {"QueryRoute", "Telemetry", "ReceiveMessage", "NotifyClientTermination"}
    for metadata in rocket.metadata.values():
        assert metadata["x-mq-language"] == "PYTHON"
        assert metadata["x-mq-protocol"] == "GRPC_V2"
        assert len(metadata["x-mq-date-time"]) == len("20260101T000000Z")
        assert metadata.keys() >= {"x-mq-client-id", "x-mq-client-version", "x-mq-request-id"}
    assert len({metadata["x-mq-client-id"] for metadata in rocket.metadata.values()}) == 1
