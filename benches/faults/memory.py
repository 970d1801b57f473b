"""
Measures how much memory malicious clients can occupy in a broker and a name server, and whether others notice.

`python benches/faults/memory.py [SCENARIO ...]`: each scenario starts its servers anew and attacks them over loopback,
while a client sends small messages over both protocols and asks for an offset. It prints peak memory, log
lines and the client's latencies. The exit code is 0 if the promise held: 512 MiB, no error, 100 log lines.
"""

import contextlib
import itertools
import json
import multiprocessing
import os
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ferromq import Producer
from ferromq._proto import messages as pb
from ferromq.errors import FerromqError

MIB = 1 << 20
LIMIT_MIB = 512
SMALL = ("commit_log_file_size=67108864", "index_slots=100000", "index_entries=400000")
PULL, SEND, HEARTBEAT, MAX_OFFSET, CLUSTER_INFO = 11, 10, 34, 30, 106


def frame(code: int, fields: dict[str, Any], body: bytes = b"", opaque: int = 0) -> bytes:
    """Return a request as RocketMQ's Java client writes it."""
    header = json.dumps(
        {"code": code, "language": "JAVA", "version": 513, "opaque": opaque, "flag": 0}
        | {"extFields": {name: str(value) for name, value in fields.items()}, "serializeTypeCurrentRPC": "JSON"}
    ).encode()
    return struct.pack(">ii", 4 + len(header) + len(body), len(header)) + header + body


class Raw:
    """A remoting client that waits for each answer."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        self.numbers = itertools.count(1)

    def call(self, code: int, fields: dict[str, Any], body: bytes = b"") -> dict[str, Any]:
        """Return the header of the answer."""
        self.socket.sendall(frame(code, fields, body, next(self.numbers)))
        answer = self._read(struct.unpack(">i", self._read(4))[0])
        return dict(json.loads(answer[4 : 4 + int.from_bytes(answer[1:4], "big")]))

    def send(self, topic: str, body: bytes) -> int:
        """Return the response code."""
        fields = {
            "producerGroup": "p",
            "topic": topic,
            "defaultTopic": "TBW102",
            "defaultTopicQueueNums": 4,
            "queueId": 0,
        }
        rest = {"sysFlag": 0, "bornTimestamp": 0, "flag": 0, "properties": "", "reconsumeTimes": 0}
        return int(self.call(SEND, fields | rest, body)["code"])

    def _read(self, count: int) -> bytes:
        read = bytearray()
        while len(read) < count:
            more = self.socket.recv(count - len(read))
            if not more:
                raise ConnectionError("closed")
            read += more
        return bytes(read)


class Server:
    """A process of ours, its log and its peak of resident memory."""

    def __init__(self, words: list[str], log: Path, descriptors: int | None = None) -> None:
        self.log = log
        command = [sys.executable, "-m", "ferromq", *words]
        if descriptors is not None:
            command = ["prlimit", f"--nofile={descriptors}:{descriptors}", *command]
        with log.open("wb") as out:
            self.process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        while b"ready; stop" not in log.read_bytes():
            if self.process.poll() is not None:
                raise RuntimeError(log.read_text())
            time.sleep(0.05)
        self.before, self.peak = self.resident(), 0
        self.clear_peak()

    def clear_peak(self) -> None:
        """Forget the peak so far."""
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")

    def resident(self, name: str = "VmRSS") -> int:
        """Return resident MiB, now or (VmHWM) at the peak."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return next(int(line.split()[1]) >> 10 for line in status.splitlines() if line.startswith(name))

    def lines(self) -> int:
        """Count the log's lines."""
        return self.log.read_bytes().count(b"\n")

    def stop(self) -> None:
        """End the process."""
        self.process.terminate()
        self.process.wait(60)


