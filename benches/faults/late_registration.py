"""
Counts missed routes while a broker's registrations reach one of two name servers late.

Starts two name servers and two brokers. What the first broker and the first name server say to each other takes a path
that holds everything back, in both directions, for `--late` seconds from a moment on. Meanwhile the route of a topic
that only the first broker has is asked for many times a second, at both name servers and at both brokers by gRPC; then
another topic is created there.

    python benches/faults/late_registration.py --late 10

It prints how often each was answered with the route and without, the longest time without, and after how many seconds
each knew the topic that was created meanwhile. Exit code 1 where a route was missing that was known before.
"""

import argparse
import contextlib
import queue
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
from routes import free_port, start

from ferromq._ferromq import RemotingClient
from ferromq._proto import messages as pb
from ferromq.core.requests import SERVICE, Identity

if TYPE_CHECKING:
    import subprocess

ROUTE, SUCCESS, UNKNOWN, PUT_TOPIC = 105, 0, 17, 17
PAUSE = 0.02


class LatePath:
    """Forwards connections to *target*, `late` seconds late in both directions."""

    def __init__(self, target: str) -> None:
        self.late = 0.0
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._begin(self._accept)

    @staticmethod
    def _begin(work: Callable[..., None], *arguments: object) -> None:
        threading.Thread(target=work, args=arguments, daemon=True).start()

    def _accept(self) -> None:
        host, _, port = self._target.rpartition(":")
        while True:
            near, _ = self._listener.accept()
            far = socket.create_connection((host, int(port)))
            for source, sink in ((near, far), (far, near)):
                pieces: queue.Queue[tuple[float, bytes]] = queue.Queue()
                self._begin(self._read, source, pieces)
                self._begin(self._write, sink, pieces)

    def _read(self, source: socket.socket, pieces: "queue.Queue[tuple[float, bytes]]") -> None:
        data = b"begin"
        while data:
            try:
                data = source.recv(1 << 16)
            except OSError:
                data = b""
            pieces.put((time.monotonic() + self.late, data))

    @staticmethod
    def _write(sink: socket.socket, pieces: "queue.Queue[tuple[float, bytes]]") -> None:
        with contextlib.suppress(OSError):
            while True:
                due, data = pieces.get()
                time.sleep(max(0.0, due - time.monotonic()))
                if not data:
                    sink.shutdown(socket.SHUT_WR)
                    return
                sink.sendall(data)


class Watch:
    """Asks for routes again and again, on a thread of its own."""

    def __init__(self, name: str, ask: Callable[[str], bool]) -> None:
        self.name = name
        self.found = self.missing = 0
        self.longest = 0.0
        self.known_at: float | None = None
        """When it knew the second topic."""
        self.is_done = False
        self._ask = ask
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        last = time.monotonic()
        while not self.is_done:
            if self._ask("before"):
                self.found, last = self.found + 1, time.monotonic()
            else:
                self.missing += 1
                self.longest = max(self.longest, time.monotonic() - last)
            if self.known_at is None and self._ask("meanwhile"):
                self.known_at = time.monotonic()
            time.sleep(PAUSE)

    def end(self) -> None:
        """Stop asking."""
        self.is_done = True
        self._thread.join()


def at_name_server(client: RemotingClient, address: str) -> Callable[[str], bool]:
    """Return a function that checks whether a name server has a topic's route."""

    def ask(topic: str) -> bool:
        code, remark, _, _ = client.call(address, ROUTE, {"topic": topic})
        if code not in {SUCCESS, UNKNOWN}:
            raise RuntimeError(f"{address} answered {code}: {remark}")
        return code == SUCCESS

    return ask


def at_broker(channel: grpc.Channel) -> Callable[[str], bool]:
    """Return a function that checks whether a broker has a topic's route."""

    def ask(topic: str) -> bool:
        request = pb.QueryRouteRequest(topic=pb.Resource(name=topic)).SerializeToString()
        answer = channel.unary_unary(f"{SERVICE}QueryRoute")(request, 30, Identity().metadata())
        return bool(pb.QueryRouteResponse.FromString(answer).status.code == pb.OK)

    return ask


def broker(name: str, namesrv: str, directory: str, interval: float) -> tuple["subprocess.Popen[bytes]", str, str]:
    """Start a broker that creates no topics on first use; return it, its address, and that of its gRPC."""
    address, endpoint = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    given = {"--listen": address, "--grpc-listen": endpoint, "--name": name, "--namesrv": namesrv}
    given["--store"] = str(Path(directory) / name)
    options = ("fast_listen=off", f"register_interval={interval}s", "auto_create_topics=false")
    words = [word for pair in given.items() for word in pair] + [w for o in options for w in ("--set", o)]
    return start("broker", *words), address, endpoint


def put(client: RemotingClient, address: str, topic: str) -> float:
    """Create a topic, and return how many seconds that took."""
    begin = time.monotonic()
    code, remark, _, _ = client.call(address, PUT_TOPIC, {"topic": topic}, timeout=60)
    if code != SUCCESS:
        raise RuntimeError(f"{topic} not created: {code} {remark}")
    return time.monotonic() - begin


def run(given: argparse.Namespace, directory: str, stack: contextlib.ExitStack) -> list[Watch]:
    """Let registrations be late while routes are asked for."""
    names = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    for address in names:
        stack.callback(start("namesrv", "--listen", address).kill)
    path = LatePath(names[0])
    a, a_address, a_endpoint = broker("broker-a", f"{path.address};{names[1]}", directory, given.interval)
    stack.callback(a.kill)
    b, _, b_endpoint = broker("broker-b", ";".join(names), directory, given.interval)
    stack.callback(b.kill)
    client = stack.enter_context(contextlib.closing(RemotingClient()))
    put(client, a_address, "before")
    asks = {f"name server {number}": at_name_server(client, address) for number, address in enumerate(names, 1)}
    for name, endpoint in (("broker-a", a_endpoint), ("broker-b", b_endpoint)):
        asks[f"QueryRoute at {name}"] = at_broker(stack.enter_context(grpc.insecure_channel(endpoint)))
    path.late = given.late
    watches = [Watch(name, ask) for name, ask in asks.items()]
    try:
        time.sleep(given.seconds / 2)
        begin = time.monotonic()
        print(f"a creation meanwhile took {put(client, a_address, 'meanwhile'):.2f} s")
        time.sleep(max(given.seconds / 2, given.late + 5))
    finally:
        for watch in watches:
            watch.end()
    for each in watches:
        known = "never" if each.known_at is None else f"after {each.known_at - begin:.2f} s"
        print(
            f"{each.name}: route {each.found} times, none {each.missing} times (longest {each.longest:.2f} s); "
            f"the topic created meanwhile {known}"
        )
    return watches


def main() -> int:
    """Run it once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--late", type=float, default=10, help="seconds for which the path holds everything back")
    parser.add_argument("--interval", type=float, default=10, help="seconds between registrations")
    parser.add_argument("--seconds", type=float, default=50, help="how long routes are asked for")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ferromq-late-") as directory, contextlib.ExitStack() as stack:
        watches = run(given, directory, stack)
    return 1 if any(watch.missing for watch in watches) else 0


if __name__ == "__main__":
    sys.exit(main())
