"""
The gRPC clients of a broker: heartbeats, settings over telemetry, termination.

`ClientTable` is pure state, `now` is an argument; `Clients` speaks the protocol. What a client may do is not decided
here, and what it has received is the store's business.
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

from google.protobuf.message import DecodeError

from ferromq._ferromq import Request
from ferromq._proto import messages as pb
from ferromq.broker._grpc import OK, Refused, group_name, status, topic_name
from ferromq.broker.groups import GroupConfig, GroupTable
from ferromq.broker.routes import unknown_group

_log = logging.getLogger("ferromq.broker")

CLIENT_ID = "x-mq-client-id"
_CONSUMERS = frozenset({pb.ClientType.PUSH_CONSUMER, pb.ClientType.SIMPLE_CONSUMER, pb.ClientType.PULL_CONSUMER})
_PUBLISH_ATTEMPTS = 3
_PUBLISH_BACKOFF_MS = (10, 1_000)
_PUBLISH_BACKOFF_MULTIPLIER = 2
_RECEIVE_BATCH = 32
_LONG_POLLING_MS = 20_000


@dataclass(frozen=True, slots=True)
class Client:
    """A client as it last showed itself."""

    client_id: str
    connection: int
    expires_at: int
    group: str | None = None
    """Its consumer group; None for a producer."""
    topics: frozenset[str] = frozenset()
    """What it publishes to, or is subscribed to, as far as it said."""
    stream: int | None = None
    """Its telemetry stream, while there is one."""


class ClientTable:
    """Knows the clients there are; a lease a client, renewed by each sign of life. Thread-safe."""

    def __init__(self, lease_ms: int) -> None:
        self._lease_ms = lease_ms
        self._lock = threading.Lock()
        self._clients: dict[str, Client] = {}

    def seen(
        self,
        client_id: str,
        connection: int,
        now: int,
        *,
        group: str | None = None,
        topics: frozenset[str] | None = None,
        stream: int | None = None,
    ) -> None:
        """Renew a client's lease, and note what is new of it."""
        with self._lock:
            known = self._clients.get(client_id) or Client(client_id, connection, now)
            self._clients[client_id] = Client(
                client_id,
                connection,
                now + self._lease_ms,
                group or known.group,
                known.topics if topics is None else topics,
                known.stream if stream is None else stream,
            )

    def get(self, client_id: str) -> Client | None:
        """Return the client; None where it is not there."""
        with self._lock:
            return self._clients.get(client_id)

    def members(self, group: str) -> list[str]:
        """Return the ids of the clients that are in a consumer group."""
        with self._lock:
            return sorted(client.client_id for client in self._clients.values() if client.group == group)

    def remove(self, client_id: str) -> None:
        """Forget a client that said goodbye."""
        with self._lock:
            self._clients.pop(client_id, None)

    def end_stream(self, stream: int) -> None:
        """Note that a telemetry stream ended; the client stays until its lease ends."""
        with self._lock:
            for client in [client for client in self._clients.values() if client.stream == stream]:
                self._clients[client.client_id] = replace(client, stream=None)

    def close_connection(self, connection: int) -> None:
        """Forget the clients whose connection is gone."""
        with self._lock:
            self._clients = {i: client for i, client in self._clients.items() if client.connection != connection}

    def expire(self, now: int) -> list[str]:
        """Forget the clients whose lease ended before *now* and return their ids."""
        with self._lock:
            ended = [i for i, client in self._clients.items() if client.expires_at < now]
            for client_id in ended:
                del self._clients[client_id]
            return ended


