"""
Brokers over gRPC: routes and offsets as any client asks for them, and records as they lie in the log.

RocketMQ's own service carries messages, not records; asking for records is ferromq's (`x-ferromq-packed: 2`, see
docs/wire-format.md). RocketMQ's brokers are read over remoting.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

import grpc

from ferromq._proto import messages as pb
from ferromq.client.connection import OPTIONS, target
from ferromq.core.requests import PACKED, SERVICE, Identity, Metadata, error_of, named, transport_error
from ferromq.core.routes import endpoint_of, endpoints_message
from ferromq.errors import ConfigError, FerromqError, ServerError
from ferromq.protocol.route import MASTER, WHOLE
from ferromq.spark.read.answer import AgedOutError, Answer
from ferromq.spark.read.plan import Queue, QueueRange

RECORDS = "2"
"""The value of `x-ferromq-packed` that asks for records."""
MIN_OFFSET = "x-ferromq-min-offset"
MOST_MESSAGES = 16_384
"""Messages asked for at once; the broker answers at most 4 MiB."""
MOST_QUESTIONS = 256
"""Offsets of times that are asked for at once."""
TIMEOUT = 60.0
"""Seconds that one answer may take."""


class GrpcBroker:
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

    def ask(self, method: str, request: Any, response: Any, metadata: Metadata = ()) -> Any:
        """Return the answer to a unary *request*; the status is the caller's to judge."""
        call = self._channel.unary_unary(SERVICE + method, response_deserializer=response.FromString)
        try:
            return call(request.SerializeToString(), timeout=TIMEOUT, metadata=(*self._identity.metadata(), *metadata))
        except grpc.RpcError as error:
            raise self._failed(method, error) from error

    def ask_all(self, method: str, requests: Sequence[Any], response: Any) -> list[Any]:
        """Return the answers to unary *requests*, which are all under way at once."""
        call = self._channel.unary_unary(SERVICE + method, response_deserializer=response.FromString)
        metadata = self._identity.metadata()
        calls = [call.future(request.SerializeToString(), timeout=TIMEOUT, metadata=metadata) for request in requests]
        try:
            return [call.result() for call in calls]
        except grpc.RpcError as error:
            raise self._failed(method, error) from error

    def begin(self, wanted: QueueRange, offset: int, tags: Sequence[str]) -> Any:
        """Begin a pull at *offset*; its answer comes while the caller does something else."""
        request = pb.PullMessageRequest(
            message_queue=_message_queue(wanted),
            offset=offset,
            batch_size=min(MOST_MESSAGES, wanted.end - offset),
            filter_expression=pb.FilterExpression(type=pb.TAG, expression=" || ".join(tags) or "*"),
            long_polling_timeout=pb.Duration(),  # an end without messages of these tags is not waited at
        )
        call = self._channel.unary_stream(SERVICE + "PullMessage")
        metadata = (*self._identity.metadata(), (PACKED, RECORDS))
        return call(request.SerializeToString(), timeout=TIMEOUT, metadata=metadata)

    def finish(self, call: Any, wanted: QueueRange, offset: int) -> Answer:
        """Wait for the answer of a pull. Raises what the broker refused with."""
        try:
            parts: list[bytes] = list(call)
            told = dict(call.initial_metadata())
        except grpc.RpcError as error:
            raise self._failed("PullMessage", error) from error
        if told.get(PACKED) != RECORDS:
            raise ConfigError(
                f"option 'endpoint': {self.endpoint} gives no records, so it is no ferromq broker of this version; "
                f"allowed: a ferromq broker, or option 'namesrv', which reads RocketMQ's brokers too"
            )
        status, next_offset = pb.Status(code=pb.OK), None
        for response in _responses(parts[0] if parts else b""):
            if response.WhichOneof("content") == "status":
                status = response.status
            elif response.WhichOneof("content") == "next_offset":
                next_offset = response.next_offset
        if status.code == pb.ILLEGAL_OFFSET:
            raise AgedOutError(status.message)
        if status.code not in {pb.OK, pb.MESSAGE_NOT_FOUND}:
            raise named(error_of(status.code, status.message), f"{wanted} at queue offset {offset}")
        return Answer(parts[1:], offset if next_offset is None else next_offset, int(told.get(MIN_OFFSET, 0)))

    def offsets(self, queues: Sequence[Queue | QueueRange], policy: int) -> list[int]:
        """Return the offset of each of *queues* that *policy* names, for the time of one answer."""
        return self._offsets([(queue, _offset_request(queue, policy)) for queue in queues])

    def offsets_by_time(self, wanted: Sequence[tuple[Queue | QueueRange, int]]) -> list[int]:
        """Return the offset of each queue at its time in ms, many asked at once."""
        asked = [(queue, _offset_request(queue, pb.TIMESTAMP, ms)) for queue, ms in wanted]
        parts = (asked[begin : begin + MOST_QUESTIONS] for begin in range(0, len(asked), MOST_QUESTIONS))
        return [offset for part in parts for offset in self._offsets(part)]

    def _offsets(self, asked: Sequence[tuple[Queue | QueueRange, Any]]) -> list[int]:
        answers = self.ask_all("QueryOffset", [request for _, request in asked], pb.QueryOffsetResponse)
        for (queue, _), answer in zip(asked, answers, strict=True):
            _check(answer.status, f"the offsets of {queue}")
        return [int(answer.offset) for answer in answers]

    def _failed(self, method: str, error: Any) -> FerromqError:
        return transport_error(error.code().name, error.details(), self.endpoint, method, TIMEOUT)


