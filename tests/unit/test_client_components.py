"""A broker's answers about live remoting clients, and its requests to them; with a virtual clock."""

import contextlib
import errno
import json
import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferromq._ferromq import Clock, Store
from ferromq.broker.administration.offset_resets import OffsetResets
from ferromq.broker.clients.client import Client
from ferromq.broker.clients.components import ClientComponents
from ferromq.broker.clients.heartbeats import MAX_BODY, MAX_GROUPS
from ferromq.broker.clients.queue_allocation import averagely, by_circle, share_to_pop
from ferromq.broker.cluster.route_cache import KnownRoute, RouteCache
from ferromq.broker.metadata.groups import GroupConfig, GroupTable
from ferromq.broker.metadata.request_modes import RequestMode, RequestModes
from ferromq.broker.metadata.topics import TopicConfig, TopicTable
from ferromq.config.broker import BrokerConfig
from ferromq.config.consume import ConsumeConfig
from ferromq.errors import ConnectionFailed, CorruptStore, RequestTimeout
from ferromq.protocol.message_queue import MessageQueue, dump_offsets, load_offsets
from ferromq.protocol.properties import format_properties, parse_properties
from ferromq.protocol.remoting import Answer, guarded
from ferromq.protocol.route import BrokerData, Permission, QueueData, TopicRoute

ILLEGAL, UNAVAILABLE = 13, 14
SUCCESS, SYSTEM_ERROR, BUSY, NO_PERMISSION, TOPIC_NOT_EXIST, UNREADABLE, NO_GROUP, INVALID = 0, 1, 2, 16, 17, 23, 26, 29
NOT_ONLINE, TIMEOUT = 206, 207
NOTIFY, RESET, STATUS, RUNNING, DIRECTLY, PUSH_REPLY = 40, 220, 221, 307, 309, 326
PRODUCER, GO_CLIENT, OLD_CLIENT = 1, 2, 3
START = 1_700_000_000_000


@dataclass
class FakeServer:
    """Records pushes and calls; `answers` are those of clients, by connection."""

    pushed: list[tuple[int, int, Mapping[str, str], bytes]] = field(default_factory=list)
    subscriptions: dict[tuple[str, str], tuple[str, str, int, bool]] = field(default_factory=dict)
    answers: dict[int, Answer | Exception] = field(default_factory=dict)
    called: list[tuple[int, int, Mapping[str, str], bytes]] = field(default_factory=list)
    closed: list[int] = field(default_factory=list)
    resets: dict[tuple[str, str, int], int] = field(default_factory=dict)
    locked: dict[str, int | None] = field(default_factory=dict)
    gone: set[int] = field(default_factory=set)
    tell: Callable[[], None] = lambda: None
    """Runs a thread's work at once."""

    def push(self, connection: int, code: int, fields: Mapping[str, str] | None = None, body: bytes = b"") -> bool:
        """Note a push."""
        self.pushed.append((connection, code, dict(fields or {}), body))
        return connection not in self.gone

    def call(
        self,
        connection: int,
        code: int,
        fields: Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        timeout: float = 3.0,
    ) -> Answer:
        """Answer as a client."""
        self.called.append((connection, code, dict(fields or {}), body))
        answer = self.answers[connection]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def put_subscription(
        self,
        group: str,
        topic: str,
        *,
        expression_type: str = "TAG",
        expression: str = "*",
        version: int = 0,
        broadcasting: bool = False,
    ) -> None:
        """Note a subscription."""
        self.subscriptions[group, topic] = expression_type, expression, version, broadcasting

    def remove_subscription(self, group: str, topic: str) -> None:
        """Forget a subscription."""
        self.subscriptions.pop((group, topic), None)

    def put_reset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Note a reset."""
        self.resets[group, topic, queue_id] = offset

    def remove_resets(self, group: str, topic: str | None = None) -> None:
        """Forget resets."""
        self.resets = {key: at for key, at in self.resets.items() if (key[0], topic or key[1]) != (group, key[1])}

    def put_locked(self, group: str, until_ms: int | None) -> None:
        """Record the end of a group's locks."""
        self.locked[group] = until_ms

    def wake_receives(self, group: str, topic: str) -> None:
        """Do nothing."""

    def close_connection(self, connection: int) -> None:
        """Note it."""
        self.closed.append(connection)

    def send_telemetry(self, *_: object) -> bool:
        """Do nothing."""
        return True

    def take(self, code: int) -> list[int]:
        """Return the connections that got a push of this code since the last call, in order."""
        self.tell()
        taken = sorted(connection for connection, other, *_ in self.pushed if other == code)
        self.pushed = [each for each in self.pushed if each[1] != code]
        return taken


class Broker:
    """The rooms of live clients round a store, a fake server and a route."""

    def __init__(self, directory: Path, **options: Any) -> None:
        self.server, self.now = FakeServer(), START
        self.route: TopicRoute | None = None
        self.asked: list[str] = []
        config = BrokerConfig.from_options({"store": str(directory), **options})
        self.store = Store(str(directory), Clock.manual(START), commit_log_file_size=1 << 20)
        self.topics = TopicTable(lambda: config, directory, self.now_ms, lambda *_: None, lambda *_: None)
        self.groups = GroupTable(lambda: config, directory, self.now_ms, lambda *_: None)
        identity: Any = SimpleNamespace(name="broker-a", address="10.0.0.1:10911")
        server: Any = self.server
        self.modes = RequestModes(Path(config.store))
        self.components = ClientComponents(
            lambda: config,
            identity,
            server,
            store=self.store,
            topics=self.topics,
            groups=self.groups,
            modes=self.modes,
            routes=RouteCache(self.find_route, self.now_ms),
            now_ms=self.now_ms,
        )
        self.resets = OffsetResets(
            server, identity.name, table=self.components.table, store=self.store, topics=self.topics, groups=self.groups
        )
        self.server.tell = lambda: self.components.rebalance.notify_members(self.components.table)

    def find_route(self, topic: str, _before: KnownRoute | None) -> KnownRoute:
        """Answer as a name server, and count the request."""
        self.asked.append(topic)
        return KnownRoute(self.route)

    def now_ms(self) -> int:
        """Return the time."""
        return self.now

    def ask(
        self, handler: Any, fields: Mapping[str, str] | None = None, body: Any = b"", connection: int = 1, **who: Any
    ) -> Answer:
        """Ask as a client on *connection*."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        who = {"language": "JAVA", "version": 513, "peer": f"127.0.0.1:{connection}", "user": None, **who}
        request: Any = SimpleNamespace(route=0, connection=connection, fields=fields or {}, body=content, **who)
        return guarded(handler)(request)

    def heartbeat(self, name: str, connection: int, *topics: str, group: str = "g", **other: Any) -> Answer:
        """Take a heartbeat of a consumer of *topics*, or of a producer without topics."""
        more, consumer = other.pop("more", {}), {"groupName": group, **other.pop("consumer", {})}
        consumer["subscriptionDataSet"] = [subscription(topic) for topic in topics]
        body = {"clientID": name, "consumerDataSet": [consumer] if topics else [], **more}
        return self.ask(self.components.heartbeats.heartbeat, body=body, connection=connection, **other)


def readable(store: Store, topic: str, queue_id: int, count: int) -> bool:
    """Wait until readers see so many messages: they are a moment behind."""
    pause = threading.Event()
    return any(store.max_offset(topic, queue_id) >= count or pause.wait(0.01) for _ in range(1_000))


def subscription(topic: str, **other: Any) -> dict[str, Any]:
    """Return Java's SubscriptionData."""
    return {"topic": topic, "subString": "*", "tagsSet": [], "codeSet": [], "subVersion": 1, **other}


