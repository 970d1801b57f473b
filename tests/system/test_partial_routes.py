"""A partial route is never served as the whole one, whatever fails."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from grpc_peer import GrpcPeer
from machine import in_load

import ferromq
from ferromq._proto import messages as pb
from ferromq.broker.controller import BrokerController
from ferromq.config.broker import BrokerConfig
from ferromq.config.namesrv import NameServerConfig
from ferromq.errors import ServerError
from ferromq.namesrv.server import NamesrvController
from ferromq.process.clock import Clock
from ferromq.spark.read import over_grpc

FREE = "127.0.0.1:0"
GROUPS = [f"customer-{number}" for number in range(20)]
Eventually = Callable[[Callable[[], bool]], bool]
Start = Callable[..., BrokerController]


@pytest.fixture
def clock() -> Clock:
    """Return a clock that only the test moves: routes are as old as it says."""
    return Clock.manual(1_700_000_000_000)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Return a function that starts a broker of this name, stopped after the test."""
    with contextlib.ExitStack() as started:

        def run(name: str, namesrv: str, clock: Clock | None = None) -> BrokerController:
            options = {"listen": FREE, "grpc_listen": FREE, "fast_listen": "off", "commit_log_file_size": "1MiB"}
            options["register_timeout"] = "2s"
            config = {"store": tmp_path / name, "namesrv": namesrv, "name": name, **options}
            broker = BrokerController(BrokerConfig.from_options(config), clock=clock)
            started.callback(broker.close)
            return broker

        yield run


