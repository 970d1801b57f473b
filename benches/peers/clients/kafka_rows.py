"""The loads of two clients of Apache Kafka: confluent-kafka and aiokafka."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import Future
from contextlib import asynccontextmanager
from typing import Any

from measuring import (
    BATCH,
    IN_FLIGHT,
    LINGER_MS,
    TASKS,
    THREADS,
    Meter,
    Wakes,
    Work,
    drained,
    drained_by_task,
    one_by_one,
    tasks_one_by_one,
)

Row = Callable[[Work], dict[str, Any]]
ACKS = 1
BATCH_BYTES = 1 << 17
POLL = 0.1
"""Seconds that a poll waits: the last one of a row waits for a full batch, which does not come."""


def check(error: Any, _message: Any = None) -> None:
    """Raise the error of a delivery."""
    if error is not None:
        raise RuntimeError(str(error))


def confluent_producer(work: Work, linger_ms: float) -> Any:
    """Make a producer."""
    from confluent_kafka import Producer  # noqa: PLC0415 (each program loads one client)

    options = {"bootstrap.servers": work.address, "acks": ACKS, "linger.ms": linger_ms}
    return Producer({**options, "batch.size": BATCH_BYTES, "queue.buffering.max.messages": 1_000_000})


def confluent_consumer(work: Work, *, in_group: bool = True) -> Any:
    """Make a consumer of a new group, which commits when it is told to."""
    from confluent_kafka import Consumer  # noqa: PLC0415

    options = {"bootstrap.servers": work.address, "group.id": work.group, "auto.offset.reset": "earliest"}
    consumer = Consumer({**options, "enable.auto.commit": False})
    if in_group:
        consumer.subscribe([work.topic])
    return consumer


def produce(producer: Any, work: Work, callback: Callable[..., None]) -> None:
    """Hand over a message; where the queue is full, wait for deliveries."""
    while True:
        try:
            producer.produce(work.topic, work.body, on_delivery=callback)
        except BufferError:
            producer.poll(0.01)
        else:
            return


def confluent_send_many(work: Work) -> dict[str, Any]:
    """Hand over all messages, with a callback each."""
    producer = confluent_producer(work, LINGER_MS)
    produce(producer, work, check)
    producer.flush()
    meter, delivered = Meter(work), 0

    def note(error: Any, message: Any) -> None:
        nonlocal delivered
        check(error, message)
        delivered += 1

    for number in range(work.messages):
        produce(producer, work, note)
        if number % 1000 == 0:
            producer.poll(0)
    producer.flush()
    return meter.rate(delivered)


def confluent_send_futures(work: Work) -> dict[str, Any]:
    """Make a future of each callback; a thread polls, as the client's documentation shows."""
    producer, is_over = confluent_producer(work, LINGER_MS), threading.Event()

    def poll() -> None:
        while not is_over.is_set():
            producer.poll(0.1)

    polling = threading.Thread(target=poll)
    polling.start()
    try:

        def submit() -> Future[Any]:
            future: Future[Any] = Future()

            def note(error: Any, message: Any) -> None:
                if error is None:
                    future.set_result(message.offset())
                else:
                    future.set_exception(RuntimeError(str(error)))

            produce(producer, work, note)
            return future

        submit().result()
        meter = Meter(work)
        for future in [submit() for _ in range(work.messages)]:
            future.result()
        return meter.rate(work.messages)
    finally:
        is_over.set()
        polling.join()


def confluent_threads(threads: int) -> Row:
    """Return the row that sends one by one: produce, then flush, in each thread."""

    def send(work: Work) -> dict[str, Any]:
        producer = confluent_producer(work, 0)

        def send_one() -> None:
            producer.produce(work.topic, work.body, on_delivery=check)
            producer.flush()

        return one_by_one(work, threads, send_one)

    return send


def confluent_iterate(work: Work) -> dict[str, Any]:
    """Poll message by message; offsets are committed in the background every 500 messages."""
    consumer = confluent_consumer(work)

    def take() -> int:
        count = 0
        while count < BATCH:
            message = consumer.poll(POLL)
            if message is None:
                return count
            error = message.error()
            if error is not None:
                check(error)
            message.value()
            count += 1
        consumer.commit(asynchronous=True)
        return count

    try:
        return drained(work, take)
    finally:
        consumer.close()


def confluent_receive(count: int) -> Row:
    """Return the row that consumes so many at once, and commits them."""

    def receive(work: Work) -> dict[str, Any]:
        consumer = confluent_consumer(work)

        def take() -> int:
            messages = consumer.consume(count, POLL)
            for message in messages:
                check(message.error())
                message.value()
            if messages:
                consumer.commit(asynchronous=False)
            return len(messages)

        try:
            while not take():
                pass
            return drained(work, take)
        finally:
            consumer.close()

    return receive


def confluent_pull(work: Work) -> dict[str, Any]:
    """Read every partition from its begin; no group and no commit."""
    from confluent_kafka import TopicPartition  # noqa: PLC0415

    consumer = confluent_consumer(work, in_group=False)
    partitions = consumer.list_topics(work.topic).topics[work.topic].partitions
    consumer.assign([TopicPartition(work.topic, number, 0) for number in partitions])

    def take() -> int:
        messages = consumer.consume(BATCH, POLL)
        for message in messages:
            message.value()
        return len(messages)

    try:
        return drained(work, take)
    finally:
        consumer.close()