def parsed(answer: Answer) -> Any:
    """Return the body of an answer that is a success."""
    assert answer[0] == SUCCESS, answer
    return json.loads(answer[3])


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """Return a broker with the topic t of four queues."""
    broker = Broker(tmp_path)
    broker.topics.create(TopicConfig("t", 4, 4), "test")
    yield broker
    broker.store.close()


# Heartbeats


def test_a_producer_has_the_user_that_signed_its_last_heartbeat(broker: Broker) -> None:
    """Its half messages go to it only if that user may send."""
    for user in ("ada", "bob", None):
        body = {"clientID": "p", "producerDataSet": [{"groupName": "payers"}]}
        broker.ask(broker.components.heartbeats.heartbeat, body=body, user=user)
        assert [client.user for client, _ in broker.components.table.reachable_producers("payers")] == [user]


def test_a_heartbeat_makes_a_member_and_its_group_and_retry_topic(broker: Broker) -> None:
    """The answer announces newer heartbeats; the retry topic has its group's number of queues."""
    broker.groups.put(GroupConfig("three", others={"retryQueueNums": 3}), {}, "test")
    code, _, fields, _ = broker.heartbeat("a", 1, "t")
    assert (code, fields) == (SUCCESS, {"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "true"})
    assert broker.groups.get("g") is not None
    retries = broker.topics.get("%RETRY%g")
    assert retries is not None
    assert (retries.read_queues, retries.write_queues, int(retries.permission)) == (1, 1, 6)
    broker.heartbeat("a", 1, "t", group="three")
    three = broker.topics.get("%RETRY%three")
    assert three is not None
    assert (three.read_queues, three.write_queues) == (3, 3)
    answer = broker.ask(broker.components.members.consumer_list, {"consumerGroup": "g"})
    assert parsed(answer) == {"consumerIdList": ["a"]}
    assert broker.server.subscriptions["g", "t"] == ("TAG", "*", 1, False)


def test_hashes_of_tags_may_be_texts(broker: Broker) -> None:
    """RocketMQ's Go client writes them so."""
    wanted = subscription("t", subString="red", tagsSet=["red"], codeSet=["112785"])
    body = {"clientID": "a", "consumerDataSet": [{"groupName": "g", "subscriptionDataSet": [wanted]}]}
    assert broker.ask(broker.components.heartbeats.heartbeat, body=body)[0] == SUCCESS
    answer = broker.ask(broker.components.members.consumer_list, {"consumerGroup": "g"})
    assert parsed(answer) == {"consumerIdList": ["a"]}


def test_where_groups_are_not_created_a_heartbeat_makes_none(tmp_path: Path) -> None:
    """It is answered all the same, and its other groups count."""
    broker = Broker(tmp_path, auto_create_groups=False)
    broker.groups.put(GroupConfig("there"), {}, "test")
    consumers = [
        {"groupName": name, "subscriptionDataSet": [subscription("t")]} for name in ("missing", "no name", "there")
    ]
    answer = broker.ask(broker.components.heartbeats.heartbeat, body={"clientID": "a", "consumerDataSet": consumers})
    assert answer[0] == SUCCESS
    assert broker.groups.get("missing") is None
    assert broker.topics.get("%RETRY%missing") is None
    assert broker.components.table.members("missing") == []
    assert broker.components.table.members("there") == ["a"]
    broker.store.close()


@pytest.mark.parametrize(
    ("body", "limit"),
    [
        ({"producerDataSet": [{"groupName": f"p{n}"} for n in range(MAX_GROUPS + 1)]}, f"{MAX_GROUPS} are allowed"),
        (
            {"consumerDataSet": [{"groupName": "g", "subscriptionDataSet": [{"topic": "t"}] * (MAX_GROUPS + 1)}]},
            f"{MAX_GROUPS} are allowed",
        ),
        ({"producerDataSet": [{"groupName": "x" * MAX_BODY}]}, f"{MAX_BODY} are allowed"),
    ],
)
def test_a_heartbeat_that_names_too_much_is_refused(broker: Broker, body: dict[str, Any], limit: str) -> None:
    """With the limit, and before it takes effect."""
    code, remark, _, _ = broker.ask(broker.components.heartbeats.heartbeat, body={"clientID": "a", **body})
    assert code == ILLEGAL
    assert remark is not None
    assert limit in remark
    assert broker.components.table.all_producers() == {}
    assert broker.groups.get("g") is None
    assert broker.components.table.memory.total == 0


def test_heartbeats_of_one_connection_keep_a_bounded_memory(broker: Broker) -> None:
    """Each one is small; a refused client gets the limit, and the others are renewed."""

    def beat() -> list[Answer]:
        return [
            broker.ask(
                broker.components.heartbeats.heartbeat,
                body={"clientID": f"a{n}", "producerDataSet": [{"groupName": "x" * 500_000}]},
            )
            for n in range(20)
        ]

    for _ in range(3):
        answers = beat()
        assert [code for code, *_ in answers] == [SUCCESS] * 16 + [ILLEGAL] * 4
        assert "8388608 are allowed" in str(answers[-1][1])
        assert 8_000_000 < broker.components.table.memory.total <= 8 << 20
        broker.now += 100_000
        broker.components.expire(broker.now)
        assert [len(members) for members in broker.components.table.all_producers().values()] == [16]
    broker.components.table.close_connection(1)
    assert broker.components.table.memory.total == 0


def fill(broker: Broker) -> None:
    """Use up the memory of connection 1."""
    broker.components.table.memory.change(
        1, ConsumeConfig.client_memory_by_connection - broker.components.table.memory.total
    )


def test_a_group_that_is_refused_keeps_no_other_from_being_renewed(broker: Broker) -> None:
    """Consumer and producer groups behind it, with subscriptions or without; the refused one leaves nothing."""

    def beat(*groups: str, **more: Any) -> Answer:
        consumers = [{"groupName": group, "subscriptionDataSet": [subscription("t")]} for group in groups]
        producers = [{"groupName": group} for group in groups]
        body = {"clientID": "a", "consumerDataSet": consumers, "producerDataSet": producers, **more}
        return broker.ask(broker.components.heartbeats.heartbeat, body=body)

    assert beat("g", "h")[0] == SUCCESS
    fill(broker)
    for more in ({}, {"heartbeatFingerprint": 7, "withoutSub": True}):
        broker.now += 100_000
        code, remark, _, _ = beat("g", "new", "h", "newer", **more)
        assert (code, f"{ConsumeConfig.client_memory_by_connection} are allowed" in str(remark)) == (ILLEGAL, True)
        broker.components.expire(broker.now + 100_000)
        table = broker.components.table
        assert [table.members(group) for group in ("g", "new", "h", "newer")] == [["a"], [], ["a"], []]
        assert set(table.all_producers()) == {"g", "h"}
    assert broker.groups.get("new") is None
    assert broker.topics.get("%RETRY%new") is None


def test_a_member_whose_new_subscription_is_refused_is_renewed(broker: Broker) -> None:
    """It stays with the subscriptions it had."""
    broker.heartbeat("a", 1, "t")
    fill(broker)
    broker.now += 100_000
    assert broker.heartbeat("a", 1, "t", "u")[0] == ILLEGAL
    broker.components.expire(broker.now + 100_000)
    assert broker.components.table.members("g") == ["a"]
    assert set(broker.server.subscriptions) == {("g", "t")}


def test_a_group_that_cannot_be_written_keeps_no_other_from_being_renewed(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full disk no retry topic can be created."""
    producer = {"producerDataSet": [{"groupName": "p"}]}
    broker.heartbeat("a", 1, more=producer)

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "a full disk that was ordered")

    monkeypatch.setattr(broker.topics, "ensure_of_group", fail)
    broker.now += 100_000
    code, remark, _, _ = broker.heartbeat("a", 1, "t", more=producer)
    assert (code, "disk full" in str(remark)) == (UNAVAILABLE, True)
    broker.components.expire(broker.now + 100_000)
    assert set(broker.components.table.all_producers()) == {"p"}


def test_members_are_notified_at_once(broker: Broker) -> None:
    """When one joins, leaves, loses its connection, or its lease expires; not at a renewal."""
    server = broker.server
    broker.heartbeat("a", 1, "t")
    assert server.take(NOTIFY) == [1]
    broker.heartbeat("b", 2, "t")
    assert server.take(NOTIFY) == [1, 2]
    broker.heartbeat("b", 2, "t")
    assert server.take(NOTIFY) == []
    broker.heartbeat("b", 2, "t", "u")
    assert server.take(NOTIFY) == [1, 2]
    broker.heartbeat("c", 3, "t", "u")
    server.take(NOTIFY)
    broker.ask(broker.components.heartbeats.unregister, {"clientID": "b", "consumerGroup": "g"}, connection=2)
    assert server.take(NOTIFY) == [1, 3]
    broker.components.table.close_connection(3)
    assert server.take(NOTIFY) == [1]
    broker.heartbeat("d", 4, "t", "u")
    server.take(NOTIFY)
    broker.now += 60_000
    broker.heartbeat("a", 1, "t", "u")
    broker.now += 60_001
    broker.components.expire(broker.now)
    assert (server.take(NOTIFY), server.closed) == ([1], [4])


def test_members_that_come_together_are_told_together(broker: Broker) -> None:
    """Each once, not once for each that came after it."""
    for connection in range(1_000):
        broker.heartbeat(f"c{connection}", connection, "t")
    assert broker.server.take(NOTIFY) == list(range(1_000))
    for connection in range(500):
        broker.components.table.close_connection(connection)
    assert broker.server.take(NOTIFY) == list(range(500, 1_000))


def test_a_thread_tells_members_without_being_asked(broker: Broker) -> None:
    """Including earlier changes; no heartbeat waits for a slow client, and a failure ends nothing."""
    pushed, held = queue.SimpleQueue[int](), threading.Event()

    def push(connection: int, *_: object) -> bool:
        pushed.put(connection)
        if connection == 3:
            raise RuntimeError("a failure that was ordered")
        assert held.wait(60)
        return True

    broker.server.push = push  # type: ignore[method-assign]
    broker.heartbeat("a", 1, "t")
    broker.components.start()
    assert pushed.get(timeout=60) == 1
    broker.heartbeat("b", 2, "t")
    held.set()
    assert [pushed.get(timeout=60) for _ in range(2)] == [1, 2]
    broker.heartbeat("c", 3, "t", group="h")
    assert pushed.get(timeout=60) == 3
    broker.heartbeat("d", 4, "t", group="i")
    assert pushed.get(timeout=60) == 4
    broker.components.stop()


@pytest.mark.parametrize("where", ["group", "broker"])
def test_notices_to_members_can_be_switched_off(tmp_path: Path, where: str) -> None:
    """A group's option, and a broker's."""
    broker = Broker(tmp_path, notify_consumers=where != "broker")
    others = {"notifyConsumerIdsChangedEnable": where != "group"}
    broker.groups.put(GroupConfig("g", others=others), {}, "test")
    broker.heartbeat("a", 1, "t")
    assert broker.server.take(NOTIFY) == []
    broker.heartbeat("a", 1, "t", group="h")
    assert broker.server.take(NOTIFY) == ([1] if where == "group" else [])
    broker.store.close()


def test_a_heartbeat_may_leave_out_subscriptions(broker: Broker) -> None:
    """It sends a fingerprint; if the broker has others, or none, the answer requests them."""
    left_out = {"heartbeatFingerprint": 7, "withoutSub": True}
    asked = broker.heartbeat("a", 1, "t", more=left_out)[2]["IS_SUB_CHANGE"]
    assert asked == "true"
    assert ("g", "t") not in broker.server.subscriptions
    assert broker.heartbeat("a", 1, "t", more={"heartbeatFingerprint": 7})[2]["IS_SUB_CHANGE"] == "false"
    assert broker.heartbeat("a", 1, "t", more=left_out)[2]["IS_SUB_CHANGE"] == "false"
    assert ("g", "t") in broker.server.subscriptions
    assert broker.heartbeat("b", 2, "t", more={"heartbeatFingerprint": 8})[2]["IS_SUB_CHANGE"] == "true"


def test_a_subscription_that_cannot_be_served_hurts_no_other(broker: Broker) -> None:
    """The client is a member; the hot path knows both topics and their filters."""
    sets = [subscription("t"), subscription("s", expressionType="SQL92", subString="a > 5")]
    consumer = {"groupName": "g", "subscriptionDataSet": sets}
    answer = broker.ask(broker.components.heartbeats.heartbeat, body={"clientID": "a", "consumerDataSet": [consumer]})
    assert answer[0] == SUCCESS
    assert broker.components.table.members("g") == ["a"]
    assert broker.server.subscriptions == {
        ("g", "t"): ("TAG", "*", 1, False),
        ("g", "s"): ("SQL92", "a > 5", 1, False),
    }


def test_the_hot_path_knows_which_groups_broadcast(broker: Broker) -> None:
    """Also when a group changes its mode."""
    broker.heartbeat("a", 1, "t", consumer={"messageModel": "BROADCASTING"})
    assert broker.server.subscriptions["g", "t"] == ("TAG", "*", 1, True)
    assert broker.server.take(NOTIFY) == []
    broker.heartbeat("a", 1, "t", consumer={"messageModel": "CLUSTERING"})
    assert broker.server.subscriptions["g", "t"] == ("TAG", "*", 1, False)
    assert broker.server.take(NOTIFY) == [1]


def test_only_filters_that_can_be_read_pass_the_check(broker: Broker) -> None:
    """The refusal names the topic, the place of the error and the reason."""
    check = broker.components.heartbeats.check
    asked = {"clientId": "a", "group": "g"}
    for kind, expression, told in [
        ("SQL92", "price > ", "to t: the filter expression is wrong at position 8: expected a property"),
        ("XPATH", "/price", '"XPATH" is unknown'),
    ]:
        wrong = subscription("t", expressionType=kind, subString=expression)
        code, remark, *_ = broker.ask(check, body={**asked, "subscriptionData": wrong})
        assert code == UNREADABLE
        assert remark is not None
        assert told in remark
    right = subscription("t", expressionType="SQL92", subString="price > 3")
    assert broker.ask(check, body={**asked, "subscriptionData": right})[0] == SUCCESS
    assert broker.ask(check, body={**asked, "subscriptionData": subscription("t")})[0] == SUCCESS
    assert broker.ask(check, body={**asked, "subscriptionData": None})[0] == SUCCESS


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (b"", "heartbeat"),
        (b"[]", "heartbeat"),
        ({"consumerDataSet": []}, "clientID"),
        ({"clientID": "a", "consumerDataSet": {}}, "clientID is"),
        ({"clientID": "a", "consumerDataSet": [1]}, "consumerDataSet"),
        ({"clientID": "a", "consumerDataSet": [{}]}, "groupName"),
        ({"clientID": "a", "consumerDataSet": [{"groupName": "g", "consumeType": "EATING"}]}, "CONSUME_PASSIVELY"),
        ({"clientID": "a", "consumerDataSet": [{"groupName": "g", "messageModel": 2}]}, "messageModel"),
        ({"clientID": "a", "producerDataSet": [{"groupName": "\ud800"}]}, "groupName"),
        (
            {"clientID": "a", "consumerDataSet": [{"groupName": "g", "subscriptionDataSet": [{"subVersion": "x"}]}]},
            "topic",
        ),
        *(
            (
                {
                    "clientID": "a",
                    "consumerDataSet": [{"groupName": "g", "subscriptionDataSet": [{"topic": "t", "codeSet": codes}]}],
                },
                "codeSet",
            )
            for codes in ("1", ["one"], [1.5], [{}])
        ),
        ({"clientID": "a", "heartbeatFingerprint": 1 << 70}, "heartbeatFingerprint"),
    ],
)
def test_a_wrong_heartbeat_is_refused_by_the_name_of_its_field(broker: Broker, wrong: Any, named: str) -> None:
    """And changes nothing."""
    if wrong == {"clientID": "a", "consumerDataSet": {}}:
        assert broker.ask(broker.components.heartbeats.heartbeat, body=wrong)[0] == SUCCESS
        return
    code, remark, *_ = broker.ask(broker.components.heartbeats.heartbeat, body=wrong)
    assert (code, named in (remark or "")) == (INVALID, True), remark
    assert broker.components.table.members("g") == []


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["clientID", "consumerDataSet", "producerDataSet", "groupName", "subscriptionDataSet", "topic"]
            ),
            inner,
            max_size=6,
        )
    ),
    max_leaves=20,
)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Return a broker for all examples of a property; no group is created in it."""
    broker = Broker(tmp_path_factory.mktemp("shared"), auto_create_groups=False)
    yield broker
    broker.store.close()


@given(body=JSON.map(lambda value: json.dumps(value).encode()) | st.binary(max_size=50))
def test_no_body_is_more_than_a_wrong_parameter(shared: Broker, body: bytes) -> None:
    """Any body is accepted or refused with a text; nothing breaks."""
    rooms = shared.components
    handlers = [
        rooms.heartbeats.heartbeat,
        rooms.heartbeats.check,
        rooms.locking.lock,
        rooms.locking.unlock,
        rooms.assignments.query,
        rooms.assignments.set_mode,
    ]
    for handler in handlers:
        code, remark, *_ = shared.ask(handler, body=body)
        assert code in {SUCCESS, INVALID, TOPIC_NOT_EXIST} or (remark or "").startswith("The broker does not")
    shared.components.table.close_connection(1)


# Connected clients


def test_connections_of_consumers_and_producers_have_javas_fields(broker: Broker) -> None:
    """Requests 203, 204 and 328; unknown groups have Java's codes."""
    consumer = {"consumeType": "CONSUME_PASSIVELY", "messageModel": 1, "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET"}
    more = {"producerDataSet": [{"groupName": "p"}]}
    broker.heartbeat("a", 1, "t", consumer=consumer, more=more, language="GO", version=400)
    connections = broker.components.connections
    connection = {"clientAddr": "127.0.0.1:1", "clientId": "a", "language": "GO", "version": 400}
    connection["protocol"] = "remoting"
    assert parsed(broker.ask(connections.of_consumers, {"consumerGroup": "g"})) == {
        "connectionSet": [connection],
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
        "subscriptionTable": {"t": {**subscription("t"), "expressionType": "TAG", "classFilterMode": False}},
    }
    assert parsed(broker.ask(connections.of_producers, {"producerGroup": "p"})) == {"connectionSet": [connection]}
    producer = {
        "clientId": "a",
        "language": "GO",
        "lastUpdateTimestamp": START,
        "remoteIP": "/127.0.0.1:1",
        "version": 400,
    }
    assert parsed(broker.ask(connections.all_producers)) == {"data": {"p": [producer]}}
    assert broker.ask(connections.of_consumers, {"consumerGroup": "x"})[:2] == (
        NOT_ONLINE,
        "the consumer group[x] not online",
    )
    assert broker.ask(connections.of_producers, {"producerGroup": "x"})[:2] == (
        SYSTEM_ERROR,
        "the producer group[x] not exist",
    )
    assert broker.ask(broker.components.members.consumer_list, {"consumerGroup": "x"})[:2] == (
        SYSTEM_ERROR,
        "no consumer for this group, x",
    )


def test_consumers_of_a_topic_have_a_subscription_or_an_offset(broker: Broker) -> None:
    """Requests 300, 343 and 345."""
    broker.heartbeat("a", 1, "t")
    broker.store.append("t", 0, b"x")
    assert readable(broker.store, "t", 0, 1)
    broker.store.commit_offset("earlier", "t", 0, 1)
    connections = broker.components.connections
    assert parsed(broker.ask(connections.consumers_of, {"topic": "t"})) == {"groupList": ["earlier", "g"]}
    assert parsed(broker.ask(connections.consumers_of, {"topic": "nobody's"})) == {"groupList": []}
    topics = parsed(broker.ask(connections.topics_of, {"group": "earlier"}))
    assert topics == {"brokerAddr": "10.0.0.1:10911", "topicList": ["t"]}
    asked = {"group": "g", "topic": "t"}
    assert parsed(broker.ask(connections.subscription, asked))["subscriptionData"]["topic"] == "t"
    assert parsed(broker.ask(connections.subscription, {**asked, "topic": "u"})) == {"group": "g", "topic": "u"}


# Asking clients


def test_requests_are_forwarded_to_the_client(broker: Broker) -> None:
    """Its fields and its answer unchanged; so is the message to consume."""
    broker.heartbeat("a", 1, "t")
    _, physical_offset = broker.store.append("t", 0, b"hello")
    stored = broker.store.message_at(physical_offset)
    assert stored is not None
    broker.server.answers[1] = (SUCCESS, None, {}, b"running")
    asked = {"consumerGroup": "g", "clientId": "a", "jstackEnable": "true"}
    assert broker.ask(broker.components.calls.running_info, asked)[3] == b"running"
    assert broker.server.called.pop() == (1, RUNNING, asked, b"")
    asked = {"consumerGroup": "g", "clientId": "a", "msgId": stored.offset_message_id, "topic": "t"}
    broker.ask(broker.components.calls.consume_directly, asked)
    sent = {**asked, "brokerName": "broker-a", "topicSysFlag": "0", "groupSysFlag": "0"}
    assert broker.server.called.pop() == (1, DIRECTLY, sent, stored.raw)
    for wrong in ("", "no id", "0" * 31, "é" * 32):
        assert broker.ask(broker.components.calls.consume_directly, {**asked, "msgId": wrong})[0] == INVALID
    unknown = {**asked, "msgId": "0" * 16 + f"{1 << 40:016X}"}
    assert broker.ask(broker.components.calls.consume_directly, unknown)[0] == SYSTEM_ERROR


def test_a_client_that_cannot_be_asked_is_named(broker: Broker) -> None:
    """Unknown, too old, silent, or gone; or if too many requests are waiting."""
    calls, server = broker.components.calls, broker.server
    asked = {"consumerGroup": "g", "clientId": "a"}
    assert broker.ask(calls.running_info, asked)[:2] == (SYSTEM_ERROR, "The Consumer <g> <a> not online")
    broker.heartbeat("a", 1, "t", version=61)
    assert "too low" in str(broker.ask(calls.running_info, asked)[1])
    broker.heartbeat("a", 1, "t")
    server.answers[1] = RequestTimeout("10 s passed")
    assert broker.ask(calls.running_info, asked)[0] == TIMEOUT
    server.answers[1] = ConnectionFailed("closed")
    assert broker.ask(calls.running_info, asked)[0] == SYSTEM_ERROR
    half = BrokerConfig().handler_threads // 2
    with contextlib.ExitStack() as held:
        for _ in range(half):
            held.enter_context(calls._slot())
        code, remark, *_ = broker.ask(calls.running_info, asked)
    assert (code, f"{half} clients" in str(remark)) == (BUSY, True)
    server.answers[1] = (SUCCESS, None, {}, b"")
    assert broker.ask(calls.running_info, asked)[0] == SUCCESS


def test_the_status_of_consumers_is_their_own_answer(broker: Broker) -> None:
    """In Java's form; without silent clients, or with only the requested one."""
    status, server = broker.components.calls.consumer_status, broker.server
    asked = {"group": "g", "topic": "t"}
    code, remark, *_ = broker.ask(status, asked)
    assert (code, remark) == (SYSTEM_ERROR, "No Any Consumer online in the consumer group: [g]")
    for name, connection in (("a", 1), ("b", 2), ("c", 3)):
        broker.heartbeat(name, connection, "t")
    own = b'{"consumerTable":{},"messageQueueTable":{{"brokerName":"broker-a","queueId":0,"topic":"t"}:5}}'
    server.answers.update({1: (0, None, {}, own), 2: RequestTimeout("silent"), 3: (0, None, {}, own)})
    part = b'{{"brokerName":"broker-a","queueId":0,"topic":"t"}:5}'
    assert broker.ask(status, asked)[3] == b'{"consumerTable":{"a":%b,"c":%b},"messageQueueTable":{}}' % (part, part)
    only = broker.ask(status, {**asked, "clientAddr": "c"})[3]
    assert only == b'{"consumerTable":{"c":%b},"messageQueueTable":{}}' % part
    assert server.called[-1][:3] == (3, STATUS, {"topic": "t", "group": "g"})


# Resets of offsets


def filled(broker: Broker) -> None:
    """Store five messages in each queue of t, of which g has consumed four."""
    broker.groups.ensure("g", "test")
    for queue_id in range(4):
        for number in range(5):
            broker.store.append("t", queue_id, b"%d" % number)
        assert readable(broker.store, "t", queue_id, 5)
        broker.store.commit_offset("g", "t", queue_id, 4)


def test_offsets_are_reset_and_members_told(broker: Broker) -> None:
    """To a time, or to the end; the answer and the push have Java's form, for the C++ client a list."""
    filled(broker)
    broker.heartbeat("a", 1, "t")
    broker.heartbeat("b", 2, "t", language="CPP")
    asked = {"topic": "t", "group": "g", "timestamp": "0", "isForce": "true"}
    answer = broker.ask(broker.resets.reset, asked)
    queues = {MessageQueue("t", "broker-a", queue_id): 0 for queue_id in range(4)}
    assert load_offsets(answer[3], "offsetTable") == queues
    assert [broker.store.committed_offset("g", "t", queue_id) for queue_id in range(4)] == [0, 0, 0, 0]
    (java, cpp) = sorted(each for each in broker.server.pushed if each[1] == RESET)
    assert java[2] == {"topic": "t", "group": "g", "timestamp": "0", "isForce": "true"}
    assert load_offsets(java[3], "offsetTable") == queues
    first = {"topic": "t", "brokerName": "broker-a", "queueId": 0, "offset": 0}
    assert json.loads(cpp[3])["offsetTable"][0] == first
    assert broker.server.resets == {("g", "t", queue_id): 0 for queue_id in range(4)}
    broker.ask(broker.resets.reset, {**asked, "timestamp": "-1"})
    assert [broker.store.committed_offset("g", "t", queue_id) for queue_id in range(4)] == [5, 5, 5, 5]


def test_members_that_keep_their_own_offsets_are_pushed_a_reset(broker: Broker) -> None:
    """In broadcasting mode the next pull cannot carry it; clients that are too old are skipped."""
    filled(broker)
    broker.heartbeat("a", 1, "t", consumer={"messageModel": "BROADCASTING"})
    broker.heartbeat("b", 2, "t", consumer={"messageModel": "BROADCASTING"}, version=27)
    asked = {"topic": "t", "group": "g", "timestamp": "0", "isForce": "true"}
    assert broker.ask(broker.resets.reset, asked)[0] == SUCCESS
    assert broker.server.resets == {}
    assert broker.server.take(RESET) == [1]


def test_nothing_is_pushed_to_grpc_clients(broker: Broker) -> None:
    """They are members; requests over remoting are not sent to them."""
    filled(broker)
    client = Client("grpc", 9, "127.0.0.1:9", "PYTHON", 413, is_grpc=True)
    broker.components.table.join_over_grpc("g", client, START)
    asked = {"topic": "t", "group": "g", "timestamp": "0", "isForce": "true"}
    broker.ask(broker.resets.reset, asked)
    assert broker.server.resets == {}
    broker.heartbeat("a", 1, "t")
    broker.ask(broker.resets.reset, asked)
    assert (broker.server.take(NOTIFY), broker.server.take(RESET)) == ([1], [1])
    asked = {"consumerGroup": "g", "clientId": "grpc", "jstackEnable": "true"}
    answer = broker.ask(broker.components.calls.running_info, asked)
    assert (answer[0], "no telemetry stream" in str(answer[1])) == (SYSTEM_ERROR, True)


def test_an_undelivered_reset_ends_with_the_group(broker: Broker) -> None:
    """It does not undo a later one of an offline group, or of a topic that its members do not read."""
    filled(broker)
    asked = {"topic": "t", "group": "g", "timestamp": "0", "isForce": "true"}
    broker.heartbeat("a", 1, "u")
    broker.ask(broker.resets.reset, asked)
    assert broker.server.resets == {}
    broker.heartbeat("a", 1, "t", "u")
    broker.ask(broker.resets.reset, asked)
    assert broker.server.resets == {("g", "t", queue_id): 0 for queue_id in range(4)}
    broker.components.table.close_connection(1)
    assert broker.server.resets == {}
    broker.ask(broker.resets.reset, {**asked, "timestamp": "-1"})
    broker.heartbeat("a", 1, "t")
    assert broker.server.resets == {}
    assert broker.store.committed_offset("g", "t", 0) == 5


def test_a_reset_outlives_the_heartbeat_of_a_member_with_other_topics(broker: Broker) -> None:
    """As long as a member reads its topic."""
    filled(broker)
    broker.heartbeat("a", 1, "t")
    asked = {"topic": "t", "group": "g", "timestamp": "0", "isForce": "true", "queueId": "1", "offset": "2"}
    broker.ask(broker.resets.reset, asked)
    broker.heartbeat("b", 2, "u")
    assert broker.server.resets == {("g", "t", 1): 2}
    # The group now seems to read only u, but a reads t as before.
    broker.ask(broker.resets.reset, {**asked, "offset": "3"})
    assert broker.server.resets == {("g", "t", 1): 3}
    broker.heartbeat("a", 1, "u")
    assert broker.server.resets == {}


def test_one_queue_is_reset_to_an_offset(broker: Broker) -> None:
    """Also of a group without members; the others stay; an offset outside the queue is refused with its range."""
    filled(broker)
    asked = {"topic": "t", "group": "g", "timestamp": "0", "isForce": "true", "queueId": "1", "offset": "2"}
    answer = broker.ask(broker.resets.reset, asked)
    assert load_offsets(answer[3], "offsetTable") == {MessageQueue("t", "broker-a", 1): 2}
    assert [broker.store.committed_offset("g", "t", queue_id) for queue_id in range(4)] == [4, 2, 4, 4]
    # Without members online no reset is pending; with one it is.
    assert broker.server.resets == {}
    broker.heartbeat("a", 1, "t")
    broker.ask(broker.resets.reset, asked)
    assert broker.server.resets == {("g", "t", 1): 2}
    assert broker.server.take(RESET) == []
    code, remark, *_ = broker.ask(broker.resets.reset, {**asked, "offset": "6"})
    assert (code, remark) == (SYSTEM_ERROR, "Target offset 6 not in consume queue range [0-5]")
    assert broker.ask(broker.resets.reset, {**asked, "queueId": "4"})[0] == INVALID
    assert broker.ask(broker.resets.reset, {**asked, "topic": "x"})[0] == TOPIC_NOT_EXIST
    assert broker.ask(broker.resets.reset, {**asked, "group": "x"})[0] == NO_GROUP
    assert broker.store.committed_offset("g", "t", 1) == 2


def test_benchmark_and_trace_topics_are_reset_and_popped_as_others(broker: Broker) -> None:
    """RocketMQ's benchmarks and traces are read by ordinary groups."""
    broker.groups.ensure("g", "test")
    asked = {"topic": "BenchmarkTest", "group": "g", "timestamp": "-1", "isForce": "true"}
    assert broker.ask(broker.resets.reset, asked)[0] == SUCCESS
    mode = {"topic": "BenchmarkTest", "consumerGroup": "g", "mode": "POP", "popShareQueueNum": 0}
    assert broker.ask(broker.components.assignments.set_mode, body=mode)[0] == SUCCESS


QUEUE_NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=8)


@given(
    st.dictionaries(
        st.builds(MessageQueue, QUEUE_NAMES, QUEUE_NAMES, st.integers(-1, 1 << 31)), st.integers(-(1 << 63), 1 << 63)
    )
)
def test_tables_of_offsets_come_back_as_they_were(offsets: dict[MessageQueue, int]) -> None:
    """Whatever the names, quotes and braces in them as well."""
    body = b'{"other":{},"offsetTable":' + dump_offsets(offsets) + b"}"
    assert load_offsets(body, "offsetTable") == offsets


@pytest.mark.parametrize("offset", [b"null", b'"5"', b"1.5", b"Infinity", b"true", b"[]"])
def test_an_offset_is_a_whole_number(offset: bytes) -> None:
    """Anything else is bad input."""
    with pytest.raises(ValueError, match=r"offset|Infinity|number"):
        load_offsets(b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"t"}:%b}}' % offset, "offsetTable")


