"""An administrator's requests to name servers and brokers that hang, are gone, or answer half."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial

import pytest
from dispatching import dispatched
from fault_proxy import FAULTS, Fault, FaultProxy
from machine import in_load
from ports import kept_port

import ferromq
from ferromq import OutcomeUnknown

TIMEOUT, PATIENCE = 0.5, 60
# On an idle machine; a call without a bound takes much longer.
SLACK = 1.5


@pytest.fixture
def broker_proxy() -> Iterator[FaultProxy]:
    """Yield a proxy before the broker, which has its address as its own."""
    with kept_port() as address, FaultProxy(address) as proxy:
        yield proxy


@pytest.fixture
def mq(no_thread_left: None, broker_proxy: FaultProxy) -> Iterator[ferromq.Embedded]:
    """Run a broker behind its proxy."""
    with ferromq.embedded(listen=broker_proxy.target, advertise=broker_proxy.address, fast_listen="off") as running:
        yield running


@pytest.fixture
def proxy(mq: ferromq.Embedded) -> Iterator[FaultProxy]:
    """Yield a proxy before the name server."""
    with FaultProxy(mq.namesrv) as proxy:
        yield proxy


def fails_in_time(call: Callable[[], object], requests: int = 1) -> None:
    """Fail if a call succeeds, raises another error, or exceeds the time of its requests."""
    begin = time.monotonic()
    with pytest.raises(OutcomeUnknown):
        call()
    assert time.monotonic() - begin < requests * TIMEOUT + in_load(SLACK)


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_name_server_that_does_not_answer(mq: ferromq.Embedded, proxy: FaultProxy, fault: Fault) -> None:
    """It costs its timeout; the next one of the list is asked, and later this one again."""
    with (
        ferromq.Admin(proxy.address, timeout=TIMEOUT) as admin,
        ferromq.Admin(proxy.address, timeout=PATIENCE) as patient,
        # A server that hangs takes half of it.
        ferromq.Admin(f"{proxy.address};{mq.namesrv}", timeout=3) as with_two,
    ):
        patient.create_topic("orders", 1)
        fault(proxy)
        for call in (
            admin.topics,
            lambda: admin.create_group("billing"),
            lambda: admin.alter_group("billing", retries=1),
            lambda: admin.alter_topic("orders", queues=2),
            lambda: admin.delete_topic("orders"),
            lambda: admin.take_out_broker("gone"),
            admin.order_configurations,
        ):
            fails_in_time(call)
        assert "orders" in with_two.topics()
        with_two.create_topic("clicks", 1)
        proxy.resume()
        assert {"orders", "clicks"} <= set(patient.topics())


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_broker_that_does_not_answer(mq: ferromq.Embedded, broker_proxy: FaultProxy, fault: Fault) -> None:
    """The error comes in time, and the next call after its return is answered."""
    with (
        ferromq.Admin(mq.namesrv, timeout=TIMEOUT) as admin,
        ferromq.Admin(mq.namesrv, timeout=PATIENCE) as patient,
        mq.producer() as producer,
    ):
        patient.create_topic("orders", 1)
        receipt = producer.send("orders", b"x", keys="k")
        dispatched(mq)
        fault(broker_proxy)
        for call in (
            lambda: admin.create_topic("clicks", 1),
            lambda: admin.create_group("billing"),
            lambda: admin.query_by_key("orders", "k"),
            lambda: admin.query_by_id("orders", receipt.message_id),
            admin.clean,
        ):
            fails_in_time(call)
        assert "orders" in patient.topics()
        broker_proxy.resume()
        patient.create_group("billing")
        found = patient.query_by_id("orders", receipt.message_id)
        assert found is not None
        assert found.body == b"x"


def test_the_timeout_bounds_a_call_of_many_requests(mq: ferromq.Embedded) -> None:
    """However many servers hang, one after the other; the last one still answers in time."""
    with ExitStack() as stack:
        hung = [stack.enter_context(FaultProxy(mq.namesrv)) for _ in range(8)]
        for each in hung:
            each.hang()
        addresses = ";".join(each.address for each in hung)
        with ferromq.Admin(addresses, timeout=TIMEOUT) as admin:
            for call in (
                admin.topics,
                admin.order_configurations,
                lambda: admin.create_topic("orders"),
                lambda: admin.take_out_broker("gone"),
            ):
                fails_in_time(call)
        two = ";".join(each.address for each in hung[:2])
        with ferromq.Admin(f"{two};{mq.namesrv}", timeout=9) as admin:
            admin.create_topic("orders", 1)
            assert mq.broker.topics.get("orders") is not None


def test_a_server_that_was_not_asked_for_lack_of_time_is_named(mq: ferromq.Embedded, proxy: FaultProxy) -> None:
    """With the way out."""
    proxy.hang()
    with (
        ferromq.Admin(f"{proxy.address};{proxy.address}", timeout=0) as admin,
        pytest.raises(ferromq.RequestTimeout, match=r"was not asked \(GET_ALL_TOPIC_LIST.*longer timeout"),
    ):
        admin.topics()


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_change_that_may_have_been_made_is_made_again(
    mq: ferromq.Embedded, broker_proxy: FaultProxy, fault: Fault
) -> None:
    """A change fails in time, and the same call finishes it, whether or not the broker got it."""
    with ferromq.Admin(mq.namesrv, timeout=TIMEOUT) as hasty, ferromq.Admin(mq.namesrv, timeout=PATIENCE) as patient:
        patient.create_topic("orders", 1)
        patient.create_topic("clicks", 1)
        patient.create_group("billing", retries=1)
        calls: tuple[Callable[[ferromq.Admin], object], ...] = (
            lambda admin: admin.alter_topic("orders", queues=3),
            lambda admin: admin.alter_group("billing", retries=5),
            lambda admin: admin.clean_unused_queues(),
            lambda admin: admin.delete_topic("clicks"),
        )
        fault(broker_proxy)
        for call in calls:
            fails_in_time(partial(call, hasty))
        broker_proxy.resume()
        for call in calls:
            call(patient)
        topic, group = mq.broker.topics.get("orders"), mq.broker.groups.get("billing")
        assert topic is not None
        assert (topic.read_queues, topic.write_queues) == (3, 3)
        assert group is not None
        assert group.retries == 5
        assert mq.broker.topics.get("clicks") is None
        assert "clicks" not in patient.topics()
