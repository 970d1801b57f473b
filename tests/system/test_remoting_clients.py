"""Remoting clients of a broker, over their sockets: members of groups, locks, forwarded requests, replies."""

import json
import random
import threading
from collections.abc import Callable, Iterator

import pytest
from remoting_peer import Frame, Peer

import ferromq
from ferromq.process.clock import Clock

SUCCESS, SYSTEM_ERROR, UNKNOWN, MOVED, INVALID, NOT_ONLINE = 0, 1, 3, 21, 29, 206
PULL, COMMIT = 11, 15
HEART_BEAT, CONSUMER_LIST, NOTIFY, LOCK, UNLOCK = 34, 38, 40, 41, 42
CONSUMERS, PRODUCERS, RESET, STATUS, ASK_RESET, ASK_STATUS = 203, 204, 220, 221, 222, 223
RUNNING_INFO, REPLY, PUSH_REPLY, ASSIGNMENT, SET_MODE, MODES = 307, 324, 326, 400, 401, 402
WHO_CONSUMES, UNKNOWN_CODE = 300, 31_999
Eventually = Callable[[Callable[[], bool]], bool]
Connect = Callable[[str], Peer]


@pytest.fixture
def mq() -> Iterator[ferromq.Embedded]:
    """Run an embedded broker whose time is moved by hand."""
    with ferromq.embedded(clock=Clock.manual()) as embedded:
        yield embedded


@pytest.fixture
def connect(mq: ferromq.Embedded) -> Iterator[Connect]:
    """Return a function that connects a remoting client, by its id."""
    peers: list[Peer] = []

    def connect(client_id: str) -> Peer:
        peers.append(Peer(mq.broker.address, client_id=client_id))
        return peers[-1]

    yield connect
    for peer in peers:
        peer.close()


def members(peer: Peer, group: str = "g") -> list[str]:
    """Return the members of a group as a client sees them."""
    answer = peer.call(CONSUMER_LIST, {"consumerGroup": group})
    return [] if answer.code == SYSTEM_ERROR else answer.json()["consumerIdList"]


def join(peer: Peer, *topics: str, **more: object) -> Frame:
    """Let a client join the group g."""
    answer = peer.heartbeat(consumes={"g": dict.fromkeys(topics or ("orders",), "*")}, **more)
    assert answer.code == SUCCESS, answer.remark
    return answer


def told(*peers: Peer) -> None:
    """Wait until each of *peers* is told that the group g changed."""
    for peer in peers:
        assert peer.asked(NOTIFY).fields["consumerGroup"] == "g"


def test_an_unknown_code_leaves_the_connection_open(connect: Connect) -> None:
    """It is answered with 3, and the next question with its answer."""
    peer = connect("a")
    assert peer.call(UNKNOWN_CODE).code == UNKNOWN
    assert peer.call(UNKNOWN_CODE).code == UNKNOWN


def test_members_are_notified_of_changes_at_once(mq: ferromq.Embedded, connect: Connect) -> None:
    """By a heartbeat, an unregistration, a lost connection and an expired lease."""
    a, b, c = (connect(name) for name in "abc")
    join(a)
    told(a)
    join(b)
    told(a, b)
    assert members(a) == ["a", "b"]
    join(c)
    told(a, b, c)
    assert b.unregister(consumer="g").code == SUCCESS
    told(a, c)
    assert members(a) == ["a", "c"]
    c.close()
    told(a)
    assert members(a) == ["a"]
    d = connect("d")
    join(d)
    told(a, d)
    mq.clock.advance(seconds=60)
    join(a)
    mq.clock.advance(seconds=70)
    told(a)
    assert d.closed.wait(10)
    assert members(a) == ["a"]


