"""Message groups keep their queues while brokers come and go, by the topic's order configuration."""

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from grpc_peer import GrpcPeer
from machine import in_load
from ports import kept_port

import ferromq
from ferromq import _ferromq
from ferromq._ferromq import RemotingClient
from ferromq._proto import messages as pb
from ferromq.broker.cluster import route_cache
from ferromq.broker.controller import BrokerController
from ferromq.broker.metadata.topics import TopicConfig
from ferromq.config.broker import BrokerConfig
from ferromq.config.namesrv import NameServerConfig
from ferromq.errors import OutcomeUnknown, RequestError
from ferromq.namesrv.server import NamesrvController
from ferromq.process.clock import Clock
from ferromq.spark.read import over_grpc

FREE = "127.0.0.1:0"
GROUPS = [f"customer-{number}" for number in range(12)]
TOPIC, ORDER = "orders", "ORDER_TOPIC_CONFIG"
UPDATE_TOPIC, PUT_KV, WIPE, ADD, ROUTE = 17, 100, 205, 327, 105
Eventually = Callable[[Callable[[], bool]], bool]


@dataclass
class Cluster:
    """A name server and two brokers with a FIFO topic of four queues on both."""

    directory: Path
    clock: Clock
    stack: contextlib.ExitStack
    kv_config_path: str = ""

    def __post_init__(self) -> None:
        self.name_server = self.stack.enter_context(contextlib.closing(self.name_server_at(self.kept())))
        self.a, self.b = (self.broker(name, listen=self.kept(), grpc_listen=self.kept()) for name in "ab")
        self.stack.enter_context(contextlib.closing(self.admin)).create_topic(TOPIC, queues=4, message_type="FIFO")

    def kept(self) -> str:
        """Return the address of a port that is kept for a server until the end of the test."""
        return self.stack.enter_context(kept_port())

    @property
    def admin(self) -> ferromq.Admin:
        """A new administrator."""
        return ferromq.Admin(self.name_server.address)

    def name_server_at(self, address: str) -> NamesrvController:
        """Start a name server."""
        config = NameServerConfig(listen=address, kv_config_path=self.kv_config_path, order_messages=True)
        return NamesrvController(config, clock=self.clock)

    def broker(self, name: str, **options: str) -> BrokerController:
        """Start a broker, or start it again."""
        given = {"listen": FREE, "grpc_listen": FREE, "fast_listen": "off", "commit_log_file_size": "1MiB", **options}
        config = {"store": self.directory / name, "namesrv": self.name_server.address, "name": name, **given}
        broker = BrokerController(BrokerConfig.from_options(config), clock=self.clock)
        self.stack.callback(broker.close)
        return broker

    def again(self, broker: BrokerController) -> BrokerController:
        """Start a broker that was stopped where it was."""
        return self.broker(broker.config.name, listen=broker.address, grpc_listen=broker.endpoint)

    @property
    def order(self) -> str | None:
        """The order configuration."""
        return self.name_server.kv_config.get(ORDER, TOPIC)

    def counted(self, broker: BrokerController, topic: str = TOPIC) -> list[tuple[str, int]]:
        """Return the queues of the order configuration, from a broker's route."""
        with GrpcPeer(broker.endpoint) as peer:
            answer = peer.call("QueryRoute", pb.QueryRouteRequest(topic=pb.Resource(name=topic)))
        assert answer.status.code == pb.OK, answer.status.message
        writable = {pb.WRITE, pb.READ_WRITE}
        return [(queue.broker.name, queue.id) for queue in answer.message_queues if queue.permission in writable]


ALL = [(name, queue_id) for name in "ab" for queue_id in range(4)]


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """Run a cluster, whose brokers wait for the newest route."""
    monkeypatch.setattr(route_cache, "_RENEWAL_SECONDS", 10)
    with contextlib.ExitStack() as stack:
        yield Cluster(tmp_path, Clock.manual(1_700_000_000_000), stack)


