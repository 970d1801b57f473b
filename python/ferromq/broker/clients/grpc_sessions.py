"""
Sessions of gRPC clients: heartbeats, settings over telemetry, termination.

`table` keeps the clients, together with those of remoting.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeAlias

from google.protobuf.message import DecodeError

from ferromq._ferromq import Request, check_filter
from ferromq._proto import messages as pb
from ferromq.broker.clients import grpc_settings
from ferromq.broker.clients.client import Client
from ferromq.broker.clients.connection_index import ClientKey
from ferromq.broker.clients.grpc_calls import GrpcCalls
from ferromq.broker.clients.lite_topics import NO_LITE
from ferromq.broker.clients.memory import LimitExceeded, size_of_subscriptions, size_of_texts
from ferromq.broker.clients.subscription import ACTIVELY, PASSIVELY, TAG, Subscription
from ferromq.broker.clients.table import ClientTable
from ferromq.broker.grpc_answers import OK, Refused, enum_name, group_name, status, topic_name
from ferromq.broker.metadata.groups import GroupConfig, GroupTable
from ferromq.broker.metadata.not_found import unknown_group
from ferromq.broker.metadata.topics import TopicTable
from ferromq.process.limited_log import LimitedLog
from ferromq.protocol import naming

_log = logging.getLogger("ferromq.broker")

CLIENT_ID = "x-mq-client-id"
_LANGUAGE = "x-mq-language"
MAX_SETTINGS = 1 << 16
"""The most bytes of a client's settings."""
_OF_SETTINGS = 1 << 10
"""Bytes of kept settings, beside their encoding and texts."""
_CONSUMERS: Mapping[int, str] = {
    pb.ClientType.PUSH_CONSUMER: PASSIVELY,
    pb.ClientType.SIMPLE_CONSUMER: ACTIVELY,
    pb.ClientType.PULL_CONSUMER: ACTIVELY,
}
"""The types of consumers, with RocketMQ's consume type."""
_LITE = frozenset({pb.ClientType.LITE_PUSH_CONSUMER, pb.ClientType.LITE_SIMPLE_CONSUMER})
# V5_0_0, which RocketMQ's proxy reports for every gRPC client.
_VERSION = 413
_LANGUAGES: Mapping[str, str] = {
    **{name: name for name in ("JAVA", "CPP", "DOTNET", "PYTHON", "GO", "PHP", "RUST", "NODE_JS", "RUBY", "ERLANG")},
    "DOT_NET": "DOTNET",
    "GOLANG": "GO",
}
# Of gRPC's own status codes.
_INVALID_ARGUMENT, _INTERNAL = 3, 13


Sender: TypeAlias = tuple[int, str, str | None, str | None]
"""The connection of a client, its `host:port`, the user that access control verified, its certificate's subject."""


class TelemetryChannel(Protocol):
    """The part of `Server` that writes to telemetry streams."""

    def send_telemetry(self, stream: int, message: bytes) -> bool:
        """Send an encoded command; returns False if the stream is gone."""

    def end_telemetry(self, stream: int, code: int, message: str) -> bool:
        """End a stream with a gRPC status; returns False if it is gone."""


@dataclass(frozen=True, slots=True)
class _Session:
    """The latest settings of a client, and its telemetry stream."""

    stream: int
    key: ClientKey
    settings: bytes
    """Encoded; a decoded protobuf message may use fifty times the memory."""
    client_type: int
    group: str | None = None
    """The group of a consumer."""
    subscriptions: tuple[Subscription, ...] = ()
    topics: frozenset[str] = frozenset()
    """The topics of a producer."""

    @property
    def size(self) -> int:
        """The approximate bytes of memory."""
        texts = size_of_texts(self.key[1], *self.topics)
        return _OF_SETTINGS + len(self.settings) + texts + size_of_subscriptions(self.subscriptions)