def test_a_renewal_notifies_no_member(connect: Connect) -> None:
    """Nor do producers."""
    a, b, c = (connect(name) for name in "abc")
    join(a)
    told(a)
    join(b)
    told(a, b)
    join(b)
    a.heartbeat(produces=("p",))
    # Members are told in order.
    join(c)
    told(a, b, c)
    assert not a.has_been_asked(NOTIFY)
    assert not b.has_been_asked(NOTIFY)


def test_grpc_clients_and_remoting_clients_are_members_of_one_group(
    mq: ferromq.Embedded, connect: Connect, eventually: Eventually
) -> None:
    """The remoting ones are notified of the others, and see them in the list."""
    a = connect("a")
    join(a)
    told(a)
    with mq.producer() as producer, mq.consumer("g", "orders") as consumer:
        producer.send("orders", b"x")
        assert [message.body for message in consumer.receive(wait=10)] == [b"x"]
        assert eventually(lambda: len(members(a)) == 2)
        told(a)
        connections = a.call(CONSUMERS, {"consumerGroup": "g"}).json()
        languages = sorted(each["language"] for each in connections["connectionSet"])
        assert languages == ["JAVA", "PYTHON"]
    told(a)
    assert eventually(lambda: members(a) == ["a"])


def test_a_group_that_is_not_online_is_named(connect: Connect) -> None:
    """With the codes Java's tools look at."""
    peer = connect("a")
    answer = peer.call(CONSUMERS, {"consumerGroup": "nobody"})
    assert (answer.code, answer.remark) == (NOT_ONLINE, "the consumer group[nobody] not online")
    answer = peer.call(PRODUCERS, {"producerGroup": "nobody"})
    assert (answer.code, answer.remark) == (SYSTEM_ERROR, "the producer group[nobody] not exist")


def test_one_member_at_a_time_locks_a_queue(mq: ferromq.Embedded, connect: Connect, eventually: Eventually) -> None:
    """Until it unlocks it, or 60 seconds pass without a renewal."""
    a, b = connect("a"), connect("b")
    queues = [{"topic": "orders", "brokerName": "broker-a", "queueId": number} for number in range(2)]

    def lock(peer: Peer) -> list[int]:
        body = {"consumerGroup": "g", "clientId": peer.client_id, "mqSet": queues}
        return [queue["queueId"] for queue in peer.call(LOCK, body=body).json()["lockOKMQSet"]]

    assert lock(a) == [0, 1]
    assert lock(b) == []
    a.one_way(UNLOCK, body={"consumerGroup": "g", "clientId": "a", "mqSet": queues[:1]})
    a.call(UNLOCK, body={"consumerGroup": "g", "clientId": "a", "mqSet": []})
    assert eventually(lambda: lock(b) == [0])
    mq.clock.advance(seconds=59)
    assert lock(a) == [1]
    mq.clock.advance(seconds=2)
    assert lock(a) == [0, 1]


def test_requests_are_forwarded_and_answered(connect: Connect, eventually: Eventually) -> None:
    """A client's answer is forwarded unchanged; a client that hangs up is named."""
    a, admin = connect("a"), connect("admin")
    join(a)
    a.replies[RUNNING_INFO] = lambda asked: Frame(SUCCESS, {}, json.dumps({"for": asked.fields["clientId"]}).encode())
    asked = {"consumerGroup": "g", "clientId": "a"}
    assert admin.call(RUNNING_INFO, asked).json() == {"for": "a"}
    offsets = b'{"messageQueueTable":{{"brokerName":"broker-a","queueId":0,"topic":"orders"}:5}}'
    a.replies[STATUS] = lambda _asked: Frame(SUCCESS, {}, offsets)
    status = admin.call(ASK_STATUS, {"topic": "orders", "group": "g"})
    assert status.body == b'{"consumerTable":{"a":%b},%b' % (
        offsets[len(b'{"messageQueueTable":') : -1],
        b'"messageQueueTable":{}}',
    )
    asking = threading.Thread(target=lambda: answers.append(admin.call(RUNNING_INFO, asked)))
    answers: list[Frame] = []
    del a.replies[RUNNING_INFO]
    a.asked(RUNNING_INFO)
    asking.start()
    a.asked(RUNNING_INFO)
    a.close()
    asking.join(10)
    assert (answers[0].code, "<g> <a>" in (answers[0].remark or "")) == (SYSTEM_ERROR, True)
    assert eventually(lambda: "not online" in (admin.call(RUNNING_INFO, asked).remark or ""))