def confluent_wake(work: Work) -> dict[str, Any]:
    """Poll in a thread, which waits for single messages."""
    wakes, is_over = Wakes(work), threading.Event()
    producer, consumer = confluent_producer(work, 0), confluent_consumer(work)
    joined = threading.Event()
    consumer.subscribe([work.topic], on_assign=lambda *_: joined.set())

    def poll() -> None:
        while not is_over.is_set():
            message = consumer.poll(0.5)
            if message is not None:
                wakes.handle(message.value())

    def send(body: bytes) -> None:
        producer.produce(work.topic, body)
        producer.flush()

    polling = threading.Thread(target=poll)
    polling.start()
    try:
        assert joined.wait(60)
        return wakes.send_all(send)
    finally:
        is_over.set()
        polling.join()
        consumer.close()


CONFLUENT: dict[str, Row] = {
    "send_many": confluent_send_many,
    "send_futures": confluent_send_futures,
    "send_1": confluent_threads(1),
    "send_16": confluent_threads(THREADS),
    "iterate": confluent_iterate,
    "receive_500": confluent_receive(BATCH),
    "receive_1": confluent_receive(1),
    "pull": confluent_pull,
    "wake_1": confluent_wake,
}


def awaited(row: Callable[[Work], Coroutine[Any, Any, dict[str, Any]]]) -> Row:
    """Return a row that runs on an event loop."""
    return lambda work: asyncio.run(row(work))


@asynccontextmanager
async def aio_producer(work: Work, linger_ms: int) -> AsyncIterator[Any]:
    """Make a producer."""
    from aiokafka import AIOKafkaProducer  # noqa: PLC0415

    options = {"bootstrap_servers": work.address, "acks": ACKS, "linger_ms": linger_ms, "max_batch_size": BATCH_BYTES}
    producer = AIOKafkaProducer(**options)
    await producer.start()
    try:
        await producer.send_and_wait(work.topic, work.body)
        yield producer
    finally:
        await producer.stop()


@asynccontextmanager
async def aio_consumer(work: Work, *, in_group: bool = True) -> AsyncIterator[Any]:
    """Make a consumer, which commits when it is told to."""
    from aiokafka import AIOKafkaConsumer, TopicPartition  # noqa: PLC0415

    options = {"bootstrap_servers": work.address, "auto_offset_reset": "earliest", "enable_auto_commit": False}
    topics = (work.topic,) if in_group else ()
    consumer = AIOKafkaConsumer(*topics, group_id=work.group if in_group else None, **options)
    await consumer.start()
    try:
        if not in_group:
            await consumer._client._wait_on_metadata(work.topic)  # noqa: SLF001 (there is no public call)
            parts = [TopicPartition(work.topic, each) for each in consumer.partitions_for_topic(work.topic)]
            consumer.assign(parts)
            await consumer.seek_to_beginning(*parts)
        yield consumer
    finally:
        await consumer.stop()


async def aio_send_futures(work: Work) -> dict[str, Any]:
    """Take a future for each message; some thousands are under way."""
    async with aio_producer(work, LINGER_MS) as producer:
        meter, futures = Meter(work), list[Any]()
        for _ in range(work.messages):
            futures.append(await producer.send(work.topic, work.body))
            if len(futures) == IN_FLIGHT:
                await asyncio.gather(*futures)
                futures.clear()
        await asyncio.gather(*futures)
        return meter.rate(work.messages)


async def aio_send_tasks(work: Work, tasks: int = TASKS) -> dict[str, Any]:
    """Send one by one in each task."""
    async with aio_producer(work, 0) as producer:
        return await tasks_one_by_one(work, lambda: producer.send_and_wait(work.topic, work.body), tasks)


async def aio_iterate(work: Work) -> dict[str, Any]:
    """Iterate; offsets are committed every 500 messages."""
    async with aio_consumer(work) as consumer:

        async def take() -> int:
            for _ in range(BATCH):
                await consumer.getone()
            await consumer.commit()
            return BATCH

        return await drained_by_task(work, take)


def aio_receive(count: int, *, in_group: bool = True) -> Row:
    """Return the row that gets so many at once, and commits them if it is in a group."""

    async def receive(work: Work) -> dict[str, Any]:
        async with aio_consumer(work, in_group=in_group) as consumer:

            async def take() -> int:
                found = await consumer.getmany(timeout_ms=int(POLL * 1000), max_records=count)
                if found and in_group:
                    await consumer.commit()
                return sum(len(messages) for messages in found.values())

            return await drained_by_task(work, take)

    return awaited(receive)


async def aio_wake(work: Work) -> dict[str, Any]:
    """Iterate in a task, which waits for single messages."""
    wakes = Wakes(work)
    async with aio_producer(work, 0) as producer, aio_consumer(work) as consumer:

        async def handle() -> None:
            async for message in consumer:
                wakes.handle(message.value)

        running = asyncio.create_task(handle())
        try:
            return await wakes.send_all_by_task(lambda body: producer.send_and_wait(work.topic, body))
        finally:
            running.cancel()
            await asyncio.wait({running})


AIOKAFKA: dict[str, Row] = {
    "send_futures": awaited(aio_send_futures),
    "send_1": awaited(lambda work: aio_send_tasks(work, 1)),
    "send_64": awaited(aio_send_tasks),
    "iterate": awaited(aio_iterate),
    "receive_500": aio_receive(BATCH),
    "receive_1": aio_receive(1),
    "pull": aio_receive(BATCH, in_group=False),
    "wake_1": awaited(aio_wake),
}
