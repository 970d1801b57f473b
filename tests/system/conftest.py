"""Fixtures of the system tests."""

import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ferromq.testing import Broker, Faults, VirtualClock
from ferromq.testing.running import RunningBehindProxies

# Modules that several test files import, such as `remoting_peer`.
sys.path.insert(0, str(Path(__file__).parent))

import waiting
from fault_proxy import FaultProxy
from ports import kept_port
from tls_files import TRUST

PATIENCE, PAUSE = 30.0, 0.01


@pytest.fixture
def eventually() -> Callable[[Callable[[], bool]], bool]:
    """Return a function that waits until a condition holds, at most thirty seconds, and returns whether it does."""
    return partial(waiting.eventually, patience=PATIENCE, pause=PAUSE)


@pytest.fixture
def clock() -> VirtualClock:
    """Return a virtual clock."""
    return VirtualClock()


@pytest.fixture
def broker_options() -> dict[str, Any]:
    """Return the options of the broker behind proxies; test files that need others override it."""
    return {"default_queues": 1}


@pytest.fixture
def running(tmp_path: Path, clock: VirtualClock, broker_options: dict[str, Any]) -> Iterator[RunningBehindProxies]:
    """Yield a broker behind proxies."""
    with closing(RunningBehindProxies(broker_options, tmp_path / "broker", clock)) as running:
        yield running


@pytest.fixture
def faults(running: RunningBehindProxies) -> Iterator[Faults]:
    """Yield its faults."""
    faults = Faults(running, seed=7)
    yield faults
    faults.end()


@pytest.fixture
def broker(running: RunningBehindProxies, faults: Faults) -> Iterator[Broker]:
    """Yield it as a test has it."""
    with Broker(running, faults=faults) as broker:
        yield broker
        faults.end()


@pytest.fixture
def proxy() -> Iterator[FaultProxy]:
    """Yield a proxy whose target port is reserved."""
    with kept_port() as address, FaultProxy(address) as proxy:
        yield proxy


@pytest.fixture(params=[False, TRUST], ids=["plain", "tls"])
def tls(request: pytest.FixtureRequest) -> bool | Path:
    """Return the option `tls` of a client, for a broker with the options `SHOWN`: plaintext, and TLS."""
    way: bool | Path = request.param
    return way


@pytest.fixture(autouse=True)
def nothing_outlives_a_test(no_process_left: None) -> None:
    """Fail if a program that the test started still runs."""


@pytest.fixture(autouse=True)
def patient_probes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the first frame of each shell time on a busy machine: those over TLS check that calls go in frames."""
    if "shell" in request.fixturenames:
        monkeypatch.setattr("ferromq.client.connection.PROBE", 10.0)
