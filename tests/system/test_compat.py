"""`compat` chooses RocketMQ's stricter behaviour, and a named option overrides it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from dispatching import dispatched
from grpc_peer import GrpcPeer
from remoting_peer import Peer

import ferromq
from ferromq._proto import messages as pb

SUCCESS, SEND, UPDATE_OPTIONS, OPTIONS, POP = 0, 310, 25, 26, 200050


@pytest.fixture
def strict() -> Iterator[ferromq.Embedded]:
    """Return a broker that answers as RocketMQ does."""
    with ferromq.embedded(compat="rocketmq") as mq:
        yield mq


def _route(peer: GrpcPeer, topic: str) -> int:
    return int(peer.call("QueryRoute", pb.QueryRouteRequest(topic=pb.Resource(name=topic))).status.code)


def _fields(topic: str) -> dict[str, str]:
    named = {"a": "PG", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0"}
    return {**named, "i": "", "j": "0", "k": "false", "m": "false"}


def test_grpc_clients_create_no_topic(strict: ferromq.Embedded) -> None:
    """As RocketMQ's proxy answers: a route, a receive and a send have three answers, and none creates it."""
    with GrpcPeer(strict.endpoint) as peer:
        assert _route(peer, "orders") == pb.Code.TOPIC_NOT_FOUND
        request = pb.QueryAssignmentRequest(topic=pb.Resource(name="orders"), group=pb.Resource(name="billing"))
        assert peer.call("QueryAssignment", request).status.code == pb.Code.TOPIC_NOT_FOUND
        answer = peer.send("orders", "a", wanted=None)
        assert answer.status.code == pb.Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
        assert "the expected type is UNSPECIFIED" in answer.status.message
        with pytest.raises(AssertionError, match="TOPIC_NOT_FOUND"):
            peer.receive("billing", "orders")
        assert strict.broker.topics.get("orders") is None


def test_remoting_clients_create_topics_as_their_own_option_says(strict: ferromq.Embedded) -> None:
    """Then gRPC clients find it."""
    with Peer(strict.remoting) as peer, GrpcPeer(strict.endpoint) as grpc:
        assert peer.call(SEND, _fields("orders"), b"a").code == SUCCESS
        assert _route(grpc, "orders") == pb.Code.OK


def test_without_a_check_of_types_a_missing_topic_is_the_error() -> None:
    """Without a check of types RocketMQ's proxy looks up the route next."""
    with ferromq.embedded(compat="rocketmq", check_types="none") as mq, GrpcPeer(mq.endpoint) as peer:
        assert peer.send("orders", "a", wanted=None).status.code == pb.Code.TOPIC_NOT_FOUND


def test_an_option_by_name_wins_and_changes_while_the_broker_runs() -> None:
    """`compat` itself stays until the next start."""
    options = {"compat": "rocketmq", "grpc_creates_topics": True}
    with ferromq.embedded(**options) as mq, GrpcPeer(mq.endpoint) as peer, Peer(mq.remoting) as remoting:
        assert _route(peer, "first") == pb.Code.OK
        assert remoting.call(UPDATE_OPTIONS, body=b"grpc_creates_topics=false").code == SUCCESS
        assert _route(peer, "second") == pb.Code.TOPIC_NOT_FOUND
        assert peer.send("third", "a", wanted=None).status.code == pb.Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
        refused = remoting.call(UPDATE_OPTIONS, body=b"compat=generous")
        assert "compat cannot change while the broker runs" in (refused.remark or "")
        shown = remoting.call(OPTIONS).body.decode().splitlines()
    assert {"compat=rocketmq", "grpc_creates_topics=false", "maxDelayTimeMills=86400000"} <= set(shown)


def _fill(mq: ferromq.Embedded) -> None:
    """Make a FIFO topic with a queue of four, and a group that receives in order."""
    with mq.admin() as admin:
        admin.create_topic("orders", queues=1, message_type="FIFO")
        admin.create_group("g", fifo=True)
    with GrpcPeer(mq.endpoint) as peer:
        for body in "0123":
            peer.send("orders", body, message_group="one")
    dispatched(mq)


def _received(peer: GrpcPeer, count: int, attempt_id: str | None = None) -> list[tuple[str, int]]:
    found = peer.receive("g", "orders", count, attempt_id=attempt_id, wait=5)
    return [(each.body, each.attempt) for each in found]


