"""Clients of name servers and Java brokers without a proxy: each verb against Apache RocketMQ."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from java_processes import JavaBroker, JavaNameServer

import ferromq

sys.path.insert(0, str(Path(__file__).parents[1] / "system"))
from namesrv_verbs import NamesrvVerbs
from verbs import PATIENCE, Cluster, receive

CHECKS = {"transactionCheckInterval": 3000, "transactionTimeOut": 10_000, "transactionOpBatchInterval": 50}
"""The end of a transaction is noted before the next check: RocketMQ commits twice what is committed twice."""
SWITCHES = {"enablePropertyFilter": "true", "recallMessageEnable": "true"}


class Servers:
    """RocketMQ's name server and broker, which can be killed and started again."""

    def __init__(self, directory: Path, names: JavaNameServer) -> None:
        self._directory, self.names = directory, names
        self.broker = self._started(None)

    def start(self) -> None:
        """Start the broker again, at its address, with its store."""
        self.broker = self._started(int(self.broker.address.rpartition(":")[2]))

    def _started(self, port: int | None) -> JavaBroker:
        return JavaBroker(self._directory, self.names.address, port=port, **CHECKS, **SWITCHES)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """Run them."""
    directory = tmp_path_factory.mktemp("servers")
    with JavaNameServer(directory / "namesrv") as names:
        servers = Servers(directory / "broker", names)
        try:
            yield servers
        finally:
            servers.broker.kill()


@pytest.fixture(scope="module")
def cluster(servers: Servers) -> Cluster:
    """Return their addresses."""
    return Cluster(servers.names.address, servers.broker.address, "broker-java")


class TestOfRocketMQ(NamesrvVerbs):
    """Against RocketMQ's released jars."""

    def test_calls_go_on_after_a_kill_of_the_broker(self, servers: Servers, names: Any) -> None:
        """Without the broker they fail in time; with it they succeed on new connections, and nothing stored is lost."""
        topic, group = names()
        with (
            ferromq.connect(namesrv=servers.names.address, timeout=PATIENCE) as mq,
            mq.producer() as producer,
            mq.consumer(group, topic, begin="first", invisible_duration=60) as consumer,
        ):
            producer.send(topic, b"before")
            (before,) = receive(consumer, 1)
            consumer.ack(before)
            servers.broker.kill()
            with pytest.raises(ferromq.OutcomeUnknown, match=servers.broker.address):
                producer.send(topic, b"lost", timeout=0.5)
            servers.start()
            receipt = producer.send(topic, b"after")
            came = receive(consumer, 1)
            while came[-1].body == b"before":  # RocketMQ forgets acknowledgements of its last moments
                came += receive(consumer, 1)
            assert (came[-1].message_id, came[-1].body) == (receipt.message_id, b"after")
            consumer.ack(came)
