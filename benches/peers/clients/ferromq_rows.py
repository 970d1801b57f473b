"""The loads of ferromq's clients: synchronous, for asyncio, and with a broker in the client's process."""

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

from measuring import (
    BATCH,
    LINGER_MS,
    READING,
    THREADS,
    WARM_UP,
    Meter,
    Wakes,
    Work,
    drained,
    drained_by_task,
    one_by_one,
)
from measuring import tasks_one_by_one as tasks

import ferromq
from ferromq import aio

Row = Callable[[Work], dict[str, Any]]
Load = Callable[[Work, ferromq.Connection], dict[str, Any]]

COLUMNS = 4096
"""Messages of a table at most."""


def read(messages: Iterable[ferromq.MessageView]) -> None:
    """Read bodies: they are made of the answer only then."""
    for message in messages:
        message.body  # noqa: B018


def send_many(work: Work, mq: ferromq.Connection) -> dict[str, Any]:
    """Hand over all messages at once."""
    with mq.producer() as producer:
        producer.send_all(work.topic, [work.body] * WARM_UP)
        meter = Meter(work)
        producer.send_all(work.topic, itertools.repeat(work.body, work.messages))
        return meter.rate(work.messages)


def send_futures(work: Work, mq: ferromq.Connection) -> dict[str, Any]:
    """Take a future for each message."""
    with mq.producer(linger=LINGER_MS / 1000) as producer:
        producer.submit(work.topic, work.body).result()
        meter = Meter(work)
        futures = [producer.submit(work.topic, work.body) for _ in range(work.messages)]
        for future in futures:
            future.result()
        return meter.rate(work.messages)


def send_threads(threads: int) -> Load:
    """Return the row that sends one by one."""

    def send(work: Work, mq: ferromq.Connection) -> dict[str, Any]:
        with mq.producer() as producer:
            return one_by_one(work, threads, lambda: producer.send(work.topic, work.body))

    return send


def iterate(work: Work, mq: ferromq.Connection) -> dict[str, Any]:
    """Iterate, and acknowledge each message in the background; the time is looked at every 500 messages."""
    with mq.consumer(work.group, work.topic) as consumer:
        messages = iter(consumer)

        def take() -> int:
            for message in itertools.islice(messages, BATCH):
                message.body  # noqa: B018
                message.ack()
            return BATCH

        try:
            return drained(work, take)
        finally:
            consumer.flush(10)


def receive(count: int) -> Load:
    """Return the row that receives so many at once; their acknowledgements travel with the next receive."""

    def receive(work: Work, mq: ferromq.Connection) -> dict[str, Any]:
        with mq.consumer(work.group, work.topic) as consumer:

            def take() -> int:
                messages = consumer.receive(count)
                read(messages)
                for message in messages:
                    message.ack()
                return len(messages)

            try:
                return drained(work, take)
            finally:
                consumer.flush(10)

    return receive


def pull(work: Work, mq: ferromq.Connection) -> dict[str, Any]:
    """Read every queue from its begin by offsets; no lease and no commit."""
    with mq.consumer(work.group, work.topic) as consumer:
        places = {queue: consumer.offset_at(queue, "begin") for queue in consumer.queues()}
        turns = itertools.cycle(places)

        def take() -> int:
            queue = next(turns)
            pulled = consumer.pull(queue, places[queue], BATCH)
            places[queue] = pulled.next_offset
            read(pulled.messages)
            return len(pulled.messages)

        return drained(work, take)


def send_batches(work: Work, mq: ferromq.Connection) -> dict[str, Any]:
    """Hand over batches of messages, each after the one before."""
    batch = [work.body] * BATCH
    with mq.producer() as producer:
        producer.send_all(work.topic, batch)
        meter, sent = Meter(work), 0
        while sent < work.messages and not meter.is_over:
            producer.send_all(work.topic, batch)
            sent += BATCH
        return meter.rate(sent)


def receive_columns(work: Work, mq: ferromq.Connection) -> dict[str, Any]:
    """Receive tables of columns, and acknowledge each at once."""
    with mq.consumer(work.group, work.topic) as consumer:

        def take() -> int:
            table = consumer.receive_arrow(COLUMNS)
            consumer.ack(table)
            return len(table)

        return drained(work, take)


def pull_columns(work: Work, mq: ferromq.Connection) -> dict[str, Any]:
    """Read every queue from its begin by offsets, as columns; no lease and no commit."""
    with mq.consumer(work.group, work.topic) as consumer:
        places = {queue: consumer.offset_at(queue, "begin") for queue in consumer.queues()}
        turns = itertools.cycle(places)

        def take() -> int:
            queue = next(turns)
            pulled = consumer.pull_arrow(queue, places[queue], COLUMNS)
            places[queue] = pulled.next_offset
            return pulled.table.num_rows

        return drained(work, take)


def wake(work: Work, mq: ferromq.Connection) -> dict[str, Any]:
    """Run a handler, which waits for single messages."""
    wakes = Wakes(work)
    with mq.producer() as producer, mq.consumer(work.group, work.topic) as consumer:
        running = threading.Thread(target=consumer.run, args=(lambda message: wakes.handle(message.body),))
        running.start()
        try:
            return wakes.send_all(lambda body: producer.send(work.topic, body))
        finally:
            consumer.stop()
            running.join()


LOADS: dict[str, Load] = {
    "send_many": send_many,
    "send_futures": send_futures,
    "send_1": send_threads(1),
    "send_16": send_threads(THREADS),
    "send_500": send_batches,
    "iterate": iterate,
    "receive_500": receive(BATCH),
    "receive_columns": receive_columns,
    "receive_1": receive(1),
    "pull": pull,
    "pull_columns": pull_columns,
    "wake_1": wake,
    "wake_10": wake,
}


