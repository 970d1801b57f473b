"""Clients of `ferromq.aio.connect(mq)`: they call an embedded broker without a socket, and hold up no other task."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
from tls_files import SHOWN, TRUST

import ferromq
from ferromq import aio

PATIENCE = 30.0


@pytest.fixture
def mq() -> Iterator[ferromq.Embedded]:
    """Yield a broker with a topic of one queue."""
    with ferromq.embedded(default_queues=1) as mq:
        with mq.admin() as admin:
            admin.create_topic("orders", 1)
        yield mq


def run(program: Callable[[aio.Connection], Coroutine[Any, Any, None]], mq: ferromq.Embedded, **options: Any) -> None:
    """Run a program with a connection to the broker."""

    async def connected() -> None:
        async with asyncio.timeout(PATIENCE), aio.connect(mq, **options) as connection:
            await program(connection)

    asyncio.run(connected())


def connections_of_a_producer(*, is_local: bool, listener: dict[str, Any] | None = None, **options: Any) -> int:
    """Return how many gRPC and framed connections a producer opens for its sends to a new broker."""

    async def program(mq: ferromq.Embedded) -> int:
        async with (
            aio.connect(mq if is_local else mq.endpoint, **options) as connection,
            connection.producer() as producer,
        ):
            while not producer._client.base.channels.framed:
                await producer.send("orders", b"x")
            for _ in range(3):
                await producer.send("orders", b"x")
            return mq.broker.server.stats()["connections"]

    with ferromq.embedded(**(listener or {})) as mq:
        return asyncio.run(asyncio.wait_for(program(mq), PATIENCE))


def test_it_opens_no_connection_for_frames() -> None:
    """Routes and settings go over gRPC; a client that connects by the address has a connection more."""
    assert connections_of_a_producer(is_local=True) == connections_of_a_producer(is_local=False) - 1


def test_it_speaks_the_tls_that_it_is_given() -> None:
    """A program that tests its TLS must not be answered without it."""
    given: dict[str, Any] = {"listener": SHOWN, "tls": TRUST}
    assert connections_of_a_producer(is_local=True, **given) == connections_of_a_producer(is_local=False, **given)


def test_tasks_share_requests_and_their_messages_are_received_and_acknowledged(mq: ferromq.Embedded) -> None:
    """Of 64 tasks, each with its own receipt."""

    async def program(connection: aio.Connection) -> None:
        async with connection.producer() as producer, connection.consumer("billing", "orders") as consumer:
            while not producer._client.base.channels.framed:
                await producer.send("orders", b"first")
            await producer.send("orders", b"first")
            bodies = [b"%d" % number for number in range(64)]
            receipts = await asyncio.gather(*(producer.send("orders", body) for body in bodies))
            sent = {receipt.message_id: body for receipt, body in zip(receipts, bodies, strict=True)}
            seen: dict[str, bytes] = {}
            while not sent.keys() <= seen.keys():
                messages = await consumer.receive(wait=PATIENCE)
                seen |= {message.message_id: message.body for message in messages}
                await consumer.ack(messages)
            assert {message_id: seen[message_id] for message_id in sent} == sent
            assert await consumer.receive(wait=0) == []

    run(program, mq)


def test_a_receive_that_waits_holds_up_no_other_task(mq: ferromq.Embedded) -> None:
    """A message that is sent meanwhile ends its wait."""

    async def program(connection: aio.Connection) -> None:
        async with connection.consumer("billing", "orders") as consumer, connection.producer() as producer:
            assert await consumer.receive(wait=0) == []
            waiting = [asyncio.create_task(consumer.receive(1, wait=PATIENCE)) for _ in range(3)]
            await asyncio.sleep(0)
            for _ in range(3):
                await producer.send("orders", b"x")
            assert [len(messages) for messages in await asyncio.gather(*waiting)] == [1, 1, 1]

    run(program, mq)


def test_many_tasks_send_at_once_while_each_waits_for_the_disk() -> None:
    """Each has a receipt of its own."""
    with ferromq.embedded(flush="group") as mq:

        async def program(connection: aio.Connection) -> None:
            async with connection.producer() as producer:
                receipts = await asyncio.gather(*(producer.send("orders", b"x") for _ in range(64)))
                again = await asyncio.gather(*(producer.send("orders", b"x") for _ in range(64)))
                assert len({receipt.message_id for receipt in [*receipts, *again]}) == 128

        run(program, mq)


def test_a_cancelled_receive_leases_nothing(mq: ferromq.Embedded) -> None:
    """The message comes to the next receiver at its first delivery."""

    async def program(connection: aio.Connection) -> None:
        async with connection.consumer("billing", "orders") as consumer, connection.producer() as producer:
            assert await consumer.receive(wait=0) == []
            for _ in range(20):
                waiting = asyncio.create_task(consumer.receive(wait=PATIENCE))
                await asyncio.sleep(0.001)
                waiting.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await waiting
                await producer.send("orders", b"x")
                (message,) = await consumer.receive(1, wait=PATIENCE)
                assert message.delivery_attempt == 1
                await consumer.ack(message)

    run(program, mq)


def test_a_close_ends_a_receive_that_waits(mq: ferromq.Embedded) -> None:
    """At once, as over the network."""

    async def program(connection: aio.Connection) -> None:
        consumer = connection.consumer("billing", "orders")
        assert await consumer.receive(wait=0) == []
        waiting = asyncio.create_task(consumer.receive(wait=PATIENCE))
        await asyncio.sleep(0.01)
        begin = time.monotonic()
        await connection.close()
        with contextlib.suppress(ferromq.FerromqError):
            assert await waiting == []
        assert time.monotonic() - begin < PATIENCE / 2

    run(program, mq)


def test_a_broker_that_is_closed_first_ends_calls_with_an_error() -> None:
    """Those under way, and later ones."""
    mq = ferromq.embedded()

    async def program(connection: aio.Connection) -> None:
        async with connection.producer(timeout=PATIENCE, attempts=1) as producer:
            while not producer._client.base.channels.framed:
                await producer.send("orders", b"x")
            await asyncio.to_thread(mq.close)
            with pytest.raises(ferromq.ConnectionFailed):
                await producer.send("orders", b"x", timeout=1)

    run(program, mq)


def test_its_producers_count_delays_from_the_clock_of_the_broker() -> None:
    """As those of `mq.producer()`."""
    with ferromq.embedded(clock=ferromq.Clock.manual()) as mq:

        async def program(connection: aio.Connection) -> None:
            async with connection.producer() as producer, connection.consumer("billing", "later") as consumer:
                mq.clock.advance(days=3)
                await producer.send("later", b"x", delay=3600)
                assert await consumer.receive(wait=0) == []
                mq.clock.advance(hours=2)
                assert [message.body for message in await consumer.receive(wait=PATIENCE)] == [b"x"]

        run(program, mq)


def test_another_connection_and_a_closed_broker_are_refused(mq: ferromq.Embedded) -> None:
    """The error says what to give."""
    with pytest.raises(ferromq.ConfigError, match=r"expected its address, 'h:1', or ferromq\.embedded\(\)"):
        aio.connect(ferromq.connect("h:1"))
    with pytest.raises(ferromq.ConfigError, match="endpoint and namesrv"):
        aio.connect(mq, namesrv="h:9876")
    mq.close()
    with pytest.raises(ferromq.ClientClosed, match="embedded broker is closed"):
        aio.connect(mq)


def test_clients_leave_no_thread_behind(mq: ferromq.Embedded, eventually: Callable[[Callable[[], bool]], bool]) -> None:
    """But those of the broker."""

    async def program(connection: aio.Connection) -> None:
        async with connection.producer() as producer:
            await producer.send("orders", b"x")

    run(program, mq)  # threads of the broker begin with its first client
    before = set(threading.enumerate())
    run(program, mq)
    assert eventually(lambda: set(threading.enumerate()) <= before), set(threading.enumerate()) - before
