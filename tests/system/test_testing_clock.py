"""The virtual clock of `ferromq.testing`: one step does all that became due, and nothing that did not."""

import asyncio
import queue
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import timedelta

import pytest
from remoting_peer import Peer

import ferromq
import ferromq.aio
from ferromq.process.clock import default_for_clients
from ferromq.testing import Broker, VirtualClock
from ferromq.testing.running import Running

GET_CONFIG = 26
PATIENCE = 10.0


@pytest.fixture
def clock() -> VirtualClock:
    """Return a virtual clock."""
    return VirtualClock()


@pytest.fixture
def broker(clock: VirtualClock) -> Iterator[Broker]:
    """Yield a broker on that clock."""
    with closing(Running({}, clock)) as running, Broker(running) as broker:
        yield broker


def bodies(messages: list[ferromq.MessageView]) -> list[bytes]:
    """Return the bodies."""
    return [message.body for message in messages]


def test_a_message_is_in_its_topic_when_the_step_to_its_time_returns(broker: Broker, clock: VirtualClock) -> None:
    """Not a millisecond before; a step right after the send loses none, however busy the broker is."""
    for number in range(20):
        broker.send("reminders", b"%d" % number, delay=timedelta(days=3))
        clock.advance(days=3, milliseconds=-1)
        assert len(broker.messages("reminders")) == number
        clock.advance(milliseconds=1)
        assert len(broker.messages("reminders")) == number + 1


def test_a_step_right_after_a_send_leaves_nothing_behind(broker: Broker, clock: VirtualClock) -> None:
    """A message that comes late into the broker's wheel would wait for the next step."""
    for number in range(30):
        broker.send("reminders", b"later", delay=3600)
        broker.send("reminders", b"soon", delay=60)
        clock.advance(minutes=1)
        assert len(broker.messages("reminders")) == 2 * number + 1
        clock.advance(hours=1)
        assert len(broker.messages("reminders")) == 2 * number + 2


def test_a_lease_ends_with_the_step(broker: Broker, clock: VirtualClock) -> None:
    """A receive that waits gets the message at once."""
    broker.send("orders", b"one")
    first, second = broker.consumer("billing", "orders"), broker.consumer("billing", "orders")
    assert [message.delivery_attempt for message in first.receive(1)] == [1]
    assert second.receive(1, wait=0) == []
    received = queue.SimpleQueue[Sequence[ferromq.MessageView]]()
    receiving = threading.Thread(target=lambda: received.put(second.receive(1, wait=PATIENCE)))
    receiving.start()
    clock.advance(seconds=31)
    assert [message.delivery_attempt for message in received.get(timeout=PATIENCE)] == [2]
    receiving.join()


def test_retries_come_one_a_step_until_the_message_is_dead(broker: Broker, clock: VirtualClock) -> None:
    """After the delays of the group, which together are days."""
    broker.group("billing", retries=2, retry_delays=[60, timedelta(days=2)])
    attempts = queue.SimpleQueue[int]()

    def fail(message: ferromq.MessageView) -> None:
        attempts.put(message.delivery_attempt)
        raise ValueError("no")

    broker.send("orders", b"one")
    consumer = broker.consumer("billing", "orders")
    worker = threading.Thread(target=consumer.run, args=(fail,))
    worker.start()
    for attempt, step in ((1, timedelta(minutes=1)), (2, timedelta(days=2)), (3, timedelta())):
        assert attempts.get(timeout=PATIENCE) == attempt
        clock.advance(seconds=step.total_seconds())
    broker.assert_dead_letters("billing", [b"one"], timeout=PATIENCE)
    broker.wait_until_consumed("billing", "orders")
    consumer.stop()
    worker.join()