def over_network(load: Load) -> Row:
    """Return a row whose broker is a process of its own."""

    def run(work: Work) -> dict[str, Any]:
        with ferromq.connect(work.address) as mq:
            return load(work, mq)

    return run


SYNC: dict[str, Row] = {name: over_network(load) for name, load in LOADS.items()}


def awaited(row: Callable[[Work], Coroutine[Any, Any, dict[str, Any]]]) -> Row:
    """Return a row that runs on an event loop."""
    return lambda work: asyncio.run(row(work))


async def aio_send_many(work: Work) -> dict[str, Any]:
    """Hand over all messages at once."""
    async with aio.Producer(work.address) as producer:
        await producer.send_all(work.topic, [work.body] * WARM_UP)
        meter = Meter(work)
        await producer.send_all(work.topic, itertools.repeat(work.body, work.messages))
        return meter.rate(work.messages)


async def aio_send_futures(work: Work) -> dict[str, Any]:
    """Take a future for each message."""
    async with aio.Producer(work.address, linger=LINGER_MS / 1000) as producer:
        await (await producer.submit(work.topic, work.body))
        meter = Meter(work)
        await asyncio.gather(*[await producer.submit(work.topic, work.body) for _ in range(work.messages)])
        return meter.rate(work.messages)


async def aio_send_tasks(work: Work) -> dict[str, Any]:
    """Send one by one in each task."""
    async with aio.Producer(work.address) as producer:
        return await tasks(work, lambda: producer.send(work.topic, work.body))


async def aio_send_one(work: Work) -> dict[str, Any]:
    """Send one by one in one task."""
    async with aio.Producer(work.address) as producer:
        return await tasks(work, lambda: producer.send(work.topic, work.body), 1)


@asynccontextmanager
async def aio_consumer(work: Work) -> AsyncIterator[aio.Consumer]:
    """Make a consumer."""
    async with aio.Consumer(work.address, work.group, work.topic) as consumer:
        yield consumer


async def aio_iterate(work: Work) -> dict[str, Any]:
    """Iterate, and acknowledge each message in the background; the time is looked at every 500 messages."""
    async with aio_consumer(work) as consumer:
        messages = aiter(consumer)

        async def take() -> int:
            for _ in range(BATCH):
                message = await anext(messages)
                message.body  # noqa: B018
                message.ack()
            return BATCH

        return await drained_by_task(work, take)


def aio_receive(count: int) -> Row:
    """Return the row that receives so many at once; their acknowledgements travel with the next receive."""

    async def receive(work: Work) -> dict[str, Any]:
        async with aio_consumer(work) as consumer:

            async def take() -> int:
                messages = await consumer.receive(count)
                read(messages)
                for message in messages:
                    message.ack()
                return len(messages)

            try:
                return await drained_by_task(work, take)
            finally:
                await consumer.flush(10)

    return awaited(receive)


async def aio_pull(work: Work) -> dict[str, Any]:
    """Read every queue from its begin by offsets; no lease and no commit."""
    async with aio_consumer(work) as consumer:
        places = {queue: await consumer.offset_at(queue, "begin") for queue in await consumer.queues()}
        turns = itertools.cycle(places)

        async def take() -> int:
            queue = next(turns)
            pulled = await consumer.pull(queue, places[queue], BATCH)
            places[queue] = pulled.next_offset
            read(pulled.messages)
            return len(pulled.messages)

        return await drained_by_task(work, take)


async def aio_wake(work: Work) -> dict[str, Any]:
    """Run a handler, which waits for single messages."""
    wakes = Wakes(work)

    async def handle(message: ferromq.MessageView) -> None:
        wakes.handle(message.body)

    async with aio.Producer(work.address) as producer, aio_consumer(work) as consumer:
        running = asyncio.create_task(consumer.run(handle))
        try:
            return await wakes.send_all_by_task(lambda body: producer.send(work.topic, body))
        finally:
            consumer.stop()
            with suppress(TimeoutError):
                await asyncio.wait_for(running, 10)


AIO: dict[str, Row] = {
    "send_many": awaited(aio_send_many),
    "send_futures": awaited(aio_send_futures),
    "send_1": awaited(aio_send_one),
    "send_64": awaited(aio_send_tasks),
    "iterate": awaited(aio_iterate),
    "receive_500": aio_receive(BATCH),
    "receive_1": aio_receive(1),
    "pull": awaited(aio_pull),
    "wake_1": awaited(aio_wake),
    "wake_10": awaited(aio_wake),
}


def embedded(flush: str, *, is_reading: bool, load: Load) -> Row:
    """Return a row that calls a broker in the client's process, without a socket: its CPU time is the client's."""

    def run(work: Work) -> dict[str, Any]:
        with ferromq.embedded(flush=flush) as mq:
            with mq.admin() as admin:
                admin.create_topic(work.topic, 4)
            if is_reading:
                with mq.producer() as producer:
                    producer.send_all(work.topic, itertools.repeat(work.body, work.messages))
            return load(replace(work, server_pids=[]), mq)

    return run


def all_embedded(flush: str) -> dict[str, Row]:
    """Return the rows with an embedded broker of a flush policy."""
    return {
        name: embedded(flush, is_reading=name in READING, load=load)
        for name, load in LOADS.items()
        if name != "wake_10"
    }


EMBEDDED = all_embedded("interval")
EMBEDDED_GROUP = {name: row for name, row in all_embedded("group").items() if name.startswith("send_")}
