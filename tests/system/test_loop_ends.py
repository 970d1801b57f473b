"""Loops of consumers end where a notebook needs it, and progress says how far a group is."""

import asyncio
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from dispatching import dispatched

import ferromq
from ferromq import aio

Eventually = Callable[[Callable[[], bool]], bool]
START = 1_700_000_000_000


@pytest.fixture
def mq() -> Iterator[ferromq.Embedded]:
    """Yield an embedded broker with two topics of two queues, whose time is moved by hand."""
    with ferromq.embedded(clock=ferromq.Clock.manual(START)) as embedded:
        with embedded.admin() as admin:
            admin.create_topic("orders", 2)
            admin.create_topic("prices", 2)
        yield embedded


@pytest.fixture
def real() -> Iterator[ferromq.Embedded]:
    """Yield an embedded broker with the system's clock and a topic of two queues."""
    with ferromq.embedded() as embedded:
        with embedded.admin() as admin:
            admin.create_topic("orders", 2)
        yield embedded


def fill(mq: ferromq.Embedded, topic: str, count: int, eventually: Eventually) -> None:
    """Send messages to the queues in turn, and wait until readers see them."""

    def stored() -> int:
        return sum(mq.store.max_offset(topic, queue_id) for queue_id in range(2))

    before = stored()
    with mq.producer() as producer:
        for number in range(count):
            producer.send(topic, b"%d" % number, properties={"n": str(number)})
    assert eventually(lambda: stored() == before + count)


def test_a_loop_ends_when_the_group_has_acknowledged_all_that_was_there(
    mq: ferromq.Embedded, eventually: Eventually
) -> None:
    """Of all topics, also behind messages that the filter skips; what comes later is left to the next one."""
    fill(mq, "orders", 5, eventually)
    fill(mq, "prices", 5, eventually)
    seen = 0
    with mq.consumer("billing", {"orders": "*", "prices": ferromq.Sql("n < 2")}) as consumer:
        for message in consumer.messages(until="end"):
            message.ack()
            seen += 1
        assert seen == 5 + 2
        assert consumer.progress().lag == 0
        fill(mq, "orders", 3, eventually)
        for message in consumer.messages(until="end", idle=60):
            message.ack()
            seen += 1
        assert seen == 7 + 3
        assert list(consumer.messages(until="end")) == []


def test_a_loop_ends_though_messages_keep_coming(mq: ferromq.Embedded, eventually: Eventually) -> None:
    """The one that came when all before it were acknowledged is given back: the next receive gets it."""
    fill(mq, "orders", 4, eventually)
    with mq.consumer("billing", "orders") as consumer, mq.producer() as producer:
        for seen, message in enumerate(consumer.messages(until="end")):
            producer.send("orders", b"more")
            message.ack()
            assert seen < 10_000, "it does not end"
        left: list[ferromq.MessageView] = []
        while len(left) < 4:  # each was replaced by one
            messages = consumer.receive(wait=10)
            assert messages
            left += messages
        assert {(message.body, message.delivery_attempt) for message in left} == {(b"more", 1)}


def test_a_loop_does_not_end_before_another_member_has_acknowledged(
    mq: ferromq.Embedded, eventually: Eventually
) -> None:
    """What it holds may come again; the idle limit ends it anyway."""
    fill(mq, "orders", 2, eventually)
    with mq.consumer("billing", "orders") as other, mq.consumer("billing", "orders") as consumer:
        (held,) = other.receive(1, wait=10)
        seen = []
        for message in consumer.messages(until="end", idle=2):
            message.ack()
            seen.append(message.body)
        assert len(seen) == 1
        behind = mq.store.max_offset("orders", held.queue_id)
        assert consumer.progress().lag == behind - held.queue_offset
        other.ack(held)
        assert list(consumer.messages(until="end")) == []


def test_a_loop_ends_at_a_time(mq: ferromq.Embedded, eventually: Eventually) -> None:
    """Or when no message came for so long; `begin` counts before."""
    fill(mq, "orders", 3, eventually)
    mq.clock.advance(hours=1)
    noon = mq.clock.now_ms()
    fill(mq, "orders", 4, eventually)
    with mq.consumer("billing", "orders", begin="last") as late:
        assert list(late.messages(until="end")) == []
    for until in (noon, datetime.fromtimestamp(noon / 1000, UTC)):
        with mq.consumer(f"until-{type(until).__name__}", "orders", prefetch=1) as consumer:
            for message in consumer.messages(until=until):
                message.ack()
            progress = consumer.progress()
            assert sum(queue.committed_offset or 0 for queue in progress.queues) >= 3
    with mq.consumer("idle", "orders") as consumer:
        seen = 0
        for message in consumer.messages(idle=2):
            message.ack()
            seen += 1
        assert seen == 7


def test_loops_of_asyncio_end_as_well(mq: ferromq.Embedded, eventually: Eventually) -> None:
    """At the end, with messages that keep coming, and after a time without one."""
    fill(mq, "orders", 5, eventually)

    async def main() -> None:
        async with aio.Consumer(mq.endpoint, "billing", "orders") as consumer, aio.Producer(mq.endpoint) as producer:
            seen = 0
            async for message in consumer.messages(until="end"):
                message.ack()
                seen += 1
            assert seen == 5
            assert (await consumer.progress()).lag == 0
            await producer.send("orders", b"x")
            async for message in consumer.messages(idle=2):
                message.ack()
                seen += 1
            assert seen == 6
            await consumer.flush()
            await producer.send("orders", b"x")
            async for message in consumer.messages(until="end", idle=30):
                await producer.send("orders", b"more")
                message.ack()
                seen += 1
                assert seen < 10_000, "it does not end"
            with pytest.raises(ValueError, match="until is 'end'"):
                consumer.messages(until="first")  # type: ignore[arg-type]

    asyncio.run(main())


