"""A broker's registrations at several name servers, and their order, seen in the tables of real ones."""

import json
import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import timedelta

import pytest

from ferromq.broker.cluster import name_servers as module
from ferromq.broker.cluster.identity import BrokerIdentity
from ferromq.broker.cluster.name_servers import NameServers
from ferromq.broker.metadata.tables import TableContent
from ferromq.broker.metadata.topics import RegistrationWait, TopicConfig
from ferromq.config.membership import MembershipConfig
from ferromq.errors import ConnectionFailed, RequestTimeout
from ferromq.namesrv import registration_body
from ferromq.namesrv.route_info import RouteInfoManager
from ferromq.namesrv.route_types import Registration
from ferromq.protocol.registration_extension import IS_CHANGE, TAKES_CHANGES
from ferromq.protocol.route import DataVersion

REGISTER, QUERY_VERSION, SUCCESS, SYSTEM_ERROR = 103, 322, 0, 1
PATIENCE = 60
Answer = tuple[int, str | None, dict[str, str], bytes]


class Table:
    """The topics of a broker."""

    def __init__(self) -> None:
        self.content: TableContent[TopicConfig] = TableContent(
            DataVersion(1, 1), {n: TopicConfig(n, 1, 1) for n in "xyz"}
        )

    def put(self, *topics: tuple[str, int]) -> None:
        """Create or change topics, with so many queues."""
        entries = {**self.content.entries, **{name: TopicConfig(name, count, count) for name, count in topics}}
        self.content = TableContent(self.content.version.next(2), entries)

    def read(self) -> TableContent[TopicConfig]:
        """Return what there is now."""
        return self.content


class Peers:
    """Stands for a broker's client and its name servers."""

    def __init__(self) -> None:
        self.routes: dict[str, RouteInfoManager] = {"a:1": RouteInfoManager(), "b:1": RouteInfoManager()}
        self.came: queue.Queue[tuple[str, int, tuple[str, ...]]] = queue.Queue()
        self.failing: dict[str, int] = {}
        self.late = set[str]()
        """The addresses whose answers come too late."""
        self.takers = set[str]()
        """Those that accept several changed topics, as ferromq's do and RocketMQ's do not."""
        self.open = {address: threading.Event() for address in self.routes}
        for gate in self.open.values():
            gate.set()

    def call(self, address: str, code: int, fields: Mapping[str, str], body: bytes = b"", *, timeout: float) -> Answer:
        """Answer as a name server does, or too late."""
        assert timeout > 0
        answer = self._answer(address, code, fields, body)
        if address in self.late:
            raise RequestTimeout(f"{address} did not answer in time")
        return answer

    def _answer(self, address: str, code: int, fields: Mapping[str, str], body: bytes) -> Answer:
        """Answer; hang while its gate is closed, or fail if set to."""
        topics = registration_body.decode(body, "broker", compressed=False) if code == REGISTER else None
        if topics:
            self.came.put((address, topics.version.counter, tuple(sorted(topics.queues))))
        assert self.open[address].wait(PATIENCE)
        if topics is None:
            known = DataVersion(1, 1)
            return (
                SUCCESS,
                None,
                {"changed": "false"},
                json.dumps(known.to_json()).encode() if code == QUERY_VERSION else b"",
            )
        if self.failing.get(address):
            self.failing[address] -= 1
            raise ConnectionFailed(f"{address} is not reached")
        broker = Registration(fields["clusterName"], fields["brokerAddr"], "broker", int(fields["brokerId"]))
        is_taker = address in self.takers
        topics = replace(topics, is_change=is_taker and IS_CHANGE in fields)
        taken = self.routes[address].register(broker, topics, 0)
        answer = {TAKES_CHANGES: "true"} if is_taker else {}
        return (SYSTEM_ERROR, "refused", {}, b"") if taken is None else (SUCCESS, None, answer, b"")

    def close(self) -> None:
        """Release hanging calls."""
        for gate in self.open.values():
            gate.set()

    def next(self, address: str) -> tuple[int, tuple[str, ...]]:
        """Wait for the next registration that comes to *address*, and return its version and topics."""
        while True:
            where, version, topics = self.came.get(timeout=PATIENCE)
            if where == address:
                return version, topics

    def queues(self, address: str) -> dict[str, int]:
        """Return the topics a name server has, with the queues of each."""
        table = self.routes[address].topic_queue_table
        return {topic: brokers["broker"].write_queues for topic, brokers in table.items()}


