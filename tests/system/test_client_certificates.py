"""The subject of a client's certificate reaches the handlers of requests, and the audit log."""

import json
import logging
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import grpc
import pytest

import ferromq
from ferromq import Clock
from ferromq._ferromq import RemotingClient, Request, Server
from ferromq._proto import messages as pb
from ferromq.process import logs
from ferromq.process.logs import JsonLine
from ferromq.protocol.codes import RequestCode

FILES = Path(__file__).parents[1] / "fixtures" / "tls"
SUBJECT = "CN=client"
IDENTITY = {"certificate": FILES / "client.pem", "key": FILES / "client.key"}
SHOWN = {"certificate": FILES / "first.pem", "key": FILES / "first.key"}
OPTIONS = {
    "tls_certificate": FILES / "first.pem",
    "tls_key": FILES / "first.key",
    "tls_client_auth": "optional",
    "tls_trust": FILES / "ca.pem",
    "grpc_tls_certificate": FILES / "first.pem",
    "grpc_tls_key": FILES / "first.key",
    "grpc_tls_client_auth": "optional",
    "grpc_tls_trust": FILES / "ca.pem",
}
PATIENCE = 30
SERVICE = "/apache.rocketmq.v2"
METADATA = [("x-mq-client-id", "me"), ("x-mq-language", "PYTHON")]


def channel(port: int, *, has_identity: bool) -> grpc.Channel:
    """Connect over TLS, with a client's certificate or without."""
    ca, key, certificate = ((FILES / name).read_bytes() for name in ("ca.pem", "client.key", "client.pem"))
    identity = (key, certificate) if has_identity else (None, None)
    return grpc.secure_channel(f"localhost:{port}", grpc.ssl_channel_credentials(ca, *identity))


@pytest.fixture
def seen() -> "SimpleQueue[str | None]":
    """Return what handlers see."""
    return SimpleQueue()


@pytest.fixture
def ports(seen: "SimpleQueue[str | None]") -> Iterator[tuple[int, int]]:
    """Run a server of both protocols that asks clients for certificates, and return its ports."""
    server = Server(Clock.system().raw)

    def answer(request: Request) -> Any:
        seen.put(request.certificate)
        return b"" if isinstance(request.route, str) else (0, None, {}, b"")

    server.register(34, answer)
    server.register("Heartbeat", answer)
    server.on_telemetry(lambda _stream, sender, _metadata, message: seen.put(sender[3]) if message else None)
    server.set_tls("permissive", client_auth="optional", trust=FILES / "ca.pem", **SHOWN)
    server.set_grpc_tls("permissive", client_auth="optional", trust=FILES / "ca.pem", **SHOWN)
    yield server.listen_remoting("127.0.0.1:0"), server.listen_grpc("127.0.0.1:0")
    server.stop()


@pytest.mark.parametrize("has_identity", [True, False])
def test_handlers_of_both_protocols_see_it(
    ports: tuple[int, int], seen: "SimpleQueue[str | None]", *, has_identity: bool
) -> None:
    """And None for a client that shows none."""
    remoting, port = ports
    identity = IDENTITY if has_identity else {}
    with closing(RemotingClient(tls=True, trust=FILES / "ca.pem", **identity)) as client:
        assert client.call(f"localhost:{remoting}", 34)[0] == 0
    with channel(port, has_identity=has_identity) as connected:
        connected.unary_unary(f"{SERVICE}.MessagingService/Heartbeat")(b"", timeout=PATIENCE, metadata=METADATA)
        stream = connected.stream_stream(f"{SERVICE}.MessagingService/Telemetry")
        call = stream(iter([b"any"]), timeout=PATIENCE, metadata=METADATA)
        assert [seen.get(timeout=PATIENCE) for _ in range(3)] == [SUBJECT if has_identity else None] * 3
        call.cancel()


def test_a_client_without_tls_has_none(ports: tuple[int, int], seen: "SimpleQueue[str | None]") -> None:
    """On the same ports."""
    remoting, port = ports
    with closing(RemotingClient()) as client:
        client.call(f"127.0.0.1:{remoting}", 34)
    with grpc.insecure_channel(f"127.0.0.1:{port}") as plain:
        plain.unary_unary(f"{SERVICE}.MessagingService/Heartbeat")(b"", timeout=PATIENCE, metadata=METADATA)
    assert [seen.get(timeout=PATIENCE) for _ in range(2)] == [None, None]


def test_the_audit_log_names_it(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """For a change over remoting and for one over gRPC, in a field of its own."""
    caplog.set_level(logging.INFO, "ferromq.audit")
    monkeypatch.setattr(logs, "change", lambda _level: None)
    with ferromq.embedded(**OPTIONS) as mq:
        address = f"localhost:{mq.remoting.rpartition(':')[2]}"
        for identity in (IDENTITY, {}):
            with closing(RemotingClient(tls=True, trust=FILES / "ca.pem", **identity)) as client:
                client.call(address, RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "old"})
        with channel(int(mq.endpoint.rpartition(":")[2]), has_identity=True) as connected:
            body = pb.ChangeLogLevelRequest(level=pb.ChangeLogLevelRequest.Level.INFO).SerializeToString()
            connected.unary_unary(f"{SERVICE}.Admin/ChangeLogLevel")(body, timeout=PATIENCE, metadata=METADATA)
    records = [record for record in caplog.records if record.name == "ferromq.audit"]
    lines = [json.loads(JsonLine().format(record))["fields"] for record in records]
    assert [(line["request"], line["certificate"]) for line in lines] == [
        ("DELETE_SUBSCRIPTIONGROUP", SUBJECT),
        ("DELETE_SUBSCRIPTIONGROUP", "-"),
        ("ChangeLogLevel", SUBJECT),
    ]
    assert f"certificate={SUBJECT} peer=127.0.0.1:" in records[0].getMessage()


def test_a_grpc_listener_can_require_a_certificate() -> None:
    """The client of ferromq shows one, over HTTP/2 and in frames; a client without is refused."""
    with ferromq.embedded(**(OPTIONS | {"grpc_tls_mode": "enforcing", "grpc_tls_client_auth": "require"})) as mq:
        port = int(mq.endpoint.rpartition(":")[2])
        with channel(port, has_identity=False) as connected, pytest.raises(grpc.RpcError):
            connected.unary_unary(f"{SERVICE}.MessagingService/Heartbeat")(b"", timeout=PATIENCE, metadata=METADATA)
        tls = ferromq.Tls(FILES / "ca.pem", **IDENTITY)
        with ferromq.connect(f"localhost:{port}", tls=tls) as client, client.producer() as producer:
            producer.send("orders", b"x")
