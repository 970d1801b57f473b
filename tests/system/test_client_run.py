"""Consumers that call a handler: acknowledged on return, tried again on an exception, and an end that never hangs."""

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from grpc_peer import GrpcPeer

import ferromq
from ferromq import CorruptMessage, Message, MessageView, aio
from ferromq._proto import messages as pb

PATIENCE = 20.0


@pytest.fixture
def mq() -> Iterator[ferromq.Embedded]:
    """Yield an embedded broker."""
    with ferromq.embedded() as embedded:
        yield embedded


def run(consumer: ferromq.Consumer, handler: object, concurrency: int = 1) -> threading.Thread:
    """Run a consumer in the background."""
    running = threading.Thread(target=consumer.run, args=(handler,), kwargs={"concurrency": concurrency}, daemon=True)
    running.start()
    return running


def test_a_handler_gets_every_message_once_and_the_end_is_clean(mq: ferromq.Embedded) -> None:
    """A return acknowledges; `stop` ends `run`, and the consumer stays usable."""
    bodies = {b"%d" % number for number in range(200)}
    with mq.producer() as producer:
        producer.send_all("orders", sorted(bodies))
    seen: list[bytes] = []
    names: set[str] = set()
    both = threading.Barrier(2)

    def handler(message: MessageView) -> None:
        if len(names) < 2:
            names.add(threading.current_thread().name)
            both.wait(PATIENCE)  # two of them work at once
        seen.append(message.body)
        if len(seen) == len(bodies):
            consumer.stop()

    with mq.consumer("billing", "orders") as consumer:
        consumer.run(handler, concurrency=2)
        assert sorted(seen) == sorted(bodies)
        assert len(names) == 2
    with mq.consumer("billing", "orders") as consumer:
        assert consumer.receive(wait=0) == []


@pytest.mark.parametrize("is_async", [False, True])
def test_a_message_costs_few_calls_of_functions(mq: ferromq.Embedded, *, is_async: bool) -> None:
    """What the settings say is read once, not for each message."""
    count = 2000
    with mq.producer() as producer:
        producer.send_all("orders", [b"x"] * count)
    calls = seen = 0

    def profile(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in {"call", "c_call"}

    def handle() -> bool:
        nonlocal seen
        seen += 1
        if seen == count // 2:  # the first ones measure the rate
            sys.setprofile(profile)
        elif seen == count:
            sys.setprofile(None)
        return seen == count

    async def main() -> None:
        async def handler(_message: MessageView) -> None:
            if handle():
                consumer.stop()

        async with aio.Consumer(mq.endpoint, "billing", "orders") as consumer:
            await consumer.run(handler)

    if is_async:
        asyncio.run(main())
    else:
        with mq.consumer("billing", "orders") as consumer:
            consumer.run(lambda _message: consumer.stop() if handle() else None)
    assert calls / (count / 2) < 80


def test_a_failed_message_comes_again_as_the_group_says_and_ends_as_a_dead_letter(
    mq: ferromq.Embedded, caplog: pytest.LogCaptureFixture
) -> None:
    """The exception is in the log, other messages are not held up."""
    with mq.admin() as admin:
        admin.create_group("billing", retries=2, retry_delays=[0.01])
    with mq.producer() as producer:
        producer.send_all("orders", [b"bad", b"good"])
    attempts: list[int] = []
    good = threading.Event()

    def handler(message: MessageView) -> None:
        if message.body == b"good":
            good.set()
            return
        attempts.append(message.delivery_attempt)
        raise ValueError("no such customer")

    with mq.consumer("billing", "orders") as consumer, mq.consumer("look", "%DLQ%billing") as dead:
        running = run(consumer, handler)
        (message,) = dead.receive(wait=PATIENCE)
        consumer.stop()
        running.join(PATIENCE)
        assert not running.is_alive()
    assert message.body == b"bad"
    assert attempts == [1, 2, 3]
    assert good.is_set()
    assert "no such customer" in caplog.text


def test_a_body_that_does_not_decompress_becomes_a_dead_letter_and_blocks_no_other(
    mq: ferromq.Embedded, caplog: pytest.LogCaptureFixture
) -> None:
    """It fails in the handler that asks for it, each attempt counts, and no byte of it is lost."""
    with mq.admin() as admin:
        admin.create_topic("orders", 1)
        admin.create_group("billing", retries=2, retry_delays=[0.01])
    with GrpcPeer(mq.endpoint) as peer:
        for body, encoding in [("a", pb.Encoding.IDENTITY), ("bad", pb.Encoding.GZIP), ("b", pb.Encoding.IDENTITY)]:
            peer.send("orders", body, body_encoding=encoding)
    attempts: list[int] = []
    bodies: list[bytes] = []
    both = threading.Event()

    def handler(message: MessageView) -> None:
        try:
            bodies.append(message.body)
        except CorruptMessage:
            attempts.append(message.delivery_attempt)
            raise
        if len(bodies) == 2:
            both.set()

    with mq.consumer("billing", "orders") as consumer, mq.consumer("look", "%DLQ%billing") as dead:
        running = run(consumer, handler)
        (message,) = dead.receive(wait=PATIENCE)
        assert both.wait(PATIENCE)
        consumer.stop()
        running.join(PATIENCE)
        assert not running.is_alive()
    assert (message.raw_body, sorted(bodies), attempts) == (b"bad", [b"a", b"b"], [1, 2, 3])
    assert "of topic orders, queue 0, offset 1: the body is marked as compressed" in caplog.text


def test_order_is_kept_over_failures(mq: ferromq.Embedded) -> None:
    """A message that fails is tried again in place; its group waits, others do not."""
    with mq.admin() as admin:
        admin.create_topic("steps", 2, message_type="FIFO")
        admin.create_group("walker", fifo=True, retry_delays=[0.01])
    with mq.producer() as producer:
        producer.send_all("steps", [Message(b"%d" % n, message_group=f"g{n % 4}") for n in range(60)])
    lock = threading.Lock()
    tried: dict[bytes, int] = {}
    done: dict[str | None, list[int]] = {}
    working: set[str | None] = set()

    def handler(message: MessageView) -> None:
        group = message.message_group
        with lock:
            assert group not in working
            working.add(group)
            tried[message.body] = tried.get(message.body, 0) + 1
        try:
            if int(message.body) % 7 == 3 and tried[message.body] < 3:
                raise ValueError("not yet")
            with lock:
                done.setdefault(group, []).append(int(message.body))
                if sum(map(len, done.values())) == 60:
                    consumer.stop()
        finally:
            with lock:
                working.discard(group)

    with mq.consumer("walker", "steps") as consumer:
        consumer.run(handler, concurrency=4)
    assert done == {f"g{group}": list(range(group, 60, 4)) for group in range(4)}
    assert {tries for body, tries in tried.items() if int(body) % 7 == 3} == {3}


def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    give_up = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.01)


