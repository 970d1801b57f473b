"""A drained broker: senders leave, consumers and ordered messages stay, and it stops by itself."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from fault_proxy import FaultProxy
from two_brokers import TwoBrokers

import ferromq
from ferromq._ferromq import RemotingClient
from ferromq.broker.controller import BrokerController
from ferromq.config.namesrv import NameServerConfig
from ferromq.core import routes
from ferromq.namesrv.server import NamesrvController
from ferromq.protocol.codes import RequestCode, ResponseCode
from ferromq.protocol.route import TopicRoute

Eventually = Callable[[Callable[[], bool]], bool]


class Cluster(TwoBrokers):
    """Two brokers, of which the first is drained."""

    def __init__(self, directory: Path, stack: contextlib.ExitStack) -> None:
        super().__init__(directory, stack, 1_700_000_000_000)
        self.client = stack.enter_context(contextlib.closing(RemotingClient()))

    def permissions(self, topic: str) -> dict[str, int]:
        """Return what the name server's route allows on each broker."""
        _, _, _, body = self.client.call(
            self.name_server.address,
            RequestCode.GET_ROUTEINFO_BY_TOPIC,
            {"topic": topic, "acceptStandardJsonOnly": "true"},
        )
        return {queue.broker_name: int(queue.permission) for queue in TopicRoute.decode(body).queues}

    def change(self, **fields: str) -> tuple[int, str | None]:
        """Ask the first broker to change its state."""
        code, remark, _, _ = self.client.call(self.a.address, RequestCode.CHANGE_BROKER_STATE, fields)
        return code, remark


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Run a name server and two brokers."""
    with contextlib.ExitStack() as stack:
        yield Cluster(tmp_path, stack)


def test_senders_leave_at_once_and_consumers_empty_it(
    cluster: Cluster, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are told, whatever the age of their routes; the broker stops when it was quiet."""
    monkeypatch.setattr(routes, "MAX_AGE", 3600.0)
    with ferromq.Producer(cluster.a.endpoint) as producer:
        before = {producer.send("orders", b"before") for _ in range(8)}
        assert {receipt.broker_name for receipt in before} == {"a", "b"}
        cluster.admin.drain_broker("a", quiet=30, timeout=60)
        assert eventually(lambda: cluster.permissions("orders") == {"a": 4, "b": 6})
        assert eventually(lambda: {producer.send("orders", b"x").broker_name for _ in range(8)} == {"b"})
    with ferromq.Consumer(cluster.b.endpoint, "billing", "orders") as consumer:
        received = set[str]()
        while not received >= {receipt.message_id for receipt in before}:
            for message in consumer.receive_many(8, wait=10):
                received.add(message.message_id)
                message.ack()
    assert eventually(announced)
    assert {each.name: each.state for each in cluster.admin.cluster()} == {"a": "draining", "b": "serving"}
    cluster.clock.advance(seconds=1)
    cluster.clock.advance(seconds=28)
    assert (cluster.a.state, cluster.stopped) == ("draining", [])
    cluster.clock.advance(seconds=2)
    assert (cluster.a.state, cluster.stopped) == ("drained", ["a"])


def test_message_groups_keep_their_queues(cluster: Cluster, eventually: Eventually) -> None:
    """Their senders wait for this broker, also in order configurations, and do not hold it up."""
    before = cluster.admin.order_configurations()
    cluster.a.drain(quiet=timedelta(seconds=30), timeout=timedelta(seconds=600))
    assert eventually(lambda: cluster.permissions("orders") == {"a": 4, "b": 6})
    assert eventually(announced)
    assert cluster.permissions("accounts") == {"a": 6, "b": 6}
    assert cluster.admin.order_configurations() == before
    with ferromq.Producer(cluster.b.endpoint) as producer:
        for second in range(4):
            places = {producer.send("accounts", b"x", message_group=str(number)).broker_name for number in range(16)}
            assert places == {"a", "b"}, second
            cluster.clock.advance(seconds=10)
    assert cluster.stopped == ["a"]


def test_sends_delay_the_end_until_the_time_is_up(cluster: Cluster) -> None:
    """A client of an older route may go on sending."""
    cluster.a.drain(quiet=timedelta(seconds=30), timeout=timedelta(seconds=60))
    for _ in range(5):
        assert send(cluster, cluster.a) == ResponseCode.SUCCESS
        cluster.clock.advance(seconds=11)
        assert cluster.stopped == []
    assert send(cluster, cluster.a) == ResponseCode.SUCCESS
    cluster.clock.advance(seconds=6)
    assert cluster.stopped == ["a"]


