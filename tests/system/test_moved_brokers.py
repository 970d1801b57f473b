"""A client leaves brokers that are gone from its routes: it keeps no thread and no connection for them."""

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import ferromq
from ferromq.broker.controller import BrokerController
from ferromq.client import _session
from ferromq.config import BrokerConfig, NameServerConfig
from ferromq.namesrv.server import NamesrvController

FREE = "127.0.0.1:0"


def test_a_broker_that_moved_is_left_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eventually: Callable[[Callable[[], bool]], bool]
) -> None:
    """As pods do, each time with another address; the client goes on at the new one."""
    monkeypatch.setattr(_session, "HEARTBEAT_PERIOD", 0.05)
    with contextlib.ExitStack() as stack:
        name_server = stack.enter_context(contextlib.closing(NamesrvController(NameServerConfig(listen=FREE))))
        options = {"listen": FREE, "grpc_listen": FREE, "fast_listen": "off", "commit_log_file_size": "1MiB"}

        def start(name: str) -> BrokerController:
            given = {"store": tmp_path / name, "namesrv": name_server.address, "name": name, **options}
            broker = BrokerController(BrokerConfig.from_options(given))
            stack.callback(broker.close)
            return broker

        a, b = start("a"), start("b")
        ferromq.Admin(name_server.address).create_topic("orders", queues=1)
        before = streams()
        with ferromq.Producer(a.endpoint) as producer:
            for _ in range(4):
                producer.send("orders", b"x")
            assert streams() == before + 2
            for _ in range(3):
                b.close()
                b = start("b")
                producer._client.common.routes.distrust("orders")
                for _ in range(4):
                    producer.send("orders", b"x")
            assert eventually(lambda: streams() == before + 2)


def streams() -> int:
    """Return how many telemetry streams there are."""
    return sum(thread.name == "ferromq-telemetry" for thread in threading.enumerate())
