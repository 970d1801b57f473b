"""
Requests of administrators that are forwarded to clients, such as a consumer's running state.

Each waits on a control plane thread for a client that may never answer, so only some can wait at the same time, and
heartbeats always find a free thread.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from ferromq._ferromq import Request, Store, StoredMessage
from ferromq._proto import messages as pb
from ferromq.broker.clients.client import Client
from ferromq.broker.clients.grpc_calls import GrpcCalls
from ferromq.broker.clients.subscription import PASSIVELY
from ferromq.broker.clients.table import ClientTable
from ferromq.broker.grpc_answers import enum_name
from ferromq.broker.metadata.groups import GroupTable
from ferromq.broker.metadata.topics import TopicTable
from ferromq.errors import ConnectionFailed, MessageTooLarge, RequestTimeout
from ferromq.protocol import java_json
from ferromq.protocol.codes import RequestCode, ResponseCode
from ferromq.protocol.message_queue import dump_offsets, load_offsets
from ferromq.protocol.remoting import Answer, failure, flag, physical_offset, required, success

_log = logging.getLogger("ferromq.broker")

CALL_SECONDS = 10.0
GRPC_SECONDS = 5.0
"""As in RocketMQ's proxy."""
_STATUS_SECONDS = 5.0
# Ordinals of RocketMQ's versions from which clients know these requests: V3_0_7_SNAPSHOT, V3_1_8_SNAPSHOT.
KNOWS_RESET = 28
_KNOWS_CALLS = 62


class CallChannel(Protocol):
    """The part of `Server` that calls clients over remoting."""

    def call(
        self,
        connection: int,
        code: int,
        fields: Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        timeout: float = 3.0,
    ) -> Answer:
        """Send a request to a client and return its answer; raises `ConnectionFailed` or `RequestTimeout`."""


class _TooManyCalls(Exception):  # noqa: N818 (an answer, not a failure of ours)
    """The limit of concurrent calls is reached."""


