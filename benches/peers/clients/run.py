"""
Python clients side by side: ferromq's beside those of Kafka, NATS and RocketMQ, against their own servers, in one run.

    ROUNDS=5 SECONDS_EACH=5 SIZE=1024 MESSAGES=100000 PEERS="ferromq;aiokafka" ROWS="send_1 iterate" run.py

All servers run at once. Each round goes through the rows, and each row through the peers, in a new process each; the
order of the peers turns with every round. The table has medians, with the least and the greatest value, and seconds of
CPU time for a million messages, of the client and of the server. What cannot be run is listed with its reason.
LINES keeps the single values. Needs 12 GB of disk with the defaults: about 13 times MESSAGES * SIZE a round.
"""

import contextlib
import importlib
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path
from typing import Any

import floors
import servers
from client import FILLERS, PEERS
from measuring import BATCH, IN_FLIGHT, LINGER_MS, READING, TASKS, THREADS, Work, cpu_seconds

ROWS = {
    "send_many": "send: many at once",
    "send_futures": "send: a future each",
    "send_1": "send: one by one, 1 thread or task",
    "send_16": f"send: one by one, {THREADS} threads",
    "send_64": f"send: one by one, {TASKS} asyncio tasks",
    "send_500": f"send: batches of {BATCH}, each after the one before",
    "iterate": "consume: by iteration",
    "receive_500": f"consume: {BATCH} at once, acknowledged",
    "receive_columns": "consume: as columns, acknowledged",
    "receive_1": "consume: 1 at once, acknowledged",
    "pull": "read by offsets",
    "pull_columns": "read by offsets, as columns",
    "wake_1": "from send to handler, idle broker",
    "wake_10": "from send to handler, 10 idle brokers",
}
TEN = 10
IDLE_SECONDS = 3.0
HERE = Path(__file__).parent
CACHE = HERE.parents[2] / ".cache"


def words(name: str, default: str) -> list[str]:
    """Return the words of a variable; those with blanks are separated by `;`."""
    text = os.environ.get(name) or default
    return [word.strip() for word in (text.split(";") if ";" in text or text in PEERS else text.split())]


