"""Loops over the messages of a consumer, in several threads or tasks at once; both interfaces promise it."""

import threading
from collections import Counter
from collections.abc import Iterator

import pytest
from consumer_shells import PATIENCE, Shell
from contract import EACH_WAY

import ferromq
from ferromq import MessageView

pytestmark = EACH_WAY


@pytest.fixture
def mq() -> Iterator[ferromq.Embedded]:
    """Yield an embedded broker whose time is moved by hand."""
    with ferromq.embedded(clock=ferromq.Clock.manual()) as embedded:
        yield embedded


def send(mq: ferromq.Embedded, count: int) -> set[bytes]:
    """Send messages and return their bodies."""
    bodies = {b"%d" % number for number in range(count)}
    with mq.producer() as producer:
        producer.send_all("orders", sorted(bodies))
    return bodies


def test_several_loops_share_the_messages_and_get_each_once(mq: ferromq.Embedded, shell: Shell) -> None:
    """Four loops over one consumer: nothing is handed out twice, and all acknowledgements are accepted."""
    bodies = send(mq, 500)
    seen: list[bytes] = []
    everything = threading.Event()
    with shell(mq, "billing", "orders") as consumer:

        def body(message: MessageView) -> bool:
            seen.append(message.body)
            consumer.ack_later(message)
            if len(seen) >= len(bodies):
                everything.set()
            return False

        loops = [threading.Thread(target=consumer.iterate, args=(body,), daemon=True) for _ in range(4)]
        for loop in loops:
            loop.start()
        assert everything.wait(PATIENCE)
        consumer.flush()
        consumer.close()
        for loop in loops:
            loop.join(PATIENCE)
            assert not loop.is_alive()
    assert Counter(seen) == Counter(bodies)
    assert mq.broker._server.stats()["stale_receipts"] == 0


@pytest.mark.parametrize("invisible_duration", [None, 600])
def test_a_receive_after_a_loop_returns_what_the_loop_received_ahead(
    mq: ferromq.Embedded, shell: Shell, invisible_duration: float | None
) -> None:
    """None has to expire first; the leases get the duration of the receive."""
    bodies = send(mq, 40)
    with shell(mq, "billing", "orders", invisible_duration=60) as consumer:

        def body(message: MessageView) -> bool:
            consumer.ack(message)
            bodies.remove(message.body)
            return len(bodies) == 10

        consumer.iterate(body)
        messages: list[MessageView] = []
        while len(messages) < 10:
            some = consumer.receive(4, wait=PATIENCE, invisible_duration=invisible_duration)
            assert 0 < len(some) <= 4
            messages += some
        assert {message.body for message in messages} == bodies
        assert {message.delivery_attempt for message in messages} == {1}
        assert consumer.receive(wait=0) == []
        if invisible_duration:
            mq.clock.advance(seconds=500)
        consumer.ack(messages)
    assert mq.broker._server.stats()["acked"] == 40


def test_in_order_a_loop_gives_back_what_follows_a_message_that_it_did_not_acknowledge(
    mq: ferromq.Embedded, shell: Shell
) -> None:
    """They are redelivered behind that message, without an attempt."""
    with mq.admin() as admin:
        admin.create_topic("orders", 1, message_type="FIFO")
        admin.create_group("billing", fifo=True)
    with mq.producer() as producer:
        producer.send_all("orders", [ferromq.Message(b"%d" % n, message_group="a") for n in range(12)])
    seen: list[tuple[bytes, int]] = []
    with shell(mq, "billing", "orders", invisible_duration=60) as consumer:

        def body(message: MessageView) -> bool:
            seen.append((message.body, message.delivery_attempt))
            if seen[-1] == (b"5", 1):
                consumer.change(message, 1)
                mq.clock.advance(seconds=2)
            else:
                consumer.ack_later(message)
            return message.body == b"11"

        consumer.iterate(body)
    assert seen == [(b"%d" % n, 1) for n in range(6)] + [(b"5", 2)] + [(b"%d" % n, 1) for n in range(6, 12)]


@pytest.mark.parametrize("end", ["ack", "ack_later", "forward"])
def test_in_order_a_loop_goes_on_after_each_end_of_a_message(mq: ferromq.Embedded, shell: Shell, end: str) -> None:
    """Acknowledged either way, or put into the dead letters."""
    with mq.admin() as admin:
        admin.create_topic("orders", 1, message_type="FIFO")
        admin.create_group("billing", fifo=True)
    with mq.producer() as producer:
        producer.send_all("orders", [ferromq.Message(b"%d" % n, message_group="a") for n in range(12)])
    seen: list[bytes] = []
    with shell(mq, "billing", "orders", invisible_duration=60) as consumer:

        def body(message: MessageView) -> bool:
            seen.append(message.body)
            getattr(consumer, end)(message)
            return len(seen) == 12

        consumer.iterate(body)
    assert seen == [b"%d" % n for n in range(12)]
