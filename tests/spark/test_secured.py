"""Spark and the pipelines against a cluster with TLS alone, client certificates and access control."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from dispatching import dispatched

import ferromq
from ferromq.broker.controller import BrokerController
from ferromq.cli import main as cli
from ferromq.config.broker import BrokerConfig
from ferromq.config.namesrv import NameServerConfig
from ferromq.core.credentials import ACCESS_KEY_VARIABLE, SECRET_KEY_VARIABLE
from ferromq.errors import ConfigError, FerromqError
from ferromq.namesrv.server import NamesrvController
from ferromq.spark.options import ReadOptions
from ferromq.spark.read import pull
from ferromq.spark.source import FerromqSource
from ferromq.spark.stream.group import GroupOffsets
from ferromq.spark.topics import Topics
from ferromq.spark.write.options import WriteOptions

FREE = "127.0.0.1:0"
FILES = Path(__file__).parents[1] / "fixtures" / "tls"
SERVER = {
    "tls_mode": "enforcing",
    "tls_certificate": FILES / "first.pem",
    "tls_key": FILES / "first.key",
    "tls_client_auth": "require",
    "tls_trust": FILES / "ca.pem",
    "tls_outgoing": "true",
    "tls_outgoing_trust": FILES / "ca.pem",
    "tls_outgoing_certificate": FILES / "client.pem",
    "tls_outgoing_key": FILES / "client.key",
}
TLS = {
    "tlsTrust": str(FILES / "ca.pem"),
    "tlsCertificate": str(FILES / "client.pem"),
    "tlsKey": str(FILES / "client.key"),
}
USER, PASSWORD = "spark", "a secret of spark"


class Secured:
    """A name server and a broker, and twenty messages of the topic `orders`."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        name_server = NameServerConfig.from_options({"listen": FREE, **SERVER})
        self.namesrv = stack.enter_context(closing(NamesrvController(name_server))).address
        options = {
            **SERVER,
            "listen": FREE,
            "grpc_listen": FREE,
            "store": directory,
            "namesrv": self.namesrv,
            "commit_log_file_size": "1MiB",
            "authentication_enabled": True,
            "authorization_enabled": True,
            "initial_user": f"{USER}:{PASSWORD}",
            "grpc_tls_certificate": FILES / "first.pem",
            "grpc_tls_key": FILES / "first.key",
        }
        self.broker = stack.enter_context(closing(BrokerController(BrokerConfig.from_options(options))))
        tls = ferromq.Tls(TLS["tlsTrust"], TLS["tlsCertificate"], TLS["tlsKey"])
        with ferromq.Producer(self.endpoint, tls=tls) as producer:
            producer.send_all("orders", [ferromq.Message(b"%d" % number, keys=f"k{number}") for number in range(20)])
        dispatched(self.broker)

    @property
    def endpoint(self) -> str:
        """The gRPC endpoint."""
        return self.broker.endpoint

    def options(self, protocol: str, **more: str) -> dict[str, str]:
        """Return the options of a read of `orders` over *protocol*."""
        where = {"endpoint": self.endpoint} if protocol == "grpc" else {"namesrv": self.namesrv}
        return {**where, "topic": "orders", **TLS, **more}


@pytest.fixture
def secured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Secured]:
    """Start the cluster; the environment has the credentials."""
    monkeypatch.setenv(ACCESS_KEY_VARIABLE, USER)
    monkeypatch.setenv(SECRET_KEY_VARIABLE, PASSWORD)
    with ExitStack() as stack:
        yield Secured(tmp_path / "store", stack)


@pytest.mark.parametrize("protocol", ["grpc", "remoting"])
def test_a_read_signs_and_shows_a_certificate(secured: Secured, table: Callable[..., Any], protocol: str) -> None:
    """All rows are read, also by time; a client that trusts others, or has another password, reads none."""
    since = {"startingTimestamp": "2020-01-01T00:00:00Z"}
    assert table(FerromqSource, secured.options(protocol, **since)).num_rows == 20
    with pytest.raises(FerromqError):
        table(FerromqSource, secured.options(protocol, tlsTrust=str(FILES / "own.pem")))