@given(st.binary(max_size=60) | st.text(alphabet='{}[]":,a1\\', max_size=40).map(str.encode))
def test_garbage_is_no_table_of_offsets(body: bytes) -> None:
    """It is refused as a `ValueError`, at once."""
    try:
        load_offsets(body, "offsetTable")
    except ValueError:
        return


# Replies


def reply_fields(client_id: str | None = "a") -> dict[str, str]:
    """Return the short header of a reply to a client."""
    properties = {"CORRELATION_ID": "7", **({} if client_id is None else {"REPLY_TO_CLIENT": client_id})}
    return {
        "a": "p",
        "b": "DefaultCluster_REPLY_TOPIC",
        "c": "TBW102",
        "d": "4",
        "e": "0",
        "f": "0",
        "g": "5",
        "h": "3",
        "i": format_properties(properties),
        "j": "0",
        "k": "false",
    }


def test_a_reply_goes_to_its_requester(broker: Broker) -> None:
    """With its properties, body and time; it is also stored, and the answer has its place."""
    broker.heartbeat("a", 1, more={"producerDataSet": [{"groupName": "p"}]})
    code, remark, fields, _ = broker.ask(broker.components.replies.short_reply, reply_fields(), b"pong", connection=2)
    assert (code, remark) == (SUCCESS, None)
    (pushed,) = broker.server.pushed
    connection, push_code, header, body = pushed
    assert (connection, push_code, body) == (1, PUSH_REPLY, b"pong")
    assert parse_properties(header["properties"]) == {
        "CORRELATION_ID": "7",
        "REPLY_TO_CLIENT": "a",
        "PUSH_REPLY_TIME": str(START),
    }
    assert {name: header[name] for name in ("bornHost", "storeHost", "storeTimestamp", "topic", "bornTimestamp")} == {
        "bornHost": "127.0.0.1:2",
        "storeHost": "10.0.0.1:10911",
        "storeTimestamp": str(START),
        "topic": "DefaultCluster_REPLY_TOPIC",
        "bornTimestamp": "5",
    }
    assert readable(broker.store, "DefaultCluster_REPLY_TOPIC", 0, 1)
    _, (stored,), _ = broker.store.get("DefaultCluster_REPLY_TOPIC", 0, 0)
    assert (stored.body, stored.flag, stored.born_timestamp) == (b"pong", 3, 5)
    assert stored.properties["CORRELATION_ID"] == "7"
    assert fields == {"msgId": stored.offset_message_id, "queueId": "0", "queueOffset": "0"}


