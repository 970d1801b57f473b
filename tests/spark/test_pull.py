"""`ferromq.spark.read.pull` against a scripted broker of a few lines."""

import struct
import threading
import zlib
from collections.abc import Callable, Iterator
from concurrent import futures
from dataclasses import dataclass, field
from typing import Any

import grpc
import pyarrow as pa
import pytest

from ferromq._proto import messages as pb
from ferromq.errors import ConfigError, ConnectionFailed, ServerError, TopicNotFound
from ferromq.spark.arrow import record_batch
from ferromq.spark.options import ClusterAddress
from ferromq.spark.read import over_grpc, pull
from ferromq.spark.read.plan import Queue, QueueRange
from ferromq.spark.topics import Topics

FLIGHTS = Topics(("flights",))
SCHEMA = pa.schema([pa.field("queue_offset", pa.int64()), pa.field("body", pa.binary())])


@dataclass
class Script:
    """A topic of one queue that answers PullMessage with at most *most* messages, and records the requests."""

    most: int = 3
    records: bool = True
    min_offset: int = 0
    max_offset: int = 10
    code: int = pb.OK
    sent_min_offset: int = 0
    together: int = 1
    """So many questions for offsets are answered at once, and none before the others are there."""
    pulls: list[tuple[int, int]] = field(default_factory=list)
    port: int = 0

    def __post_init__(self) -> None:
        self._gate = threading.Barrier(self.together, timeout=30)

    def query_route(self, request: Any, _: grpc.ServicerContext) -> Any:
        """Answer with three queues: one to read and write, one to write, one to read."""
        if request.topic.name != "flights":
            return pb.QueryRouteResponse(status=pb.Status(code=pb.TOPIC_NOT_FOUND, message="no such topic"))
        address = pb.Address(host="127.0.0.1", port=self.port)
        broker = pb.Broker(name="broker-a", endpoints=pb.Endpoints(scheme=pb.IPv4, addresses=[address]))
        queues = [
            pb.MessageQueue(topic=request.topic, id=queue_id, permission=permission, broker=broker)
            for queue_id, permission in enumerate([pb.READ_WRITE, pb.WRITE, pb.READ])
        ]
        return pb.QueryRouteResponse(status=pb.Status(code=pb.OK), message_queues=queues)

    def query_offset(self, request: Any, _: grpc.ServicerContext) -> Any:
        """Answer with the same offsets for every queue."""
        self._gate.wait()
        offset = self.min_offset if request.query_offset_policy == pb.BEGINNING else self.max_offset
        return pb.QueryOffsetResponse(status=pb.Status(code=pb.OK), offset=offset)

    def pull(self, request: Any, context: grpc.ServicerContext) -> Iterator[bytes]:
        """Answer as the script says: a packet with status and next offset, then records."""
        self.pulls.append((request.offset, request.batch_size))
        assert ("x-ferromq-packed", "2") in context.invocation_metadata()
        if self.records:
            metadata = (("x-ferromq-packed", "2"), ("x-ferromq-min-offset", str(self.sent_min_offset)))
            context.send_initial_metadata(metadata)
        begin = max(request.offset, self.min_offset)
        end = min(begin + min(request.batch_size, self.most), self.max_offset)
        answers = [
            pb.PullMessageResponse(status=pb.Status(code=self.code, message="said so")),
            pb.PullMessageResponse(next_offset=max(end, begin)),
        ]
        encoded = [answer.SerializeToString() for answer in answers]
        yield b"".join(bytes([len(answer)]) + answer for answer in encoded)
        for offset in range(begin, end):
            yield record(offset, b"body %d" % offset)


