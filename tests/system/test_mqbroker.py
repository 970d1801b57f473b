"""`mqbroker`, started with RocketMQ's command line."""

import os
import signal
import socket
import subprocess
from pathlib import Path

import pytest
from children import command

from ferromq._ferromq import RemotingClient

GET_CONFIG = 26
COMMAND = command("mqbroker")
# The key that says "small" to a store, so that nothing large is made in a test.
SMALL = ("--mappedFileSizeCommitLog", "1048576", "--grpc-listen", "127.0.0.1:0")


def start(home: Path, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    """Start the command with *home* as the user's directory."""
    environment = {**os.environ, "HOME": str(home), "FERROMQ_LOG": "warn", **variables}
    return subprocess.Popen(
        [*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )


def run(home: Path, *arguments: str, **variables: str) -> tuple[int, str, str]:
    """Run the command to its end; return exit code, output and errors."""
    process = start(home, *arguments, **variables)
    output, errors = process.communicate(timeout=50)
    return process.returncode, output, errors


def printed(output: str) -> dict[str, str]:
    """Return the lines NAME=VALUE."""
    return dict(line.split("=", 1) for line in output.splitlines())


def test_the_command_serves_until_it_is_stopped(tmp_path: Path) -> None:
    """It reports its start in RocketMQ's words, and keeps its store in RocketMQ's directory."""
    file = tmp_path / "broker.conf"
    file.write_text("bindAddress=127.0.0.1\nlistenPort=0\nbrokerName=b\nbrokerClusterName=C\nbrokerRole=ASYNC_MASTER\n")
    process = start(tmp_path, "-c", str(file), *SMALL)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("The broker[b, 127.0.0.1:")
        assert line.endswith("] boot success. serializeType=JSON\n")
        client = RemotingClient()
        body = client.call(line.split()[2].rstrip("]"), GET_CONFIG)[3]
        client.close()
        assert b"brokerName=b\n" in body
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=50)
    assert process.returncode == 0
    assert (tmp_path / "store" / "commitlog").is_dir()


def test_it_prints_its_configuration_and_ends(tmp_path: Path) -> None:
    """File and flags together; RocketMQ's keys first, then all options by our names. Nothing is started."""
    file = tmp_path / "broker.conf"
    file.write_text("listenPort=1\nbrokerRole=SLAVE\nbrokerId=2\nbrokerIP2=10.0.0.9\nflushDiskType=SYNC_FLUSH\n")
    code, output, _ = run(tmp_path, "-c", str(file), "-p", "--listenPort", "20911", "-n", "a:1;b:2")
    shown = printed(output)
    assert code == 0
    expected = {
        "listenPort": "20911",
        "brokerId": "2",
        "brokerRole": "SLAVE",
        "namesrvAddr": "a:1;b:2",
        "flushDiskType": "SYNC_FLUSH",
        "flush": "group",
        "max_message_size": "4194304",
        "broker_id": "2",
        "storePathRootDir": str(tmp_path / "store"),
    }
    assert {name: shown.get(name) for name in expected} == expected
    assert not (tmp_path / "store").exists()


def test_defaults_are_those_of_rocketmq(tmp_path: Path) -> None:
    """The host's name for the broker, name servers from the environment; `-m` prints RocketMQ's keys alone."""
    code, output, _ = run(tmp_path, "-m", NAMESRV_ADDR="10.0.0.1:9876")
    shown = printed(output)
    assert code == 0
    assert (shown["brokerName"], shown["namesrvAddr"]) == (socket.gethostname(), "10.0.0.1:9876")
    assert "broker_id" not in shown


def test_a_proxy_beside_it_is_asked_for_as_in_rocketmq(tmp_path: Path) -> None:
    """The broker answers gRPC itself; the proxy's file has the address, the broker's file all else, flags win."""
    (tmp_path / "broker.conf").write_text("brokerName=b\nnamesrvAddr=a:1\n")
    (tmp_path / "rmq-proxy.json").write_text(
        '{"rocketMQClusterName": "C", "grpcServerPort": 18081, "namesrvAddr": "b:2"}'
    )
    files = ("--enable-proxy", "-bc", str(tmp_path / "broker.conf"), "-pc", str(tmp_path / "rmq-proxy.json"))
    code, output, errors = run(tmp_path, *files, "-pm", "local", "-p")
    shown = printed(output)
    assert code == 0
    expected = {"grpc_listen": "0.0.0.0:18081", "brokerName": "b", "namesrvAddr": "b:2"}
    assert {name: shown.get(name) for name in expected} == expected
    assert "keys have no effect here, rocketMQClusterName: there is no process between" in errors
    code, output, _ = run(tmp_path, *files, "-p", "-n", "c:3")
    assert (code, printed(output)["namesrvAddr"]) == (0, "c:3")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--enable-proxy", "-pm", "cluster"], "is no proxy for other brokers; use LOCAL, or run RocketMQ's proxy"),
        (["-pc", "gone.json"], "gone.json cannot be read"),
        (["-c", "rmq-proxy.json"], "as --proxyConfigPath FILE"),
        (["--listenPrt", "1"], "unknown flag: listenPrt; did you mean listenPort?"),
        (["--brokerRole", "SLAVE"], "add brokerId=1"),
        (["--brokerPermission", "5"], "permission is 5"),
        (["-n", "nowhere"], "namesrv is 'nowhere'"),
        (["broker.conf"], "broker.conf is not a flag"),
        (["-c", "gone.conf"], "gone.conf"),
    ],
)
def test_an_impossible_configuration_is_an_error(tmp_path: Path, arguments: list[str], message: str) -> None:
    """Exit code 2, and the way out."""
    code, _, errors = run(tmp_path, *arguments)
    assert code == 2
    assert message in errors
