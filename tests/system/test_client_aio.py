"""The asyncio client keeps the promises of the synchronous one, and its heartbeat does not depend on the loop."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from datetime import timedelta

import pytest
from machine import in_load

import ferromq
from ferromq import aio

SOON = timedelta(seconds=10)


@pytest.fixture
def mq() -> Iterator[ferromq.Embedded]:
    """Yield an embedded broker whose time is moved by hand."""
    with ferromq.embedded(clock=ferromq.Clock.manual()) as embedded:
        yield embedded


def test_many_are_sent_and_iterated(mq: ferromq.Embedded) -> None:
    """From any iterable, asynchronous, too; acknowledged in the background, none comes again."""

    async def numbers() -> AsyncIterator[bytes]:
        for number in range(1500):
            yield b"%d" % number

    async def use() -> None:
        progress: list[int] = []
        async with aio.Producer(mq.endpoint) as producer, aio.Consumer(mq.endpoint, "billing", "orders") as consumer:
            summary = await producer.send_all("orders", numbers(), on_progress=progress.append)
            futures = [await producer.submit("orders", b"%d" % number) for number in range(1500, 3000)]
            receipts = [*summary, *await asyncio.gather(*futures)]
            assert progress[-1] == 1500
            seen: dict[str, bytes] = {}
            async for message in consumer:
                seen[message.message_id] = message.body
                message.ack()
                if len(seen) == 3000:
                    break
            assert [seen[receipt.message_id] for receipt in receipts] == [b"%d" % number for number in range(3000)]
            await consumer.flush()
            mq.clock.advance(hours=1)
            assert await consumer.receive(wait=timedelta()) == []

    asyncio.run(use())


def test_closing_ends_a_batch_that_is_taken_apart(mq: ferromq.Embedded, monkeypatch: pytest.MonkeyPatch) -> None:
    """None of its messages is sent after that, and `close` keeps its time."""

    async def use() -> None:
        producer = aio.Producer(mq.endpoint)
        began = 0

        async def run(plan: Generator[object, object, object]) -> object:
            nonlocal began
            plan.close()
            began += 1
            if began == 1:
                raise ferromq.RequestError("an odd key")
            return await asyncio.sleep(3600)

        monkeypatch.setattr(producer._client, "run", run)
        futures = [await producer.submit("orders", b"x") for _ in range(20)]
        begin = time.monotonic()
        await producer.close(0.2)
        assert time.monotonic() - begin < in_load(2)
        assert began == 2
        with pytest.raises(ferromq.ConnectionFailed, match="closed while"):
            await futures[0]
        for future in futures[1:]:
            with pytest.raises(ferromq.ClientClosed, match="closed before"):
                await future

    asyncio.run(use())


def test_closing_gives_back_what_was_received_ahead_and_ends_iterations(mq: ferromq.Embedded) -> None:
    """Another consumer gets the rest at once; a loop that waits ends."""

    async def use() -> None:
        async with aio.Producer(mq.endpoint) as producer:
            await producer.send_all("orders", [b"%d" % number for number in range(300)])
        seen: set[str] = set()
        everything = asyncio.Event()
        async with aio.Consumer(mq.endpoint, "billing", "orders") as consumer:
            async for message in consumer:
                message.ack()
                seen.add(message.message_id)
                if len(seen) == 50:
                    break
        consumer = aio.Consumer(mq.endpoint, "billing", "orders")
        iteration = asyncio.create_task(collect(consumer, seen, everything))
        await everything.wait()
        begin = time.monotonic()
        await consumer.close()
        await asyncio.wait_for(iteration, 5)
        assert time.monotonic() - begin < in_load(5)

    async def collect(consumer: aio.Consumer, seen: set[str], everything: asyncio.Event) -> None:
        async for message in consumer:
            seen.add(message.message_id)
            message.ack()
            if len(seen) == 300:
                everything.set()

    asyncio.run(asyncio.wait_for(use(), 40))


def test_a_blocked_loop_does_not_stop_heartbeats(
    mq: ferromq.Embedded, monkeypatch: pytest.MonkeyPatch, eventually: Callable[[Callable[[], bool]], bool]
) -> None:
    """Heartbeats reach the broker while nothing runs on the loop."""
    monkeypatch.setattr("ferromq.client.session.HEARTBEAT_PERIOD", 0.05)

    async def use() -> bool:
        async with aio.Consumer(mq.endpoint, "billing", "orders") as consumer:
            await consumer.receive(wait=timedelta())
            calls: int = mq.broker._server.stats()["cold_calls"]
            # The loop is blocked on purpose.
            return eventually(lambda: mq.broker._server.stats()["cold_calls"] >= calls + 5)

    assert asyncio.run(use())


def test_a_message_is_acknowledged_on_the_loop_alone(mq: ferromq.Embedded) -> None:
    """Elsewhere it is an error, and the acknowledgement is not taken."""

    async def use() -> None:
        async with aio.Producer(mq.endpoint) as producer:
            await producer.send("orders", b"x")
        async with aio.Consumer(mq.endpoint, "billing", "orders") as consumer:
            (message,) = await consumer.receive(wait=10)
            with pytest.raises(RuntimeError, match="no running event loop"):
                await asyncio.to_thread(message.ack)
            assert not message.is_settled
            message.ack()
            assert await consumer.flush(10)

    asyncio.run(use())


def test_a_client_belongs_to_one_loop(mq: ferromq.Embedded) -> None:
    """Using it on another is an error that says what to do."""
    producer = aio.Producer(mq.endpoint)
    asyncio.run(producer.send("orders", b"x"))  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="another event loop"):
        asyncio.run(producer.send("orders", b"x"))  # type: ignore[arg-type]
    producer._client.base.close(time.monotonic() + 1)
