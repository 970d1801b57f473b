"""What Apache RocketMQ's own clients do when a limit of messages a second or of connections is used up."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from compat_peer import Clients, PeerError
from dispatching import dispatched
from official_peer import Official

import ferromq
from ferromq._ferromq import RemotingClient, Store
from ferromq.broker.controller import BrokerController
from ferromq.config.broker import BrokerConfig
from ferromq.protocol.codes import RequestCode

COUNT = 40
SENT = {f"m-{number}" for number in range(COUNT)}


@pytest.fixture
def mq(tmp_path: Path) -> Iterator[ferromq.Embedded]:
    """Run a broker with limits of three topics."""
    limits = ["topic=sends send=1", "topic=reads receive=40", "topic=both send=1"]
    with ferromq.embedded(tmp_path / "a", limits=limits) as mq:
        with mq.admin() as admin:
            for topic in ("sends", "reads", "both"):
                admin.create_topic(topic, queues=1)
        yield mq


def test_a_synchronous_send_fails_after_three_tries(mq: ferromq.Embedded, clients: Clients) -> None:
    """With one broker alone: three tries at once. An asynchronous send is refused after one."""
    clients.start("producer", "alone", mq.namesrv, "alone")
    with pytest.raises(PeerError, match=r"Send \[3\] times, still failed.*broker-a, broker-a, broker-a"):
        clients.send("alone", "sync", "sends", "m-", COUNT, 0)
    with pytest.raises(PeerError, match="CODE: 2 DESC: the limit of 1 messages/s for sends of topic sends"):
        clients.send("alone", "async", "sends", "m-", COUNT, 0)
    clients.ask("close", "alone")


def test_a_synchronous_send_goes_on_to_another_broker(mq: ferromq.Embedded, clients: Clients, tmp_path: Path) -> None:
    """Every message is accepted, most of them by the broker without a limit."""
    options = {"name": "broker-b", "store": str(tmp_path / "b"), "namesrv": [mq.namesrv], "fast_listen": "off"}
    listen = {"listen": "127.0.0.1:0", "grpc_listen": "127.0.0.1:0", "commit_log_file_size": "16MiB"}
    with closing(BrokerController(BrokerConfig.from_options({**options, **listen, "default_queues": 1}))) as other:
        with mq.admin() as admin:
            admin.create_topic("sends", queues=1)
        clients.start("producer", "two", mq.namesrv, "two")
        assert clients.send("two", "sync", "sends", "m-", COUNT, 0) == COUNT
        clients.ask("close", "two")
        for broker in (mq.broker, other):
            dispatched(broker)
        assert stored(mq.store, "sends") + stored(other.store, "sends") == COUNT
        assert mq.broker.server.stats()["over_topic_limit"] > 0


def stored(store: Store, topic: str) -> int:
    """Return how many messages the queue of a topic has."""
    return store.max_offset(topic, 0)


@pytest.mark.parametrize("mode", ["concurrent", "pop"])
def test_a_push_consumer_gets_everything_at_the_rate(mq: ferromq.Embedded, clients: Clients, mode: str) -> None:
    """Pulls and pops are refused meanwhile, with FLOW_CONTROL."""
    with mq.producer() as producer:
        producer.send_all("reads", [body.encode() for body in sorted(SENT)] * 2)
    clients.start("push", mode, mq.namesrv, f"{mode}-readers", "reads", mode, 0)
    assert clients.wait_for(mode, 2 * COUNT, 60) >= 2 * COUNT
    assert {taken.body for taken in clients.taken(mode)} == SENT
    clients.ask("close", mode)


def test_the_official_client_sends_and_receives_at_the_rate(mq: ferromq.Embedded, official: Official) -> None:
    """A send fails once its attempts are used up; its push consumer asks again."""
    official.producer("limited", mq.endpoint, "both")
    accepted = 0
    for number in range(COUNT // 4):
        try:
            accepted += len(official.send("limited", [("both", f"m-{number}", {})]))
        except PeerError as error:
            assert "the limit of 1 messages/s" in str(error)  # noqa: PT017 (both outcomes are right)
    assert accepted >= 1
    assert mq.broker.server.stats()["over_topic_limit"] > 0
    with mq.producer() as producer:
        producer.send_all("reads", [body.encode() for body in sorted(SENT)] * 2)
    official.push("reading", mq.endpoint, "reading", "reads")
    assert official.wait_for("reading", 2 * COUNT) >= 2 * COUNT
    assert {got.body for got in official.taken("reading")} == SENT


def test_a_user_with_too_many_connections_is_told_so(tmp_path: Path, clients: Clients, official: Official) -> None:
    """The tool mqadmin prints the limit, the official client does not start; a closed connection makes room."""
    root = ("root", "a-long-secret")
    options = {"authentication_enabled": True, "initial_user": ":".join(root), "limits": ["user=root connections=1"]}
    with ferromq.embedded(tmp_path, **options) as mq:
        with closing(RemotingClient(credentials=root)) as first:
            assert first.call(mq.remoting, RequestCode.GET_BROKER_RUNTIME_INFO)[0] == 0
            shown = clients.signed_admin(root, "listUser", "-b", mq.remoting)
            assert "CODE: 2" in shown
            assert "connections of the user root are at their limit of 1" in shown
            before = mq.broker.server.stats()["over_user_connections"]
            with pytest.raises(PeerError, match=r"service has FAILED|Failed to fetch topic routes"):
                official.producer("refused", mq.endpoint, "orders", security="plain:root:a-long-secret")
            assert mq.broker.server.stats()["over_user_connections"] > before
        assert any("CODE: 2" not in clients.signed_admin(root, "listUser", "-b", mq.remoting) for _ in range(5))
