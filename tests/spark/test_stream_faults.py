"""Streams and group lags against brokers and name servers that misbehave."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from fault_proxy import FAULTS, Fault, FaultProxy
from machine import in_load
from ports import kept_port

import ferromq
from ferromq.errors import ConnectionFailed, OutcomeUnknown
from ferromq.pipeline.inputs import group_lags
from ferromq.spark.options import ClusterAddress
from ferromq.spark.read import over_grpc, over_remoting, pull
from ferromq.spark.read.plan import Queue
from ferromq.spark.stream import group as stream_group
from ferromq.spark.stream import queue_monitor
from ferromq.spark.stream.group import GroupOffsets
from ferromq.spark.stream.queue_monitor import QueueMonitor, RetryDeadline, registered_brokers
from ferromq.spark.topics import Topics

ORDERS = Topics(("orders",))
QUEUES, HELD = 6, 4
BATCHES = 400
TIMEOUT = 0.5
# For an idle machine; a call without a limit, or one queue after the other, takes longer.
SLACK = 1.5
faults = pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
two_faults = pytest.mark.parametrize("fault", [FAULTS["hang"], FAULTS["refuse"]], ids=["hang", "refuse"])
"""One that is noticed at its end, and one at once."""


class Talk:
    """A broker and a name server behind proxies."""

    def __init__(self, protocol: str, broker: FaultProxy, namesrv: FaultProxy) -> None:
        self.broker = broker
        self.namesrv = namesrv
        is_grpc = protocol == "grpc"
        self.where = ClusterAddress(endpoint=broker.address) if is_grpc else ClusterAddress(namesrv=namesrv.address)
        self.proxies = [broker] if is_grpc else [broker, namesrv]
        self.committed = group_lags._over_grpc if is_grpc else group_lags._over_remoting

    def queues(self) -> list[Queue]:
        """Return the queues that planning finds."""
        return pull.queues(self.where, ORDERS)


@pytest.fixture(params=["grpc", "remoting"])
def talk(request: pytest.FixtureRequest) -> Iterator[Talk]:
    """Run a broker with a topic and a group."""
    with kept_port() as one, kept_port() as two, FaultProxy(one) as grpc, FaultProxy(two) as remoting:
        addresses = {"listen": remoting.target, "advertise": remoting.address, "fast_listen": "off"}
        addresses |= {"grpc_listen": grpc.target, "grpc_advertise": grpc.address}
        with ferromq.embedded(**addresses) as mq, FaultProxy(mq.namesrv) as namesrv:
            with mq.admin() as admin:
                admin.create_topic("orders", QUEUES)
                admin.create_group("display")
            for number in range(QUEUES * HELD):
                mq.store.append("orders", number % QUEUES, b"m")
            while mq.store.stats()["dispatched_offset"] < mq.store.stats()["max_physical_offset"]:
                time.sleep(0.001)
            yield Talk(request.param, grpc if request.param == "grpc" else remoting, namesrv)


@contextmanager
def impatient(timeout: float = TIMEOUT) -> Iterator[None]:
    """Give readers a short timeout."""
    with pytest.MonkeyPatch.context() as patches:
        for module in (over_grpc, over_remoting):
            patches.setattr(module, "TIMEOUT", timeout)
        for module in (stream_group, queue_monitor, group_lags):
            patches.setattr(module, "_TIMEOUT", timeout)
        yield


def in_time(call: Callable[[], object], seconds: float = TIMEOUT, timeout: float = TIMEOUT) -> None:
    """Fail if a call of an impatient reader takes long."""
    begin = time.monotonic()
    with impatient(timeout):
        call()
    assert time.monotonic() - begin < seconds + in_load(SLACK)


@faults
def test_offsets_for_display_keep_a_stream_no_longer_than_one_answer(
    talk: Talk, fault: Fault, caplog: pytest.LogCaptureFixture
) -> None:
    """All queues are written concurrently; failed ones are written the next time; a failure is logged once."""
    queues = talk.queues()
    assert len(queues) == QUEUES
    group = GroupOffsets("display", None)
    fault(talk.broker)
    for _ in range(2):
        in_time(lambda: group.write([(queue, 3) for queue in queues]))
    assert len(caplog.records) == 1
    assert f"offsets not written for display group=display queues={QUEUES}" in caplog.text
    talk.broker.resume()
    # gRPC waits a little before it connects again.
    for _ in range(BATCHES):
        group.write([(queue, 3) for queue in queues])
        written = [talk.committed(queue, "display") for queue in queues]
        if written == [3] * QUEUES:
            break
        time.sleep(0.05)
    group.close()
    assert written == [3] * QUEUES


@faults
def test_lags_of_a_group_are_returned_or_fail_in_time(talk: Talk, fault: Fault) -> None:
    """A failure never looks like a group without committed offsets."""
    (queue, *_) = talk.queues()
    group = GroupOffsets("display", None)
    group.write([(queue, 3)])
    group.close()
    fault(talk.broker)

    def ask() -> None:
        with pytest.raises(OutcomeUnknown):
            talk.committed(queue, "display")

    in_time(ask)
    talk.broker.resume()
    assert group_lags.lags(talk.where, ["orders"], ["display"]) == [("orders", "display", 0, 3, HELD, 1)]


@faults
def test_a_stream_retries_until_its_deadline_and_then_sees_all_queues(talk: Talk, fault: Fault) -> None:
    """Unanswered queues are unreachable, not gone."""
    places = [("orders", f"broker-a:{queue}") for queue in range(QUEUES)]
    for proxy in talk.proxies:
        fault(proxy)
        waits: list[float] = []
        monitor = QueueMonitor(talk.where, ORDERS, RetryDeadline(0.1, clock=lambda: sum(waits), wait=waits.append))  # noqa: B023

        def look() -> None:
            with pytest.raises(ConnectionFailed, match="Nothing is lost"):
                monitor.look(places, wait=True)  # noqa: B023 (called at once)

        in_time(look, 4 * TIMEOUT)
        assert sum(waits) == pytest.approx(0.1)
        proxy.resume()
        snapshot = monitor.look(places, wait=True)
        assert snapshot.queues.keys() == set(places)
        assert not snapshot.away(places)


@two_faults
def test_a_stream_goes_on_when_its_peer_comes_back(talk: Talk, fault: Fault) -> None:
    """It waits, and keeps its checkpoint."""
    for proxy in talk.proxies:
        fault(proxy)
        monitor = QueueMonitor(talk.where, ORDERS, RetryDeadline(60.0, wait=lambda _seconds: proxy.resume()))  # noqa: B023
        with impatient():
            assert len(monitor.look([("orders", "broker-a:0")], wait=True).queues) == QUEUES


@two_faults
@pytest.mark.parametrize("talk", ["remoting"], indirect=True)
def test_a_name_server_that_misbehaves_is_queried_last(talk: Talk, fault: Fault) -> None:
    """The one that answered last comes first, so a process waits for a hung one once, not with each query."""
    with FaultProxy(talk.namesrv.target) as other:
        both = ClusterAddress(namesrv=f"{other.address};{talk.namesrv.address}")
        fault(other)
        # The other name server must answer in time.
        in_time(lambda: pull.queues(both, ORDERS), 2.0, timeout=2.0)
        asked = other.accepted
        in_time(lambda: pull.queues(both, ORDERS), 0.0, timeout=2.0)
        assert other.accepted == asked
        assert len(pull.queues(both, Topics.matching("ord.*"))) == QUEUES
        assert registered_brokers(ClusterAddress(namesrv=talk.namesrv.address)) == {"broker-a"}


@faults
@pytest.mark.parametrize("talk", ["remoting"], indirect=True)
def test_registered_brokers_are_listed_or_it_fails_in_time(talk: Talk, fault: Fault) -> None:
    """An unresponsive name server must not make queues look deleted."""
    fault(talk.namesrv)

    def ask() -> None:
        with pytest.raises(OutcomeUnknown):
            registered_brokers(ClusterAddress(namesrv=talk.namesrv.address))

    in_time(ask)


def test_many_brokers_that_hang_are_waited_for_together(talk: Talk) -> None:
    """Writing display offsets of all their queues takes the time of one answer."""
    (queue, *_) = talk.queues()
    talk.broker.hang()
    group = GroupOffsets("display", None)
    in_time(lambda: group.write([(replace(queue, queue_id=number), 3) for number in range(400)]))
    group.close()