def test_members_get_the_offsets_of_a_reset(mq: ferromq.Embedded, connect: Connect, eventually: Eventually) -> None:
    """All of them, with the offsets the answer has."""
    a, admin = connect("a"), connect("admin")
    with mq.producer() as producer:
        producer.send("orders", b"x")
    assert eventually(lambda: any(mq.broker.store.max_offset("orders", queue_id) for queue_id in range(8)))
    join(a)
    asked = {"topic": "orders", "group": "g", "timestamp": "-1", "isForce": "true"}
    answer = admin.call(ASK_RESET, asked)
    assert answer.code == SUCCESS
    assert a.asked(RESET).body == answer.body
    assert answer.body.count(b"}:1") == 1
    assert answer.body.count(b"}:0") == 7


def test_the_next_pull_of_a_member_tells_it_of_a_reset(
    mq: ferromq.Embedded, connect: Connect, eventually: Eventually
) -> None:
    """Its commits before that have no effect."""
    a, admin = connect("a"), connect("admin")
    with mq.admin() as topics, mq.producer() as producer:
        topics.create_topic("orders", queues=1)
        producer.send_all("orders", [b"0", b"1", b"2"])
    assert eventually(lambda: mq.broker.store.max_offset("orders", 0) == 3)
    join(a)
    asked = {"topic": "orders", "group": "g", "timestamp": "0", "isForce": "true", "queueId": "0", "offset": "1"}
    assert admin.call(ASK_RESET, asked).code == SUCCESS
    commit = {"consumerGroup": "g", "topic": "orders", "queueId": "0", "commitOffset": "3"}
    assert a.call(COMMIT, commit).code == SUCCESS
    assert mq.broker.store.committed_offset("g", "orders", 0) == 1
    pull = {"consumerGroup": "g", "topic": "orders", "queueId": "0", "queueOffset": "3", "maxMsgNums": "32"}
    pull |= {"sysFlag": "0", "commitOffset": "3", "suspendTimeoutMillis": "0", "subVersion": "1"}
    told = a.call(PULL, pull)
    assert (told.code, told.fields["nextBeginOffset"]) == (MOVED, "1")
    assert a.call(PULL, {**pull, "queueOffset": "1"}).code == SUCCESS
    a.call(COMMIT, commit)
    assert mq.broker.store.committed_offset("g", "orders", 0) == 3


def test_a_reset_reaches_only_its_own_members(mq: ferromq.Embedded, connect: Connect, eventually: Eventually) -> None:
    """Whatever another member reads; after the group was empty and reset again, the first reset is gone."""
    a, b, admin = connect("a"), connect("b"), connect("admin")
    with mq.admin() as topics, mq.producer() as producer:
        topics.create_topic("orders", queues=1)
        producer.send_all("orders", [b"0", b"1", b"2"])
    assert eventually(lambda: mq.broker.store.max_offset("orders", 0) == 3)
    asked = {"topic": "orders", "group": "g", "timestamp": "0", "isForce": "true", "queueId": "0", "offset": "1"}
    pull = {"consumerGroup": "g", "topic": "orders", "queueId": "0", "queueOffset": "3", "maxMsgNums": "32"}
    pull |= {"sysFlag": "0", "commitOffset": "3", "suspendTimeoutMillis": "0", "subVersion": "1"}
    join(a)
    assert admin.call(ASK_RESET, asked).code == SUCCESS
    join(b, "payments")
    join(a)
    answer = a.call(PULL, pull)
    assert (answer.code, answer.fields["nextBeginOffset"]) == (MOVED, "1")
    assert admin.call(ASK_RESET, asked).code == SUCCESS
    join(b, "payments")
    for peer in (a, b):
        assert peer.unregister(consumer="g").code == SUCCESS
    assert admin.call(ASK_RESET, {**asked, "offset": "2"}).code == SUCCESS
    join(a)
    assert a.call(PULL, {**pull, "queueOffset": "2"}).code == SUCCESS
    assert mq.broker.store.committed_offset("g", "orders", 0) == 2


