"""Answers over gRPC that are no protobuf messages: each is an error of ferromq, or a line of the log."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from ferromq._proto import messages as pb
from ferromq.errors import ConnectionFailed, OutcomeUnknown
from ferromq.pipeline.inputs import group_lags
from ferromq.spark.options import ClusterAddress
from ferromq.spark.read import pull
from ferromq.spark.read.over_grpc import GrpcBroker
from ferromq.spark.read.plan import Queue
from ferromq.spark.stream.group import GroupOffsets

TEXT = "the answer cannot be decoded"


class Handler(grpc.GenericRpcHandler):  # type: ignore[misc] # grpc has no types
    """Answers each call with a byte that is no message."""

    def service(self, _details: Any) -> Any:
        """Return the handler of any method."""
        return grpc.unary_unary_rpc_method_handler(lambda _request, _context: b"\xff")


@pytest.fixture
def queue() -> Iterator[Queue]:
    """Return a queue at an endpoint with such answers."""
    server = grpc.server(ThreadPoolExecutor(2), handlers=[Handler()])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield Queue("orders", "broker-a", f"127.0.0.1:{port}", 0, 0, 1)
    server.stop(None).wait()


def test_a_read_fails(queue: Queue) -> None:
    """One request, and several at once, raise `OutcomeUnknown`."""
    request = pb.QueryRouteRequest(topic=pb.Resource(name="orders"))
    with GrpcBroker(queue.endpoint, None) as broker:
        with pytest.raises(OutcomeUnknown, match=f"QueryRoute failed at {queue.endpoint}: {TEXT}"):
            broker.ask("QueryRoute", request, pb.QueryRouteResponse)
        with pytest.raises(OutcomeUnknown, match=f"QueryRoute failed at {queue.endpoint}: {TEXT}"):
            broker.ask_all("QueryRoute", [request, request], pb.QueryRouteResponse)


def test_a_query_of_lags_fails(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the error of a broker that does not return offsets."""
    monkeypatch.setattr(pull, "queues", lambda *_: [queue])
    with pytest.raises(ConnectionFailed, match=f"did not return offsets.*{TEXT}"):
        group_lags.lags(ClusterAddress(endpoint=queue.endpoint), ["orders"], ["display"])


def test_offsets_for_display_log_it(queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
    """A failed write has no other effect."""
    group = GroupOffsets("display", None)
    group.write([(queue, 1)])
    group.close()
    assert [TEXT in record.message for record in caplog.records] == [True]
