"""The routes of a name server, against a model that keeps plain facts."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, rule

from ferromq.namesrv.route_info import RouteInfoManager
from ferromq.namesrv.route_types import (
    BrokerAddress,
    MinBrokerIdChange,
    OrderChange,
    OrderDeletion,
    Registered,
    RegisteredTopics,
    Registration,
)
from ferromq.protocol.route import MASTER, READ_WRITE, DataVersion, Permission, QueueData, TopicRoute

LEASE = 120_000
NAMES = st.sampled_from(["a", "b", "c"])
ADDRESSES = st.sampled_from(["h:1", "h:2", "h:3", "h:4"])
TOPICS = st.dictionaries(st.sampled_from(["t", "u", "v", "w"]), st.integers(1, 3), max_size=4)
VERSIONS = st.integers(0, 2)


def broker(name: str = "a", address: str = "h:1", broker_id: int = MASTER, **more: Any) -> Registration:
    """Return a broker of the cluster `c`."""
    return Registration("c", address, name, broker_id, ha_address=f"ha-{address}", **more)


def topics(version: int = 0, name: str = "a", **queues: int) -> RegisteredTopics:
    """Return the topics of a broker, each with a number of queues; two system topics make the table whole."""
    data = {topic: QueueData(name, count, count) for topic, count in {**queues, "s1": 1, "s2": 1}.items()}
    return RegisteredTopics(DataVersion(counter=version), data)


class RouteTable(RuleBasedStateMachine):
    """Random registrations, ends of leases and closed connections against records, leases and queues in plain dicts."""

    connections = Bundle("connections")

    def __init__(self) -> None:
        super().__init__()
        self.told: set[str] = set()
        self.routes = RouteInfoManager(LEASE, on_change=self.told.update)
        self.shown: dict[str, TopicRoute | None] = {}
        self.now = 0
        self.records: dict[tuple[str, int], str] = {}
        self.leases: dict[str, tuple[str, int, int, int]] = {}  # address → name, end, version, connection
        self.queues: dict[tuple[str, str], int] = {}

    def drop(self, address: str) -> None:
        """Forget an address, and the queues of a broker name without addresses."""
        name, *_ = self.leases.pop(address)
        self.records = {(n, i): a for (n, i), a in self.records.items() if (n, a) != (name, address)}
        if not any(n == name for n, _ in self.records):
            self.queues = {(t, n): q for (t, n), q in self.queues.items() if n != name}

    @rule(
        target=connections,
        name=NAMES,
        address=ADDRESSES,
        broker_id=st.integers(0, 2),
        version=VERSIONS,
        table=TOPICS,
        connection=st.integers(1, 5),
        lease=st.sampled_from([None, 10_000]),
    )
    def register(
        self,
        *,
        name: str,
        address: str,
        broker_id: int,
        version: int,
        table: dict[str, int],
        connection: int,
        lease: int | None,
    ) -> Any:
        """Register or renew."""
        data = {topic: QueueData(name, count, count) for topic, count in table.items()}
        answer = self.routes.register(
            broker(name, address, broker_id, lease_ms=lease),
            RegisteredTopics(DataVersion(counter=version), data),
            self.now,
            connection,
        )
        if (name, broker_id) not in self.records and len(table) == 1:
            assert answer is None
            return multiple()
        if address in self.leases and self.leases[address][0] != name:
            self.drop(address)
        self.records = {
            (n, i): a for (n, i), a in self.records.items() if not (n == name and a == address and i != broker_id)
        }
        is_first = (name, broker_id) not in self.records
        self.records[name, broker_id] = address
        is_changed = is_first or address not in self.leases or self.leases[address][2] != version
        for topic, count in table.items():
            if broker_id == MASTER and (is_changed or (topic, name) not in self.queues):
                self.queues[topic, name] = count
        self.leases[address] = (name, self.now + (lease or LEASE), version, connection)
        master = self.records.get((name, MASTER))
        known = broker_id != MASTER and master is not None and master in self.leases
        assert answer == (Registered(master, f"ha-{master}") if known else Registered())
        return connection

    @rule(address=ADDRESSES, name=NAMES)
    def unregister(self, address: str, name: str) -> None:
        """Unregister, maybe under a wrong name."""
        if address in self.leases:
            self.routes.unregister(broker(name, address))
            self.drop(address)

    @rule(topic=st.sampled_from(["t", "u"]), cluster=st.sampled_from([None, "c", "other"]))
    def delete_topic(self, topic: str, cluster: str | None) -> None:
        """Delete a topic, in a cluster or everywhere."""
        self.routes.delete_topic(topic, cluster)
        if cluster != "other":
            self.queues = {(t, name): count for (t, name), count in self.queues.items() if t != topic}

    @rule(connection=connections)
    def close(self, connection: int) -> None:
        """Lose a connection."""
        self.routes.close_connection(connection)
        for address in [a for a, (*_, c) in self.leases.items() if c == connection]:
            self.drop(address)

    @rule(address=ADDRESSES)
    def heartbeat(self, address: str) -> None:
        """Only renew a lease; its length stays, which its end shows."""
        if address in self.leases:
            length = self.routes.broker_live_table[BrokerAddress("c", address)].lease_ms
            self.routes.renew(BrokerAddress("c", address), self.now)
            name, _, version, connection = self.leases[address]
            self.leases[address] = (name, self.now + length, version, connection)

    @rule(step=st.sampled_from([1, 9_999, 10_000, 10_001, 60_000, 120_001]))
    def advance(self, step: int) -> None:
        """Let time pass and end leases."""
        self.now += step
        ended = [a for a, (_, end, *_) in self.leases.items() if end < self.now]
        expected = sorted(self.leases[address][3] for address in ended)
        assert sorted(self.routes.expire(self.now)) == expected
        for address in ended:
            self.drop(address)

    @invariant()
    def routes_are_the_facts(self) -> None:
        """Every topic leads to exactly its brokers, at their addresses."""
        assert self.routes.topics() == sorted({topic for topic, _ in self.queues})
        for topic in ("t", "u", "v", "w"):
            route = self.routes.lookup(topic)
            expected = {name: count for (t, name), count in self.queues.items() if t == topic}
            assert {q.broker_name: q.write_queues for q in route.queues} == expected if route else not expected
            for data in route.brokers if route else ():
                assert data.addresses == {i: a for (n, i), a in self.records.items() if n == data.broker_name}

    @invariant()
    def who_caches_routes_is_told(self) -> None:
        """Of every topic whose route changed in the last step."""
        routes = {topic: self.routes.lookup(topic) for topic in ("t", "u", "v", "w")}
        assert {topic for topic, route in routes.items() if route != self.shown.get(topic)} <= self.told
        self.shown = routes
        self.told.clear()

    @rule(name=NAMES, topic=st.sampled_from(["t", "w"]), count=st.integers(1, 3))
    def register_topic(self, name: str, topic: str, count: int) -> None:
        """Register one topic of a registered broker."""
        if any(n == name for n, _ in self.records):
            self.routes.register_topic(topic, [QueueData(name, count, count)])
            self.queues[topic, name] = count

    @rule(name=NAMES, wipe=st.booleans())
    def change_permission(self, name: str, wipe: bool) -> None:
        """Take or give the write permission; the broker's topics are counted."""
        change = self.routes.wipe_write_permission if wipe else self.routes.add_write_permission
        assert change(name) == sum(n == name for _, n in self.queues)

    @invariant()
    def nothing_is_left_over(self) -> None:
        """No empty entries, one record an address and name, clusters name only existing brokers."""
        names = {name for name, _ in self.records}
        assert set(self.routes.broker_addr_table) == names
        assert self.routes.cluster_addr_table == ({"c": names} if names else {})
        assert {key.address for key in self.routes.broker_live_table} == set(self.leases)
        assert all(self.routes.topic_queue_table.values())
        assert {(t, n) for n, topics in self.routes._topics_of.items() for t in topics} == set(self.queues)
        connections = {c: {a for a, (*_, d) in self.leases.items() if d == c} for *_, c in self.leases.values()}
        assert {c: {key.address for key in keys} for c, keys in self.routes._keys_of.items()} == connections


