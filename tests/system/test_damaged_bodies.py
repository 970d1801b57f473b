"""A body that is damaged on its way: an error of its own message, whatever way the message takes."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from dispatching import dispatched
from fault_proxy import FaultProxy
from ports import kept_port

import ferromq
import ferromq.aio
from ferromq import CorruptMessage, MessageView

Eventually = Callable[[Callable[[], bool]], bool]
PATIENCE = 30.0
SENT, DAMAGED = b"damage me", b"damaged!!"
BODIES = [b"before", SENT, b"after"]


class DamagingProxy(FaultProxy):
    """Changes a body in answers."""

    async def _pass_on(self, connection: Any, data: bytes, *more: Any, is_answer: bool) -> bytes:
        data = data.replace(SENT, DAMAGED) if is_answer else data
        return await super()._pass_on(connection, data, *more, is_answer=is_answer)


class Way:
    """A broker behind the proxy, with three messages in one queue, and a connection that takes one way to it."""

    def __init__(self, name: str, mq: ferromq.Embedded, proxy: DamagingProxy) -> None:
        self.name, self.mq = name, mq
        proxy.http2_only = name == "http2"
        self.where = {"namesrv": mq.namesrv} if name == "namesrv" else {"endpoint": mq.endpoint}
        with mq.admin() as admin:
            admin.create_topic("orders", 1)
            admin.create_group("billing", retries=1, retry_delays=[0.01])

    def send(self) -> None:
        """Send the messages."""
        with self.mq.producer() as producer:
            for body in BODIES:
                producer.send("orders", body)
        dispatched(self.mq)

    def is_taken(self, consumer: Any) -> bool:
        """Return whether a consumer's next call goes this way."""
        return self.name != "frames" or bool(consumer._client.channels.framed)


@pytest.fixture(params=["frames", "http2", "namesrv"])
def way(request: pytest.FixtureRequest) -> Iterator[Way]:
    """Yield each way."""
    listen, advertise = ("listen", "advertise") if request.param == "namesrv" else ("grpc_listen", "grpc_advertise")
    with kept_port() as address, DamagingProxy(address) as proxy:
        options: Any = {listen: address, advertise: proxy.address, "fast_listen": "off"}
        with ferromq.embedded(**options) as mq:
            yield Way(request.param, mq, proxy)


@pytest.fixture
def consumer(way: Way, eventually: Eventually) -> Iterator[ferromq.Consumer]:
    """Yield a consumer whose next receive goes that way, to messages that are there."""
    with ferromq.connect(**way.where) as mq, mq.consumer("billing", "orders") as consumer:
        assert consumer.receive(wait=0) == []
        assert eventually(lambda: way.is_taken(consumer))
        way.send()
        yield consumer


def check(messages: list[MessageView]) -> None:
    """Check that the three came, and that only the damaged one has no body."""
    before, damaged, after = sorted(messages, key=lambda message: message.queue_offset)
    assert (before.body, damaged.raw_body, after.body) == (BODIES[0], DAMAGED, BODIES[2])
    place = rf"message {damaged.message_id} of topic orders, queue 0, offset 1: .*checksum.*raw_body"
    with pytest.raises(CorruptMessage, match=place):
        _ = damaged.body


def test_a_receive_and_a_pull_return_its_neighbours(consumer: ferromq.Consumer) -> None:
    """And the damaged message itself, which can be acknowledged as any other."""
    messages = consumer.receive_many(3, wait=10)
    check(messages)
    consumer.ack(messages)
    (queue,) = consumer.queues()
    check(consumer.pull(queue, 0, wait=0).messages)


def test_a_table_has_null_for_it(consumer: ferromq.Consumer) -> None:
    """The other rows have their bodies, and its message raises the error."""
    pytest.importorskip("pyarrow")
    received = consumer.receive_arrow(wait=10)
    assert received.table.column("body").to_pylist() == [BODIES[0], None, BODIES[2]]
    check(received.messages)
    assert ferromq.to_arrow(received).equals(received.table)
    (queue,) = consumer.queues()
    assert consumer.pull_arrow(queue, 0, wait=0).table.column("body").to_pylist() == [BODIES[0], None, BODIES[2]]


def test_an_event_loop_gets_the_same(way: Way) -> None:
    """Messages and tables."""
    pytest.importorskip("pyarrow")

    async def program() -> None:
        async with ferromq.aio.connect(**way.where) as mq:
            consumer = mq.consumer("billing", "orders")
            messages = await consumer.receive_many(3, wait=10)
            check(messages)
            (queue,) = await consumer.queues()
            pulled = await consumer.pull_arrow(queue, 0, wait=0)
            assert pulled.table.column("body").to_pylist() == [BODIES[0], None, BODIES[2]]

    way.send()
    asyncio.run(program())


def test_run_redelivers_it_until_it_is_a_dead_letter(way: Way, consumer: ferromq.Consumer) -> None:
    """As a message whose handler fails; the others are handled once."""
    seen: list[bytes | int] = []
    done = threading.Event()

    def handle(message: MessageView) -> None:
        try:
            seen.append(message.body)
        except CorruptMessage:
            seen.append(message.delivery_attempt)
            raise
        finally:
            if len(seen) == 4:
                done.set()

    running = threading.Thread(target=consumer.run, args=(handle,))
    running.start()
    with way.mq.consumer("look", "%DLQ%billing") as dead:
        (letter,) = dead.receive(wait=PATIENCE)
    assert done.wait(PATIENCE)
    consumer.stop()
    running.join(PATIENCE)
    assert not running.is_alive()
    assert sorted(seen, key=str) == [1, 2, b"after", b"before"]
    assert letter.raw_body in {SENT, DAMAGED}


def test_a_loop_yields_it_and_goes_on(consumer: ferromq.Consumer) -> None:
    """The program decides what becomes of it."""
    damaged = []
    for _, message in zip(range(3), consumer, strict=False):
        try:
            assert message.body in BODIES
        except CorruptMessage:
            damaged.append(message.queue_offset)
        message.ack()
    assert damaged == [1]