def test_an_undeliverable_reply_has_a_reason(broker: Broker) -> None:
    """No client named, unknown client, or closed connection; it is stored all the same."""
    replies = broker.components.replies
    code, remark, *_ = broker.ask(replies.short_reply, reply_fields(None), b"x")
    assert (code, remark) == (SYSTEM_ERROR, "reply message properties[REPLY_TO_CLIENT] is null")
    code, remark, *_ = broker.ask(replies.short_reply, reply_fields("nobody"), b"x")
    assert (code, remark) == (SYSTEM_ERROR, "push reply message fail, channel of <nobody> not found.")
    broker.heartbeat("a", 1, more={"producerDataSet": [{"groupName": "p"}]})
    broker.server.gone.add(1)
    code, remark, *_ = broker.ask(replies.short_reply, reply_fields(), b"x")
    assert (code, str(remark).startswith("push reply message to a fail")) == (SYSTEM_ERROR, True)
    assert readable(broker.store, "DefaultCluster_REPLY_TOPIC", 0, 3)
    assert broker.ask(replies.short_reply, {**reply_fields(), "b": "missing"}, b"x")[0] == TOPIC_NOT_EXIST
    assert broker.ask(replies.short_reply, {**reply_fields(), "e": "7"}, b"x")[0] == INVALID


