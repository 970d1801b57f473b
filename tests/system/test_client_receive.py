"""Consumers: a message comes until it is acknowledged, waits end when one comes, iteration takes what it uses."""

import threading
import time
from collections.abc import Generator, Iterator
from datetime import timedelta

import pytest
from consumer_shells import Shell
from contract import EACH_WAY
from dispatching import dispatched
from machine import in_load

import ferromq

SOON = timedelta(seconds=30)
AT_ONCE = timedelta()


@pytest.fixture
def mq() -> Iterator[ferromq.Embedded]:
    """Yield an embedded broker whose time is moved by hand."""
    with ferromq.embedded(clock=ferromq.Clock.manual()) as embedded:
        yield embedded


def send(mq: ferromq.Embedded, *bodies: bytes, topic: str = "orders") -> None:
    """Send messages."""
    with mq.producer() as producer:
        for body in bodies:
            producer.send(topic, body)


@EACH_WAY
def test_an_unacknowledged_message_comes_again_and_an_acknowledged_one_does_not(
    mq: ferromq.Embedded, shell: Shell
) -> None:
    """After its lease the attempt and the handle are new, and the old handle is stale."""
    send(mq, b"kept", b"acknowledged")
    with shell(mq, "billing", "orders", invisible_duration=timedelta(seconds=30)) as consumer:
        first = {message.body: message for message in consumer.receive(10, wait=SOON)}
        while len(first) < 2:
            first |= {message.body: message for message in consumer.receive(10, wait=SOON)}
        consumer.ack(first[b"acknowledged"])
        assert consumer.receive(10, wait=AT_ONCE) == []
        mq.clock.advance(seconds=31)
        (again,) = consumer.receive(10, wait=SOON)
        assert (again.body, again.delivery_attempt) == (b"kept", 2)
        assert again.message_id == first[b"kept"].message_id
        assert again.receipt_handle != first[b"kept"].receipt_handle
        with pytest.raises(ferromq.LeaseExpired):
            consumer.ack(first[b"kept"])
        consumer.ack([again])
        mq.clock.advance(hours=1)
        assert consumer.receive(10, wait=AT_ONCE) == []


def test_groups_receive_for_themselves(mq: ferromq.Embedded) -> None:
    """A group gets the messages that another one acknowledged, including those sent before its start."""
    send(mq, b"x")
    for group in ("one", "two"):
        with mq.consumer(group, "orders") as consumer:
            (message,) = consumer.receive(wait=SOON)
            consumer.ack(message)


@EACH_WAY
def test_a_waiting_receive_wakes_when_a_message_comes(mq: ferromq.Embedded, shell: Shell) -> None:
    """Long before its wait is over."""
    send(mq, b"first")
    with shell(mq, "billing", "orders") as consumer:
        consumer.ack(consumer.receive(wait=SOON))
        received: list[ferromq.MessageView] = []
        waiting = threading.Thread(target=lambda: received.extend(consumer.receive(wait=timedelta(seconds=20))))
        waiting.start()
        waiting.join(0.2)
        assert waiting.is_alive()
        send(mq, b"wakes")
        waiting.join(5)
        assert [message.body for message in received] == [b"wakes"]


def test_a_changed_lease_ends_when_it_was_told_to(mq: ferromq.Embedded) -> None:
    """A longer one keeps it, zero gives it back at once, and the new handle acknowledges."""
    send(mq, b"x")
    with mq.consumer("billing", "orders", invisible_duration=timedelta(seconds=10)) as consumer:
        (message,) = consumer.receive(wait=SOON)
        handle = message.receipt_handle
        message.change_invisible_duration(timedelta(seconds=60))
        assert message.receipt_handle != handle
        mq.clock.advance(seconds=50)
        assert consumer.receive(wait=AT_ONCE) == []
        consumer.change_invisible_duration(message, 0)
        (again,) = consumer.receive(wait=SOON)
        assert again.message_id == message.message_id
        with pytest.raises(ferromq.LeaseExpired):
            message.change_invisible_duration(timedelta(seconds=5))
        consumer.ack(again)


