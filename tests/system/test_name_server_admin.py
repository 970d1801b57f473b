"""Requests of administrators and brokers to a name server beside routes."""

import json
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from remoting_peer import Peer

from ferromq._ferromq import Clock as RawClock
from ferromq._ferromq import RemotingClient, Request, Server
from ferromq.config.namesrv import NameServerConfig
from ferromq.namesrv.server import NamesrvController
from ferromq.process.clock import Clock
from ferromq.protocol.route import TopicRoute

PUT_KV, DELETE_KV, REGISTER, UNREGISTER, ROUTE, WIPE, TOPICS = 100, 102, 103, 104, 105, 205, 206
DELETE_TOPIC, REGISTER_TOPIC = 216, 217
BY_CLUSTER, SYSTEM_TOPICS, UNIT, UNIT_SUB, SUB_ONLY, SET_CONFIG, GET_CONFIG, ADD = (
    224,
    304,
    311,
    312,
    313,
    318,
    319,
    327,
)
MEMBERS, MINIMUM_CHANGED = 901, 905
SUCCESS, SYSTEM_ERROR, NO_PERMISSION, TOPIC_NOT_EXIST, INVALID = 0, 1, 16, 17, 29
Eventually = Callable[[Callable[[], bool]], bool]
Call = Callable[..., tuple[int, str | None, dict[str, str], bytes]]


@pytest.fixture
def clock() -> Clock:
    """Return a clock that only the test moves."""
    return Clock.manual(1_700_000_000_000)


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    """Return the file of the name server's options."""
    file = tmp_path / "namesrv.conf"
    file.write_text("bindAddress=127.0.0.1\nlistenPort=0\n")
    return file


@pytest.fixture
def name_server(clock: Clock, config_file: Path) -> Iterator[NamesrvController]:
    """Run a name server on a free port."""
    config = NameServerConfig.load(config_file, environment={})
    controller = NamesrvController(config, config_file=config_file, clock=clock)
    yield controller
    controller.close()


@pytest.fixture
def call(name_server: NamesrvController) -> Iterator[Call]:
    """Return a function that asks the name server."""
    client = RemotingClient()

    def ask(
        code: int, fields: dict[str, str] | None = None, body: bytes = b""
    ) -> tuple[int, str | None, dict[str, str], bytes]:
        return client.call(name_server.address, code, fields, body)

    yield ask
    client.close()


def register(call: Call, topics: dict[str, dict[str, int]] | None = None, **fields: str) -> Any:
    """Register a master of the cluster `c` and return the answer."""
    table = {"s1": {}, "s2": {}, **(topics or {"orders": {"perm": 6, "readQueueNums": 4, "writeQueueNums": 4}})}
    wrapper = {"dataVersion": {"counter": 1, "timestamp": 5}, "topicConfigTable": table}
    body = json.dumps({"topicConfigSerializeWrapper": wrapper, "filterServerList": []}).encode()
    broker = {"brokerName": "a", "brokerAddr": "10.0.0.1:10911", "clusterName": "c", "brokerId": "0", **fields}
    return call(
        REGISTER, {"haServerAddr": "10.0.0.1:10912", "bodyCrc32": str(zlib.crc32(body) & 0x7FFFFFFF), **broker}, body
    )


def listed(call: Call, code: int, **fields: str) -> Any:
    """Return a list of topics."""
    answer = call(code, fields)
    assert answer[0] == SUCCESS
    return json.loads(answer[3])


def test_the_write_permission_of_a_broker_is_taken_and_given(call: Call) -> None:
    """Of all its topics; the answer has their number."""
    register(call)
    assert call(WIPE, {"brokerName": "a"})[2] == {"wipeTopicCount": "3"}
    assert json.loads(call(ROUTE, {"topic": "orders"})[3])["queueDatas"][0]["perm"] == 4
    assert call(ADD, {"brokerName": "a"})[2] == {"addTopicCount": "3"}
    assert json.loads(call(ROUTE, {"topic": "orders"})[3])["queueDatas"][0]["perm"] == 6
    assert call(WIPE, {"brokerName": "nobody"})[2] == {"wipeTopicCount": "0"}
    assert call(WIPE)[0] == INVALID


