"""
The gRPC clients of a broker: heartbeats, settings over telemetry, termination.

Who is there is kept by `clients`, together with remoting clients. What a client may do is not decided here, and what it
has received is the store's business.
"""

import logging
from collections.abc import Callable, Mapping

from google.protobuf.message import DecodeError

from ferromq._ferromq import Request
from ferromq._proto import messages as pb
from ferromq.broker._grpc import OK, Refused, group_name, status, topic_name
from ferromq.broker.clients import ACTIVELY, PASSIVELY, TAG, Client, ClientTable, Subscription
from ferromq.broker.groups import GroupConfig, GroupTable
from ferromq.broker.routes import unknown_group

_log = logging.getLogger("ferromq.broker")

CLIENT_ID = "x-mq-client-id"
_LANGUAGE = "x-mq-language"
_CONSUMERS = frozenset({pb.ClientType.PUSH_CONSUMER, pb.ClientType.SIMPLE_CONSUMER, pb.ClientType.PULL_CONSUMER})
_PUBLISH_ATTEMPTS = 3
_PUBLISH_BACKOFF_MS = (10, 1_000)
_PUBLISH_BACKOFF_MULTIPLIER = 2
_RECEIVE_BATCH = 32
_LONG_POLLING_MS = 20_000
# What RocketMQ's proxy says of every gRPC client: V5_0_0.
_VERSION = 413
_LANGUAGES: Mapping[str, str] = {
    **{name: name for name in ("JAVA", "CPP", "DOTNET", "PYTHON", "GO", "PHP", "RUST", "NODE_JS", "RUBY", "ERLANG")},
    "DOT_NET": "DOTNET",
    "GOLANG": "GO",
}


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
        client, now = _client(request.fields, request.connection, request.peer), self._now_ms()
        if group is None:
            self._table.renew_producer(client.client_id, client.connection, now)
        else:
            self._table.join_over_grpc(group, client, now, consume_type=_consume_type(message.client_type))
        return pb.HeartbeatResponse(status=OK)

    def notify_termination(
        self, _message: pb.NotifyClientTerminationRequest, request: Request
    ) -> pb.NotifyClientTerminationResponse:
        """Forget the client."""
        self._table.remove(_client_id(request.fields), request.connection)
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
        client, now = _client(metadata, connection, peer), self._now_ms()
        if kind == "publishing":
            topics = {topic_name(topic) for topic in settings.publishing.topics}
            answer = self._publishing(settings)
            # RocketMQ calls the producer group of a gRPC client by the topic.
            for topic in topics:
                self._table.produce(topic, client, now, stream=stream)
        elif kind == "subscription":
            wanted = [_wanted(entry, now) for entry in settings.subscription.subscriptions]
            config = self._group(settings.subscription.group, peer)
            answer = _subscription(settings, config)
            self._table.join_over_grpc(
                config.name,
                client,
                now,
                consume_type=_consume_type(settings.client_type),
                subscriptions=wanted,
                stream=stream,
            )
        else:
            raise Refused(pb.Code.BAD_REQUEST, "the settings have neither publishing nor subscription")
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


def _wanted(entry: pb.SubscriptionEntry, now: int) -> Subscription:
    """Return what a client wants of a topic; as RocketMQ's proxy does, the time is its version."""
    kind = "SQL92" if entry.expression.type == pb.FilterType.SQL else TAG
    return Subscription.of(topic_name(entry.topic), entry.expression.expression or "*", kind, now)


def _consume_type(kind: int) -> str:
    return ACTIVELY if kind in {pb.ClientType.SIMPLE_CONSUMER, pb.ClientType.PULL_CONSUMER} else PASSIVELY


def _client(metadata: Mapping[str, str], connection: int, peer: str) -> Client:
    language = _LANGUAGES.get(metadata.get(_LANGUAGE, "").upper(), "OTHER")
    return Client(_client_id(metadata), connection, peer, language, _VERSION, is_grpc=True)


def _client_id(metadata: Mapping[str, str]) -> str:
    client_id = metadata.get(CLIENT_ID)
    if not client_id:
        raise Refused(pb.Code.CLIENT_ID_REQUIRED, f"the metadata {CLIENT_ID} is missing")
    return client_id
