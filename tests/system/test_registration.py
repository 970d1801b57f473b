"""A broker's requests to its name servers, recorded by one of them."""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from machine import in_load

from ferromq._ferromq import RemotingClient, Request, Server
from ferromq.broker.controller import BrokerController
from ferromq.config.broker import BrokerConfig
from ferromq.namesrv import registration_body
from ferromq.process.clock import Clock

UPDATE_TOPIC, HEARTBEAT, DELETE_TOPIC = 17, 34, 215
PUT_KV, GET_KV, REGISTER, UNREGISTER, QUERY_VERSION = 100, 101, 103, 104, 322
SUCCESS, SYSTEM_ERROR, NOT_FOUND = 0, 1, 22
Answer = tuple[int, str | None, dict[str, str], bytes]


class NameServer:
    """Answers a broker as configured, and records its requests."""

    def __init__(self, clock: Clock) -> None:
        self.told: list[tuple[int | str, dict[str, str], bytes]] = []
        self.refused = 0
        self.grpc_address: str | None = None
        self.master: dict[str, str] = {}
        self.version: bytes | None = None
        self.ordered: bytes = b""
        self.answering = threading.Event()
        self.answering.set()
        self.server = Server(clock.raw)
        for code in (PUT_KV, GET_KV, REGISTER, UNREGISTER, QUERY_VERSION):
            self.server.register(code, self.answer)
        self.address = f"127.0.0.1:{self.server.listen_remoting('127.0.0.1:0')}"

    def answer(self, request: Request) -> Answer:
        """Keep the request; refuse registrations while `refused` lasts."""
        self.told.append((request.route, dict(request.fields), request.body))
        self.answering.wait(120)
        if request.route == GET_KV:
            value = self.grpc_address
            return (NOT_FOUND, "none", {}, b"") if value is None else (SUCCESS, None, {"value": value}, b"")
        if request.route == REGISTER and self.refused:
            self.refused -= 1
            return SYSTEM_ERROR, "refused", {}, b""
        if request.route == QUERY_VERSION:
            return SUCCESS, None, {"changed": str(self.version != request.body).lower()}, self.version or b""
        return SUCCESS, None, self.master, self.ordered if request.route == REGISTER else b""

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
    """Run a name server that records."""
    server = NameServer(clock)
    yield server
    server.answering.set()
    server.server.stop()


@pytest.fixture
def start(name_server: NameServer, clock: Clock, tmp_path: Path) -> Iterator[Callable[..., BrokerController]]:
    """Return a function that runs a broker, which has registered when it returns."""
    started: list[BrokerController] = []

    def run(**options: object) -> BrokerController:
        usual = {"listen": "127.0.0.1:0", "grpc_listen": "127.0.0.1:0", "commit_log_file_size": "1MiB"}
        config = BrokerConfig.from_options({"store": tmp_path, "namesrv": name_server.address, **usual, **options})
        started.append(BrokerController(config, clock=clock))
        return started[-1]

    yield run
    for controller in started:
        controller.close()


@pytest.fixture
def broker(start: Callable[..., BrokerController]) -> BrokerController:
    """Run a broker that has just registered."""
    return start()


def create(broker: BrokerController, name: str) -> None:
    """Create a topic as an administrator."""
    client = RemotingClient()
    assert client.call(broker.address, UPDATE_TOPIC, {"topic": name})[0] == SUCCESS
    client.close()


def test_a_broker_registers_everything_at_once_and_unregisters(
    name_server: NameServer, broker: BrokerController, eventually: Callable[[Callable[[], bool]], bool]
) -> None:
    """Its gRPC address before its topics: a client that sees it in a route can reach it."""
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
    assert eventually(lambda: name_server.codes() == [UNREGISTER])


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


def test_a_change_is_registered_at_once_and_alone(name_server: NameServer, broker: BrokerController) -> None:
    """One topic, not the table; before the administrator has an answer."""
    name_server.codes()
    create(broker, "orders")
    assert name_server.codes() == [REGISTER]
    assert name_server.topics() == ["orders"]


def test_a_name_server_that_refuses_a_change_gets_the_table(name_server: NameServer, broker: BrokerController) -> None:
    """A restarted name server does not know the broker, and refuses a single topic."""
    name_server.codes()
    name_server.refused = 1
    create(broker, "orders")
    assert name_server.codes() == [REGISTER, GET_KV, PUT_KV, REGISTER]
    assert {"orders", "SELF_TEST_TOPIC", "TBW102"} <= set(name_server.topics())