def test_a_reply_reaches_its_requester(connect: Connect) -> None:
    """By the id in its property; a missing client is named."""
    asking, answering = connect("asking"), connect("answering")
    asking.heartbeat(produces=("p",))
    properties = "REPLY_TO_CLIENT\x01asking\x02CORRELATION_ID\x017\x02"
    fields = {
        "producerGroup": "p",
        "topic": "DefaultCluster_REPLY_TOPIC",
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4",
        "queueId": "0",
        "sysFlag": "0",
        "bornTimestamp": "1",
        "flag": "0",
        "properties": properties,
    }
    assert answering.call(REPLY, fields, b"pong").code == SUCCESS
    pushed = asking.asked(PUSH_REPLY)
    assert (pushed.body, pushed.fields["bornHost"]) == (b"pong", answering.name)
    assert pushed.fields["properties"].startswith(properties)
    answer = answering.call(REPLY, {**fields, "properties": "REPLY_TO_CLIENT\x01nobody\x02"}, b"pong")
    assert (answer.code, "nobody" in (answer.remark or "")) == (SYSTEM_ERROR, True)


def test_assignments_cover_all_brokers(mq: ferromq.Embedded, connect: Connect) -> None:
    """From the name server's route; the group's request mode is kept."""
    a, b = connect("a"), connect("b")
    with mq.admin() as admin:
        admin.create_topic("orders", queues=4)
    join(a)
    join(b)
    body = {
        "topic": "orders",
        "consumerGroup": "g",
        "clientId": "b",
        "strategyName": "AVG",
        "messageModel": "CLUSTERING",
    }
    found = b.call(ASSIGNMENT, body=body).json()["messageQueueAssignments"]
    assert [(each["messageQueue"]["queueId"], each["mode"]) for each in found] == [(2, "PULL"), (3, "PULL")]
    mode = {"topic": "orders", "consumerGroup": "g", "mode": "POP", "popShareQueueNum": -1}
    assert a.call(SET_MODE, body=mode).code == SUCCESS
    found = b.call(ASSIGNMENT, body=body).json()["messageQueueAssignments"]
    assert [(each["messageQueue"]["queueId"], each["mode"]) for each in found] == [(-1, "POP")]
    assert a.call(MODES).json() == {"messageRequestModeMap": {"orders": {"g": mode}}}


def test_garbage_harms_neither_the_connection_nor_others(connect: Connect) -> None:
    """Every code is answered for an invalid body; the members stay."""
    a, b = connect("a"), connect("b")
    join(b)
    chance = random.Random(5)  # the same garbage in every run
    codes = (HEART_BEAT, 35, CONSUMER_LIST, LOCK, UNLOCK, 46, CONSUMERS, PRODUCERS, ASK_RESET, ASK_STATUS)
    for code in (*codes, WHO_CONSUMES, RUNNING_INFO, 309, REPLY, 325, 343, 345, ASSIGNMENT, SET_MODE):
        for size in (0, 1, 40):
            answer = a.call(code, {"topic": "\x00", "queueId": "x"}, chance.randbytes(size))
            # The query for a topic's consumers takes any name.
            assert answer.code in {SYSTEM_ERROR, INVALID, NOT_ONLINE} or code == WHO_CONSUMES, (code, answer)
    assert members(a) == ["b"]
