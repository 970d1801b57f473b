"""The client over TLS: trusted brokers, and errors for others."""

import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tls_files import FILES, SHOWN, TRUST

import ferromq
from ferromq import Resolution, _ferromq, aio
from ferromq.client.tls import _default_roots, read_tls

PATIENCE = 30.0
Eventually = Callable[[Callable[[], bool]], bool]


@pytest.fixture(autouse=True)
def patient_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the first frame time on a busy machine: tests tell whether calls go in frames."""
    monkeypatch.setattr("ferromq.client.connection.PROBE", 10.0)


@pytest.fixture(scope="module")
def mq() -> Iterator[ferromq.Embedded]:
    """Yield a broker that takes TLS alone."""
    with ferromq.embedded(grpc_tls_mode="enforcing", **SHOWN) as embedded:
        yield embedded


def test_messages_travel_over_tls(mq: ferromq.Embedded) -> None:
    """Sends, receives, transactions and telemetry alike."""
    with mq.admin() as admin:
        admin.create_topic("payments", 1, message_type="TRANSACTION")
    with (
        mq.producer(tls=TRUST, checker=lambda _: Resolution.COMMIT) as producer,
        mq.consumer("ledger", "payments", tls=ferromq.Tls(TRUST)) as consumer,
    ):
        with producer.transaction() as tx:
            tx.send("payments", b"over TLS")
        (message,) = consumer.receive(wait=10)
        assert message.body == b"over TLS"
        consumer.ack(message)


def test_the_asynchronous_client_speaks_it_too(mq: ferromq.Embedded) -> None:
    """Its session and its calls."""

    async def main() -> None:
        async with (
            aio.Producer(mq.endpoint, tls=str(TRUST)) as producer,
            aio.Consumer(mq.endpoint, "billing", "orders", tls=str(TRUST)) as consumer,
        ):
            await producer.send("orders", b"hello")
            (message,) = await consumer.receive(wait=10)
            await consumer.ack(message)

    asyncio.run(main())


def test_waits_at_several_brokers_travel_over_tls(mq: ferromq.Embedded, eventually: Eventually) -> None:
    """They have connections of their own; the broker takes none in plaintext."""
    with mq.admin() as admin, mq.producer(tls=TRUST) as producer, ThreadPoolExecutor() as pool:
        admin.create_topic("flights", 1)
        admin.create_topic("trains", 1)
        with mq.consumer("travellers", ["flights", "trains"], tls=TRUST) as consumer:
            before = mq.broker._server.stats()["parked"]
            receiving = pool.submit(consumer.receive, wait=PATIENCE)
            assert eventually(lambda: mq.broker._server.stats()["parked"] == before + 2)
            producer.send("trains", b"late")
            assert [message.body for message in receiving.result()] == [b"late"]


def test_invalid_files_are_refused_when_the_client_is_made(mq: ferromq.Embedded) -> None:
    """With the path."""
    with pytest.raises(ferromq.ConfigError, match=r"missing\.pem"):
        mq.producer(tls=FILES / "missing.pem")
    with pytest.raises(ferromq.ConfigError, match=r"first\.key .*trusted certificates has none"):
        mq.producer(tls=FILES / "first.key")
    with pytest.raises(ferromq.ConfigError, match="key"):
        mq.producer(tls=ferromq.Tls(TRUST, certificate=FILES / "client.pem"))


def served(name: str, mode: str = "enforcing") -> ferromq.Embedded:
    """Return a broker with the certificate of this name."""
    files = {"grpc_tls_certificate": str(FILES / f"{name}.pem"), "grpc_tls_key": str(FILES / f"{name}.key")}
    return ferromq.embedded(grpc_tls_mode=mode, **files)


@pytest.mark.parametrize(
    ("certificate", "tls", "reason"),
    [
        ("first", FILES / "expired.pem", "signed by none that tls= trusts"),
        ("first", True, "signed by none that tls= trusts"),
        ("own", TRUST, "signed by none that tls= trusts"),
        ("first", False, "takes TLS alone"),
        ("first", ferromq.Tls(TRUST, server_name="other.example"), r"for another host; Tls\(server_name="),
        ("elsewhere", TRUST, "for another host"),
        ("expired", FILES / "expired.pem", "has expired"),
        (None, TRUST, "does not speak TLS"),
    ],
    ids=["authority", "default", "self-signed", "plaintext", "name", "host", "expired", "plain server"],
)
def test_a_broker_that_is_not_trusted_is_named_with_the_reason(
    certificate: str | None, tls: ferromq.Tls | Path | bool, reason: str
) -> None:
    """Long before the time limit."""
    mq = ferromq.embedded(grpc_tls_mode="disabled") if certificate is None else served(certificate)
    with mq, mq.producer(tls=tls, attempts=1, timeout=PATIENCE) as producer:
        begun = time.monotonic()
        with pytest.raises(ferromq.ConnectionFailed, match=f"{mq.endpoint} .*{reason}"):
            producer.send("orders", b"x")
        assert time.monotonic() - begun < PATIENCE / 2


def test_a_broker_that_stalls_in_the_handshake_costs_a_call_its_time() -> None:
    """It is named."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"127.0.0.1:{silent.getsockname()[1]}"
        with (
            ferromq.Producer(endpoint, tls=TRUST, attempts=1, timeout=0.5) as producer,
            pytest.raises(ferromq.RequestTimeout, match=endpoint),
        ):
            producer.send("orders", b"x")


