"""Pulls, pops and commits of remoting consumers, alone and beside gRPC ones of the same group."""

import base64
import json
import struct
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from dispatching import dispatched
from remoting_peer import Frame, Peer

import ferromq
from ferromq.process.clock import Clock

SUCCESS, TOPIC_MISSING, NOT_FOUND, NOT_SUBSCRIBED, NOT_LATEST, GROUP_MISSING, NO_LEASE = 0, 17, 19, 24, 25, 26, 208
PULL, COMMIT, POP, ACK, BATCH_ACK, CHANGE = 11, 15, 200050, 200051, 200151, 200053
REFUSED, CHECK_SUBSCRIPTION, UPDATE_CONFIG, GET_CONFIG = 1, 46, 25, 26
COMMIT_FLAG, SUSPEND, OWN_SUBSCRIPTION = 1, 2, 4
BODY_AT = 84
"""The position of the body's length in a record of two IPv4 hosts."""
Eventually = Callable[[Callable[[], bool]], bool]


@pytest.fixture
def mq() -> Iterator[ferromq.Embedded]:
    """Run an embedded broker with a topic of one queue, whose time is moved by hand."""
    with ferromq.embedded(clock=Clock.manual()) as embedded:
        with embedded.admin() as admin:
            admin.create_topic("orders", queues=1)
        yield embedded


@pytest.fixture
def peer(mq: ferromq.Embedded) -> Iterator[Peer]:
    """Connect a remoting client."""
    with Peer(mq.broker.address) as peer:
        yield peer


def pull(peer: Peer, offset: int = 0, *, group: str = "g", flags: int = 0, version: int = 1, **more: str) -> Frame:
    """Pull the queue from an offset."""
    fields = {
        "consumerGroup": group,
        "topic": "orders",
        "queueId": "0",
        "queueOffset": str(offset),
        "maxMsgNums": "32",
        "sysFlag": str(flags),
        "commitOffset": "0",
        "suspendTimeoutMillis": "60000",
        "subVersion": str(version),
    }
    return peer.call(PULL, fields | more)


def pop(peer: Peer, *, invisible_ms: int = 60_000, poll_ms: int = 0) -> Frame:
    """Pop up to 32 messages."""
    names = {"consumerGroup": "g", "topic": "orders", "queueId": "-1", "expType": "TAG", "exp": "*", "order": "false"}
    times = {"invisibleTime": str(invisible_ms), "pollTime": str(poll_ms), "bornTime": "1"}
    return peer.call(POP, {**names, **times, "maxMsgNums": "32", "initMode": "0"})


def of_message(popped: Frame, offset: int, **more: str) -> dict[str, str]:
    """Return the fields that identify a popped message, as Java's client makes them."""
    start = popped.fields["startOffsetInfo"].split(" ")[2]
    told = (popped.fields[name] for name in ("popTime", "invisibleTime", "reviveQid"))
    info = f"{start} {' '.join(told)} 0 broker 0 {offset}"
    return {"consumerGroup": "g", "topic": "orders", "queueId": "0", "offset": str(offset), "extraInfo": info, **more}


def bodies(answer: Frame) -> list[bytes]:
    """Return the bodies of the records an answer holds."""
    found, rest = [], answer.body
    while rest:
        (size,), (length,) = struct.unpack_from(">i", rest), struct.unpack_from(">i", rest, BODY_AT)
        found.append(rest[BODY_AT + 4 : BODY_AT + 4 + length])
        rest = rest[size:]
    return found


def send(mq: ferromq.Embedded, *contents: bytes) -> None:
    """Send messages over gRPC, and return once they can be read."""
    with mq.producer() as producer:
        for content in contents:
            producer.send("orders", content)
    dispatched(mq)


def test_a_pull_uses_what_the_heartbeat_subscribed_to(mq: ferromq.Embedded, peer: Peer) -> None:
    """Without a subscription it is refused, and again once the consumer has left."""
    send(mq, b"one")
    assert pull(peer).code == NOT_SUBSCRIBED
    peer.heartbeat(consumes={"g": {"orders": "*"}}, version=5)
    assert bodies(pull(peer, flags=SUSPEND, version=5)) == [b"one"]
    assert pull(peer, version=6).code == NOT_LATEST
    peer.unregister(consumer="g")
    assert pull(peer, version=5).code == NOT_SUBSCRIBED
    assert bodies(pull(peer, flags=OWN_SUBSCRIPTION, subscription="*")) == [b"one"]


def test_a_waiting_pull_is_answered_by_a_send_over_grpc(mq: ferromq.Embedded, eventually: Eventually) -> None:
    """The answer comes with the message, not with the end of the wait."""
    with Peer(mq.broker.address) as waiting, ThreadPoolExecutor(1) as pool:
        waiting.heartbeat(consumes={"g": {"orders": "*"}})
        before = mq.broker._server.stats()["parked"]
        fields = {"consumerGroup": "g", "topic": "orders", "queueId": "0", "queueOffset": "0", "maxMsgNums": "1"}
        flags = {"sysFlag": str(SUSPEND), "commitOffset": "0", "suspendTimeoutMillis": "3600000", "subVersion": "1"}
        answer = pool.submit(waiting.call, PULL, fields | flags)
        assert eventually(lambda: mq.broker._server.stats()["parked"] > before)
        send(mq, b"late")
        assert eventually(lambda: mq.broker._server.stats()["parked"] == before)
        assert bodies(answer.result()) == [b"late"]