@pytest.fixture
def peers() -> Peers:
    """Return two name servers."""
    return Peers()


@pytest.fixture
def table() -> Table:
    """Return a table of three topics."""
    return Table()


@pytest.fixture
def told(peers: Peers, table: Table, monkeypatch: pytest.MonkeyPatch) -> Iterator[NameServers]:
    """Return the name servers as the broker sees them, which have its table."""
    monkeypatch.setattr(module._ferromq, "RemotingClient", lambda **_options: peers)
    identity = BrokerIdentity("broker", "c", "h:10911", "h:8081")
    found = NameServers(("a:1", "b:1"), identity, MembershipConfig(), period=timedelta(seconds=30))
    assert found.register(table.read).is_complete
    peers.came = queue.Queue()
    yield found
    found.close()


@pytest.fixture
def change(told: NameServers, table: Table) -> Callable[..., list[str]]:
    """Return a function that changes and registers topics, and returns what did not arrive."""

    def run(*topics: tuple[str, int], wait: RegistrationWait = RegistrationWait.REGISTERED) -> list[str]:
        failed: list[str] = []
        table.put(*topics)
        told.register_change(table.read, wait, lambda: failed.append("failed"))
        return failed

    return run


def test_a_table_is_not_overtaken_by_an_older_one(
    told: NameServers, table: Table, peers: Peers, change: Callable[..., list[str]]
) -> None:
    """During a whole registration the next one waits, and then sends the current table."""
    peers.open["a:1"].clear()
    whole = threading.Thread(target=told.register, args=(table.read,))
    whole.start()
    # It waits for the answer about the gRPC address, or is in the registration already.
    change(("x", 2), wait=RegistrationWait.NOTHING)
    change(("x", 3), wait=RegistrationWait.NOTHING)
    peers.open["a:1"].set()
    whole.join(PATIENCE)
    assert change(("x", 4)) == []
    versions = [peers.came.get_nowait() for _ in range(peers.came.qsize())]
    for address in ("a:1", "b:1"):
        counters = [counter for where, counter, _ in versions if where == address]
        assert counters == sorted(counters)
        assert peers.queues(address)["x"] == 4


def test_a_change_that_was_lost_arrives_with_the_next(peers: Peers, change: Callable[..., list[str]]) -> None:
    """Also if the next was in flight already: alone, it would make versions equal for good."""
    peers.open["a:1"].clear()
    peers.failing["a:1"] = 1
    change(("x", 5), wait=RegistrationWait.NOTHING)
    assert peers.next("a:1")[1] == ("x",)
    change(("y", 7), wait=RegistrationWait.NOTHING)
    peers.open["a:1"].set()
    assert peers.next("a:1")[1] == ("x", "y", "z")
    change(("new", 1))
    assert peers.queues("a:1") == {"x": 5, "y": 7, "z": 1, "new": 1}


@pytest.mark.parametrize("changes", [[("x", 2), ("y", 2)], [("x", 2)]])
def test_a_restarted_name_server_gets_the_whole_table(
    peers: Peers, change: Callable[..., list[str]], changes: list[tuple[str, int]]
) -> None:
    """However many topics changed; it would take several for the whole table."""
    peers.routes["a:1"] = RouteInfoManager()
    assert change(*changes) == []
    assert peers.queues("a:1").keys() == {"x", "y", "z"}
    assert peers.queues("b:1") == {"x": 1, "y": 1, "z": 1, **dict(changes)}


