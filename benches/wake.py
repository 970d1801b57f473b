"""
Measures how soon a waiting receive gets a message, and the cost of an idle broker.

    benches/wake.py [MESSAGES] [IDLE_SECONDS]

The broker, the consumer and the producer are processes of their own. The figures hold for an idle machine: goals are
2 ms (p99) and 1 % of a core.
"""

import contextlib
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import ferromq

TICKS = 100
"""Of a processor, in a second, as the kernel counts for programs."""
BROKER = """
import sys, ferromq
with ferromq.embedded() as mq:
    print(mq.endpoint, mq.namesrv, flush=True)
    sys.stdin.read()
"""
CONSUMER = """
import sys, time, ferromq
with ferromq.Consumer(sys.argv[1], "waking", "wake") as consumer:
    print("ready", flush=True)
    while True:
        for message in consumer.receive(1, wait=20):
            print(message.body.decode(), time.monotonic_ns(), flush=True)
            consumer.ack(message)
"""
TOPICS, GROUPS, PENDING = 100, 20, 2_000


@contextlib.contextmanager
def program(code: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    """Run Python code in a process of its own until left."""
    command = [sys.executable, "-c", code, *words]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.terminate()


def answer(process: subprocess.Popen[str]) -> list[str]:
    """Return the words of the next line a process prints."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise SystemExit("a process ended early")
    return line.split()


def wakes(endpoint: str, consumer: subprocess.Popen[str], count: int) -> tuple[list[float], list[float]]:
    """Return in ms how long each message took, counted from before its send and from its answer."""
    from_start: list[float] = []
    from_answer: list[float] = []
    with ferromq.Producer(endpoint) as producer:
        for number in range(count):
            # Long enough that the consumer waits again.
            time.sleep(0.02)
            start = time.monotonic_ns()
            producer.send("wake", str(number).encode())
            stored = time.monotonic_ns()
            body, received = answer(consumer)
            if int(body) != number:
                raise SystemExit(f"message {body} came instead of {number}")
            from_start.append((int(received) - start) / 1e6)
            from_answer.append((int(received) - stored) / 1e6)
    # The first ones find routes and connections.
    return from_start[10:], from_answer[10:]


def show(what: str, values: list[float]) -> None:
    """Print percentiles."""
    centiles = statistics.quantiles(values, n=100)
    print(f"{what}: p50 {centiles[49]:.2f} ms, p99 {centiles[98]:.2f} ms, most {max(values):.2f} ms")


def fill(endpoint: str, namesrv: str) -> None:
    """Give the broker topics, groups, delayed messages and open leases."""
    with ferromq.Admin(namesrv) as admin:
        for number in range(TOPICS):
            admin.create_topic(f"topic-{number}", message_type="DELAY" if number == 1 else "NORMAL")
        for number in range(GROUPS):
            admin.create_group(f"group-{number}")
    with ferromq.Producer(endpoint) as producer:
        producer.send_all("topic-0", [b"x"] * PENDING)
        tomorrow = datetime.now(UTC) + timedelta(days=1)
        producer.send_all("topic-1", [ferromq.Message(b"x", delivery_timestamp=tomorrow) for _ in range(PENDING)])
    with ferromq.Consumer(endpoint, "group-0", "topic-0", invisible_duration=timedelta(hours=1)) as consumer:
        consumer.receive(PENDING // 2)


def cpu_seconds(pid: int) -> float:
    """Return the CPU time a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def main(count: int, idle_seconds: float) -> None:
    """Measure both and print them."""
    with program(BROKER) as broker:
        endpoint, namesrv = answer(broker)
        with ferromq.Admin(namesrv) as admin:
            admin.create_topic("wake")
        with program(CONSUMER, endpoint) as consumer:
            answer(consumer)
            from_start, from_answer = wakes(endpoint, consumer, count)
            show("from the start of the send to its arrival", from_start)
            show("from the answer of the send to its arrival", from_answer)
            fill(endpoint, namesrv)
            time.sleep(2)
            before = cpu_seconds(broker.pid)
            time.sleep(idle_seconds)
            share = (cpu_seconds(broker.pid) - before) / idle_seconds
            print(f"a broker that idles, one receive waiting: {share:.2%} of a core")


if __name__ == "__main__":
    main(int((sys.argv[1:] or ["1000"])[0]), float((sys.argv[2:] or ["30"])[0]))
