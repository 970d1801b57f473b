"""Telemetry: which operations are told, spans and metrics by the semantic conventions, and the trace in messages."""

import asyncio
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from consumer_shells import PATIENCE, SHELLS, Shell
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, NumberDataPoint
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode, get_current_span

import ferromq
from ferromq import MessageView, aio
from ferromq.telemetry import OpenTelemetry, Operation, Telemetry


class Told(Telemetry):
    """Keeps the operations that have ended."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.ended: list[Operation] = []
        self.changed = threading.Condition()

    def begin(self, operation: Operation) -> None:
        """Keep its name."""
        self.begun.append(operation.name)

    def end(self, operation: Operation) -> None:
        """Keep it, and wake who waits for it."""
        with self.changed:
            self.ended.append(operation)
            self.changed.notify_all()

    def of(self, name: str, count: int = 1) -> list[Operation]:
        """Return the operations of a name, once there are *count*."""
        with self.changed:
            assert self.changed.wait_for(lambda: len(self._of(name)) >= count, PATIENCE)
        return self._of(name)

    def _of(self, name: str) -> list[Operation]:
        return [operation for operation in self.ended if operation.name == name]


class Traced:
    """OpenTelemetry that keeps spans and metrics in memory."""

    def __init__(self) -> None:
        self._spans, self._reader = InMemorySpanExporter(), InMemoryMetricReader()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._spans))
        self.telemetry = OpenTelemetry(
            tracer_provider=self.provider, meter_provider=MeterProvider(metric_readers=[self._reader])
        )

    def spans(self, name: str) -> list[ReadableSpan]:
        """Return the spans of a name that have ended."""
        return [span for span in self._spans.get_finished_spans() if span.name == name]

    def metrics(self) -> dict[str, Counter[str]]:
        """Return the sum or count of each metric, by the name of the operation."""
        found: dict[str, Counter[str]] = {}
        data = self._reader.get_metrics_data()
        assert data is not None
        for metric in data.resource_metrics[0].scope_metrics[0].metrics:
            for point in metric.data.data_points:
                assert point.attributes is not None
                name = str(point.attributes["messaging.operation.name"])
                sums = found.setdefault(metric.name, Counter())
                sums[name] += point.value if isinstance(point, NumberDataPoint) else point.count
        return found


@pytest.fixture
def mq() -> Iterator[ferromq.Embedded]:
    """Yield an embedded broker whose topics have one queue."""
    with ferromq.embedded(default_queues=1) as embedded:
        yield embedded


def send_each_way(mq: ferromq.Embedded, telemetry: Telemetry, kind: str) -> None:
    """Send a message by each call of a producer: four to `orders`, and one to `paid` in a transaction."""

    def committed(_: MessageView) -> ferromq.Resolution:
        return ferromq.Resolution.COMMIT

    async def awaited() -> None:
        async with aio.Producer(mq.endpoint, telemetry=telemetry, checker=committed) as producer:
            await producer.send("orders", b"1", properties={"a": "1"})
            await producer.send_all("orders", [b"2", ferromq.Message(b"3", tag="t")])
            await (await producer.submit("orders", b"4"))
            async with producer.transaction() as tx:
                await tx.send("paid", b"5")

    with mq.admin() as admin:
        admin.create_topic("paid", 1, message_type="TRANSACTION")
    if kind == "aio":
        asyncio.run(awaited())
        return
    with mq.producer(telemetry=telemetry, checker=committed) as producer:
        producer.send("orders", b"1", properties={"a": "1"})
        producer.send_all("orders", [b"2", ferromq.Message(b"3", tag="t")])
        producer.submit("orders", b"4").result(PATIENCE)
        with producer.transaction() as tx:
            tx.send("paid", b"5")


def receive(mq: ferromq.Embedded, topic: str, count: int) -> list[MessageView]:
    """Receive and acknowledge messages without telemetry."""
    found: list[MessageView] = []
    with mq.consumer("look", topic) as consumer:
        while len(found) < count:
            found += consumer.receive(wait=PATIENCE)
        consumer.ack(found)
    return found


@pytest.mark.parametrize("shell", SHELLS, ids=lambda shell: shell.kind)
def test_each_way_to_send_is_told(mq: ferromq.Embedded, shell: Shell) -> None:
    """With topic, number of messages, id and time; in the background, once the receipt is there."""
    told = Told()
    send_each_way(mq, told, shell.kind)
    sent = told.of("send", 4)
    assert [(each.topic, each.count, each.group) for each in sent] == [
        ("orders", 1, None),
        ("orders", 2, None),
        ("orders", 1, None),
        ("paid", 1, None),
    ]
    ids = [message.message_id for message in receive(mq, "orders", 4)]
    assert [each.message_id for each in sent[:3]] == [ids[0], None, ids[3]]
    assert all(each.seconds > 0 and each.error is None and each.endpoint == mq.endpoint for each in sent)


@pytest.mark.parametrize("shell", SHELLS, ids=lambda shell: shell.kind)
def test_a_request_is_a_send_until_its_reply(mq: ferromq.Embedded, shell: Shell) -> None:
    """Its message carries the trace."""
    traced = Traced()

    async def awaited() -> None:
        async with aio.Producer(mq.endpoint, telemetry=traced.telemetry) as producer:
            await producer.request("orders", b"?", timeout=1)

    def request() -> None:
        if shell.kind == "aio":
            asyncio.run(awaited())
        else:
            with mq.producer(telemetry=traced.telemetry) as producer:
                producer.request("orders", b"?", timeout=1)

    with pytest.raises(ferromq.RequestTimeout):
        request()
    (span,) = traced.spans("send orders")
    assert span.context is not None
    assert span.status.status_code is StatusCode.ERROR
    (message,) = receive(mq, "orders", 1)
    assert f"{span.context.trace_id:032x}-{span.context.span_id:016x}" in message.properties["traceparent"]


def test_a_value_that_is_no_message_is_named_with_a_trace_too(mq: ferromq.Embedded) -> None:
    """As without telemetry."""
    with (
        mq.producer(telemetry=Traced().telemetry) as producer,
        pytest.raises(TypeError, match="message 1: a message to send must be a Message or bytes, not str"),
    ):
        producer.send_all("orders", [b"1", "2"])  # type: ignore[list-item]


@pytest.mark.parametrize("shell", SHELLS, ids=lambda shell: shell.kind)
def test_a_message_carries_the_trace_of_its_send(mq: ferromq.Embedded, shell: Shell) -> None:
    """In the property `traceparent` of W3C, beside its own properties."""
    traced = Traced()
    send_each_way(mq, traced.telemetry, shell.kind)
    one, many, later = traced.spans("send orders")
    (of_transaction,) = traced.spans("send paid")
    spans = [one, many, many, later, of_transaction]
    messages = [*receive(mq, "orders", 4), *receive(mq, "paid", 1)]
    assert [message.properties["traceparent"] for message in messages] == [parent_of(span) for span in spans]
    assert (messages[0].properties["a"], messages[2].tag) == ("1", "t")
    assert {span.kind for span in spans} == {SpanKind.PRODUCER}
    host, _, port = mq.endpoint.rpartition(":")
    assert dict(one.attributes or {}) == {
        "messaging.system": "rocketmq",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "orders",
        "messaging.message.id": messages[0].message_id,
        "messaging.message.body.size": 1,
        "server.address": host,
        "server.port": int(port),
    }
    assert (many.attributes or {})["messaging.batch.message_count"] == 2
    metrics = traced.metrics()
    assert metrics["messaging.client.sent.messages"] == {"send": 5}
    assert metrics["messaging.client.operation.duration"] == {"send": 4}


def parent_of(span: ReadableSpan) -> str:
    """Return what W3C's header says of a span."""
    assert span.context is not None
    return f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}-{span.context.trace_flags:02x}"