class ClientCalls:
    """Answers remoting requests 223, 307 and 309."""

    def __init__(
        self,
        server: CallChannel,
        grpc: GrpcCalls,
        broker_name: str,
        *,
        table: ClientTable,
        store: Store,
        topics: TopicTable,
        groups: GroupTable,
        limit: int,
        is_guarded: bool = False,
    ) -> None:
        """*is_guarded*: policies were checked for a request's topic, so no message of another topic is passed on."""
        self._server = server
        self._grpc = grpc
        self._broker_name = broker_name
        self._table = table
        self._store = store
        self._topics = topics
        self._groups = groups
        self._limit = limit
        self._is_guarded = is_guarded
        self._free = threading.BoundedSemaphore(limit)

    def running_info(self, request: Request) -> Answer:
        """
        Answer request 307: the client's running state, from the client itself.

        A gRPC client is only asked for the stacks of its threads, and only with `jstackEnable`; the rest is known here.
        """
        client = self._table.member(required(request.fields, "consumerGroup"), request.fields.get("clientId", ""))
        if client is not None and client.is_grpc:
            return self._grpc_running_info(client, request)
        return self._pass_on(RequestCode.GET_CONSUMER_RUNNING_INFO, request.fields, request.body)

    def consume_directly(self, request: Request) -> Answer:
        """Answer request 309: send a message to a client to consume it at once, and return its result."""
        fields = dict(request.fields)
        fields["brokerName"] = self._broker_name
        topic, group = fields.get("topic"), self._groups.get(fields.get("consumerGroup", ""))
        config = self._topics.get(topic) if topic else None
        if config is not None:
            fields["topicSysFlag"] = str(config.sys_flag)
        if group is not None:
            fields["groupSysFlag"] = str(group.others.get("groupSysFlag", 0))
        offset = physical_offset(required(fields, "msgId"))
        message = self._store.message_at(offset)
        if message is None or (self._is_guarded and message.topic != topic):
            of_topic = f" of {topic or ''}" if self._is_guarded else ""
            text = f"no message{of_topic} begins at the physical offset {offset}"
            return failure(ResponseCode.SYSTEM_ERROR, text)
        client = self._table.member(required(fields, "consumerGroup"), fields.get("clientId", ""))
        if client is not None and client.is_grpc:
            return self._verify(client, fields["consumerGroup"], message)
        return self._pass_on(RequestCode.CONSUME_MESSAGE_DIRECTLY, fields, message.raw)

    def consumer_status(self, request: Request) -> Answer:
        """Answer request 223: the offsets that one or all members of a group report themselves."""
        fields = request.fields
        topic, name, wanted = required(fields, "topic"), required(fields, "group"), fields.get("clientAddr", "").strip()
        group = self._table.group(name)
        members = [client for client in group.members if not client.is_grpc] if group else []
        if not members:
            return failure(ResponseCode.SYSTEM_ERROR, f"No Any Consumer online in the consumer group: [{name}]")
        parts = []
        for client in members:
            if client.version < KNOWS_RESET:
                return failure(
                    ResponseCode.SYSTEM_ERROR,
                    f"the client does not support this feature. version={client.version} client={client.client_id}",
                )
            if wanted in {"", client.client_id}:
                status = self._status(client, {"topic": topic, "group": name})
                parts += [java_json.dumps(client.client_id) + b":" + status] if status is not None else []
        return success(body=b'{"consumerTable":{' + b",".join(parts) + b'},"messageQueueTable":{}}')

    def _status(self, client: Client, fields: Mapping[str, str]) -> bytes | None:
        """Return a member's offsets as Java writes them; None if it does not answer."""
        try:
            with self._slot():
                code, _, _, body = self._server.call(
                    client.connection, RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, fields, timeout=_STATUS_SECONDS
                )
            return dump_offsets(load_offsets(body, "messageQueueTable")) if code == ResponseCode.SUCCESS else None
        except (ConnectionFailed, RequestTimeout, ValueError, _TooManyCalls) as error:
            _log.warning("consumer status unknown client_id=%s peer=%s: %s", client.client_id, client.peer, error)
            return None

    def _pass_on(self, code: RequestCode, fields: Mapping[str, str], body: bytes) -> Answer:
        group, client_id = required(fields, "consumerGroup"), fields.get("clientId", "")
        client = self._table.member(group, client_id)
        named = f"<{group}> <{client_id}>"
        if client is None:
            return failure(ResponseCode.SYSTEM_ERROR, f"The Consumer {named} not online")
        if client.version < _KNOWS_CALLS:
            return failure(
                ResponseCode.SYSTEM_ERROR,
                f"The Consumer <{client_id}> Version <{client.version}> too low to finish, "
                "please upgrade it to V3_1_8_SNAPSHOT",
            )
        return self._call_remoting(client, code, fields, body, named=named)

    def _grpc_running_info(self, client: Client, request: Request) -> Answer:
        name = request.fields["consumerGroup"]
        group, config = self._table.group(name), self._groups.get(name)
        info: dict[str, Any] = {
            "mqTable": {},
            "properties": {
                "PROP_CLIENT_VERSION": "V5_0_0",
                "PROP_CONSUMEORDERLY": str(config is not None and config.fifo).lower(),
                # RocketMQ's tools require a value, and the client reports none.
                "PROP_CONSUMER_START_TIMESTAMP": "0",
                "PROP_CONSUME_TYPE": group.consume_settings.consume_type if group else PASSIVELY,
            },
            "statusTable": {},
            "subscriptionSet": [wanted.to_json() for wanted in self._table.subscriptions_of(name, client)],
            "userConsumerInfo": {},
        }
        if flag(request.fields, "jstackEnable"):
            result = self._call_grpc(client, name, lambda stream: self._grpc.print_threads(stream, GRPC_SECONDS))
            if isinstance(result, pb.TelemetryCommand):
                if result.status.code != pb.Code.OK:
                    return failure(ResponseCode.SYSTEM_ERROR, _answer_text(client, result))
                info["jstack"] = result.thread_stack_trace.thread_stack_trace
            else:
                return result
        return success(body=java_json.dumps(info))

    def _verify(self, client: Client, group: str, message: StoredMessage) -> Answer:
        shown = pb.Message.FromString(message.grpc_message())
        result = self._call_grpc(client, group, lambda stream: self._grpc.verify(stream, shown, GRPC_SECONDS))
        if not isinstance(result, pb.TelemetryCommand):
            return result
        if result.status.code == pb.Code.VERIFY_FIFO_MESSAGE_UNSUPPORTED:
            return failure(ResponseCode.NO_PERMISSION, _answer_text(client, result))
        verified = _VERIFIED.get(result.status.code)
        if verified is None:
            return failure(ResponseCode.SYSTEM_ERROR, _answer_text(client, result))
        body = {
            "autoCommit": True,
            "consumeResult": verified,
            "order": False,
            "remark": "from gRPC client",
            "spentTimeMills": 0,
        }
        return success(body=java_json.dumps(body))

    def _call_grpc(
        self, client: Client, group: str, ask: Callable[[int], pb.TelemetryCommand]
    ) -> pb.TelemetryCommand | Answer:
        """Return a gRPC client's answer, or the failure to answer with."""
        named = f"<{group}> <{client.client_id}>"
        stream = self._table.stream(group, client.client_id)
        if stream is None:
            why = f"The Consumer {named} has no telemetry stream to ask it over"
            return failure(ResponseCode.SYSTEM_ERROR, why)
        try:
            with self._slot():
                return ask(stream)
        except RequestTimeout as error:
            return failure(ResponseCode.CONSUME_MSG_TIMEOUT, f"consumer {named} Timeout: {error}")
        except ConnectionFailed as error:
            return failure(ResponseCode.SYSTEM_ERROR, f"invoke consumer {named} Exception: {error}")
        except _TooManyCalls as error:
            return failure(ResponseCode.SYSTEM_BUSY, str(error))

    def _call_remoting(
        self, client: Client, code: RequestCode, fields: Mapping[str, str], body: bytes, *, named: str
    ) -> Answer:
        try:
            with self._slot():
                return self._server.call(client.connection, code, fields, body, timeout=CALL_SECONDS)
        except RequestTimeout as error:
            return failure(ResponseCode.CONSUME_MSG_TIMEOUT, f"consumer {named} Timeout: {error}")
        except (ConnectionFailed, MessageTooLarge) as error:
            return failure(ResponseCode.SYSTEM_ERROR, f"invoke consumer {named} Exception: {error}")
        except _TooManyCalls as error:
            return failure(ResponseCode.SYSTEM_BUSY, str(error))

    @contextmanager
    def _slot(self) -> Iterator[None]:
        if not self._free.acquire(blocking=False):
            raise _TooManyCalls(f"{self._limit} clients are being asked already; try again later")
        try:
            yield
        finally:
            self._free.release()


# The results of a gRPC client in the words of RocketMQ's tools.
_VERIFIED: Mapping[int, str] = {
    pb.Code.OK: "CR_SUCCESS",
    pb.Code.FAILED_TO_CONSUME_MESSAGE: "CR_LATER",
    pb.Code.MESSAGE_CORRUPTED: "CR_RETURN_NULL",
}


def _answer_text(client: Client, answer: pb.TelemetryCommand) -> str:
    code = enum_name(pb.Code.Name, answer.status.code)
    return f"the gRPC client {client.client_id} answered {code}: {answer.status.message}"
