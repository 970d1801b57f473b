"""Every kind of message with the asynchronous client, and its consumer that awaits a handler."""

import asyncio
import gc
import logging
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta

import pytest

import ferromq
from ferromq import Message, MessageView, Resolution, aio

SOON = timedelta(seconds=10)
PATIENCE = 20.0


@pytest.fixture
def mq() -> Iterator[ferromq.Embedded]:
    """Yield an embedded broker whose time is moved by hand, and which asks as often as it takes."""
    with ferromq.embedded(clock=ferromq.Clock.manual(), transaction_check_max=100_000) as embedded:
        yield embedded


async def received(consumer: aio.Consumer, count: int) -> list[MessageView]:
    """Receive so many messages."""
    messages: list[MessageView] = []
    while len(messages) < count:
        more = await consumer.receive(count - len(messages), wait=SOON)
        assert more, f"only {len(messages)} of {count} messages came"
        messages += more
    return messages


def test_a_transaction_is_seen_once_committed_and_never_when_rolled_back(mq: ferromq.Embedded) -> None:
    """And one left open is settled by a checker that is awaited."""

    async def checker(message: MessageView) -> Resolution:
        await asyncio.sleep(0)
        return Resolution.COMMIT if message.tag == "good" else Resolution.ROLLBACK

    async def main() -> None:
        async with (
            aio.Producer(mq.endpoint, "payments", checker=checker) as producer,
            aio.Consumer(mq.endpoint, "ledger", "payments") as consumer,
        ):
            async with producer.transaction() as tx:
                await tx.send("payments", b"committed")
                assert repr(tx) == "<aio.Transaction open>"
            with pytest.raises(ZeroDivisionError):
                await fail(producer)
            (message,) = await received(consumer, 1)
            assert message.body == b"committed"
            await consumer.ack(message)
            for tag in ("bad", "good"):
                # No consumer has them afterwards.
                await producer.transaction().send("payments", tag.encode(), tag=tag)
            for _ in range(100):
                mq.clock.advance(seconds=31)
                messages = await consumer.receive(wait=0.1)
                if messages:
                    break
            assert [message.body for message in messages] == [b"good"]

    async def fail(producer: aio.Producer) -> None:
        async with producer.transaction() as tx:
            await tx.send("payments", b"rolled back")
            _ = 1 // 0

    with mq.admin() as admin:
        admin.create_topic("payments", 1, message_type="TRANSACTION")
    asyncio.run(main())