def queues(endpoint: str, topic: str) -> list[Queue]:
    """
    Return the readable queues of *topic* on all brokers that *endpoint* knows, with the offsets they hold now.

    Raises where one of them is away, or serves no gRPC: a part would look like the whole.
    """
    with GrpcBroker(endpoint) as broker:
        request = pb.QueryRouteRequest(topic=pb.Resource(name=topic), endpoints=endpoints_message([endpoint]))
        route = broker.ask("QueryRoute", request, pb.QueryRouteResponse, ((WHOLE, "1"),))
    _check(route.status, f"topic {topic!r} at {endpoint}")
    by_endpoint: dict[str, list[Any]] = {}
    for queue in route.message_queues:
        if queue.broker.id == MASTER and queue.permission in {pb.READ, pb.READ_WRITE}:
            by_endpoint.setdefault(endpoint_of(queue.broker.endpoints), []).append(queue)
    found: list[Queue] = []
    for address, readable in by_endpoint.items():
        with GrpcBroker(address) as broker:
            empty = [Queue(topic, queue.broker.name, address, queue.id, 0, 0) for queue in readable]
            firsts, ends = broker.offsets(empty, pb.BEGINNING), broker.offsets(empty, pb.END)
        found += [
            replace(queue, min_offset=first, max_offset=end)
            for queue, first, end in zip(empty, firsts, ends, strict=True)
        ]
    return found


def offsets_by_time(endpoint: str, wanted: Sequence[tuple[Queue | QueueRange, int]]) -> list[int]:
    """Return, for each queue of *endpoint* and time in ms, the first offset stored then or later, else its end."""
    with GrpcBroker(endpoint) as broker:
        return broker.offsets_by_time(wanted)


def _offset_request(queue: Queue | QueueRange, policy: int, ms: int = 0) -> Any:
    request = pb.QueryOffsetRequest(message_queue=_message_queue(queue), query_offset_policy=policy)
    if policy == pb.TIMESTAMP:
        request.timestamp.CopyFrom(pb.Timestamp(seconds=ms // 1000, nanos=ms % 1000 * 1_000_000))
    return request


def _responses(packet: bytes) -> Iterator[Any]:
    """Yield the responses of a packed gRPC message: each is a varint length and a PullMessageResponse."""
    rest = packet
    while rest:
        length, rest = _varint(rest)
        yield pb.PullMessageResponse.FromString(rest[:length])
        rest = rest[length:]


def _varint(data: bytes) -> tuple[int, bytes]:
    """Return the number that *data* begins with, seven bits a byte, and what follows."""
    value = 0
    for place, byte in enumerate(data):
        value |= (byte & 127) << 7 * place
        if not byte & 128:
            return value, data[place + 1 :]
    raise ServerError("a packet of PullMessage ends in the middle of a length")


def _check(status: Any, what: str) -> None:
    if status.code != pb.OK:
        raise named(error_of(status.code, status.message), what)


def _message_queue(queue: Queue | QueueRange) -> Any:
    broker = pb.Broker(name=queue.broker_name)
    return pb.MessageQueue(topic=pb.Resource(name=queue.topic), id=queue.queue_id, broker=broker)
