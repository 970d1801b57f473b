"""The commands `ferromq bench send` and `receive`: rates and latencies of a cluster, by the client of this package."""

import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from math import ceil, log
from typing import Any

import click

import ferromq
from ferromq.cli.administration.output import DONE, fail, visible
from ferromq.cli.administration.target import Target, confirm, connected, yes_option
from ferromq.cli.parsing import Group, Number, with_options
from ferromq.errors import FerromqError, GroupNotFound, OutcomeUnknown, TopicNotFound
from ferromq.protocol import naming
from ferromq.terminal.commands import in_commands
from ferromq.terminal.formatting import size as bytes_text

_MOST_BODY = 4 << 20
_FILLED = 10_000
"""Messages of a temporary topic to receive from."""
_STEP = log(1.01)
_WAIT = 1.0
"""Seconds of one receive: so long it may take until Ctrl-C is obeyed."""
_SIZE = 1024
_IDLE = 5.0
"""Seconds without a message after which `bench receive` does not wait for more."""


class Latencies:
    """Counts latencies in classes that are 1 % wide, so the memory does not grow with the number of calls."""

    def __init__(self) -> None:
        self.classes: dict[int, int] = {}
        """The number of a class → how many are in it."""
        self.count = 0
        self.most = 0.0

    def add(self, seconds: float) -> None:
        """Count a latency."""
        number = ceil(log(max(seconds, 1e-9)) / _STEP)
        self.classes[number] = self.classes.get(number, 0) + 1
        self.count += 1
        self.most = max(self.most, seconds)

    def merge(self, other: "Latencies") -> None:
        """Count those of another one, too."""
        for number, count in other.classes.items():
            self.classes[number] = self.classes.get(number, 0) + count
        self.count += other.count
        self.most = max(self.most, other.most)

    def share(self, share: float) -> float | None:
        """Return the seconds within which a *share* of the calls ended, at most 1 % too long; None without calls."""
        wanted = ceil(share * self.count)
        for number in sorted(self.classes):
            wanted -= self.classes[number]
            if wanted <= 0:
                return min(float(1.01**number), self.most)
        return None


class _Run:
    """Calls a step on threads until enough messages are done, the time is over, or a call fails; and counts."""

    def __init__(self, *, count: int | None, rate: float | None) -> None:
        self._left = count
        self._rate = rate
        self._due: float | None = None
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self.stop = threading.Event()
        self.latencies = Latencies()
        self.messages = 0
        self.bytes = 0
        self.seconds = 0.0
        self.error: Exception | None = None

    def measure(self, step: Callable[[int], tuple[int, int]], *, batch: int, threads: int, seconds: float) -> None:
        """
        Measure until the end, or Ctrl-C.

        *step* takes how many messages it may do, up to *batch*, and returns the number and the bytes that it did.
        """
        workers = [threading.Thread(target=self._work, args=(step, batch), daemon=True) for _ in range(threads)]
        begin = time.perf_counter()
        for worker in workers:
            worker.start()
        try:
            threading.Thread(target=self._wait_for, args=(workers,), daemon=True).start()
            self._ended.wait(min(seconds, threading.TIMEOUT_MAX))
        except KeyboardInterrupt:
            pass
        self.stop.set()
        for worker in workers:
            worker.join()
        self.seconds = time.perf_counter() - begin

    def _wait_for(self, workers: list[threading.Thread]) -> None:
        for worker in workers:
            worker.join()
        self._ended.set()

    def _work(self, step: Callable[[int], tuple[int, int]], batch: int) -> None:
        latencies, messages, size = Latencies(), 0, 0
        try:
            while not self.stop.is_set() and (allowed := self._take(batch)):
                begin = self._slot(allowed)
                if self.stop.is_set():
                    break
                done, done_bytes = step(allowed)
                if done:
                    latencies.add(time.perf_counter() - begin)
                messages, size = messages + done, size + done_bytes
                self._give_back(allowed - done)
        except Exception as error:  # noqa: BLE001 (the caller tells it, with what was measured)
            self.error = self.error or error
            self.stop.set()
        with self._lock:
            self.latencies.merge(latencies)
            self.messages += messages
            self.bytes += size

    def _take(self, batch: int) -> int:
        with self._lock:
            if self._left is None:
                return batch
            taken = min(batch, self._left)
            self._left -= taken
            return taken

    def _give_back(self, count: int) -> None:
        with self._lock:
            if self._left is not None:
                self._left += count

    def _slot(self, count: int) -> float:
        """Wait until the rate allows a call, and return the time at which it was due: latencies count from there."""
        if self._rate is None:
            return time.perf_counter()
        with self._lock:
            due = time.perf_counter() if self._due is None else self._due
            self._due = due + count / self._rate
        self.stop.wait(min(max(0.0, due - time.perf_counter()), threading.TIMEOUT_MAX))
        return due


