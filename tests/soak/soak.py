"""
A soak: every kind of message for a while, a broker that is killed at random moments, and an account of every message.

    python tests/soak/soak.py --minutes 30

`make soak` runs it. Nothing may be lost, come before its time, out of the order of its message group, or after its
transaction was rolled back, and every dead letter needs a cause. What may come twice, comes twice.
"""

import argparse
import contextlib
import logging
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path

from ledger import Entry, Fate, Ledger

import ferromq
from ferromq._ferromq import Clock, Store

_log = logging.getLogger("soak")

MAX_ATTEMPTS = 5
GROUP, LINE = "soak", "soak-line"
PLAIN, TIMED, DEALS, ROWS = "soak-plain", "soak-timed", "soak-deals", "soak-rows"
LEASE = timedelta(seconds=4)
MAX_DELAY = 20.0
SILENCE = 40.0
POISON = 0.005
# One in each of the four queues, and two that share one.
LINES = ("red", "lima", "rome", "north", "blue")
MAX_WAITING = 50
"""A queue in order stands still while a message is given back: senders wait while so many of a group are not done."""
KINDS = {PLAIN: "NORMAL", TIMED: "DELAY", DEALS: "TRANSACTION", ROWS: "FIFO"}
SERVER = f"""
import sys, ferromq
from datetime import timedelta
options = dict(listen=sys.argv[2], grpc_listen=sys.argv[3], fast_listen="off")
options |= dict(transaction_timeout=timedelta(seconds=2), transaction_check_interval=timedelta(seconds=3))
with ferromq.embedded(sys.argv[1], transaction_check_max=1000, **options) as mq:
    if sys.argv[4] == "new":
        with mq.admin() as admin:
            for topic, kind in {KINDS!r}.items():
                admin.create_topic(topic, 4, message_type=kind)
            for group in ({GROUP!r}, {LINE!r}):
                admin.create_group(group, fifo=group == {LINE!r}, retries={MAX_ATTEMPTS - 1})
    print(mq.endpoint, flush=True)
    sys.stdin.read()
"""


def kept_port() -> socket.socket:
    """Return a socket that keeps a port, for a server that listens beside it however often it starts."""
    keeper = socket.socket()
    keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    keeper.bind(("127.0.0.1", 0))
    return keeper


