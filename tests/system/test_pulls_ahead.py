"""Pulls that follow each other: the next one is sent before it is asked for, and what comes of it is never wrong."""

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from dispatching import dispatched
from fault_proxy import FAULTS, Fault, FaultProxy
from machine import in_load

import ferromq
from ferromq import Queue, aio
from ferromq.client import connection
from ferromq.core import pull_plans
from ferromq.core.pull_plans import PullAhead
from ferromq.core.requests import Plan

Eventually = Callable[[Callable[[], bool]], bool]
PATIENCE = 20.0
COUNT = 1000
SOME = 50


@pytest.fixture
def mq(proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch) -> Iterator[ferromq.Embedded]:
    """Yield a broker that clients reach by the proxy alone, with messages in one queue."""
    monkeypatch.setattr(connection, "PROBE", PATIENCE)  # calls go in frames, however busy the machine is
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
    consumer.pull(queue, COUNT - 1, 1)
    assert read(mq) - before == SOME + 1
    before += 1
    consumer.pull(queue, 0, SOME)
    before += SOME
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
    consumer: ferromq.Consumer, queue: Queue, proxy: FaultProxy, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within the time of a pull; nothing is skipped."""
    consumer.pull(queue, 0, SOME)
    go_on = PullAhead.go_on

    def cut_off(self: PullAhead, *arguments: Any) -> Plan[None]:
        fault(proxy)
        yield from go_on(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(PullAhead, "go_on", cut_off)
        assert offsets(consumer.pull(queue, SOME, SOME)) == list(range(SOME, 2 * SOME))
    begun = time.monotonic()
    with pytest.raises(ferromq.OutcomeUnknown):
        consumer.pull(queue, 2 * SOME, SOME)
    assert time.monotonic() - begun < in_load(6)
    proxy.resume()
    assert offsets(consumer.pull(queue, 2 * SOME, SOME)) == list(range(2 * SOME, 3 * SOME))


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


def test_a_queue_that_is_left_in_the_middle_keeps_no_other_from_it(
    mq: ferromq.Embedded, monkeypatch: pytest.MonkeyPatch, eventually: Eventually
) -> None:
    """What was sent ahead for it is given up when it is too old."""
    monkeypatch.setattr(pull_plans, "_MOST_AHEAD", 1)
    with ferromq.Producer(mq.endpoint) as producer:
        producer.send_all("others", [b"x"] * COUNT)
    dispatched(mq)
    with ferromq.Consumer(mq.endpoint, "billing", ["orders", "others"]) as consumer:
        left, other = sorted(consumer.queues(), key=lambda queue: queue.topic)
        consumer.pull(left, COUNT - 1, 1)
        assert eventually(lambda: mq.endpoint in consumer._client.channels.framed)
        ahead = consumer._pulls._begun
        for queue in (left, other):
            for offset in (0, SOME):
                consumer.pull(queue, offset, SOME)
            assert list(ahead) == [left]
        ahead[left] = ahead[left]._replace(until=0.0)
        consumer.pull(other, 2 * SOME, SOME)
        assert list(ahead) == [other]


def test_a_connection_that_ended_behind_an_untaken_answer_is_not_used(
    mq: ferromq.Embedded, proxy: FaultProxy, eventually: Eventually
) -> None:
    """The next call goes on a new one; it needs no second attempt."""
    with ferromq.Consumer(mq.endpoint, "billing", "orders", attempts=1) as consumer:
        (queue,) = consumer.queues()
        consumer.pull(queue, COUNT - 1, 1)
        assert eventually(lambda: mq.endpoint in consumer._client.channels.framed)
        before = read(mq)
        consumer.pull(queue, 0, SOME)
        consumer.pull(queue, SOME, SOME)
        assert eventually(lambda: read(mq) - before == 3 * SOME)
        proxy.drop()
        consumer.commit_offset(queue, 1)


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
