"""
A consumer of RocketMQ's gRPC protocol that returns the server's answers: codes, bodies, attempts.

It sends its settings first, as official clients do: RocketMQ's proxy requires that.
"""

import itertools
import queue
from datetime import timedelta
from types import TracebackType
from typing import Any, NamedTuple, Self

import grpc

from ferromq._proto import messages as pb

_SERVICE = "/apache.rocketmq.v2.MessagingService"
_PATIENCE = 30.0
_SHORTEST_POLL = timedelta(seconds=5)
_VERSION = "5.1.0"
_numbers = itertools.count(1)


class Held(NamedTuple):
    """A message under a lease."""

    body: str
    attempt: int
    handle: str
    message_id: str


class Session:
    """One simple consumer in a group; it sends, too."""

    def __init__(self, endpoint: str, group: str, topic: str) -> None:
        host, _, port = endpoint.rpartition(":")
        self._place = pb.Endpoints(scheme=pb.AddressScheme.IPv4, addresses=[pb.Address(host=host, port=int(port))])
        self._group, self._topic = pb.Resource(name=group), pb.Resource(name=topic)
        self._channel = grpc.insecure_channel(endpoint)
        client = f"session-{next(_numbers)}@{endpoint}"
        self._metadata = (
            *(("x-mq-client-id", client), ("x-mq-language", "JAVA")),
            *(("x-mq-client-version", _VERSION), ("x-mq-protocol", "v2")),
        )
        self._commands = queue.SimpleQueue[bytes | None]()
        self._commands.put(pb.TelemetryCommand(settings=self._settings()).SerializeToString())
        open_stream = self._channel.stream_stream(f"{_SERVICE}/Telemetry")
        self._stream = open_stream(iter(self._commands.get, None), metadata=self._metadata)
        next(self._stream)

    def _settings(self) -> Any:
        every = pb.FilterExpression(type=pb.FilterType.TAG, expression="*")
        entry = pb.SubscriptionEntry(topic=self._topic, expression=every)
        settings = pb.Settings(
            client_type=pb.ClientType.SIMPLE_CONSUMER,
            access_point=self._place,
            user_agent=pb.UA(language=pb.Language.JAVA, version=_VERSION),
            subscription=pb.Subscription(group=self._group, subscriptions=[entry]),
        )
        settings.subscription.long_polling_timeout.FromTimedelta(_SHORTEST_POLL)
        settings.request_timeout.FromTimedelta(timedelta(seconds=3))
        return settings

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._commands.put(None)
        self._channel.close()

    def ask(self, method: str, request: Any) -> Any:
        """Return the answer of a unary method."""
        call = self._channel.unary_unary(f"{_SERVICE}/{method}")
        answer = call(request.SerializeToString(), metadata=self._metadata, timeout=_PATIENCE)
        return getattr(pb, f"{method}Response").FromString(answer)

    def route(self, topic: str) -> int:
        """Ask for the route of a topic, and return the code."""
        request = pb.QueryRouteRequest(topic=pb.Resource(name=topic), endpoints=self._place)
        return int(self.ask("QueryRoute", request).status.code)

    def assignment(self, topic: str) -> int:
        """Ask which queues to receive from, and return the code."""
        request = pb.QueryAssignmentRequest(topic=pb.Resource(name=topic), group=self._group, endpoints=self._place)
        return int(self.ask("QueryAssignment", request).status.code)

    def send(self, topic: str, body: str, **system: Any) -> Any:
        """Send a message with these system properties, and return the status."""
        properties = pb.SystemProperties(message_id=f"01AB{next(_numbers):030X}", **system)
        message = pb.Message(topic=pb.Resource(name=topic), body=body.encode(), system_properties=properties)
        return self.ask("SendMessage", pb.SendMessageRequest(messages=[message])).status

    def receive(
        self, count: int, *, topic: str | None = None, attempt: str | None = None, invisible: timedelta, **more: Any
    ) -> tuple[Any, list[Held]]:
        """Receive once; return status and messages."""
        request = pb.ReceiveMessageRequest(
            group=self._group,
            message_queue=pb.MessageQueue(topic=pb.Resource(name=topic) if topic else self._topic, id=-1),
            filter_expression=pb.FilterExpression(type=pb.FilterType.TAG, expression="*"),
            batch_size=count,
            attempt_id=attempt,
            **more,
        )
        request.message_queue.broker.endpoints.CopyFrom(self._place)
        request.invisible_duration.FromTimedelta(invisible)
        request.long_polling_timeout.FromTimedelta(_SHORTEST_POLL)
        call = self._channel.unary_stream(f"{_SERVICE}/ReceiveMessage")
        status, found = None, list[Held]()
        for part in call(request.SerializeToString(), metadata=self._metadata, timeout=_PATIENCE):
            answer = pb.ReceiveMessageResponse.FromString(part)
            if answer.HasField("message"):
                system = answer.message.system_properties
                told = system.delivery_attempt, system.receipt_handle, system.message_id
                found.append(Held(answer.message.body.decode(), *told))
            elif answer.HasField("status"):
                status = answer.status
        return status, found

    def ack(self, held: Held) -> int:
        """Acknowledge a message, and return the code."""
        entry = pb.AckMessageEntry(message_id=held.message_id, receipt_handle=held.handle)
        answer = self.ask("AckMessage", pb.AckMessageRequest(group=self._group, topic=self._topic, entries=[entry]))
        return int(answer.entries[0].status.code if answer.entries else answer.status.code)

    def change(self, held: Held, invisible: timedelta) -> Any:
        """Let a lease end *invisible* from now, and return the status."""
        request = pb.ChangeInvisibleDurationRequest(
            group=self._group, topic=self._topic, receipt_handle=held.handle, message_id=held.message_id
        )
        request.invisible_duration.FromTimedelta(invisible)
        return self.ask("ChangeInvisibleDuration", request).status
