"""Brokers and name servers of both kinds in one cluster: registration, and slaves of the other kind's masters."""

import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import compat_peer
import pytest
from java_processes import JavaBroker, JavaNameServer, free_port
from waiting import eventually

import ferromq
from ferromq import _ferromq
from ferromq._ferromq import RemotingClient
from ferromq.broker.controller import BrokerController
from ferromq.config.broker import BrokerConfig
from ferromq.config.namesrv import NameServerConfig
from ferromq.namesrv.server import NamesrvController
from ferromq.protocol.route import READ_WRITE, Permission, TopicRoute

UPDATE_TOPIC, COMMIT_OFFSET, UPDATE_GROUP = 17, 15, 200
GET_KV, ROUTE, CLUSTER, QUERY_VERSION = 101, 105, 106, 322
# A Java slave asks for the first time a minute after its start.
SMALL = {"commit_log_file_size": "16MiB", "grpc_listen": "127.0.0.1:0"}


class Asking:
    """Sends remoting requests, and fails on an error code."""

    def __init__(self) -> None:
        self.client = RemotingClient()

    def __call__(
        self, address: str, code: int, fields: dict[str, str] | None = None, body: bytes = b""
    ) -> tuple[dict[str, str], bytes]:
        """Send a request; return header and body of the answer."""
        answer, remark, told, content = self.client.call(address, code, fields, body, timeout=20)
        assert answer == 0, remark
        return told, content

    def route(self, name_server: str, topic: str) -> TopicRoute | None:
        """Return the route of a topic, if there is one."""
        code, _, _, body = self.client.call(name_server, ROUTE, {"topic": topic}, timeout=20)
        return TopicRoute.decode(body) if code == 0 else None

    def topic(self, broker: str, name: str, queues: int = 4) -> None:
        """Create a topic."""
        numbers = {"readQueueNums": str(queues), "writeQueueNums": str(queues), "perm": "6", "order": "false"}
        fields = {"topic": name, "defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0"}
        self(broker, UPDATE_TOPIC, {**fields, **numbers})

    def group(self, broker: str, name: str, retries: int) -> None:
        """Create a consumer group."""
        self(broker, UPDATE_GROUP, None, json.dumps({"groupName": name, "retryMaxTimes": retries}).encode())

    def commit(self, broker: str, group: str, topic: str, offset: int) -> None:
        """Commit the offset of queue 0."""
        fields = {"consumerGroup": group, "topic": topic, "queueId": "0", "commitOffset": str(offset)}
        self(broker, COMMIT_OFFSET, fields)


@pytest.fixture(scope="module")
def ask() -> Iterator[Asking]:
    """Return a client that sends requests."""
    asking = Asking()
    yield asking
    asking.client.close()


@pytest.fixture(scope="module")
def java_namesrv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaNameServer]:
    """Run RocketMQ's name server."""
    with JavaNameServer(tmp_path_factory.mktemp("namesrv")) as server:
        yield server


@pytest.fixture(scope="module")
def namesrv() -> Iterator[NamesrvController]:
    """Run a name server of ours."""
    server = NamesrvController(NameServerConfig(listen=f"127.0.0.1:{free_port()}"))
    yield server
    server.close()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., BrokerController]]:
    """Return a function that runs a broker of ours."""
    started: list[BrokerController] = []

    def run(namesrv: str, **options: object) -> BrokerController:
        usual = {"store": tmp_path / f"store-{len(started)}", "listen": f"127.0.0.1:{free_port()}", **SMALL}
        started.append(BrokerController(BrokerConfig.from_options({"namesrv": namesrv, **usual, **options})))
        return started[-1]

    yield run
    for controller in started:
        controller.close()


def saved(store: Path, name: str) -> str:
    """Return a file of a store directory; empty if it is missing."""
    path = store / "config" / name
    return path.read_text() if path.exists() else ""


@pytest.mark.parametrize("is_compressed", [False, True])
def test_our_broker_registers_with_javas_name_server(
    is_compressed: bool, java_namesrv: JavaNameServer, start: Callable[..., BrokerController], ask: Asking
) -> None:
    """Its topics have routes, its gRPC address is in the key-value table; its unregistration works."""
    name = f"ours-{is_compressed}".lower()
    broker = start(java_namesrv.address, name=name, compress_registration=is_compressed)
    told, _ = ask(java_namesrv.address, GET_KV, {"namespace": "FERROMQ_GRPC", "key": name})
    assert told["value"] == broker.endpoint
    ask.topic(broker.address, f"topic-{name}", 5)
    route = ask.route(java_namesrv.address, f"topic-{name}")
    assert route is not None
    assert [(queue.broker_name, queue.write_queues) for queue in route.queues] == [(name, 5)]
    assert [dict(known.addresses) for known in route.brokers] == [{0: broker.address}]
    template = ask.route(java_namesrv.address, "TBW102")
    assert template is not None
    assert name in [queue.broker_name for queue in template.queues]
    broker.close()
    assert eventually(lambda: ask.route(java_namesrv.address, f"topic-{name}") is None)