def test_a_failed_registration_is_repeated_soon(
    name_server: NameServer, broker: BrokerController, clock: Clock
) -> None:
    """After two seconds, not a whole period; and again, until it succeeds."""
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


def test_a_name_server_that_hangs_delays_no_stop(
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
    assert time.monotonic() - begin < in_load(2)
    period.join()


@pytest.mark.parametrize(("wanted", "period"), [("1s", 10), ("10s", 10), ("45s", 45), ("10m", 60)])
def test_the_period_is_between_10_and_60_seconds(
    wanted: str, period: int, start: Callable[..., BrokerController], name_server: NameServer, clock: Clock
) -> None:
    """RocketMQ's limits; the requested lease outlives four periods."""
    start(register_interval=wanted)
    *_, (_, fields, _) = name_server.told
    assert int(fields["heartbeatTimeoutMillis"]) == max(120_000, 4_000 * period)
    name_server.codes()
    clock.advance(seconds=period - 1)
    assert name_server.codes() == []
    clock.advance(seconds=1)
    assert REGISTER in name_server.codes()


def test_without_force_a_broker_asks_before_it_sends_all_topics(
    start: Callable[..., BrokerController], name_server: NameServer, clock: Clock
) -> None:
    """The first registration is whole; the next only where the name server has another version, or none."""
    broker = start(force_register=False)
    assert REGISTER in name_server.codes()
    wrapper = json.loads(name_server.last[0][2])["topicConfigSerializeWrapper"]
    name_server.version = json.dumps(wrapper["dataVersion"], separators=(",", ":")).encode()
    clock.advance(seconds=30)
    assert name_server.codes() == [QUERY_VERSION]
    name_server.version = None
    clock.advance(seconds=30)
    assert name_server.codes() == [QUERY_VERSION, GET_KV, PUT_KV, REGISTER]
    create(broker, "orders")
    assert name_server.codes() == [REGISTER]
    name_server.version = b"no version"
    clock.advance(seconds=30)
    assert name_server.codes() == [QUERY_VERSION, GET_KV, PUT_KV, REGISTER]


def test_a_registration_may_be_deflated(start: Callable[..., BrokerController], name_server: NameServer) -> None:
    """As Java's name server inflates it, with the checksum of what was sent."""
    start(compress_registration=True)
    *_, (_, fields, body) = name_server.told
    assert fields["compressed"] == "true"
    assert registration_body.is_intact(body, int(fields["bodyCrc32"]))
    found = registration_body.decode(body, "broker-a", compressed=True)
    assert {"SELF_TEST_TOPIC", "TBW102", "BenchmarkTest"} <= found.queues.keys()


def test_routes_have_the_permissions_of_the_broker(
    start: Callable[..., BrokerController], name_server: NameServer
) -> None:
    """The change is registered at once, and can be undone."""
    broker = start(permission=4)
    create(broker, "orders")
    name_server.codes()
    wrapper = json.loads(name_server.last[0][2])["topicConfigSerializeWrapper"]
    assert wrapper["topicConfigTable"]["orders"]["perm"] == 4
    broker.configure(permission=6)
    assert REGISTER in name_server.codes()
    wrapper = json.loads(name_server.last[0][2])["topicConfigSerializeWrapper"]
    assert wrapper["topicConfigTable"]["orders"]["perm"] == 6
    assert wrapper["topicConfigTable"]["TBW102"]["perm"] == 7


def test_a_slave_registers_as_one(start: Callable[..., BrokerController], name_server: NameServer) -> None:
    """With its id and its topics; the gRPC address under its name is the master's."""
    start(broker_id=1)
    [(code, fields, _)] = name_server.told
    assert (code, fields["brokerId"]) == (REGISTER, "1")
    # Nothing serves the log to slaves.
    assert fields["haServerAddr"] == ""
    assert name_server.codes() == [REGISTER]
    assert "TBW102" in name_server.topics()


def test_a_change_of_role_is_registered_at_once(
    start: Callable[..., BrokerController], name_server: NameServer
) -> None:
    """From master to slave and back; the same word again changes nothing."""
    broker = start()
    name_server.codes()
    broker.configure(broker_id=2)
    [(_, fields, _)] = name_server.told
    assert fields["brokerId"] == "2"
    name_server.codes()
    broker.configure(broker_id=2)
    assert name_server.codes() == []
    broker.configure(broker_id=0)
    assert name_server.codes() == [GET_KV, PUT_KV, REGISTER]


def test_the_fast_port_answers_as_the_other_does(start: Callable[..., BrokerController]) -> None:
    """The same requests on a second listener."""
    broker = start(fast_listen="127.0.0.1:0")
    assert broker.fast_address is not None
    assert broker.fast_address != broker.address
    client = RemotingClient()
    assert client.call(broker.fast_address, UPDATE_TOPIC, {"topic": "orders"})[0] == SUCCESS
    client.close()
    assert broker.topics.get("orders") is not None


def test_a_fast_port_that_is_taken_says_what_to_do(start: Callable[..., BrokerController]) -> None:
    """Nothing is left running."""
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError, match="fast_listen=off"):
        start(fast_listen=f"127.0.0.1:{taken.getsockname()[1]}")
    assert start().fast_address is None


