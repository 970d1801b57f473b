"""
What the loads of all peers have in common: the work of a row, its clock, the CPU time, and the printed figures.

A load runs for so many seconds, or until so many messages are through. The first calls are not measured.
"""

import asyncio
import json
import os
import statistics
import threading
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

TICKS = os.sysconf("SC_CLK_TCK")
WARM_UP = 64
"""Calls that are not measured."""
BATCH = 500
LINGER_MS = 5
IN_FLIGHT = 2000
"""How many futures a load keeps."""
THREADS, TASKS = 16, 64
READING = {"iterate", "receive_500", "receive_columns", "receive_1", "pull", "pull_columns"}
"""Rows that read what was sent before."""


def cpu_seconds(pid: int) -> float:
    """Return the CPU time that a process has used, from proc(5)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


class NotComparable(Exception):  # noqa: N818 (what it is, and no fault)
    """A peer has no such call; the text is the reason."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """One row for one peer, as the runner gives it."""

    address: str
    topic: str
    group: str
    size: int
    seconds: float
    messages: int
    """How many messages a load sends or receives at most."""
    server_pids: list[int] = field(default_factory=list)

    @property
    def body(self) -> bytes:
        """The body of each message."""
        return b"x" * self.size

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what the runner wrote."""
        return cls(**json.loads(text))


class Meter:
    """Counts messages from its making on, and takes the CPU time of both sides."""

    def __init__(self, work: Work) -> None:
        self._pids = [os.getpid(), *work.server_pids]
        self._cpu = [cpu_seconds(pid) for pid in self._pids]
        self._begin = time.perf_counter()
        self.end = self._begin + work.seconds

    @property
    def is_over(self) -> bool:
        """Whether the time is over."""
        return time.perf_counter() >= self.end

    def rate(self, count: int) -> dict[str, Any]:
        """Return messages a second, and seconds of CPU time for a million messages: of the client, of the server."""
        elapsed = time.perf_counter() - self._begin
        client, *servers = (cpu_seconds(pid) - before for pid, before in zip(self._pids, self._cpu, strict=True))
        if not count:
            raise SystemExit("no message was through")
        return {
            "value": count / elapsed,
            "unit": "msg/s",
            "client_cpu": client / count * 1e6,
            "server_cpu": sum(servers) / count * 1e6 if servers else None,
        }


def latencies(seconds: Iterable[float]) -> dict[str, Any]:
    """Return the median and the 99th percentile, in milliseconds."""
    cuts = statistics.quantiles([each * 1000 for each in seconds], n=100, method="inclusive")
    return {"value": cuts[49], "p99": cuts[98], "unit": "ms"}


def one_by_one(work: Work, threads: int, send: Callable[[], object]) -> dict[str, Any]:
    """Call *send* from so many threads, each after its call before."""
    for _ in range(WARM_UP):
        send()
    meter, counts, failures = Meter(work), [0] * threads, list[BaseException]()
    most = work.messages // threads

    def run(number: int) -> None:
        try:
            while counts[number] < most and not meter.is_over:
                send()
                counts[number] += 1
        except BaseException as failure:
            failures.append(failure)
            raise

    running = [threading.Thread(target=run, args=(number,)) for number in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    if failures:
        raise failures[0]
    return meter.rate(sum(counts))


async def tasks_one_by_one(work: Work, send: Callable[[], Awaitable[object]], tasks: int = TASKS) -> dict[str, Any]:
    """Await *send* in so many tasks, each after its call before."""
    for _ in range(WARM_UP):
        await send()
    meter, counts = Meter(work), [0] * tasks
    most = work.messages // tasks

    async def run(number: int) -> None:
        while counts[number] < most and not meter.is_over:
            await send()
            counts[number] += 1

    await asyncio.gather(*(run(number) for number in range(tasks)))
    return meter.rate(sum(counts))


PATIENCE = 30.0
"""Seconds after which a consumer that gets no message is an error."""


def drained(work: Work, take: Callable[[], int]) -> dict[str, Any]:
    """
    Call *take*, which returns how many messages it got, until all are through.

    The calls up to the first message are not measured. Servers refuse some of them: RocketMQ's proxy does until the
    settings of the consumer have arrived.
    """
    first, give_up = 0, time.monotonic() + PATIENCE
    while not first:
        try:
            first = take()
        except Exception:
            if time.monotonic() > give_up:
                raise
            time.sleep(0.5)
        if not first and time.monotonic() > give_up:
            raise SystemExit(f"no message came within {PATIENCE:.0f} s")
    meter, count = Meter(work), 0
    while first + count < work.messages and not meter.is_over:
        count += take()
    return meter.rate(count)


async def drained_by_task(work: Work, take: Callable[[], Awaitable[int]]) -> dict[str, Any]:
    """Await *take*, which returns how many messages it got, until all are through; not measured up to the first."""
    async with asyncio.timeout(PATIENCE):
        while not (first := await take()):
            pass
    meter, count = Meter(work), 0
    while first + count < work.messages and not meter.is_over:
        count += await take()
    return meter.rate(count)


GAP = 0.02
"""Seconds between the messages whose way is timed: each finds an idle consumer."""
WARM = 5
"""How many of them are not measured."""


class Wakes:
    """The times from before a send to the handler, of single messages; used by two threads or two tasks."""

    def __init__(self, work: Work) -> None:
        self._count = WARM + max(20, int(work.seconds / GAP))
        self._took: list[float] = []
        self._arrived = threading.Event()
        self._size = work.size

    @property
    def bodies(self) -> Iterable[bytes]:
        """The messages; each carries the time when it was taken from here."""
        for _ in range(self._count):
            yield time.perf_counter().hex().encode().ljust(self._size)

    def handle(self, body: bytes) -> None:
        """Note the arrival of a message; another one is ignored."""
        now = time.perf_counter()
        text = body.rstrip()
        if text.startswith(b"0x"):
            self._took.append(now - float.fromhex(text.decode()))
            self._arrived.set()

    def send_all(self, send: Callable[[bytes], object]) -> dict[str, Any]:
        """Send each message once the one before has arrived, and return the figures."""
        for body in self.bodies:
            self._arrived.clear()
            send(body)
            if not self._arrived.wait(PATIENCE):
                raise SystemExit(f"a message did not arrive within {PATIENCE:.0f} s")
            time.sleep(GAP)
        return latencies(self._took[WARM:])

    async def send_all_by_task(self, send: Callable[[bytes], Awaitable[object]]) -> dict[str, Any]:
        """Await each send once the message before has arrived, and return the figures."""
        for body in self.bodies:
            before = len(self._took)
            await send(body)
            give_up = time.monotonic() + PATIENCE
            while len(self._took) == before:
                if time.monotonic() > give_up:
                    raise SystemExit(f"a message did not arrive within {PATIENCE:.0f} s")
                await asyncio.sleep(0.001)
            await asyncio.sleep(GAP)
        return latencies(self._took[WARM:])