@pytest.fixture
def remoting() -> Iterator[RemotingClient]:
    """Return a client of the remoting protocol."""
    with contextlib.closing(RemotingClient()) as client:
        yield client


ON_A, ON_B = ([g for g in GROUPS if ALL[_ferromq.queue_of_group(g, len(ALL))][0] == name] for name in "ab")


def places(producer: ferromq.Producer, groups: list[str]) -> dict[str, int]:
    """Send a message of each group, and return the queue its receipt names."""
    return {group: producer.send(TOPIC, group.encode(), message_group=group, timeout=30).queue_id for group in groups}


def test_a_fifo_topic_has_an_order_configuration(cluster: Cluster, remoting: RemotingClient) -> None:
    """From its creation on, sorted by broker; remoting clients get it with the route."""
    assert cluster.order == "a:4;b:4"
    body = remoting.call(cluster.name_server.address, ROUTE, {"topic": TOPIC})[3]
    assert b'"orderTopicConf":"a:4;b:4"' in body
    cluster.admin.alter_topic(TOPIC, queues=6)
    assert cluster.order == "a:6;b:6"


def test_groups_keep_their_queues_while_a_broker_is_away(cluster: Cluster) -> None:
    """Other groups go on, its own wait and fail with its name; a new producer chooses the same queues."""
    with ferromq.Producer(cluster.a.endpoint) as producer:
        before = places(producer, GROUPS)
        cluster.b.close()
        cluster.clock.advance(seconds=200)
        assert cluster.counted(cluster.a) == ALL
        with ferromq.Producer(cluster.a.endpoint) as other:
            for each in (producer, other):
                assert places(each, ON_A) == {group: before[group] for group in ON_A}
                with pytest.raises(
                    OutcomeUnknown, match=r"on the broker b, .* mqadmin updateOrderConf -m put -t orders -v 'a:4'"
                ):
                    each.send(TOPIC, b"x", message_group=ON_B[0], timeout=0.3)
            again = cluster.again(cluster.b)
            assert places(other, GROUPS) == places(producer, GROUPS) == before
            assert cluster.counted(again) == ALL


def test_a_broker_without_the_topic_tells_the_same_queues(cluster: Cluster) -> None:
    """It may be one of a producer's endpoints, or the only one."""
    c = cluster.broker("c")
    assert cluster.counted(c) == ALL
    cluster.b.close()
    cluster.clock.advance(seconds=1)
    assert cluster.counted(c) == ALL
    assert cluster.counted(cluster.broker("d")) == ALL


def test_a_topic_whose_only_broker_is_away_is_not_created_elsewhere(cluster: Cluster, eventually: Eventually) -> None:
    """Its groups would go to other queues, though it is in the order configuration."""
    cluster.a.topics.put(TopicConfig("alone", 4, 4), {"message.type": "FIFO"}, "test")
    assert eventually(lambda: cluster.name_server.kv_config.get(ORDER, "alone") == "a:4")
    cluster.a.close()
    cluster.clock.advance(seconds=1)
    c = cluster.broker("c")
    assert cluster.counted(c, "alone") == ALL[:4]
    assert c.topics.get("alone") is None


def test_groups_go_on_while_the_only_endpoint_is_away(cluster: Cluster) -> None:
    """The producer knows the other broker from its route, and asks it for the next."""
    with ferromq.Producer(cluster.a.endpoint) as producer:
        before = places(producer, GROUPS)
        cluster.a.close()
        producer._client.common.routes.distrust(TOPIC)
        begin = time.monotonic()
        assert places(producer, ON_B) == {group: before[group] for group in ON_B}
        assert time.monotonic() - begin < in_load(3)


def test_submitted_messages_of_other_brokers_do_not_wait(cluster: Cluster) -> None:
    """Though several groups of one that is away take the threads that send."""
    with ferromq.Producer(cluster.a.endpoint, timeout=30) as producer:
        before = places(producer, GROUPS)
        cluster.b.close()
        waiting = [producer.submit(TOPIC, b"x", message_group=group) for group in ON_B]
        for group in ON_A:
            producer.submit(TOPIC, b"x", message_group=group).result(timeout=10)
        assert not any(future.done() for future in waiting)
        cluster.again(cluster.b)
        assert {group: future.result(timeout=30).queue_id for group, future in zip(ON_B, waiting, strict=True)} == {
            group: before[group] for group in ON_B
        }


