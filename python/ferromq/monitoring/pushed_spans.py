"""
Spans of a server's requests in the messages of `opentelemetry/proto/trace/v1`.

The Rust core records them, for requests with a context of W3C that the client samples. Those of a failed push are lost.
"""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Final

from ferromq._ferromq import Server
from ferromq.monitoring.metrics import request_name, response_name
from ferromq.monitoring.otlp import add_label, describe, messages

MAX_SPANS: Final = 4_096
"""Spans of one request; collectors take requests of 4 MiB."""
SPANS_INTERVAL: Final = timedelta(seconds=5)
"""The longest time between two pushes: the core keeps 8,192 spans meanwhile."""
_SERVER, _ERROR = 2, 2  # SpanKind, StatusCode
# Codes of answers that are no failure, `pull_…` and `polling_…` aside.
_GOOD: Final = {"success", "ok", "message_not_found", "no_message", "no_new_message", "multiple_results"}
_WAITED: Final = ("pull_", "polling_")


class PushedSpans:
    """Makes requests of the spans that *server* records, from now on until `close`."""

    what = "spans"
    rejected = "rejected_spans"

    def __init__(self, server: Server, labels: dict[str, str]) -> None:
        """*labels* are attributes of each span."""
        self._pb = messages("trace")
        self.stub = self._pb.services.TraceServiceStub
        self._labels = {"messaging.system": "rocketmq", **labels}
        self._server = server
        server.record_spans(on=True)

    def close(self) -> None:
        """Record no more. Idempotent."""
        self._server.record_spans(on=False)

    def requests(self, _now_ms: int) -> Iterator[Any]:
        """Yield requests with the spans that have ended, each with `MAX_SPANS` at most."""
        ended = self._server.take_spans()
        for first in range(0, len(ended), MAX_SPANS):
            request = self._pb.requests.ExportTraceServiceRequest()
            scope = describe(request.resource_spans.add())
            scope.spans.extend(map(self._span, ended[first : first + MAX_SPANS]))
            yield request

    def _span(self, ended: tuple[tuple[int, int, int], str, str, int, str, int, int]) -> Any:
        (trace, parent, own), protocol, request, code, result, begin, end = ended
        asked, answered = request_name(protocol, request), response_name(protocol, code)
        span = self._pb.data.Span(
            trace_id=trace.to_bytes(16),
            parent_span_id=parent.to_bytes(8),
            span_id=own.to_bytes(8),
            name=asked,
            kind=_SERVER,
            start_time_unix_nano=begin,
            end_time_unix_nano=end,
        )
        facts = {"protocol_type": protocol, "request_code": asked, "response_code": answered, "result": result}
        for name, value in {**self._labels, **facts}.items():
            add_label(span, name, value)
        if result == "write_channel_failed" or not (answered in _GOOD or answered.startswith(_WAITED)):
            span.status.code, span.status.message = _ERROR, answered
        return span
