"""What a broker tells its name servers, seen by one that writes down all it is told."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ferromq._ferromq import RemotingClient, Request, Server
from ferromq._time import Clock
from ferromq.broker.controller import BrokerController
from ferromq.config import BrokerConfig

UPDATE_TOPIC, PUT_KV, GET_KV, REGISTER, UNREGISTER = 17, 100, 101, 103, 104
SUCCESS, SYSTEM_ERROR, NOT_FOUND = 0, 1, 22
Answer = tuple[int, str | None, dict[str, str], bytes]


class NameServer:
    """Answers a broker as told, and keeps its requests."""

    def __init__(self, clock: Clock) -> None:
        self.told: list[tuple[int | str, dict[str, str], bytes]] = []
        self.refused = 0
        self.grpc_address: str | None = None
        self.answering = threading.Event()
        self.answering.set()
        self.server = Server(clock.raw)
        for code in (PUT_KV, GET_KV, REGISTER, UNREGISTER):
            self.server.register(code, self.answer)
        self.address = f"127.0.0.1:{self.server.listen_remoting('127.0.0.1:0')}"

    def answer(self, request: Request) -> Answer:
        """Keep the request; refuse registrations while `refused` lasts."""
        self.told.append((request.route, dict(request.fields), request.body))
        self.answering.wait(10)
        if request.route == GET_KV:
            value = self.grpc_address
            return (NOT_FOUND, "none", {}, b"") if value is None else (SUCCESS, None, {"value": value}, b"")
        if request.route == REGISTER and self.refused:
            self.refused -= 1
            return SYSTEM_ERROR, "refused", {}, b""
        return SUCCESS, None, {}, b""

    def codes(self) -> list[int | str]:
        """Return the codes since the last call."""
        codes = [code for code, _, _ in self.told]
        self.last, self.told = self.told[-1:], []
        return codes

    def topics(self) -> list[str]:
        """Return the topics of the last registration."""
        wrapper = json.loads(self.last[0][2])["topicConfigSerializeWrapper"]
        return sorted(wrapper["topicConfigTable"])


@pytest.fixture
def clock() -> Clock:
    """Return a clock that only the test moves."""
    return Clock.manual(1_700_000_000_000)


@pytest.fixture
def name_server(clock: Clock) -> Iterator[NameServer]:
    """Run a name server that writes down."""
    server = NameServer(clock)
    yield server
    server.answering.set()
    server.server.stop()


@pytest.fixture
def broker(name_server: NameServer, clock: Clock, tmp_path: Path) -> Iterator[BrokerController]:
    """Run a broker that has just registered."""
    options = {"listen": "127.0.0.1:0", "grpc_listen": "127.0.0.1:0", "commit_log_file_size": "1MiB"}
    config = BrokerConfig.from_options({"store": tmp_path, "namesrv": name_server.address, **options})
    controller = BrokerController(config, clock=clock)
    yield controller
    controller.close()


def create(broker: BrokerController, name: str) -> None:
    """Create a topic as an administrator."""
    client = RemotingClient()
    assert client.call(broker.address, UPDATE_TOPIC, {"topic": name})[0] == SUCCESS
    client.close()


def test_a_broker_says_all_it_has_to_at_once_and_goodbye(name_server: NameServer, broker: BrokerController) -> None:
    """Its gRPC address before its topics: who sees it in a route finds the way to it."""
    told = {code: fields for code, fields, _ in name_server.told}
    assert name_server.codes() == [GET_KV, PUT_KV, REGISTER]
    assert told[PUT_KV] == {"namespace": "FERROMQ_GRPC", "key": "broker-a", "value": broker.endpoint}
    assert (
        told[REGISTER].items()
        >= {
            "brokerName": "broker-a",
            "brokerAddr": broker.address,
            "clusterName": "DefaultCluster",
            "brokerId": "0",
            "heartbeatTimeoutMillis": "120000",
        }.items()
    )
    assert len(name_server.topics()) > 1
    broker.close()
    assert name_server.codes() == [UNREGISTER]


def test_it_registers_again_every_30_seconds(name_server: NameServer, broker: BrokerController, clock: Clock) -> None:
    """And puts its gRPC address again only where it is lost or changed."""
    name_server.grpc_address = broker.endpoint
    name_server.codes()
    clock.advance(seconds=29)
    assert name_server.codes() == []
    clock.advance(seconds=1)
    assert name_server.codes() == [GET_KV, REGISTER]
    name_server.grpc_address = None
    clock.advance(seconds=30)
    assert name_server.codes() == [GET_KV, PUT_KV, REGISTER]


def test_a_change_is_told_at_once_and_alone(name_server: NameServer, broker: BrokerController) -> None:
    """One topic, not the table; before the administrator has an answer."""
    name_server.codes()
    create(broker, "orders")
    assert name_server.codes() == [REGISTER]
    assert name_server.topics() == ["orders"]


def test_a_name_server_that_refuses_a_change_gets_the_table(name_server: NameServer, broker: BrokerController) -> None:
    """A restarted name server does not know the broker, and takes no single topic of it."""
    name_server.codes()
    name_server.refused = 1
    create(broker, "orders")
    assert name_server.codes() == [REGISTER, GET_KV, PUT_KV, REGISTER]
    assert {"orders", "SELF_TEST_TOPIC", "TBW102"} <= set(name_server.topics())


def test_what_failed_is_told_again_soon(name_server: NameServer, broker: BrokerController, clock: Clock) -> None:
    """After two seconds, not after a whole period; and again, until it is taken."""
    name_server.codes()
    name_server.refused = 3
    create(broker, "orders")
    name_server.codes()
    clock.advance(seconds=2)
    assert name_server.codes() == [GET_KV, PUT_KV, REGISTER]
    clock.advance(seconds=2)
    assert name_server.codes() == [GET_KV, PUT_KV, REGISTER]
    assert "orders" in name_server.topics()
    clock.advance(seconds=2)
    assert name_server.codes() == []
    create(broker, "more")
    assert name_server.codes() == [REGISTER]


def test_a_name_server_that_hangs_keeps_nobody_waiting(
    name_server: NameServer, broker: BrokerController, clock: Clock, eventually: Callable[[Callable[[], bool]], bool]
) -> None:
    """The broker stops in the middle of a registration."""
    name_server.codes()
    name_server.answering.clear()
    period = threading.Thread(target=lambda: clock.advance(seconds=30))
    period.start()
    assert eventually(lambda: name_server.told != [])
    begin = time.monotonic()
    broker.close()
    assert time.monotonic() - begin < 2
    period.join()
