"""Spans of requests that clients trace: recorded by the core, pushed by OTLP, off by default, and bounded."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from otlp_collector import Collector, labels

import ferromq
from ferromq._ferromq import RemotingClient
from ferromq._proto import messages
from ferromq.monitoring import pushed_spans
from ferromq.process.clock import Clock

PATIENCE = 30
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
Eventually = Callable[[Callable[[], bool]], bool]
SAMPLED = f"00-{TRACE}-{PARENT}-01"


@pytest.fixture
def collector() -> Iterator[Collector]:
    """Run a collector."""
    with contextlib.closing(Collector()) as collector:
        yield collector


@pytest.fixture
def clock() -> Clock:
    """Return a clock moved by hand."""
    return Clock.manual()


@pytest.fixture
def mq(clock: Clock, collector: Collector) -> Iterator[ferromq.Embedded]:
    """Run a broker that pushes its spans once in five seconds of *clock*."""
    with ferromq.embedded(clock=clock, spans_push=collector.target, default_queues=1) as mq:
        yield mq


def send_by_remoting(mq: ferromq.Embedded, context: str) -> None:
    """Send a message with a context among its properties, as Java's producers under OpenTelemetry's agent do."""
    sent = {"a": "PG", "b": "orders", "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": "1700000000000", "h": "0"}
    properties = f"color\x01red\x02traceparent\x01{context}\x02"
    client = RemotingClient()
    code, remark, _, _ = client.call(mq.remoting, 310, {**sent, "i": properties, "j": "0", "k": "false"}, b"tea")
    assert code == 0, remark
    client.close()


def call(mq: ferromq.Embedded, method: str, request: Any, answer: Any, *metadata: tuple[str, str]) -> Any:
    """Call a method by gRPC over HTTP/2."""
    with grpc.insecure_channel(mq.endpoint) as channel:
        path = f"/apache.rocketmq.v2.MessagingService/{method}"
        made = channel.unary_unary(
            path, request_serializer=lambda given: given.SerializeToString(), response_deserializer=answer.FromString
        )
        return made(request, metadata=(("x-mq-client-id", "traced"), *metadata), timeout=PATIENCE)


def test_the_span_of_a_send_belongs_to_the_producers(mq: ferromq.Embedded, clock: Clock, collector: Collector) -> None:
    """OpenTelemetry's span of the client is the parent: `embedded` clients and those by a socket write its context."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    telemetry = ferromq.telemetry.OpenTelemetry(tracer_provider=provider)
    with mq.producer(telemetry=telemetry) as local, ferromq.Producer(mq.endpoint, telemetry=telemetry) as remote:
        local.send("orders", b"tea")
        remote.send("orders", b"tea")
    clock.advance(seconds=5)
    clients = {span.context.span_id: span for span in exporter.get_finished_spans() if span.context is not None}
    spans = collector.spans()
    assert [span.name for span in spans] == ["SendMessage", "SendMessage"]
    for span in spans:
        client = clients.pop(int.from_bytes(span.parent_span_id))
        assert client.context is not None
        assert int.from_bytes(span.trace_id) == client.context.trace_id
        assert span.start_time_unix_nano <= span.end_time_unix_nano
        assert span.kind == 2  # a server's
        assert span.status.code == 0
        assert labels(span) == {
            "messaging.system": "rocketmq",
            "cluster": "DefaultCluster",
            "node_id": "broker-a",
            "protocol_type": "grpc",
            "request_code": "SendMessage",
            "response_code": "ok",
            "result": "success",
        }


def test_contexts_of_all_protocols_are_taken(
    mq: ferromq.Embedded, clock: Clock, collector: Collector, eventually: Eventually
) -> None:
    """From the properties of a remoting send, from gRPC's metadata, and from the properties of a gRPC message first."""
    send_by_remoting(mq, SAMPLED)
    route = messages.QueryRouteRequest(topic=messages.Resource(name="orders"))
    call(mq, "QueryRoute", route, messages.QueryRouteResponse, ("traceparent", SAMPLED))
    message = messages.Message(topic=messages.Resource(name="no topic"), body=b"tea")
    message.user_properties["traceparent"] = SAMPLED.replace(PARENT, "1" * 16)
    send = messages.SendMessageRequest(messages=[message])
    call(mq, "SendMessage", send, messages.SendMessageResponse, ("traceparent", SAMPLED))
    ack = messages.AckMessageRequest(group=messages.Resource(name="billing"), topic=messages.Resource(name="orders"))
    call(mq, "AckMessage", ack, messages.AckMessageResponse, ("traceparent", SAMPLED))
    found: dict[str, Any] = {}

    def are_all_there() -> bool:
        clock.advance(seconds=5)
        found.update({span.name: span for span in collector.spans()})
        return len(found) == 4

    assert eventually(are_all_there)
    assert set(found) == {"send_message_v2", "QueryRoute", "SendMessage", "AckMessage"}
    assert {span.trace_id.hex() for span in found.values()} == {TRACE}
    parents = {name: span.parent_span_id.hex() for name, span in found.items()}
    assert parents == {**dict.fromkeys(found, PARENT), "SendMessage": "1" * 16}
    assert len({span.span_id for span in found.values()}) == 4
    refused = found["SendMessage"]
    assert (refused.status.code, refused.status.message) == (2, labels(refused)["response_code"])
    assert labels(found["send_message_v2"])["response_code"] == "success"


def test_what_is_not_sampled_or_malformed_has_no_span(mq: ferromq.Embedded, clock: Clock, collector: Collector) -> None:
    """The send works all the same."""
    for context in (SAMPLED.replace("-01", "-00"), "00-0-0-01", "", "ff" * 40):
        send_by_remoting(mq, context)
    with mq.producer() as producer:
        producer.send("orders", b"tea")
    clock.advance(seconds=5)
    assert collector.spans() == []


def test_nothing_is_recorded_unless_it_is_asked_for(eventually: Eventually) -> None:
    """Nor is it after the end of the pushes."""
    with ferromq.embedded() as mq:
        server = mq.broker._server
        send_by_remoting(mq, SAMPLED)
        spans = pushed_spans.PushedSpans(server, {})
        assert server.take_spans() == []
        send_by_remoting(mq, SAMPLED)
        assert eventually(lambda: len(server.take_spans()) == 1)
        spans.close()
        send_by_remoting(mq, SAMPLED)
        assert server.take_spans() == []


def test_spans_of_a_push_are_several_requests(
    mq: ferromq.Embedded,
    clock: Clock,
    collector: Collector,
    monkeypatch: pytest.MonkeyPatch,
    eventually: Eventually,
) -> None:
    """Each of a bounded size; a span is there a moment after the answer."""
    monkeypatch.setattr(pushed_spans, "MAX_SPANS", 2)
    for _ in range(5):
        send_by_remoting(mq, SAMPLED)
    sizes = list[int]()

    def are_all_there() -> bool:
        clock.advance(seconds=5)
        while not collector.traced.empty():
            sizes.append(len(collector.traced.get().resource_spans[0].scope_spans[0].spans))
        return sum(sizes) == 5

    assert eventually(are_all_there)
    assert max(sizes) == 2
