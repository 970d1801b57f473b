"""A name server over sockets: brokers register, are found, and are forgotten in time."""

import contextlib
import json
import socket
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ferromq._ferromq import RemotingClient
from ferromq.config.namesrv import NameServerConfig
from ferromq.errors import ConfigError
from ferromq.namesrv.server import NamesrvController
from ferromq.process.clock import Clock
from ferromq.protocol.route import TopicRoute

PUT_KV, GET_KV, DELETE_KV, REGISTER, UNREGISTER, ROUTE = 100, 101, 102, 103, 104, 105
CLUSTER_INFO, TOPICS, LIST_KV, DATA_VERSION, HEARTBEAT = 106, 206, 219, 322, 904
Eventually = Callable[[Callable[[], bool]], bool]
SUCCESS, SYSTEM_ERROR, NOT_SUPPORTED, TOPIC_NOT_EXIST, NOT_FOUND, INVALID = 0, 1, 3, 17, 22, 29


@pytest.fixture
def clock() -> Clock:
    """Return a clock that only the test moves."""
    return Clock.manual(1_700_000_000_000)


@pytest.fixture
def name_server(clock: Clock, tmp_path: Path) -> Iterator[NamesrvController]:
    """Run a name server on a free port."""
    config = NameServerConfig(listen="127.0.0.1:0", kv_config_path=str(tmp_path / "kvConfig.json"))
    controller = NamesrvController(config, clock=clock)
    yield controller
    controller.close()


@pytest.fixture
def client() -> Iterator[RemotingClient]:
    """Return a client of the remoting protocol."""
    remoting = RemotingClient()
    yield remoting
    remoting.close()


def test_connections_over_the_limit_are_closed(clock: Clock, client: RemotingClient) -> None:
    """The option holds for the listener; the one connection that may be open goes on."""
    controller = NamesrvController(
        NameServerConfig.from_options({"listen": "127.0.0.1:0", "max_connections": 1}), clock=clock
    )
    host, _, port = controller.address.rpartition(":")
    assert client.call(controller.address, TOPICS)[0] == SUCCESS
    with socket.create_connection((host, int(port)), timeout=10) as second:
        assert second.recv(1) == b""
    assert client.call(controller.address, TOPICS)[0] == SUCCESS
    controller.close()


def test_an_address_in_use_names_the_option(name_server: NamesrvController) -> None:
    """And the flags that set it."""
    with pytest.raises(
        OSError, match=rf"cannot listen on {name_server.address}: .*--listen; of ferromq dev --namesrv-listen"
    ):
        NamesrvController(NameServerConfig(listen=name_server.address))


