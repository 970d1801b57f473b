"""`compat` takes RocketMQ's side where ferromq allows more, and a named option takes it back."""

from collections.abc import Iterator

import pytest
from grpc_peer import GrpcPeer
from remoting_peer import Peer

import ferromq
from ferromq._proto import messages as pb

SUCCESS, SEND, UPDATE_OPTIONS, OPTIONS = 0, 310, 25, 26


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
    """As at RocketMQ's proxy a route, a receive and a send have three answers, and none creates it."""
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


def test_types_that_are_not_checked_leave_the_topic_to_be_missed() -> None:
    """Where RocketMQ's proxy checks no types it looks for the route next."""
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