def test_commits_of_both_protocols_are_one_offset(mq: ferromq.Embedded, peer: Peer) -> None:
    """A gRPC consumer does not get messages that a remoting consumer of its group committed."""
    peer.heartbeat(consumes={"g": {"orders": "*"}})
    send(mq, b"0", b"1", b"2", b"3")
    place = {"consumerGroup": "g", "topic": "orders", "queueId": "0"}
    assert peer.call(COMMIT, {**place, "commitOffset": "1"}).code == SUCCESS
    assert mq.store.committed_offset("g", "orders", 0) == 1
    assert pull(peer, 4, flags=COMMIT_FLAG, commitOffset="2").code == NOT_FOUND
    with mq.consumer("g", "orders") as consumer:
        received = consumer.receive(max_messages=10)
        assert [message.body for message in received] == [b"2", b"3"]


def test_a_stray_commit_creates_nothing(mq: ferromq.Embedded, peer: Peer) -> None:
    """A removed topic or group is not created again."""
    peer.heartbeat(consumes={"g": {"orders": "*"}})
    place = {"queueId": "0", "commitOffset": "1"}
    assert peer.call(COMMIT, {"consumerGroup": "other", "topic": "orders", **place}).code == GROUP_MISSING
    assert peer.call(COMMIT, {"consumerGroup": "g", "topic": "other", **place}).code == TOPIC_MISSING
    with mq.admin() as admin:
        assert "other" not in admin.topics()


def test_a_popped_message_belongs_to_the_group_whatever_it_speaks(mq: ferromq.Embedded, peer: Peer) -> None:
    """A message is popped or received, never both; either acknowledgement counts for both."""
    peer.heartbeat(consumes={"g": {"orders": "*"}})
    send(mq, b"0", b"1")
    popped = pop(peer)
    assert bodies(popped) == [b"0", b"1"]
    assert [peer.call(ACK, of_message(popped, 0)).code for _ in range(2)] == [SUCCESS, SUCCESS]
    mq.clock.advance(seconds=60)
    assert peer.call(ACK, of_message(popped, 0)).code == NO_LEASE
    with mq.consumer("g", "orders", invisible_duration=3_600) as consumer:
        received = consumer.receive(max_messages=10)
        assert [(message.body, message.delivery_attempt) for message in received] == [(b"1", 2)]
        assert peer.call(ACK, of_message(popped, 1)).code == NO_LEASE
        consumer.ack(received[0])
    assert mq.store.committed_offset("g", "orders", 0) == 2


def test_a_changed_invisible_duration_gives_a_message_back_at_once(mq: ferromq.Embedded, peer: Peer) -> None:
    """As Java's pop consumer does it with a message it could not consume."""
    peer.heartbeat(consumes={"g": {"orders": "*"}})
    send(mq, b"0")
    popped = pop(peer)
    assert peer.call(CHANGE, of_message(popped, 0, invisibleTime="0")).code == SUCCESS
    again = pop(peer, poll_ms=60_000)
    assert bodies(again) == [b"0"]
    acks = [
        {
            "c": "g",
            "t": "orders",
            "r": "0",
            "so": 0,
            "q": 0,
            "rq": 0,
            "pt": int(again.fields["popTime"]),
            "it": 60_000,
            "b": base64.b64encode(b"\x01").decode(),
        }
    ]
    body = json.dumps({"brokerName": "broker", "acks": acks}).encode()
    assert peer.call(BATCH_ACK, body=body).code == SUCCESS
    assert mq.store.committed_offset("g", "orders", 0) == 1


def test_filters_by_sql_may_be_switched_off_while_the_broker_runs(mq: ferromq.Embedded, peer: Peer) -> None:
    """As RocketMQ refuses them: pulls with such a filter, pulls with such a subscription, and its check."""
    send(mq, b"a")
    by_sql = {"expressionType": "SQL92", "subscription": "price IS NULL"}
    wanted = {"topic": "orders", "expressionType": "SQL92", "subString": "price IS NULL", "subVersion": 1}
    consumer = {
        "groupName": "s",
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
        "subscriptionDataSet": [wanted],
    }
    peer.heartbeat(consumes={"g": {"orders": "*"}})
    peer.heartbeat(consumerDataSet=[consumer])

    def codes() -> list[int]:
        return [
            pull(peer, flags=OWN_SUBSCRIPTION, **by_sql).code,
            pull(peer, group="s").code,
            peer.call(CHECK_SUBSCRIPTION, body={"subscriptionData": wanted}).code,
            pull(peer, flags=OWN_SUBSCRIPTION, subscription="*").code,
        ]

    assert codes() == [SUCCESS] * 4
    assert peer.call(UPDATE_CONFIG, body=b"enablePropertyFilter=false").code == SUCCESS
    assert codes() == [REFUSED] * 3 + [SUCCESS]
    assert "SQL92" in (pull(peer, flags=OWN_SUBSCRIPTION, **by_sql).remark or "")
    assert b"enablePropertyFilter=false" in peer.call(GET_CONFIG).body
    assert peer.call(UPDATE_CONFIG, body=b"enablePropertyFilter=true").code == SUCCESS
    assert codes() == [SUCCESS] * 4
