"""A name server whose connections are encrypted, or bounded, as its options say."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from remoting_peer import Peer

from ferromq._ferromq import RemotingClient
from ferromq.config.namesrv import NameServerConfig
from ferromq.errors import ConfigError, ConnectionFailed
from ferromq.namesrv.server import NamesrvController
from ferromq.process.clock import Clock

TOPICS = 206
SUCCESS = 0
FILES = Path(__file__).parents[1] / "fixtures" / "tls"


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Return a directory with the server's certificate and key."""
    for name in ("first.pem", "first.key", "elsewhere.pem", "elsewhere.key"):
        shutil.copy(FILES / name, tmp_path)
    return tmp_path


@pytest.fixture
def plain() -> Iterator[RemotingClient]:
    """Return a client without TLS."""
    client = RemotingClient()
    yield client
    client.close()


@pytest.fixture
def encrypted() -> Iterator[RemotingClient]:
    """Return a client that trusts the authority of the fixtures."""
    client = RemotingClient(tls=True, trust=FILES / "ca.pem")
    yield client
    client.close()


def start(files: Path, mode: str, clock: Clock | None = None) -> NamesrvController:
    """Start a name server with TLS."""
    options = {"tls_mode": mode, "tls_certificate": files / "first.pem", "tls_key": files / "first.key"}
    return NamesrvController(NameServerConfig.from_options({"listen": "127.0.0.1:0", **options}), clock=clock)


def test_permissive_takes_both_and_enforcing_tls_alone(
    files: Path, plain: RemotingClient, encrypted: RemotingClient
) -> None:
    """On the same port."""
    for mode in ("", "enforcing"):
        name_server = start(files, mode)
        try:
            assert encrypted.call(name_server.address, TOPICS)[0] == SUCCESS
            if mode:
                with pytest.raises(ConnectionFailed):
                    plain.call(name_server.address, TOPICS)
            else:
                assert plain.call(name_server.address, TOPICS)[0] == SUCCESS
        finally:
            name_server.close()


def test_a_changed_certificate_is_taken_with_its_key(files: Path) -> None:
    """Once the two fit; connections that are made then see the new one."""
    clock = Clock.manual(1_700_000_000_000)
    name_server = start(files, "enforcing", clock)

    def is_trusted() -> bool:
        client = RemotingClient(tls=True, trust=FILES / "ca.pem")
        try:
            return client.call(name_server.address, TOPICS)[0] == SUCCESS
        except ConnectionFailed:
            return False
        finally:
            client.close()

    try:
        shutil.copy(files / "elsewhere.pem", files / "first.pem")
        clock.advance(seconds=5)
        assert is_trusted()
        shutil.copy(files / "elsewhere.key", files / "first.key")
        clock.advance(seconds=5)
        assert not is_trusted()
    finally:
        name_server.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tls_mode": "enforcing"}, "tls_certificate and tls_key"),
        ({"tls_certificate": "x.pem"}, "tls_certificate and tls_key"),
        ({"tls_certificate": "gone.pem", "tls_key": "gone.key"}, r"gone\.(pem|key)"),
    ],
)
def test_a_certificate_that_is_not_there_is_an_error(options: dict[str, str], message: str) -> None:
    """No name server starts in plaintext instead."""
    with pytest.raises(ConfigError, match=message):
        NamesrvController(NameServerConfig.from_options({"listen": "127.0.0.1:0", **options}))


def test_an_idle_connection_is_closed_in_time() -> None:
    """As long as its option says; the virtual clock does not hurry sockets, so it is a short one."""
    name_server = NamesrvController(NameServerConfig.from_options({"listen": "127.0.0.1:0", "idle_time": "1s"}))
    try:
        with Peer(name_server.address) as peer:
            assert peer.call(TOPICS).code == SUCCESS
            assert peer.closed.wait(20)
    finally:
        name_server.close()
