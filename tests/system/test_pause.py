"""A paused consumer hands out nothing, and holds nothing that it does not use; both interfaces promise it."""

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from consumer_shells import PATIENCE, SHELLS, Shell
from contract import EACH_WAY

import ferromq
from ferromq import Message, MessageView
from ferromq.core.progress import Ending
from ferromq.core.subscriptions import Subscription

BOTH = pytest.mark.parametrize("shell", SHELLS, ids=lambda shell: shell.kind)


@pytest.fixture
def mq() -> Iterator[ferromq.Embedded]:
    """Yield an embedded broker whose time is moved by hand: no lease ends by itself."""
    with ferromq.embedded(clock=ferromq.Clock.manual()) as embedded:
        yield embedded


def send(mq: ferromq.Embedded, *bodies: bytes) -> None:
    """Send messages."""
    with mq.producer() as producer:
        producer.send_all("orders", bodies)


def received(mq: ferromq.Embedded, *bodies: bytes) -> None:
    """Check that another member receives just these messages, for the first time, and acknowledge them."""
    left = set(bodies)
    with mq.consumer("billing", "orders") as member:
        while left:
            for message in member.receive(wait=PATIENCE):
                assert message.delivery_attempt == 1
                left.remove(message.body)
                member.ack(message)


class Seen:
    """The messages that handlers or loops were given, which wait at each until `go_on`."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self._begun, self._go_on = threading.Semaphore(0), threading.Semaphore(0)

    def take(self, given: MessageView | list[MessageView]) -> None:
        """Note what was given, and wait."""
        self.bodies += [message.body for message in (given if isinstance(given, list) else [given])]
        self._begun.release()
        assert self._go_on.acquire(timeout=PATIENCE)

    def begun(self) -> None:
        """Wait for the next one."""
        assert self._begun.acquire(timeout=PATIENCE)

    def go_on(self) -> None:
        """Let one go on."""
        self._go_on.release()


class Worker:
    """A loop, or a call of `run`, in a thread."""

    def __init__(self, consumer: Any, way: str, seen: Seen) -> None:
        def body(message: MessageView) -> bool:
            seen.take(message)
            consumer.ack(message)
            self._acked.release()
            return False

        self._acked, self._is_loop = threading.Semaphore(0), way == "loop"
        work = {
            "loop": lambda: consumer.iterate(body),
            "run": lambda: consumer.run(seen.take),
            "batch": lambda: consumer.run(seen.take, batch=2, linger=2 * PATIENCE),
        }
        self.thread = threading.Thread(target=work[way], daemon=True)
        self.thread.start()

    def has_acked(self, count: int) -> None:
        """Wait until the broker has answered the acknowledgements of a loop: a close would end one under way."""
        for _ in range(count if self._is_loop else 0):
            assert self._acked.acquire(timeout=PATIENCE)

    def ends(self) -> None:
        """Wait for its end."""
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive()


@pytest.mark.parametrize("way", ["loop", "run"])
@EACH_WAY
def test_other_members_get_what_comes_during_a_pause(mq: ferromq.Embedded, shell: Shell, way: str) -> None:
    """Also from a receive that was under way; after it the messages come again. A repeated call has no effect."""
    send(mq, b"1")
    seen = Seen()
    with shell(mq, "billing", "orders", invisible_duration=600) as consumer:
        worker = Worker(consumer, way, seen)
        seen.begun()
        seen.go_on()
        receives(mq)
        for _ in range(2):
            consumer.pause()
            assert consumer.consumer.is_paused
        send(mq, b"2", b"3")
        received(mq, b"2", b"3")
        for _ in range(2):
            consumer.resume()
            assert not consumer.consumer.is_paused
        send(mq, b"4")
        seen.begun()
        seen.go_on()
        worker.has_acked(2)
        consumer.close()
        worker.ends()
    assert seen.bodies == [b"1", b"4"]


@pytest.mark.parametrize("way", ["loop", "run"])
@EACH_WAY
def test_what_was_received_ahead_goes_to_other_members(mq: ferromq.Embedded, shell: Shell, way: str) -> None:
    """Without an attempt; the message in use stays, and its lease is renewed."""
    bodies = [b"%d" % number for number in range(40)]
    send(mq, *bodies)
    seen = Seen()
    with shell(mq, "billing", "orders", invisible_duration=600) as consumer:
        worker = Worker(consumer, way, seen)
        for _ in range(30):  # then some were received ahead
            seen.begun()
            seen.go_on()
        seen.begun()
        consumer.pause()
        received(mq, *(set(bodies) - set(seen.bodies)))
        seen.go_on()
        wait_until(lambda: mq.broker._server.stats()["acked"] == 40)
        worker.has_acked(31)
        consumer.close()
        worker.ends()
    assert len(seen.bodies) == 31


@BOTH
def test_the_message_in_use_is_renewed(mq: ferromq.Embedded, shell: Shell) -> None:
    """As without a pause."""
    send(mq, b"1")
    seen = Seen()
    with shell(mq, "billing", "orders", invisible_duration=3) as consumer:
        worker = Worker(consumer, "run", seen)
        seen.begun()
        consumer.pause()
        (held,) = consumer.consumer._leases.in_use.values()
        for _ in range(2):
            mq.clock.advance(seconds=2)
            before = held.renew_from
            wait_until(lambda before=before: held.renew_from > before)
        seen.go_on()
        consumer.close()
        worker.ends()
    assert mq.broker._server.stats()["acked"] == 1


@EACH_WAY
def test_a_batch_that_lingers_is_given_back(mq: ferromq.Embedded, shell: Shell) -> None:
    """It is not handed over when it is full, or at its time."""
    send(mq, b"1")
    seen = Seen()
    with shell(mq, "billing", "orders", invisible_duration=600) as consumer:
        worker = Worker(consumer, "batch", seen)
        wait_until(lambda: consumer.consumer._leases.in_use)
        consumer.pause()
        received(mq, b"1")
        consumer.resume()
        send(mq, b"2", b"3")
        seen.begun()
        seen.go_on()
        consumer.close()
        worker.ends()
    assert sorted(seen.bodies) == [b"2", b"3"]


@pytest.mark.parametrize("batch", [None, 1])
@EACH_WAY
def test_in_order_nothing_is_handed_out_behind_the_message_in_use(
    mq: ferromq.Embedded, shell: Shell, batch: int | None
) -> None:
    """What waits behind it is given back; one that failed is not tried again in place."""
    with mq.admin() as admin:
        admin.create_topic("orders", 1, message_type="FIFO")
        admin.create_group("billing", fifo=True, retry_delays=[0])
    with mq.producer() as producer:
        producer.send_all("orders", [Message(b"%d" % number, message_group="a") for number in range(6)])
    seen = Seen()

    def handler(given: Any) -> None:
        seen.take(given)
        if seen.bodies[-1] == b"2" and seen.bodies.count(b"2") == 1:
            raise OSError("no disk")

    with shell(mq, "billing", "orders", invisible_duration=600) as consumer:
        running = threading.Thread(
            target=consumer.run, args=(handler, 2), kwargs={"batch": batch} if batch else {}, daemon=True
        )
        running.start()
        seen.begun()
        consumer.pause()
        seen.go_on()
        with mq.consumer("billing", "orders", invisible_duration=600) as member:
            (second, *others) = member.receive(1, wait=PATIENCE)
            assert (second.body, second.delivery_attempt, others) == (b"1", 1, [])
            member.ack(second)
        consumer.resume()
        seen.begun()
        consumer.pause()
        seen.go_on()
        with mq.consumer("billing", "orders", invisible_duration=600) as member:
            (failed,) = member.receive(1, wait=PATIENCE)
            assert (failed.body, failed.delivery_attempt) == (b"2", 1)
            member.give_back(failed)
        consumer.resume()
        for _ in range(4):
            seen.begun()
            seen.go_on()
        consumer.flush()
        consumer.close()
        running.join(PATIENCE)
        assert not running.is_alive()
    assert seen.bodies == [b"0", b"2", b"2", b"3", b"4", b"5"]


@pytest.mark.parametrize("way", ["loop", "run", "batch"])
@EACH_WAY
def test_a_paused_consumer_closes_at_once(mq: ferromq.Embedded, shell: Shell, way: str) -> None:
    """A `run` and a loop that begin in a pause are paused, too; `receive` is not."""
    seen = Seen()
    with shell(mq, "billing", "orders", invisible_duration=600) as consumer:
        consumer.pause()
        worker = Worker(consumer, way, seen)
        if way == "loop":
            wait_until(lambda: consumer.consumer._ahead._ahead.hungry)
        else:
            wait_until(lambda: consumer.consumer._runner and consumer.consumer._runner._ahead._ahead.hungry)
        send(mq, b"1")
        (message,) = consumer.receive(wait=PATIENCE)
        consumer.ack(message)
        began = time.monotonic()
        consumer.close(PATIENCE)
        worker.ends()
        assert time.monotonic() - began < PATIENCE / 2
    assert seen.bodies == []


@BOTH
def test_a_pause_is_no_idle_time(mq: ferromq.Embedded, shell: Shell) -> None:
    """The idle time of a loop begins anew when it ends."""
    send(mq, b"1")
    with shell(mq, "billing", "orders") as consumer:
        ahead = consumer.consumer._ahead
        assert ahead.paused_until(1.0) < 0
        consumer.pause()
        assert ahead.paused_until(1.0) == 1.0
        consumer.resume()
        assert 1.0 < ahead.paused_until(1.0) <= time.monotonic()
    ending = Ending(Subscription("billing", {}), 5.0, None, 30.0)
    ending.waits(100.0)
    ending.rests(110.0)
    assert not ending.is_idle(114.0)
    assert ending.is_idle(115.0)


def wait_until(condition: Any) -> None:
    """Wait for a condition."""
    until = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.005)


def receives(mq: ferromq.Embedded) -> None:
    """Wait until the broker has a receive that waits."""
    wait_until(lambda: mq.broker._server.stats()["parked"])