def test_topics_are_listed_in_every_way(call: Call) -> None:
    """By cluster, by unit, and those of the system with the address of a broker that knows more."""
    register(call, {"unit": {"topicSysFlag": 1}, "sub": {"topicSysFlag": 2}, "both": {"topicSysFlag": 3}})
    assert listed(call, BY_CLUSTER, cluster="c") == {"topicList": ["both", "s1", "s2", "sub", "unit"]}
    assert listed(call, BY_CLUSTER, cluster="other") == {"topicList": []}
    assert listed(call, UNIT) == {"topicList": ["both", "unit"]}
    assert listed(call, UNIT_SUB) == {"topicList": ["both", "sub"]}
    assert listed(call, SUB_ONLY) == {"topicList": ["sub"]}
    assert listed(call, SYSTEM_TOPICS) == {"brokerAddr": "10.0.0.1:10911", "topicList": ["a", "c"]}


def test_lists_can_be_switched_off(call: Call) -> None:
    """The answer names the option."""
    register(call)
    assert call(SET_CONFIG, None, b"enableTopicList=false\nenableAllTopicList=false\n")[0] == SUCCESS
    for code, key in ((TOPICS, "enableAllTopicList"), (BY_CLUSTER, "enableTopicList"), (UNIT, "enableTopicList")):
        answer = call(code, {"cluster": "c"})
        assert answer[0] == SYSTEM_ERROR
        assert key in (answer[1] or "")


def test_one_topic_is_registered_after_its_broker(call: Call) -> None:
    """As a Java broker does that registers single topics."""
    queues = [{"brokerName": "a", "perm": 6, "readQueueNums": 2, "writeQueueNums": 2, "topicSysFlag": 0}]
    body = json.dumps({"queueDatas": queues}).encode()
    code, remark, _, _ = call(REGISTER_TOPIC, {"topic": "new"}, body)
    assert code == SYSTEM_ERROR
    assert "broker a is not registered" in (remark or "")
    register(call)
    assert call(REGISTER_TOPIC, {"topic": "new"}, body)[0] == SUCCESS
    assert TopicRoute.decode(call(ROUTE, {"topic": "new"})[3]).queues[0].write_queues == 2
    for damaged in (b"[", b'{"queueDatas":[{}]}', b'{"queueDatas":5}'):
        assert call(REGISTER_TOPIC, {"topic": "new"}, damaged)[0] == INVALID


def test_the_members_of_a_broker_name_are_told(call: Call) -> None:
    """Masters and slaves; none without a registration."""
    register(call)
    register(call, brokerId="1", brokerAddr="10.0.0.2:10911")
    for name, addresses in (("a", {"0": "10.0.0.1:10911", "1": "10.0.0.2:10911"}), ("b", {})):
        body = call(MEMBERS, {"clusterName": "c", "brokerName": name})[3]
        expected = {"brokerMemberGroup": {"brokerAddrs": addresses, "brokerName": name, "cluster": "c"}}
        assert json.loads(body) == expected


def test_an_order_configuration_is_part_of_the_route_where_switched_on(call: Call) -> None:
    """RocketMQ's tools put it in a namespace of its own; brokers are told with their registration."""
    assert register(call)[3] == b""
    call(PUT_KV, {"namespace": "ORDER_TOPIC_CONFIG", "key": "orders", "value": "a:4"})
    assert "orderTopicConf" not in json.loads(call(ROUTE, {"topic": "orders"})[3])
    assert json.loads(register(call)[3]) == {"table": {"orders": "a:4"}}
    assert call(SET_CONFIG, None, b"orderMessageEnable=true\nreturnOrderTopicConfigToBroker=false")[0] == SUCCESS
    assert json.loads(call(ROUTE, {"topic": "orders"})[3])["orderTopicConf"] == "a:4"
    assert register(call)[3] == b""


