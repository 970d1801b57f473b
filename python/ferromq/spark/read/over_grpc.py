"""
Reads ferromq brokers over gRPC: routes, offsets, and records in the format of the commit log.

RocketMQ's service carries messages, not records. ferromq's brokers send records to a client that asks for them
(`x-ferromq-packed: 2`, see docs/wire-format.md). RocketMQ's brokers are read over remoting.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

import grpc

from ferromq._proto import messages as pb
from ferromq.client.connection import Channels, failure
from ferromq.client.tls import Tls, read_tls
from ferromq.core.credentials import credentials_of
from ferromq.core.requests import PACKED, Identity, Metadata, decoded, error_of, named
from ferromq.core.routes import endpoint_of, endpoints_message
from ferromq.errors import ConfigError, ServerError
from ferromq.protocol.route import MASTER, WHOLE
from ferromq.spark.read.plan import Queue, QueueRange
from ferromq.spark.read.pull_result import AgedOutError, PullResult

RECORDS = "2"
"""Value of `x-ferromq-packed` that requests records."""
MIN_OFFSET = "x-ferromq-min-offset"
MAX_MESSAGES = 16_384
"""Messages of one pull; the broker answers at most 4 MiB."""
MAX_OFFSET_REQUESTS = 256
"""Concurrent requests for the offset at a time."""
TIMEOUT = 60.0
"""Seconds for one call."""


def channels(tls: Tls | None) -> Channels:
    """Return channels that sign with the credentials of the environment. Raises `ConfigError` for a bad file."""
    return Channels(Identity(credentials_of(None, None)), read_tls(tls or False))


class GrpcBroker:
    """A connection to one gRPC endpoint."""

    def __init__(self, endpoint: str, tls: Tls | None) -> None:
        self.endpoint = endpoint
        self._channels = channels(tls)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._channels.close()

    def ask(self, method: str, request: Any, response: Any, metadata: Metadata = ()) -> Any:
        """Return the response to a unary *request*; the caller checks its status."""
        packet = self._channels.call(self.endpoint, method, request.SerializeToString(), TIMEOUT, metadata)
        return decoded(response, packet, self.endpoint, method)

    def ask_all(self, method: str, requests: Sequence[Any], response: Any) -> list[Any]:
        """Send unary *requests* at once and return their responses."""
        begin, metadata = self._channels.method(self.endpoint, method), self._channels.identity.metadata()
        calls = [begin.future(request.SerializeToString(), TIMEOUT, metadata) for request in requests]
        try:
            return [decoded(response, call.result(), self.endpoint, method) for call in calls]
        except grpc.RpcError as error:
            raise failure(error, self.endpoint, method, TIMEOUT) from error

    def begin(self, wanted: QueueRange, offset: int, tags: Sequence[str]) -> Any:
        """Begin a pull at *offset* and return the call, for `finish`."""
        request = pb.PullMessageRequest(
            message_queue=_message_queue(wanted),
            offset=offset,
            batch_size=min(MAX_MESSAGES, wanted.end - offset),
            filter_expression=pb.FilterExpression(type=pb.TAG, expression=" || ".join(tags) or "*"),
            long_polling_timeout=pb.Duration(),  # do not wait at the end of a queue without these tags
        )
        metadata = (*self._channels.identity.metadata(), (PACKED, RECORDS))
        pull = self._channels.method(self.endpoint, "PullMessage", "unary_stream")
        return pull(request.SerializeToString(), TIMEOUT, metadata)

    def finish(self, call: Any, wanted: QueueRange, offset: int) -> PullResult:
        """Wait for the result of a pull. Raises the broker's error."""
        try:
            parts: list[bytes] = list(call)
            metadata = dict(call.initial_metadata())
        except grpc.RpcError as error:
            raise failure(error, self.endpoint, "PullMessage", TIMEOUT) from error
        if metadata.get(PACKED) != RECORDS:
            raise ConfigError(
                f"option 'endpoint': {self.endpoint} does not send records, so it is not a ferromq broker of this "
                "version; allowed: a ferromq broker, or option 'namesrv', which reads RocketMQ's brokers too"
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
        min_offset = int(metadata.get(MIN_OFFSET, 0))
        return PullResult(parts[1:], offset if next_offset is None else next_offset, min_offset)

    def offsets(self, queues: Sequence[Queue | QueueRange], policy: int) -> list[int]:
        """Return the offset of each of *queues* that *policy* names, in one round trip."""
        return self._offsets([(queue, _offset_request(queue, policy)) for queue in queues])

    def offsets_by_time(self, wanted: Sequence[tuple[Queue | QueueRange, int]]) -> list[int]:
        """Return the offset of each queue at its time in ms."""
        asked = [(queue, _offset_request(queue, pb.TIMESTAMP, ms)) for queue, ms in wanted]
        parts = (asked[begin : begin + MAX_OFFSET_REQUESTS] for begin in range(0, len(asked), MAX_OFFSET_REQUESTS))
        return [offset for part in parts for offset in self._offsets(part)]

    def _offsets(self, asked: Sequence[tuple[Queue | QueueRange, Any]]) -> list[int]:
        answers = self.ask_all("QueryOffset", [request for _, request in asked], pb.QueryOffsetResponse)
        for (queue, _), answer in zip(asked, answers, strict=True):
            _check(answer.status, f"the offsets of {queue}")
        return [int(answer.offset) for answer in answers]


def queues(endpoint: str, topic: str, tls: Tls | None = None) -> list[Queue]:
    """
    Return the readable queues of *topic* on all brokers that *endpoint* knows, with their current offsets.

    Raises if one of the brokers is down or does not serve gRPC, because the rows would be incomplete.
    """
    with GrpcBroker(endpoint, tls) as broker:
        request = pb.QueryRouteRequest(topic=pb.Resource(name=topic), endpoints=endpoints_message([endpoint]))
        route = broker.ask("QueryRoute", request, pb.QueryRouteResponse, ((WHOLE, "1"),))
    _check(route.status, f"topic {topic!r} at {endpoint}")
    by_endpoint: dict[str, list[Any]] = {}
    for queue in route.message_queues:
        if queue.broker.id == MASTER and queue.permission in {pb.READ, pb.READ_WRITE}:
            by_endpoint.setdefault(endpoint_of(queue.broker.endpoints), []).append(queue)
    found: list[Queue] = []
    for address, readable in by_endpoint.items():
        with GrpcBroker(address, tls) as broker:
            empty = [Queue(topic, queue.broker.name, address, queue.id, 0, 0, tls=tls) for queue in readable]
            firsts, ends = broker.offsets(empty, pb.BEGINNING), broker.offsets(empty, pb.END)
        found += [
            replace(queue, min_offset=first, max_offset=end)
            for queue, first, end in zip(empty, firsts, ends, strict=True)
        ]
    return found


def offsets_by_time(endpoint: str, wanted: Sequence[tuple[Queue | QueueRange, int]], tls: Tls | None) -> list[int]:
    """Return for each queue of *endpoint* the first offset stored at its time in ms or later, else the max offset."""
    with GrpcBroker(endpoint, tls) as broker:
        return broker.offsets_by_time(wanted)


def _offset_request(queue: Queue | QueueRange, policy: int, ms: int = 0) -> Any:
    request = pb.QueryOffsetRequest(message_queue=_message_queue(queue), query_offset_policy=policy)
    if policy == pb.TIMESTAMP:
        request.timestamp.CopyFrom(pb.Timestamp(seconds=ms // 1000, nanos=ms % 1000 * 1_000_000))
    return request


def _responses(packet: bytes) -> Iterator[Any]:
    """Yield the responses in a packed gRPC message: each is a varint length and a PullMessageResponse."""
    rest = packet
    while rest:
        length, rest = _varint(rest)
        yield pb.PullMessageResponse.FromString(rest[:length])
        rest = rest[length:]


def _varint(data: bytes) -> tuple[int, bytes]:
    """Return the varint at the start of *data*, and the rest."""
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