class GrpcSessions:
    """Answers Heartbeat, Telemetry and NotifyClientTermination."""

    def __init__(
        self,
        server: TelemetryChannel,
        table: ClientTable,
        groups: GroupTable,
        calls: GrpcCalls,
        *,
        topics: TopicTable,
        max_body_size: int,
        validates: Callable[[], bool],
        now_ms: Callable[[], int],
    ) -> None:
        self._server = server
        self._table = table
        self._groups = groups
        self._seldom = LimitedLog(_log)
        self._calls = calls
        self._topics = topics
        self._max_body_size = max_body_size
        self._validates = validates
        self._now_ms = now_ms
        # By stream, to send settings again when the server's part changes; sends are ordered by the lock. By client, to
        # restore a client that sends a heartbeat after its lease expired.
        self._lock = threading.Lock()
        self._sessions: dict[int, _Session] = {}
        self._by_client: dict[ClientKey, _Session] = {}

    def heartbeat(self, message: pb.HeartbeatRequest, request: Request) -> pb.HeartbeatResponse:
        """
        Renew the client's lease; a consumer's group is created if first use may create it.

        A heartbeat counts before any settings arrive, too: a restarted broker knows no client. A client whose lease
        expired while its telemetry stream stayed open is restored from its settings.
        """
        _check_type(message.client_type)
        is_consumer = message.client_type in _CONSUMERS or message.HasField("group")
        group = group_name(message.group) if is_consumer else None
        client, now = (
            _client(request.fields, (request.connection, request.peer, request.user, request.certificate)),
            self._now_ms(),
        )
        consume_type = _CONSUMERS.get(message.client_type, PASSIVELY)
        try:
            if group is not None:
                self._ensure(group, client)
            self._renew(client, group, consume_type, now)
        except LimitExceeded as error:
            raise Refused(pb.Code.TOO_MANY_REQUESTS, str(error)) from error
        return pb.HeartbeatResponse(status=OK)

    def _renew(self, client: Client, group: str | None, consume_type: str, now: int) -> None:
        with self._lock:  # the stream must not end meanwhile
            session = self._by_client.get(client.key)
            if group is not None:
                own = session if session is not None and session.group == group else None
                self._join(group, client, own, consume_type, now)
                return
            self._table.renew_producer(client.client_id, client.connection, now)
            if session is not None:
                self._produce(client, session, now)

    def notify_termination(
        self, _message: pb.NotifyClientTerminationRequest, request: Request
    ) -> pb.NotifyClientTerminationResponse:
        """Remove the client; an unknown client is no error."""
        client_id = _client_id(request.fields)
        with self._lock:
            self._by_client.pop((request.connection, client_id), None)
            self._table.remove(client_id, request.connection)
        return pb.NotifyClientTerminationResponse(status=OK)

    def telemetry(self, stream: int, sender: Sender, metadata: dict[str, str], message: bytes | None) -> None:
        """
        Handle a command on a telemetry stream: settings are answered with settings, other commands complete calls.

        Invalid settings end the stream, as with RocketMQ's proxy, after a status with the reason.
        """
        if message is None:
            self._end(stream)
            return
        _, peer, *_ = sender
        try:
            command = pb.TelemetryCommand.FromString(message)
            kind = command.WhichOneof("command")
            if kind == "settings":
                _check_size(command.settings)
                self._take_settings(command.settings, stream, sender, metadata)
            elif kind in {"thread_stack_trace", "verify_message_result"}:
                nonce: str = getattr(command, kind).nonce
                if not self._calls.complete(stream, nonce, command):
                    _log.debug("answer without a waiting call peer=%s command=%s", peer, kind)
        except DecodeError as error:
            self._refuse(stream, pb.Code.BAD_REQUEST, f"not a TelemetryCommand: {error}", peer)
        except Refused as error:
            self._refuse(stream, error.code, str(error), peer)
        except LimitExceeded as error:
            self._refuse(stream, pb.Code.TOO_MANY_REQUESTS, str(error), peer)
        except Exception as error:  # (the client gets a status in any case)
            self._refuse(stream, pb.Code.INTERNAL_SERVER_ERROR, f"{type(error).__name__}: {error}", peer)
            raise

    def group_changed(self, name: str) -> None:
        """Send changed group settings to its consumers."""
        with self._lock:
            for session in self._sessions.values():
                if session.group == name:
                    self._send_settings(session)

    def sends_changed(self) -> None:
        """Send changed settings to all producers."""
        with self._lock:
            for session in self._sessions.values():
                if session.group is None:
                    self._send_settings(session)

    def _end(self, stream: int) -> None:
        with self._lock:
            session = self._sessions.pop(stream, None)
            if session is not None:
                self._table.memory.change(session.key[0], -session.size)
                if self._by_client.get(session.key) is session:
                    del self._by_client[session.key]
            self._table.end_stream(stream)
        self._calls.fail_stream(stream)

    def _refuse(self, stream: int, code: int, reason: str, peer: str) -> None:
        self._seldom.log(logging.WARNING, "settings refused peer=%s code=%d: %s", peer, code, reason)
        refusal = pb.TelemetryCommand(status=status(code, reason))
        self._server.send_telemetry(stream, refusal.SerializeToString())
        is_theirs = pb.Code.BAD_REQUEST <= code < pb.Code.INTERNAL_ERROR
        ending = _INVALID_ARGUMENT if is_theirs else _INTERNAL
        self._server.end_telemetry(stream, ending, f"process client telemetryCommand failed. {reason}")

    def _take_settings(self, settings: pb.Settings, stream: int, sender: Sender, metadata: dict[str, str]) -> None:
        kind = settings.WhichOneof("pub_sub")
        client, now = _client(metadata, sender), self._now_ms()
        if kind == "publishing":
            topics = frozenset(topic_name(topic) for topic in settings.publishing.topics)
            session = _Session(stream, client.key, settings.SerializeToString(), settings.client_type, topics=topics)
            self._keep(session, client, now)
            return
        if kind is None:
            raise Refused(pb.Code.BAD_REQUEST, "there is no publishing or subscription data in settings")
        _check_type(settings.client_type)
        if settings.client_type not in _CONSUMERS:
            what = enum_name(pb.ClientType.Name, settings.client_type)
            raise Refused(pb.Code.UNRECOGNIZED_CLIENT_TYPE, f"a client with a subscription is a consumer, not {what}")
        # If a topic is named twice, the last one counts.
        wanted = {each.topic: each for each in (_wanted(entry, now) for entry in settings.subscription.subscriptions)}
        group = group_name(settings.subscription.group)
        session = _Session(
            *(stream, client.key, settings.SerializeToString(), settings.client_type, group, tuple(wanted.values()))
        )
        config = self._ensure(group, client, session)
        if config.retry_queues:
            # RocketMQ's tools find the brokers of a group by its retry topic.
            self._topics.ensure_of_group(naming.RETRY_PREFIX + group, config.retry_queues, 0, client.peer)
        self._keep(session, client, now)

    def _keep(self, session: _Session, client: Client, now: int) -> None:
        """Store the session, register the client, and answer with its settings."""
        with self._lock:
            before = self._sessions.get(session.stream)
            self._table.memory.change(client.connection, session.size - (before.size if before else 0))
            self._sessions[session.stream] = self._by_client[session.key] = session
            if session.group is None:
                self._produce(client, session, now)
            else:
                self._join(session.group, client, session, _CONSUMERS[session.client_type], now)
            self._send_settings(session)

    def _produce(self, client: Client, session: _Session, now: int) -> None:
        # In RocketMQ the producer group of a gRPC client is named like the topic.
        for topic in session.topics:
            self._table.produce(topic, client, now, stream=session.stream)

    def _join(self, group: str, client: Client, session: _Session | None, consume_type: str, now: int) -> None:
        wanted, stream = (None, None) if session is None else (session.subscriptions, session.stream)
        self._table.join_over_grpc(group, client, now, consume_type=consume_type, subscriptions=wanted, stream=stream)

    def _send_settings(self, session: _Session) -> None:
        # Read while the lock is held, so that a later send has newer values.
        if session.group is None:
            answer = grpc_settings.publishing(
                pb.Settings.FromString(session.settings), self._max_body_size, validates=self._validates()
            )
        else:
            config = self._groups.get(session.group)
            if config is None:
                return
            answer = grpc_settings.subscription(pb.Settings.FromString(session.settings), config)
        self._send(session.stream, answer)

    def _send(self, stream: int, command: pb.TelemetryCommand) -> None:
        if not self._server.send_telemetry(stream, command.SerializeToString()):
            _log.debug("telemetry stream ended before its settings stream=%d", stream)

    def _ensure(self, name: str, client: Client, session: _Session | None = None) -> GroupConfig:
        """Return a group, created if first use may create it and the client's memory limit allows it."""
        wanted, more = (session.subscriptions, session.size) if session else ((), 0)
        check = partial(self._table.check_room, name, client, wanted, more)
        config = self._groups.ensure(name, client.peer, check)
        if config is None:
            raise Refused(pb.Code.CONSUMER_GROUP_NOT_FOUND, unknown_group(name))
        return config


