"""
A broker whose name server hangs, is gone, or answers half: it goes on, and registers again.

Between them is a `FaultProxy`; a second name server is reached without one, and must not notice.
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fault_proxy import FAULTS, Fault, FaultProxy
from grpc_peer import GrpcPeer
from machine import in_load

import ferromq
from ferromq._ferromq import RemotingClient
from ferromq._proto import messages as pb
from ferromq.broker.controller import BrokerController
from ferromq.config.broker import BrokerConfig
from ferromq.config.namesrv import NameServerConfig
from ferromq.namesrv.server import NamesrvController
from ferromq.process.clock import Clock

UPDATE_TOPIC = 17
SUCCESS = 0
FREE = "127.0.0.1:0"
REGISTER_TIMEOUT = 0.5
# On an idle machine; a call without a bound takes much longer.
SLACK = 1.5
Eventually = Callable[[Callable[[], bool]], bool]


@pytest.fixture
def clock() -> Clock:
    """Return a clock that only the test moves."""
    return Clock.manual(1_700_000_000_000)


@pytest.fixture
def name_servers(clock: Clock) -> Iterator[list[NamesrvController]]:
    """Run two name servers."""
    servers = [NamesrvController(NameServerConfig(listen=FREE), clock=clock) for _ in range(2)]
    yield servers
    for server in servers:
        server.close()


@pytest.fixture
def proxy(name_servers: list[NamesrvController]) -> Iterator[FaultProxy]:
    """Yield a proxy before the first of them."""
    with FaultProxy(name_servers[0].address) as proxy:
        yield proxy


@pytest.fixture
def start(
    no_thread_left: None, name_servers: list[NamesrvController], proxy: FaultProxy, clock: Clock, tmp_path: Path
) -> Iterator[Callable[[], BrokerController]]:
    """Return a function that starts a broker; it is stopped at the end, in time whatever the name server does."""
    started: list[BrokerController] = []

    def start() -> BrokerController:
        options = {
            "namesrv": f"{proxy.address};{name_servers[1].address}",
            "register_timeout": f"{REGISTER_TIMEOUT}s",
            "commit_log_file_size": "1MiB",
        }
        config = BrokerConfig.from_options({"store": tmp_path, "listen": FREE, "grpc_listen": FREE, **options})
        started.append(BrokerController(config, clock=clock))
        return started[0]

    yield start
    begin = time.monotonic()
    for broker in started:
        broker.close()
    assert time.monotonic() - begin < in_load(SLACK)


def in_time(call: Callable[[], object], seconds: float = REGISTER_TIMEOUT) -> None:
    """Fail if a call takes longer."""
    begin = time.monotonic()
    call()
    assert time.monotonic() - begin < seconds + in_load(SLACK)


def create(broker: BrokerController, topic: str) -> None:
    """Create a topic."""
    client = RemotingClient()
    assert client.call(broker.address, UPDATE_TOPIC, {"topic": topic})[0] == SUCCESS
    client.close()


def knows(name_server: NamesrvController, topic: str) -> bool:
    """Say whether a name server has the route of a topic."""
    return name_server.routes.lookup(topic) is not None


def learns(name_server: NamesrvController, topic: str, clock: Clock) -> bool:
    """Let the broker register again, and say whether a name server has the route of a topic."""
    clock.advance(seconds=2)
    return knows(name_server, topic)


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_broker_serves_on_and_registers_again(
    start: Callable[[], BrokerController],
    name_servers: list[NamesrvController],
    proxy: FaultProxy,
    clock: Clock,
    eventually: Eventually,
    *,
    fault: Fault,
) -> None:
    """The other name server gets each change at once, clients notice nothing, and the first one catches up."""
    broker = start()
    create(broker, "before")
    fault(proxy)
    in_time(lambda: create(broker, "away"))
    assert eventually(lambda: knows(name_servers[1], "away"))
    with GrpcPeer(broker.endpoint) as peer:
        in_time(lambda: peer.send("away", "x"))
        received = peer.receive("g", "away", wait=10)
        assert [message.body for message in received] == ["x"]
        assert peer.ack("g", "away", received[0]) == pb.Code.OK
        in_time(lambda: peer.call("Heartbeat", pb.HeartbeatRequest(client_type=pb.ClientType.PRODUCER)))
    # The periodic registration, too, is one of which the other name server notices nothing.
    in_time(lambda: clock.advance(seconds=30), 3 * REGISTER_TIMEOUT)
    assert eventually(lambda: knows(name_servers[1], "away"))
    proxy.resume()
    assert eventually(lambda: learns(name_servers[0], "away", clock))


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_broker_starts_without_it(
    start: Callable[[], BrokerController],
    name_servers: list[NamesrvController],
    proxy: FaultProxy,
    clock: Clock,
    eventually: Eventually,
    *,
    fault: Fault,
) -> None:
    """In time, registered with the other one; and with this one soon after it answers."""
    fault(proxy)
    in_time(start)
    assert eventually(lambda: knows(name_servers[1], "TBW102"))
    proxy.resume()
    assert eventually(lambda: learns(name_servers[0], "TBW102", clock))


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_broker_stops_without_it(
    start: Callable[[], BrokerController],
    name_servers: list[NamesrvController],
    proxy: FaultProxy,
    eventually: Eventually,
    *,
    fault: Fault,
) -> None:
    """In time, and the other one hears its good-bye."""
    broker = start()
    fault(proxy)
    in_time(broker.close)
    assert eventually(lambda: not knows(name_servers[1], "TBW102"))


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_routes_are_answered_meanwhile(
    start: Callable[[], BrokerController],
    name_servers: list[NamesrvController],
    proxy: FaultProxy,
    fault: Fault,
) -> None:
    """From the other name server; many at once do not delay heartbeats."""
    broker = start()
    create(broker, "orders")
    fault(proxy)
    with ferromq.Producer(broker.endpoint) as producer:
        in_time(lambda: producer.send("orders", b"x"), 3.0)
    with GrpcPeer(broker.endpoint) as peer:
        asked = pb.QueryRouteRequest(topic=pb.Resource(name="orders"))
        asked.endpoints.scheme = pb.AddressScheme.IPv4
        asked.endpoints.addresses.add(host="127.0.0.1", port=1)
        for _ in range(3):
            in_time(lambda: peer.call("QueryRoute", asked))
            in_time(lambda: peer.call("Heartbeat", pb.HeartbeatRequest(client_type=pb.ClientType.PRODUCER)))
        assert peer.call("QueryRoute", asked).status.code == pb.Code.OK


def test_a_slow_name_server_is_one_that_answers(
    name_servers: list[NamesrvController],
    proxy: FaultProxy,
    start: Callable[[], BrokerController],
    clock: Clock,
    eventually: Eventually,
) -> None:
    """Within the timeout: a registration, its renewal and the good-bye."""
    proxy.delay(REGISTER_TIMEOUT / 10)
    broker = start()
    assert eventually(lambda: knows(name_servers[0], "TBW102"))
    clock.advance(seconds=30)
    broker.close()
    assert eventually(lambda: not knows(name_servers[0], "TBW102"))