def test_a_certificate_that_grpc_alone_accepts_is_served_over_http2(caplog: pytest.LogCaptureFixture) -> None:
    """With a warning that names the broker and the reason."""
    with served("own") as mq, mq.producer(tls=FILES / "own.pem") as producer:
        producer.send("orders", b"x")
        assert mq.endpoint not in producer._client.channels.framed
        (warning,) = [record.message for record in caplog.records if "HTTP/2" in record.message]
        assert warning.startswith(f"calls of broker {mq.endpoint} go over HTTP/2, which is slower")
        assert "CaUsedAsEndEntity" in warning


def test_a_key_that_only_grpc_can_use_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    """A key that does not belong to the certificate shows it: a broker that asks for none takes the client."""
    stranger = ferromq.Tls(TRUST, certificate=FILES / "client.pem", key=FILES / "first.key")
    assert read_tls(stranger).frames is None  # type: ignore[union-attr]
    assert str(FILES / "client.pem") in caplog.text


def test_without_a_trust_file_framed_calls_trust_what_grpc_trusts(
    mq: ferromq.Embedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file of gRPC's environment variable, else gRPC's own certificates."""
    assert b"BEGIN CERTIFICATE" in _default_roots()
    monkeypatch.setenv("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", str(FILES / "missing.pem"))
    assert b"BEGIN CERTIFICATE" in _default_roots()
    monkeypatch.setenv("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", str(TRUST))
    assert _default_roots() == TRUST.read_bytes()
    calls = _ferromq.FramedCalls(read_tls(tls=True).frames)  # type: ignore[union-attr]
    assert calls.probe(mq.endpoint, PATIENCE) is None
    calls.close()


def test_a_changed_certificate_ends_no_connection_and_is_checked_by_new_ones(tmp_path: Path) -> None:
    """A broker's certificate may be replaced while clients are connected, also by one that they do not trust."""

    def put(name: str) -> None:
        for kind in ("pem", "key"):
            (tmp_path / f"shown.{kind}").write_bytes((FILES / f"{name}.{kind}").read_bytes())

    put("first")
    files = {"grpc_tls_certificate": str(tmp_path / "shown.pem"), "grpc_tls_key": str(tmp_path / "shown.key")}
    with ferromq.embedded(grpc_tls_mode="enforcing", **files) as mq, mq.producer(tls=TRUST) as producer:
        producer.send("orders", b"before")
        put("expired")
        assert mq.broker._server.reload_tls()
        before = mq.broker._server.stats()["remoting_requests"]
        producer.send("orders", b"after")
        assert mq.broker._server.stats()["remoting_requests"] > before
        with mq.producer(tls=TRUST, attempts=1) as late, pytest.raises(ferromq.ConnectionFailed, match=mq.endpoint):
            late.send("orders", b"x")
        with mq.producer(tls=FILES / "expired.pem", attempts=1) as late, pytest.raises(ferromq.ConnectionFailed):
            late.send("orders", b"x")


FORKED = """
import os, sys, ferromq
from ferromq.client import connection
connection.PROBE = 10.0
files, trust = sys.argv[1:]
shown = {"grpc_tls_certificate": files + "/first.pem", "grpc_tls_key": files + "/first.key"}
with ferromq.embedded(**shown) as mq, mq.producer(tls=trust) as parents:
    parents.send("t", b"before")
    assert parents._client.channels.framed
    child = os.fork()
    if child == 0:
        try:
            parents.send("t", b"never")
        except ferromq.ForkedProcess:
            with ferromq.Producer(mq.endpoint, tls=trust) as producer:
                producer.send("t", b"from the child")
                assert producer._client.channels.framed
            del parents, producer
            os._exit(0)
        os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0, status
    before = mq.broker._server.stats()["remoting_requests"]
    parents.send("t", b"after")
    assert mq.broker._server.stats()["remoting_requests"] == before + 1
"""


def test_a_fork_shares_no_session() -> None:
    """The child is refused the parent's client and makes one of its own; the parent's connection goes on."""
    subprocess.run([sys.executable, "-c", FORKED, str(FILES), str(TRUST)], timeout=2 * PATIENCE, check=True)
