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
    done: list[tuple[Slice, Batch]] = []
    stored = 0

    async def collect() -> None:
        nonlocal stored
        part, task = pending.popleft()
        done.append((part, await task))
        stored += len(part.messages)
        if on_progress is not None:
            on_progress(stored)

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
        note_stored(error, stored + sum(len(batch.ids) for batch in others if isinstance(batch, Batch)))
        raise
    finally:
        for _, task in pending:
            task.cancel()
    return in_order(done)


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