def test_submitted_messages_of_a_broker_that_is_away_leave_room_in_time(cluster: Cluster) -> None:
    """All fail with its name after their timeout; senders that wait for space go on."""
    with ferromq.Producer(cluster.a.endpoint, timeout=1, max_pending_bytes=4 << 20) as producer:
        places(producer, GROUPS)
        cluster.b.close()
        late = [producer.submit(TOPIC, b"x" * 600_000, message_group=ON_B[0]) for _ in range(20)]
        fine = [producer.submit(TOPIC, b"x", message_group=group) for group in ON_A]
        assert all(future.result(timeout=20).queue_offset for future in fine)
        for future in late:
            with pytest.raises(OutcomeUnknown, match=r"on the broker b, .*SendMessage|on the broker b, .*connect"):
                future.result(timeout=20)


def test_a_topic_of_a_broker_that_is_away_holds_up_no_other(cluster: Cluster) -> None:
    """Messages without a group do not take all sending threads, either."""
    cluster.b.topics.put(TopicConfig("clicks", 4, 4), {}, "test")
    endpoints = f"{cluster.a.endpoint};{cluster.b.endpoint}"
    with ferromq.Producer(endpoints, timeout=30) as producer:
        places(producer, GROUPS)
        producer.send("clicks", b"x")
        cluster.b.close()
        late = [producer.submit("clicks", b"x" * 600_000) for _ in range(6)]
        for group in ON_A:
            producer.submit(TOPIC, b"x", message_group=group).result(timeout=10)
        assert not any(future.done() for future in late)
        producer.close(0.1)


def test_an_operator_takes_a_broker_out(cluster: Cluster, remoting: RemotingClient) -> None:
    """By mqadmin updateOrderConf, even a live one, whose queues are still read; the rest is sorted."""
    cluster.b.close()
    cluster.clock.advance(seconds=1)
    fields = {"namespace": ORDER, "key": TOPIC, "value": "a:4"}
    remoting.call(cluster.name_server.address, PUT_KV, fields)
    assert cluster.counted(cluster.a) == ALL[:4]
    remoting.call(cluster.name_server.address, PUT_KV, {**fields, "value": "b:4;a:4"})
    assert cluster.order == "a:4;b:4"


def test_an_administrator_takes_a_broker_out(cluster: Cluster) -> None:
    """A registered one is refused."""
    assert cluster.admin.order_configurations() == {TOPIC: {"a": 4, "b": 4}}
    with pytest.raises(RequestError, match="the broker b is registered"):
        cluster.admin.take_out_broker("b")
    cluster.b.close()
    assert cluster.admin.take_out_broker("b") == [TOPIC]
    assert cluster.admin.order_configurations() == {TOPIC: {"a": 4}}
    assert cluster.counted(cluster.a) == ALL[:4]
    assert len(over_grpc.queues(cluster.a.endpoint, TOPIC)) == 4
    assert cluster.admin.take_out_broker("b") == []


def test_a_broker_that_may_not_be_written_is_out(cluster: Cluster, remoting: RemotingClient) -> None:
    """By wipeWritePerm, and until addWritePerm."""
    address = cluster.name_server.address
    remoting.call(address, WIPE, {"brokerName": "b"})
    assert cluster.order == "a:4"
    assert cluster.counted(cluster.a) == ALL[:4]
    remoting.call(address, ADD, {"brokerName": "b"})
    assert cluster.order == "a:4;b:4"
    cluster.b.configure(permission=4)
    assert cluster.order == "a:4"