@pytest.fixture
def hung() -> Iterator[str]:
    """Return the address of a name server that takes connections and answers nothing."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def queues(endpoint: str, topic: str) -> list[tuple[str, int]]:
    """Return the writable queues of a topic as a broker tells them, in its order."""
    with GrpcPeer(endpoint) as peer:
        answer = peer.call("QueryRoute", pb.QueryRouteRequest(topic=pb.Resource(name=topic)))
    if answer.status.code != pb.OK:
        raise ServerError(answer.status.message, answer.status.code, answer.status.message)
    return [(queue.broker.name, queue.id) for queue in answer.message_queues if queue.permission == pb.READ_WRITE]


ALL = [(name, queue_id) for name in ("a", "b") for queue_id in range(4)]


@pytest.fixture
def cluster(clock: Clock, start: Start) -> Iterator[tuple[NamesrvController, BrokerController, BrokerController]]:
    """Run a name server and two brokers with a topic on both."""
    name_server = NamesrvController(NameServerConfig(listen=FREE), clock=clock)
    a, b = (start(name, name_server.address, clock) for name in "ab")
    ferromq.Admin(name_server.address).create_topic("orders", queues=4)
    assert queues(a.endpoint, "orders") == queues(b.endpoint, "orders") == ALL
    yield name_server, a, b
    name_server.close()


Cluster = tuple[NamesrvController, BrokerController, BrokerController]


def test_the_last_queues_stay_while_no_name_server_answers(cluster: Cluster, clock: Clock) -> None:
    """However old the answer is: message groups keep their queues, and readers see all rows."""
    name_server, a, b = cluster
    name_server.close()
    clock.advance(seconds=3600)
    assert queues(a.endpoint, "orders") == queues(b.endpoint, "orders") == ALL
    assert len(over_grpc.queues(a.endpoint, "orders")) == len(ALL)


def test_a_change_here_forgets_nothing_of_others(cluster: Cluster) -> None:
    """A topic is altered at one broker while no name server answers."""
    name_server, a, _ = cluster
    name_server.close()
    topic = a.topics.get("orders")
    assert topic is not None
    a.topics.put(topic, {}, "test")
    assert queues(a.endpoint, "orders") == ALL


def test_a_name_server_without_brokers_is_no_authority(cluster: Cluster, clock: Clock) -> None:
    """It has just started: it knows no topics, or only the queues of the first brokers."""
    name_server, a, b = cluster
    name_server.close()
    again = NamesrvController(NameServerConfig(listen=name_server.address), clock=clock)
    try:
        clock.advance(seconds=2)
        for broker in (a, b):
            assert queues(broker.endpoint, "orders") == ALL
    finally:
        again.close()


def test_a_broker_that_was_never_told_the_route_says_so(hung: str, start: Start) -> None:
    """Its own queues may be a part."""
    broker = start("a", hung)
    broker.topics.ensure("orders", "test")
    with pytest.raises(ServerError, match="the complete route of orders is not known"):
        queues(broker.endpoint, "orders")


def test_heartbeats_are_answered_while_a_name_server_hangs(hung: str, start: Start) -> None:
    """However many requests for routes wait: they do not take every handler thread."""
    broker = start("a", hung)
    broker.topics.ensure("orders", "test")
    done = threading.Event()

    def ask() -> None:
        while not done.is_set():
            with contextlib.suppress(ServerError):
                queues(broker.endpoint, "orders")

    threads = [threading.Thread(target=ask) for _ in range(12)]
    for thread in threads:
        thread.start()
    try:
        slowest = max(heartbeat(broker.endpoint) for _ in range(30))
    finally:
        done.set()
        for thread in threads:
            thread.join()
    # A question to the name server takes three.
    assert slowest < in_load(1)


def heartbeat(endpoint: str) -> float:
    """Return the seconds that the answer to a heartbeat took."""
    begin = time.monotonic()
    with GrpcPeer(endpoint) as peer:
        peer.call("Heartbeat", pb.HeartbeatRequest(client_type=pb.ClientType.PRODUCER))
    return time.monotonic() - begin


def knows_of(name_server: NamesrvController, broker: str) -> bool:
    """Say whether a broker is registered."""
    return broker in name_server.routes.cluster_info()["brokerAddrTable"]


def test_a_reader_is_told_of_a_broker_that_is_away(cluster: Cluster, clock: Clock, eventually: Eventually) -> None:
    """Its rows are not silently missing; producers see its queues closed, and send elsewhere."""
    _, a, b = cluster
    assert len(over_grpc.queues(a.endpoint, "orders")) == len(ALL)
    b.close()
    clock.advance(seconds=2)
    assert eventually(lambda: queues(a.endpoint, "orders") == ALL[:4])
    with pytest.raises(ServerError, match="the broker b has queues of orders and is away"):
        over_grpc.queues(a.endpoint, "orders")


def test_a_reader_is_told_of_a_broker_that_was_away_before_the_first_question(
    cluster: Cluster, start: Start, eventually: Eventually
) -> None:
    """A broker that just started does not know whether the other has rows; an administrator does."""
    name_server, _, b = cluster
    b.close()
    assert eventually(lambda: not knows_of(name_server, "b"))
    c = start("c", name_server.address)
    for _ in range(2):
        with pytest.raises(ServerError, match="the broker b is away and may have queues of orders"):
            over_grpc.queues(c.endpoint, "orders")
    assert queues(c.endpoint, "orders") == ALL[:4]
    ferromq.Admin(name_server.address).take_out_broker("b")
    assert len(over_grpc.queues(c.endpoint, "orders")) == 4


def test_a_removed_broker_is_not_missed(cluster: Cluster, clock: Clock, eventually: Eventually) -> None:
    """As the error says."""
    name_server, a, b = cluster
    b.close()
    assert eventually(lambda: not knows_of(name_server, "b"))
    name_server.kv_config.put("FERROMQ_GRPC", "b", "gone")
    clock.advance(seconds=2)
    assert len(over_grpc.queues(a.endpoint, "orders")) == 4


def test_a_topic_that_was_deleted_elsewhere_is_not_missed(
    cluster: Cluster, clock: Clock, eventually: Eventually
) -> None:
    """Its broker is there, and answers that it no longer has it."""
    name_server, a, b = cluster
    b.topics.delete("orders", "test")
    name_server.routes.delete_topic("orders")
    a.topics.push_all()
    clock.advance(seconds=60)
    assert eventually(lambda: name_server.routes.lookup("orders") is not None)
    assert queues(a.endpoint, "orders") == ALL[:4]
    assert len(over_grpc.queues(a.endpoint, "orders")) == 4
