"""How long does a broker with 10,000 topics take to register? It should be less than a second; two name servers."""

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ferromq._ferromq import RemotingClient
from ferromq.broker.controller import BrokerController
from ferromq.config.broker import BrokerConfig
from ferromq.config.namesrv import NameServerConfig
from ferromq.namesrv.server import NamesrvController
from ferromq.process.clock import Clock

TOPICS = 10_000
UPDATE_TOPIC = 17


@pytest.fixture
def clock() -> Clock:
    """Return a clock that only the bench moves."""
    return Clock.manual()


@pytest.fixture
def start(tmp_path: Path, clock: Clock) -> Iterator[Callable[..., BrokerController]]:
    """Return a function that runs a broker with 10,000 topics and two name servers."""
    topics = {f"topic-{number:05}": {"readQueueNums": 8, "writeQueueNums": 8, "perm": 6} for number in range(TOPICS)}
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "topics.json").write_text(json.dumps({"dataVersion": {}, "topicConfigTable": topics}))
    with contextlib.ExitStack() as running:
        servers = [NamesrvController(NameServerConfig(listen="127.0.0.1:0")) for _ in range(2)]
        for server in servers:
            running.callback(server.close)

        def run(**options: object) -> BrokerController:
            usual = {"listen": "127.0.0.1:0", "grpc_listen": "127.0.0.1:0", "commit_log_file_size": "1MiB"}
            namesrv = [server.address for server in servers]
            config = BrokerConfig.from_options({"store": tmp_path, "namesrv": namesrv, **usual, **options})
            broker = BrokerController(config, clock=clock)
            running.callback(broker.close)
            assert len(servers[0].routes.topics()) > TOPICS
            return broker

        yield run


def test_start(benchmark: Any, start: Callable[..., BrokerController]) -> None:
    """From nothing to registered; the hot path knows every topic."""
    benchmark.pedantic(lambda: start().close(), rounds=5)


@pytest.mark.parametrize("is_compressed", [False, True])
def test_register(benchmark: Any, start: Callable[..., BrokerController], clock: Clock, is_compressed: bool) -> None:
    """A whole registration, as in every period."""
    start(compress_registration=is_compressed)
    benchmark.pedantic(lambda: clock.advance(seconds=30), rounds=10, warmup_rounds=1)


def test_change(benchmark: Any, start: Callable[..., BrokerController]) -> None:
    """One topic created: written, pushed and registered."""
    broker, client, numbers = start(), RemotingClient(), iter(range(1_000))

    def create() -> None:
        assert client.call(broker.address, UPDATE_TOPIC, {"topic": f"new-{next(numbers)}"})[0] == 0

    benchmark.pedantic(create, rounds=20, warmup_rounds=1)
    client.close()