def test_a_route_is_looked_up_once_until_it_changes(name_server: NamesrvController, call: Call) -> None:
    """Then answered without Python, and looked up again after each change."""
    client = {"topic": "orders", "acceptStandardJsonOnly": "true"}

    def changed() -> bool:
        """Look up twice, the second time from memory; return whether the first one was not."""
        before = name_server._server.stats()["routes"]
        first = call(ROUTE, client)
        is_looked_up = name_server._server.stats()["routes"] == before
        assert call(ROUTE, client) == first
        assert name_server._server.stats()["routes"] > before
        return is_looked_up

    register(call)
    assert [changed(), changed()] == [True, False]
    register(call)
    assert not changed()
    order = {"namespace": "ORDER_TOPIC_CONFIG", "key": "orders", "value": "a:4"}
    body = json.dumps(
        {"queueDatas": [{"brokerName": "a", "perm": 4, "readQueueNums": 1, "writeQueueNums": 1}]}
    ).encode()
    changes: list[tuple[int, dict[str, str], bytes]] = [
        (PUT_KV, order, b""),
        (DELETE_KV, order, b""),
        (SET_CONFIG, {}, b"orderMessageEnable=true"),
        (WIPE, {"brokerName": "a"}, b""),
        (ADD, {"brokerName": "a"}, b""),
        (REGISTER_TOPIC, {"topic": "orders"}, body),
    ]
    for change in changes:
        assert call(*change)[0] == SUCCESS
        assert changed(), change
    register(call, brokerId="1", brokerAddr="10.0.0.2:10911")
    assert changed()
    assert call(PUT_KV, {**order, "key": "other"})[0] == SUCCESS
    assert not changed()
    assert call(DELETE_TOPIC, {"topic": "orders"})[0] == SUCCESS
    assert call(ROUTE, client)[0] == TOPIC_NOT_EXIST


def test_old_clients_get_the_old_form(name_server: NamesrvController, call: Call) -> None:
    """Broker ids without quotes, the first time and from memory; standard JSON on request."""
    register(call)
    old, new = b'"brokerAddrs":{0:"10.0.0.1:10911"}', b'"brokerAddrs":{"0":"10.0.0.1:10911"}'
    with Peer(name_server.address, version=400) as before, Peer(name_server.address, version=401) as after:
        for _ in range(2):
            assert old in before.call(ROUTE, {"topic": "orders"}).body
            assert new in after.call(ROUTE, {"topic": "orders"}).body
            assert new in before.call(ROUTE, {"topic": "orders", "acceptStandardJsonOnly": "true"}).body


def test_a_lookup_waits_for_no_registration(name_server: NamesrvController, call: Call) -> None:
    """While a large table is taken over, routes that were looked up before are answered."""
    register(call)
    client = {"topic": "orders", "acceptStandardJsonOnly": "true"}
    before = call(ROUTE, client)
    with name_server.routes._lock:
        assert call(ROUTE, client) == before


def test_a_client_may_ask_for_the_brokers_of_its_zone(call: Call) -> None:
    """Brokers register theirs; one without a master serves all zones."""
    register(call, __ZONE_NAME="east")
    register(call, __ZONE_NAME="west", brokerName="b", brokerAddr="10.0.0.2:10911")

    def brokers(**fields: str) -> list[str]:
        route = TopicRoute.decode(call(ROUTE, {"topic": "orders", **fields})[3])
        assert [queue.broker_name for queue in route.queues] == [broker.broker_name for broker in route.brokers]
        return [broker.broker_name for broker in route.brokers]

    assert brokers() == ["a", "b"]
    assert brokers(__ZONE_NAME="West") == ["a", "b"]
    assert brokers(__ZONE_NAME="West", __ZONE_MODE="true") == ["b"]