def test_javas_name_server_gets_the_order_configuration_of_fifo_topics(
    java_namesrv: JavaNameServer, start: Callable[..., BrokerController], ask: Asking
) -> None:
    """It writes none by itself; message groups keep their queues while a broker is absent."""
    brokers = [start(java_namesrv.address, name=name) for name in ("fifo-b", "fifo-a")]
    fields = {"topic": "in-order", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6", "order": "false"}
    fields |= {"defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0"}
    for broker in brokers:
        ask(broker.address, UPDATE_TOPIC, {**fields, "attributes": "+message.type=FIFO"})
    told, _ = ask(java_namesrv.address, GET_KV, {"namespace": "ORDER_TOPIC_CONFIG", "key": "in-order"})
    assert told["value"] == "fifo-a:4;fifo-b:4"
    groups = [f"group-{number}" for number in range(12)]
    with ferromq.Producer(brokers[0].endpoint) as producer:
        before = {group: producer.send("in-order", b"x", message_group=group).queue_id for group in groups}
        brokers[1].close()
        producer._client.common.routes.distrust("in-order")
        stay = [group for group in groups if _ferromq.queue_of_group(group, 8) >= 4]
        assert {group: producer.send("in-order", b"x", message_group=group).queue_id for group in stay} == {
            group: before[group] for group in stay
        }
        route = producer._client.common.routes.known("in-order")
        assert route is not None
        assert [queue.broker_name for queue in route.in_order] == ["fifo-a"] * 4 + ["fifo-b"] * 4


def test_javas_name_server_reports_an_unchanged_version(
    java_namesrv: JavaNameServer, start: Callable[..., BrokerController], ask: Asking
) -> None:
    """A broker without force asks, and learns that nothing changed."""
    broker = start(java_namesrv.address, name="asking", force_register=False)
    version = json.dumps(broker.topics.content.version.to_json()).encode()
    who = {"brokerName": "asking", "brokerAddr": broker.address, "clusterName": "DefaultCluster", "brokerId": "0"}
    told, _ = ask(java_namesrv.address, QUERY_VERSION, who, version)
    assert told["changed"] == "false"
    ask.topic(broker.address, "topic-asking")
    told, _ = ask(java_namesrv.address, QUERY_VERSION, who, version)
    assert told["changed"] == "true"


def test_a_java_broker_registers_with_our_name_server(
    namesrv: NamesrvController, clients: compat_peer.Clients, ask: Asking, tmp_path: Path
) -> None:
    """RocketMQ's own tool finds it there, with its topics."""
    with JavaBroker(tmp_path, namesrv.address) as broker:
        ask.topic(broker.address, "topic-java", 3)
        route = eventually(lambda: ask.route(namesrv.address, "topic-java"))
        assert [(queue.broker_name, queue.read_queues) for queue in route.queues] == [("broker-java", 3)]
        shown = clients.admin("clusterList", "-n", namesrv.address)
        [line] = [line.split() for line in shown.splitlines() if "broker-java" in line]
        assert line[:4] == ["DefaultCluster", "broker-java", "0", broker.address]
        broker.stop()
        assert ask.route(namesrv.address, "topic-java") is None


def test_a_slave_of_ours_follows_a_java_master(
    java_namesrv: JavaNameServer,
    start: Callable[..., BrokerController],
    clients: compat_peer.Clients,
    ask: Asking,
    tmp_path: Path,
) -> None:
    """Topics, groups, offsets and delays arrive; RocketMQ's own tool shows it under its id."""
    with JavaBroker(tmp_path / "master", java_namesrv.address, brokerName="pair") as master:
        ask.topic(master.address, "topic-pair", 6)
        ask.group(master.address, "group-pair", 7)
        ask.commit(master.address, "group-pair", "topic-pair", 42)
        slave = start(java_namesrv.address, name="pair", broker_id=1, sync_interval="1s")
        store = Path(slave.config.store)
        assert eventually(lambda: slave.groups.get("group-pair"))
        topic, group = slave.topics.get("topic-pair"), slave.groups.get("group-pair")
        assert topic is not None
        assert group is not None
        assert (topic.write_queues, group.retries) == (6, 7)
        of_master = json.loads((store / "ferromq" / "master" / "consumerOffset.json").read_text())
        assert of_master["offsetTable"]["topic-pair@group-pair"] == {"0": 42}
        assert "offsetTable" in (store / "ferromq" / "master" / "delayOffset.json").read_text()
        shown = clients.admin("clusterList", "-n", java_namesrv.address)
        lines = [line.split()[:4] for line in shown.splitlines() if " pair " in line]
        assert [line[2:4] for line in lines] == [["0", master.address], ["1", slave.address]]
        # Later changes arrive as well.
        ask.topic(master.address, "topic-later")
        assert eventually(lambda: slave.topics.get("topic-later"))
        assert slave.topics.content.version.counter == json.loads(saved(store, "topics.json"))["dataVersion"]["counter"]


def test_a_java_slave_follows_a_master_of_ours(
    namesrv: NamesrvController, start: Callable[..., BrokerController], ask: Asking, tmp_path: Path
) -> None:
    """It asks on the fast port for topics, elsewhere for the rest, and writes all of it to its files."""
    master = start(namesrv.address, name="couple")
    ask.topic(master.address, "topic-couple", 6)
    ask.group(master.address, "group-couple", 7)
    master.store.adopt_offsets({"topic-couple@group-couple": {0: 42}})
    with JavaBroker(
        tmp_path / "slave", namesrv.address, brokerName="couple", brokerId=1, brokerRole="SLAVE", slaveReadEnable="true"
    ) as slave:
        assert eventually(lambda: "group-couple" in saved(slave.store, "subscriptionGroup.json"))
        assert "topic-couple" in saved(slave.store, "topics.json")
        assert "42" in saved(slave.store, "consumerOffset.json")
        assert "offsetTable" in saved(slave.store, "delayOffset.json")


@pytest.fixture(params=["java_namesrv", "namesrv"])
def name_server(request: pytest.FixtureRequest) -> str:
    """Return the address of a name server of either kind."""
    return str(request.getfixturevalue(request.param).address)


def test_one_topic_lies_on_brokers_of_both_kinds(
    name_server: str, start: Callable[..., BrokerController], clients: compat_peer.Clients, ask: Asking, tmp_path: Path
) -> None:
    """RocketMQ's producer sends to both, its consumer reads both; with either name server."""
    sender, taker = f"sender-{name_server[-5:]}", f"taker-{name_server[-5:]}"
    with JavaBroker(tmp_path, name_server, brokerName="theirs") as theirs:
        ours = start(name_server, name="ours")
        for broker in (theirs.address, ours.address):
            ask.topic(broker, "mixed")
            ask.group(broker, taker, 16)
        clients.start("producer", sender, name_server, sender)
        assert clients.send(sender, "sync", "mixed", "m-", 80, 1) == 80
        clients.start("push", taker, name_server, taker, "mixed", "concurrent", 0)
        assert clients.wait_for(taker, 80) == 80
        taken = clients.taken(taker)
        assert sorted(message.body for message in taken) == sorted(f"m-{number}" for number in range(80))
        assert {message.broker for message in taken} == {"ours", "theirs"}
        for client in (sender, taker):
            clients.ask("close", client)


def test_a_drained_broker_is_read_only_at_javas_name_server(
    java_namesrv: JavaNameServer, ask: Asking, tmp_path: Path
) -> None:
    """It takes the permission under the changed version, and takes it back; ordered topics keep theirs."""
    options = {
        **SMALL,
        "listen": "127.0.0.1:0",
        "fast_listen": "off",
        "namesrv": java_namesrv.address,
        "name": "drains",
    }
    broker = BrokerController(BrokerConfig.from_options({"store": tmp_path, **options}))
    try:
        with ferromq.Admin(java_namesrv.address) as admin:
            for topic, kind in (("drained", "NORMAL"), ("in-order", "FIFO")):
                admin.create_topic(topic, queues=2, message_type=kind, cluster="DefaultCluster")
            configured = admin.order_configurations()
        broker.drain(quiet=timedelta(hours=1), timeout=timedelta(hours=1))
        assert eventually(lambda: permission(ask, java_namesrv.address, "drained") == Permission.READ)
        assert permission(ask, java_namesrv.address, "in-order") == READ_WRITE
        ask.topic(broker.address, "new-meanwhile")
        assert eventually(lambda: permission(ask, java_namesrv.address, "new-meanwhile") == Permission.READ)
        with ferromq.Admin(java_namesrv.address) as admin:
            assert admin.order_configurations() == configured
        broker.resume()
        assert eventually(lambda: permission(ask, java_namesrv.address, "drained") == READ_WRITE)
        assert permission(ask, java_namesrv.address, "new-meanwhile") == READ_WRITE
        with ferromq.Admin(java_namesrv.address) as admin:
            assert "drains" in admin.order_configurations()["in-order"]
            assert not admin.retire_broker("drains", force=True).is_retired
            assert eventually(lambda: permission(ask, java_namesrv.address, "in-order") == Permission.READ)
            assert eventually(lambda: admin.retire_broker("drains", quiet=0, force=True).is_retired)
            assert "drains" not in admin.order_configurations().get("in-order", {})
        assert eventually(lambda: permission(ask, java_namesrv.address, "drained") is None)
    finally:
        broker.close()


def permission(ask: Asking, name_server: str, topic: str) -> Permission | None:
    """Return the permission of the broker `drains` in a route."""
    route = ask.route(name_server, topic)
    return next((queue.permission for queue in route.queues if queue.broker_name == "drains"), None) if route else None