def test_a_second_request_gives_new_times(cluster: Cluster) -> None:
    """They count from then, and the broker stops once."""
    assert cluster.change(state="draining", quietMs="600000", timeoutMs="700000")[0] == ResponseCode.SUCCESS
    cluster.clock.advance(seconds=10)
    assert cluster.change(state="draining", quietMs="1000", timeoutMs="700000")[0] == ResponseCode.SUCCESS
    cluster.clock.advance(seconds=2)
    cluster.clock.advance(seconds=700)
    assert cluster.stopped == ["a"]


def test_an_ended_drain_brings_senders_back(cluster: Cluster, eventually: Eventually) -> None:
    """The broker runs on as before."""
    with ferromq.Producer(cluster.a.endpoint) as producer:
        producer.send("orders", b"x")
        cluster.a.drain(quiet=timedelta(seconds=5), timeout=timedelta(seconds=60))
        assert eventually(lambda: cluster.permissions("orders") == {"a": 4, "b": 6})
        cluster.admin.resume_broker("a")
        cluster.admin.resume_broker("a")
        assert eventually(lambda: cluster.permissions("orders") == {"a": 6, "b": 6})
        assert eventually(lambda: {producer.send("orders", b"x").broker_name for _ in range(8)} == {"a", "b"})
    cluster.clock.advance(seconds=100)
    assert (cluster.a.state, cluster.stopped) == ("serving", [])


def test_registrations_do_not_bring_senders_back(cluster: Cluster, eventually: Eventually) -> None:
    """Neither the periodic one nor that of a new topic nor that with a restarted name server."""
    cluster.a.drain(quiet=timedelta(seconds=3600), timeout=timedelta(seconds=3600))
    assert eventually(lambda: cluster.permissions("orders") == {"a": 4, "b": 6})
    cluster.admin.create_topic("clicks", queues=1)
    cluster.clock.advance(seconds=40)
    assert cluster.permissions("orders") == cluster.permissions("clicks") == {"a": 4, "b": 6}
    address = cluster.name_server.address
    cluster.name_server.close()
    cluster.name_server = cluster.stack.enter_context(
        contextlib.closing(NamesrvController(NameServerConfig(listen=address), clock=cluster.clock))
    )
    cluster.clock.advance(seconds=40)
    assert cluster.permissions("orders") == {"a": 4, "b": 6}


def test_a_single_broker_keeps_grpc_senders_until_it_stops(cluster: Cluster) -> None:
    """They have no other broker to go to."""
    cluster.b.close()
    cluster.a.drain(quiet=timedelta(seconds=5), timeout=timedelta(seconds=60))
    with ferromq.Producer(cluster.a.endpoint) as producer:
        assert producer.send("orders", b"x").broker_name == "a"


@pytest.mark.parametrize("fault", ["gone", "hung"])
def test_a_name_server_that_does_not_answer_delays_nothing(
    cluster: Cluster, eventually: Eventually, fault: str
) -> None:
    """The drain begins at once, and ends on time: while the name server may still answer, when the time is up."""
    begun = threading.Event()
    proxy = cluster.stack.enter_context(FaultProxy(cluster.name_server.address))
    c = cluster.start("c", namesrv=proxy.address, register_timeout="60s")
    {"gone": proxy.refuse, "hung": proxy.hang}[fault]()

    def drain() -> None:
        c.drain(quiet=timedelta(seconds=5), timeout=timedelta(seconds=8))
        begun.set()

    thread = threading.Thread(target=drain)
    thread.start()
    assert begun.wait(10)
    thread.join()
    if fault == "gone":
        assert eventually(announced)
    cluster.clock.advance(seconds=6)
    assert cluster.stopped == (["c"] if fault == "gone" else [])
    cluster.clock.advance(seconds=3)
    assert cluster.stopped == ["c"]


def test_quiet_counts_from_the_moment_that_senders_know(cluster: Cluster, eventually: Eventually) -> None:
    """Before, they had no reason to leave."""
    register, answers = cluster.a._registrar.register, threading.Event()
    cluster.a._registrar.register = lambda: (answers.wait(60), register())[1]  # type: ignore[method-assign]
    cluster.a.drain(quiet=timedelta(seconds=30), timeout=timedelta(seconds=600))
    cluster.clock.advance(seconds=40)
    assert cluster.stopped == []
    answers.set()
    assert eventually(announced)
    cluster.clock.advance(seconds=29)
    assert cluster.stopped == []
    cluster.clock.advance(seconds=2)
    assert cluster.stopped == ["a"]