def free_port() -> int:
    """Return a free port."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


class Rig:
    """A name server, a broker, and a client that sends to it all the time."""

    def __init__(self, directory: Path, descriptors: int | None = None) -> None:
        self.remoting, self.grpc, self.name_port = free_port(), free_port(), free_port()
        listen = f"127.0.0.1:{self.name_port}"
        self.names = Server(["namesrv", "--listen", listen], directory / "namesrv.log")
        options = [word for option in SMALL for word in ("--set", option)]
        words = ["broker", "--store", str(directory / "store"), "--listen", f"127.0.0.1:{self.remoting}"]
        words += ["--grpc-listen", f"127.0.0.1:{self.grpc}", "--namesrv", listen, "--set", "fast_listen=off", *options]
        self.broker = Server(words, directory / "broker.log", descriptors)
        self.admin = Raw(self.remoting)
        assert self.admin.send("T", b"x") in {0, 1}
        time.sleep(0.5)
        self.stopping, self.latencies, self.errors = threading.Event(), dict[str, list[float]](), list[str]()
        self.threads = [
            threading.Thread(target=self._go_on, args=("remoting", self._over_remoting())),
            threading.Thread(target=self._go_on, args=("grpc", self._over_grpc())),
            threading.Thread(target=self._go_on, args=("cold", self._cold())),
        ]
        for thread in self.threads:
            thread.start()

    def _go_on(self, name: str, calls: Iterator[None]) -> None:
        times = self.latencies.setdefault(name, [])
        while not self.stopping.wait(0.05):
            begun = time.monotonic()
            try:
                next(calls)
            except (OSError, FerromqError, RuntimeError) as error:
                self.errors.append(f"{name}: {error!r}")
                return
            times.append((time.monotonic() - begun) * 1e3)

    def _over_remoting(self) -> Iterator[None]:
        client = Raw(self.remoting)
        while True:
            code = client.send("good", b"small")
            if code:
                raise RuntimeError(f"code {code}")
            yield

    def _over_grpc(self) -> Iterator[None]:
        with Producer(f"127.0.0.1:{self.grpc}") as producer:
            while True:
                producer.send("good", b"small")
                yield

    def _cold(self) -> Iterator[None]:
        client = Raw(self.remoting)
        while True:
            code = client.call(MAX_OFFSET, {"topic": "T", "queueId": 0})["code"]
            if code:
                raise RuntimeError(f"code {code}")
            yield

    def connect(self, port: int | None = None) -> socket.socket:
        """Return a connection that reads almost nothing."""
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", port or self.remoting))
        client.settimeout(5)
        return client

    def close(self) -> dict[str, Any]:
        """Stop everything and return the results."""
        self.stopping.set()
        for thread in self.threads:
            thread.join()
        seen: dict[str, Any] = {"errors": self.errors[:3]}
        for name, server in (("broker", self.broker), ("names", self.names)):
            if server.process.poll() is None:
                seen[name] = {"MiB": [server.before, server.resident("VmHWM")], "lines": server.lines()}
                server.stop()
            else:
                seen[name] = "is gone"
        for name, times in self.latencies.items():
            times.sort()
            seen[f"{name} ms p50/max"] = [round(times[len(times) // 2], 1), round(times[-1], 1)] if times else None
        return seen


def pull(offset: int, group: str, count: int, *, suspends: bool) -> dict[str, Any]:
    """Return the fields of a pull of queue 0 of T."""
    fields = {"consumerGroup": group, "topic": "T", "queueId": 0, "queueOffset": offset, "maxMsgNums": count}
    fields |= {"sysFlag": 6 if suspends else 4, "commitOffset": 0, "suspendTimeoutMillis": 20000, "subscription": "*"}
    return fields | {"subVersion": 0, "expressionType": "TAG", "maxMsgBytes": 4 * MIB}


def parked(rig: Rig) -> None:
    """4,096 parked pulls on a connection that reads nothing, then one message of almost 4 MiB."""
    offset = int(rig.admin.call(MAX_OFFSET, {"topic": "T", "queueId": 0})["extFields"]["offset"])
    rig.admin.call(PULL, pull(0, "g", 1, suspends=False))
    deaf = rig.connect()
    deaf.sendall(b"".join(frame(PULL, pull(offset, "g", 32, suspends=True), opaque=i) for i in range(4096)))
    time.sleep(2)
    assert rig.admin.send("T", bytes(4 * MIB - 1024)) == 0
    time.sleep(6)


def new_group(rig: Rig) -> None:
    """512 pulls of 4 MiB in the name of a group that does not exist yet."""
    for _ in range(16):
        rig.admin.send("T", bytes(MIB - 1024))
    time.sleep(0.5)
    deaf = rig.connect()
    deaf.sendall(b"".join(frame(PULL, pull(0, "new", 4096, suspends=False), opaque=i) for i in range(512)))
    time.sleep(5)


def half_frames(rig: Rig) -> None:
    """1,000 connections to broker and name server that announce 16 MiB; 80 of each send all but 100 bytes."""
    ports = (rig.remoting, rig.name_port)
    head = struct.pack(">ii", 16 * MIB - 4, 256)
    idle = [rig.connect(port) for port in ports for _ in range(500)]
    for client in idle:
        client.sendall(head)
    full = [rig.connect(port) for port in ports for _ in range(80)]

    def fill(client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            client.settimeout(8)
            client.sendall(head + bytes(16 * MIB - len(head) - 100))

    threads = [threading.Thread(target=fill, args=(client,)) for client in full]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    time.sleep(2)


def flood(port: int, seconds: float) -> None:
    """Send requests of 65,536 messages of 7 bytes over 64 gRPC connections, four at a time on each."""
    import grpc  # noqa: PLC0415 (one scenario needs it)

    one = pb.Message(topic=pb.Resource(name="T"))
    request = pb.SendMessageRequest(messages=[one] * 65_536).SerializeToString()
    until = time.monotonic() + seconds

    def send_many(number: int) -> None:
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1)]
        with grpc.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
            send = channel.unary_unary("/apache.rocketmq.v2.MessagingService/SendMessage")
            while time.monotonic() < until:
                calls = [send.future(request, metadata=[("x-mq-client-id", f"c{number}")]) for _ in range(4)]
                for call in calls:
                    call.exception()

    threads = [threading.Thread(target=send_many, args=(number,)) for number in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def small_messages(rig: Rig) -> None:
    """Have another process send requests of very many small messages, so that it shares no lock with the client."""
    process = multiprocessing.get_context("spawn").Process(target=flood, args=(rig.grpc, 15.0))
    process.start()
    process.join()


def bad_frames(rig: Rig) -> None:
    """Frames over the limit on both ports as fast as connections can be made, for 60 s."""
    until, sent = time.monotonic() + 60, 0
    while time.monotonic() < until:
        for port in (rig.remoting, rig.name_port):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5) as client:
                client.sendall(b"\x7f\xff\xff\xff\x00\x00\x00\x00")
                sent += 1
    print(f"  {sent} bad frames")


def closes(rig: Rig) -> None:
    """Open and close 1,000 connections a second, each with a heartbeat, for 20 s."""
    heartbeat = json.dumps({"clientID": "c", "producerDataSet": [{"groupName": "p"}], "consumerDataSet": []}).encode()
    begun, made = time.monotonic(), 0
    while (passed := time.monotonic() - begun) < 20:
        if made > passed * 1000:
            time.sleep(0.001)
            continue
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", rig.remoting), timeout=5) as client:
            client.sendall(frame(HEARTBEAT, {}, heartbeat))
            made += 1
    print(f"  {made / 20:.0f} connections a second")


def descriptors(rig: Rig) -> None:
    """600 connections to a broker that has 256 descriptors, while new topics need files."""
    clients = []
    for _ in range(600):
        with contextlib.suppress(OSError):
            clients.append(rig.connect())
    for number in range(30):
        code = rig.admin.send(f"new-{number}", b"x")
        if code:
            raise RuntimeError(f"code {code} with {len(clients)} connections")
    time.sleep(2)


SCENARIOS: dict[str, Callable[[Rig], None]] = {
    "parked": parked,
    "new-group": new_group,
    "half-frames": half_frames,
    "small-messages": small_messages,
    "bad-frames": bad_frames,
    "closes": closes,
    "descriptors": descriptors,
}


def main() -> int:
    """Run the scenarios named on the command line, or all."""
    failed = 0
    for name in sys.argv[1:] or SCENARIOS:
        with tempfile.TemporaryDirectory(dir=os.environ.get("FAULTS_DIR")) as directory:
            rig = Rig(Path(directory), 256 if name == "descriptors" else None)
            time.sleep(1)
            lines = rig.broker.lines() + rig.names.lines()
            try:
                SCENARIOS[name](rig)
            finally:
                seen = rig.close()
            servers = [seen["broker"], seen["names"]]
            good = not seen["errors"] and all(
                isinstance(server, dict) and server["MiB"][1] <= LIMIT_MIB for server in servers
            )
            good = good and sum(server["lines"] for server in servers) - lines <= 100
            print(f"{name:15} {'held' if good else 'BROKEN'}: {json.dumps(seen)}", flush=True)
            failed += not good
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