def test_a_broker_that_may_be_written_again_is_back_in_one_an_operator_wrote(
    cluster: Cluster, remoting: RemotingClient
) -> None:
    """Of a topic that is not for messages in order; RocketMQ's clients do not see the place it keeps meanwhile."""
    address, topic = cluster.name_server.address, {"topic": "clicks"}
    cluster.admin.create_topic("clicks", queues=4, message_type="NORMAL")
    remoting.call(address, PUT_KV, {"namespace": ORDER, "key": "clicks", "value": "b:4"})
    remoting.call(address, WIPE, {"brokerName": "b"})
    assert cluster.admin.order_configurations()["clicks"] == {}
    assert b"orderTopicConf" not in remoting.call(address, ROUTE, topic)[3]
    remoting.call(address, ADD, {"brokerName": "b"})
    assert cluster.admin.order_configurations()["clicks"] == {"b": 4}
    assert b'"orderTopicConf":"b:4"' in remoting.call(address, ROUTE, topic)[3]


@pytest.fixture
def like_rocketmq(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have name servers leave order configurations to brokers, as RocketMQ's do."""
    monkeypatch.setattr(
        "ferromq.namesrv.order_configurations.OrderConfigurationUpdater.follow", lambda _orders, _changes: None
    )


@pytest.mark.usefixtures("like_rocketmq")
def test_a_part_that_was_overwritten_is_completed_soon(cluster: Cluster) -> None:
    """By a broker with an older value; an operator's later change stays."""
    assert cluster.order == "a:4;b:4"
    cluster.name_server.kv_config.put(ORDER, TOPIC, "b:4")
    cluster.clock.advance(seconds=2)
    assert cluster.order == "a:4;b:4"
    cluster.clock.advance(seconds=60)
    cluster.name_server.kv_config.put(ORDER, TOPIC, "b:4")
    cluster.clock.advance(seconds=60)
    assert cluster.order == "b:4"


@pytest.mark.usefixtures("like_rocketmq")
@pytest.mark.parametrize("named", ["DefaultCluster", None])
def test_a_topic_that_is_deleted_has_none(cluster: Cluster, named: str | None) -> None:
    """With the parts of absent brokers, also if the name server leaves that to others."""
    cluster.b.close()
    cluster.admin.delete_topic(TOPIC, cluster=named)
    assert [cluster.order] == [""]


def test_a_name_server_that_lost_its_table_gets_it_again(cluster: Cluster, eventually: Eventually) -> None:
    """With the absent broker."""
    cluster.b.close()
    cluster.clock.advance(seconds=60)
    assert cluster.counted(cluster.a) == ALL
    cluster.name_server.close()
    cluster.name_server = cluster.name_server_at(cluster.name_server.address)
    cluster.stack.callback(cluster.name_server.close)
    cluster.clock.advance(seconds=60)
    assert eventually(lambda: cluster.order == "a:4;b:4")
    assert cluster.counted(cluster.a) == ALL


def test_a_receipt_names_the_queue_the_message_is_in(cluster: Cluster) -> None:
    """Producer and broker choose a group's queue each by a hash of its own; the broker's counts."""
    with ferromq.Producer(cluster.a.endpoint) as producer:
        receipts = {g: producer.send(TOPIC, g.encode(), message_group=g) for g in GROUPS}
        many = producer.send_all(TOPIC, [ferromq.Message(b"%d" % n, message_group=GROUPS[0]) for n in range(3)])
    sent = {g.encode(): receipt for g, receipt in receipts.items()}
    sent |= {b"%d" % number: receipt for number, receipt in enumerate(many)}
    received: dict[bytes, tuple[int, int]] = {}
    with ferromq.Consumer(cluster.a.endpoint, "g", TOPIC) as consumer:
        while len(received) < len(sent):
            batch = consumer.receive(32, wait=20)
            assert batch
            received |= {message.body: (message.queue_id, message.queue_offset) for message in batch}
            consumer.ack(batch)
    assert received == {body: (receipt.queue_id, receipt.queue_offset) for body, receipt in sent.items()}
    assert {receipt.queue_id for receipt in many} == {receipts[GROUPS[0]].queue_id}
