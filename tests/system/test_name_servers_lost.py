"""Several name servers: brokers and clients use all of them, and go on with any one."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from ports import kept_port

import ferromq
from ferromq._ferromq import RemotingClient
from ferromq.broker.controller import BrokerController
from ferromq.config.broker import BrokerConfig
from ferromq.config.namesrv import NameServerConfig
from ferromq.namesrv.server import NamesrvController
from ferromq.process.clock import Clock

UPDATE_TOPIC, ROUTE = 17, 105
SUCCESS = 0
FREE = "127.0.0.1:0"
Eventually = Callable[[Callable[[], bool]], bool]


@pytest.fixture
def clock() -> Clock:
    """Return a clock that only the test moves."""
    return Clock.manual(1_700_000_000_000)


@pytest.fixture
def name_servers(clock: Clock) -> Iterator[list[NamesrvController]]:
    """Run three name servers."""
    with ExitStack() as kept:
        addresses = [kept.enter_context(kept_port()) for _ in range(3)]
        servers = [NamesrvController(NameServerConfig(listen=address), clock=clock) for address in addresses]
        yield servers
        for server in servers:
            server.close()


@pytest.fixture
def broker(name_servers: list[NamesrvController], clock: Clock, tmp_path: Path) -> Iterator[BrokerController]:
    """Run a broker that has just registered with each of them."""
    addresses = ";".join(server.address for server in name_servers)
    options = {"listen": FREE, "grpc_listen": FREE, "commit_log_file_size": "1MiB"}
    config = BrokerConfig.from_options({"store": tmp_path, "namesrv": addresses, **options})
    controller = BrokerController(config, clock=clock)
    yield controller
    controller.close()


@pytest.fixture
def client() -> Iterator[RemotingClient]:
    """Return a client of the remoting protocol."""
    remoting = RemotingClient()
    yield remoting
    remoting.close()


def test_each_name_server_knows_the_broker(
    name_servers: list[NamesrvController], broker: BrokerController, client: RemotingClient
) -> None:
    """They are independent; the broker registers itself and its changes with each."""
    assert client.call(broker.address, UPDATE_TOPIC, {"topic": "orders"})[0] == SUCCESS
    for server in name_servers:
        assert client.call(server.address, ROUTE, {"topic": "orders"})[0] == SUCCESS


@pytest.mark.parametrize("left", [0, 1, 2])
def test_one_name_server_is_enough(
    name_servers: list[NamesrvController],
    broker: BrokerController,
    client: RemotingClient,
    clock: Clock,
    left: int,
) -> None:
    """Whichever: leases are renewed there, topics are created, messages sent and received."""
    for number, server in enumerate(name_servers):
        if number != left:
            server.close()
    clock.advance(seconds=30)
    assert client.call(broker.address, UPDATE_TOPIC, {"topic": "orders"})[0] == SUCCESS
    clock.advance(seconds=100)
    assert client.call(name_servers[left].address, ROUTE, {"topic": "orders"})[0] == SUCCESS
    with ferromq.Producer(broker.endpoint) as producer:
        producer.send("orders", b"still here")
    with ferromq.Consumer(broker.endpoint, "g", "orders") as consumer:
        assert [message.body for message in consumer.receive(1, wait=20)] == [b"still here"]


def test_a_returning_name_server_learns_everything_again(
    name_servers: list[NamesrvController], broker: BrokerController, client: RemotingClient, clock: Clock
) -> None:
    """With the next registration at the latest."""
    lost = name_servers[0]
    lost.close()
    client.call(broker.address, UPDATE_TOPIC, {"topic": "orders"})
    again = NamesrvController(NameServerConfig(listen=lost.address), clock=clock)
    name_servers.append(again)
    clock.advance(seconds=60)
    assert client.call(again.address, ROUTE, {"topic": "orders"})[0] == SUCCESS


def test_changed_permissions_arrive_at_each_name_server(
    name_servers: list[NamesrvController], broker: BrokerController, client: RemotingClient
) -> None:
    """Permissions change no topic, but routes show them at once."""
    assert client.call(broker.address, UPDATE_TOPIC, {"topic": "orders"})[0] == SUCCESS
    for permission in (4, 6):
        broker.configure(permission=permission)
        for server in name_servers:
            route = server.routes.lookup("orders")
            assert route is not None
            assert [int(queue.permission) for queue in route.queues] == [permission]
