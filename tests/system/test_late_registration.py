"""A name server that answers a registration late still knows the broker: no route is missing."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import ferromq
from ferromq._ferromq import RemotingClient
from ferromq.broker.controller import BrokerController
from ferromq.config.broker import BrokerConfig
from ferromq.config.namesrv import NameServerConfig
from ferromq.namesrv.server import NamesrvController
from ferromq.process.clock import Clock

ROUTE, SUCCESS, UNKNOWN = 105, 0, 17
FREE = "127.0.0.1:0"
Eventually = Callable[[Callable[[], bool]], bool]


@pytest.fixture
def clock() -> Clock:
    """Return a clock that only the test moves."""
    return Clock.manual(1_700_000_000_000)


@pytest.fixture
def name_server(clock: Clock) -> Iterator[NamesrvController]:
    """Run a name server."""
    with contextlib.closing(NamesrvController(NameServerConfig(listen=FREE), clock=clock)) as server:
        yield server


@pytest.fixture
def broker(name_server: NamesrvController, clock: Clock, tmp_path: Path) -> Iterator[BrokerController]:
    """Run a broker with a topic."""
    options = {"listen": FREE, "grpc_listen": FREE, "commit_log_file_size": "1MiB"}
    config = BrokerConfig.from_options({"store": tmp_path, "namesrv": name_server.address, **options})
    with contextlib.closing(BrokerController(config, clock=clock)) as broker:
        with contextlib.closing(ferromq.Admin(name_server.address)) as admin:
            admin.create_topic("orders")
        yield broker


def test_a_late_answer_takes_no_route_away(
    name_server: NamesrvController,
    broker: BrokerController,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    eventually: Eventually,
) -> None:
    """Neither when the broker gives up waiting, nor when the name server goes on."""
    gate, came, late = threading.Event(), threading.Event(), threading.Event()
    register = name_server.routes.register

    def slow(*args: Any) -> Any:
        came.set()
        assert gate.wait(60)
        try:
            return register(*args)
        finally:
            late.set()

    monkeypatch.setattr(broker._name_servers, "_timeout", 0.3)
    monkeypatch.setattr(name_server.routes, "register", slow)
    codes: list[int] = []
    done = threading.Event()

    def watch() -> None:
        with contextlib.closing(RemotingClient()) as client:
            while not done.wait(0.005):
                codes.append(client.call(name_server.address, ROUTE, {"topic": "orders"})[0])

    watcher = threading.Thread(target=watch)
    watcher.start()
    clock.advance(seconds=31)
    assert came.wait(60)
    assert eventually(lambda: len(codes) > 20)
    gate.set()
    assert late.wait(60)
    for _ in range(2):
        count = len(codes)
        assert eventually(lambda: len(codes) > count + 20)  # noqa: B023 (called at once)
        clock.advance(seconds=3)
    done.set()
    watcher.join()
    assert set(codes) == {SUCCESS}
    assert broker.identity.name in name_server.routes.cluster_info()["brokerAddrTable"]


def test_a_broker_that_is_gone_leaves_at_once(
    name_server: NamesrvController, broker: BrokerController, eventually: Eventually
) -> None:
    """By its unregistration; a killed one by its closed connection."""
    broker.close()
    assert eventually(lambda: name_server.routes.lookup("orders") is None)
