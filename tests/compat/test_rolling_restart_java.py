"""Brokers are restarted one after the other, while producers of RocketMQ's versions send over remoting."""

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import compat_peer
import fetching
import pytest
from compat_peer import JARS, Driven
from dispatching import dispatched
from rolling_brokers import RollingBrokers

import ferromq

log = logging.getLogger(__name__)
AT_ONCE = timedelta(seconds=1)
DRAIN = timedelta(seconds=float(os.environ.get("FERROMQ_DRAIN_SECONDS", AT_ONCE.total_seconds())))
"""Above 35 the producer looks for routes meanwhile, and leaves by itself."""
QUIET = min(DRAIN, timedelta(seconds=2))
VERSIONS = ("5.5.0", "5.1.4", "4.9.8") if DRAIN > AT_ONCE else ("5.5.0",)
PATIENCE, PAUSE = 60.0, 0.05
SENDS = 50
KEYS = {"two": ("a", 0), "one": ("b", 0)}
"""The queue that each key leads to, by its hash code modulo four."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RollingBrokers]:
    """Run a name server and two brokers."""
    with contextlib.ExitStack() as stack:
        yield RollingBrokers(tmp_path, stack, drain=DRAIN, drain_quiet=QUIET)


def wait(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    pause = threading.Event()
    assert any(condition() or pause.wait(PAUSE) for _ in range(int(PATIENCE / PAUSE)))


def library(version: str) -> Path:
    """Return the jars of a version of the client. Raises `CannotFetchError`."""
    if version == VERSIONS[0]:
        return JARS
    wanted = [f"org.apache.rocketmq:rocketmq-{name}:{version}" for name in ("client", "acl")]
    return fetching.jars(fetching.CACHE / f"java-remoting-{version}", *wanted)


@pytest.fixture
def clients(tmp_path: Path) -> Iterator[dict[str, Driven]]:
    """Run a process of each version of the client."""
    sources = [compat_peer.SOURCES / "Commands.java", Path(__file__).parent / "java4" / "Rolling.java"]
    classes = compat_peer.compiled(sources, JARS)
    with contextlib.ExitStack() as stack:
        started = {}
        for version in VERSIONS:
            try:
                path = f"{classes}:{library(version)}/*"
            except fetching.CannotFetchError as missing:
                pytest.skip(str(missing))
            directory = tmp_path / version
            started[version] = Driven(directory, [*compat_peer.java(directory), "-cp", path, "Rolling"])
            stack.callback(started[version].kill)
        yield started


def stop(client: Driven, name: str) -> tuple[int, int]:
    """Stop a sender; return how many of its sends were taken and how many failed."""
    taken, failed = client.ask("stop", name).split("\t")
    return int(taken), int(failed)


@pytest.mark.timeout(600)
def test_no_synchronous_send_fails(cluster: RollingBrokers, clients: dict[str, Driven]) -> None:
    """Ordered messages wait for their broker: their sends may fail, and are done again."""
    with ferromq.Admin(cluster.name_server.address) as admin:
        admin.create_topic("orders", queues=2)
        admin.create_topic("accounts", queues=2, message_type="FIFO")
    for client in clients.values():
        client.ask("start", "unordered", cluster.name_server.address, "orders")
        for key in KEYS:
            client.ask("start", key, cluster.name_server.address, "accounts", key)

    def stored(broker: str) -> int:
        return sum(cluster.brokers[broker].store.max_offset("orders", queue) for queue in range(2))

    def wait_for_sends(broker: str) -> None:
        before = stored(broker)
        wait(lambda: stored(broker) >= before + SENDS)

    restarts = (("a", "b"), ("b", "a"))[: 2 if DRAIN > AT_ONCE else 1]
    for name, other in restarts:
        # The producers come back to a broker when they look for routes, which takes up to 30 s.
        wait_for_sends(other)
        cluster.restart(name)
        wait_for_sends(other)
    restarted = {name for name, _ in restarts}
    in_order = dict.fromkeys(KEYS, 0)
    for version, client in clients.items():
        taken, failed = stop(client, "unordered")
        log.info("client %s: %d sends, %d failed", version, taken, failed)
        assert (taken > 0, failed) == (True, 0), version
        for key, (name, _) in KEYS.items():
            taken, failed = stop(client, key)
            log.info("client %s, ordered, to broker %s: %d sends, %d failed", version, name, taken, failed)
            assert taken > 0, version
            assert not failed or name in restarted, version
            in_order[key] += taken
    for key, (name, queue) in KEYS.items():
        dispatched(cluster.brokers[name])
        assert cluster.brokers[name].store.max_offset("accounts", queue) >= in_order[key]
