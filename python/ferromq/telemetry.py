"""
What clients tell of their operations: spans and metrics of OpenTelemetry, or counters of your own.

    mq = ferromq.connect("127.0.0.1:8081", telemetry=ferromq.telemetry.OpenTelemetry())

`Telemetry` is the interface, `OpenTelemetry` carries it out by the semantic conventions for messaging. `core.watch`
calls it. OpenTelemetry is imported when an `OpenTelemetry` is made.
"""

import importlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ferromq import _ferromq
from ferromq._ferromq import Message, MessageView
from ferromq.terminal.objects import Shown

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import Link, TracerProvider

__all__ = ["OpenTelemetry", "Operation", "Telemetry"]

PIP_LINE = "pip install 'ferromq[otel]'"

_TYPES = {"send": "send", "reply": "send", "recall": "settle", "receive": "receive", "process": "process"}
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
"""The bucket boundaries that the conventions advise."""


@dataclass(slots=True, eq=False)
class Operation:
    """One operation of a client. Times are seconds, but for `started_ns`."""

    name: str
    """
    `send`, `reply`, `recall`, `receive`, `process` (a call of a handler), `ack` or `forward_to_dead_letter`.

    A reply has the request as its message.
    """
    topic: str
    endpoint: str
    """The addresses that the client was made with."""
    group: str | None = None
    """The consumer group; None for producers and readers."""
    messages: Sequence[Message | MessageView] = ()
    """The messages; empty for `Producer.send_all`, whose messages are not kept, and for a recall."""
    count: int = 0
    """How many messages there are; of `Producer.send_all` only at the end."""
    started_ns: int = field(default_factory=time.time_ns)
    """Nanoseconds since 1970."""
    seconds: float = 0.0
    """How long it took, once it has ended."""
    error: BaseException | None = None
    """What it failed with."""
    message_id: str | None = None
    """The id of the only message; of one that is sent, at the end."""
    properties: dict[str, str] = field(default_factory=dict)
    """What `Telemetry.begin` adds to the properties of messages that are sent; a message's own ones count."""
    began: float = field(default_factory=time.perf_counter)
    """The beginning by the clock that `seconds` is measured with."""
    state: Any = None
    """Whatever `Telemetry.begin` wants to find in `Telemetry.end`."""

    @property
    def lag(self) -> float | None:
        """Seconds from the storing of the first received message to the beginning, by the clocks of both machines."""
        first = self.messages[0] if self.messages else None
        if not isinstance(first, MessageView):
            return None
        return max(0.0, self.started_ns / 1e9 - first.store_timestamp / 1e3)


class Telemetry:
    """
    Is told of each operation of a client; subclass it to count them.

    Methods are called by the threads and tasks of the client, several at once, and must not block. An exception is
    logged, and changes nothing for the operation.
    """

    def begin(self, operation: Operation) -> None:
        """
        Take the beginning of an operation. It runs where the operation runs: around a handler, in its thread or task.

        A receive is told when it has brought messages or failed, so that waiting without a message is no operation.
        """

    def end(self, operation: Operation) -> None:
        """Take the end of an operation, with its `seconds` and its `error`."""