@pytest.mark.parametrize("is_fifo", [True, False])
def test_a_group_takes_up_order_or_gives_it_up_while_its_consumer_runs(mq: ferromq.Embedded, is_fifo: bool) -> None:
    """Messages in hand end as they began, and none is left behind."""
    with mq.admin() as admin:
        admin.create_topic("steps", 1, message_type="FIFO")
        admin.create_group("walker", fifo=not is_fifo)
        with mq.producer() as producer:
            producer.send_all("steps", [Message(b"%d" % number, message_group="a") for number in range(6)])
        begun, go_on = threading.Event(), threading.Event()
        seen: list[bytes] = []

        def handler(message: MessageView) -> None:
            begun.set()
            assert go_on.wait(PATIENCE)
            seen.append(message.body)
            if len(seen) == 6:
                consumer.stop()

        with mq.consumer("walker", "steps", invisible_duration=600) as consumer:
            running = run(consumer, handler, concurrency=2)
            assert begun.wait(PATIENCE)
            admin.alter_group("walker", fifo=is_fifo)
            until(lambda: consumer._client.settings.subscription.fifo is is_fifo)
            go_on.set()
            running.join(PATIENCE)
            assert not running.is_alive()
    assert sorted(seen) == [b"%d" % number for number in range(6)]


