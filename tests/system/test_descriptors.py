"""The limit of open files: a server raises it to the hard limit, an embedded broker leaves it."""

import contextlib
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ferromq import Producer

SOFT = 200


def open_files(pid: int | str) -> tuple[str, str]:
    """Return the soft and the hard limit of a process."""
    lines = Path(f"/proc/{pid}/limits").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith("Max open files"))
    soft, hard = line.split()[3:5]
    return soft, hard


# Programs begin with a limit, as processes of a service manager. They set it themselves: between fork and exec, gRPC's
# own handlers of forks would run in the child.
LIMITED = f"import resource as r; r.setrlimit(r.RLIMIT_NOFILE, ({SOFT}, r.getrlimit(r.RLIMIT_NOFILE)[1]))"
"""A low soft limit."""


@pytest.mark.skipif(not Path("/proc/self/limits").exists(), reason="tells limits otherwise")
@pytest.mark.parametrize(("entry", "words"), [("main", ["namesrv"]), ("mqnamesrv", []), ("main", ["broker"])])
def test_a_server_raises_the_soft_limit_to_the_hard_one(entry: str, words: list[str], tmp_path: Path) -> None:
    """Before it counts how many connections and files there may be."""
    program = f"{LIMITED}; import sys; from ferromq.cli import main as cli; sys.exit(cli.{entry}(sys.argv[1:]))"
    words = [*words, "--listen", "127.0.0.1:0"]
    if "broker" in words:
        words += ["--grpc-listen", "127.0.0.1:0", "--store", str(tmp_path)]
    with subprocess.Popen(
        [sys.executable, "-c", program, *words],
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    ) as server:
        assert server.stdout is not None
        assert any(line.startswith("ready") for line in server.stdout)
        soft, hard = open_files(server.pid)
        assert soft == hard != str(SOFT)
        server.send_signal(signal.SIGTERM)


@pytest.mark.skipif(not Path("/proc/self/limits").exists(), reason="tells limits otherwise")
def test_an_embedded_broker_leaves_the_limit_of_its_process(tmp_path: Path) -> None:
    """The program decides it."""
    program = (
        f"{LIMITED}\nimport ferromq, resource, sys\n"
        "with ferromq.embedded(sys.argv[1]):\n"
        "    print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == str(SOFT)


LIMIT = 256
ROOM = LIMIT - LIMIT // 2 - 64
"""The rest, without the store's half and the process's own."""


FEW = f"import resource as r; r.setrlimit(r.RLIMIT_NOFILE, ({LIMIT}, {LIMIT}))"
"""Few descriptors, and none to raise the limit to."""


def is_open(client: socket.socket) -> bool:
    """Say whether the server has not closed a connection so far."""
    try:
        return client.recv(1) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


@pytest.mark.skipif(not Path("/proc/self/limits").exists(), reason="tells limits otherwise")
def test_two_servers_of_a_process_leave_its_store_the_descriptors_it_needs(tmp_path: Path) -> None:
    """Their connections together are what is left, and new topics get their files."""
    words = ["dev", "--namesrv-listen", "127.0.0.1:0", "--listen", "127.0.0.1:0", "--grpc-listen", "127.0.0.1:0"]
    program = f"{FEW}; import sys; from ferromq.cli import main as cli; sys.exit(cli.main(sys.argv[1:]))"
    with (
        subprocess.Popen(
            [sys.executable, "-c", program, *words, "--store", str(tmp_path), "--set", "commit_log_file_size=67108864"],
            stdout=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
        ) as server,
        contextlib.ExitStack() as opened,
    ):
        opened.callback(server.send_signal, signal.SIGTERM)
        assert server.stdout is not None
        said = dict[str, str]()
        for line in server.stdout:
            if line.startswith("ready"):
                break
            name, _, address = line.strip().rpartition(" ")
            said[name.strip()] = address
        producer = opened.enter_context(Producer(said["gRPC"]))
        producer.send("before", b"x")
        clients = []
        for _ in range(100):
            for name in ("name server", "broker"):
                host, port = said[name].split(":")
                clients.append(opened.enter_context(socket.create_connection((host, int(port)))))
                clients[-1].settimeout(0)
        until = time.monotonic() + 30
        while (left := sum(map(is_open, clients))) > ROOM and time.monotonic() < until:
            time.sleep(0.02)
        assert 0 < left <= ROOM
        for number in range(30):
            producer.send(f"new-{number}", b"x")
