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
from ferromq.core.ahead import MAX_BATCH

Eventually = Callable[[Callable[[], bool]], bool]
COUNT = 20_000
SOME = 5_000
LEASE = 600


class Followed:
    """Notes that a receive followed another, and acts then once, on the thread that receives: before it awaits it."""

    def __init__(self) -> None:
        self.is_set = threading.Event()
        self.act: Callable[[], None] | None = None

    def note(self) -> None:
        """Act."""
        self.is_set.set()
        act, self.act = self.act, None
        if act is not None:
            act()


@pytest.fixture
def followed(monkeypatch: pytest.MonkeyPatch) -> Followed:
    """Return what notes it."""
    followed, receive_ahead = Followed(), DirectPlace.receive_ahead

    def noted(self: DirectPlace, *arguments: Any) -> list[MessageView] | None:
        messages = receive_ahead(self, *arguments)
        if self.following is not None:
            followed.note()
        return messages

    monkeypatch.setattr(DirectPlace, "receive_ahead", noted)
    return followed


def fill(mq: ferromq.Embedded) -> None:
    """Store the messages."""
    with mq.admin() as admin:
        admin.create_topic("orders", 4)
    with mq.producer() as producer:
        producer.send_all("orders", [b"%d" % number for number in range(COUNT)])


@pytest.fixture
def mq() -> Iterator[ferromq.Embedded]:
    """Yield a broker with messages; no lease ends by itself."""
    with ferromq.embedded(clock=ferromq.Clock.manual()) as mq:
        fill(mq)
        yield mq


@pytest.fixture
def behind(proxy: FaultProxy) -> Iterator[ferromq.Embedded]:
    """Yield such a broker, which clients reach by the proxy alone."""
    options = {"grpc_listen": proxy.target, "grpc_advertise": proxy.address}
    with ferromq.embedded(clock=ferromq.Clock.manual(), **options) as mq:
        fill(mq)
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
    mq: ferromq.Embedded, followed: Followed, eventually: Eventually
) -> None:
    """Others get it at once, as a first attempt."""
    seen: list[str] = []
    consumer = make(mq)
    closing = threading.Thread(target=consumer.close, args=(30,))

    def close() -> None:
        closing.start()
        assert eventually(lambda: consumer._ahead._cancel._is_set)

    for message in consumer:
        seen.append(message.message_id)
        message.ack()
        if len(seen) == SOME:
            followed.act = close
    closing.join()
    left = rest(mq)
    assert Counter([*seen, *(message.message_id for message in left)]).most_common(1)[0][1] == 1
    assert len(seen) + len(left) == COUNT
    assert {message.delivery_attempt for message in left} == {1}


def test_a_pause_gives_back_what_was_on_its_way(mq: ferromq.Embedded, followed: Followed) -> None:
    """And the loop goes on after it, with each message once."""
    seen: list[str] = []
    paused = threading.Event()
    with make(mq) as consumer:

        def pause() -> None:
            consumer.pause()
            paused.set()
            threading.Timer(0.1, consumer.resume).start()

        for message in consumer:
            seen.append(message.message_id)
            message.ack()
            if len(seen) == COUNT:
                break
            if len(seen) == SOME:
                followed.act = pause
        assert consumer.flush(30)
    assert paused.is_set()
    assert len({*seen}) == COUNT


def test_a_loop_goes_on_where_one_that_follows_is_lost(
    behind: ferromq.Embedded, proxy: FaultProxy, followed: Followed
) -> None:
    """The messages of the answer that was lost come again after their leases."""
    seen: set[str] = set()
    followed.act = proxy.lose
    with make(behind) as consumer:
        for message in consumer:
            seen.add(message.message_id)
            message.ack()
            if len(seen) == COUNT // 2:
                behind.clock.advance(seconds=LEASE + 1)
            if len(seen) == COUNT:
                break
    assert followed.is_set.is_set()


def test_a_close_keeps_its_time_where_one_that_follows_hangs(
    behind: ferromq.Embedded, proxy: FaultProxy, followed: Followed
) -> None:
    """Its messages come again after their leases."""
    consumer = make(behind)
    took: list[float] = []

    def close() -> None:
        begun = time.monotonic()
        consumer.close(1)
        took.append(time.monotonic() - begun)

    closing = threading.Thread(target=close)

    def hang() -> None:
        proxy.hang()
        closing.start()

    followed.act = hang
    for message in consumer:
        message.ack()
    closing.join()
    assert took[0] < 1 + in_load(1)
    proxy.resume()


def test_a_consumer_whose_loop_has_ended_leases_no_more_than_one_answer(
    mq: ferromq.Embedded, followed: Followed
) -> None:
    """Others get the rest of what comes later."""
    with make(mq) as consumer:
        for number, message in enumerate(consumer, 1):
            message.ack()
            if number == COUNT:
                break
        assert consumer.flush(30)
        assert followed.is_set.is_set()
        fill(mq)
        assert len(rest(mq)) >= COUNT - MAX_BATCH


def test_receives_that_follow_each_other_look_at_the_route(
    mq: ferromq.Embedded, followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan takes over where one call is no longer all it takes: with another broker, or an old route."""
    answers: list[bool] = []
    receive_ahead = DirectPlace.receive_ahead

    def noted(self: DirectPlace, *arguments: Any) -> list[MessageView] | None:
        messages = receive_ahead(self, *arguments)
        answers.append(messages is not None)
        return messages

    def forget() -> None:
        monkeypatch.setattr(DirectPlace, "find", lambda self: None)
        monkeypatch.setattr(DirectPlace, "receive_ahead", noted)

    followed.act = forget
    with make(mq) as consumer:
        for number, message in enumerate(consumer, 1):
            message.ack()
            if number == COUNT:
                break
    assert answers[0]
    assert not any(answers[1:])
