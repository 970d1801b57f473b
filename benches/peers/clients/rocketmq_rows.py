"""The loads of RocketMQ's own Python client, against any server that speaks its gRPC protocol."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from measuring import IN_FLIGHT, THREADS, Meter, Wakes, Work, drained, one_by_one

Row = Callable[[Work], dict[str, Any]]
MOST_AT_ONCE = 32
"""RocketMQ's proxy returns no more from a receive by default."""
INVISIBLE_SECONDS = 60
WAIT_SECONDS = 10


def configuration(work: Work) -> Any:
    """Set the target: one address, whose route names the other brokers."""
    from rocketmq import ClientConfiguration, Credentials  # noqa: PLC0415 (each program loads one client)

    return ClientConfiguration(work.address.partition(";")[0], Credentials())


def message(work: Work, body: bytes | None = None) -> Any:
    """Make a message."""
    from rocketmq import Message  # noqa: PLC0415

    made = Message()
    made.topic, made.body = work.topic, work.body if body is None else body
    return made


@contextmanager
def producer(work: Work) -> Iterator[Any]:
    """Start a producer."""
    from rocketmq import Producer  # noqa: PLC0415

    started = Producer(configuration(work), (work.topic,))
    started.startup()
    try:
        yield started
    finally:
        started.shutdown()


def send_futures(work: Work) -> dict[str, Any]:
    """Take a future for each message; some thousands are under way."""
    with producer(work) as sender:
        sender.send(message(work))
        meter, count = Meter(work), 0
        while count < work.messages and not meter.is_over:
            futures = [sender.send_async(message(work)) for _ in range(IN_FLIGHT // 10)]
            for future in futures:
                future.result()
            count += len(futures)
        return meter.rate(count)


def send_threads(threads: int) -> Row:
    """Return the row that sends one by one."""

    def send(work: Work) -> dict[str, Any]:
        with producer(work) as sender:
            return one_by_one(work, threads, lambda: sender.send(message(work)))

    return send


def receive(count: int) -> Row:
    """Return the row that receives so many at once, and acknowledges each."""

    def receive(work: Work) -> dict[str, Any]:
        from rocketmq import FilterExpression, SimpleConsumer  # noqa: PLC0415

        consumer = SimpleConsumer(configuration(work), work.group, {work.topic: FilterExpression("*")}, WAIT_SECONDS)
        consumer.startup()

        def take() -> int:
            messages = consumer.receive(count, INVISIBLE_SECONDS)
            for each in messages:
                consumer.ack(each)
            return len(messages)

        try:
            return drained(work, take)
        finally:
            consumer.shutdown()

    return receive


def wake(work: Work) -> dict[str, Any]:
    """Have a push consumer call a listener with single messages."""
    from rocketmq import ConsumeResult, FilterExpression, MessageListener, PushConsumer  # noqa: PLC0415

    wakes = Wakes(work)

    class Listener(MessageListener):  # type: ignore[misc]
        def consume(self, message: Any) -> Any:
            wakes.handle(message.body)
            return ConsumeResult.SUCCESS

    consumer = PushConsumer(configuration(work), work.group, Listener(), {work.topic: FilterExpression("*")})
    with producer(work) as sender:
        consumer.startup()
        try:
            return wakes.send_all(lambda body: sender.send(message(work, body)))
        finally:
            consumer.shutdown()


OFFICIAL: dict[str, Row] = {
    "send_futures": send_futures,
    "send_1": send_threads(1),
    "send_16": send_threads(THREADS),
    "receive_500": receive(MOST_AT_ONCE),
    "receive_1": receive(1),
    "wake_1": wake,
    "wake_10": wake,
}