@pytest.mark.parametrize("bad", [b"", b"{}", b"[1]", b'{"table":5}'])
def test_a_topic_with_an_order_configuration_is_ordered(
    bad: bytes, broker: BrokerController, name_server: NameServer, clock: Clock
) -> None:
    """As the answer to a registration has it; entries of other topics, or in another form, are ignored."""
    create(broker, "orders")
    create(broker, "clicks")
    name_server.ordered = bad
    clock.advance(seconds=30)
    name_server.ordered = b'{"table":{"orders":"broker-a:4","far":"x:1"}}'
    clock.advance(seconds=30)
    assert {topic.name: topic.order for topic in broker.topics.all() if topic.name in {"orders", "clicks"}} == {
        "orders": True,
        "clicks": False,
    }


def heartbeat(group: str) -> bytes:
    """Return the body of a consumer's heartbeat."""
    consumer = {
        "groupName": group,
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
        "subscriptionDataSet": [],
        "unitMode": False,
    }
    return json.dumps({"clientID": "c", "producerDataSet": [], "consumerDataSet": [consumer]}).encode()


def test_a_heartbeat_waits_for_no_name_server(
    start: Callable[..., BrokerController], name_server: NameServer, eventually: Callable[[Callable[[], bool]], bool]
) -> None:
    """The retry topic that it creates is registered at once, in parallel to the answer."""
    broker = start(register_timeout="120s")
    name_server.codes()
    name_server.answering.clear()
    client = RemotingClient()
    for group in ("g", "h"):
        assert client.call(broker.address, HEARTBEAT, {}, heartbeat(group), timeout=60)[0] == SUCCESS
    client.close()
    assert eventually(lambda: bool(name_server.told))
    assert name_server.codes() == [REGISTER]
    assert name_server.topics() == ["%RETRY%g"]
    name_server.answering.set()
    assert eventually(lambda: bool(name_server.told))
    assert name_server.codes() == [REGISTER]
    assert name_server.topics() == ["%RETRY%h"]


def test_a_deletion_waits_for_no_name_server(
    start: Callable[..., BrokerController], name_server: NameServer, eventually: Callable[[Callable[[], bool]], bool]
) -> None:
    """One registration drops the topic and its retry topics."""
    broker = start(register_timeout="120s")
    create(broker, "orders")
    broker.store.commit_offset("g", "orders", 0, 1)
    create(broker, "%RETRY%g_orders")
    name_server.codes()
    name_server.answering.clear()
    client = RemotingClient()
    assert client.call(broker.address, DELETE_TOPIC, {"topic": "orders"}, timeout=60)[0] == SUCCESS
    client.close()
    name_server.answering.set()
    assert eventually(lambda: any(code == REGISTER for code, _, _ in name_server.told))
    create(broker, "clicks")
    codes = name_server.codes()
    assert codes == [GET_KV, PUT_KV, REGISTER, REGISTER]
    assert broker.topics.find("orders") is None
    assert broker.topics.find("%RETRY%g_orders") is None


def test_an_answer_to_an_earlier_role_is_ignored(
    start: Callable[..., BrokerController], name_server: NameServer, clock: Clock
) -> None:
    """A name server's answer may arrive after the broker changed its role."""
    broker = start(broker_id=1)
    registrar = broker._registrar
    tell = registrar._on_master

    def late(*told: object) -> None:
        registrar._on_master = tell
        name_server.master = {}
        broker.configure(broker_id=2)
        tell(*told)

    name_server.master = {"masterAddr": "127.0.0.1:9"}
    registrar._on_master = late
    clock.advance(seconds=30)
    assert broker.identity.broker_id == 2
    assert broker._role.master is None