LEASE = 3.0


def listed(mq: ferromq.Embedded, *, is_async: bool) -> list[bytes]:
    """Return the bodies of a list of all messages, which acknowledges none, with a short lease."""
    options: Any = {"begin": "first", "invisible_duration": LEASE}
    if not is_async:
        with mq.consumer("billing", "orders", **options) as consumer:
            return [message.body for message in consumer.messages(until="end", idle=30)]

    async def main() -> list[bytes]:
        async with aio.Consumer(mq.endpoint, "billing", "orders", **options) as consumer:
            return [message.body async for message in consumer.messages(until="end", idle=30)]

    return asyncio.run(main())


@pytest.mark.parametrize("is_async", [False, True])
def test_a_list_has_each_message_once(real: ferromq.Embedded, eventually: Eventually, *, is_async: bool) -> None:
    """It ends when what it has not acknowledged comes again; the message that shows it counts no attempt."""
    fill(real, "orders", 20, eventually)
    with real.admin() as admin:
        admin.create_group("billing", retries=2)
    for _ in range(2):  # a third delivery would be the last
        assert sorted(listed(real, is_async=is_async)) == sorted(b"%d" % number for number in range(20))
    with real.consumer("billing", "orders") as consumer:
        again = consumer.receive_many(20, wait=10)
    assert [message.delivery_attempt for message in again] == [3] * 20


@pytest.mark.parametrize("is_async", [False, True])
def test_a_loop_goes_on_though_one_message_fails(real: ferromq.Embedded, *, is_async: bool) -> None:
    """It gets all others, however long that takes, and ends without the one."""
    count = 40
    with real.producer() as producer:
        producer.send_all("orders", [b"%d" % number for number in range(count)])
    dispatched(real)
    seen: list[bytes] = []

    def handle(message: ferromq.MessageView) -> None:
        seen.append(message.body)
        if message.body != b"0":
            message.ack()

    async def main() -> None:
        async with aio.Consumer(real.endpoint, "billing", "orders", invisible_duration=LEASE) as consumer:
            async for message in consumer.messages(until="end", idle=30):
                handle(message)
                await asyncio.sleep(LEASE / 15)

    if is_async:
        asyncio.run(main())
    else:
        with real.consumer("billing", "orders", invisible_duration=LEASE) as consumer:
            for message in consumer.messages(until="end", idle=30):
                handle(message)
                time.sleep(LEASE / 15)
    assert set(seen) == {b"%d" % number for number in range(count)}
    assert seen.count(b"0") > 1
    with real.consumer("billing", "orders") as consumer:
        (left,) = consumer.receive(wait=10)
        assert left.body == b"0"
        # A lease that ends before its message is used, as on a slow machine, counts as an attempt, too.
        assert left.delivery_attempt > seen.count(b"0")


def test_a_closed_consumer_ends_its_loop(mq: ferromq.Embedded) -> None:
    """Before the limit."""
    consumer = mq.consumer("billing", "orders")
    loop = consumer.messages(idle=1000)
    with mq.producer() as producer:
        producer.send("orders", b"x")
    next(loop)
    consumer.close()
    begun = time.monotonic()
    assert list(loop) == []
    assert time.monotonic() - begun < 100
    for wrong in ("last", True, datetime(2026, 1, 1)):  # noqa: DTZ001
        with mq.consumer("billing", "orders") as other, pytest.raises(ValueError, match=r"until is|aware datetime"):
            other.messages(until=wrong)  # type: ignore[arg-type]
        with mq.reader("orders") as reader, pytest.raises(ValueError, match=r"until is|aware datetime"):
            reader.messages(until=wrong)  # type: ignore[arg-type]


def test_progress_has_offsets_and_lag_of_each_queue(mq: ferromq.Embedded, eventually: Eventually) -> None:
    """A message that is received and not acknowledged counts as lag."""
    fill(mq, "orders", 4, eventually)
    fill(mq, "prices", 1, eventually)
    with mq.consumer("billing", ["orders", "prices"]) as consumer:
        before = consumer.progress()
        assert (before.group, before.lag) == ("billing", 5)
        assert [queue[:3] for queue in before.queues] == [
            (topic, "broker-a", queue_id) for topic in ("orders", "prices") for queue_id in range(2)
        ]
        assert {queue.committed_offset for queue in before.queues} == {None}
        received = 0
        while received < 5:
            messages = consumer.receive(wait=10)
            received += len(messages)
            consumer.ack([message for message in messages if message.topic == "orders"])
        after = consumer.progress()
        assert [queue.lag for queue in after.queues if queue.topic == "orders"] == [0, 0]
        assert after.lag == 1
        stored, queue_id = max((mq.store.max_offset("orders", queue_id), queue_id) for queue_id in range(2))
        expected = ferromq.QueueProgress("orders", "broker-a", queue_id, stored, 0, stored)
        assert after.queues[queue_id] == expected
        shown = after._repr_html_()
        assert "Progress of billing: lag 1" in shown
        assert "<td>prices</td>" in shown
        assert repr(after).startswith("Progress(group='billing', queues=(QueueProgress(topic='orders'")


def test_the_lag_of_a_queue_counts_what_is_kept() -> None:
    """Deleted messages are none that wait."""
    assert ferromq.QueueProgress("t", "b", 0, None, 5, 9).lag == 4
    assert ferromq.QueueProgress("t", "b", 0, 2, 5, 9).lag == 4
    assert ferromq.QueueProgress("t", "b", 0, 7, 5, 9).lag == 2
    assert ferromq.QueueProgress("t", "b", 0, 9, 5, 9).lag == 0