def test_a_table_that_cannot_be_written_stops_the_start(tmp_path: Path) -> None:
    """The error names the option and the path; what is there stays."""
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file" / "kv.json", Path("/proc/kv.json"), tmp_path):
        config = NameServerConfig(listen="127.0.0.1:0", kv_config_path=str(path))
        with pytest.raises(ConfigError, match=rf"kv_config_path is {path}, .*--kv-config"):
            NamesrvController(config)
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_a_table_that_can_no_longer_be_written_is_told(
    tmp_path: Path, client: RemotingClient, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing changes then, and the log has a line."""
    directory = tmp_path / "tables"
    config = NameServerConfig(listen="127.0.0.1:0", kv_config_path=str(directory / "kv.json"))
    with contextlib.closing(NamesrvController(config)) as controller:
        fields = {"namespace": "n", "key": "k", "value": "v"}
        assert list(directory.iterdir()) == []
        assert client.call(controller.address, PUT_KV, fields)[0] == SUCCESS
        directory.rename(tmp_path / "away")
        directory.write_text("")
        for code, value in ((PUT_KV, "w"), (DELETE_KV, "")):
            answer, remark, _, _ = client.call(controller.address, code, {**fields, "value": value})
            assert (answer, "nothing changed" in remark, str(directory) in remark) == (SYSTEM_ERROR, True, True)
        assert client.call(controller.address, GET_KV, fields)[2] == {"value": "v"}
    lines = [record for record in caplog.records if "nothing changed" in record.getMessage()]
    assert len(lines) == 2
    assert not any(record.exc_info for record in caplog.records)


class Broker:
    """A broker as far as a name server sees it, with a connection of its own."""

    def __init__(self, name_server: NamesrvController, name: str = "a", address: str = "10.0.0.1:10911") -> None:
        self.remoting = RemotingClient()
        self.name_server = name_server
        self.fields = {"brokerName": name, "brokerAddr": address, "clusterName": "c", "brokerId": "0"}
        self.topics: dict[str, Any] = {
            "s1": {},
            "s2": {},
            "orders": {"readQueueNums": 4, "writeQueueNums": 4, "perm": 6},
        }
        self.version = {"counter": 1, "stateVersion": 0, "timestamp": 5}

    def body(self) -> bytes:
        """Return the body of a registration."""
        wrapper = {"dataVersion": self.version, "topicConfigTable": self.topics}
        return json.dumps({"topicConfigSerializeWrapper": wrapper, "filterServerList": []}).encode()

    def register(self, **fields: str) -> Any:
        """Register and return the answer."""
        body = self.body()
        checked = {"haServerAddr": "10.0.0.1:10912", "bodyCrc32": str(zlib.crc32(body) & 0x7FFF_FFFF), **fields}
        return self.remoting.call(self.name_server.address, REGISTER, {**self.fields, **checked}, body)


def test_a_registered_broker_is_found_until_it_says_goodbye(
    name_server: NamesrvController, client: RemotingClient
) -> None:
    """By route, in the cluster's list and among the topics."""
    broker = Broker(name_server)
    assert broker.register()[0] == SUCCESS
    code, _, _, body = client.call(name_server.address, ROUTE, {"topic": "orders", "acceptStandardJsonOnly": "true"})
    assert code == SUCCESS
    assert json.loads(body)["brokerDatas"][0]["brokerAddrs"] == {"0": "10.0.0.1:10911"}
    assert TopicRoute.decode(body).queues[0].read_queues == 4
    info = json.loads(client.call(name_server.address, CLUSTER_INFO)[3])
    assert info["clusterAddrTable"] == {"c": ["a"]}
    assert json.loads(client.call(name_server.address, TOPICS)[3]) == {"topicList": ["orders", "s1", "s2"]}
    assert broker.remoting.call(name_server.address, UNREGISTER, broker.fields)[0] == SUCCESS
    code, remark, _, _ = client.call(name_server.address, ROUTE, {"topic": "orders"})
    assert code == TOPIC_NOT_EXIST
    assert remark is not None
    assert "orders" in remark
    assert "create it" in remark
    # Other advice where that one would be refused.
    code, remark, _, _ = client.call(name_server.address, ROUTE, {"topic": "RMQ_SYS_TRACE_TOPIC"})
    assert code == TOPIC_NOT_EXIST
    assert remark is not None
    assert "trace_topic" in remark
    assert "mqadmin updateTopic" not in remark


def test_a_silent_broker_is_forgotten_after_its_lease(
    name_server: NamesrvController, client: RemotingClient, clock: Clock
) -> None:
    """120 s after its last request, and its connection is closed; a heartbeat or a version query renews."""
    broker = Broker(name_server)
    broker.register()
    clock.advance(seconds=100)
    assert client.call(name_server.address, HEARTBEAT, broker.fields)[0] == SUCCESS
    clock.advance(seconds=100)
    assert (
        client.call(name_server.address, DATA_VERSION, broker.fields, json.dumps(broker.version).encode())[0] == SUCCESS
    )
    clock.advance(seconds=120)
    assert client.call(name_server.address, ROUTE, {"topic": "orders"})[0] == SUCCESS
    clock.advance(seconds=11)
    assert client.call(name_server.address, ROUTE, {"topic": "orders"})[0] == TOPIC_NOT_EXIST
    # Over a connection of its own: the one before is closed about now.
    assert Broker(name_server).register()[0] == SUCCESS


def test_the_connection_of_a_silent_broker_is_closed(name_server: NamesrvController, clock: Clock) -> None:
    """So that a hanging broker notices and registers again."""
    broker = Broker(name_server)
    header = json.dumps({"code": REGISTER, "opaque": 1, "extFields": {**broker.fields, "haServerAddr": "x"}}).encode()
    body = broker.body()
    host, _, port = name_server.address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(struct.pack(">ii", 4 + len(header) + len(body), len(header)) + header + body)
        assert connection.recv(4096)
        clock.advance(seconds=131)
        assert connection.recv(4096) == b""


def test_a_broker_may_ask_for_another_lease(
    name_server: NamesrvController, client: RemotingClient, clock: Clock
) -> None:
    """The name server holds it as long as asked."""
    broker = Broker(name_server)
    broker.register(heartbeatTimeoutMillis="10000")
    clock.advance(seconds=10)
    assert client.call(name_server.address, ROUTE, {"topic": "orders"})[0] == SUCCESS
    clock.advance(seconds=10)
    assert client.call(name_server.address, ROUTE, {"topic": "orders"})[0] == TOPIC_NOT_EXIST


def test_a_lost_connection_ends_a_registration_at_once(
    name_server: NamesrvController, client: RemotingClient, eventually: Eventually
) -> None:
    """Without waiting for the lease, and without touching the neighbour."""
    lost, kept = Broker(name_server), Broker(name_server, "b", "10.0.0.2:10911")
    lost.register()
    kept.register()
    lost.remoting.close()

    def names() -> list[str]:
        info = json.loads(client.call(name_server.address, CLUSTER_INFO)[3])
        return list(info["brokerAddrTable"])

    assert eventually(lambda: names() == ["b"])


def test_ten_thousand_topics_are_registered_at_once(name_server: NamesrvController, client: RemotingClient) -> None:
    """In one request, deflated as Java does it, and found."""
    broker = Broker(name_server)
    names = [f"topic-{number}" for number in range(10_000)]
    pieces = [json.dumps(broker.version).encode(), *(f"{name} 8 8 6 SINGLE_TAG".encode() for name in names)]
    sized = [struct.pack(">i", len(piece)) + piece for piece in pieces]
    body = zlib.compress(b"".join([sized[0], struct.pack(">i", len(names)), *sized[1:], struct.pack(">i", 2), b"[]"]))
    fields = {**broker.fields, "haServerAddr": "x", "compressed": "true"}
    assert broker.remoting.call(name_server.address, REGISTER, fields, body, timeout=20.0)[0] == SUCCESS
    assert len(json.loads(client.call(name_server.address, TOPICS)[3])["topicList"]) == 10_000
    assert client.call(name_server.address, ROUTE, {"topic": "topic-9999"})[0] == SUCCESS
    assert broker.remoting.call(name_server.address, UNREGISTER, broker.fields)[0] == SUCCESS
    assert json.loads(client.call(name_server.address, TOPICS)[3])["topicList"] == []


def test_a_damaged_registration_is_refused(name_server: NamesrvController, client: RemotingClient) -> None:
    """By its checksum, its form, a missing field; none of it is used."""
    broker = Broker(name_server)
    code, remark, _, _ = broker.register(bodyCrc32="12345")
    assert code == SYSTEM_ERROR
    assert remark is not None
    assert "CRC32" in remark
    header = {**broker.fields, "haServerAddr": "x"}
    for body in (b"{nope", b'{"topicConfigTable":{"t":[]}}', zlib.compress(b"\xff" * 8), b"\x78\x9c"):
        assert client.call(name_server.address, REGISTER, header, body)[0] == INVALID
    for missing in header.keys() - {"haServerAddr"}:
        fields = {name: value for name, value in header.items() if name != missing}
        code, remark, _, _ = client.call(name_server.address, REGISTER, fields, broker.body())
        assert code == INVALID
        assert remark is not None
        assert missing in remark
    assert json.loads(client.call(name_server.address, TOPICS)[3]) == {"topicList": []}


def test_a_changed_version_is_seen(name_server: NamesrvController) -> None:
    """Query 322 tells whether a broker must register again, and its known version."""
    broker = Broker(name_server)
    ask = json.dumps(broker.version).encode()
    _, _, fields, body = broker.remoting.call(name_server.address, DATA_VERSION, broker.fields, ask)
    assert (fields["changed"], body) == ("true", b"")
    broker.register()
    _, _, fields, body = broker.remoting.call(name_server.address, DATA_VERSION, broker.fields, ask)
    assert (fields["changed"], json.loads(body)) == ("false", broker.version)
    other = json.dumps({**broker.version, "counter": 2}).encode()
    assert broker.remoting.call(name_server.address, DATA_VERSION, broker.fields, other)[2]["changed"] == "true"


def test_keys_and_values_are_kept(name_server: NamesrvController, client: RemotingClient, tmp_path: Path) -> None:
    """They are put, got, listed, deleted, and on disk."""
    address, key = name_server.address, {"namespace": "n", "key": "k"}
    assert client.call(address, GET_KV, key)[0] == NOT_FOUND
    assert client.call(address, PUT_KV, {**key, "value": "v"})[0] == SUCCESS
    assert client.call(address, GET_KV, key)[2] == {"value": "v"}
    assert json.loads(client.call(address, LIST_KV, {"namespace": "n"})[3]) == {"table": {"k": "v"}}
    assert json.loads((tmp_path / "kvConfig.json").read_text()) == {"configTable": {"n": {"k": "v"}}}
    assert client.call(address, DELETE_KV, key)[0] == SUCCESS
    assert json.loads(client.call(address, LIST_KV, {"namespace": "n"})[3]) == {"table": {}}
    assert client.call(address, LIST_KV, {"namespace": "never"})[0] == NOT_FOUND
    assert client.call(address, PUT_KV, key)[0] == INVALID


@pytest.mark.parametrize("code", [54, 10, 12, 99_999])
def test_a_request_it_does_not_know_is_answered(
    name_server: NamesrvController, client: RemotingClient, code: int
) -> None:
    """With code 3, over a connection that goes on: older dashboards probe."""
    assert client.call(name_server.address, code)[0] == NOT_SUPPORTED
    assert client.call(name_server.address, TOPICS)[0] == SUCCESS