def test_storing_replies_can_be_switched_off(tmp_path: Path) -> None:
    """They are forwarded; the answer has zeros for the client to decode."""
    broker = Broker(tmp_path, store_replies=False)
    broker.heartbeat("a", 1, more={"producerDataSet": [{"groupName": "p"}]})
    fields = {"topic": "DefaultCluster_REPLY_TOPIC", "queueId": "0", "properties": reply_fields()["i"]}
    code, _, place, _ = broker.ask(broker.components.replies.reply, fields, b"pong")
    assert (code, place) == (SUCCESS, {"msgId": "0", "queueId": "0", "queueOffset": "0"})
    assert broker.store.stats()["appended"] == 0
    assert len(broker.server.pushed) == 1
    broker.store.close()


# Assignments

QUEUES = [MessageQueue("t", "broker-a", number) for number in range(8)]


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [(averagely, [[0, 1, 2], [3, 4, 5], [6, 7]]), (by_circle, [[0, 3, 6], [1, 4, 7], [2, 5]])],
)
def test_assignments_are_those_of_javas_strategies(strategy: Any, expected: list[list[int]]) -> None:
    """Eight queues among three members."""
    members = ["a", "b", "c"]
    assert [[queue.queue_id for queue in strategy(QUEUES, members, each)] for each in members] == expected
    assert strategy(QUEUES, members, "stranger") == []