class Server:
    """A broker in a process of its own, on the same ports and directory however often it starts."""

    def __init__(self, directory: Path) -> None:
        self._ports = [kept_port() for _ in range(2)]
        remoting, self.endpoint = (f"127.0.0.1:{port.getsockname()[1]}" for port in self._ports)
        self._command = [sys.executable, "-c", SERVER, str(directory), remoting, self.endpoint]
        self._state = "new"
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start it, and return once it serves."""
        self._process = subprocess.Popen(
            [*self._command, self._state], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        if not self._process.stdout.readline():
            raise RuntimeError(f"the broker did not start on what was left: exit code {self._process.wait()}")
        self._state = "left"

    def kill(self) -> None:
        """Kill it with -9."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """Let it stop."""
        assert self._process is not None
        self._process.communicate("")
        for port in self._ports:
            port.close()


class Soak:
    """The threads of a soak, and what they share."""

    def __init__(self, directory: Path, seed: int, between_kills: tuple[float, float] = (2, 15)) -> None:
        self._between_kills = between_kills
        self.ledger = Ledger(MAX_ATTEMPTS)
        self.server = Server(directory)
        self.directory = directory
        self.seed = seed
        self.stop_sending = threading.Event()
        self.stop = threading.Event()
        self.failures: list[str] = []

    def run(self, duration: float) -> list[str]:
        """Run it, and return the broken promises."""
        self.server.start()
        senders = [self._thread(work, f"send-{number}") for number, work in enumerate(self._senders())]
        takers = [self._thread(work, f"take-{number}") for number, work in enumerate(self._takers())]
        self._kill_until(time.monotonic() + duration)
        self.stop_sending.set()
        self._wait_for_the_rest()
        self.stop.set()
        for worker in senders + takers:
            worker.join()
        self.server.stop()
        return self.failures + self.ledger.verdict(*self._stored())

    def _thread(self, work: Callable[[random.Random], None], name: str) -> threading.Thread:
        def guarded() -> None:
            try:
                work(random.Random(f"{self.seed}/{name}"))
            except Exception as error:  # noqa: BLE001 (a thread that ends early must not look like a quiet soak)
                _log.exception("%s failed", name)
                self.failures.append(f"{name}: {error!r}")

        thread = threading.Thread(target=guarded, name=name)
        thread.start()
        return thread

    # --- sending

    def _senders(self) -> Iterator[Callable[[random.Random], None]]:
        yield lambda chance: self._send_plain(chance, "p0")
        yield lambda chance: self._send_plain(chance, "p1")
        yield self._send_later
        yield self._deal
        for group in LINES:
            yield lambda chance, group=group: self._send_in_order(chance, group)  # type: ignore[misc]

    def _numbers(self, chance: random.Random, pause: float = 0.02) -> Iterator[int]:
        number = 0
        while not self.stop_sending.wait(chance.uniform(0, pause)):
            number += 1
            yield number

    def _send_plain(self, chance: random.Random, prefix: str) -> None:
        with ferromq.Producer(self.server.endpoint) as producer:
            for number in self._numbers(chance):
                name = f"{prefix}-{number}"
                self.ledger.sending(name, Entry(PLAIN, is_poison=chance.random() < POISON))
                with contextlib.suppress(ferromq.OutcomeUnknown, ferromq.RequestError):
                    producer.send(PLAIN, name.encode() + b" " * chance.randrange(2000))
                    self.ledger.decided(name, Fate.SENT)

    def _send_later(self, chance: random.Random) -> None:
        with ferromq.Producer(self.server.endpoint) as producer:
            for number in self._numbers(chance):
                name, delay = f"t-{number}", chance.uniform(0.1, MAX_DELAY)
                due_ms = time.time_ns() // 1_000_000 + int(delay * 1000)
                self.ledger.sending(name, Entry(TIMED, due_ms=due_ms))
                with contextlib.suppress(ferromq.OutcomeUnknown, ferromq.RequestError):
                    producer.send(TIMED, ferromq.Message(name.encode(), delivery_timestamp=due_ms))
                    self.ledger.decided(name, Fate.SENT)

    def _send_in_order(self, chance: random.Random, group: str) -> None:
        with ferromq.Producer(self.server.endpoint) as producer:
            for number in self._numbers(chance, 0.2):
                while self.ledger.waiting(group) >= MAX_WAITING and not self.stop_sending.wait(0.1):
                    pass
                name = f"{group}-{number}"
                self.ledger.sending(name, Entry(ROWS, group=group, is_poison=chance.random() < POISON / 5))
                with contextlib.suppress(ferromq.OutcomeUnknown, ferromq.RequestError):
                    producer.send(ROWS, ferromq.Message(name.encode(), message_group=group))
                    self.ledger.decided(name, Fate.SENT)

    def _deal(self, chance: random.Random) -> None:
        with ferromq.Producer(self.server.endpoint, DEALS, checker=self._decision) as producer:
            for number in self._numbers(chance):
                name = f"d-{number}"
                self.ledger.sending(name, Entry(DEALS))
                transaction = producer.transaction()
                try:
                    transaction.send(DEALS, name.encode())
                except (ferromq.OutcomeUnknown, ferromq.RequestError):
                    self.ledger.decided(name, Fate.HIDDEN)
                    # It is not repeated; more of them prove nothing while the broker is away.
                    self.stop_sending.wait(0.3)
                    continue
                # The decision holds, whether the broker gets it now or asks later.
                is_committed, is_told = chance.random() < 0.7, chance.random() < 0.9
                self.ledger.decided(name, Fate.SENT if is_committed else Fate.HIDDEN)
                with contextlib.suppress(ferromq.OutcomeUnknown, ferromq.RequestError):
                    if is_told and is_committed:
                        transaction.commit()
                    elif is_told:
                        transaction.rollback()
            # The broker may still ask.
            self.stop.wait()

    def _decision(self, message: ferromq.MessageView) -> ferromq.Resolution:
        with self.ledger.lock:
            entry = self.ledger.entries.get(message.body.decode())
            self.ledger.counts["asked"] += 1
        if entry is None or entry.fate is Fate.UNKNOWN:
            return ferromq.Resolution.UNKNOWN
        return ferromq.Resolution.COMMIT if entry.fate is Fate.SENT else ferromq.Resolution.ROLLBACK

    # --- receiving

    def _takers(self) -> Iterator[Callable[[random.Random], None]]:
        for topic in (PLAIN, TIMED, DEALS):
            yield lambda chance, topic=topic: self._take(chance, GROUP, topic)  # type: ignore[misc]
        for _ in range(2):
            yield lambda chance: self._take(chance, LINE, ROWS)
        for group in (GROUP, LINE):
            yield lambda _chance, group=group: self._bury(group)  # type: ignore[misc]

    def _take(self, chance: random.Random, group: str, topic: str) -> None:
        with ferromq.Consumer(self.server.endpoint, group, topic, invisible_duration=LEASE) as consumer:
            while not self.stop.is_set():
                with contextlib.suppress(ferromq.OutcomeUnknown, ferromq.RequestError):
                    self._handle(chance, consumer, consumer.receive(8, wait=1))

    def _bury(self, group: str) -> None:
        with ferromq.Consumer(self.server.endpoint, "soak-dead", f"%DLQ%{group}") as consumer:
            while not self.stop.is_set():
                try:
                    letters = consumer.receive(8, wait=1)
                    for letter in letters:
                        self.ledger.died(letter.body.decode().rstrip())
                    consumer.ack(letters)
                except (ferromq.OutcomeUnknown, ferromq.RequestError):
                    self.stop.wait(0.2)

    def _handle(
        self, chance: random.Random, consumer: ferromq.Consumer, messages: Sequence[ferromq.MessageView]
    ) -> None:
        now_ms = time.time_ns() // 1_000_000
        names = [message.body.decode().rstrip() for message in messages]
        for name, message in zip(names, messages, strict=True):
            self.ledger.delivered(name, message.delivery_attempt, now_ms)
        for name, message in zip(names, messages, strict=True):
            self.ledger.its_turn(name)
            entry, draw = self.ledger.entries[name], chance.random()
            if not entry.is_poison and draw > 0.03:
                self.ledger.acknowledging(name)
                consumer.ack(message)
                continue
            if draw > 0.01:
                consumer.change_invisible_duration(message, chance.choice([0, 0.2, 1.0]))
            if entry.group:
                # The messages behind it must wait for it, and are redelivered with it.
                return

    # --- the rest

    def _kill_until(self, end: float) -> None:
        chance = random.Random(f"{self.seed}/kill")
        while (left := end - time.monotonic()) > 0:
            if self.stop.wait(min(left, chance.uniform(*self._between_kills))):
                return
            self.server.kill()
            self.ledger.killed()
            time.sleep(chance.uniform(0, 0.5))
            self.server.start()

    def _wait_for_the_rest(self) -> None:
        """Wait until everything is finished, or nothing has come for a while."""
        before, since = -1, time.monotonic()
        while not self.ledger.is_finished() and time.monotonic() - since < MAX_DELAY + SILENCE:
            done = self.ledger.counts["acknowledging"] + self.ledger.counts["died"]
            if done != before:
                before, since = done, time.monotonic()
            self.stop.wait(0.5)

    def _stored(self) -> tuple[Counter[str], Counter[str]]:
        """Return how often each dead letter, and each message of a transaction, lies in the queues consumers read."""
        store = Store(str(self.directory), Clock.system())
        try:
            dead = Counter(
                name for topic in store.queues() if topic.startswith("%DLQ%") for name in _names(store, topic)
            )
            return dead, Counter(_names(store, DEALS))
        finally:
            store.close()


def _names(store: Store, topic: str) -> Iterator[str]:
    for queue_id in store.queues().get(topic, []):
        offset, end = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
        while offset < end:
            _, messages, offset = store.get(topic, queue_id, offset, 1000)
            for message in messages:
                yield message.body.decode().rstrip()


def main() -> int:
    """Run a soak with the options of the command line; return 1 if a promise was broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    arguments = parser.parse_args()
    print(f"seed={arguments.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="ferromq-soak-") as directory:
        soak = Soak(Path(directory) / "store", arguments.seed)
        broken = soak.run(arguments.minutes * 60)
    counts = ", ".join(f"{name} {count}" for name, count in sorted(soak.ledger.counts.items()))
    print(f"kills {soak.ledger.kills}, {counts}")
    for line in broken:
        print(line)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