@pytest.mark.parametrize("shell", SHELLS, ids=lambda shell: shell.kind)
def test_a_handler_continues_the_trace_of_its_message(mq: ferromq.Embedded, shell: Shell) -> None:
    """Its span is the current one while the handler works, also on its thread or task, and links to the send."""
    traced = Traced()
    with mq.producer(telemetry=traced.telemetry) as producer:
        producer.send("orders", b"x", tag="t", keys="k")
    seen: list[Any] = []
    with shell(mq, "billing", "orders", telemetry=traced.telemetry) as consumer:

        def handler(message: MessageView) -> None:
            seen.append((get_current_span().get_span_context().span_id, message))
            consumer.stop()

        consumer.run(handler)
    (sent,), (handled,) = traced.spans("send orders"), traced.spans("process orders")
    assert sent.context is not None
    assert handled.context is not None
    assert handled.parent is not None
    assert (handled.parent.span_id, handled.context.trace_id) == (sent.context.span_id, sent.context.trace_id)
    assert [link.context.span_id for link in handled.links] == [sent.context.span_id]
    (span_id, message) = seen[0]
    assert (span_id, handled.kind) == (handled.context.span_id, SpanKind.CONSUMER)
    attributes = dict(handled.attributes or {})
    assert attributes["messaging.consumer.group.name"] == "billing"
    assert attributes["messaging.message.id"] == message.message_id
    assert (attributes["messaging.rocketmq.message.tag"], attributes["messaging.rocketmq.message.keys"]) == (
        "t",
        ("k",),
    )
    assert attributes["messaging.destination.partition.id"] == "0"
    assert not get_current_span().get_span_context().is_valid
    metrics = traced.metrics()
    assert metrics["messaging.process.duration"] == {"process": 1}
    assert metrics["messaging.client.consumed.messages"] == {"process": 1}
    assert metrics["messaging.client.operation.duration"] == {"send": 1, "ack": 1}