@given(st.integers(1, 40), st.integers(1, 40), st.sampled_from([averagely, by_circle]))
def test_every_queue_is_one_members(queues: int, members: int, strategy: Any) -> None:
    """And no member has two more than another."""
    names, own = [f"{number:02}" for number in range(members)], [MessageQueue("t", "b", each) for each in range(queues)]
    shares = [strategy(own, names, name) for name in names]
    assert sorted(queue for share in shares for queue in share) == own
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@pytest.mark.parametrize(
    ("members", "others", "expected"),
    [
        (4, -1, [-1] * 8),
        (4, 0, [-1] * 8),
        (4, 3, [-1] * 8),
        (4, 1, [0, 1, 2, 3]),
        (4, 2, [0, 1, 2, 3, 4, 5]),
        (9, 2, [0]),
    ],
)
def test_members_that_pop_share_queues(members: int, others: int, expected: list[int]) -> None:
    """With the next members, as many as configured; with all, no queue is named."""
    names = [f"{number:02}" for number in range(members)]
    found = share_to_pop(averagely, QUEUES, names, "00", others)
    assert [queue.queue_id for queue in found] == expected


def assigned(broker: Broker, **changes: str) -> Any:
    """Return the assignment of member a of g in t: queues, and the request mode."""
    body = {"topic": "t", "consumerGroup": "g", "clientId": "a", "strategyName": "AVG", "messageModel": "CLUSTERING"}
    answer = parsed(broker.ask(broker.components.assignments.query, body={**body, **changes}))
    if "messageQueueAssignments" not in answer:
        return None
    return [(each["messageQueue"]["queueId"], each["mode"]) for each in answer["messageQueueAssignments"]]


