"""A client drops brokers that left its routes: it keeps no thread and no connection for them."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import ferromq
from ferromq import aio
from ferromq.broker.controller import BrokerController
from ferromq.client import session
from ferromq.config.broker import BrokerConfig
from ferromq.config.namesrv import NameServerConfig
from ferromq.namesrv.server import NamesrvController

FREE = "127.0.0.1:0"
PATIENCE = 40.0
Eventually = Callable[[Callable[[], bool]], bool]


class Cluster:
    """A name server, and brokers that get another address with each start."""

    def __init__(self, directory: Path, stack: contextlib.ExitStack) -> None:
        self._directory, self._stack = directory, stack
        self._name_server = stack.enter_context(contextlib.closing(NamesrvController(NameServerConfig(listen=FREE))))
        self.a, self.b = self.start("a"), self.start("b")
        with ferromq.Admin(self._name_server.address) as admin:
            admin.create_topic("orders", queues=1)

    def start(self, name: str) -> BrokerController:
        """Start a broker."""
        options = {"listen": FREE, "grpc_listen": FREE, "fast_listen": "off", "commit_log_file_size": "1MiB"}
        given = {"store": self._directory / name, "namesrv": self._name_server.address, "name": name, **options}
        broker = BrokerController(BrokerConfig.from_options(given))
        self._stack.callback(broker.close)
        return broker

    def move(self) -> None:
        """Start the second broker anew."""
        self.b.close()
        self.b = self.start("b")


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """Yield two brokers with a topic."""
    monkeypatch.setattr(session, "HEARTBEAT_PERIOD", 0.05)
    with contextlib.ExitStack() as stack:
        yield Cluster(tmp_path, stack)


def test_a_broker_that_moved_is_left_where_it_was(cluster: Cluster, eventually: Eventually) -> None:
    """Like a pod, each time with another address; the client goes on at the new one."""
    before = streams()
    with ferromq.Producer(cluster.a.endpoint) as producer:

        def reaches_both() -> bool:
            producer._client.common.routes.distrust("orders")
            return {producer.send("orders", b"x").broker_name for _ in range(4)} == {"a", "b"}

        for _ in range(4):
            producer.send("orders", b"x")
        assert eventually(lambda: streams() == before + 2)
        for _ in range(3):
            cluster.move()
            assert eventually(reaches_both)
        assert eventually(lambda: streams() == before + 2)
        assert eventually(lambda: set(producer._client.channels._channels) == {cluster.a.endpoint, cluster.b.endpoint})


def test_an_asynchronous_client_leaves_it_too(cluster: Cluster) -> None:
    """With the channels of its own loop."""

    async def use() -> None:
        async with aio.Producer(cluster.a.endpoint) as producer, asyncio.timeout(PATIENCE):
            for _ in range(4):
                await producer.send("orders", b"x")
            for _ in range(3):
                cluster.move()
                producer._client.common.routes.distrust("orders")
                for _ in range(4):
                    await producer.send("orders", b"x")
            while set(producer._client._channels) - {cluster.a.endpoint, cluster.b.endpoint}:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            await producer.send("orders", b"x")

    asyncio.run(use())


def streams() -> int:
    """Return how many telemetry streams there are."""
    return sum(thread.name == "ferromq-telemetry" for thread in threading.enumerate())
