"""
What the brokers say: the queues of a topic with their offsets, and the messages of a range, as column buffers.

Offsets are the caller's; nothing is committed and no lease is taken, so any number of readers do not see each
other. Every message of the stream stays bytes here; `_ferromq.pull_columns` decodes them.
"""

from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import grpc

from ferromq import _ferromq
from ferromq._proto import messages as pb
from ferromq.client._connection import OPTIONS, target
from ferromq.client._protocol import PACKED, SERVICE, Identity, error_of, named, transport_error
from ferromq.client._routes import endpoint_of, endpoints_message
from ferromq.errors import ConfigError, FerromqError, ServerError
from ferromq.route import MASTER
from ferromq.spark.options import Where
from ferromq.spark.plan import Queue, QueueRange
from ferromq.spark.topics import Topics

BATCH_MESSAGES = 8192
"""Messages asked for at once; the broker answers fewer where they are large."""
TIMEOUT = 60.0
"""Seconds that one answer may take."""


class _Broker:
    """A connection to one gRPC endpoint."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self._identity = Identity()
        self._channel = grpc.insecure_channel(target(endpoint), OPTIONS)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._channel.close()

    def ask(self, method: str, request: Any, response: Any) -> Any:
        """Return the answer to a unary *request*; the status is the caller's to judge."""
        call = self._channel.unary_unary(SERVICE + method, response_deserializer=response.FromString)
        try:
            return call(request.SerializeToString(), timeout=TIMEOUT, metadata=self._identity.metadata())
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
        call = self._channel.unary_stream(SERVICE + "PullMessage")
        return call(request.SerializeToString(), timeout=TIMEOUT, metadata=(*self._identity.metadata(), (PACKED, "1")))

    def pulled(self, call: Any, until: int) -> Any:
        """Wait for the answer of *call* and return its columns."""
        try:
            parts = list(call)
            packed = any(key == PACKED for key, _ in call.initial_metadata())
        except grpc.RpcError as error:
            raise self._failed("PullMessage", error) from error
        return _ferromq.pull_columns(parts, packed, until)

    def _failed(self, method: str, error: Any) -> FerromqError:
        return transport_error(error.code().name, error.details(), self.endpoint, method, TIMEOUT)


def queues(where: Where, topics: Topics) -> list[Queue]:
    """
    Return the readable queues of *topics* on all brokers, with the offsets they hold now.

    Raises `TopicNotFound` for a name that no broker has, and `ConfigError` for a pattern that no topic matches.
    """
    if where.endpoint is None or topics.pattern is not None:
        raise ConfigError("option 'namesrv' is not served yet; allowed: endpoint")
    found = [queue for topic in topics.names for queue in _queues(where.endpoint, topic)]
    return sorted(found, key=lambda queue: (queue.topic, queue.broker_name, queue.queue_id))


def offsets_by_time(wanted: Sequence[tuple[Queue | QueueRange, int]]) -> list[int]:
    """Return, for each queue and time in ms, the first offset stored then or later, or its end where none is."""
    offsets = []
    for queue, ms in wanted:
        with _Broker(queue.endpoint) as broker:
            request = pb.QueryOffsetRequest(
                message_queue=_message_queue(queue.topic, queue.broker_name, queue.queue_id),
                query_offset_policy=pb.TIMESTAMP,
                timestamp=pb.Timestamp(seconds=ms // 1000, nanos=ms % 1000 * 1_000_000),
            )
            answer = broker.ask("QueryOffset", request, pb.QueryOffsetResponse)
        _check((answer.status.code, answer.status.message), f"the offset at {ms} ms of {queue}")
        offsets.append(answer.offset)
    return offsets


def _queues(endpoint: str, topic: str) -> list[Queue]:
    with _Broker(endpoint) as broker:
        request = pb.QueryRouteRequest(topic=pb.Resource(name=topic), endpoints=endpoints_message([endpoint]))
        route = broker.ask("QueryRoute", request, pb.QueryRouteResponse)
    _check((route.status.code, route.status.message), f"topic {topic!r} at {endpoint}")
    by_endpoint: dict[str, list[Any]] = {}
    for queue in route.message_queues:
        if queue.broker.id == MASTER and queue.permission in {pb.READ, pb.READ_WRITE}:
            by_endpoint.setdefault(endpoint_of(queue.broker.endpoints), []).append(queue)
    found: list[Queue] = []
    for address, readable in by_endpoint.items():
        with _Broker(address) as broker:
            found += [_queue(broker, topic, queue) for queue in readable]
    return found


def _queue(broker: _Broker, topic: str, queue: Any) -> Queue:
    offsets = []
    for policy in (pb.BEGINNING, pb.END):
        request = pb.QueryOffsetRequest(
            message_queue=_message_queue(topic, queue.broker.name, queue.id), query_offset_policy=policy
        )
        answer = broker.ask("QueryOffset", request, pb.QueryOffsetResponse)
        _check(
            (answer.status.code, answer.status.message),
            f"the offsets of queue {queue.id} of topic {topic!r} on {queue.broker.name}",
        )
        offsets.append(answer.offset)
    return Queue(topic, queue.broker.name, broker.endpoint, queue.id, *offsets)


def pull(wanted: QueueRange, topic: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """
    Yield the messages of *wanted* as (number of rows, columns), the next answer under way meanwhile.

    Raises where the queue does not hold every offset of the range any more: nothing is left out in silence.
    """
    with _Broker(wanted.endpoint) as broker:
        offset = wanted.start
        call = broker.pull(wanted, topic, offset)
        while offset < wanted.end:
            answer = broker.pulled(call, wanted.end)
            _check(answer["status"] or (pb.OK, ""), f"{wanted} at queue offset {offset}")
            rows = answer["rows"]
            if rows == 0 or answer["next_offset"] is None or answer["next_offset"] != offset + rows:
                raise ServerError(
                    f"{wanted} was asked for queue offsets from {offset} and gave {rows} messages, the next at "
                    f"{answer['next_offset']}: messages of the range [{wanted.start}, {wanted.end}) have aged out"
                )
            offset += rows
            if offset < wanted.end:
                call = broker.pull(wanted, topic, offset)
            yield rows, answer["columns"]


def _check(status: tuple[int, str], what: str) -> None:
    if status[0] != pb.OK:
        raise named(error_of(*status), what)


def _message_queue(topic: str, broker_name: str, queue_id: int) -> Any:
    return pb.MessageQueue(topic=pb.Resource(name=topic), id=queue_id, broker=pb.Broker(name=broker_name))
