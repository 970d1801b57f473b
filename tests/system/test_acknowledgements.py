"""Acknowledgements: one is enough, a refusal is reported once, leaving raises no error; for both interfaces."""

import contextlib
import re
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from consumer_shells import PATIENCE, SHELLS, AioShell, Shell, SyncShell
from contract import EACH_WAY
from dispatching import dispatched
from grpc_proxy import GrpcProxy

import ferromq
from ferromq._proto import messages as pb
from ferromq.core import plans

BOTH = pytest.mark.parametrize("shell", SHELLS, ids=lambda shell: shell.kind)


@pytest.fixture
def mq() -> Iterator[ferromq.Embedded]:
    """Yield an embedded broker whose time is moved by hand, with one message of the topic `orders`."""
    with ferromq.embedded(clock=ferromq.Clock.manual()) as embedded:
        with embedded.producer() as producer:
            producer.send("orders", b"x")
        yield embedded


@EACH_WAY
def test_waiting_for_an_acknowledgement_raises_its_refusal(mq: ferromq.Embedded, shell: Shell) -> None:
    """`LeaseExpired`, also the second time: a refused message is not acknowledged."""
    with shell(mq, "billing", "orders", invisible_duration=10) as consumer:
        (stale,) = consumer.receive(wait=PATIENCE)
        mq.clock.advance(seconds=11)
        (message,) = consumer.receive(wait=PATIENCE)
        for _ in range(2):
            with pytest.raises(ferromq.LeaseExpired):
                consumer.ack([stale])
        consumer.ack(message)
        assert mq.broker._server.stats()["acked"] == 1


@BOTH
def test_an_acknowledged_message_cannot_become_a_dead_letter(mq: ferromq.Embedded, shell: Shell) -> None:
    """`LeaseExpired`: its life in the group has ended; so has that of a dead letter."""
    with mq.producer() as producer:
        producer.send("orders", b"y")
    with shell(mq, "billing", "orders") as consumer:
        one, two = *consumer.receive(1, wait=PATIENCE), *consumer.receive(1, wait=PATIENCE)
        consumer.ack([one])
        consumer.forward(two, "bad")
        for message in (one, two):
            with pytest.raises(ferromq.LeaseExpired, match=f"{message.message_id} is acknowledged or a dead letter"):
                consumer.forward(message, "bad")
    dispatched(mq)
    with mq.admin() as admin:
        assert [letter.origin_message_id for letter in admin.dead_letters("billing")] == [two.message_id]


@BOTH
def test_a_refused_acknowledgement_names_the_group(mq: ferromq.Embedded, shell: Shell) -> None:
    """The message may be of another one."""
    with shell(mq, "billing", "orders") as consumer, shell(mq, "shipping", "orders") as other:
        (message,) = consumer.receive(wait=PATIENCE)
        for end in (lambda: other.ack([message]), lambda: other.forward(message, "bad")):
            with pytest.raises(ferromq.LeaseExpired, match="received by another group than shipping") as refused:
                end()
            assert refused.value.code == pb.Code.INVALID_RECEIPT_HANDLE