class Clients:
    """Answers Heartbeat, Telemetry and NotifyClientTermination."""

    def __init__(
        self,
        table: ClientTable,
        groups: GroupTable,
        *,
        max_body_size: int,
        now_ms: Callable[[], int],
        send: Callable[[int, bytes], bool],
    ) -> None:
        self._table = table
        self._groups = groups
        self._max_body_size = max_body_size
        self._now_ms = now_ms
        self._send = send

    def heartbeat(self, message: pb.HeartbeatRequest, request: Request) -> pb.HeartbeatResponse:
        """Renew the client's lease; a consumer's group is created on first use where allowed."""
        is_consumer = message.client_type in _CONSUMERS or message.HasField("group")
        group = self._group(message.group, request.peer).name if is_consumer else None
        self._table.seen(_client_id(request.fields), request.connection, self._now_ms(), group=group)
        return pb.HeartbeatResponse(status=OK)

    def notify_termination(
        self, _message: pb.NotifyClientTerminationRequest, request: Request
    ) -> pb.NotifyClientTerminationResponse:
        """Forget the client."""
        self._table.remove(_client_id(request.fields))
        return pb.NotifyClientTerminationResponse(status=OK)

    def telemetry(
        self, stream: int, connection: int, peer: str, metadata: dict[str, str], message: bytes | None
    ) -> None:
        """Take what came on a telemetry stream; settings are answered with settings."""
        if message is None:
            self._table.end_stream(stream)
            return
        try:
            command = pb.TelemetryCommand.FromString(message)
            if command.WhichOneof("command") != "settings":
                return
            answer = self._settle(command.settings, stream, connection, peer, metadata)
        except DecodeError as error:
            answer = pb.TelemetryCommand(status=status(pb.Code.BAD_REQUEST, f"not a TelemetryCommand: {error}"))
        except Refused as error:
            answer = pb.TelemetryCommand(status=status(error.code, str(error)))
        if not self._send(stream, answer.SerializeToString()):
            _log.debug("telemetry stream ended before its answer peer=%s", peer)

    def _settle(
        self, settings: pb.Settings, stream: int, connection: int, peer: str, metadata: dict[str, str]
    ) -> pb.TelemetryCommand:
        kind = settings.WhichOneof("pub_sub")
        if kind == "publishing":
            topics = frozenset(topic_name(topic) for topic in settings.publishing.topics)
            group = None
            answer = self._publishing(settings)
        elif kind == "subscription":
            topics = frozenset(topic_name(entry.topic) for entry in settings.subscription.subscriptions)
            config = self._group(settings.subscription.group, peer)
            group = config.name
            answer = _subscription(settings, config)
        else:
            raise Refused(pb.Code.BAD_REQUEST, "the settings have neither publishing nor subscription")
        client_id = _client_id(metadata)
        self._table.seen(client_id, connection, self._now_ms(), group=group, topics=topics, stream=stream)
        answer.metric.on = False
        return pb.TelemetryCommand(status=OK, settings=answer)

    def _group(self, resource: pb.Resource, peer: str) -> GroupConfig:
        name = group_name(resource)
        config = self._groups.ensure(name, peer)
        if config is None:
            raise Refused(pb.Code.CONSUMER_GROUP_NOT_FOUND, unknown_group(name))
        return config

    def _publishing(self, settings: pb.Settings) -> pb.Settings:
        answer = _copy(settings)
        answer.publishing.max_body_size = self._max_body_size
        answer.publishing.validate_message_type = True
        answer.backoff_policy.max_attempts = _PUBLISH_ATTEMPTS
        backoff = answer.backoff_policy.exponential_backoff
        backoff.initial.FromMilliseconds(_PUBLISH_BACKOFF_MS[0])
        backoff.max.FromMilliseconds(_PUBLISH_BACKOFF_MS[1])
        backoff.multiplier = _PUBLISH_BACKOFF_MULTIPLIER
        return answer


def _subscription(settings: pb.Settings, group: GroupConfig) -> pb.Settings:
    answer = _copy(settings)
    answer.subscription.fifo = group.fifo
    answer.subscription.receive_batch_size = _RECEIVE_BATCH
    answer.subscription.long_polling_timeout.FromMilliseconds(_LONG_POLLING_MS)
    answer.backoff_policy.max_attempts = group.max_attempts
    for delay_ms in group.backoff_ms:
        answer.backoff_policy.customized_backoff.next.add().FromMilliseconds(delay_ms)
    return answer


def _copy(settings: pb.Settings) -> pb.Settings:
    """Return the client's settings without a backoff policy, which is the server's to say."""
    answer = pb.Settings()
    answer.CopyFrom(settings)
    answer.ClearField("backoff_policy")
    return answer


def _client_id(metadata: dict[str, str]) -> str:
    client_id = metadata.get(CLIENT_ID)
    if not client_id:
        raise Refused(pb.Code.CLIENT_ID_REQUIRED, f"the metadata {CLIENT_ID} is missing")
    return client_id
