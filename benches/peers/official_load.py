"""
The throughput of RocketMQ's Python client: a line `engine load<TAB>value<TAB>unit` for each figure.

    official_load.py ENGINE HOST:PORT TOPIC send THREADS SECONDS PID
    official_load.py ENGINE HOST:PORT TOPIC receive GROUP SECONDS PID

PID is the server's process, whose CPU time is counted too. `receive` ends earlier where nothing is left;
the wait that showed it does not count.
"""

import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from rocketmq import ClientConfiguration, Credentials, FilterExpression, Message, Producer, SimpleConsumer

BODY = b"x" * 1024
WARM_UP = 2.0
BATCH, INVISIBLE_SECONDS = 32, 60
WAIT_SECONDS = 10
"""How long a receive may wait: RocketMQ's proxy refuses those that leave it less than its own 5 seconds."""
TICKS = 100
"""Of a processor, in a second, as the kernel counts for programs."""


def cpu_seconds(pid: int) -> float:
    """Return the CPU time a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


@dataclass(frozen=True, slots=True)
class Server:
    """The measured server and load."""

    engine: str
    endpoint: str
    topic: str
    pid: int

    @property
    def configuration(self) -> ClientConfiguration:
        """Set the target."""
        return ClientConfiguration(self.endpoint, Credentials())

    def show(self, load: str, count: int, seconds: float, cpu: float) -> None:
        """Print the figures of a load."""
        print(f"{self.engine} {load}\t{count / seconds}\tmsg/s")
        if count:
            print(f"{self.engine} {load}, CPU per million\t{cpu / count * 1e6}\ts")


class Sending:
    """Threads that send, one message each at a time, until told to stop."""

    def __init__(self, producer: Producer, topic: str, threads: int) -> None:
        self._producer, self._topic = producer, topic
        self._is_over = threading.Event()
        self.counts = [0] * threads
        self.failures: list[BaseException] = []
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(threads)]
        for thread in self._threads:
            thread.start()

    def _run(self, number: int) -> None:
        try:
            while not self._is_over.is_set():
                message = Message()
                message.topic, message.body, message.tag = self._topic, BODY, "t"
                self._producer.send(message)
                self.counts[number] += 1
        except BaseException as failure:
            self.failures.append(failure)
            raise

    def stop(self) -> None:
        """Wait for their end."""
        self._is_over.set()
        for thread in self._threads:
            thread.join()


def send(server: Server, threads: int, seconds: float) -> None:
    """Send from so many threads."""
    producer = Producer(server.configuration, (server.topic,))
    producer.startup()
    sending = Sending(producer, server.topic, threads)
    time.sleep(WARM_UP)
    before, cpu, start = sum(sending.counts), cpu_seconds(server.pid), time.perf_counter()
    time.sleep(seconds)
    count, elapsed, cpu = sum(sending.counts) - before, time.perf_counter() - start, cpu_seconds(server.pid) - cpu
    sending.stop()
    producer.shutdown()
    if sending.failures:
        raise SystemExit(f"{len(sending.failures)} of {threads} threads failed: {sending.failures[0]!r}")
    server.show(f"python client: send, {threads} threads", count, elapsed, cpu)


def receive(server: Server, group: str, seconds: float) -> None:
    """Receive and acknowledge each message, one after the other."""
    consumer = SimpleConsumer(server.configuration, group, {server.topic: FilterExpression("*")}, WAIT_SECONDS)
    consumer.startup()
    first(consumer)
    count, cpu, start = 0, cpu_seconds(server.pid), time.perf_counter()
    end = start
    while end - start < seconds and (messages := consumer.receive(BATCH, INVISIBLE_SECONDS)):
        for message in messages:
            consumer.ack(message)
        count += len(messages)
        end = time.perf_counter()
    elapsed, cpu = end - start, cpu_seconds(server.pid) - cpu
    consumer.shutdown()
    server.show("python client: receive and acknowledge", count, elapsed, cpu)


def first(consumer: SimpleConsumer) -> None:
    """Wait until the server serves the consumer: RocketMQ's refuses it until its settings have arrived."""
    for _ in range(30):
        try:
            if messages := consumer.receive(BATCH, INVISIBLE_SECONDS):
                for message in messages:
                    consumer.ack(message)
                return
        except Exception as refused:  # noqa: BLE001 - the client raises what it likes
            print(f"not served yet: {refused!r}", file=sys.stderr)
            time.sleep(1)
    raise SystemExit("the consumer was never served")


if __name__ == "__main__":
    engine, endpoint, topic, kind, what, seconds, pid = sys.argv[1:]
    server = Server(engine, endpoint, topic, int(pid))
    if kind == "send":
        send(server, int(what), float(seconds))
    else:
        receive(server, what, float(seconds))
