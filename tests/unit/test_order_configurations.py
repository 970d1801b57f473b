"""Order configurations follow registrations of masters; brokers that leave stay in them."""

import json
from collections.abc import Callable

import pytest

from ferromq.broker.cluster.identity import BrokerIdentity
from ferromq.broker.cluster.name_server_session import AckedState, RegistrationAnswer
from ferromq.broker.cluster.order_configurations import NameServerTable, OrderConfigurations
from ferromq.broker.metadata.tables import TableContent
from ferromq.broker.metadata.topics import TopicConfig
from ferromq.namesrv.kv_config import KvConfig
from ferromq.namesrv.order_configurations import OrderConfigurationUpdater
from ferromq.namesrv.route_info import RouteInfoManager
from ferromq.namesrv.route_types import RegisteredTopics, Registration
from ferromq.protocol.namespaces import ORDER_NAMESPACE
from ferromq.protocol.order_configuration import canonical, parts, with_part
from ferromq.protocol.route import MASTER, READ_WRITE, DataVersion, Permission, QueueData


class NameServer:
    """The tables of one, without sockets."""

    def __init__(self) -> None:
        self.kv_config = KvConfig()
        self.changed: list[list[str]] = []
        self.routes = RouteInfoManager(on_order=OrderConfigurationUpdater(self.kv_config, self.changed.append).follow)
        self._version = 0

    def register(
        self,
        broker: str,
        queues: int,
        *,
        in_order: bool = True,
        is_normal: bool = False,
        broker_id: int = MASTER,
        perm: Permission = READ_WRITE,
        cluster: str = "c",
    ) -> None:
        """Register a broker with two topics, of which the first is in order, or normal, or has no type."""
        self._version += 1
        found = {"t": QueueData(broker, queues, queues, perm), "other": QueueData(broker, 1, 1)}
        names, none = frozenset({"t"}), frozenset[str]()
        registered = RegisteredTopics(
            DataVersion(1, self._version),
            found,
            None,
            in_order=names if in_order and not is_normal else none,
            of_other_types=names if is_normal else none,
        )
        self.routes.register(Registration(cluster, f"{broker}:{broker_id}", broker, broker_id), registered, 0, None)

    @property
    def order(self) -> str | None:
        """The order configuration of the first topic."""
        return self.kv_config.get(ORDER_NAMESPACE, "t")


@pytest.fixture
def server() -> NameServer:
    """Return an empty one."""
    return NameServer()


def test_each_master_enters_its_queues(server: NameServer) -> None:
    """Sorted by name; clients get new routes if anything changed."""
    server.register("b", 4)
    server.register("a", 2)
    assert server.order == "a:2;b:4"
    server.register("a", 2)
    assert server.changed == [["t"], ["t"]]
    server.register("a", 8)
    assert server.order == "a:8;b:4"
    assert server.kv_config.get(ORDER_NAMESPACE, "other") is None


def test_a_broker_that_leaves_stays_in_the_configuration(server: NameServer) -> None:
    """By unregistering, a closed connection, or the end of the lease; a broker that returns has its place."""
    server.register("a", 4)
    server.register("b", 4)
    server.routes.unregister(Registration("c", "a:0", "a", MASTER))
    server.routes.expire(1 << 60)
    assert server.order == "a:4;b:4"
    server.register("a", 4)
    assert server.order == "a:4;b:4"


def test_read_only_queues_do_not_count(server: NameServer) -> None:
    """By the topic's permission, or the broker's; slaves do not count."""
    server.register("a", 4)
    server.register("b", 4)
    server.register("b", 4, perm=Permission.READ)
    assert server.order == "a:4"
    server.register("b", 4)
    server.register("a", 9, broker_id=1)
    assert server.order == "a:4;b:4"
    server.routes.wipe_write_permission("a")
    assert server.order == "b:4"
    server.routes.add_write_permission("a")
    assert server.order == "a:4;b:4"
    server.routes.delete_topic("t")
    assert not server.order