def test_an_ordered_group_gets_all_again_from_the_first_it_did_not_acknowledge(tmp_path: Path) -> None:
    """Across a restart, too; a second acknowledgement finishes them."""
    clock = ferromq.Clock.manual()
    with ferromq.embedded(tmp_path, clock=clock, compat="rocketmq") as mq:
        _fill(mq)
        with GrpcPeer(mq.endpoint) as peer:
            first = peer.receive("g", "orders", 3, wait=5)
            assert [peer.ack("g", "orders", message) for message in first[1:]] == [pb.Code.OK] * 2
    clock.advance(seconds=30)
    with ferromq.embedded(tmp_path, clock=clock, compat="rocketmq") as mq, GrpcPeer(mq.endpoint) as peer:
        assert _received(peer, 2, "a") == [("0", 2), ("1", 2)]
        again = peer.receive("g", "orders", 2, attempt_id="a")
        assert [(each.body, each.attempt) for each in again] == [("0", 2), ("1", 2)]
        assert [peer.ack("g", "orders", message) for message in again] == [pb.Code.OK] * 2
        assert _received(peer, 9) == [("2", 1), ("3", 1)]


def test_ordered_redelivery_changes_while_the_broker_runs_and_holds_over_remoting() -> None:
    """From the next receive on."""
    clock = ferromq.Clock.manual()
    names = {"consumerGroup": "g", "topic": "orders", "queueId": "-1", "expType": "TAG", "exp": "*", "order": "true"}
    pop = {**names, "invisibleTime": "30000", "pollTime": "0", "bornTime": "1", "maxMsgNums": "9", "initMode": "0"}
    with ferromq.embedded(clock=clock) as mq:
        _fill(mq)
        with GrpcPeer(mq.endpoint) as peer, Peer(mq.remoting) as remoting:
            first = peer.receive("g", "orders", 3, wait=5)
            assert peer.ack("g", "orders", first[1]) == pb.Code.OK
            clock.advance(seconds=30)
            assert remoting.call(POP, pop).fields["orderCountInfo"] == "0 qo0%0 1;0 qo0%2 1;0 0 0"
            assert remoting.call(UPDATE_OPTIONS, body=b"ordered_redelivery=from_first").code == SUCCESS
            clock.advance(seconds=30)
            # Of the last receive are 0, 2 and 3; 1 was acknowledged before it.
            assert remoting.call(POP, pop).fields["orderCountInfo"] == "0 qo0%0 2;0 qo0%2 2;0 qo0%3 1;0 0 0"


def test_a_receive_below_ten_seconds_and_any_lease_above_twelve_hours_are_refused(strict: ferromq.Embedded) -> None:
    """Unless the broker renews; a change has no lower bound."""
    with GrpcPeer(strict.endpoint) as peer, strict.admin() as admin:
        admin.create_topic("orders")
        for invisible in (9.999, 12 * 3600 + 1):
            with pytest.raises(AssertionError, match="ILLEGAL_INVISIBLE_TIME"):
                peer.receive("billing", "orders", invisible=invisible)
        peer.receive("billing", "orders", invisible=10)
        peer.send("orders", "a")
        (message,) = peer.receive("billing", "orders", wait=20)
        assert peer.change("billing", "orders", message, 12 * 3600 + 1)[0] == pb.Code.ILLEGAL_INVISIBLE_TIME
        assert peer.change("billing", "orders", message, 0)[0] == pb.Code.OK
    refused = pytest.raises(ferromq.RequestError, match="min is 10000")
    with strict.consumer("billing", "orders", invisible_duration=5) as consumer, refused:
        consumer.receive(wait=0)


def test_a_delay_of_more_than_a_day_is_refused_over_grpc(strict: ferromq.Embedded) -> None:
    """Ferromq's own client sends over gRPC, too."""
    with strict.admin() as admin:
        admin.create_topic("later", message_type="DELAY")
    with strict.producer() as producer:
        with pytest.raises(ferromq.RequestError, match="max is 86400000"):
            producer.send("later", b"a", delay=86_400 + 60)
        producer.send("later", b"a", delay=86_400 - 60)