_options = with_options(
    click.option("--size", type=click.IntRange(0, _MOST_BODY), metavar="BYTES", help=f"Of a body ({_SIZE})."),
    click.option("--threads", type=click.IntRange(1, 1024), default=1, metavar="N", help="Threads (1)."),
    click.option("--duration", type=Number(0, min_open=True), metavar="SECONDS", help="End after it (10)."),
    click.option("--rate", type=Number(0.001), metavar="N", help="Messages a second at most."),
    yes_option,
    connected,
)


@click.group("bench", cls=Group)
def bench() -> None:
    """Measure how fast a cluster takes and gives messages."""


@bench.command("send")
@click.argument("topic", required=False)
@click.option("--count", type=click.IntRange(1), metavar="N", help="End after so many messages.")
@click.option("--batch", type=click.IntRange(1, 10_000), default=1, metavar="N", help="Messages of a call (1).")
@_options
def send(
    target: Target, topic: str | None, *, count: int | None, batch: int, size: int | None, threads: int, **options: Any
) -> int:
    """
    Send messages, and print rates and latencies of the calls.

    Without TOPIC to a temporary topic, which is deleted at the end.
    """
    size = _SIZE if size is None else size
    body = bytes(size)
    run = _Run(count=count, rate=options["rate"])
    with _topic(target, topic, yes=options["yes"]) as name, target.connection() as mq, mq.producer() as producer:
        producer.send(name, body)  # finds routes and connects, which is not measured

        def step(allowed: int) -> tuple[int, int]:
            if batch == 1:
                producer.send(name, body)
            else:
                producer.send_all(name, [ferromq.Message(body) for _ in range(allowed)])
            return allowed, allowed * size

        run.measure(step, batch=batch, threads=threads, seconds=_seconds(options["duration"], count))
        return _show(target, run, {"command": "send", "topic": name, "threads": threads, "batch": batch, "size": size})


@bench.command("receive")
@click.argument("topic", required=False)
@click.option("--count", type=click.IntRange(1), metavar="N", help="End after so many messages.")
@click.option("--batch", type=click.IntRange(1, 32), default=32, metavar="N", help="Messages of a call at most (32).")
@_options
def receive(
    target: Target, topic: str | None, *, count: int | None, batch: int, size: int | None, threads: int, **options: Any
) -> int:
    """
    Receive and acknowledge messages, and print rates and latencies of both calls together.

    In a temporary group, which is deleted at the end. Without TOPIC from a temporary topic that is filled before with
    10,000 messages of --size, or with --count. With --count it also ends after 5 seconds without a message.
    """
    if topic is not None and size is not None:
        raise click.UsageError("--size is of the messages that fill a temporary topic; leave it out with TOPIC")
    group = f"ferromq-bench-{secrets.token_hex(4)}"
    wanted = count if topic is not None else count or _FILLED
    run = _Run(count=wanted, rate=options["rate"])
    with (
        _topic(target, topic, yes=options["yes"]) as name,
        _group(target, group, name),
        target.connection() as mq,
    ):
        if topic is None:
            with mq.producer() as producer:
                body = bytes(_SIZE if size is None else size)
                producer.send_all(name, (ferromq.Message(body) for _ in range(wanted or 0)))
        with mq.consumer(group, name) as consumer:
            last = time.monotonic()

            def step(allowed: int) -> tuple[int, int]:
                nonlocal last
                messages = consumer.receive(allowed, wait=_WAIT)
                if messages:
                    consumer.ack(messages)
                    last = time.monotonic()
                elif wanted is not None and time.monotonic() - last >= _IDLE:
                    run.stop.set()
                return len(messages), sum(len(message.body) for message in messages)

            run.measure(step, batch=batch, threads=threads, seconds=_seconds(options["duration"], count))
            if wanted is not None and run.messages < wanted and time.monotonic() - last >= _IDLE:
                about = f"ferromq: {name} had no further message for {_IDLE:g} s; wanted were {wanted:,}"
                click.echo(visible(about), err=True)
            return _show(target, run, {"command": "receive", "topic": name, "threads": threads, "batch": batch})