@pytest.mark.parametrize("what", ["ack", "forward_to_dead_letter"])
def test_what_follows_a_message_that_comes_again_does_not_go_before_it(
    mq: ferromq.Embedded, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Its acknowledgement got lost: the waiting messages of its order are given back, and are redelivered behind it."""
    with mq.admin() as admin:
        admin.create_topic("steps", 1, message_type="FIFO")
        admin.create_group("walker", fifo=True, retries=1, retry_delays=[0.01])
    with mq.producer() as producer:
        producer.send_all("steps", [Message(b"%d" % number, message_group="a") for number in range(4)])
    seen: list[bytes] = []
    has_failed = threading.Event()

    def handler(message: MessageView) -> None:
        seen.append(message.body)
        if what != "ack" and not has_failed.is_set():
            raise ValueError("not yet")
        if message.body == b"3":
            consumer.stop()

    with mq.consumer("walker", "steps") as consumer:
        leases: Any = consumer._leases
        end = getattr(leases, what, None)

        def fail_once(which: MessageView | list[MessageView], *cause: object) -> None:
            if has_failed.is_set():
                assert end is not None
                end(which, *cause)
                return
            has_failed.set()
            leases.give_back(which if isinstance(which, list) else [which], time.monotonic() + PATIENCE)
            raise ferromq.ConnectionFailed("no answer")

        monkeypatch.setattr(leases, what, fail_once, raising=False)
        consumer.run(handler)
    again = [b"0"] if what == "ack" else [b"0", b"0"]
    assert seen == [*again, b"0", b"1", b"2", b"3"]


def test_one_message_group_does_not_hold_up_the_others(mq: ferromq.Embedded) -> None:
    """However many of its messages wait behind the one that is handled."""
    with mq.admin() as admin:
        admin.create_topic("steps", 1, message_type="FIFO")
        admin.create_group("walker", fifo=True)
    with mq.producer() as producer:
        producer.send_all("steps", [Message(b"x", message_group=group) for group in "a" * 9 + "b"])
    other = threading.Event()

    def handler(message: MessageView) -> None:
        if message.message_group == "b":
            other.set()
        else:
            assert other.wait(PATIENCE)
            consumer.stop()

    with mq.consumer("walker", "steps", invisible_duration=600) as consumer:
        running = run(consumer, handler, concurrency=2)
        assert other.wait(PATIENCE)
        running.join(PATIENCE)
        assert not running.is_alive()


def test_runs_leave_nothing_behind(mq: ferromq.Embedded) -> None:
    """However often a consumer runs and iterates, its client's state does not grow."""
    with mq.producer() as producer, mq.consumer("billing", "orders") as consumer:
        kept = []
        for _ in range(3):
            producer.send("orders", b"x")
            consumer.run(lambda _: consumer.stop())
            kept.append(len(consumer._client._at_exit))
    assert len(set(kept)) == 1


def test_closing_ends_run_and_gives_back_what_was_received_ahead(mq: ferromq.Embedded) -> None:
    """From another thread, while a handler works; its message is acknowledged, others get the rest at once."""
    with mq.producer() as producer:
        producer.send_all("orders", [b"%d" % number for number in range(20)])
    begun = threading.Event()
    handled: list[bytes] = []

    def handler(message: MessageView) -> None:
        runner = consumer._runner
        assert runner is not None
        begun.set()
        assert runner._stopping.wait(PATIENCE)
        handled.append(message.body)

    consumer = mq.consumer("billing", "orders", invisible_duration=600)
    running = run(consumer, handler)
    assert begun.wait(PATIENCE)
    consumer.close(PATIENCE)
    running.join(PATIENCE)
    assert not running.is_alive()
    left: list[bytes] = []
    with mq.consumer("billing", "orders") as consumer:
        while len(left) + len(handled) < 20:
            messages = consumer.receive(wait=PATIENCE)
            assert messages
            left += [message.body for message in messages]
            consumer.ack(messages)
    assert sorted(left + handled) == sorted(b"%d" % number for number in range(20))


def test_a_base_exception_ends_run(mq: ferromq.Embedded) -> None:
    """A handler may end the program; its message is redelivered."""
    with mq.producer() as producer:
        producer.send("orders", b"x")

    def handler(_message: MessageView) -> None:
        raise SystemExit(3)

    with mq.consumer("billing", "orders") as consumer:
        with pytest.raises(SystemExit):
            consumer.run(handler)
        (message,) = consumer.receive(wait=PATIENCE)
        assert message.body == b"x"


def test_a_consumer_runs_once_at_a_time(mq: ferromq.Embedded) -> None:
    """The second call says what to do instead; a group that cannot be created ends it with its error."""
    with mq.consumer("billing", "orders") as consumer:
        begun = threading.Event()
        with mq.producer() as producer:
            producer.send("orders", b"x")
        running = run(consumer, lambda _: begun.set())
        assert begun.wait(PATIENCE)
        with pytest.raises(RuntimeError, match="raise concurrency"):
            consumer.run(print)
        consumer.stop()
        running.join(PATIENCE)
        assert not running.is_alive()
        with pytest.raises(ValueError, match="concurrency must be at least 1"):
            consumer.run(print, concurrency=0)


def test_a_producer_hears_that_kinds_are_not_checked_any_more(mq: ferromq.Embedded) -> None:
    """At once, on the telemetry stream it has open."""
    with mq.producer() as producer:
        producer.send("orders", b"x")
        assert producer._client.settings.publishing.validate_message_type
        mq.broker.settings.update({"check_types": "none"}, {})
        until(lambda: not producer._client.settings.publishing.validate_message_type)
