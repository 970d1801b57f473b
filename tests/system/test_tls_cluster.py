"""Servers that talk TLS with each other: a cluster that takes nothing else, and files that are wrong or change."""

import logging
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

import ferromq
from ferromq.broker.controller import BrokerController
from ferromq.config.broker import BrokerConfig
from ferromq.config.namesrv import NameServerConfig
from ferromq.errors import ConfigError
from ferromq.namesrv.server import NamesrvController
from ferromq.process.clock import Clock

FREE = "127.0.0.1:0"
FILES = Path(__file__).parents[1] / "fixtures" / "tls"
Eventually = Callable[[Callable[[], bool]], bool]
SHOWN = {"tls_mode": "enforcing", "tls_certificate": FILES / "first.pem", "tls_key": FILES / "first.key"}
MUTUAL = {**SHOWN, "tls_client_auth": "require", "tls_trust": FILES / "ca.pem"}
OUTGOING = {"tls_outgoing": "true", "tls_outgoing_trust": FILES / "ca.pem"}
SHOWING = {
    **OUTGOING,
    "tls_outgoing_certificate": FILES / "client.pem",
    "tls_outgoing_key": FILES / "client.key",
}
TLS = ferromq.Tls(FILES / "ca.pem", FILES / "client.pem", FILES / "client.key")


class Cluster:
    """A name server that takes TLS alone, with client certificates, and brokers."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self.clock = Clock.manual(1_700_000_000_000)
        self._directory = directory
        self._stack = stack
        self._count = 0
        config = NameServerConfig.from_options({"listen": FREE, **MUTUAL, **SHOWING})
        self.name_server = stack.enter_context(closing(NamesrvController(config, clock=self.clock)))

    def broker(self, **options: object) -> BrokerController:
        """Start a broker."""
        self._count += 1
        usual = {"listen": FREE, "grpc_listen": FREE, "commit_log_file_size": "1MiB"}
        store = {"store": self._directory / str(self._count), "namesrv": self.name_server.address}
        config = BrokerConfig.from_options({**usual, **store, **options})
        return self._stack.enter_context(closing(BrokerController(config, clock=self.clock)))

    @property
    def registered(self) -> set[str]:
        """The addresses of the registered brokers."""
        return addresses(self.name_server)


def addresses(name_server: NamesrvController) -> set[str]:
    """Return the addresses of a name server's brokers."""
    return {each for known in name_server.routes.broker_addr_table.values() for each in known.addresses.values()}


@pytest.fixture
def cluster(no_thread_left: None, tmp_path: Path) -> Iterator[Cluster]:
    """Yield a cluster without brokers."""
    with ExitStack() as stack:
        yield Cluster(tmp_path, stack)


def test_a_cluster_that_takes_tls_alone_works_as_a_whole(cluster: Cluster) -> None:
    """Registration, the tables of a slave, administration, and clients by name servers; each shows a certificate."""
    master = cluster.broker(**MUTUAL, **SHOWING)
    slave = cluster.broker(broker_id=1, **MUTUAL, **SHOWING)
    assert cluster.registered == {master.address, slave.address}
    with ferromq.Admin(cluster.name_server.address, tls=TLS) as admin:
        admin.create_topic("orders", 2)
    cluster.clock.advance(seconds=10)
    assert slave.topics.get("orders") is not None
    with (
        ferromq.connect(namesrv=cluster.name_server.address, tls=TLS) as mq,
        mq.producer() as producer,
        mq.consumer("billing", "orders") as consumer,
    ):
        producer.send("orders", b"paid")
        (message,) = consumer.receive(1, wait=20)
        assert message.body == b"paid"
        consumer.ack(message)


@pytest.mark.parametrize(
    "options",
    [{}, OUTGOING, {**SHOWING, "tls_outgoing_trust": FILES / "elsewhere.pem"}],
    ids=["plaintext", "without a certificate", "another authority"],
)
def test_a_broker_that_cannot_register_says_so(
    cluster: Cluster, caplog: pytest.LogCaptureFixture, options: dict[str, object]
) -> None:
    """It serves, and the name server does not know it."""
    with caplog.at_level(logging.WARNING, "ferromq"):
        broker = cluster.broker(**options)
    assert broker.address not in cluster.registered
    assert cluster.name_server.address in caplog.text


def test_a_certificate_must_name_the_host_unless_it_need_not(cluster: Cluster, tmp_path: Path) -> None:
    """RocketMQ never looks at the name."""
    named_elsewhere = {"tls_certificate": FILES / "elsewhere.pem", "tls_key": FILES / "elsewhere.key"}
    config = NameServerConfig.from_options({"listen": FREE, **SHOWN, **named_elsewhere})
    with closing(NamesrvController(config, clock=cluster.clock)) as other:
        for check, is_known in (("name", False), ("authority", True), ("none", True)):
            options = {"namesrv": other.address, "name": f"checks-{check}"}
            broker = cluster.broker(**{**options, "tls_outgoing_check": check, **OUTGOING})
            assert (broker.address in addresses(other)) == is_known, check


def test_changed_files_hold_for_new_connections(cluster: Cluster, tmp_path: Path) -> None:
    """A file that cannot be used changes nothing."""
    trust = tmp_path / "trust.pem"
    shutil.copy(FILES / "elsewhere.pem", trust)
    broker = cluster.broker(**{**SHOWING, "tls_outgoing_trust": trust})
    assert broker.address not in cluster.registered
    trust.write_bytes(b"half of a ")
    cluster.clock.advance(seconds=30)
    assert broker.address not in cluster.registered
    shutil.copy(FILES / "ca.pem", trust)
    cluster.clock.advance(seconds=30)
    assert broker.address in cluster.registered


def test_wrong_options_are_refused_at_start() -> None:
    """Each names what is missing."""
    for options, text in (
        ({"tls_outgoing": "true"}, "tls_outgoing_trust"),
        ({**OUTGOING, "tls_outgoing_certificate": "client.pem"}, "tls_outgoing_key"),
        ({**OUTGOING, "tls_outgoing_check": "host"}, "name, authority, none"),
    ):
        with pytest.raises(ConfigError, match=text):
            BrokerConfig.from_options(options).connections.outgoing()


def test_a_missing_file_is_named_at_start(cluster: Cluster, tmp_path: Path) -> None:
    """Before the broker serves."""
    with pytest.raises(ConfigError, match=r"missing\.pem"):
        cluster.broker(**{**OUTGOING, "tls_outgoing_trust": tmp_path / "missing.pem"})


def test_rocketmqs_keys_are_taken(tmp_path: Path) -> None:
    """From `tls.properties`, and from the configuration itself."""
    file = tmp_path / "tls.properties"
    file.write_text(
        "tls.enable=true\ntls.client.authServer=true\ntls.client.trustCertPath=ca.pem\n"
        "tls.client.certPath=client.pem\ntls.client.keyPath=client.key\n"
    )
    config = tmp_path / "broker.conf"
    config.write_text(f"tls.config.file={file}\n")
    connections = BrokerConfig.load(config, environment={}).connections
    assert connections.outgoing() == {
        "tls": True,
        "check_name": False,
        "trust": "ca.pem",
        "certificate": "client.pem",
        "key": "client.key",
    }
    config.write_text("tls.enable=true\ntls.client.authServer=false\n")
    assert BrokerConfig.load(config, environment={}).connections.outgoing() == {"tls": True, "check_name": False}
