"""
Counts the effects of a hanging name server and a killed broker on message groups and readers.

Starts a name server and two brokers with a FIFO topic on both, and a producer with a thread for each of twelve groups.
The name server is stopped (SIGSTOP) for some time; meanwhile the second broker is killed and started again, and another
producer starts. Afterwards every queue is read.

    python benches/faults/routes.py --hung 60 --away 20

It prints groups in several queues or out of order, errors of groups on the broker that stayed, how long heartbeats
took, and how many reads were whole, refused, or partial. Exit code 1 where a group moved or lost its order, a group of
the other broker met an error, or a partial read was taken for the whole.
"""

import argparse
import contextlib
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from pathlib import Path

import grpc

import ferromq
from ferromq import _ferromq
from ferromq._proto import messages as pb
from ferromq.core.requests import SERVICE, Identity
from ferromq.errors import FerromqError
from ferromq.spark.read import over_grpc

TOPIC, QUEUES = "orders", 4
GROUPS = [f"customer-{number}" for number in range(12)]


def free_port() -> int:
    """Return a free port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def start(*arguments: str) -> "subprocess.Popen[bytes]":
    """Start a server and wait until it is ready."""
    environment = {**os.environ, "FERROMQ_LOG": "error", "FERROMQ_BROKER_COMMIT_LOG_FILE_SIZE": "16MiB"}
    command = [sys.executable, "-m", "ferromq", *arguments]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)
    assert server.stdout is not None
    if not any(line.startswith(b"ready") for line in server.stdout):
        raise RuntimeError(f"{arguments[0]} did not start")
    return server


class Broker:
    """A broker that can be killed and started where it was."""

    def __init__(self, name: str, namesrv: str, directory: Path) -> None:
        self.name, self.endpoint = name, f"127.0.0.1:{free_port()}"
        given = {"--listen": f"127.0.0.1:{free_port()}", "--grpc-listen": self.endpoint, "--name": name}
        given |= {"--namesrv": namesrv, "--store": str(directory / name), "--set": "fast_listen=off"}
        self._arguments = [word for pair in given.items() for word in pair]
        self.start()

    def start(self) -> None:
        """Start it, for the first time or again."""
        self.server = start("broker", *self._arguments)

    def kill(self) -> None:
        """Kill it."""
        self.server.kill()
        self.server.wait()


class Load:
    """The load during the faults."""

    def __init__(self) -> None:
        self.errors: Counter[str] = Counter()
        self.sent: Counter[str] = Counter()
        self.beats: list[float] = []
        self.reads: Counter[str] = Counter()
        self.done = threading.Event()

    def send(self, producer: ferromq.Producer, group: str) -> None:
        """Send numbers in order; one that failed is sent again."""
        while not self.done.is_set():
            try:
                producer.send(TOPIC, f"{self.sent[group]}".encode(), message_group=group)
            except FerromqError:
                self.errors[group] += 1
            else:
                self.sent[group] += 1
                self.done.wait(0.02)

    def beat(self, endpoint: str) -> None:
        """Measure heartbeats, and ask for routes beside them as 300 clients do."""
        request = pb.HeartbeatRequest(client_type=pb.ClientType.PRODUCER).SerializeToString()
        route = pb.QueryRouteRequest(topic=pb.Resource(name=TOPIC)).SerializeToString()
        with grpc.insecure_channel(endpoint) as channel:
            asked = []
            while not self.done.wait(0.1):
                who = Identity().metadata()
                asked.append(channel.unary_unary(f"{SERVICE}QueryRoute").future(route, 10, who))
                begin = time.monotonic()
                channel.unary_unary(f"{SERVICE}Heartbeat")(request, 10, who)
                self.beats.append(time.monotonic() - begin)

    def read(self, endpoint: str) -> None:
        """Plan reads as Spark does."""
        while not self.done.wait(1):
            try:
                found = over_grpc.queues(endpoint, TOPIC)
            except FerromqError:
                self.reads["refused"] += 1
            else:
                self.reads["whole" if len(found) == 2 * QUEUES else "partial"] += 1


def stored(endpoint: str) -> tuple[int, int, int]:
    """Return how many messages there are, groups in several queues, and groups out of order."""
    queues, last, late, count = defaultdict(set), dict[str, int](), set(), 0
    with ferromq.Consumer(endpoint, "reader", TOPIC) as consumer:
        for queue in consumer.queues():
            offset, end = 0, consumer.offset_at(queue, "end")
            while offset < end:
                pulled = consumer.pull(queue, offset, 1024)
                for message in pulled.messages:
                    group, number = str(message.message_group), int(message.body)
                    queues[group].add((queue.broker_name, queue.queue_id))
                    # A message that was stored twice comes again at once.
                    late |= {group} if number < last.get(group, 0) else set()
                    last[group], count = number, count + 1
                offset = pulled.next_offset
    return count, sum(len(places) > 1 for places in queues.values()), len(late)


def run(namesrv: "subprocess.Popen[bytes]", brokers: list[Broker], hung: float, away: float) -> Load:
    """Let the faults happen under load."""
    load, (a, b) = Load(), brokers
    with contextlib.ExitStack() as stack:
        producer = stack.enter_context(ferromq.Producer(a.endpoint))
        threads = [threading.Thread(target=load.send, args=(producer, group)) for group in GROUPS]
        threads += [threading.Thread(target=each, args=(a.endpoint,)) for each in (load.beat, load.read)]
        for thread in threads:
            thread.start()
        time.sleep(3)
        namesrv.send_signal(signal.SIGSTOP)
        time.sleep((hung - away) / 2)
        b.kill()
        other = stack.enter_context(ferromq.Producer(a.endpoint))
        others = [group + "-started-later" for group in GROUPS]
        threads += [threading.Thread(target=load.send, args=(other, group)) for group in others]
        for thread in threads[-len(others) :]:
            thread.start()
        time.sleep(away)
        b.start()
        time.sleep((hung - away) / 2)
        namesrv.send_signal(signal.SIGCONT)
        time.sleep(5)
        load.done.set()
        for thread in threads:
            thread.join()
    return load


def main() -> int:
    """Run it once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hung", type=float, default=60, help="seconds for which the name server hangs")
    parser.add_argument("--away", type=float, default=20, help="seconds for which the broker is away")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ferromq-routes-") as directory:
        address = f"127.0.0.1:{free_port()}"
        namesrv, brokers = start("namesrv", "--listen", address), list[Broker]()
        try:
            brokers += [Broker(name, address, Path(directory)) for name in ("broker-a", "broker-b")]
            with ferromq.Admin(address) as admin:
                admin.create_topic(TOPIC, queues=QUEUES, message_type="FIFO")
            load = run(namesrv, brokers, given.hung, given.away)
            count, moved, late = stored(brokers[0].endpoint)
        finally:
            namesrv.send_signal(signal.SIGCONT)
            for server in (namesrv, *(broker.server for broker in brokers)):
                server.kill()
    on_a = {group for group in load.sent if _ferromq.queue_of_group(group, 2 * QUEUES) < QUEUES}
    errors_of_a = sum(load.errors[group] for group in on_a)
    beats = statistics.quantiles(load.beats, n=100)
    print(f"messages {count}, answered {sum(load.sent.values())}, groups {len(load.sent)}")
    print(f"groups in several queues {moved}, out of order {late}")
    print(f"errors of groups on broker-a {errors_of_a}, on broker-b {sum(load.errors.values()) - errors_of_a}")
    print(f"heartbeats {len(load.beats)}: median {beats[49] * 1000:.1f} ms, p99 {beats[98] * 1000:.1f} ms")
    print("reads: " + ", ".join(f"{what} {number}" for what, number in sorted(load.reads.items())))
    return 1 if moved or late or errors_of_a or load.reads["partial"] else 0


if __name__ == "__main__":
    sys.exit(main())
