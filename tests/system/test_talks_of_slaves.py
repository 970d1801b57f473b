"""A slave whose master hangs, is gone, or answers half: it keeps its tables, and asks again."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fault_proxy import FAULTS, Fault, FaultProxy
from grpc_peer import GrpcPeer
from machine import in_load
from ports import kept_port

from ferromq._ferromq import RemotingClient
from ferromq._proto import messages as pb
from ferromq.broker.cluster import replication
from ferromq.broker.controller import BrokerController
from ferromq.config.broker import BrokerConfig
from ferromq.config.namesrv import NameServerConfig
from ferromq.namesrv.server import NamesrvController
from ferromq.process.clock import Clock

UPDATE_TOPIC, SUCCESS = 17, 0
FREE = "127.0.0.1:0"
TIMEOUT = 0.5
# On an idle machine; a call without a bound takes much longer.
SLACK = 1.5
PATIENCE = 10.0


@pytest.fixture
def clock() -> Clock:
    """Return a clock that only the test moves."""
    return Clock.manual(1_700_000_000_000)


@pytest.fixture
def start(no_thread_left: None, clock: Clock, tmp_path: Path) -> Iterator[Callable[..., BrokerController]]:
    """Return a function that runs brokers of one name; they are stopped in time, the last one first."""
    started: list[BrokerController] = []
    name_server = NamesrvController(NameServerConfig(listen=FREE), clock=clock)

    def run(**options: object) -> BrokerController:
        usual = {"listen": FREE, "grpc_listen": FREE, "commit_log_file_size": "1MiB", "namesrv": name_server.address}
        config = BrokerConfig.from_options({"store": tmp_path / str(len(started)), **usual, **options})
        started.append(BrokerController(config, clock=clock))
        return started[-1]

    yield run
    for broker in reversed(started):
        in_time(broker.close)
    name_server.close()


@pytest.fixture
def proxy() -> Iterator[FaultProxy]:
    """Yield a proxy with the port of a master to come."""
    with kept_port() as address, FaultProxy(address) as proxy:
        yield proxy


def in_time(call: Callable[[], object]) -> None:
    """Fail if a call takes long."""
    begin = time.monotonic()
    call()
    assert time.monotonic() - begin < TIMEOUT + in_load(SLACK)


def create(broker: BrokerController, topic: str) -> None:
    """Create a topic, on the broker itself."""
    client = RemotingClient()
    assert client.call(broker.config.listen, UPDATE_TOPIC, {"topic": topic})[0] == SUCCESS
    client.close()


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_slave_keeps_what_it_has_and_follows_again(
    start: Callable[..., BrokerController],
    proxy: FaultProxy,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    fault: Fault,
) -> None:
    """Each question ends in time, the slave serves on, and has everything with the first one that is answered."""
    master = start(listen=proxy.target, advertise=proxy.address, fast_listen="off")
    create(master, "orders")
    slave = start(broker_id=1)
    clock.advance(seconds=3)
    assert slave.topics.get("orders") is not None
    fault(proxy)
    create(master, "clicks")
    # A slave is impatient only here: a busy machine may answer late.
    with monkeypatch.context() as impatient:
        impatient.setattr(replication, "_TIMEOUT", TIMEOUT)
        in_time(lambda: clock.advance(seconds=10))
    assert slave.topics.get("orders") is not None
    assert slave.topics.get("clicks") is None
    with GrpcPeer(slave.endpoint) as peer:
        in_time(lambda: peer.call("Heartbeat", pb.HeartbeatRequest(client_type=pb.ClientType.PRODUCER)))
    proxy.resume()
    clock.advance(seconds=10)
    assert slave.topics.get("clicks") is not None


@pytest.mark.parametrize("fault", [FAULTS["hang"], FAULTS["half_answer"]], ids=["hang", "half_answer"])
def test_a_slave_stops_in_the_middle_of_a_question(
    start: Callable[..., BrokerController],
    proxy: FaultProxy,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    fault: Fault,
) -> None:
    """However long it would wait for the answer."""
    monkeypatch.setattr(replication, "_TIMEOUT", 40.0)
    start(listen=proxy.target, advertise=proxy.address, fast_listen="off")
    slave = start(broker_id=1)
    fault(proxy)
    asking = threading.Thread(target=clock.advance, kwargs={"seconds": 3})
    before = proxy.connections
    asking.start()
    give_up = time.monotonic() + in_load(SLACK)
    while proxy.connections == before and time.monotonic() < give_up:
        time.sleep(0.01)
    in_time(slave.close)
    asking.join(PATIENCE)
    assert not asking.is_alive()
    proxy.resume()