def test_a_member_gets_its_assignment(broker: Broker) -> None:
    """Of all brokers' readable queues; all of them in broadcasting mode; none for an unknown topic."""
    assert assigned(broker) is None
    broker.heartbeat("a", 1, "t")
    broker.heartbeat("b", 2, "t")
    assert assigned(broker) == [(0, "PULL"), (1, "PULL")]
    assert assigned(broker, strategyName="AVG_BY_CIRCLE") == [(0, "PULL"), (2, "PULL")]
    assert assigned(broker, messageModel="BROADCASTING") == [(number, "PULL") for number in range(4)]
    assert assigned(broker, clientId="stranger") == []
    assert assigned(broker, strategyName="MACHINE_ROOM") is None
    assert assigned(broker, topic="nowhere") is None
    queues = (QueueData("broker-a", 4, 4), QueueData("broker-b", 2, 4), QueueData("broker-c", 2, 2, Permission.WRITE))
    broker.route = TopicRoute(queues, (BrokerData("c", "broker-a", {0: "x:1"}),))
    assert [queue for queue, _ in assigned(broker)] == [0, 1, 2]
    assert [queue for queue, _ in assigned(broker, clientId="b")] == [3, 0, 1]


def test_assignments_of_many_members_ask_a_name_server_once(broker: Broker) -> None:
    """A thousand members that ask again do not reach it."""
    broker.route = TopicRoute((QueueData("broker-a", 4, 4),), (BrokerData("c", "broker-a", {0: "x:1"}),))
    broker.heartbeat("a", 1, "t")
    assert [assigned(broker, clientId=f"c{number}") for number in range(1_000)] == [[]] * 1_000
    assert broker.asked == ["t"]