@pytest.mark.parametrize("shell", SHELLS, ids=lambda shell: shell.kind)
def test_a_failing_handler_is_told(mq: ferromq.Embedded, shell: Shell) -> None:
    """With its error; the span has the state and the exception, and the dead letter is told, too."""
    traced, told = Traced(), Told()
    for telemetry in (traced.telemetry, told):
        with mq.producer() as producer:
            producer.send("orders", b"x")
        with shell(mq, "billing", "orders", telemetry=telemetry) as consumer:

            def handler(message: MessageView, consumer: Any = consumer) -> None:
                consumer.stop()
                raise ferromq.Reject("no such customer")

            consumer.run(handler)
    (span,) = traced.spans("process orders")
    assert span.status.status_code is StatusCode.ERROR
    assert (span.attributes or {})["error.type"] == "ferromq.errors.Reject"
    assert [event.name for event in span.events] == ["exception"]
    (failed,) = told.of("process")
    assert isinstance(failed.error, ferromq.Reject)
    assert failed.lag is not None
    assert failed.lag >= 0
    (forwarded,) = told.of("forward_to_dead_letter")
    assert (forwarded.group, forwarded.count, forwarded.error) == ("billing", 1, None)


@pytest.mark.parametrize("shell", SHELLS, ids=lambda shell: shell.kind)
def test_receives_and_loops_are_told_with_their_messages(mq: ferromq.Embedded, shell: Shell) -> None:
    """Waiting without a message is no operation; a loop receives one message at a time."""
    told, traced = Told(), Traced()
    with mq.producer(telemetry=traced.telemetry) as producer:
        producer.send_all("orders", [b"1", b"2"])
    with shell(mq, "billing", "orders", telemetry=told) as consumer:
        messages: list[MessageView] = []
        while len(messages) < 2:
            messages += consumer.receive(wait=PATIENCE)
        consumer.ack(messages)
        assert consumer.receive(wait=0.01) == []
    assert sum(each.count for each in told.of("receive")) == 2
    assert [each.count for each in told.of("ack")] == [2]
    assert told.begun.count("receive") == len(told.of("receive"))
    with shell(mq, "other", "orders", telemetry=traced.telemetry) as consumer:
        consumer.iterate(lambda message: message.body == b"2")
    spans = traced.spans("receive orders")
    assert [span.kind for span in spans] == [SpanKind.CLIENT] * 2
    (sent,) = traced.spans("send orders")
    assert sent.context is not None
    assert {link.context.span_id for span in spans for link in span.links} == {sent.context.span_id}


@pytest.mark.parametrize("shell", SHELLS, ids=lambda shell: shell.kind)
def test_a_reply_and_a_recall_are_told(mq: ferromq.Embedded, shell: Shell) -> None:
    """A reply with its request, a recall with the id of its message."""
    told = Told()

    async def awaited() -> tuple[MessageView, ferromq.SendReceipt]:
        async with (
            aio.Producer(mq.endpoint, telemetry=told) as producer,
            aio.Consumer(mq.endpoint, "billing", "orders", telemetry=told) as consumer,
        ):
            asking = asyncio.create_task(producer.request("orders", b"?"))
            (message,) = await consumer.receive(wait=PATIENCE)
            await consumer.reply(message, b"!")
            assert (await asking).body == b"!"
            receipt = await producer.send("late", b"x", delay=60)
            await producer.recall(receipt)
        return message, receipt

    def blocking() -> tuple[MessageView, ferromq.SendReceipt]:
        with (
            mq.producer(telemetry=told) as producer,
            mq.consumer("billing", "orders", telemetry=told) as consumer,
            ThreadPoolExecutor(1) as pool,
        ):
            asking = pool.submit(producer.request, "orders", b"?")
            (message,) = consumer.receive(wait=PATIENCE)
            consumer.reply(message, b"!")
            assert asking.result(PATIENCE).body == b"!"
            receipt = producer.send("late", b"x", delay=60)
            producer.recall(receipt)
        return message, receipt

    with mq.admin() as admin:
        admin.create_topic("late", 1, message_type="DELAY")
    message, receipt = asyncio.run(awaited()) if shell.kind == "aio" else blocking()
    (reply,) = told.of("reply")
    assert (reply.topic, reply.group, reply.message_id) == ("orders", "billing", message.message_id)
    (recalled,) = told.of("recall")
    assert (recalled.topic, recalled.message_id, recalled.error) == ("late", receipt.message_id, None)


