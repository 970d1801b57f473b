"""Fixtures of the tests against Apache RocketMQ; without its jars each test is skipped, with the reason."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

sys.path.insert(0, str(Path(__file__).parents[1] / "matrix"))
sys.path.insert(0, str(Path(__file__).parent))

import compat_peer
import official_peer
from java_processes import JavaBroker, JavaNameServer, JavaServers

# Files that run first, since they take the longest; then a worker is not left with one of them at the end.
_FIRST = (
    *("test_matrix_row", "test_rocketmqs_side", "test_proxy_verbs_java", "test_mqadmin", "test_cross_protocol"),
    "test_mixed_clusters",
)
# Files that start a broker and a proxy of RocketMQ for as long as they run: one after the other.
_SERVERS = {"test_matrix_row", "test_rocketmqs_side"}
# Files whose tests share no server; the tests of any other file run in one worker, which starts its servers once.
_SPREAD = {
    *("test_java_reads_ours", "test_mixed_clusters", "test_moved_on", "test_mqadmin", "test_order_moves"),
    *("test_pops_move", "test_timers_java", "test_transactions_taken_over", "test_we_read_java"),
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that start Java, and give them time; skip those that cannot start. `node` tests need no Java."""
    items.sort(key=lambda item: _FIRST.index(item.path.stem) if item.path.stem in _FIRST else len(_FIRST))
    reasons = {"java": compat_peer.missing(), "node": official_peer.missing_node()}
    for item in items:
        if Path(__file__).parent in item.path.parents:
            language = "node" if item.get_closest_marker("node") else "java"
            item.add_marker(language)
            item.add_marker(pytest.mark.timeout(300))
            reason = reasons[language]
            if reason:
                item.add_marker(pytest.mark.skip(reason=reason))


class _Workers(LoadScopeScheduling):
    """Gives the tests that share servers to one worker, in their order."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        if Path(file).stem in _SERVERS:
            return "servers"
        return nodeid if Path(file).stem in _SPREAD else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> _Workers:
    """Tell xdist which tests go together, which `--dist loadgroup` of 3.8 does not with pytest 9.2."""
    config.option.loadscopereorder = False
    return _Workers(config, log)


@pytest.fixture(scope="session")
def peer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[compat_peer.Peer]:
    """Run one Java process for all tests; each opens stores under names of its own, and closes them."""
    with compat_peer.Peer(tmp_path_factory.mktemp("peer")) as peer:
        yield peer


@pytest.fixture
def new_peer(tmp_path: Path) -> Iterator[Callable[[], compat_peer.Peer]]:
    """Return a function that starts a Java process to be killed."""
    started: list[compat_peer.Peer] = []

    def start() -> compat_peer.Peer:
        started.append(compat_peer.Peer(tmp_path / f"peer-{len(started)}"))
        return started[-1]

    yield start
    for peer in started:
        peer.kill()


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Iterator[compat_peer.Clients]:
    """Run one Java process for the clients of a module's tests; each uses names of its own."""
    with compat_peer.Clients(tmp_path_factory.mktemp("clients")) as clients:
        yield clients


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaServers]:
    """Run RocketMQ's name server, and its broker behind it."""
    directory = tmp_path_factory.mktemp("servers")
    with (
        JavaNameServer(directory / "namesrv") as names,
        JavaBroker(directory / "broker", names.address) as broker,
    ):
        yield JavaServers(names.address, broker.address)


@pytest.fixture(scope="module", params=["java", pytest.param("node", marks=pytest.mark.node)])
def official(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[official_peer.Official]:
    """Run a process of an official gRPC client for a module's tests, then one of the next; each uses its own names."""
    start = {"java": official_peer.java_client, "node": official_peer.node_client}[request.param]
    official = start(tmp_path_factory.mktemp(request.param))
    yield official
    official.kill()
