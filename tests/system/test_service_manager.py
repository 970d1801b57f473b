"""What a service manager such as systemd is told by a server."""

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ferromq._ferromq import RemotingClient
from ferromq.process.service_manager import READY, SOCKET_VARIABLE, notify
from ferromq.protocol.codes import RequestCode, ResponseCode

PATIENCE = 60


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
    """Listen as a service manager does."""
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(path)
        listener.settimeout(PATIENCE)
        yield listener, path


@pytest.mark.parametrize("server", ["broker", "namesrv"])
def test_a_server_says_when_it_is_ready_and_when_it_stops(
    manager: tuple[socket.socket, str], tmp_path: Path, server: str
) -> None:
    """Ready once it prints so; stopping once the signal came."""
    listener, path = manager
    ports = ["--listen", "127.0.0.1:0", "--metrics-listen", "off"]
    own = ["--grpc-listen", "127.0.0.1:0", "--store", str(tmp_path / "store")] if server == "broker" else []
    with subprocess.Popen(
        [sys.executable, "-m", "ferromq", server, *ports, *own],
        env={**os.environ, SOCKET_VARIABLE: path},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        assert listener.recv(100) == b"READY=1"
        process.send_signal(signal.SIGTERM)
        assert listener.recv(100) == b"STOPPING=1"
        assert process.wait(PATIENCE) == 0


def test_a_socket_in_the_abstract_namespace_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name begins with @ in the variable."""
    name = f"ferromq-test-{os.getpid()}"
    monkeypatch.setenv(SOCKET_VARIABLE, f"@{name}")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(f"\0{name}")
        listener.settimeout(PATIENCE)
        notify(READY)
        assert listener.recv(100) == b"READY=1"


def test_a_manager_that_is_gone_is_logged(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The server goes on."""
    monkeypatch.setenv(SOCKET_VARIABLE, str(tmp_path / "nothing"))
    with caplog.at_level(logging.WARNING, "ferromq.process"):
        notify(READY)
    assert "was not told READY=1" in caplog.text


def test_a_process_that_was_told_to_stop_drains_and_stops(tmp_path: Path) -> None:
    """A request cannot bring senders back, or the service manager would kill it; a second signal ends the drain."""
    command = [sys.executable, "-m", "ferromq", "broker", "--listen", "127.0.0.1:0", "--grpc-listen", "127.0.0.1:0"]
    command += ["--metrics-listen", "off", "--store", str(tmp_path / "store"), "--drain", "60s"]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process,
        contextlib.closing(RemotingClient()) as client,
    ):
        assert process.stdout is not None
        assert process.stderr is not None
        address = next(line.split()[1] for line in process.stdout if line.startswith("broker "))
        assert any(line.startswith("ready") for line in process.stdout)
        process.send_signal(signal.SIGTERM)
        assert any("draining" in line for line in process.stderr)
        code, remark, _, _ = client.call(address, RequestCode.CHANGE_BROKER_STATE, {"state": "serving"})
        assert (code, "start it again" in str(remark)) == (ResponseCode.INVALID_PARAMETER, True)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
