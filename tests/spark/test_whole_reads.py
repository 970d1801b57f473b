"""A read by name servers is complete or fails, although routes lack brokers that are down."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from waiting import eventually

import ferromq
from ferromq._ferromq import RemotingClient
from ferromq.broker.controller import BrokerController
from ferromq.config.broker import BrokerConfig
from ferromq.config.namesrv import NameServerConfig
from ferromq.errors import ConnectionFailed, ServerError, TopicNotFound
from ferromq.namesrv.server import NamesrvController
from ferromq.process.clock import Clock
from ferromq.protocol.codes import RequestCode
from ferromq.spark.options import ClusterAddress
from ferromq.spark.read import pull
from ferromq.spark.stream.queue_monitor import QueueMonitor, RetryDeadline, registered_brokers
from ferromq.spark.topics import Topics

FREE = "127.0.0.1:0"
ORDERS = Topics(("orders",))


class Cluster(NamedTuple):
    """A name server and two brokers."""

    namesrv: str
    a: BrokerController
    b: BrokerController

    @property
    def where(self) -> ClusterAddress:
        """Return the address of the cluster."""
        return ClusterAddress(namesrv=self.namesrv)

    def queues(self, topics: Topics = ORDERS) -> set[tuple[str, int]]:
        """Return broker and id of each queue of a read."""
        return {(queue.broker_name, queue.queue_id) for queue in pull.queues(self.where, topics)}

    def lose_b(self) -> None:
        """Stop one of the brokers, and return once its registration has ended."""
        self.b.close()
        assert eventually(lambda: registered_brokers(self.where) == {"a"})


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Run the cluster; both brokers have the topic."""
    clock = Clock.manual(1_700_000_000_000)
    options = {"listen": FREE, "grpc_listen": FREE, "fast_listen": "off", "commit_log_file_size": "1MiB"}
    with contextlib.ExitStack() as stack:
        server = NamesrvController(NameServerConfig(listen=FREE), clock=clock)
        stack.enter_context(contextlib.closing(server))
        brokers = []
        for name in "ab":
            given = {"store": tmp_path / name, "namesrv": server.address, "name": name, **options}
            broker = BrokerController(BrokerConfig.from_options(given), clock=clock)
            brokers.append(stack.enter_context(contextlib.closing(broker)))
        with ferromq.Admin(server.address) as admin:
            admin.create_topic("orders", queues=2)
        yield Cluster(server.address, *brokers)


def put(namesrv: str, namespace: str, key: str, value: str) -> None:
    """Write to the key-value table, as operators do."""
    client = RemotingClient()
    fields = {"namespace": namespace, "key": key, "value": value}
    code, *_ = client.call(namesrv, RequestCode.PUT_KV_CONFIG, fields)
    client.close()
    assert code == 0


BOTH = {("a", 0), ("a", 1), ("b", 0), ("b", 1)}


@pytest.mark.parametrize("topics", [ORDERS, Topics.matching("ord.*")], ids=["name", "pattern"])
def test_a_read_fails_while_a_broker_is_down_until_it_is_taken_out(cluster: Cluster, topics: Topics) -> None:
    """The error names the broker, the topic and what to do."""
    assert cluster.queues(topics) == BOTH
    cluster.lose_b()
    with pytest.raises(ServerError, match=r"the broker b is away and may have queues of .*ord.*take_out_broker\('b'\)"):
        cluster.queues(topics)
    with ferromq.Admin(cluster.namesrv) as admin:
        admin.take_out_broker("b")
    assert cluster.queues(topics) == {("a", 0), ("a", 1)}


def test_a_topic_is_not_missing_while_its_only_broker_is_down(cluster: Cluster) -> None:
    """A topic counts as missing only if all brokers are up."""
    nothing = Topics(("nothing",))
    with pytest.raises(TopicNotFound):
        cluster.queues(nothing)
    cluster.lose_b()
    for topics in (nothing, Topics.matching("no.*")):
        with pytest.raises(ServerError, match="the broker b is away"):
            cluster.queues(topics)


def test_a_broker_in_the_topics_order_configuration_must_be_up(cluster: Cluster) -> None:
    """RocketMQ's brokers can be listed there; order configurations of other topics do not count."""
    put(cluster.namesrv, "ORDER_TOPIC_CONFIG", "returns", "c:4")
    assert cluster.queues() == BOTH
    put(cluster.namesrv, "ORDER_TOPIC_CONFIG", "orders", "a:2;b:2;c:4")
    with pytest.raises(ServerError, match="the broker c is away and may have queues of orders"):
        cluster.queues()


def test_a_new_stream_waits_for_all_brokers(cluster: Cluster) -> None:
    """A stream that knows what it has read goes on without them."""
    cluster.lose_b()
    monitor = QueueMonitor(cluster.where, ORDERS, RetryDeadline(0.0))
    with pytest.raises(ConnectionFailed, match="the broker b is away and may have queues of orders"):
        monitor.look(is_whole=True)
    snapshot = monitor.look([("orders", "a:0"), ("orders", "b:0")])
    assert snapshot.away([("orders", "a:0"), ("orders", "b:0")]) == {("orders", "b:0")}