@pytest.mark.parametrize("protocol", ["grpc", "remoting"])
def test_a_wrong_password_is_refused(
    secured: Secured, table: Callable[..., Any], protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error does not name it."""
    monkeypatch.setenv(SECRET_KEY_VARIABLE, "a false secret")
    with pytest.raises(FerromqError) as refused:
        table(FerromqSource, secured.options(protocol))
    assert "a false secret" not in str(refused.value)


@pytest.mark.parametrize("protocol", ["grpc", "remoting"])
def test_a_stream_shows_its_offsets(secured: Secured, protocol: str) -> None:
    """The display group of a stream is written over TLS, too."""
    read = ReadOptions.parse(secured.options(protocol))
    queues = [queue for queue in pull.queues(read.address, Topics.named(["orders"])) if queue.max_offset]
    with ferromq.Admin(secured.namesrv, tls=ferromq.Tls(*TLS.values())) as admin:
        admin.create_group("display")
        with closing(GroupOffsets("display", read.address.tls)) as group:
            group.write([(queue, queue.max_offset) for queue in queues])
        assert admin.lag("display", topic="orders").messages == 0


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_a_pipeline_reads_and_sends_with_the_same_files(
    secured: Secured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replay from a topic to another; neither its output nor Spark's event log, with the plans, has the password."""
    events = tmp_path / "events"
    events.mkdir()
    settings = f"spark.eventLog.enabled true\nspark.eventLog.compress false\nspark.eventLog.dir {events.as_uri()}\n"
    (tmp_path / "spark-defaults.conf").write_text(settings)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    names = (("trust", "tlsTrust"), ("certificate", "tlsCertificate"), ("key", "tlsKey"))
    files = [f"--tls-{name}={TLS[option]}" for name, option in names]
    command = [sys.executable, "-m", "ferromq", "pipeline", "replay", "--namesrv", secured.namesrv, "--topic", "orders"]
    command += ["--to", "again", "--to-endpoint", secured.endpoint, *files, "--json"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["sent"] == 20
    assert PASSWORD not in ended.stdout + ended.stderr
    logged = "".join(path.read_text() for path in events.rglob("*") if path.is_file())
    assert "SparkPlanInfo" in logged or "sparkPlanInfo" in logged
    assert PASSWORD not in logged


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"tlsTrust": "/nowhere/ca.pem"}, "/nowhere/ca.pem cannot be read"),
        ({"tls": "false", "tlsTrust": TLS["tlsTrust"]}, "'tlsTrust' is .* but 'tls' is 'false'"),
        ({"tlsCertificate": TLS["tlsCertificate"]}, "needs its key"),
        ({"tls": "maybe"}, "'tls' is 'maybe'"),
    ],
)
def test_wrong_options_of_tls_are_named(options: dict[str, str], told: str) -> None:
    """Before anything connects, for reads and writes."""
    given = {"endpoint": "127.0.0.1:8081", "topic": "orders", **options}
    with pytest.raises(ConfigError, match=told):
        ReadOptions.parse(given)
    with pytest.raises(ConfigError, match=told):
        WriteOptions.parse(given, is_stream=False)


def test_a_name_for_the_certificate_needs_an_endpoint() -> None:
    """Over remoting a certificate has the host of its server."""
    with pytest.raises(ConfigError, match="'tlsServerName' is 'a' with 'namesrv'"):
        ReadOptions.parse({"namesrv": "127.0.0.1:9876", "topic": "orders", "tlsServerName": "a"})


def test_files_need_no_tls(capsys: pytest.CaptureFixture[str]) -> None:
    """Options of TLS that nothing would use are an error."""
    words = ["--log", "store", "--topic", "orders", "--output", "latest", "--tls"]
    assert cli.main(["pipeline", "compact", *words]) == 2
    assert "--log reads files" in capsys.readouterr().err