@BOTH
def test_one_timeout_bounds_all_waits_of_an_acknowledgement(
    mq: ferromq.Embedded, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Time spent on earlier ones is missing for later ones."""
    limits: list[float | None] = []

    def noted(*given: Any, timeout: float | None = None) -> Any:
        limits.append(timeout)
        return ack(*given, timeout=timeout)

    ack = plans.ack
    monkeypatch.setattr(plans, "ack", noted)
    with mq.producer() as producer:
        producer.send("orders", b"y")
    with shell(mq, "billing", "orders", timeout=PATIENCE) as consumer:
        one, two = *consumer.receive(1, wait=PATIENCE), *consumer.receive(1, wait=PATIENCE)
        consumer.ack_later(one)
        consumer.ack([one, two])
    alone, rest = limits
    assert alone is None
    assert rest is not None
    assert 0 < rest < PATIENCE


@BOTH
def test_the_thread_of_a_broker_that_is_gone_ends(
    mq: ferromq.Embedded, shell: Shell, eventually: Callable[[Callable[[], bool]], bool]
) -> None:
    """After its last acknowledgement; a later one for the same address starts another thread."""
    if shell is AioShell:
        pytest.skip("has no threads")
    with mq.producer() as producer:
        producer.send("orders", b"y")
    with mq.consumer("billing", "orders") as consumer:
        for _ in range(2):
            (message,) = consumer.receive(1, wait=PATIENCE)
            message.ack()
            lanes = consumer._leases._lanes
            assert [*lanes] == [message.endpoint]
            consumer._client.session.on_left(message.endpoint)
            assert eventually(lambda lanes=lanes: not lanes)
        consumer.flush()
    assert mq.broker._server.stats()["acked"] == 2


@EACH_WAY
def test_a_second_acknowledgement_returns_without_a_call(mq: ferromq.Embedded, shell: Shell) -> None:
    """After any kind of first acknowledgement, and also without a broker."""
    with mq.producer() as producer:
        producer.send("orders", b"y")
    with shell(mq, "billing", "orders") as consumer:
        messages = consumer.receive(1, wait=PATIENCE)
        messages += consumer.receive(1, wait=PATIENCE)
        one, two = messages
        consumer.ack([one, one])
        consumer.ack_later(two)
        consumer.ack_later(two)
        consumer.ack(two)
        stats = mq.broker._server.stats()
        assert (stats["acked"], stats["stale_receipts"]) == (2, 0)
        mq.broker.close()
        consumer.ack(messages)
        consumer.ack_later(one)
        consumer.flush()


def refusals(caplog: pytest.LogCaptureFixture) -> tuple[int, int]:
    """Return how many acknowledgements the log counts as refused, and in how many lines."""
    found = [re.search(r"acknowledgements failed.* count=(\d+)", record.getMessage()) for record in [*caplog.records]]
    counts = [int(match.group(1)) for match in found if match]
    return sum(counts), len(counts)


@EACH_WAY
def test_a_refused_acknowledgement_in_the_background_is_logged_and_raised_by_flush(
    mq: ferromq.Embedded, shell: Shell, caplog: pytest.LogCaptureFixture
) -> None:
    """With their number; leaving the consumer raises nothing."""
    with mq.producer() as producer:
        producer.send_all("orders", [b"y", b"z"])
    with shell(mq, "billing", "orders", invisible_duration=10) as consumer:
        stale = []
        while len(stale) < 3:
            stale += consumer.receive(3, wait=PATIENCE)
        mq.clock.advance(seconds=11)
        again = 0
        while again < 3:
            again += len(consumer.receive(3, wait=PATIENCE))
        for message in stale:
            consumer.ack_later(message)
        with pytest.raises(ferromq.LeaseExpired) as caught:
            consumer.flush()
        assert "3 acknowledgements failed" in caught.value.__notes__[0]
        assert refusals(caplog)[0] == 3
        consumer.flush()
        consumer.ack_later(stale[0])
        consumer.leave()
    assert refusals(caplog)[0] == 4


@EACH_WAY
def test_refused_acknowledgements_under_run_are_counted_by_a_few_lines_of_the_log(
    mq: ferromq.Embedded, shell: Shell, caplog: pytest.LogCaptureFixture
) -> None:
    """However many there are; the last ones when the consumer is closed."""
    total = 60
    with mq.admin() as admin:
        admin.create_topic("single", 1)
    with mq.producer() as producer:
        producer.send_all("single", [b"%d" % number for number in range(total)])
    with mq.consumer("billing", "single", invisible_duration=3600) as other:

        def handler(message: ferromq.MessageView) -> None:
            # The lease expires, and another consumer gets the message.
            mq.clock.advance(seconds=11)
            (stolen,) = other.receive(1, wait=PATIENCE)
            assert stolen.message_id == message.message_id
            seen.append(message)
            if len(seen) == total:
                consumer.stop()

        seen: list[ferromq.MessageView] = []
        begin = time.monotonic()
        with shell(mq, "billing", "single", invisible_duration=10, prefetch=1) as consumer:
            consumer.run(handler)
        counted, lines = refusals(caplog)
        assert counted == total
        assert lines <= 5 * (2 + (time.monotonic() - begin) // 10)


@BOTH
def test_failed_renewals_are_logged_in_a_few_lines(
    mq: ferromq.Embedded,
    shell: Shell,
    caplog: pytest.LogCaptureFixture,
    eventually: Callable[[Callable[[], bool]], bool],
) -> None:
    """However many there are."""
    total = 40
    with mq.producer() as producer:
        producer.send_all("orders", [b"%d" % number for number in range(total - 1)])
    begun, go_on = threading.Semaphore(0), threading.Event()

    def handler(_message: ferromq.MessageView) -> None:
        begun.release()
        assert go_on.wait(PATIENCE)

    begin = time.monotonic()
    with GrpcProxy(mq.endpoint) as proxy, mq.consumer("billing", "orders", invisible_duration=3600) as other:
        consumer = shell(proxy, "billing", "orders", invisible_duration=2)
        running = threading.Thread(target=consumer.run, args=(handler, total), daemon=True)
        running.start()
        for _ in range(total):
            assert begun.acquire(timeout=PATIENCE)
        mq.clock.advance(seconds=3)
        stolen = 0
        while stolen < total:
            stolen += len(other.receive(total, wait=PATIENCE))
        asked = proxy.calls.get("ChangeInvisibleDuration", 0)
        assert eventually(lambda: proxy.calls.get("ChangeInvisibleDuration", 0) >= asked + total)
        go_on.set()
        consumer.stop()
        running.join(PATIENCE)
        consumer.__exit__()
    lines = sum("lease not renewed" in record.getMessage() for record in caplog.records)
    assert 0 < lines <= 5 * (2 + (time.monotonic() - begin) // 10)


@BOTH
def test_unanswered_acknowledgements_at_the_end_are_logged(
    mq: ferromq.Embedded,
    shell: Shell,
    caplog: pytest.LogCaptureFixture,
    eventually: Callable[[Callable[[], bool]], bool],
) -> None:
    """Those without an answer before the end of `close`."""
    with GrpcProxy(mq.endpoint) as proxy:
        with shell(proxy, "billing", "orders") as consumer:
            (message,) = consumer.receive(wait=PATIENCE)
            proxy.hang("AckMessage")
            consumer.ack_later(message)
            assert proxy.hanging.acquire(timeout=PATIENCE)
            consumer.close(0.1)
        proxy.release()
    assert eventually(lambda: refusals(caplog) == (1, 1))


@pytest.mark.parametrize("end", ["ack", "ack_later", "forward"])
@EACH_WAY
def test_a_handler_may_end_its_message_itself(
    mq: ferromq.Embedded, shell: Shell, end: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Its return, or its exception, changes nothing then; leaving raises nothing."""
    with mq.producer() as producer:
        producer.send("orders", b"raises")
    left = threading.Semaphore(2)
    with shell(mq, "billing", "orders") as consumer:

        def handler(message: ferromq.MessageView) -> None:
            getattr(consumer, end)(message)
            left.acquire()
            if not left.acquire(blocking=False):
                consumer.stop()
            else:
                left.release()
            if message.body == b"raises":
                raise ValueError("after its end")

        consumer.run(handler)
        consumer.leave()
    stats = mq.broker._server.stats()
    assert stats["stale_receipts"] == 0
    assert stats["acked"] == 2
    assert "redelivered" not in caplog.text


@BOTH
def test_a_lost_answer_and_a_refused_repetition_leave_the_outcome_unknown(mq: ferromq.Embedded, shell: Shell) -> None:
    """The first attempt may have succeeded; `ack` and `flush` both report that."""
    with mq.producer() as producer:
        producer.send("orders", b"y")
    with GrpcProxy(mq.endpoint) as proxy, shell(proxy, "billing", "orders", invisible_duration=10) as consumer:
        stale = consumer.receive(1, wait=PATIENCE) + consumer.receive(1, wait=PATIENCE)
        mq.clock.advance(seconds=11)
        again = 0
        while again < 2:
            again += len(consumer.receive(2, wait=PATIENCE))
        proxy.lose("AckMessage")
        with pytest.raises(ferromq.OutcomeUnknown):
            consumer.ack(stale[0])
        proxy.lose("ForwardMessageToDeadLetterQueue")
        with pytest.raises(ferromq.OutcomeUnknown):
            consumer.forward(stale[1])
        proxy.lose("AckMessage")
        consumer.ack_later(stale[0])
        with pytest.raises(ferromq.OutcomeUnknown):
            consumer.flush()


@pytest.mark.parametrize("in_background", [True, False])
@BOTH
def test_a_broker_that_hangs_delays_no_acknowledgement_of_another(
    mq: ferromq.Embedded, shell: Shell, eventually: Callable[[Callable[[], bool]], bool], in_background: bool
) -> None:
    """Neither in the background nor with a waiting caller."""
    with contextlib.ExitStack() as stack:
        other = stack.enter_context(ferromq.embedded(name="other"))
        with other.producer() as producer:
            producer.send("orders", b"y")
        proxy = stack.enter_context(GrpcProxy(mq.endpoint))
        hung = stack.enter_context(GrpcProxy(other.endpoint))
        proxy.put_beside(hung)
        consumer = stack.enter_context(shell(proxy, "billing", "orders", timeout=60))
        messages: list[ferromq.MessageView] = []
        while len(messages) < 2:
            messages += consumer.receive(wait=PATIENCE)
        (mine,) = [message for message in messages if message.endpoint == proxy.endpoint]
        (its,) = [message for message in messages if message.endpoint == hung.endpoint]
        hung.hang("AckMessage")
        if in_background:
            consumer.ack_later(its)
            assert hung.hanging.acquire(timeout=PATIENCE)
            consumer.ack_later(mine)
        else:
            waiting = threading.Thread(target=consumer.ack, args=([its, mine],))
            waiting.start()
        assert eventually(lambda: mq.broker._server.stats()["acked"] == 1)
        hung.release()
        if in_background:
            assert consumer.flush(PATIENCE)
        else:
            waiting.join(PATIENCE)
        assert other.broker._server.stats()["acked"] == 1


@pytest.mark.parametrize("duration", [60, 60.0, timedelta(minutes=1)])
@EACH_WAY
def test_a_lease_is_changed_by_seconds_or_a_timedelta(
    mq: ferromq.Embedded, shell: Shell, duration: timedelta | float
) -> None:
    """By the message as by the consumer."""
    with shell(mq, "billing", "orders", invisible_duration=10) as consumer:
        (message,) = consumer.receive(wait=PATIENCE)
        for change in (consumer.change, consumer.change_by_consumer):
            change(message, duration)
            mq.clock.advance(seconds=59)
            assert consumer.receive(wait=0) == []
        mq.clock.advance(seconds=2)
        (again,) = consumer.receive(wait=PATIENCE)
        assert again.delivery_attempt == 2


@pytest.fixture
def both(mq: ferromq.Embedded) -> Iterator[tuple[GrpcProxy, GrpcProxy]]:
    """Yield proxies before two brokers with one message each."""
    with ferromq.embedded(name="other") as other:
        with other.producer() as producer:
            producer.send("orders", b"y")
        with GrpcProxy(mq.endpoint) as proxy, GrpcProxy(other.endpoint) as beside:
            proxy.put_beside(beside)
            yield proxy, beside


def one_of_each(consumer: SyncShell | AioShell, both: tuple[GrpcProxy, GrpcProxy]) -> list[ferromq.MessageView]:
    """Receive a message from each broker."""
    messages: list[ferromq.MessageView] = []
    while len(messages) < len(both):
        messages += consumer.receive(wait=PATIENCE)
    return sorted(messages, key=lambda message: [each.endpoint for each in both].index(message.endpoint))


@BOTH
def test_a_flush_waits_for_what_was_acknowledged_before_it(both: tuple[GrpcProxy, GrpcProxy], shell: Shell) -> None:
    """It does not wait for later acknowledgements of other threads."""
    first, second = both
    with shell(first, "billing", "orders", timeout=60) as consumer:
        one, two = one_of_each(consumer, both)
        first.hang("AckMessage")
        second.hang("AckMessage")
        consumer.ack_later(one)
        assert first.hanging.acquire(timeout=PATIENCE)
        flushed = consumer.begin_flush()
        consumer.ack_later(two)
        assert second.hanging.acquire(timeout=PATIENCE)
        first.release()
        assert flushed()
        second.release()


@BOTH
def test_a_flush_says_whether_the_brokers_have_answered(both: tuple[GrpcProxy, GrpcProxy], shell: Shell) -> None:
    """Within its time; without a limit it waits for the answer."""
    first, _ = both
    with shell(first, "billing", "orders", timeout=60) as consumer:
        assert consumer.flush(0)
        one, _ = one_of_each(consumer, both)
        first.hang("AckMessage")
        consumer.ack_later(one)
        assert first.hanging.acquire(timeout=PATIENCE)
        assert not consumer.flush(0.05)
        assert not consumer.flush(timedelta(milliseconds=50))
        first.release()
        assert consumer.flush()


@BOTH
def test_a_second_acknowledgement_waits_for_no_other_broker(both: tuple[GrpcProxy, GrpcProxy], shell: Shell) -> None:
    """Although it waits for its own message, which may be in flight."""
    first, second = both
    with shell(first, "billing", "orders", timeout=3) as consumer:
        one, two = one_of_each(consumer, both)
        consumer.ack_later(one)
        second.hang("AckMessage")
        consumer.ack_later(two)
        assert second.hanging.acquire(timeout=PATIENCE)
        consumer.ack(one)
        second.release()


class Interrupt(BaseException):
    """The exception of Ctrl-C in a synchronous program, and of a cancellation in an asynchronous one."""


@pytest.mark.parametrize("end", ["ack", "forward"])
@BOTH
def test_an_interrupted_acknowledgement_does_not_count(
    mq: ferromq.Embedded, shell: Shell, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later one asks the broker."""

    def interrupted(*_: object) -> None:
        raise Interrupt

    with shell(mq, "billing", "orders") as consumer:
        (message,) = consumer.receive(wait=PATIENCE)
        with monkeypatch.context() as patch:
            patch.setattr(consumer.consumer._client, "run", interrupted)
            with pytest.raises(Interrupt):
                getattr(consumer, end)(message)
        consumer.ack(message)
        assert mq.broker._server.stats()["acked"] == 1


@BOTH
def test_a_lease_whose_change_failed_is_renewed_as_before(
    mq: ferromq.Embedded, shell: Shell, eventually: Callable[[Callable[[], bool]], bool]
) -> None:
    """The message is in use, with or without the change."""
    with GrpcProxy(mq.endpoint) as proxy, shell(proxy, "billing", "orders", invisible_duration=4) as consumer:
        renewed: list[bool] = []

        def body(message: ferromq.MessageView) -> bool:
            proxy.lose("ChangeInvisibleDuration")
            with pytest.raises(ferromq.OutcomeUnknown):
                consumer.change(message, 60)
            before = proxy.calls["ChangeInvisibleDuration"]
            renewed.append(eventually(lambda: proxy.calls["ChangeInvisibleDuration"] > before))
            return True

        consumer.iterate(body)
        assert renewed == [True]
