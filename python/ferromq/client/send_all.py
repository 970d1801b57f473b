"""Sends many messages of one call, in batches, several of them at once; the asynchronous twin is `aio._send_all`."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import chain
from typing import cast

from ferromq.client.client import Client
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
from ferromq.core.payloads import V, as_is
from ferromq.message import Batch, Message, SendSummary


def send_all(
    client: Client,
    topic: str,
    messages: Iterable[Message | V],
    sendable: Callable[[Message | V], Sendable],
    on_progress: Callable[[int], None] | None,
) -> SendSummary:
    """Send what *sendable* makes of each message; see `Producer.send_all`."""
    is_small = isinstance(messages, Sequence) and len(messages) <= MAX_MESSAGES
    given = cast("Iterable[Sendable]", messages) if sendable is as_is else map(sendable, messages)
    pending: deque[tuple[Slice, Future[Batch]]] = deque()
    stored = Stored(on_progress)

    def take(part: Slice, send: Callable[[], Batch]) -> None:
        try:
            stored.add(part, send())
        except send_plans.MustPartError:
            for each in part.apart():
                stored.add(each, _send_after(client, None, topic, each))

    try:
        parts = [*batches(given)] if is_small else batches(given)
        rest = iter(parts)
        # One batch leaves threads nothing to do meanwhile. An embedded broker stores in the caller's thread: others
        # would only take turns with it, unless the broker waits for its disk.
        is_alone = isinstance(parts, list) and len(parts) == 1
        for part in rest if is_alone or client.channels.has_here else ():
            take(part, partial(_send_after, client, None, topic, part))
            if stored.has_waited or not client.channels.is_here(stored.last.endpoint):
                break
        _send_at_once(client, topic, rest, pending, take)
    except Exception as error:
        others = [part for part, future in pending if future.exception() is None]
        note_stored(error, stored.count + sum(len(part.messages) for part in others))
        raise
    return in_order(stored.done)


def _send_at_once(
    client: Client,
    topic: str,
    parts: Iterator[Slice],
    pending: deque[tuple[Slice, Future[Batch]]],
    take: Callable[[Slice, Callable[[], Batch]], None],
) -> None:
    """Send slices on threads, several at once; *pending* has those whose receipts *take* has not got yet."""
    first = next(parts, None)
    if first is None:
        return

    def collect() -> None:
        part, future = pending.popleft()
        take(part, future.result)

    with ThreadPoolExecutor(IN_FLIGHT, "ferromq-send") as senders:
        for part in chain((first,), parts):
            before = predecessor(part, pending)
            pending.append((part, senders.submit(_send_after, client, before, topic, part)))
            if len(pending) >= IN_FLIGHT:
                collect()
        while pending:
            collect()


def _send_after(client: Client, before: Future[Batch] | None, topic: str, part: Slice) -> Batch:
    if before is not None:
        before.result()  # its failure is ours, too: what comes after a gap would be out of order
    return client.run(send_plans.send(client.common, topic, part.messages, part.numbers))