RouteTable.TestCase.settings = settings(
    max_examples=100, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestRouteTable = RouteTable.TestCase


@pytest.fixture
def routes() -> RouteInfoManager:
    """Return an empty table."""
    return RouteInfoManager()


def test_a_deleted_topic_has_no_route(routes: RouteInfoManager) -> None:
    """In one cluster, or everywhere; a broker that still has it brings it back."""
    routes.register(broker(), topics(t=4), now=0)
    routes.register(Registration("d", "h:2", "b", MASTER), topics(name="b", t=2), now=0)
    routes.delete_topic("t", "d")
    route = routes.lookup("t")
    assert route is not None
    assert [queue.broker_name for queue in route.queues] == ["a"]
    routes.delete_topic("t")
    assert routes.lookup("t") is None
    assert "t" not in routes.topics()
    routes.register(broker(), topics(t=4), now=0)
    assert routes.lookup("t") is not None


def test_a_slave_turned_master_has_one_record(routes: RouteInfoManager) -> None:
    """The record under the old broker id is removed."""
    routes.register(broker(broker_id=1), topics(), now=0)
    routes.register(broker(broker_id=MASTER), topics(t=4), now=0)
    route = routes.lookup("t")
    assert route is not None
    assert route.brokers[0].addresses == {MASTER: "h:1"}


def test_queue_data_comes_from_a_master_alone(routes: RouteInfoManager) -> None:
    """A slave's registration makes no route."""
    routes.register(broker(broker_id=1), topics(t=4), now=0)
    assert routes.lookup("t") is None


def test_queue_data_changes_with_the_version_alone(routes: RouteInfoManager) -> None:
    """The same version again changes nothing but the lease; a new one does."""
    routes.register(broker(), topics(1, t=4), now=0)
    routes.register(broker(), topics(1, t=8), now=0)
    route = routes.lookup("t")
    assert route is not None
    assert route.queues[0].read_queues == 4
    routes.register(broker(), topics(2, t=8), now=0)
    route = routes.lookup("t")
    assert route is not None
    assert route.queues[0].read_queues == 8


def test_a_slave_learns_its_master(routes: RouteInfoManager) -> None:
    """The answer has the master's address and its replication address."""
    assert routes.register(broker(address="h:2", broker_id=1), topics(), now=0) == Registered()
    routes.register(broker(address="h:1"), topics(), now=0)
    answer = routes.register(broker(address="h:2", broker_id=1), topics(), now=0)
    assert answer == Registered(master_address="h:1", ha_address="ha-h:1")


def test_an_older_broker_does_not_replace_a_newer_one(routes: RouteInfoManager) -> None:
    """The state version decides between two addresses for the same broker id."""
    newer = RegisteredTopics(DataVersion(state_version=2), topics().queues)
    routes.register(broker(address="h:1"), newer, now=0)
    older = RegisteredTopics(DataVersion(state_version=1), topics().queues)
    assert routes.register(broker(address="h:2"), older, now=0) is None
    assert routes.cluster_info()["brokerAddrTable"]["a"]["brokerAddrs"] == {"0": "h:1"}


def test_filter_servers_are_replaced_removed_or_left(routes: RouteInfoManager) -> None:
    """A list replaces them, an empty list removes them, no list leaves them."""
    key = BrokerAddress("c", "h:1")
    for servers, expected in ((("f:1",), ("f:1",)), (None, ("f:1",)), ((), None)):
        routes.register(broker(), RegisteredTopics(queues=topics().queues, filter_servers=servers), now=0)
        assert routes.filter_server_table.get(key) == expected


def test_a_lease_holds_to_its_last_millisecond(routes: RouteInfoManager) -> None:
    """It is 120 s by default, or what the broker asks for."""
    routes.register(broker("a", "h:1"), topics(name="a"), now=0, connection=7)
    routes.register(broker("b", "h:2", lease_ms=1_000), topics(name="b"), now=0, connection=8)
    assert routes.expire(1_000) == []
    assert routes.expire(1_001) == [8]
    assert routes.expire(120_000) == []
    assert routes.expire(120_001) == [7]
    assert routes.topics() == []


def test_write_permission_is_part_of_the_route(routes: RouteInfoManager) -> None:
    """A read-only topic is registered as it is."""
    data = {"t": QueueData("a", 4, 4, Permission.READ), "s": QueueData("a", 1, 1)}
    routes.register(broker(), RegisteredTopics(queues=data), now=0)
    route = routes.lookup("t")
    assert route is not None
    assert route.queues[0].permission is Permission.READ


def permission(routes: RouteInfoManager, topic: str) -> Permission:
    """Return the permission of the first broker's queues of *topic*."""
    route = routes.lookup(topic)
    assert route is not None
    return route.queues[0].permission


def test_write_permission_is_taken_and_given_back(routes: RouteInfoManager) -> None:
    """Of all topics of one broker, with their number; a new version of the broker's table restores its own."""
    routes.register(broker(), topics(1, t=4), now=0)
    routes.register(broker("b", "h:2"), topics(1, "b", u=4), now=0)
    assert routes.wipe_write_permission("a") == 3
    assert permission(routes, "t") == Permission.READ
    assert permission(routes, "u") == READ_WRITE
    routes.register(broker(), topics(1, t=4), now=0)
    assert permission(routes, "t") == Permission.READ
    assert routes.add_write_permission("a") == 3
    assert permission(routes, "t") == READ_WRITE
    routes.wipe_write_permission("a")
    routes.register(broker(), topics(2, t=4), now=0)
    assert permission(routes, "t") == READ_WRITE
    assert routes.wipe_write_permission("nobody") == 0


def test_a_topic_that_is_not_registered_any_more_stays_unless_told_otherwise(routes: RouteInfoManager) -> None:
    """Java brokers register single changes; with whole tables, missing topics are removed."""
    routes.register(broker(), topics(1, t=4, u=4), now=0)
    routes.register(broker(), topics(2, t=4), now=0)
    assert routes.lookup("u") is not None
    routes.delete_missing_topics = True
    routes.register(broker(), topics(2, t=4), now=0)
    assert routes.lookup("u") is not None
    mapped = RegisteredTopics(DataVersion(counter=3), topics(t=4).queues, has_static_topics=True)
    routes.register(broker(), mapped, now=0)
    assert routes.lookup("u") is not None
    routes.register(broker(), topics(4, t=4), now=0)
    assert routes.lookup("u") is None
    assert routes.lookup("t") is not None


def test_a_change_leaves_other_topics_alone(routes: RouteInfoManager) -> None:
    """Of any number of topics; only a broker with a registered table may send one."""
    change = replace(topics(2, t=8, u=8), is_change=True)
    assert routes.register(broker(), change, now=0) is None
    assert routes.lookup("t") is None
    routes.delete_missing_topics = True
    routes.register(broker(), topics(1, t=4, v=4), now=0)
    assert routes.register(broker(), change, now=0) is not None
    assert {"t", "u", "v"} <= set(routes.topics())
    assert routes.register(broker(address="h:2"), change, now=0) is None


def test_one_topic_is_registered_for_brokers_there_are(routes: RouteInfoManager) -> None:
    """All of them, or none."""
    routes.register(broker(), topics(t=4), now=0)
    routes.register_topic("new", [QueueData("a", 2, 2)])
    assert routes.topics(cluster="c") == ["new", "s1", "s2", "t"]
    with pytest.raises(KeyError, match="ghost"):
        routes.register_topic("other", [QueueData("a", 2, 2), QueueData("ghost", 2, 2)])
    assert routes.lookup("other") is None
    routes.unregister(broker())
    assert routes.topics() == []


def test_topics_are_listed_by_cluster_and_by_flag(routes: RouteInfoManager) -> None:
    """Clusters and brokers are system topics, answered with the address of a broker."""
    assert routes.system_topics() == ([], None)
    flagged = {"unit": QueueData("a", 1, 1, sys_flag=1), "sub": QueueData("a", 1, 1, sys_flag=2)}
    routes.register(broker(), RegisteredTopics(queues=flagged), now=0)
    routes.register(Registration("d", "h:2", "b", MASTER), topics(name="b", t=2), now=0)
    assert routes.topics(cluster="c") == ["sub", "unit"]
    assert routes.topics(cluster="d") == ["s1", "s2", "t"]
    assert routes.topics(cluster="e") == []
    assert routes.topics_flagged(lambda flags: flags & 2 == 2) == ["sub"]
    assert routes.system_topics() == (["a", "b", "c", "d"], "h:1")
    assert routes.members("a") == {0: "h:1"}
    assert routes.members("nobody") == {}


def test_the_first_slave_of_a_lost_master_acts_for_it(routes: RouteInfoManager) -> None:
    """Read-only and where both sides allow it; the master's return ends it."""
    routes.acting_master = True
    slave = {"broker_id": 1, "enable_acting_master": True}
    routes.register(broker(enable_acting_master=True), topics(1, t=4), now=0)
    routes.register(broker(address="h:2", **slave), topics(1, t=4), now=0)
    routes.unregister(broker())
    route = routes.lookup("t")
    assert route is not None
    assert route.brokers[0].addresses == {MASTER: "h:2"}
    assert permission(routes, "t") == Permission.READ
    routes.acting_master = False
    route = routes.lookup("t")
    assert route is not None
    assert route.brokers[0].addresses == {1: "h:2"}
    routes.acting_master = True
    routes.register(broker(enable_acting_master=True), topics(1, t=4), now=0)
    route = routes.lookup("t")
    assert route is not None
    assert route.brokers[0].addresses == {MASTER: "h:1", 1: "h:2"}
    assert permission(routes, "t") == READ_WRITE


def test_an_acting_master_may_be_the_first_to_come() -> None:
    """Its topics can be read; a slave of brokers that do not allow it makes no route."""
    routes = RouteInfoManager()
    routes.acting_master = True
    routes.register(broker(address="h:2", broker_id=1, enable_acting_master=True), topics(1, t=4), now=0)
    assert permission(routes, "t") == Permission.READ
    routes.register(broker("b", "h:3", 1), topics(1, "b", u=4), now=0)
    assert routes.lookup("u") is None


def test_a_change_of_the_lowest_broker_id_is_told() -> None:
    """The remaining ones when one leaves; the existing ones when one joins."""
    told: list[MinBrokerIdChange] = []
    routes = RouteInfoManager(on_minimum=told.append)
    for broker_id in (1, 2):
        routes.register(broker("a", f"h:{broker_id}", broker_id, enable_acting_master=True), topics(), now=0)
    assert told == []
    routes.register(broker("a", "h:0", MASTER, enable_acting_master=True), topics(), now=0)
    assert told == [MinBrokerIdChange("a", 0, "h:0", None, "ha-h:0", ("h:1", "h:2"))]
    told.clear()
    routes.unregister(broker("a", "h:2", 2))
    assert told == []
    routes.unregister(broker("a", "h:0"))
    assert told == [MinBrokerIdChange("a", 1, "h:1", "h:0", None, ("h:1",))]


def test_a_renewal_changes_no_route() -> None:
    """So that nothing of a cache is lost every 30 seconds."""
    told: list[str] = []
    routes = RouteInfoManager(on_change=told.extend)
    routes.register(broker(), topics(1, t=4), now=0)
    assert sorted(told) == ["s1", "s2", "t"]
    told.clear()
    routes.register(broker(), topics(1, t=4), now=30_000)
    routes.register(broker(), topics(2, t=4), now=60_000)
    assert told == []
    routes.register(broker(), topics(3, t=5), now=90_000)
    assert told == ["t"]


def test_brokers_that_are_away_are_forgotten_unless_an_order_configuration_has_them() -> None:
    """For any number of names: returning and staying ones are known with their cluster."""
    changes: list[OrderChange | OrderDeletion] = []
    ordered = {f"o{number}" for number in range(100)}
    routes = RouteInfoManager(LEASE, on_order=changes.extend, in_order_configurations=lambda: ordered)
    routes.register(broker("stays", "h:9"), topics(name="stays"), 0)
    names = sorted(ordered) + [f"b{number}" for number in range(10_000)]
    for connection, name in enumerate(names):
        routes.register(broker(name), topics(name=name), 0, connection)
        routes.close_connection(connection)
    changes.clear()
    routes.delete_topic("t", "c")
    (deletion,) = changes
    assert isinstance(deletion, OrderDeletion)
    assert deletion.goes >= ordered | {"stays"}
    assert len(deletion.goes) < 1_000