def test_one_topic_is_registered_alone(peers: Peers, change: Callable[..., list[str]]) -> None:
    """With name servers that have the table before it."""
    change(("orders", 1))
    assert peers.next("b:1")[1] == ("orders",)


@pytest.fixture
def taker(told: NameServers, table: Table, peers: Peers) -> str:
    """Return a name server that announced that it takes changes."""
    peers.takers.add("a:1")
    assert told.register(table.read).is_complete
    peers.came = queue.Queue()
    return "a:1"


def test_several_changes_are_one_request_if_the_name_server_takes_it(
    peers: Peers, change: Callable[..., list[str]], taker: str
) -> None:
    """To a name server of RocketMQ it is one for each topic."""
    names = [f"new-{number}" for number in range(60)]
    assert change(*((name, 2) for name in names)) == []
    came = [peers.came.get_nowait() for _ in range(peers.came.qsize())]
    assert [topics for address, _, topics in came if address == taker] == [tuple(sorted(names))]
    assert len(came) == 1 + len(names)
    assert peers.queues(taker) == peers.queues("b:1") == {"x": 1, "y": 1, "z": 1, **dict.fromkeys(names, 2)}


@pytest.mark.parametrize("is_taker", [True, False])
def test_a_name_server_that_lost_its_table_takes_no_change_for_it(
    peers: Peers, change: Callable[..., list[str]], taker: str, *, is_taker: bool
) -> None:
    """It restarted, or another one without changes has its address."""
    peers.routes[taker] = RouteInfoManager()
    if not is_taker:
        peers.takers.clear()
    assert change(("x", 2), ("y", 2)) == []
    assert peers.queues(taker) == {"x": 2, "y": 2, "z": 1}
    assert change(("x", 3), ("y", 3)) == []
    assert peers.queues(taker) == {"x": 3, "y": 3, "z": 1}


def test_a_lease_is_renewed_where_all_answers_are_late(told: NameServers, table: Table, peers: Peers) -> None:
    """A registration does not wait again and again for the queries before it."""
    peers.late.add("a:1")
    told.register(table.read)
    peers.came = queue.Queue()
    table.put(("orders", 1))
    assert not told.register(table.read).is_complete
    assert peers.next("a:1")[1] == ("orders", "x", "y", "z")
    peers.late.clear()
    assert told.register(table.read).is_complete


def test_one_that_hangs_delays_no_other(peers: Peers, change: Callable[..., list[str]]) -> None:
    """Whatever changes: the other one gets every change in order."""
    peers.open["a:1"].clear()
    for count in range(2, 8):
        change(("x", count), wait=RegistrationWait.NOTHING)
        while peers.next("b:1")[0] < count:
            pass
    peers.open["a:1"].set()
    assert change(("x", 8)) == []
    assert peers.queues("a:1")["x"] == peers.queues("b:1")["x"] == 8


def test_an_unneeded_table_is_not_encoded(
    told: NameServers, table: Table, peers: Peers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The version alone renews a lease; a table for both is encoded once."""
    encoded: list[int] = []
    encode = module.registration_body.encode

    def count(version: DataVersion, topics: Mapping[str, TopicConfig], *rest: object, **options: bool) -> bytes:
        encoded.append(len(topics))
        return encode(version, topics, *rest, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(module.registration_body, "encode", count)
    assert told.register(table.read, is_forced=False).is_complete
    assert encoded == []
    table.put(("x", 2))
    told.register_change(table.read, RegistrationWait.REGISTERED, lambda: None)
    assert encoded == [1, 1]
    table.put(("x", 3))
    assert told.register(table.read, is_forced=False).is_complete
    assert encoded == [1, 1, 3]
    assert peers.queues("a:1")["x"] == 3