def test_the_request_mode_of_a_group_is_kept(broker: Broker, tmp_path: Path) -> None:
    """In RocketMQ's file; retries are always pulled; topic and group must exist."""
    broker.heartbeat("a", 1, "t")
    body = {"topic": "t", "consumerGroup": "g", "mode": "POP", "popShareQueueNum": 2}
    assert broker.ask(broker.components.assignments.set_mode, body=body)[0] == SUCCESS
    assert assigned(broker) == [(-1, "POP")]
    content = json.loads((tmp_path / "config" / "messageRequestMode.json").read_text())
    assert content == {"messageRequestModeMap": {"t": {"g": body}}}
    assert parsed(broker.ask(broker.components.assignments.all_modes)) == content
    again = RequestModes(tmp_path)
    assert again.get("t", "g") == RequestMode("POP", 2)
    assert again.get("t", "other") == RequestMode("PULL", -1)
    for change, code in (
        ({"topic": "%RETRY%g"}, NO_PERMISSION),
        ({"topic": "nowhere"}, TOPIC_NOT_EXIST),
        ({"consumerGroup": "nobody"}, NO_GROUP),
        ({"mode": "PUSH"}, INVALID),
        ({"popShareQueueNum": "2"}, INVALID),
    ):
        assert broker.ask(broker.components.assignments.set_mode, body={**body, **change})[0] == code
    again.replace(b'{"messageRequestModeMap":{"u":{"h":{"mode":"PULL","popShareQueueNum":0}}}}')
    assert RequestModes(tmp_path).get("u", "h") == RequestMode("PULL", 0)
    for wrong in (
        b'{"messageRequestModeMap":{"u":{"h":{"mode":"NO"}}}}',
        b"{}",
        b"[]",
        b'{"messageRequestModeMap":[1]}',
    ):
        with pytest.raises(ValueError, match=r"mode|object"):
            again.replace(wrong)
    assert again.get("u", "h") == RequestMode("PULL", 0)


def test_a_file_of_modes_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """It is not taken for an empty one."""
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "messageRequestMode.json").write_text('{"messageRequestModeMap":{"t":[]}}')
    with pytest.raises(CorruptStore, match=r"messageRequestMode\.json"):
        RequestModes(tmp_path)


# Locks


def test_queues_are_locked_over_the_wire(broker: Broker) -> None:
    """The answer has Java's form; a member that left keeps its locks until they expire."""
    queues = [{"topic": "t", "brokerName": "broker-a", "queueId": number} for number in range(2)]
    body = {"consumerGroup": "g", "clientId": "a", "mqSet": queues, "onlyThisBroker": False}
    lock, unlock = broker.components.locking.lock, broker.components.locking.unlock
    assert parsed(broker.ask(lock, body=body)) == {"lockOKMQSet": queues}
    assert broker.server.locked == {"g": broker.now + 60_000}
    other = {**body, "clientId": "b"}
    assert parsed(broker.ask(lock, body=other)) == {"lockOKMQSet": []}
    broker.ask(unlock, body={**body, "mqSet": queues[:1]})
    assert parsed(broker.ask(lock, body=other)) == {"lockOKMQSet": queues[:1]}
    broker.components.table.close_connection(1)
    assert parsed(broker.ask(lock, body=other)) == {"lockOKMQSet": queues[:1]}
    broker.now += 60_001
    broker.components.expire(broker.now)
    assert parsed(broker.ask(lock, body=other)) == {"lockOKMQSet": queues}
    for wrong in ({**body, "mqSet": [1]}, {**body, "clientId": ""}, {**body, "consumerGroup": 5}, {**body, "mqSet": 3}):
        assert broker.ask(lock, body=wrong)[0] == INVALID