def record(queue_offset: int, body: bytes, tag: str = "") -> bytes:
    """Return a record in the format of the log."""
    properties = f"TAGS\x01{tag}\x02".encode() if tag else b""
    host = bytes([127, 0, 0, 1]) + struct.pack(">i", 10911)
    crc = zlib.crc32(body) & 0x7FFFFFFF
    head = struct.pack(">IIiiqqi", 0xDAA320A7, crc, 0, 0, queue_offset, 1000 * queue_offset, 0)
    times = struct.pack(">q", 5) + host + struct.pack(">q", 7) + host + struct.pack(">iq", 0, 0)
    tail = struct.pack(">i", len(body)) + body + b"\x07flights" + struct.pack(">h", len(properties)) + properties
    return struct.pack(">i", 4 + len(head) + len(times) + len(tail)) + head + times + tail


@pytest.fixture
def serve() -> Iterator[Callable[[Script], Script]]:
    """Serve scripts on ports of their own until the test ends."""
    servers = []

    def start(script: Script) -> Script:
        server = grpc.server(futures.ThreadPoolExecutor(max(2, script.together)))
        unary = grpc.unary_unary_rpc_method_handler
        handlers = {
            "QueryRoute": unary(
                script.query_route, pb.QueryRouteRequest.FromString, pb.QueryRouteResponse.SerializeToString
            ),
            "QueryOffset": unary(
                script.query_offset, pb.QueryOffsetRequest.FromString, pb.QueryOffsetResponse.SerializeToString
            ),
            "PullMessage": grpc.unary_stream_rpc_method_handler(script.pull, pb.PullMessageRequest.FromString),
        }
        service = grpc.method_handlers_generic_handler("apache.rocketmq.v2.MessagingService", handlers)
        server.add_generic_rpc_handlers((service,))
        script.port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        servers.append(server)
        return script

    yield start
    for server in servers:
        server.stop(None)


def read(script: Script, start: int, end: int) -> list[tuple[int, bytes]]:
    """Return queue offset and body of the rows of a partition."""
    wanted = QueueRange("flights", "broker-a", f"127.0.0.1:{script.port}", 0, start, end)
    rows: list[tuple[int, bytes]] = []
    for count, columns in pull.pull(wanted, "flights"):
        batch = record_batch(columns, count, SCHEMA)
        rows += zip(*batch.to_pydict().values(), strict=True)
    return rows


def test_a_range_is_read_whole_and_no_further(serve: Callable[[Script], Script]) -> None:
    """Each pull continues at the end of the previous one."""
    script = serve(Script())
    assert read(script, 2, 9) == [(offset, b"body %d" % offset) for offset in range(2, 9)]
    assert script.pulls == [(2, 7), (5, 4), (8, 1)]