def test_only_wanted_tags_come(mq: ferromq.Embedded) -> None:
    """Tags joined by bars."""
    with mq.producer() as producer:
        for tag in ("new", "old", "paid", None):
            producer.send("orders", (tag or "none").encode(), tag=tag)
    with mq.consumer("billing", "orders", filter="new || paid") as consumer:
        bodies = set()
        while len(bodies) < 2:
            messages = consumer.receive(wait=SOON)
            assert messages
            consumer.ack(messages)
            bodies |= {message.body for message in messages}
        assert bodies == {b"new", b"paid"}
        assert consumer.receive(wait=AT_ONCE) == []


def test_iteration_gives_every_message_once(mq: ferromq.Embedded) -> None:
    """Acknowledged in the background, none comes again, neither to this consumer nor to the next."""
    with mq.producer() as producer:
        sent = producer.send_all("orders", [b"%d" % number for number in range(3000)])
    seen: list[str] = []
    with mq.consumer("billing", "orders") as consumer:
        for message in consumer:
            seen.append(message.message_id)
            message.ack()
            if len(seen) == len(sent):
                break
        consumer.flush()
        mq.clock.advance(hours=1)
        assert consumer.receive(wait=AT_ONCE) == []
    assert sorted(seen) == sorted(receipt.message_id for receipt in sent)


def test_what_was_received_ahead_is_given_back_at_close(mq: ferromq.Embedded) -> None:
    """Another consumer gets the rest at once, without waiting for leases to end."""
    with mq.producer() as producer:
        sent = producer.send_all("orders", [b"%d" % number for number in range(500)])
    seen: set[str] = set()
    with mq.consumer("billing", "orders") as consumer:
        for message in consumer:
            message.ack()
            seen.add(message.message_id)
            if len(seen) == 100:
                break
    with mq.consumer("billing", "orders") as consumer:
        while len(seen) < len(sent):
            messages = consumer.receive(500, wait=SOON)
            assert messages
            consumer.ack(messages)
            assert not seen & {message.message_id for message in messages}
            seen |= {message.message_id for message in messages}
        assert consumer.receive(wait=AT_ONCE) == []


def test_iteration_can_be_left_and_taken_up_again(mq: ferromq.Embedded) -> None:
    """Nothing is lost between two loops."""
    send(mq, *[b"%d" % number for number in range(20)])
    with mq.consumer("billing", "orders") as consumer:
        bodies = set()
        for _ in range(4):
            for message, _ in zip(consumer, range(5), strict=False):
                bodies.add(message.body)
                message.ack()
                if len(bodies) % 5 == 0:
                    break
    assert len(bodies) == 20


def test_iteration_ends_when_the_consumer_is_closed(mq: ferromq.Embedded) -> None:
    """Also while it waits for a message."""
    send(mq, b"one")
    consumer = mq.consumer("billing", "orders")
    got_one, ended = threading.Event(), threading.Event()

    def iterate() -> None:
        for message in consumer:
            message.ack()
            got_one.set()
        ended.set()

    threading.Thread(target=iterate, daemon=True).start()
    assert got_one.wait(10)
    begin = time.monotonic()
    consumer.close()
    assert ended.wait(5)
    assert time.monotonic() - begin < in_load(5)


def test_a_failed_background_acknowledgement_is_raised_once(mq: ferromq.Embedded) -> None:
    """By `flush`, with the number, and by nothing else."""
    send(mq, b"x")
    with mq.consumer("billing", "orders", invisible_duration=timedelta(seconds=10)) as consumer:
        (message,) = consumer.receive(wait=SOON)
        mq.clock.advance(seconds=11)
        consumer.ack(consumer.receive(wait=SOON))
        message.ack()
        with pytest.raises(ferromq.LeaseExpired) as caught:
            consumer.flush()
        assert "1 acknowledgements failed" in caught.value.__notes__[0]
        consumer.flush()