def test_options_are_shown_and_changed_while_it_runs(call: Call, config_file: Path) -> None:
    """A change takes effect at once and is in the file; an option that cannot change is named."""
    shown = dict(line.split("=", 1) for line in call(GET_CONFIG)[3].decode().splitlines())
    assert (shown["bindAddress"], shown["orderMessageEnable"]) == ("127.0.0.1", "false")
    assert call(SET_CONFIG, None, b"supportActingMaster=true\n")[0] == SUCCESS
    assert b"supportActingMaster=true\n" in call(GET_CONFIG)[3]
    assert config_file.read_text() == "bindAddress=127.0.0.1\nlistenPort=0\nsupportActingMaster=true\n"
    for key, code in (("kvConfigPath", NO_PERMISSION), ("listenPort", INVALID), ("nonsense", INVALID)):
        answer = call(SET_CONFIG, None, f"{key}=1".encode())
        assert answer[0] == code
        assert key in (answer[1] or "")
    assert call(SET_CONFIG)[0] == SUCCESS
    assert call(SET_CONFIG, None, b"\xff")[0] == INVALID


def test_the_scan_for_ended_leases_follows_its_option(name_server: NamesrvController, call: Call, clock: Clock) -> None:
    """From the moment of the change."""
    register(call, heartbeatTimeoutMillis="1000")
    assert call(SET_CONFIG, None, b"scanNotActiveBrokerInterval=2000")[0] == SUCCESS
    clock.advance(seconds=1.5)
    assert name_server.routes.lookup("orders") is not None
    clock.advance(seconds=0.5)
    assert name_server.routes.lookup("orders") is None


def test_routes_wait_for_the_brokers_where_asked(call: Call, clock: Clock) -> None:
    """So that a restarted name server does not show half a cluster."""
    register(call)
    assert call(SET_CONFIG, None, b"needWaitForService=true\nwaitSecondsForService=30")[0] == SUCCESS
    code, remark, _, _ = call(ROUTE, {"topic": "orders"})
    assert code == SYSTEM_ERROR
    assert "not ready" in (remark or "")
    clock.advance(seconds=30)
    assert call(ROUTE, {"topic": "orders"})[0] == SUCCESS


def test_brokers_are_told_of_a_new_lowest_id(call: Call, eventually: Eventually) -> None:
    """If enabled, by request 905, when the master of a name with an acting master leaves."""
    told: list[dict[str, str]] = []

    def keep(request: Request) -> tuple[int, str | None, dict[str, str], bytes]:
        told.append(dict(request.fields))
        return SUCCESS, None, {}, b""

    slave = Server(RawClock.system())
    slave.register(MINIMUM_CHANGED, keep)
    address = f"127.0.0.1:{slave.listen_remoting('127.0.0.1:0')}"
    try:
        assert call(SET_CONFIG, None, b"notifyMinBrokerIdChanged=true")[0] == SUCCESS
        register(call, enableActingMaster="true")
        register(call, brokerId="1", brokerAddr=address, enableActingMaster="true")
        master = {"brokerName": "a", "brokerAddr": "10.0.0.1:10911", "clusterName": "c", "brokerId": "0"}
        assert call(UNREGISTER, master)[0] == SUCCESS
        assert eventually(lambda: bool(told))
    finally:
        slave.stop()
    assert (
        told[0].items() >= {"minBrokerId": "1", "minBrokerAddr": address, "offlineBrokerAddr": "10.0.0.1:10911"}.items()
    )


def test_the_key_value_table_is_logged_every_ten_minutes(
    call: Call, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """Each entry with its namespace."""
    call(PUT_KV, {"namespace": "n", "key": "k", "value": "v"})
    caplog.set_level("INFO", "ferromq.namesrv")
    clock.advance(minutes=9.9)
    assert "key-value" not in caplog.text
    clock.advance(minutes=0.2)
    assert "key-value entry namespace=n key=k value=v" in caplog.text
