"""
RocketMQ's `mqadmin` and a Java broker against our name server and against RocketMQ's own, side by side.

The broker registers with both, so both must give the same answers.
"""

import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from compat_peer import Clients
from java_processes import JavaBroker, JavaNameServer
from waiting import eventually

from ferromq.config.access import AccessConfig
from ferromq.config.namesrv import NameServerConfig
from ferromq.namesrv.server import NamesrvController

BROKER = "broker-java"


class Cluster(NamedTuple):
    """Both name servers' addresses and the broker."""

    java: str
    ours: str
    name_server: NamesrvController
    broker: JavaBroker


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, clients: Clients) -> Iterator[Cluster]:
    """Run both, and a Java broker with a topic."""
    directory = tmp_path_factory.mktemp("cluster")
    ours = NamesrvController(NameServerConfig(listen="127.0.0.1:0"))
    try:
        with (
            JavaNameServer(directory / "namesrv") as java,
            JavaBroker(directory / "broker", f"{java.address};{ours.address}") as broker,
        ):
            clients.admin("updateTopic", "-n", java.address, "-b", broker.address, "-t", "orders", "-r", 4, "-w", 4)
            yield Cluster(java.address, ours.address, ours, broker)
    finally:
        ours.close()


@pytest.fixture
def both(clients: Clients, cluster: Cluster) -> Callable[..., tuple[str, str]]:
    """Return a function that runs a command against both, and returns the outputs."""

    def run(*words: object) -> tuple[str, str]:
        java, ours = (clients.admin(*words, "-n", address) for address in (cluster.java, cluster.ours))
        return java, ours.replace(cluster.ours, cluster.java)

    return run


def facts(printed: str) -> list[str]:
    """Return the content of lines, independent of their order and of JSON's; of a failure its code, not our text."""
    lines = (re.sub(r"(CODE: \d+)\s+DESC: .*", r"\1", line) for line in printed.splitlines())
    return sorted(" ".join(line.strip().rstrip(",").split()) for line in lines if line.strip())


ORDER = ("updateOrderConf", "-t")
STORIES = {
    "topics are listed": [("topicList",), ("topicList", "-c"), ("topicClusterList", "-t", "orders")],
    "routes are shown": [("topicRoute", "-t", "orders"), ("topicRoute", "-t", "orders", "-l")],
    "keys are put and deleted": [
        ("updateKvConfig", "-s", "space", "-k", "key", "-v", "value"),
        ("deleteKvConfig", "-s", "space", "-k", "key"),
        ("deleteKvConfig", "-s", "never", "-k", "key"),
    ],
    "orders are put, got and deleted": [
        (*ORDER, "orders", "-m", "put", "-v", "broker-java:4"),
        (*ORDER, "orders", "-m", "get"),
        (*ORDER, "orders", "-m", "delete"),
        (*ORDER, "orders", "-m", "get"),
    ],
    "permissions are taken and given": [
        ("wipeWritePerm", "-b", BROKER),
        ("topicRoute", "-t", "orders"),
        ("addWritePerm", "-b", BROKER),
        ("topicRoute", "-t", "orders"),
        ("wipeWritePerm", "-b", "nobody"),
    ],
}


@pytest.mark.parametrize("story", STORIES)
def test_commands_print_the_same(both: Callable[..., tuple[str, str]], story: str) -> None:
    """One after the other, against each name server."""
    for words in STORIES[story]:
        java, ours = both(*words)
        assert facts(ours) == facts(java), words


def test_a_missing_topic_is_named(both: Callable[..., tuple[str, str]]) -> None:
    """With the same code; our remark has the way out."""
    for printed in both("topicRoute", "-t", "nowhere"):
        assert "CODE: 17" in printed
        assert "nowhere" in printed


def test_the_cluster_is_listed_alike(both: Callable[..., tuple[str, str]], cluster: Cluster) -> None:
    """Cluster, name, id, address and version of each broker; rates come from the broker itself."""

    def listed() -> tuple[list[list[str]], list[list[str]]]:
        java, ours = (
            [line.split()[:5] for line in printed.splitlines() if BROKER in line] for printed in both("clusterList")
        )
        return java, ours

    # The command leaves out a broker that reports its rates slowly, with either name server.
    pause = threading.Event()
    java, ours = next(found for found in (listed() for _ in range(20)) if all(found) or pause.wait(0.5))
    assert ours == java
    assert ours[0][:4] == ["DefaultCluster", BROKER, "0", cluster.broker.address]


def options(printed: str) -> dict[str, str]:
    """Return the options that getNamesrvConfig printed."""
    return dict(re.findall(r"^(\w+) += +(.*?)\s*$", printed, re.MULTILINE))


def test_options_are_shown_under_the_same_keys(both: Callable[..., tuple[str, str]]) -> None:
    """With the same default values, except files, addresses, threads, limits, our lease, and access control."""
    java, ours = (options(printed) for printed in both("getNamesrvConfig"))
    own = {"lease", "listenPort", "kvConfigPath", "bindAddress", "scanNotActiveBrokerInterval", "configBlackList"}
    own |= {"defaultThreadPoolNums", "network_memory", "max_connections", "max_connections_by_address"}
    own |= {"serverSocketBacklog", "authConfigPath", *AccessConfig.names(), *AccessConfig.keys_known()}
    assert {key: ours[key] for key in ours.keys() - own} == {key: java.get(key) for key in ours.keys() - own}
    assert len(ours) > 10


def test_an_option_is_changed_by_mqadmin(clients: Clients, cluster: Cluster) -> None:
    """It takes effect at once; a key that cannot be changed is an error that names it."""
    change = ("updateNamesrvConfig", "-n", cluster.ours, "-k", "orderMessageEnable", "-v")
    assert "success" in clients.admin(*change, "true")
    assert cluster.name_server.settings.config.order_messages
    assert "success" in clients.admin(*change, "false")
    refused = clients.admin("updateNamesrvConfig", "-n", cluster.ours, "-k", "kvConfigPath", "-v", "/x")
    assert "kvConfigPath cannot be changed" in refused


@pytest.mark.parametrize("kill", [False, True])
def test_a_java_broker_that_ends_is_forgotten(tmp_path: Path, *, kill: bool) -> None:
    """After its unregistration, or when its connection is closed; it was found before."""
    name_server = NamesrvController(NameServerConfig(listen="127.0.0.1:0"))
    try:
        with JavaBroker(tmp_path, name_server.address) as broker:
            assert eventually(lambda: name_server.routes.lookup(BROKER) is not None)
            (broker.kill if kill else broker.stop)()
            assert eventually(lambda: not name_server.routes.topics())
            assert name_server.routes.cluster_info() == {"brokerAddrTable": {}, "clusterAddrTable": {}}
    finally:
        name_server.close()