@pytest.mark.parametrize("shell", SHELLS, ids=lambda shell: shell.kind)
def test_reads_without_a_group_are_told(mq: ferromq.Embedded, shell: Shell) -> None:
    """Of a connection's telemetry: each read that brings messages, and none that waits in vain."""
    told = Told()

    async def awaited() -> int:
        async with aio.connect(mq.endpoint, telemetry=told) as connection, connection.reader("orders") as reader:
            found = len(await reader.read(2)) + len([message async for message in reader.messages(until="end")])
            return found + len(await reader.read(wait=0))

    def blocking() -> int:
        with ferromq.connect(mq.endpoint, telemetry=told) as connection, connection.reader("orders") as reader:
            return len(reader.read(2)) + len(list(reader.messages(until="end"))) + len(reader.read(wait=0))

    with mq.producer() as producer:
        producer.send_all("orders", [b"1", b"2", b"3"])
    receive(mq, "orders", 3)
    assert (asyncio.run(awaited()) if shell.kind == "aio" else blocking()) == 3
    assert [(each.topic, each.group, each.count) for each in told.of("receive", 2)] == [
        ("orders", None, 2),
        ("orders", None, 1),
    ]


def test_a_failed_send_is_told(mq: ferromq.Embedded) -> None:
    """By each call, and its error reaches the caller, too."""
    told = Told()
    too_large = b"x" * (5 << 20)
    with mq.producer(telemetry=told) as producer:
        with pytest.raises(ferromq.MessageTooLarge):
            producer.send("orders", too_large)
        with pytest.raises(ferromq.MessageTooLarge):
            producer.send_all("orders", [too_large])
        with pytest.raises(ferromq.MessageTooLarge):
            producer.submit("orders", too_large).result(PATIENCE)
    assert [type(each.error) for each in told.of("send", 3)] == [ferromq.MessageTooLarge] * 3


def test_a_refused_acknowledgement_is_told(mq: ferromq.Embedded) -> None:
    """An acknowledgement that is too late."""
    told = Told()
    with mq.producer() as producer:
        producer.send("orders", b"x")
    with mq.consumer("billing", "orders", telemetry=told, invisible_duration=0.05) as consumer:
        (message,) = consumer.receive(wait=PATIENCE)
        consumer.receive(wait=PATIENCE, invisible_duration=60)
        with pytest.raises(ferromq.LeaseExpired):
            consumer.ack(message)
    assert isinstance(told.of("ack")[0].error, ferromq.LeaseExpired)


def test_a_trace_of_the_callers_own_is_kept(mq: ferromq.Embedded) -> None:
    """A message that was made within another trace; the span of the send links to it."""
    traced = Traced()
    own = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    with mq.producer(telemetry=traced.telemetry) as producer:
        producer.send("orders", b"x", properties={"traceparent": own})
    (message,) = receive(mq, "orders", 1)
    assert message.properties == {"traceparent": own}
    (span,) = traced.spans("send orders")
    assert [f"{link.context.span_id:016x}" for link in span.links] == ["b7ad6b7169203331"]


def test_a_loop_finds_the_trace_of_its_message(mq: ferromq.Embedded) -> None:
    """For a span of its own."""
    traced = Traced()
    with mq.producer(telemetry=traced.telemetry) as producer:
        producer.send("orders", b"x")
    (message,) = receive(mq, "orders", 1)
    context = traced.telemetry.context_of(message)
    (sent,) = traced.spans("send orders")
    assert sent.context is not None
    assert get_current_span(context).get_span_context().span_id == sent.context.span_id


def test_a_telemetry_that_fails_changes_nothing(mq: ferromq.Embedded, caplog: pytest.LogCaptureFixture) -> None:
    """The log says so."""

    class Broken(Telemetry):
        def begin(self, operation: Operation) -> None:
            raise ValueError("no such meter")

        def end(self, operation: Operation) -> None:
            raise ValueError("no such meter")

    with ferromq.connect(mq.endpoint, telemetry=Broken()) as connection:
        with connection.producer() as producer:
            producer.send("orders", b"x")
        seen = []
        with connection.consumer("billing", "orders") as consumer:

            def handler(message: MessageView) -> None:
                seen.append(message.body)
                consumer.stop()

            consumer.run(handler)
    assert seen == [b"x"]
    assert "telemetry failed operation=send: ValueError('no such meter')" in caplog.text


def test_a_missing_library_is_named_with_the_line_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """When it is asked for."""
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'ferromq\[otel\]'"):
        OpenTelemetry()
