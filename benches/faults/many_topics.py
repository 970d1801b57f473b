"""
Measures the cost of creating a topic among many, and of sends then.

Starts a name server and a broker, each in a process of its own, creates topics of 8 queues one after the other and with
many requests under way on one connection, and measures sends with few topics and with all of them.

    python benches/faults/many_topics.py --topics 10000

Of each step it prints how many there were a second, and the processor time that each took in the broker, in the name
server and here: that of this process is no part of the others, and on a busy machine says more than the rate.
"""

import argparse
import json
import os
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import ferromq
from ferromq._ferromq import RemotingClient

PUT_TOPIC, SEND = 17, 310
LINE = 100
"""Topics created one after the other at each measuring point."""
TICK = os.sysconf("SC_CLK_TCK")


class Server:
    """A process that serves."""

    def __init__(self, name: str, *arguments: str) -> None:
        self.name = name
        environment = {**os.environ, "FERROMQ_LOG": "error"}
        command = [sys.executable, "-m", "ferromq", *arguments]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)
        assert self._process.stdout is not None
        if not any(line.startswith(b"ready") for line in self._process.stdout):
            raise RuntimeError(f"{arguments[0]} did not start")

    def used(self) -> float:
        """Return the seconds of processor time it has used."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICK

    def stop(self) -> None:
        """End it as an operator does, and wait for the end."""
        self._process.send_signal(signal.SIGTERM)
        self._process.wait()


class Peer:
    """A connection that keeps requests under way and does little else."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._read = self._socket.makefile("rb", 1 << 16)

    def drive(self, frames: Iterable[bytes], width: int) -> None:
        """Send all frames, with at most *width* under way; fails if an answer is no success."""
        under_way = 0
        for frame in frames:
            if under_way == width:
                self._answer()
                under_way -= 1
            self._socket.sendall(frame)
            under_way += 1
        for _ in range(under_way):
            self._answer()

    def _answer(self) -> None:
        length, header = struct.unpack(">ii", self._read.read(8))
        content = self._read.read(length - 4)
        told = json.loads(content[: header & 0xFFFFFF])
        if told["code"]:
            raise RuntimeError(f"answered {told['code']}: {told.get('remark')}")

    def close(self) -> None:
        """Close it."""
        self._read.close()
        self._socket.close()


def creations(numbers: Iterable[int], message_type: str) -> Iterator[bytes]:
    """Yield the requests that create topics."""
    for number in numbers:
        fields = {"topic": f"topic-{number}", "readQueueNums": "8", "writeQueueNums": "8", "perm": "6"}
        if message_type:
            fields["attributes"] = f"+message.type={message_type}"
        command = {"code": PUT_TOPIC, "language": "PYTHON", "version": 401, "opaque": number, "flag": 0}
        header = json.dumps({**command, "extFields": fields}).encode()
        yield struct.pack(">ii", 4 + len(header), len(header)) + header


def rate(what: str, number: int, servers: list[Server], act: Callable[[], None]) -> None:
    """Print how many a second *act* does, which does *number*, and the processor time of each process."""
    before, own, begin = [server.used() for server in servers], time.process_time(), time.perf_counter()
    act()
    seconds, own = time.perf_counter() - begin, time.process_time() - own
    used = [(server.name, server.used() - had) for server, had in zip(servers, before, strict=True)]
    each = ", ".join(f"{name} {took / number * 1000:.2f} ms" for name, took in (*used, ("client", own)))
    print(f"{what}: {number / seconds:,.0f}/s ({seconds / number * 1000:.2f} ms each; processor: {each})", flush=True)


def send(client: RemotingClient, address: str, topic: str) -> None:
    """Send a message of 100 bytes."""
    fields = {"a": "p", "b": topic, "c": "TBW102", "d": "8", "e": "0", "f": "0", "g": "0", "h": "0", "i": ""}
    code, remark, _, _ = client.call(address, SEND, fields, b"x" * 100)
    assert code == 0, remark


def sends(address: str, topics: list[str], number: int) -> None:
    """Print percentiles of sends to *topics* in turn."""
    client, times = RemotingClient(), []
    for topic in topics:
        send(client, address, topic)
    for index in range(number):
        begin = time.perf_counter()
        send(client, address, topics[index % len(topics)])
        times.append((time.perf_counter() - begin) * 1000)
    client.close()
    centiles = statistics.quantiles(times, n=100)
    print(f"sends to {len(topics)} topics: p50 {centiles[49]:.2f} ms, p99 {centiles[98]:.2f} ms", flush=True)


def free_address() -> str:
    """Return an address with a free port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"127.0.0.1:{listener.getsockname()[1]}"


def measure(given: argparse.Namespace, namesrv: str, address: str, servers: list[Server]) -> None:
    """Measure all of it."""
    total, kind = given.topics, given.message_type
    few = [f"topic-{index}" for index in range(10)]
    peer = Peer(address)
    line = creations(range(LINE), kind)
    rate("one after the other, none before", LINE, servers, lambda: peer.drive(line, 1))
    if kind in {"", "NORMAL"}:
        sends(address, few, given.sends)
    many = creations(range(LINE, total), kind)
    what = f"{given.width} under way, up to {total}"
    rate(what, total - LINE, servers, lambda: peer.drive(many, given.width))
    last = creations(range(total, total + LINE), kind)
    rate(f"one after the other, {total} before", LINE, servers, lambda: peer.drive(last, 1))
    if kind in {"", "NORMAL"}:
        sends(address, few, given.sends)
    peer.close()
    with ferromq.Admin(namesrv, timeout=30) as admin:
        known = sum(name.startswith("topic-") for name in admin.topics())
    if known != total + LINE:
        raise RuntimeError(f"the name server knows {known} topics of {total + LINE}")


def main() -> None:
    """Run it once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topics", type=int, default=10_000)
    parser.add_argument("--width", type=int, default=64, help="requests under way")
    parser.add_argument("--sends", type=int, default=2_000)
    parser.add_argument("--message-type", default="", help="NORMAL, FIFO ...; none: the first message decides")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ferromq-topics-") as directory:
        namesrv, address = free_address(), free_address()
        servers = [Server("name server", "namesrv", "--listen", namesrv)]
        try:
            options = {"--listen": address, "--grpc-listen": free_address(), "--namesrv": namesrv, "--store": directory}
            words = [word for pair in {**options, "--set": "fast_listen=off"}.items() for word in pair]
            servers.append(Server("broker", "broker", *words))
            measure(given, namesrv, address, servers)
            begin = time.perf_counter()
            servers.pop().stop()
            print(f"close: {time.perf_counter() - begin:.2f} s")
        finally:
            for server in servers:
                server.stop()


if __name__ == "__main__":
    main()
