"""Pulls that follow each other: the next one is sent before it is asked for, and what comes of it is never wrong."""

import asyncio
import time
from collections.abc import Callable, Iterator

import pytest
from dispatching import dispatched
from fault_proxy import FAULTS, Fault, FaultProxy
from machine import in_load

import ferromq
from ferromq import Queue, aio

Eventually = Callable[[Callable[[], bool]], bool]
COUNT = 1000
SOME = 50


@pytest.fixture
def mq(proxy: FaultProxy) -> Iterator[ferromq.Embedded]:
    """Yield a broker that clients reach by the proxy alone, with messages in one queue."""
    with ferromq.embedded(grpc_listen=proxy.target, grpc_advertise=proxy.address, default_queues=1) as mq:
        send(mq, range(COUNT))
        yield mq


def send(mq: ferromq.Embedded, numbers: range) -> None:
    """Store messages."""
    with ferromq.Producer(mq.endpoint) as producer:
        producer.send_all("orders", [b"%d" % number for number in numbers])
    dispatched(mq)


@pytest.fixture
def consumer(mq: ferromq.Embedded, eventually: Eventually) -> Iterator[ferromq.Consumer]:
    """Yield a consumer whose calls go in frames."""
    with ferromq.Consumer(mq.endpoint, "billing", "orders", timeout=5) as consumer:
        consumer.pull(consumer.queues()[0], COUNT - 1, 1)
        assert eventually(lambda: mq.endpoint in consumer._client.channels.framed)
        yield consumer


@pytest.fixture
def queue(consumer: ferromq.Consumer) -> Queue:
    """Return the only queue."""
    (queue,) = consumer.queues()
    return queue


def offsets(pulled: ferromq.Pulled) -> list[int]:
    """Return where the messages are stored."""
    return [message.queue_offset for message in pulled.messages]


def read(mq: ferromq.Embedded) -> int:
    """Return how many messages were read by offset."""
    return mq.broker._server.stats()["pulled"]


def test_the_second_pull_in_a_row_sends_a_third(
    mq: ferromq.Embedded, consumer: ferromq.Consumer, queue: Queue, eventually: Eventually
) -> None:
    """One alone sends nothing ahead; what came ahead is used, and all messages come once."""
    before = read(mq)
    first = consumer.pull(queue, 0, SOME)
    assert read(mq) - before == SOME
    second = consumer.pull(queue, first.next_offset, SOME)
    assert eventually(lambda: read(mq) - before == 3 * SOME)
    third = consumer.pull(queue, second.next_offset, SOME)
    assert eventually(lambda: read(mq) - before == 4 * SOME)
    assert [*offsets(first), *offsets(second), *offsets(third)] == list(range(3 * SOME))


def test_a_pull_from_elsewhere_or_of_another_size_brings_what_it_asks_for(
    consumer: ferromq.Consumer, queue: Queue
) -> None:
    """Whatever was sent ahead."""
    for size in (SOME, SOME + 1):
        for begin in (0, 300, 0):
            for offset in range(begin, begin + 3 * SOME, SOME):
                assert offsets(consumer.pull(queue, offset, size)) == list(range(offset, offset + size))


def test_messages_that_come_later_are_found(mq: ferromq.Embedded, consumer: ferromq.Consumer, queue: Queue) -> None:
    """A pull that was sent ahead before they came brings none, and the pull itself finds them."""
    for offset in range(COUNT - 3 * SOME, COUNT, SOME):
        assert len(consumer.pull(queue, offset, SOME).messages) == SOME
    send(mq, range(SOME))
    assert offsets(consumer.pull(queue, COUNT, SOME, wait=5)) == list(range(COUNT, COUNT + SOME))
    assert consumer.pull(queue, COUNT + SOME, SOME) == ([], COUNT + SOME)


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_one_sent_ahead_whose_answer_does_not_come_is_pulled_again(
    consumer: ferromq.Consumer, queue: Queue, proxy: FaultProxy, fault: Fault
) -> None:
    """Within the time of a pull; nothing is skipped."""
    consumer.pull(queue, 0, SOME)
    fault(proxy)
    begun = time.monotonic()
    with pytest.raises(ferromq.OutcomeUnknown):
        consumer.pull(queue, SOME, SOME)
    proxy.resume()
    consumer.pull(queue, SOME, SOME)
    proxy.lose()
    assert offsets(consumer.pull(queue, 2 * SOME, SOME)) == list(range(2 * SOME, 3 * SOME))
    assert time.monotonic() - begun < in_load(12)


def test_an_answer_that_is_never_taken_holds_up_nothing(consumer: ferromq.Consumer, queue: Queue) -> None:
    """Other calls go on over the same connection."""
    consumer.pull(queue, 0, SOME)
    consumer.pull(queue, SOME, SOME)
    (message,) = consumer.receive(1, wait=5)
    consumer.ack(message)
    assert consumer.committed_offset(queue) is not None
    begun = time.monotonic()
    consumer.close()
    assert time.monotonic() - begun < in_load(2)


def test_pulls_go_ahead_on_an_event_loop(mq: ferromq.Embedded, eventually: Eventually) -> None:
    """As on threads; one that is never taken ends with its client."""

    async def program() -> None:
        async with aio.Consumer(mq.endpoint, "billing", "orders") as consumer:
            (queue,) = await consumer.queues()
            await consumer.pull(queue, 0, 1)
            await asyncio.to_thread(eventually, lambda: mq.endpoint in consumer._client.base.channels.framed)
            before = read(mq)
            found: list[int] = []
            for _ in range(4):
                pulled = await consumer.pull(queue, len(found), SOME)
                found += offsets(pulled)
            assert found == list(range(4 * SOME))
            assert await asyncio.to_thread(eventually, lambda: read(mq) - before == 5 * SOME)

    asyncio.run(program())