def _seconds(duration: float | None, count: int | None) -> float:
    return duration if duration is not None else 10.0 if count is None else threading.TIMEOUT_MAX


@contextmanager
def _topic(target: Target, named: str | None, *, yes: bool) -> Iterator[str]:
    """Yield the named topic, after a question; or a temporary one, which is deleted at the end."""
    if named is not None:
        confirm(f"Use the topic {named} of {target.context.address} for a measurement?", yes=yes)
        with target.admin() as admin:
            admin.describe_topic(named)  # a missing topic is an error
        yield named
        return
    name = f"ferromq-bench-{secrets.token_hex(4)}"
    with target.admin() as admin:
        admin.cluster(figures=False)  # name servers that do not answer are told before something is made
        try:
            admin.create_topic(name)
            yield name
        finally:
            _clean(f"ferromq topic delete {name}", lambda: admin.delete_topic(name))


@contextmanager
def _group(target: Target, name: str, topic: str) -> Iterator[None]:
    """Make a group that begins at the first message, and delete it at the end."""
    with target.admin() as admin:
        try:
            admin.create_group(name)
        except OutcomeUnknown:
            _clean(f"ferromq group delete {name}", lambda: admin.delete_group(name))
            raise
        try:
            admin.reset_offsets(name, topic, "begin")
            yield
        finally:
            _clean(f"ferromq group delete {name}", lambda: admin.delete_group(name))
            retries = naming.RETRY_PREFIX + name
            _clean(f"ferromq topic delete {retries}", lambda: admin.delete_topic(retries))


def _clean(command: str, work: Callable[[], None]) -> None:
    try:
        with suppress(TopicNotFound, GroupNotFound):  # brokers make a topic of retries for a consumer
            work()
    except FerromqError as error:
        told = f"ferromq: {in_commands(str(error))}; this may be left over, and {command} removes it"
        click.echo(visible(told), err=True)


def _show(target: Target, run: _Run, about: dict[str, Any]) -> int:
    """Print what was measured, and return the exit code."""
    seconds = max(run.seconds, 1e-9)
    shares = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999}
    latencies = {name: run.latencies.share(share) for name, share in shares.items()} | {"max": run.latencies.most}
    rate, speed = run.messages / seconds, run.bytes / seconds
    if target.output.is_json:
        figures = {"messages": run.messages, "bytes": run.bytes, "seconds": run.seconds, "calls": run.latencies.count}
        rates = {"messages_per_second": rate, "bytes_per_second": speed}
        target.output.document({**about, **figures, **rates, "latency_seconds": latencies})
    else:
        target.output.text(f"messages     {run.messages:,} in {run.seconds:.2f} s, {bytes_text(run.bytes)}")
        target.output.text(f"rate         {rate:,.0f} messages/s, {bytes_text(int(speed))}/s")
        shown = ", ".join(f"{name} {_milliseconds(value)}" for name, value in latencies.items())
        target.output.text(f"latency      {shown} of {run.latencies.count:,} calls")
    sys.stdout.flush()
    return DONE if run.error is None else fail(run.error)


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:.3g} ms"
