"""What the tests against Apache RocketMQ share; without what it needs each is skipped, with the reason."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import compat_peer
import official_peer


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what starts Java, and give it time; skip what cannot start. What is marked `node` needs no Java."""
    reasons = {"java": compat_peer.missing(), "node": official_peer.missing_node()}
    for item in items:
        if Path(__file__).parent in item.path.parents:
            language = "node" if item.get_closest_marker("node") else "java"
            item.add_marker(language)
            item.add_marker(pytest.mark.timeout(300))
            reason = reasons[language]
            if reason:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def peer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[compat_peer.Peer]:
    """Run one Java process for all tests; each opens stores under names of its own, and closes them."""
    peer = compat_peer.Peer(tmp_path_factory.mktemp("peer"))
    yield peer
    peer.end()


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
    clients = compat_peer.Clients(tmp_path_factory.mktemp("clients"))
    yield clients
    clients.end()


@pytest.fixture(scope="module", params=["java", pytest.param("node", marks=pytest.mark.node)])
def official(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[official_peer.Official]:
    """Run a process of an official gRPC client for a module's tests, then one of the next; each uses its own names."""
    start = {"java": official_peer.java_client, "node": official_peer.node_client}[request.param]
    official = start(tmp_path_factory.mktemp(request.param))
    yield official
    official.kill()
