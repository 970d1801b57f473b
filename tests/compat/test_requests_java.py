"""Requests and replies on RocketMQ's own broker: the same bytes work there, once the client knows its address."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from compat_peer import Clients
from java_processes import JavaProxy, JavaServers

import ferromq
from ferromq.protocol.broker_description import BrokerDescription

PATIENCE = 60.0


@pytest.fixture(scope="module")
def endpoint(servers: JavaServers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run RocketMQ's proxy before its broker, with the topics of the tests, and yield its address."""
    with ferromq.Admin(servers.namesrv, timeout=PATIENCE) as admin:
        for name in ("asks_java", "asks_ours", "refused"):
            admin.create_topic(name, queues=1, message_type="NORMAL")
            admin.create_group(name)
    with JavaProxy(tmp_path_factory.mktemp("proxy"), servers.namesrv) as proxy:
        yield proxy.address


def introduce(servers: JavaServers, client: ferromq.Producer | ferromq.Consumer, endpoint: str) -> None:
    """Tell a client what ferromq's brokers tell themselves: the remoting address behind the proxy."""
    description = BrokerDescription("broker-java", "DefaultCluster", 0, servers.broker, (servers.namesrv,))
    client._client.requests._brokers[endpoint] = description


def test_a_java_replier_answers_our_requests(servers: JavaServers, endpoint: str, clients: Clients) -> None:
    """Through RocketMQ's broker, which hands the reply to our connection."""
    clients.start("replier", "replier-on-java", servers.namesrv, "asks_java", "asks_java")
    try:
        with ferromq.Producer(endpoint, timeout=PATIENCE) as producer:
            introduce(servers, producer, endpoint)
            for body in (b"1", b"2", bytes(100_000)):
                assert producer.request("asks_java", body).body == b"re:" + body
    finally:
        clients.ask("close", "replier-on-java")


def test_our_replies_reach_java_requesters(servers: JavaServers, endpoint: str, clients: Clients) -> None:
    """Received over gRPC through the proxy, answered over remoting."""
    clients.start("producer", "asking-on-java", servers.namesrv, "asking_on_java")
    try:
        with ferromq.Consumer(endpoint, "asks_ours", "asks_ours", timeout=PATIENCE) as consumer:
            introduce(servers, consumer, endpoint)
            # Through RocketMQ's proxy a new group that waits before the first message often gets nothing for 20 s.
            with ferromq.Producer(endpoint, timeout=PATIENCE) as producer:
                producer.send("asks_ours", b"first")
            consumer.ack(consumer.receive(wait=PATIENCE))

            def handle(message: ferromq.MessageView) -> None:
                consumer.reply(message, b"re:" + message.body)

            with ThreadPoolExecutor(1) as thread:
                running = thread.submit(consumer.run, handle)
                try:
                    replies = clients.ask("request", "asking-on-java", "asks_ours", "q-", 5)
                finally:
                    consumer.stop()
                running.result(PATIENCE)
        assert replies.split(",") == [f"re:q-{number}" for number in range(5)]
    finally:
        clients.ask("close", "asking-on-java")


def test_a_requester_that_is_gone_is_recognized_by_rocketmqs_remark(servers: JavaServers, endpoint: str) -> None:
    """RocketMQ has no code of its own for it."""
    with ferromq.Consumer(endpoint, "refused", "refused", timeout=PATIENCE) as consumer:
        with ferromq.Producer(endpoint, timeout=PATIENCE) as producer:
            introduce(servers, producer, endpoint)
            # The request then needs no time for a connection and a route.
            producer.send("refused", b"first")
            with pytest.raises(ferromq.RequestTimeout, match="refused"):
                producer.request("refused", b"x", timeout=4)
        introduce(servers, consumer, endpoint)
        consumer.ack(consumer.receive(1, wait=PATIENCE))
        (message,) = consumer.receive(1, wait=PATIENCE)
        with pytest.raises(ferromq.RequesterGone):
            consumer.reply(message, b"y")
        consumer.ack(message)
