"""A collector of OpenTelemetry, for tests: it takes metrics and spans by OTLP over gRPC, and keeps the requests."""

import queue
from collections.abc import Callable
from concurrent import futures
from typing import Any

import grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as metrics
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2_grpc as metrics_services
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as spans
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as span_services

PATIENCE = 30
Answer = Callable[[grpc.ServicerContext], metrics.ExportMetricsServiceResponse]


def accepted(_: grpc.ServicerContext) -> metrics.ExportMetricsServiceResponse:
    """Take everything."""
    return metrics.ExportMetricsServiceResponse()


class _Spans(span_services.TraceServiceServicer):
    """The service for spans."""

    def __init__(self, received: "queue.SimpleQueue[Any]") -> None:
        self._received = received

    def Export(self, request: Any, _context: grpc.ServicerContext) -> Any:  # noqa: N802 (the name of the method)
        """Keep a request."""
        self._received.put(request)
        return spans.ExportTraceServiceResponse()


class Collector(metrics_services.MetricsServiceServicer):
    """A collector at a port of its own or at *port*; *answer* is for metrics, with *credentials* it takes TLS."""

    def __init__(
        self, port: int = 0, answer: Answer = accepted, credentials: grpc.ServerCredentials | None = None
    ) -> None:
        self.received: queue.SimpleQueue[Any] = queue.SimpleQueue()
        """Requests with metrics."""
        self.traced: queue.SimpleQueue[Any] = queue.SimpleQueue()
        """Requests with spans."""
        self.headers: list[dict[str, str]] = []
        self._answer = answer
        self._server = grpc.server(futures.ThreadPoolExecutor(2), options=[("grpc.so_reuseport", 0)])
        metrics_services.add_MetricsServiceServicer_to_server(self, self._server)
        span_services.add_TraceServiceServicer_to_server(_Spans(self.traced), self._server)
        if credentials is None:
            self.port = self._server.add_insecure_port(f"127.0.0.1:{port}")
            self.target = f"http://127.0.0.1:{self.port}"
        else:
            self.port = self._server.add_secure_port(f"127.0.0.1:{port}", credentials)
            self.target = f"https://localhost:{self.port}"
        self._server.start()

    def Export(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802 (the name of the method)
        """Keep a request and answer it."""
        self.headers.append({str(key): str(value) for key, value in context.invocation_metadata()})
        self.received.put(request)
        return self._answer(context)

    def close(self) -> None:
        """End at once, as a killed process does."""
        self._server.stop(None).wait(PATIENCE)

    def metrics(self) -> dict[str, Any]:
        """Return the metrics of the next request by name."""
        request = self.received.get(timeout=PATIENCE)
        found = [metric for scope in request.resource_metrics[0].scope_metrics for metric in scope.metrics]
        return {metric.name: metric for metric in found}

    def spans(self) -> list[Any]:
        """Return the spans of all requests so far."""
        found = list[Any]()
        while not self.traced.empty():
            found += self.traced.get().resource_spans[0].scope_spans[0].spans
        return found


def labels(item: Any) -> dict[str, str]:
    """Return the attributes of a point or a span."""
    return {attribute.key: attribute.value.string_value for attribute in item.attributes}