def test_messages_after_the_end_of_the_range_are_not_rows(
    serve: Callable[[Script], Script], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A partition never reads the next one's messages."""
    script = serve(Script(most=100))
    monkeypatch.setattr(over_grpc, "MAX_MESSAGES", 4)
    assert [offset for offset, _ in read(script, 0, 6)] == list(range(6))
    assert script.pulls == [(0, 4), (4, 2)]


def test_messages_that_aged_out_meanwhile_are_an_error(serve: Callable[[Script], Script]) -> None:
    """A broker that continues at a later offset does not cause a silent gap."""
    script = serve(Script(min_offset=4))
    with pytest.raises(ServerError, match="aged out"):
        read(script, 2, 9)


def test_messages_that_aged_out_are_noticed_behind_a_filter_too(serve: Callable[[Script], Script]) -> None:
    """The broker's filter skips offsets, so the queue's min offset shows whether messages are gone."""
    script = serve(Script(min_offset=4, sent_min_offset=4))
    wanted = QueueRange("flights", "broker-a", f"127.0.0.1:{script.port}", 0, 2, 9)
    with pytest.raises(ServerError, match=r"now begins at 4: .* aged out"):
        list(pull.pull(wanted, columns=["tag"], filter={"tags": ["a"]}))


def test_rows_are_filtered_and_columns_left_out(serve: Callable[[Script], Script]) -> None:
    """Only requested columns are made, and batches without rows are skipped."""
    script = serve(Script())
    wanted = QueueRange("flights", "broker-a", f"127.0.0.1:{script.port}", 0, 0, 9)
    ((rows, columns),) = pull.pull(wanted, columns=["queue_offset"], filter={"offset_from": 7})
    assert (rows, list(columns)) == (2, ["queue_offset"])


def test_an_endpoint_that_gives_no_records_is_named_with_the_way_out(serve: Callable[[Script], Script]) -> None:
    """RocketMQ's proxy sends messages, not records: its brokers are read over remoting."""
    script = serve(Script(records=False))
    with pytest.raises(ConfigError, match=rf"127.0.0.1:{script.port} does not send records.*namesrv"):
        read(script, 2, 9)


def test_a_queue_that_ends_early_is_an_error(serve: Callable[[Script], Script]) -> None:
    """An empty result inside the range is an error: messages are gone, or cannot be read now."""
    script = serve(Script(max_offset=5))
    with pytest.raises(ServerError, match=r"aged out or cannot be read now: .*the broker's log"):
        read(script, 2, 9)


def test_a_bad_status_is_an_error_with_the_brokers_words(serve: Callable[[Script], Script]) -> None:
    """The error has queue, offset, code and the broker's reason."""
    script = serve(Script(code=pb.INTERNAL_SERVER_ERROR))
    with pytest.raises(ServerError, match=r"queue 0 of topic .flights. on broker-a at queue offset 2: said so"):
        read(script, 2, 9)


def test_queues_are_the_readable_ones_with_their_offsets(serve: Callable[[Script], Script]) -> None:
    """Write-only queues are skipped."""
    script = serve(Script(min_offset=1, max_offset=8))
    endpoint = f"127.0.0.1:{script.port}"
    assert pull.queues(ClusterAddress(endpoint), FLIGHTS) == [
        Queue("flights", "broker-a", endpoint, queue_id, 1, 8) for queue_id in (0, 2)
    ]


def test_times_of_many_queues_are_queried_over_grpc_concurrently(serve: Callable[[Script], Script]) -> None:
    """The broker answers none of eight requests before it has them all."""
    script = serve(Script(together=8, max_offset=8))
    endpoint = f"127.0.0.1:{script.port}"
    queues = [Queue("flights", "broker-a", endpoint, number, 0, 9) for number in range(8)]
    assert pull.offsets_by_time([(queue, 5) for queue in queues]) == [8] * 8


def test_an_unknown_topic_is_named(serve: Callable[[Script], Script]) -> None:
    """The error has topic and endpoint."""
    script = serve(Script())
    with pytest.raises(TopicNotFound, match=f"topic 'trains' at 127.0.0.1:{script.port}: no such topic"):
        pull.queues(ClusterAddress(f"127.0.0.1:{script.port}"), Topics(("trains",)))


def test_an_unreachable_endpoint_is_named(serve: Callable[[Script], Script]) -> None:
    """The error has method and endpoint."""
    with pytest.raises(ConnectionFailed, match=r"cannot reach broker 127.0.0.1:1 \(connection refused\)"):
        pull.queues(ClusterAddress("127.0.0.1:1"), FLIGHTS)


@pytest.mark.parametrize(
    ("topic", "tags", "sent"),
    [
        ("flights", ["a", "b"], ["a", "b"]),
        ("flights", ["a", "b||c"], []),
        ("flights", ["a", ""], []),
        ("flights", None, []),
        ("SCHEDULE_TOPIC_XXXX", ["a"], []),
        ("rmq_sys_wheel_timer", ["a"], []),
    ],
)
def test_tags_are_filtered_by_the_broker_only_if_entries_have_them(
    topic: str, tags: list[str] | None, sent: list[str]
) -> None:
    """Entries of the topic of delayed messages have a time instead of the tag hash, so none would match."""
    assert list(pull.tags_for_broker(topic, tags)) == sent