def _check_size(settings: pb.Settings) -> None:
    size = settings.ByteSize()
    if size > MAX_SETTINGS:
        raise Refused(
            pb.Code.BAD_REQUEST,
            f"the settings have {size} bytes; {MAX_SETTINGS} are allowed; name fewer topics, or shorter expressions",
        )


def _check_type(kind: int) -> None:
    if kind in _LITE:
        raise Refused(
            pb.Code.UNRECOGNIZED_CLIENT_TYPE,
            f"{enum_name(pb.ClientType.Name, kind)} consumes {NO_LITE}; use a push or a simple consumer",
        )


def _wanted(entry: pb.SubscriptionEntry, now: int) -> Subscription:
    """Return a client's subscription to a topic; as in RocketMQ's proxy, the time is its version."""
    kind = "SQL92" if entry.expression.type == pb.FilterType.SQL else TAG
    topic, expression = topic_name(entry.topic), entry.expression.expression or ("*" if kind == TAG else "")
    try:
        check_filter(kind, expression)
    except ValueError as error:
        raise Refused(pb.Code.ILLEGAL_FILTER_EXPRESSION, f"the subscription to {topic}: {error}") from error
    return Subscription.of(topic, expression, kind, now)


def _client(metadata: Mapping[str, str], sender: Sender) -> Client:
    connection, peer, user, _ = sender
    language = _LANGUAGES.get(metadata.get(_LANGUAGE, "").upper(), "OTHER")
    return Client(_client_id(metadata), connection, peer, language, _VERSION, is_grpc=True, user=user)


def _client_id(metadata: Mapping[str, str]) -> str:
    client_id = metadata.get(CLIENT_ID)
    if not client_id:
        raise Refused(pb.Code.CLIENT_ID_REQUIRED, f"the metadata {CLIENT_ID} is missing")
    return client_id