def test_background_acknowledgements_are_sent_before_the_next_receive(mq: ferromq.Embedded) -> None:
    """And soon, without any further call."""
    send(mq, b"x")
    with mq.consumer("billing", "orders") as consumer:
        (message,) = consumer.receive(wait=SOON)
        message.ack()
        consumer.receive(wait=AT_ONCE)
        assert mq.broker._server.stats()["acked"] == 1


def test_a_failure_reaches_every_thread_that_iterates(mq: ferromq.Embedded, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each waiting thread gets it; a later call tries again."""
    with mq.consumer("two", "orders") as consumer:
        waiting = threading.Semaphore(0)
        fail = threading.Event()

        def run(plan: Generator[object, object, object], _cancel: object) -> object:
            plan.close()
            fail.wait(10)
            raise ferromq.Forbidden("no", 40300, "why")

        monkeypatch.setattr(consumer._client, "run", run)
        failures: list[ferromq.FerromqError] = []

        def iterate() -> None:
            messages = iter(consumer)
            waiting.release()
            with pytest.raises(ferromq.Forbidden, match="no") as caught:
                next(messages)
            failures.append(caught.value)

        threads = [threading.Thread(target=iterate, daemon=True) for _ in range(3)]
        for thread in threads:
            thread.start()
            waiting.acquire()
        threads[0].join(0.3)
        fail.set()
        for thread in threads:
            thread.join(5)
        assert [failure.code for failure in failures if isinstance(failure, ferromq.Forbidden)] == [40300] * 3
        iterate()
        monkeypatch.undo()


def test_a_receive_sends_all_acknowledgements_that_wait(mq: ferromq.Embedded, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also more than fit into a request."""
    monkeypatch.setattr("ferromq.client.leases.MAX_IN_REQUEST", 3)
    monkeypatch.setattr("ferromq.client.leases.FLUSH_AFTER", 3600)
    send(mq, *[b"%d" % number for number in range(20)])
    dispatched(mq)
    with mq.consumer("g", "orders") as consumer:
        for message in consumer.receive(20, wait=SOON):
            message.ack()
        consumer.receive(1, wait=timedelta())
        assert mq.broker._server.stats()["acked"] == 20


def test_a_silent_broker_does_not_delay_the_error(mq: ferromq.Embedded, monkeypatch: pytest.MonkeyPatch) -> None:
    """`flush` names the number of waiting ones; `close` keeps its timeout."""
    send(mq, *[b"%d" % number for number in range(20)])
    consumer = ferromq.Consumer(mq.endpoint, "g", "orders", timeout=60)
    messages = consumer.receive(5, wait=SOON)
    closed = threading.Event()

    def silence(_endpoint: str, _method: str, _request: bytes, timeout: float, _metadata: object = ()) -> bytes:
        closed.wait(min(timeout, 10))
        raise ferromq.RequestTimeout("silence")

    monkeypatch.setattr(consumer._client.channels, "call", silence)
    begin = time.monotonic()
    consumer._leases.give_back(messages, begin + 0.2)
    assert time.monotonic() - begin < in_load(2)
    for message in messages:
        message.ack()
    assert not consumer.flush(0.2)
    consumer.close(0.5)
    assert time.monotonic() - begin < in_load(5)
    closed.set()


@pytest.mark.parametrize("count", [0, -1])
def test_asking_for_nothing_is_refused(mq: ferromq.Embedded, count: int) -> None:
    """At least one message must be wanted."""
    with mq.consumer("billing", "orders") as consumer, pytest.raises(ValueError, match="must be at least 1"):
        consumer.receive(count)


def test_names_are_checked_when_the_consumer_is_made(mq: ferromq.Embedded) -> None:
    """Before any request."""
    with pytest.raises(ferromq.IllegalName, match="topic"):
        mq.consumer("billing", "two words")
    with pytest.raises(ferromq.IllegalName, match="group"):
        mq.consumer("", "orders")