@pytest.mark.parametrize("days", [1, 30])
def test_a_step_of_days_asks_producers_that_are_still_there(broker: Broker, clock: VirtualClock, days: int) -> None:
    """Neither their registration nor their open transaction ends by it."""
    producer = broker.producer("payments", checker=lambda _message: ferromq.Resolution.COMMIT)
    transaction = producer.transaction()
    transaction.send("payments", b"paid")
    del transaction
    clock.advance(days=days)
    assert bodies(broker.wait_for_messages("payments")) == [b"paid"]


def test_a_step_is_a_timedelta_seconds_or_times_by_name(clock: VirtualClock) -> None:
    """Together they are one step."""
    begin = clock.now_ms()
    clock.advance(timedelta(days=1))
    assert clock.now_ms() - begin == 86_400_000
    clock.advance(1.5, minutes=1)
    assert clock.now_ms() - begin == 86_461_500
    with pytest.raises(ValueError, match="cannot be negative"):
        clock.advance(-1)
    assert f'<VirtualClock now="{clock.now().isoformat(timespec="milliseconds")}"' in repr(clock)


def test_a_step_of_days_closes_no_connection(broker: Broker, clock: VirtualClock) -> None:
    """A client's heartbeats come in real time."""
    with Peer(broker.remoting) as peer:
        peer.heartbeat(produces=("payers",))
        clock.advance(days=10)
        assert peer.call(GET_CONFIG).code == 0
        assert not peer.closed.is_set()


def test_a_step_is_made_between_what_comes_before_and_after_it(clock: VirtualClock) -> None:
    """All that a broker has to do before the time moves, and after."""
    seen: list[tuple[str, int]] = []

    class Part:
        def settle_before(self) -> None:
            seen.append(("before", clock.now_ms()))

        def settle_after(self) -> None:
            seen.append(("after", clock.now_ms()))

    start = clock.now_ms()
    clock.on_advance(lambda: seen.append(("work", clock.now_ms())))
    with clock.settles(Part()):
        clock.advance(seconds=1)
    assert seen == [("before", start), ("work", start + 1000), ("after", start + 1000)]
    clock.advance(seconds=1)
    assert len(seen) == 4


def test_messages_outlive_any_step(broker: Broker, clock: VirtualClock) -> None:
    """The retention of 72 hours would delete whole files."""
    for _ in range(3):
        broker.send("orders", b"one")
        clock.advance(days=100)
    assert broker.embedded.store.clean(now=True)["removed_files"] == 0
    assert len(broker.messages("orders")) == 3


def test_clients_that_are_given_no_clock_take_the_tests_one(broker: Broker, clock: VirtualClock) -> None:
    """So code under test needs no argument for it; after the test they take the system's again."""

    async def send() -> None:
        async with ferromq.aio.Producer(broker.endpoint) as producer:
            await producer.send("reminders", b"aio", delay=60)

    clock.advance(days=10)
    with default_for_clients(clock):
        with ferromq.Producer(broker.endpoint) as producer:
            producer.send("reminders", b"sync", delay=60)
        asyncio.run(send())
    assert [message.delivery_timestamp for message in broker.sent("reminders")] == [clock.now_ms() + 60_000] * 2
    with ferromq.Producer(broker.endpoint) as producer:
        producer.send("reminders", b"by the system's clock, which is ten days behind", delay=60)
    assert len(broker.messages("reminders")) == 1


def test_a_clock_without_a_broker_moves(clock: VirtualClock) -> None:
    """And only forward."""
    before = clock.now()
    clock.advance(hours=1)
    assert clock.now() - before == timedelta(hours=1)
    with pytest.raises(ValueError, match="cannot go back"):
        clock.advance(seconds=-1)


def test_a_closed_broker_holds_up_no_step(clock: VirtualClock) -> None:
    """Nor one whose start failed."""
    with pytest.raises(ferromq.ConfigError):
        Running({"flsh": "group"}, clock)
    assert clock._settling == []
    with closing(Running({}, clock)) as running:
        running.mq.producer().send("reminders", b"x", delay=60)
    clock.advance(hours=1)