def test_another_topic_has_one_where_an_operator_gave_it(server: NameServer) -> None:
    """It is kept as it is until the broker's queues change."""
    server.register("a", 4, in_order=False)
    assert [server.order] == [None]
    server.kv_config.put(ORDER_NAMESPACE, "t", "a:2;c:1")
    server.register("b", 4, in_order=False)
    server.routes.unregister(Registration("c", "a:0", "a", MASTER))
    server.register("a", 4, in_order=False)
    assert server.order == "a:2;c:1"
    server.register("a", 6, in_order=False)
    assert server.order == "a:6;c:1"


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("b:1;a:2", "a:2;b:1"),
        ("b:0;a:2", "a:2;b:0"),
        ("", ""),
        ("a:2;", "a:2"),
        ("what else", "what else"),
        ("b:x;a:2", "b:x;a:2"),
    ],
)
def test_a_configuration_of_an_operator_is_sorted(text: str, written: str) -> None:
    """Another form is left unchanged."""
    assert canonical(text) == written


def test_a_topic_that_becomes_one_in_order_counts_every_broker(server: NameServer) -> None:
    """The first message of a group decides its type at one broker; the others have it already."""
    server.register("a", 4, in_order=False)
    server.register("b", 4, in_order=False)
    server.register("a", 4, in_order=True)
    assert server.order == "a:4;b:4"


def test_a_topic_that_was_deleted_takes_nothing_of_its_order_along(server: NameServer) -> None:
    """Neither if it returns with another type or none, nor from an absent broker."""
    server.register("a", 4)
    server.register("b", 4)
    server.routes.unregister(Registration("c", "b:0", "b", MASTER))
    server.routes.delete_topic("t")
    assert [server.order] == [""]
    server.register("a", 4, in_order=False)
    assert [server.order] == [""]
    server.register("a", 6)
    assert server.order == "a:6"


def test_a_topic_of_another_type_is_out(server: NameServer) -> None:
    """An administrator changes one broker after the other; an operator's configuration counts again then."""
    server.register("a", 4)
    server.register("b", 4)
    server.register("a", 4, is_normal=True)
    assert server.order == "b:4"
    server.register("a", 6, is_normal=True)
    server.register("b", 6)
    server.routes.wipe_write_permission("a")
    server.routes.add_write_permission("a")
    assert server.order == "b:6"
    server.register("b", 6, is_normal=True)
    assert [server.order] == [""]
    server.kv_config.put(ORDER_NAMESPACE, "t", "a:6")
    server.register("a", 8, is_normal=True)
    assert server.order == "a:8"
    server.register("a", 8)
    assert server.order == "a:8"


def test_parts_are_read_and_written() -> None:
    """A broker's name may hold a colon."""
    assert parts("b:2;x:y:1;a:3") == {"a": 3, "b": 2, "x:y": 1}
    assert with_part("a:3;b:2", "b", 0) == "a:3"
    assert with_part(None, "b", 2) == "b:2"


class Writer:
    """A broker that writes the order configuration of one topic at a name server of RocketMQ, which does not."""

    def __init__(self, name: str, table: dict[str, str]) -> None:
        topic = TopicConfig("t", 4, 4, attributes={"message.type": "FIFO"})
        self._now = AckedState(
            BrokerIdentity(name, "c", "127.0.0.1:1", "127.0.0.1:2"), TableContent(DataVersion(1, 1), {"t": topic})
        )
        self._orders = OrderConfigurations()
        self._table = table
        self.written: set[str] = set()

    def round(
        self,
        *,
        before: bool = True,
        answer: str | None = None,
        is_told: bool = True,
        put: Callable[[str, str], object] | None = None,
    ) -> None:
        """Take part in a round of registration, in which the name server answers its current or older value."""
        table = self._table if answer is None else {"t": answer}
        told = RegistrationAnswer({}, json.dumps({"table": table}).encode()) if is_told else None
        at = NameServerTable(self._table.get, put or self._table.__setitem__)
        self.written = self._orders.registered(self._now if before else None, self._now, told, at, self.written)


def test_what_another_broker_wrote_since_the_answer_stays() -> None:
    """RocketMQ's name server leaves the writing to brokers, and may answer before it has all of them."""
    there = {"t": "a:4;c:4"}
    Writer("b", there).round(before=False, answer="c:4")
    assert there == {"t": "a:4;b:4;c:4"}


