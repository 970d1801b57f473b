"""A receive with a duration of its own changes the leases of messages that an earlier loop prefetched."""

import threading
import time
from collections.abc import Callable, Iterator

import pytest
from consumer_shells import PATIENCE, SHELLS, AioShell, Shell, SyncShell
from grpc_proxy import GrpcProxy
from machine import in_load

import ferromq
from ferromq import MessageView

pytestmark = pytest.mark.parametrize("shell", SHELLS, ids=lambda shell: shell.kind)
TOTAL = 3000
AHEAD = 40
CHANGE = "ChangeInvisibleDuration"
Eventually = Callable[[Callable[[], bool]], bool]


@pytest.fixture
def mq() -> Iterator[ferromq.Embedded]:
    """Yield an embedded broker whose time is moved by hand, with messages of the topic `orders`."""
    with ferromq.embedded(clock=ferromq.Clock.manual()) as embedded:
        with embedded.producer() as producer:
            producer.send_all("orders", [b"%d" % number for number in range(TOTAL)])
        yield embedded


@pytest.fixture
def proxy(mq: ferromq.Embedded) -> Iterator[GrpcProxy]:
    """Yield a proxy before the broker."""
    with GrpcProxy(mq.endpoint) as proxy:
        yield proxy


def loop(consumer: SyncShell | AioShell) -> set[bytes]:
    """Iterate until so many messages are received ahead, and return what was used."""
    used: set[bytes] = set()

    def body(message: MessageView) -> bool:
        consumer.ack_later(message)
        used.add(message.body)
        return consumer.ahead >= AHEAD

    consumer.iterate(body)
    consumer.flush()
    return used


def bodies(messages: list[MessageView]) -> set[bytes]:
    """Return the bodies of messages, each of which is there once and was not received before."""
    found = {message.body for message in messages}
    assert len(found) == len(messages)
    assert {message.delivery_attempt for message in messages} == {1}
    return found


def rest(mq: ferromq.Embedded, count: int) -> list[MessageView]:
    """Receive as many messages as another member of the group."""
    messages: list[MessageView] = []
    with mq.consumer("billing", "orders", invisible_duration=3600) as other:
        while len(messages) < count:
            some = other.receive(1000, wait=PATIENCE)
            assert some
            messages += some
            other.ack(some)
        assert other.receive(wait=0) == []
    return messages


def test_leases_are_changed_several_at_once(mq: ferromq.Embedded, proxy: GrpcProxy, shell: Shell) -> None:
    """They last as long as the receive asks for."""
    received: list[MessageView] = []
    with shell(proxy, "billing", "orders", invisible_duration=60) as consumer:
        loop(consumer)
        proxy.hang(CHANGE)
        options = {"wait": PATIENCE, "invisible_duration": 600}
        receiving = threading.Thread(target=lambda: received.extend(consumer.receive(AHEAD, **options)))
        receiving.start()
        for _ in range(4):
            assert proxy.hanging.acquire(timeout=PATIENCE)
        proxy.release()
        receiving.join(PATIENCE)
        assert len(received) == AHEAD
        mq.clock.advance(seconds=599)
        consumer.ack(received)


def test_a_change_that_fails_loses_no_message(mq: ferromq.Embedded, proxy: GrpcProxy, shell: Shell) -> None:
    """The others are received; it is redelivered when its lease expires."""
    with shell(proxy, "billing", "orders", invisible_duration=60) as consumer:
        used = loop(consumer)
        proxy.lose(CHANGE)
        received = consumer.receive(AHEAD, wait=PATIENCE, invisible_duration=600)
        used |= bodies(received)
        assert len(received) == AHEAD - 1
        consumer.ack(received)
        consumer.close()
    mq.clock.advance(seconds=601)
    with mq.consumer("billing", "orders", invisible_duration=3600) as other:
        while len(used) < TOTAL:
            some = other.receive(1000, wait=PATIENCE)
            assert some
            assert used.isdisjoint(message.body for message in some)
            used |= {message.body for message in some}


def test_a_broker_that_hangs_costs_three_seconds_and_no_message(
    mq: ferromq.Embedded, proxy: GrpcProxy, shell: Shell, eventually: Eventually
) -> None:
    """The receive ends in its time with an error; the next one returns what the first one did not."""
    with shell(proxy, "billing", "orders", invisible_duration=60) as consumer:
        used = loop(consumer)
        proxy.hang(CHANGE)
        begin = time.monotonic()
        with pytest.raises(ferromq.OutcomeUnknown):
            consumer.receive(AHEAD, wait=0, invisible_duration=600)
        assert time.monotonic() - begin < in_load(3.2)
        assert eventually(lambda: not proxy.hung)
        proxy.release()
        received = consumer.receive(AHEAD, wait=PATIENCE, invisible_duration=600)
        assert len(received) == AHEAD
        used |= bodies(received)
        consumer.ack(received)
        consumer.close()
    assert used.isdisjoint(bodies(rest(mq, TOTAL - len(used))))


def test_messages_of_a_failed_receive_are_given_back_at_close(
    mq: ferromq.Embedded, proxy: GrpcProxy, shell: Shell, eventually: Eventually
) -> None:
    """At once, and without an attempt."""
    with shell(proxy, "billing", "orders", invisible_duration=60) as consumer:
        used = loop(consumer)
        proxy.hang(CHANGE)
        with pytest.raises(ferromq.OutcomeUnknown):
            consumer.receive(AHEAD, wait=0, invisible_duration=600)
        assert eventually(lambda: not proxy.hung)
        proxy.release()
        consumer.close()
    assert used.isdisjoint(bodies(rest(mq, TOTAL - len(used))))