class OpenTelemetry(Shown, Telemetry):
    """
    Makes spans and metrics by OpenTelemetry's semantic conventions for messaging.

    Spans are `send`, `receive` and `process`, and those of acknowledgements that are made within a span. Producers
    write the trace context into message properties: `traceparent` and `tracestate` of W3C, unless the program sets
    other propagators. OpenTelemetry's Java agent reads and writes the same properties. A `process` span continues the
    trace of its message; several messages are links.

    *tracer_provider* and *meter_provider* are by default the global ones. Raises `ModuleNotFoundError` with the pip
    command if OpenTelemetry is not installed.
    """

    def __init__(
        self, *, tracer_provider: "TracerProvider | None" = None, meter_provider: "MeterProvider | None" = None
    ) -> None:
        try:
            self._trace = importlib.import_module("opentelemetry.trace")
            self._context = importlib.import_module("opentelemetry.context")
            self._propagate = importlib.import_module("opentelemetry.propagate")
            metrics = importlib.import_module("opentelemetry.metrics")
        except ModuleNotFoundError:
            raise ModuleNotFoundError(
                f"OpenTelemetry needs opentelemetry-api, which is not installed: {PIP_LINE}", name="opentelemetry"
            ) from None
        version = str(_ferromq.__version__)
        self._tracer = self._trace.get_tracer("ferromq", version, tracer_provider)
        meter = metrics.get_meter("ferromq", version, meter_provider)
        self._durations = meter.create_histogram(
            "messaging.client.operation.duration",
            "s",
            "Duration of messaging operation initiated by a producer or consumer client.",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )
        self._processing = meter.create_histogram(
            "messaging.process.duration",
            "s",
            "Duration of processing operation.",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )
        self._sent = meter.create_counter(
            "messaging.client.sent.messages",
            "{message}",
            "Number of messages producer attempted to send to the broker.",
        )
        self._consumed = meter.create_counter(
            "messaging.client.consumed.messages",
            "{message}",
            "Number of messages that were delivered to the application.",
        )

    def _facts(self) -> Iterator[tuple[str, object]]:
        yield "tracer", type(self._tracer).__qualname__

    def context_of(self, message: MessageView) -> "Context":
        """Return the trace context that a received message brings, for spans of loops over messages."""
        context: Context = self._propagate.extract(message.properties)
        return context

    def begin(self, operation: Operation) -> None:
        """Start the span, and make it the current one while a handler is called."""
        kinds = self._trace.SpanKind
        kind = {"send": kinds.PRODUCER, "process": kinds.CONSUMER}.get(operation.name, kinds.CLIENT)
        if operation.name not in _TYPES and not self._trace.get_current_span().get_span_context().is_valid:
            return  # an acknowledgement in the background: a trace of its own would say little
        is_process = operation.name == "process"
        parent = None
        if is_process and len(operation.messages) == 1:
            parent = self._propagate.extract(_properties(operation.messages[0]))
        span = self._tracer.start_span(
            f"{operation.name} {operation.topic}",
            context=parent,
            kind=kind,
            attributes={**_attributes(operation), **_of_messages(operation)},
            links=self._links(operation),
            start_time=operation.started_ns,
        )
        around = self._trace.set_span_in_context(span, parent)
        if operation.name == "send":
            self._propagate.inject(operation.properties, around)
        operation.state = span, self._context.attach(around) if is_process else None

    def end(self, operation: Operation) -> None:
        """End the span, and count."""
        attributes = _attributes(operation)
        if operation.error is not None:
            attributes["error.type"] = _error_type(operation.error)
        is_process = operation.name == "process"
        (self._processing if is_process else self._durations).record(operation.seconds, attributes)
        if operation.name == "send":
            self._sent.add(operation.count, attributes)
        elif operation.name in {"receive", "process"} and operation.count:
            self._consumed.add(operation.count, attributes)
        if operation.state is not None:
            self._end_span(operation)

    def _end_span(self, operation: Operation) -> None:
        span, token = operation.state
        if token is not None:
            self._context.detach(token)
        if operation.message_id is not None:
            span.set_attribute("messaging.message.id", operation.message_id)
        if not operation.messages:
            span.set_attribute("messaging.batch.message_count", operation.count)
        error = operation.error
        if error is not None:
            span.record_exception(error)
            span.set_attribute("error.type", _error_type(error))
            span.set_status(self._trace.StatusCode.ERROR, str(error))
        span.end()

    def _links(self, operation: Operation) -> "list[Link]":
        """Return links to the creation contexts of messages: received ones, and given ones that bring their own."""
        contexts = (
            self._propagate.extract(_properties(message), self._context.Context()) for message in operation.messages
        )
        spans = (self._trace.get_current_span(context).get_span_context() for context in contexts)
        return [self._trace.Link(span) for span in spans if span.is_valid]


def _properties(message: Message | MessageView) -> Mapping[str, str]:
    return message.properties


def _error_type(error: BaseException) -> str:
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _attributes(operation: Operation) -> dict[str, Any]:
    """Return the attributes that spans and metrics have."""
    host, _, port = operation.endpoint.partition(";")[0].rpartition(":")
    attributes = {
        "messaging.system": "rocketmq",
        "messaging.operation.name": operation.name,
        "messaging.operation.type": _TYPES.get(operation.name, "settle"),
        "messaging.destination.name": operation.topic,
        "server.address": host.strip("[]"),
        "server.port": int(port),
    }
    if operation.group is not None:
        attributes["messaging.consumer.group.name"] = operation.group
    return attributes


def _of_messages(operation: Operation) -> dict[str, Any]:
    """Return the attributes of the span that say something about messages."""
    if len(operation.messages) != 1:
        return {"messaging.batch.message_count": operation.count} if operation.messages else {}
    (message,) = operation.messages
    found: dict[str, Any] = {"messaging.message.body.size": len(_body(message))}
    optional = {
        "messaging.rocketmq.message.tag": message.tag,
        "messaging.rocketmq.message.keys": message.keys,
        "messaging.rocketmq.message.group": message.message_group,
        "messaging.rocketmq.message.delivery_timestamp": message.delivery_timestamp,
    }
    if isinstance(message, MessageView):
        found["messaging.message.id"] = message.message_id
        found["messaging.destination.partition.id"] = str(message.queue_id)
    return found | {name: value for name, value in optional.items() if value}


def _body(message: Message | MessageView) -> bytes:
    return message.raw_body if isinstance(message, MessageView) else message.body
