"""Receives that follow each other: while one is decoded the next is under way, and what it leases is not lost."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fault_proxy import FaultProxy
from machine import in_load

import ferromq
from ferromq import MessageView
from ferromq.client.direct_receives import DirectPlace

Eventually = Callable[[Callable[[], bool]], bool]
COUNT = 20_000
SOME = 5_000
LEASE = 600


@pytest.fixture
def followed(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Return an event that is set once a receive followed another."""
    event, receive_ahead = threading.Event(), DirectPlace.receive_ahead

    def noted(self: DirectPlace, *arguments: Any) -> list[MessageView] | None:
        messages = receive_ahead(self, *arguments)
        if self.following is not None:
            event.set()
        return messages

    monkeypatch.setattr(DirectPlace, "receive_ahead", noted)
    return event


@pytest.fixture
def mq(proxy: FaultProxy) -> Iterator[ferromq.Embedded]:
    """Yield a broker with messages, which clients reach by the proxy alone; no lease ends by itself."""
    options = {"grpc_listen": proxy.target, "grpc_advertise": proxy.address}
    with ferromq.embedded(clock=ferromq.Clock.manual(), **options) as mq:
        with mq.admin() as admin:
            admin.create_topic("orders", 4)
        with mq.producer() as producer:
            producer.send_all("orders", [b"%d" % number for number in range(COUNT)])
        yield mq


def make(mq: ferromq.Embedded) -> ferromq.Consumer:
    """Make a consumer of the network's."""
    return ferromq.Consumer(mq.endpoint, "billing", "orders", invisible_duration=LEASE)


def rest(mq: ferromq.Embedded) -> list[MessageView]:
    """Receive all that is not leased."""
    with make(mq) as consumer:
        messages: list[MessageView] = []
        while some := consumer.receive(1000, wait=0.5):
            messages += some
            consumer.ack(some)
        return messages


def test_a_consumer_that_is_closed_gives_back_what_was_on_its_way(
    mq: ferromq.Embedded, followed: threading.Event
) -> None:
    """Others get it at once, as a first attempt."""
    seen: list[str] = []
    with make(mq) as consumer:
        for message in consumer:
            seen.append(message.message_id)
            message.ack()
            if len(seen) >= SOME and followed.is_set():
                break
        consumer.flush(30)
    left = rest(mq)
    assert Counter([*seen, *(message.message_id for message in left)]).most_common(1)[0][1] == 1
    assert len(seen) + len(left) == COUNT
    assert {message.delivery_attempt for message in left} <= {1}


def test_a_pause_gives_back_what_was_on_its_way(mq: ferromq.Embedded, followed: threading.Event) -> None:
    """And the loop goes on after it, with each message once."""
    seen: list[str] = []
    with make(mq) as consumer:
        for message in consumer:
            seen.append(message.message_id)
            message.ack()
            if len(seen) == COUNT:
                break
            if len(seen) == SOME:
                assert followed.is_set()
                consumer.pause()
                consumer.resume()
        assert consumer.flush(30)
    assert len({*seen}) == COUNT


def test_a_loop_goes_on_where_one_that_follows_is_lost(
    mq: ferromq.Embedded, proxy: FaultProxy, followed: threading.Event
) -> None:
    """The messages of the answer that was lost come again after their leases."""
    seen: set[str] = set()
    with make(mq) as consumer:
        for message in consumer:
            seen.add(message.message_id)
            message.ack()
            if len(seen) == SOME:
                assert followed.is_set()
                proxy.lose()
            if len(seen) == COUNT // 2:
                mq.clock.advance(seconds=LEASE + 1)
            if len(seen) == COUNT:
                break


def test_a_close_keeps_its_time_where_one_that_follows_hangs(
    mq: ferromq.Embedded, proxy: FaultProxy, followed: threading.Event
) -> None:
    """Its messages come again after their leases."""
    consumer, seen = make(mq), 0
    for message in consumer:
        seen += 1
        message.ack()
        if seen == SOME:
            break
    assert followed.is_set()
    proxy.hang()
    begun = time.monotonic()
    consumer.close(1)
    assert time.monotonic() - begun < 1 + in_load(1)
    proxy.resume()