def test_what_follows_a_message_that_comes_again_does_not_go_before_it(
    mq: ferromq.Embedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its acknowledgement got lost: the messages behind it are given back, and are redelivered behind it."""
    seen: list[bytes] = []

    async def main() -> None:
        async with aio.Consumer(mq.endpoint, "walker", "steps") as consumer:
            leases, end = consumer._leases, consumer._leases.forward_to_dead_letter

            async def fail_once(message: MessageView, _cause: object) -> None:
                monkeypatch.setattr(leases, "forward_to_dead_letter", end)
                await leases.give_back([message], time.monotonic() + PATIENCE)
                raise ferromq.ConnectionFailed("no answer")

            async def handler(message: MessageView) -> None:
                seen.append(message.body)
                if len(seen) <= 2:
                    raise ValueError("not yet")
                if message.body == b"3":
                    consumer.stop()

            monkeypatch.setattr(leases, "forward_to_dead_letter", fail_once)
            await consumer.run(handler, concurrency=2)

    with mq.admin() as admin:
        admin.create_topic("steps", 1, message_type="FIFO")
        admin.create_group("walker", fifo=True, retries=1, retry_delays=[0.01])
    with mq.producer() as producer:
        producer.send_all("steps", [Message(b"%d" % number, message_group="a") for number in range(4)])
    asyncio.run(asyncio.wait_for(main(), PATIENCE))
    assert seen == [b"0", b"0", b"0", b"1", b"2", b"3"]


def test_closing_cancels_a_running_checker_silently(mq: ferromq.Embedded, caplog: pytest.LogCaptureFixture) -> None:
    """It is cancelled, and the broker asks another one: that is an orderly end."""

    async def main() -> None:
        begun, ended = asyncio.Event(), asyncio.Event()

        async def checker(_message: MessageView) -> None:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        async with aio.Producer(mq.endpoint, "payments", checker=checker) as producer:
            await producer.transaction().send("payments", b"open")
            while not begun.is_set():
                mq.clock.advance(seconds=31)
                with suppress(TimeoutError):
                    await asyncio.wait_for(begun.wait(), 0.1)
            (answer,) = producer._checks._answers
        assert ended.is_set()
        assert await asyncio.to_thread(answer.result, PATIENCE) is None

    with mq.admin() as admin:
        admin.create_topic("payments", 1, message_type="TRANSACTION")
    asyncio.run(main())
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


@pytest.mark.filterwarnings("error")
def test_a_checker_whose_loop_has_ended_is_not_asked(mq: ferromq.Embedded) -> None:
    """No coroutine is left without an await; the broker asks another producer."""

    async def checker(_message: MessageView) -> Resolution:
        return Resolution.COMMIT

    async def main() -> aio.Producer:
        producer = aio.Producer(mq.endpoint, "payments", checker=checker)
        await producer.send("payments", b"x")
        return producer

    producer = asyncio.run(main())
    with mq.consumer("ledger", "payments") as consumer:
        (message,) = consumer.receive(wait=SOON)
        assert producer._checks._ask(message) is None
    gc.collect()
    producer._client.base.close(0)


def test_a_handler_gets_every_message_that_a_condition_in_sql_chooses(mq: ferromq.Embedded) -> None:
    """Several at once; a return acknowledges, and the consumer stays usable."""

    async def main() -> list[bytes]:
        seen: list[bytes] = []
        most = working = 0

        async def handler(message: MessageView) -> None:
            nonlocal most, working
            working += 1
            most = max(most, working)
            await asyncio.sleep(0.001)
            working -= 1
            seen.append(message.body)
            if len(seen) == 50:
                consumer.stop()

        async with aio.Consumer(mq.endpoint, "buyer", "offers", filter=ferromq.Sql("price >= 50")) as consumer:
            await asyncio.wait_for(consumer.run(handler, concurrency=4), PATIENCE)
            assert most > 1
            mq.clock.advance(minutes=5)
            assert await consumer.receive(wait=0) == []
        return seen

    with mq.producer() as producer:
        offers = [Message(b"%d" % price, properties={"price": str(price)}) for price in range(100)]
        producer.send_all("offers", offers)
    assert sorted(map(int, asyncio.run(main()))) == list(range(50, 100))


def test_order_is_kept_over_failures(mq: ferromq.Embedded) -> None:
    """A message that fails is tried again in place; its group waits, others do not."""

    async def main() -> None:
        tried: dict[bytes, int] = {}
        done: dict[str | None, list[int]] = {}

        async def handler(message: MessageView) -> None:
            tried[message.body] = tried.get(message.body, 0) + 1
            if int(message.body) % 5 == 0 and tried[message.body] < 3:
                raise ValueError("not yet")
            done.setdefault(message.message_group, []).append(int(message.body))
            if sum(map(len, done.values())) == 30:
                consumer.stop()

        async with aio.Consumer(mq.endpoint, "walker", "steps") as consumer:
            await asyncio.wait_for(consumer.run(handler, concurrency=3), PATIENCE)
        assert done == {f"g{group}": list(range(group, 30, 3)) for group in range(3)}
        assert {tries for body, tries in tried.items() if int(body) % 5 == 0} == {3}

    with mq.admin() as admin:
        admin.create_topic("steps", 2, message_type="FIFO")
        admin.create_group("walker", fifo=True, retry_delays=[0.01])
    with mq.producer() as producer:
        producer.send_all("steps", [Message(b"%d" % n, message_group=f"g{n % 3}") for n in range(30)])
    asyncio.run(main())


def test_cancelling_run_gives_back_what_was_not_handled(mq: ferromq.Embedded) -> None:
    """At once, although the leases are long."""

    async def main() -> None:
        begun = asyncio.Event()

        async def handler(_message: MessageView) -> None:
            begun.set()
            await asyncio.Event().wait()

        async with aio.Consumer(mq.endpoint, "billing", "orders", invisible_duration=600) as consumer:
            running = asyncio.create_task(consumer.run(handler, concurrency=2))
            await asyncio.wait_for(begun.wait(), PATIENCE)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            messages = await received(consumer, 5)
            assert sorted(message.body for message in messages) == [b"%d" % number for number in range(5)]

    with mq.producer() as producer:
        producer.send_all("orders", [b"%d" % number for number in range(5)])
    asyncio.run(main())


def test_closing_ends_run(mq: ferromq.Embedded) -> None:
    """The handler under way ends first."""

    async def main() -> None:
        begun, done = asyncio.Event(), []

        async def handler(message: MessageView) -> None:
            begun.set()
            await asyncio.sleep(0.1)
            done.append(message.body)

        consumer = aio.Consumer(mq.endpoint, "billing", "orders")
        running = asyncio.create_task(consumer.run(handler))
        await asyncio.wait_for(begun.wait(), PATIENCE)
        await consumer.close(PATIENCE)
        await asyncio.wait_for(running, PATIENCE)
        assert done == [b"x"]

    with mq.producer() as producer:
        producer.send("orders", b"x")
    asyncio.run(main())
