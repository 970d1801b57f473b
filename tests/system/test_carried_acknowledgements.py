"""Receives with one call of the core: acknowledgements that travel with them, and what becomes of both under faults."""

import math
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fault_proxy import FAULTS, Fault, FaultProxy
from machine import in_load
from tls_files import SHOWN

import ferromq

Eventually = Callable[[Callable[[], bool]], bool]
PATIENCE = 30.0
RECEIVED = 10


@pytest.fixture
def mq(proxy: FaultProxy) -> Iterator[ferromq.Embedded]:
    """Yield a broker with messages, which clients reach by the proxy alone; its time is moved by hand."""
    options = {"grpc_listen": proxy.target, "grpc_advertise": proxy.address, **SHOWN}
    with ferromq.embedded(clock=ferromq.Clock.manual(1_700_000_000_000), **options) as mq:
        with mq.admin() as admin:
            admin.create_topic("orders", 1)
        with mq.producer() as producer:
            producer.send_all("orders", [b"%d" % number for number in range(100)])
        yield mq


def counted(mq: ferromq.Embedded, name: str) -> int:
    """Return one of the broker's counters."""
    return int(mq.broker._server.stats()[name])


def ready(consumer: ferromq.Consumer, eventually: Eventually) -> ferromq.Consumer:
    """Return a consumer whose next receives go in frames."""
    assert len(consumer.receive(1, wait=PATIENCE)) == 1
    channels = consumer._client.channels
    assert eventually(lambda: all(channels.takes_records(each) for each in channels.framed) and bool(channels.framed))
    return consumer


def test_each_receive_brings_the_acknowledgements_before_it(
    mq: ferromq.Embedded, proxy: FaultProxy, eventually: Eventually, tls: bool | Path
) -> None:
    """The broker has them when the receive returns."""
    with ready(ferromq.Consumer(proxy.address, "billing", "orders", tls=tls), eventually) as consumer:
        requests = counted(mq, "remoting_requests")
        for number in range(RECEIVED):
            (message,) = consumer.receive(1, wait=PATIENCE)
            assert counted(mq, "acked") == number
            message.ack()
        assert counted(mq, "remoting_requests") - requests <= 2 * RECEIVED
        assert consumer.receive(3, wait=0)
        assert counted(mq, "acked") == RECEIVED
        assert consumer.flush(PATIENCE)


def test_a_refusal_is_told_as_that_of_others(mq: ferromq.Embedded, proxy: FaultProxy, eventually: Eventually) -> None:
    """By the next call that waits for acknowledgements."""
    with ready(ferromq.Consumer(proxy.address, "billing", "orders"), eventually) as consumer:
        (late,) = consumer.receive(1, wait=PATIENCE)
        mq.clock.advance(hours=1)
        (message,) = consumer.receive(1, wait=PATIENCE)
        late.ack()
        message.ack()
        consumer.receive(1, wait=0)
        with pytest.raises(ferromq.LeaseExpired, match="billing"):
            consumer.flush(PATIENCE)
        assert consumer.flush(PATIENCE)
        assert counted(mq, "acked") == 1
        assert (message.is_settled, late.is_settled) == (True, False)


def test_one_whose_answer_is_lost_is_sent_again(
    mq: ferromq.Embedded, proxy: FaultProxy, eventually: Eventually, tls: bool | Path
) -> None:
    """The broker knows what it has acknowledged."""
    with ready(ferromq.Consumer(proxy.address, "billing", "orders", tls=tls), eventually) as consumer:
        (message,) = consumer.receive(1, wait=PATIENCE)
        message.ack()
        proxy.lose()
        assert len(consumer.receive(1, wait=PATIENCE)) == 1
        assert consumer.flush(PATIENCE)
        assert counted(mq, "acked") == 1


