"""On an event loop calls take no thread and block nothing; heartbeats and renewals go on while the loop is blocked."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from dispatching import dispatched
from fault_proxy import FaultProxy
from grpc_proxy import GrpcProxy
from ports import kept_port

import ferromq
from ferromq import MessageView, aio
from ferromq.client import renewing

PATIENCE = 30.0
MANY = 200
LEASE = 0.6


def threads() -> int:
    """Return the number of threads of this process, those of Rust and gRPC included."""
    return len(list(Path("/proc/self/task").iterdir()))


def test_pain_7_a_call_on_an_event_loop_takes_no_thread() -> None:
    """Many sends and receives under way at once add no more threads than a few."""

    async def use(address: str, proxy: FaultProxy) -> tuple[int, int]:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(MANY))
        async with aio.Producer(address) as producer, aio.Consumer(address, "billing", "orders") as consumer:
            await producer.send("orders", b"x")
            await consumer.ack(await consumer.receive(1, wait=PATIENCE))
            few = [asyncio.create_task(consumer.receive(wait=PATIENCE)) for _ in range(2)]
            proxy.hang()
            few.append(asyncio.create_task(producer.send("orders", b"x", timeout=PATIENCE)))
            await asyncio.wait(few, timeout=0.1)
            before = threads()
            many = [asyncio.create_task(consumer.receive(wait=PATIENCE)) for _ in range(MANY)]
            many += [asyncio.create_task(producer.send("orders", b"x", timeout=PATIENCE)) for _ in range(MANY)]
            await asyncio.wait(many, timeout=0.3)
            assert not any(task.done() for task in many)
            after = threads()
            for task in (*few, *many):
                task.cancel()
            await asyncio.gather(*few, *many, return_exceptions=True)
            proxy.resume()
            return before, after

    with (
        kept_port() as address,
        FaultProxy(address) as proxy,
        ferromq.embedded(grpc_listen=address, grpc_advertise=proxy.address),
    ):
        before, after = asyncio.run(use(proxy.address, proxy))
    assert after - before < MANY / 10


def test_pain_7_a_cancelled_send_ends_at_once() -> None:
    """Its number of an idempotent producer is for the next send, though something refers to the cancelled task."""

    async def use(mq: ferromq.Embedded) -> int:
        async with aio.Producer(mq.endpoint, idempotent=True) as producer:
            await producer.send("orders", b"x")
            cancelled = []
            for _ in range(MANY):
                sending = asyncio.create_task(producer.send("orders", b"x"))
                await asyncio.sleep(0)
                sending.cancel()
                await asyncio.wait({sending})
                cancelled.append(sending)
            receipts = [await producer.send("orders", b"last") for _ in range(2)]
            assert all(receipt.queue_offset >= 0 for receipt in receipts)
        dispatched(mq)
        with ferromq.Consumer(mq.endpoint, "billing", "orders") as consumer:
            return len({message.message_id for message in consumer.receive(2 * MANY, wait=PATIENCE)})

    with ferromq.embedded(default_queues=1, dedup_writers=MANY // 10) as mq:
        assert asyncio.run(use(mq)) >= 3


def test_pain_7_a_task_that_waits_for_a_hung_broker_does_not_block_the_loop() -> None:
    """Other tasks make their steps meanwhile, whatever the call."""

    async def use(proxy: FaultProxy) -> None:
        producer = aio.Producer(proxy.address, timeout=PATIENCE)
        consumer = aio.Consumer(proxy.address, "billing", "orders", timeout=PATIENCE)
        await producer.send("orders", b"x")
        (message,) = await consumer.receive(1, wait=PATIENCE)
        queue = (await consumer.queues())[0]
        proxy.hang()
        calls = {
            "send": producer.send("orders", b"x"),
            "send_all": producer.send_all("orders", [b"x"] * 10),
            "flush": producer.flush(PATIENCE),
            "receive": consumer.receive(wait=PATIENCE),
            "pull": consumer.pull(queue, 0),
            "ack": consumer.ack(message),
            "iterate": anext(aiter(consumer)),
        }
        await producer.submit("orders", b"x")
        tasks = {name: asyncio.ensure_future(call) for name, call in calls.items()}
        for _ in range(50):
            await asyncio.sleep(0.001)
            for name, task in tasks.items():
                assert not task.done(), f"{name} did not wait: {task}"
        closing = [asyncio.create_task(each.close(0.3)) for each in (producer, consumer)]
        for _ in range(20):
            await asyncio.sleep(0.001)
        for task in tasks.values():
            task.cancel()
        await asyncio.gather(*closing, *tasks.values(), return_exceptions=True)

    with (
        kept_port() as address,
        FaultProxy(address) as proxy,
        ferromq.embedded(grpc_listen=address, grpc_advertise=proxy.address),
    ):
        asyncio.run(asyncio.wait_for(use(proxy), PATIENCE))


def test_pain_13_leases_are_renewed_while_a_handler_blocks_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """For several lengths of the lease: the message is handled once, and acknowledged."""
    monkeypatch.setattr(renewing, "_RENEWAL", PATIENCE)
    attempts: list[int] = []
    with ferromq.embedded(clock=ferromq.Clock.manual()) as mq, GrpcProxy(mq.endpoint) as proxy:
        with mq.producer() as producer:
            producer.send("orders", b"slow")
        consumer = aio.Consumer(proxy.endpoint, "billing", "orders", invisible_duration=LEASE)

        async def handle(message: MessageView) -> None:
            attempts.append(message.delivery_attempt)
            for _ in range(4):
                proxy.wait_for("ChangeInvisibleDuration", 2)  # the first may have begun before time went on
                mq.clock.advance(seconds=LEASE - 0.1)
            consumer.stop()

        async def use() -> None:
            async with consumer:
                await consumer.run(handle)

        asyncio.run(asyncio.wait_for(use(), 2 * PATIENCE))
        stats = mq.broker._server.stats()
    assert attempts == [1]
    assert (stats["acked"], stats["stale_receipts"], stats["dead"]) == (1, 0, 0)


def test_pain_13_waiting_messages_are_given_back_while_a_handler_blocks_the_loop() -> None:
    """Another member of the group gets them, without an attempt: time does not move here."""
    entered, go_on = threading.Event(), threading.Event()
    with ferromq.embedded(clock=ferromq.Clock.manual()) as mq:
        with mq.producer() as producer:
            producer.send_all("orders", [b"%d" % number for number in range(40)])
        consumer = aio.Consumer(mq.endpoint, "billing", "orders", invisible_duration=3)
        seen: list[bytes] = []

        async def handle(message: MessageView) -> None:
            seen.append(message.body)
            if len(seen) == 20:
                entered.set()
                assert go_on.wait(PATIENCE)  # the loop is blocked on purpose
                consumer.stop()

        async def use() -> None:
            async with consumer:
                await consumer.run(handle)

        running = threading.Thread(target=lambda: asyncio.run(use()), daemon=True)
        running.start()
        assert entered.wait(PATIENCE)
        others: list[MessageView] = []
        with mq.consumer("billing", "orders", invisible_duration=600) as other:
            while len(others) < 20:
                some = other.receive(20 - len(others), wait=PATIENCE)
                assert some
                others += some
                other.ack(some)
        go_on.set()
        running.join(PATIENCE)
        assert not running.is_alive()
    assert {message.delivery_attempt for message in others} == {1}
    assert sorted(seen + [message.body for message in others]) == sorted(b"%d" % number for number in range(40))