def test_delayed_messages_beside_ordered_ones_are_no_sends(cluster: Cluster, eventually: Eventually) -> None:
    """The broker delivers them itself."""
    assert send(cluster, cluster.a, properties="DELAY\x014\x02") == ResponseCode.SUCCESS
    before = stored(cluster.a)
    cluster.a.drain(quiet=timedelta(seconds=60), timeout=timedelta(seconds=600))
    assert eventually(announced)
    cluster.clock.advance(seconds=31)
    assert eventually(lambda: stored(cluster.a) == before + 1)
    assert send(cluster, cluster.a, "accounts", "__SHARDINGKEY\x01x\x02") == ResponseCode.SUCCESS
    cluster.clock.advance(seconds=1)
    cluster.clock.advance(seconds=29)
    assert cluster.stopped == ["a"]


def test_a_retry_is_no_send(cluster: Cluster, eventually: Eventually) -> None:
    """A consumer that gives messages back holds up no drain."""
    cluster.a.drain(quiet=timedelta(seconds=30), timeout=timedelta(seconds=600))
    assert eventually(announced)
    cluster.clock.advance(seconds=20)
    assert send(cluster, cluster.a, "%RETRY%billing", times=1) == ResponseCode.SUCCESS
    cluster.clock.advance(seconds=11)
    assert cluster.stopped == ["a"]


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({}, "state is missing"),
        ({"state": "x" * 1000}, "draining, serving, retiring, retired, stopped"),
        ({"state": "draining"}, "quietMs is missing"),
        ({"state": "draining", "quietMs": "soon", "timeoutMs": "1"}, "quietMs"),
        ({"state": "draining", "quietMs": "-1", "timeoutMs": "1"}, "quietMs is -1"),
        ({"state": "draining", "quietMs": "1", "timeoutMs": "9" * 30}, "timeoutMs"),
    ],
)
def test_a_wrong_request_changes_nothing(cluster: Cluster, fields: dict[str, str], named: str) -> None:
    """The answer names the field and what it may be."""
    code, remark = cluster.change(**fields)
    assert (code, named in str(remark)) == (ResponseCode.INVALID_PARAMETER, True)
    assert (cluster.a.state, cluster.stopped) == ("serving", [])


def test_a_stop_by_request(cluster: Cluster) -> None:
    """The process around the broker is told."""
    cluster.admin.stop_broker("a")
    assert cluster.stopped == ["a"]


def test_nothing_ends_or_prolongs_the_drain_of_a_process_that_stops(cluster: Cluster) -> None:
    """A service manager kills it if it does not stop in time."""
    cluster.a.drain(quiet=timedelta(seconds=60), timeout=timedelta(seconds=60), is_final=True)
    code, remark = cluster.change(state="serving")
    assert (code, "start it again" in str(remark)) == (ResponseCode.INVALID_PARAMETER, True)
    assert cluster.change(state="draining", quietMs="600000", timeoutMs="600000")[0] == ResponseCode.SUCCESS
    cluster.clock.advance(seconds=61)
    assert (cluster.a.state, cluster.stopped) == ("drained", ["a"])


def test_a_drained_broker_that_stops_takes_no_messages_again(cluster: Cluster, eventually: Eventually) -> None:
    """It is too late; without a process around it, the broker comes back."""
    cluster.a.drain(quiet=timedelta(seconds=0), timeout=timedelta(seconds=60))
    assert eventually(announced)
    cluster.clock.advance(seconds=1)
    code, remark = cluster.change(state="serving")
    assert (code, "start it again" in str(remark)) == (ResponseCode.INVALID_PARAMETER, True)


def test_a_broker_inside_of_a_program_is_not_stopped() -> None:
    """The program alone does that."""
    with (
        ferromq.embedded() as mq,
        mq.admin() as admin,
        pytest.raises(ferromq.RequestError, match="inside of a program"),
    ):
        admin.stop_broker(mq.broker.identity.name)


def announced() -> bool:
    """Return whether name servers and producers were told, as far as they answer."""
    return all(thread.name != "ferromq-drain-register" for thread in threading.enumerate())


def stored(broker: BrokerController) -> int:
    """Return how many messages came into the topic, sent or delivered."""
    return broker.server.traffic()["put"].get("orders", (0, 0))[0]


def send(
    cluster: Cluster, broker: BrokerController, topic: str = "orders", properties: str = "", *, times: int = 0
) -> int:
    """Send a message over remoting, a consumer's retry after the first time."""
    fields = {"producerGroup": "g", "topic": topic, "queueId": "0", "bornTimestamp": "1", "flag": "0"}
    fields |= {"properties": properties, "reconsumeTimes": str(times)}
    fields |= {"defaultTopic": "TBW102", "defaultTopicQueueNums": "4", "sysFlag": "0"}
    return cluster.client.call(broker.address, RequestCode.SEND_MESSAGE, fields, b"x")[0]
