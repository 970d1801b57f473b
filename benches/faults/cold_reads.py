"""
Measures how much readers of a cold backlog delay sends, and whether a filter without matches advances.

    benches/faults/cold_reads.py [--messages N] [--size BYTES] [--readers N] [--senders N] [--seconds S]
                                 [--memory MIB] [--speed MB]

A broker stores a backlog and stops; its files leave the page cache, and it starts again (in cgroups of version 1 where
--memory or --speed is given, which takes root). Senders send alone, and then while readers pull the backlog; one more
reader has a filter by SQL92 that matches nothing and gives up after 3 s. Goals: p99 of the sends is 20 ms or three
times that without readers; the reader that gives up has advanced.
"""

import argparse
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
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ferromq

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

TOPIC, SENT = "backlog", "sent"
GIVES_UP = 3.0
SEND, PULL = 10, 11
BROKER = """
import sys, ferromq
with ferromq.embedded(sys.argv[1]) as mq:
    print(mq.endpoint, mq.remoting, flush=True)
    sys.stdin.read()
"""


class Peer:
    """One remoting connection, one request at a time."""

    def __init__(self, address: str) -> None:
        """Connect."""
        host, port = address.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), timeout=120)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def call(self, code: int, fields: dict[str, Any], body: bytes = b"") -> tuple[dict[str, Any], int]:
        """Return the header of the answer and the length of its body."""
        texts = {name: str(value) for name, value in fields.items()}
        header = {"code": code, "language": "JAVA", "version": 513, "opaque": 1, "flag": 0, "extFields": texts}
        head = json.dumps(header).encode()
        self._socket.sendall(struct.pack(">ii", 4 + len(head) + len(body), len(head)) + head + body)
        size, head_len = struct.unpack(">iI", self._read(8))
        answer = json.loads(self._read(head_len & 0xFFFFFF))
        self._read(size - 4 - (head_len & 0xFFFFFF))
        return answer, size

    def _read(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            part = self._socket.recv(min(1 << 20, count - len(data)))
            if not part:
                raise ConnectionError("the broker closed")
            data += part
        return bytes(data)

    def send(self) -> None:
        """Send one message."""
        fields = {"producerGroup": "p", "topic": SENT, "defaultTopic": "TBW102", "defaultTopicQueueNums": 4}
        fields |= {"queueId": 0, "sysFlag": 0, "bornTimestamp": 0, "flag": 0, "properties": "", "reconsumeTimes": 0}
        answer, _ = self.call(SEND, fields | {"unitMode": "false", "batch": "false"}, b"x" * 100)
        assert answer["code"] == 0, answer

    def pull(self, queue: int, offset: int, sql: str | None = None) -> tuple[int, int]:
        """Return the next offset, and the bytes of the answer."""
        fields = {"consumerGroup": "readers", "topic": TOPIC, "queueId": queue, "queueOffset": offset, "maxMsgNums": 32}
        fields |= {"sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 0, "subVersion": 0}
        fields |= {"subscription": sql or "*", "expressionType": "SQL92" if sql else "TAG"}
        answer, size = self.call(PULL, fields)
        return int(answer["extFields"]["nextBeginOffset"]), size


def start(store: Path, memory: int | None = None, speed: int | None = None) -> tuple[subprocess.Popen[str], str, str]:
    """Return a broker over *store*, its gRPC endpoint and its remoting address."""

    def join() -> None:
        limits = [("memory", "memory.limit_in_bytes", f"{memory << 20}")] if memory else []
        if speed:
            device = store.stat().st_dev
            limits += [("blkio", "blkio.throttle.read_bps_device", f"{os.major(device)}:0 {speed * 1_000_000}")]
        for controller, name, limit in limits:
            group = Path("/sys/fs/cgroup") / controller / "ferromq-cold"
            group.mkdir(exist_ok=True)
            (group / name).write_text(limit)
            (group / "cgroup.procs").write_text(str(os.getpid()))

    command = [sys.executable, "-c", BROKER, str(store)]
    broker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, preexec_fn=join)  # noqa: PLW1509
    assert broker.stdout is not None
    endpoint, remoting = broker.stdout.readline().split()
    return broker, endpoint, remoting


def stop(broker: subprocess.Popen[str]) -> None:
    """Stop a broker."""
    assert broker.stdin is not None
    broker.stdin.close()
    broker.wait(60)


def forget(store: Path) -> None:
    """Take the files of *store* out of the page cache."""
    os.sync()
    for path in store.rglob("*"):
        if path.is_file():
            file = os.open(path, os.O_RDONLY)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(file)


def fill(endpoint: str, messages: int, size: int) -> None:
    """Store the backlog."""
    with ferromq.Producer(endpoint) as producer:
        body = os.urandom(size)
        for begin in range(0, messages, 2_000):
            count = min(2_000, messages - begin)
            producer.send_all(TOPIC, [ferromq.Message(body, properties={"price": "1"}) for _ in range(count)])


def sends(address: str, senders: int, until: threading.Event) -> list[float]:
    """Return the milliseconds each send took, of *senders* that send 20 times a second, until the event."""
    times: list[float] = []

    def work() -> None:
        peer = Peer(address)
        while not until.is_set():
            began = time.monotonic()
            peer.send()
            times.append((time.monotonic() - began) * 1e3)
            time.sleep(0.05)

    threads = [threading.Thread(target=work) for _ in range(senders)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return times


def read(address: str, number: int, until: float, told: list[int]) -> None:
    """Pull a queue from its begin on, and note the bytes."""
    peer, offset, total = Peer(address), 0, 0
    while time.monotonic() < until:
        following, size = peer.pull(number % 8, offset)
        total, offset = total + size, following if following > offset else 0
    told.append(total)


def give_up(address: str, until: float, told: list[tuple[int, int]]) -> None:
    """Note the progress of a reader that waits 3 s for an answer, and how often it gave up."""
    offset, given_up = 0, 0
    while time.monotonic() < until:
        peer = Peer(address)
        peer._socket.settimeout(GIVES_UP)  # noqa: SLF001
        try:
            following, _ = peer.pull(0, offset, "price = 7")
        except TimeoutError:
            given_up += 1
            continue
        if following <= offset:
            break
        offset = following
    told.append((offset, given_up))


def readers(address: str, count: int, seconds: float, told: "Connection") -> None:
    """Read in a process of its own, so that what is measured is not one interpreter; tell the bytes, and how far."""
    until = time.monotonic() + seconds
    total, far = list[int](), list[tuple[int, int]]()
    threads = [threading.Thread(target=read, args=(address, number, until, total)) for number in range(count)]
    threads.append(threading.Thread(target=give_up, args=(address, until, far)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    told.send((sum(total), *far[0]))


def line(name: str, times: Sequence[float]) -> str:
    """Return the percentiles of *times*."""
    ordered = sorted(times)
    p50, p90, p99 = (ordered[min(len(ordered) - 1, len(ordered) * p // 100)] for p in (50, 90, 99))
    return f"{name}: {len(ordered)} sends, ms p50 {p50:.1f} p90 {p90:.1f} p99 {p99:.1f} max {ordered[-1]:.1f}"


def measure(address: str, options: argparse.Namespace) -> None:
    """Print the times of sends without and with readers, and the progress of the reader that gives up."""
    context = multiprocessing.get_context("spawn")
    for count in (0, options.readers):
        ended = threading.Event()
        ours, theirs = context.Pipe()
        process = context.Process(target=readers, args=(address, count, options.seconds, theirs))
        if count:
            process.start()
        threading.Timer(options.seconds, ended.set).start()
        print(line(f"{count} readers", sends(address, options.senders, ended)), flush=True)
        if count:
            total, offset, given_up = ours.recv()
            process.join()
            print(f"read {total >> 20} MiB; the reader with a filter got to {offset}, and gave up {given_up} times")


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--size", type=int, default=4_000)
    parser.add_argument("--readers", type=int, default=8)
    parser.add_argument("--senders", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--memory", type=int, help="MiB of memory and page cache the broker has")
    parser.add_argument("--speed", type=int, help="million bytes a second the broker may read of its disk")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as directory:
        store = Path(directory) / "store"
        broker, endpoint, remoting = start(store)
        fill(endpoint, options.messages, options.size)
        stop(broker)
        forget(store)
        broker, endpoint, remoting = start(store, options.memory, options.speed)
        try:
            measure(remoting, options)
        finally:
            stop(broker)


if __name__ == "__main__":
    main()