@pytest.mark.parametrize("is_told", [True, False])
def test_a_part_that_another_broker_overwrote_comes_back_with_the_next_round(*, is_told: bool) -> None:
    """It read the value before this one wrote it; with or without a change to register."""
    there: dict[str, str] = {}
    a, b = Writer("a", there), Writer("b", there)

    def put_between(topic: str, text: str) -> None:
        there[topic] = text
        assert text == "b:4"
        a.round(before=False)
        assert there == {"t": "a:4;b:4"}
        # The same, had it been written a moment later.
        there[topic] = text

    b.round(before=False, put=put_between)
    assert there == {"t": "b:4"}
    a.round(is_told=is_told)
    assert there == {"t": "a:4;b:4"}
    for writer in (a, b, a, b):
        writer.round(is_told=is_told)
    assert there == {"t": "a:4;b:4"}
    assert not a.written | b.written


def test_a_part_that_an_operator_took_out_later_stays_out() -> None:
    """Once a round after its write found it there."""
    there: dict[str, str] = {}
    a = Writer("a", there)
    a.round(before=False)
    a.round()
    there["t"] = "b:4"
    a.round()
    a.round(is_told=False)
    assert there == {"t": "b:4"}


def test_a_broker_without_write_permission_keeps_its_place_in_one_an_operator_wrote(server: NameServer) -> None:
    """It counts again with its queues, also after a restart of the name server; no client sees the place."""
    server.kv_config.put(ORDER_NAMESPACE, "t", "a:4;b:4")
    server.register("a", 4, in_order=False)
    server.register("b", 4, in_order=False)
    server.routes.wipe_write_permission("b")
    assert server.order == "a:4;b:0"
    assert parts(server.order) == {"a": 4}
    server.routes.add_write_permission("b")
    assert server.order == "a:4;b:4"
    server.register("b", 4, in_order=False, perm=Permission.READ)
    assert server.order == "a:4;b:0"
    server.routes.unregister(Registration("c", "b:0", "b", MASTER))
    server.register("b", 4, in_order=False)
    assert server.order == "a:4;b:4"


def test_a_broker_that_an_operator_took_out_gets_no_place(server: NameServer) -> None:
    """Nor does one that never had one."""
    server.kv_config.put(ORDER_NAMESPACE, "t", "a:4")
    server.register("a", 4, in_order=False)
    server.register("b", 4, in_order=False)
    server.routes.wipe_write_permission("b")
    server.routes.add_write_permission("b")
    assert server.order == "a:4"


@pytest.mark.parametrize("in_order", [True, False])
def test_deletion_with_a_cluster_takes_its_brokers_that_are_away(server: NameServer, *, in_order: bool) -> None:
    """Those of other clusters stay, even absent ones."""
    server.kv_config.put(ORDER_NAMESPACE, "t", "a:4;b:4;x:4;y:4")
    for cluster, names in (("c", "ab"), ("other", "xy")):
        for name in names:
            server.register(name, 4, in_order=in_order, cluster=cluster)
    for cluster, name in (("c", "b"), ("other", "y")):
        server.routes.unregister(Registration(cluster, f"{name}:0", name, MASTER))
    server.routes.delete_topic("t", "typing error")
    assert server.order == "a:4;b:4;x:4;y:4"
    server.routes.delete_topic("t", "c")
    assert server.order == "x:4;y:4"
    server.routes.delete_topic("t", "other")
    assert [server.order] == [""]


def test_deletion_with_a_cluster_takes_brokers_that_were_away_since_the_start(server: NameServer) -> None:
    """Their cluster is unknown; if no other cluster has the topic, they belong to this one."""
    server.kv_config.put(ORDER_NAMESPACE, "t", "a:4;b:4")
    server.register("a", 4)
    server.routes.delete_topic("t", "c")
    assert [server.order] == [""]
    server.kv_config.put(ORDER_NAMESPACE, "t", "a:4;b:4;x:4")
    server.register("x", 4, cluster="other")
    server.routes.delete_topic("t", "c")
    assert server.order == "b:4;x:4"
