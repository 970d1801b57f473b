"""
What the brokers say: the queues of a topic with their offsets, and the messages of a range, as column buffers.

Offsets are the caller's; nothing is committed and no lease is taken, so any number of readers do not see each
other. Every message of the stream stays bytes here; `_ferromq.pull_columns` decodes them.
"""

from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Self

import grpc

from ferromq import _ferromq
from ferromq._proto import messages as pb
from ferromq.errors import ConnectionFailed, RequestTimeout, ServerError, TopicNotFound
from ferromq.spark.plan import Queue, QueueRange

BATCH_MESSAGES = 8192
"""Messages asked for at once; the broker answers fewer where they are large."""
TIMEOUT = 60.0
"""Seconds that one answer may take."""

_SERVICE = "/apache.rocketmq.v2.MessagingService/"
_METADATA = (("x-mq-client-id", "ferromq-spark"), ("x-mq-language", "PYTHON"), ("x-mq-protocol", "v2"))
_PACKED = "x-ferromq-packed"


class _Broker:
    """A connection to one gRPC endpoint."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self._channel = grpc.insecure_channel(endpoint, options=[("grpc.max_receive_message_length", -1)])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._channel.close()

    def ask(self, method: str, request: Any, response: Any) -> Any:
        """Return the answer to a unary *request*; the status is the caller's to judge."""
        call = self._channel.unary_unary(_SERVICE + method, response_deserializer=response.FromString)
        try:
            return call(request.SerializeToString(), timeout=TIMEOUT, metadata=_METADATA)
        except grpc.RpcError as error:
            raise self._failed(method, error) from error

    def pull(self, wanted: QueueRange, topic: str, offset: int) -> Any:
        """Start a PullMessage at *offset*; the answer comes while the caller does something else."""
        request = pb.PullMessageRequest(
            message_queue=_message_queue(topic, wanted.broker_name, wanted.queue_id),
            offset=offset,
            batch_size=min(BATCH_MESSAGES, wanted.end - offset),
            filter_expression=pb.FilterExpression(type=pb.TAG, expression="*"),
        )
        call = self._channel.unary_stream(_SERVICE + "PullMessage")
        return call(request.SerializeToString(), timeout=TIMEOUT, metadata=(*_METADATA, (_PACKED, "1")))

    def pulled(self, call: Any, until: int) -> Any:
        """Wait for the answer of *call* and return its columns."""
        try:
            parts = list(call)
            packed = any(key == _PACKED for key, _ in call.initial_metadata())
        except grpc.RpcError as error:
            raise self._failed("PullMessage", error) from error
        return _ferromq.pull_columns(parts, packed, until)

    def _failed(self, method: str, error: grpc.RpcError) -> Exception:
        words = f"{method} at {self.endpoint} failed: {error.code().name}: {error.details()}"
        if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            return RequestTimeout(words)
        if error.code() is grpc.StatusCode.UNAVAILABLE:
            return ConnectionFailed(words)
        return ServerError(words)


def queues(endpoint: str, topic: str) -> list[Queue]:
    """Return the readable queues of *topic* on all brokers, with the offsets they hold now."""
    with _Broker(endpoint) as broker:
        request = pb.QueryRouteRequest(topic=pb.Resource(name=topic), endpoints=_endpoints(endpoint))
        route = broker.ask("QueryRoute", request, pb.QueryRouteResponse)
    _check(route.status, f"topic {topic!r} at {endpoint}")
    readable = [queue for queue in route.message_queues if queue.permission in {pb.READ, pb.READ_WRITE}]
    found: list[Queue] = []
    for address in sorted({_address(queue) for queue in readable}):
        with _Broker(address) as broker:
            found += [_queue(broker, topic, queue) for queue in readable if _address(queue) == address]
    return sorted(found, key=lambda queue: (queue.broker_name, queue.queue_id))


def _queue(broker: _Broker, topic: str, queue: Any) -> Queue:
    offsets = []
    for policy in (pb.BEGINNING, pb.END):
        request = pb.QueryOffsetRequest(
            message_queue=_message_queue(topic, queue.broker.name, queue.id), query_offset_policy=policy
        )
        answer = broker.ask("QueryOffset", request, pb.QueryOffsetResponse)
        _check(answer.status, f"the offsets of queue {queue.id} of topic {topic!r} on {queue.broker.name}")
        offsets.append(answer.offset)
    return Queue(queue.broker.name, broker.endpoint, queue.id, *offsets)


def pull(wanted: QueueRange, topic: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """
    Yield the messages of *wanted* as (number of rows, columns), the next answer under way meanwhile.

    Raises where the queue does not hold every offset of the range any more: nothing is left out in silence.
    """
    where = f"queue {wanted.queue_id} of topic {topic!r} on {wanted.broker_name}"
    with _Broker(wanted.endpoint) as broker:
        offset = wanted.start
        call = broker.pull(wanted, topic, offset)
        while offset < wanted.end:
            answer = broker.pulled(call, wanted.end)
            if answer["status"] is not None and answer["status"][0] != pb.OK:
                code, remark = answer["status"]
                raise ServerError(f"{where} at queue offset {offset}: {remark or 'no reason given'} ({code})", code, remark)
            rows = answer["rows"]
            if rows == 0 or answer["next_offset"] is None or answer["next_offset"] != offset + rows:
                raise ServerError(
                    f"{where} was asked for queue offsets from {offset} and gave {rows} messages, the next at "
                    f"{answer['next_offset']}: messages of the range [{wanted.start}, {wanted.end}) have aged out"
                )
            offset += rows
            if offset < wanted.end:
                call = broker.pull(wanted, topic, offset)
            yield rows, answer["columns"]


def _check(status: Any, what: str) -> None:
    if status.code == pb.OK:
        return
    kind = TopicNotFound if status.code == pb.TOPIC_NOT_FOUND else ServerError
    raise kind(f"{what}: {status.message or 'no reason given'} ({status.code})", status.code, status.message)


def _message_queue(topic: str, broker_name: str, queue_id: int) -> Any:
    return pb.MessageQueue(topic=pb.Resource(name=topic), id=queue_id, broker=pb.Broker(name=broker_name))


def _endpoints(endpoint: str) -> Any:
    host, _, port = endpoint.rpartition(":")
    return pb.Endpoints(scheme=pb.DOMAIN_NAME, addresses=[pb.Address(host=host, port=int(port))])


def _address(queue: Any) -> str:
    address = queue.broker.endpoints.addresses[0]
    return f"{address.host}:{address.port}"