class Table:
    """The figures of all rounds."""

    def __init__(self) -> None:
        self._figures: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
        self.skipped: dict[str, None] = {}
        self._lines = Path(os.environ["LINES"]).open("a") if os.environ.get("LINES") else None  # noqa: SIM115

    def add(self, row: str, peer: str, figures: dict[str, Any]) -> None:
        """Keep a figure."""
        self._figures[row, peer].append(figures)
        print(f"{row}, {peer}: {figures['value']:,.4g} {figures['unit']}", file=sys.stderr, flush=True)
        if self._lines is not None:
            print(json.dumps({"row": row, "peer": peer, **figures}), file=self._lines, flush=True)

    def skip(self, what: str, reason: str) -> None:
        """Note what was not measured."""
        self.skipped[f"{what}: {reason}"] = None

    def show(self) -> None:
        """Print the table, in the order of the rows."""
        order = {row: number for number, row in enumerate(ROWS.values())}
        found = sorted(self._figures, key=lambda each: order.get(each[0], len(order)))
        lines = [("row", "peer", "unit", "median (min-max)", "p99", "client CPU, s/M", "server CPU, s/M")]
        for row, peer in found:
            values = self._figures[row, peer]
            columns = ("value", "p99", "client_cpu", "server_cpu")
            cells = [spread([each[name] for each in values if each.get(name) is not None]) for name in columns]
            lines.append((row, peer, values[0]["unit"], *cells))
        widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
        lines.insert(1, tuple("-" * width for width in widths))
        for line in lines:
            print("| " + " | ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)) + " |")
        for reason in self.skipped:
            print(f"not measured: {reason}")


def spread(values: list[float]) -> str:
    """Write median, least and greatest value."""
    if not values:
        return ""
    least, median, greatest = (
        f"{each:,.0f}" if abs(each) >= 100 else f"{each:.3g}"
        for each in (min(values), statistics.median(values), max(values))
    )
    return f"{median} ({least}-{greatest})" if least != greatest else median


class Run:
    """One run of the benchmark."""

    def __init__(self, directory: Path, stack: contextlib.ExitStack) -> None:
        self._directory, self._stack = directory, stack
        self._rounds = int(os.environ.get("ROUNDS", "5"))
        self._seconds = float(os.environ.get("SECONDS_EACH", "5"))
        self._size = int(os.environ.get("SIZE", "1024"))
        self._messages = int(os.environ.get("MESSAGES", "100000"))
        self._peers = words("PEERS", ";".join(PEERS))
        self._rows = words("ROWS", " ".join(ROWS))
        for name, given, known in (("PEERS", self._peers, PEERS), ("ROWS", self._rows, ROWS)):
            for each in given:
                if each not in known:
                    raise SystemExit(f"{name}: {each!r} is none of {'; '.join(known)}")
        self._table = Table()
        self._servers: dict[str, servers.Server] = {}
        self._numbers = itertools.count()

    def start(self) -> None:
        """Start the servers of the peers."""
        jars = os.environ.get("JARS", str(CACHE / "jars"))
        kafka_jars = os.environ.get("KAFKA_JARS", str(CACHE / "kafka-jars"))
        nats = os.environ.get("NATS_SERVER", str(CACHE / "nats-server"))
        wanted = {PEERS[peer].server for peer in self._peers}
        ways = {
            "ferromq": lambda: servers.start_ferromq(self._directory / "ferromq"),
            "rocketmq": lambda: servers.start_rocketmq(self._directory / "rocketmq", jars),
            "kafka": lambda: servers.start_kafka(self._directory / "kafka", kafka_jars),
            "nats": lambda: servers.start_nats(self._directory / "nats", nats),
        }
        for name, way in ways.items():
            if name in wanted:
                try:
                    self._servers[name] = self._stack.enter_context(way())
                except (servers.Missing, OSError, subprocess.SubprocessError) as error:
                    self._table.skip(name, str(error))

    def show_idle(self) -> None:
        """Print what the servers take while nothing happens, which is in the figures of the others."""
        before = {name: sum(map(cpu_seconds, server.pids)) for name, server in self._servers.items()}
        time.sleep(IDLE_SECONDS)
        for name, server in self._servers.items():
            share = (sum(map(cpu_seconds, server.pids)) - before[name]) / IDLE_SECONDS
            print(f"{name}: {servers.FLUSH[name]}; {share:.1%} of a core while idle")

    def measure(self) -> None:
        """Run all rounds."""
        print(
            f"{self._messages:,} messages of {self._size} bytes at most, {self._seconds:g} s at most, for each figure"
        )
        print(f"batch {BATCH}, linger {LINGER_MS} ms, {IN_FLIGHT} futures in flight, {self._rounds} rounds")
        self.show_idle()
        for number in range(self._rounds):
            if not os.environ.get("ROWS"):
                work = self._work("", "", [], "floor")
                for name, figures in floors.floors(work, self._directory).items():
                    self._table.add("floor", name, figures)
            filled = self._fill()
            turned = self._peers[number % len(self._peers) :] + self._peers[: number % len(self._peers)]
            for row in self._rows:
                if row != "wake_10":
                    for peer in turned:
                        self._measure(row, peer, filled)
        if "wake_10" in self._rows:
            self._measure_ten()
        self._table.show()

    def _work(self, address: str, topic: str, pids: list[int], group: str) -> Work:
        return Work(
            address=address,
            topic=topic,
            group=group,
            size=self._size,
            seconds=self._seconds,
            messages=self._messages,
            server_pids=pids,
        )

    def _new(self, server: servers.Server, filled: str | None = None) -> tuple[str, str]:
        """Make a topic, unless one is *filled* already, and a group."""
        number = next(self._numbers)
        topic, group = filled or f"peers{number}", f"group{number}"
        servers.until_created(server.create, topic, group)
        return topic, group

    def _fill(self) -> dict[str, str]:
        """Fill a topic of each server for the rows that read, and return their names."""
        topics: dict[str, str] = {}
        if READING & {*self._rows}:
            for name, server in self._servers.items():
                peer, row = FILLERS[name]
                topic, group = self._new(server)
                if self._run(peer, row, self._work(server.address, topic, server.pids, group)) is not None:
                    topics[name] = topic
        return topics

    def _measure(self, row: str, peer: str, filled: dict[str, str]) -> None:
        name = PEERS[peer].server
        if name is None:
            work = self._work("", f"peers{next(self._numbers)}", [], "group")
        elif name not in self._servers:
            return
        elif row in READING and name not in filled:
            self._table.skip(f"{ROWS[row]}, {peer}", "the topic could not be filled")
            return
        else:
            server = self._servers[name]
            topic, group = self._new(server, filled[name] if row in READING else None)
            work = self._work(server.address, topic, server.pids, group)
        figures = self._run(peer, row, work)
        if figures is not None:
            self._table.add(ROWS[row], peer, figures)

    def _run(self, peer: str, row: str, work: Work) -> dict[str, Any] | None:
        """Run a row in a process of its own; None, with the reason noted, where it cannot be run."""
        module, table = PEERS[peer].module, PEERS[peer].rows
        if row not in getattr(importlib.import_module(module), table):
            return None
        command = [sys.executable, str(HERE / "client.py"), peer, row, json.dumps(asdict(work))]
        limit = 3 * self._seconds + 90
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
        except subprocess.TimeoutExpired:
            self._table.skip(f"{ROWS[row]}, {peer}", f"not over after {limit:.0f} s")
            return None
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
            self._table.skip(f"{ROWS[row]}, {peer}", reason[:300])
            return None
        figures: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
        return figures

    def _measure_ten(self) -> None:
        """Measure with ten brokers of ferromq; ten brokers of another kind do not fit beside each other."""
        row = "wake_10"
        with servers.start_ferromq(self._directory / "ten", TEN) as ten:
            for _ in range(self._rounds):
                for peer in self._peers:
                    if PEERS[peer].server == "ferromq":
                        topic, group = self._new(ten)
                        figures = self._run(peer, row, self._work(ten.address, topic, ten.pids, group))
                        if figures is not None:
                            self._table.add(ROWS[row], peer, figures)


def main() -> None:
    """Measure."""
    with contextlib.ExitStack() as stack:
        at = os.environ.get("DIRECTORY")
        directory = stack.enter_context(tempfile.TemporaryDirectory(dir=at, prefix="bench-clients-"))
        run = Run(Path(directory), stack)
        run.start()
        run.measure()


if __name__ == "__main__":
    main()
