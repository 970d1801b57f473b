"""
Starts a broker with few descriptors while a whole fleet reconnects, and checks that its store goes on writing.

    python benches/faults/descriptors.py --starts 20 --clients 1100 --limit 1024

Each start gets a hard limit of open files, so that the broker cannot raise it. All clients connect at once and send to
topics of their own, so that the store needs new files in the same moment; they stay for some seconds. Once they have
left, one client sends again: a store that stopped writing refuses it. With `--connections 16384` nothing is reserved
for the store, so that it meets the limit itself. Printed for each start: answers by code, the connections that broke,
whether the store stopped writing, and the exit code. The program ends with 1 where any did.
"""

import argparse
import asyncio
import collections
import contextlib
import json
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

STOPPED = "writing stops"
SEND_MESSAGE = 10


def frame(topic: str, opaque: int) -> bytes:
    """Return a send of one message over remoting."""
    fields = {
        "producerGroup": "fleet",
        "topic": topic,
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "1",
        "queueId": "0",
        "sysFlag": "0",
        "bornTimestamp": str(int(time.time() * 1000)),
        "flag": "0",
        "properties": f"KEYS\x01{opaque}\x02",
        "reconsumeTimes": "0",
        "unitMode": "false",
        "batch": "false",
    }
    head = {"code": SEND_MESSAGE, "language": "OTHER", "version": 0, "opaque": opaque, "flag": 0, "extFields": fields}
    header, body = json.dumps(head).encode(), b"x" * 2000
    return struct.pack(">ii", 4 + len(header) + len(body), len(header)) + header + body


async def answer(reader: asyncio.StreamReader) -> int:
    """Return the code of the next answer."""
    (length,) = struct.unpack(">i", await reader.readexactly(4))
    content = await reader.readexactly(length)
    (header,) = struct.unpack(">i", content[:4])
    return int(json.loads(content[4 : 4 + (header & 0xFFFFFF)])["code"])


async def client(port: int, number: int, until: float, codes: collections.Counter[str]) -> None:
    """Connect as soon as the broker listens, again whenever the connection breaks, and send now and then."""
    opaque = 0
    while time.monotonic() < until:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.02)
            continue
        try:
            while time.monotonic() < until:
                opaque += 1
                writer.write(frame(f"fleet-{number % 200}", opaque))
                codes[str(await asyncio.wait_for(answer(reader), 10))] += 1
                await asyncio.sleep(1)
        except (OSError, EOFError, TimeoutError) as error:
            codes[type(error).__name__] += 1
            await asyncio.sleep(0.05)
        finally:
            writer.close()


async def fleet(port: int, clients: int, seconds: float) -> collections.Counter[str]:
    """Let all clients connect at once; return the answers by code and the failures by name."""
    codes: collections.Counter[str] = collections.Counter()
    until = time.monotonic() + seconds
    await asyncio.gather(*(client(port, number, until, codes) for number in range(clients)))
    return codes


async def goes_on(port: int, patience: float = 15) -> bool:
    """Return whether sends succeed, to an old topic and to a new one, once the fleet has left."""
    until = time.monotonic() + patience
    while time.monotonic() < until:
        with contextlib.suppress(OSError, EOFError, TimeoutError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            codes = []
            for opaque, topic in enumerate(["fleet-0", f"after-{time.time_ns()}"]):
                writer.write(frame(topic, opaque))
                codes.append(await asyncio.wait_for(answer(reader), 5))
            writer.close()
            if codes == [0, 0]:
                return True
        await asyncio.sleep(0.2)
    return False


def free_port() -> int:
    """Return a port nothing listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def run(store: Path, options: argparse.Namespace, number: int) -> bool:
    """Start, let the fleet connect, check, stop. Return whether the store went on."""
    port, log = free_port(), store.parent / f"broker-{number}.log"
    limit = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (options.limit, options.limit))  # noqa: E731
    words = ["broker", "--store", str(store), "--listen", f"127.0.0.1:{port}", "--grpc-listen", "127.0.0.1:0"]
    words += [f"--set={pair}" for pair in ("commit_log_file_size=1048576", "consume_queue_file_entries=100")]
    words += [f"--set={pair}" for pair in ("index_slots=1000", "index_entries=4000", "disk_reserve=1048576")]
    if options.connections:
        words += [f"--set=max_connections={options.connections}"]
    with log.open("wb") as out:
        broker = subprocess.Popen(
            [sys.executable, "-m", "ferromq", *words],
            stdout=out,
            stderr=subprocess.STDOUT,
            preexec_fn=limit,  # noqa: PLW1509 (no thread of this program holds a lock that setrlimit takes)
        )
    try:
        codes = asyncio.run(fleet(port, options.clients, options.seconds))
        is_going_on = asyncio.run(goes_on(port))
    finally:
        broker.send_signal(signal.SIGTERM)
        code = broker.wait(60)
    has_stopped = STOPPED in log.read_text(errors="replace")
    print(
        f"start {number}: {dict(codes)}, goes on: {is_going_on}, stopped writing: {has_stopped}, exit {code}",
        flush=True,
    )
    return is_going_on and not has_stopped


def main() -> int:
    """Run as often as asked for, on one store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starts", type=int, default=20)
    parser.add_argument("--clients", type=int, default=1100)
    parser.add_argument("--limit", type=int, default=1024, help="open files of the broker")
    parser.add_argument("--connections", type=int, help="the broker's `max_connections`; none: what the limit leaves")
    parser.add_argument("--seconds", type=float, default=8, help="how long the fleet stays")
    options = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with tempfile.TemporaryDirectory() as directory:
        went_on = [run(Path(directory) / "store", options, number) for number in range(options.starts)]
    print(f"{went_on.count(False)} of {len(went_on)} starts ended with a store that writes no more")
    return 0 if all(went_on) else 1


if __name__ == "__main__":
    os.environ.setdefault("FERROMQ_LOG", "warn")
    sys.exit(main())