def test_a_lost_answer_and_a_refused_repetition_leave_the_outcome_unknown(
    mq: ferromq.Embedded, proxy: FaultProxy, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first attempt may have succeeded."""
    monkeypatch.setattr("ferromq.client.leases.FLUSH_AFTER", 3600)
    with ready(ferromq.Consumer(proxy.address, "billing", "orders"), eventually) as consumer:
        (late,) = consumer.receive(1, wait=PATIENCE)
        mq.clock.advance(hours=1)
        assert consumer.receive(2, wait=PATIENCE)
        late.ack()
        proxy.lose()
        consumer.receive(1, wait=PATIENCE)
        with pytest.raises(ferromq.OutcomeUnknown, match="the repetition was refused"):
            consumer.flush(PATIENCE)


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_receive_keeps_its_time_and_loses_no_acknowledgement(
    mq: ferromq.Embedded, proxy: FaultProxy, eventually: Eventually, fault: Fault
) -> None:
    """Whatever the broker does with both."""
    with ready(ferromq.Consumer(proxy.address, "billing", "orders", timeout=PATIENCE), eventually) as consumer:
        (message,) = consumer.receive(1, wait=PATIENCE)
        message.ack()
        fault(proxy)
        begun = time.monotonic()
        with pytest.raises(ferromq.OutcomeUnknown):
            consumer.receive(1, wait=0)
        assert time.monotonic() - begun < in_load(3)
        proxy.resume()
        assert eventually(lambda: counted(mq, "acked") == 1)


@pytest.mark.parametrize("wait", [0, 0.5])
def test_a_receive_without_acknowledgements_keeps_its_time(
    mq: ferromq.Embedded, proxy: FaultProxy, eventually: Eventually, wait: float
) -> None:
    """Three seconds after its wait, if the broker hangs."""
    with ready(ferromq.Consumer(proxy.address, "billing", "orders"), eventually) as consumer:
        proxy.hang()
        begun = time.monotonic()
        with pytest.raises(ferromq.OutcomeUnknown):
            consumer.receive(1, wait=wait)
        assert time.monotonic() - begun < in_load(3.5 + wait)
        proxy.resume()
        assert eventually(lambda: bool(consumer.receive(1, wait=1)))


def test_a_receive_that_is_refused_at_the_call_leaves_acknowledgements_alone(
    mq: ferromq.Embedded, proxy: FaultProxy, eventually: Eventually
) -> None:
    """No protocol has an endless wait."""
    with ready(ferromq.Consumer(proxy.address, "billing", "orders"), eventually) as consumer:
        (message,) = consumer.receive(1, wait=PATIENCE)
        message.ack()
        with pytest.raises((ValueError, OverflowError)):
            consumer.receive(1, wait=math.inf)
        assert consumer.flush(PATIENCE)
        assert counted(mq, "acked") == 1


def test_an_interrupted_receive_loses_no_acknowledgement(
    mq: ferromq.Embedded, proxy: FaultProxy, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread sends it again."""
    monkeypatch.setattr("ferromq.client.leases.FLUSH_AFTER", 3600)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with ready(ferromq.Consumer(proxy.address, "billing", "orders"), eventually) as consumer:
        (message,) = consumer.receive(1, wait=PATIENCE)
        message.ack()
        with monkeypatch.context() as patch:
            patch.setattr(consumer._direct, "_refused", interrupted)
            with pytest.raises(KeyboardInterrupt):
                consumer.receive(1, wait=PATIENCE)
        assert consumer.flush(PATIENCE)
        assert counted(mq, "acked") == 1


def test_what_a_receive_carries_when_its_consumer_is_closed_counts_as_refused(
    mq: ferromq.Embedded, proxy: FaultProxy, eventually: Eventually
) -> None:
    """If the broker has not answered."""
    consumer = ready(ferromq.Consumer(proxy.address, "billing", "orders"), eventually)
    (message,) = consumer.receive(1, wait=PATIENCE)
    message.ack()
    proxy.hang()
    receiving = threading.Thread(target=lambda: failed(consumer))
    receiving.start()
    assert eventually(lambda: any(lane.under_way for lane in consumer._leases._lanes.values()))
    consumer.close(0.5)
    receiving.join(PATIENCE)
    assert not message.is_settled


def failed(consumer: ferromq.Consumer) -> None:
    """Receive until the consumer is closed."""
    with pytest.raises(ferromq.FerromqError):
        consumer.receive(1, wait=PATIENCE)


def test_threads_that_receive_and_acknowledge_at_the_same_time(
    mq: ferromq.Embedded, proxy: FaultProxy, eventually: Eventually, tls: bool | Path
) -> None:
    """Each message is received once, and all are acknowledged."""
    seen: list[bytes] = []
    with ready(ferromq.Consumer(proxy.address, "billing", "orders", tls=tls), eventually) as consumer:

        def receive() -> None:
            while messages := consumer.receive(3, wait=0.2):
                for message in messages:
                    message.ack()
                    seen.append(message.body)

        threads = [threading.Thread(target=receive) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        assert consumer.flush(PATIENCE)
        assert len(seen) == len(set(seen)) == counted(mq, "acked") == 99


def test_a_renewed_lease_is_acknowledged_by_its_new_handle(
    mq: ferromq.Embedded, proxy: FaultProxy, eventually: Eventually
) -> None:
    """Which is no part of the record."""
    with ready(ferromq.Consumer(proxy.address, "billing", "orders"), eventually) as consumer:
        (message,) = consumer.receive(1, wait=PATIENCE)
        message.change_invisible_duration(60)
        message.ack()
        assert consumer.receive(1, wait=PATIENCE)
        assert consumer.flush(PATIENCE)
        assert counted(mq, "acked") == 1


def test_acknowledgements_that_no_receive_carries_are_sent_soon(
    mq: ferromq.Embedded, proxy: FaultProxy, eventually: Eventually
) -> None:
    """Also after some that one carried."""
    with ready(ferromq.Consumer(proxy.address, "billing", "orders"), eventually) as consumer:
        for number in range(RECEIVED):
            one, two, three = consumer.receive(3, wait=PATIENCE)
            one.ack()
            two.ack()
            consumer.give_back(consumer.receive(1, wait=PATIENCE))
            three.ack()
            assert eventually(lambda: counted(mq, "acked") == 3 * (number + 1))  # noqa: B023 (it waits here)


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_loop_whose_receive_waits_goes_on_after_a_fault(
    mq: ferromq.Embedded, proxy: FaultProxy, eventually: Eventually, fault: Fault
) -> None:
    """It gets what is sent then, whatever became of the receive."""
    with ready(ferromq.Consumer(proxy.address, "billing", "orders"), eventually) as consumer:
        messages, seen = iter(consumer), list[bytes]()

        def take() -> None:
            message = next(messages)
            message.ack()
            seen.append(message.body)

        for _ in range(99):
            take()
        waiting = threading.Thread(target=take)
        waiting.start()
        assert eventually(lambda: consumer._ahead._ahead.is_receiving and consumer._ahead._ahead.hungry == 1)
        fault(proxy)
        proxy.resume()
        with mq.producer() as producer:
            producer.send("orders", b"after")
        waiting.join(PATIENCE)
        assert seen[99:] == [b"after"]
