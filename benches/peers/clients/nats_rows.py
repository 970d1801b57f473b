"""The loads of nats-py with JetStream: every message is stored, and every publication acknowledged."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from measuring import BATCH, IN_FLIGHT, TASKS, Meter, Wakes, Work, drained_by_task, tasks_one_by_one

Row = Callable[[Work], dict[str, Any]]


def awaited(row: Callable[[Work], Coroutine[Any, Any, dict[str, Any]]]) -> Row:
    """Return a row that runs on an event loop."""
    return lambda work: asyncio.run(row(work))


@asynccontextmanager
async def stream(work: Work) -> AsyncIterator[Any]:
    """Connect, and make the stream of the topic if it is missing."""
    import nats  # noqa: PLC0415 (the runner asks for the rows of a client that may be missing)

    connection = await nats.connect(f"nats://{work.address}")
    try:
        context = connection.jetstream(publish_async_max_pending=IN_FLIGHT)
        await context.add_stream(name=work.topic, subjects=[work.topic])
        yield context
    finally:
        await connection.close()


async def send_futures(work: Work) -> dict[str, Any]:
    """Take a future for each message; some thousands are under way."""
    async with stream(work) as context:
        await context.publish(work.topic, work.body)
        meter, futures = Meter(work), list[Any]()
        for _ in range(work.messages):
            futures.append(await context.publish_async(work.topic, work.body))
            if len(futures) == IN_FLIGHT:
                await asyncio.gather(*futures)
                futures.clear()
        await asyncio.gather(*futures)
        return meter.rate(work.messages)


async def send_tasks(work: Work, tasks: int = TASKS) -> dict[str, Any]:
    """Publish one by one in each task."""
    async with stream(work) as context:
        return await tasks_one_by_one(work, lambda: context.publish(work.topic, work.body), tasks)


async def iterate(work: Work) -> dict[str, Any]:
    """Iterate over a subscription that the server pushes to, and acknowledge each message."""
    async with stream(work) as context:
        subscription = await context.subscribe(work.topic, durable=work.group, manual_ack=True)
        messages = aiter(subscription.messages)

        async def take() -> int:
            await (await anext(messages)).ack()
            return 1

        return await drained_by_task(work, take)


def receive(count: int) -> Row:
    """Return the row that fetches so many at once, and acknowledges each."""

    async def receive(work: Work) -> dict[str, Any]:
        async with stream(work) as context:
            subscription = await context.pull_subscribe(work.topic, durable=work.group)

            async def take() -> int:
                messages = await subscription.fetch(count, timeout=5)
                for message in messages:
                    await message.ack()
                return len(messages)

            return await drained_by_task(work, take)

    return awaited(receive)


async def pull(work: Work) -> dict[str, Any]:
    """Read the stream from its begin with an ordered consumer, which acknowledges nothing."""
    async with stream(work) as context:
        subscription = await context.subscribe(work.topic, ordered_consumer=True)

        async def take() -> int:
            await subscription.next_msg(timeout=5)
            return 1

        return await drained_by_task(work, take)


async def wake(work: Work) -> dict[str, Any]:
    """Subscribe with a handler, which waits for single messages."""
    wakes = Wakes(work)
    async with stream(work) as context:

        async def handle(message: Any) -> None:
            wakes.handle(message.data)

        await context.subscribe(work.topic, durable=work.group, cb=handle)
        return await wakes.send_all_by_task(lambda body: context.publish(work.topic, body))


NATS: dict[str, Row] = {
    "send_futures": awaited(send_futures),
    "send_1": awaited(lambda work: send_tasks(work, 1)),
    "send_64": awaited(send_tasks),
    "iterate": awaited(iterate),
    "receive_500": receive(BATCH),
    "receive_1": receive(1),
    "pull": awaited(pull),
    "wake_1": awaited(wake),
}
