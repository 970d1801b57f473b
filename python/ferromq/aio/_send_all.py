"""Sends many messages of one call, in batches, several of them at once; the synchronous twin is `client.send_all`."""

import asyncio
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable

from ferromq.aio._connection import AsyncClient
from ferromq.core import send_plans
from ferromq.core.batching import (
    IN_FLIGHT,
    MAX_MESSAGES,
    Sendable,
    Slice,
    Stored,
    batches,
    in_order,
    note_stored,
    predecessor,
)
from ferromq.core.payloads import V
from ferromq.message import Batch, Message, SendSummary


async def send_all(
    client: AsyncClient,
    topic: str,
    messages: Iterable[Message | V] | AsyncIterable[Message | V],
    sendable: Callable[[Message | V], Sendable],
    on_progress: Callable[[int], None] | None,
) -> SendSummary:
    """Send what *sendable* makes of each message; see `Producer.send_all`."""
    pending: deque[tuple[Slice, asyncio.Task[Batch]]] = deque()
    stored = Stored(on_progress)

    async def collect() -> None:
        part, task = pending.popleft()
        try:
            stored.add(part, await task)
        except send_plans.MustPartError:
            for each in part.apart():
                stored.add(each, await _send_after(client, None, topic, each))

    try:
        async for part in _batches(messages, sendable):
            before = predecessor(part, pending)
            pending.append((part, asyncio.create_task(_send_after(client, before, topic, part))))
            if len(pending) >= IN_FLIGHT:
                await collect()
        while pending:
            await collect()
    except Exception as error:
        others = await asyncio.gather(*(task for _, task in pending), return_exceptions=True)
        note_stored(error, stored.count + sum(len(batch.ids) for batch in others if isinstance(batch, Batch)))
        raise
    finally:
        for _, task in pending:
            task.cancel()
    return in_order(stored.done)


async def _send_after(client: AsyncClient, before: "asyncio.Task[Batch] | None", topic: str, part: Slice) -> Batch:
    if before is not None:
        await asyncio.shield(before)
    return await client.run(send_plans.send(client.common, topic, part.messages, part.numbers))


async def _batches(
    messages: Iterable[Message | V] | AsyncIterable[Message | V], sendable: Callable[[Message | V], Sendable]
) -> AsyncIterator[Slice]:
    if isinstance(messages, Iterable):
        for part in batches(map(sendable, messages)):
            yield part
        return
    waiting: list[Sendable] = []
    first = 0
    async for message in messages:
        waiting.append(sendable(message))
        if len(waiting) >= MAX_MESSAGES:
            for part in batches(waiting, first):
                yield part
            first += len(waiting)
            waiting = []
    for part in batches(waiting, first):
        yield part
