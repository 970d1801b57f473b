"""Transactions and delay levels over remoting: consumers see the producer's decision, at its time, once."""

import contextlib
import os
import queue
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from remoting_peer import Frame, Peer

import ferromq
from ferromq._ferromq import Clock, Store, decode_records

ROUNDS = int(os.environ.get("FERROMQ_TRANSACTION_KILL_ROUNDS", "4"))
SEND, END_TRANSACTION, CHECK, MAX_OFFSET = 310, 37, 39, 30
COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0

SERVER = """
import sys, ferromq
checks = {"transaction_check_interval": "200ms", "transaction_timeout": "100ms", "transaction_check_max": 10_000}
with ferromq.embedded(sys.argv[1], flush="group", **checks) as mq:
    print(mq.broker.address, flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def mq(tmp_path: Path) -> Iterator[ferromq.Embedded]:
    """Run a broker in this process."""
    with ferromq.embedded(tmp_path, flush="group") as running:
        yield running


def send(peer: Peer, body: bytes, *, timeout: float = 10.0, **properties: str) -> Frame:
    """Send as Java's producer does."""
    text = "".join(f"{name}\x01{value}\x02" for name, value in properties.items())
    fields = {
        "a": "payers",
        "b": "orders",
        "c": "TBW102",
        "d": "1",
        "e": "0",
        "f": "4" if "TRAN_MSG" in properties else "0",
        "g": str(time.time_ns() // 1_000_000),
        "h": "0",
        "i": text,
        "j": "0",
        "k": "false",
        "m": "false",
    }
    return peer.call(SEND, fields, body, timeout=timeout)


def prepare(peer: Peer, body: bytes, *, timeout: float = 10.0, **properties: str) -> Mapping[str, str]:
    """Send a half message; return the fields that end it, but for the decision."""
    answer = send(peer, body, timeout=timeout, TRAN_MSG="true", PGROUP="payers", **properties)
    assert answer.code == 0, answer.remark
    return {
        "producerGroup": "payers",
        "tranStateTableOffset": answer.fields["queueOffset"],
        "commitLogOffset": str(int(answer.fields["msgId"][16:], 16)),
        "msgId": "of the client",
        "fromTransactionCheck": "false",
    }


def end(peer: Peer, transaction: Mapping[str, str], decision: int, *, timeout: float = 10.0) -> Frame:
    """Ask to end it, and wait for the answer."""
    return peer.call(END_TRANSACTION, {**transaction, "commitOrRollback": str(decision)}, timeout=timeout)


def bodies(store: Store, topic: str = "orders") -> list[bytes]:
    """Return what all queues of a topic hold."""
    found = []
    for queue_id in store.queues().get(topic, []):
        offset, last = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
        while offset < last:
            _, messages, offset = store.get(topic, queue_id, offset, 1000)
            found += [message.body for message in messages]
    return found


def test_consumers_see_committed_messages_once(
    mq: ferromq.Embedded, eventually: Callable[[Callable[[], bool]], bool]
) -> None:
    """Committed, rolled back, open, and committed again and again."""
    with Peer(mq.broker.address) as peer:
        first, second, third = (prepare(peer, body) for body in (b"committed", b"rolled back", b"open"))
        assert bodies(mq.store) == []
        assert end(peer, first, COMMIT).code == 0
        assert end(peer, second, ROLLBACK).code == 0
        assert end(peer, third, UNKNOWN).code == 0
        for _ in range(3):
            assert end(peer, first, COMMIT).code == 0
            assert end(peer, second, ROLLBACK).code == 0
        for other in (end(peer, first, ROLLBACK), end(peer, second, COMMIT)):
            assert (other.code, "before: another producer" in (other.remark or "")) == (1, True)
        assert end(peer, {**first, "producerGroup": "thieves"}, COMMIT).remark == "The producer group wrong"
        assert end(peer, third, 3).code == 29
    assert eventually(lambda: bodies(mq.store) == [b"committed"])


def test_a_one_way_end_counts(mq: ferromq.Embedded, eventually: Callable[[Callable[[], bool]], bool]) -> None:
    """Java's producer waits for no answer."""
    with Peer(mq.broker.address) as peer:
        transaction = prepare(peer, b"committed")
        peer.one_way(END_TRANSACTION, {**transaction, "commitOrRollback": str(COMMIT)})
        assert eventually(lambda: bodies(mq.store) == [b"committed"])


def test_a_message_with_a_delay_level_comes_at_its_time(
    tmp_path: Path, eventually: Callable[[Callable[[], bool]], bool]
) -> None:
    """On a clock moved by hand: not before, and then at once; a level has the length of the option."""
    with (
        ferromq.embedded(tmp_path, clock=Clock.manual(1_700_000_000_000), delay_levels="10s 1h") as mq,
        Peer(mq.broker.address) as peer,
    ):
        assert send(peer, b"late", DELAY="2").code == 0
        assert send(peer, b"soon", DELAY="1").code == 0
        assert eventually(lambda: len(bodies(mq.store, "SCHEDULE_TOPIC_XXXX")) == 2)
        mq.clock.advance(seconds=9.999)
        assert bodies(mq.store) == []
        mq.clock.advance(seconds=0.001)
        assert eventually(lambda: bodies(mq.store) == [b"soon"])
        mq.clock.advance(hours=1)
        assert eventually(lambda: bodies(mq.store) == [b"soon", b"late"])


class Payers:
    """Producers of one group: their decisions, which they also answer to checks."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self.decided: dict[bytes, int] = {}
        self._preparing: set[bytes] = set()
        self.answered: set[bytes] = set()

    def transact(self, address: str, name: str) -> None:
        """Begin and end transactions until the broker is gone; every third waits until it is asked about."""
        choices = random.Random(f"{self._seed}/{name}")
        try:
            with Peer(address, client_id=name) as peer:
                self._answer_checks(peer)
                for number in range(1_000_000):
                    body, decision = f"{name}/{number}".encode(), choices.choice([COMMIT, ROLLBACK])
                    self._preparing.add(body)
                    try:
                        transaction = prepare(peer, body, UNIQ_KEY=body.decode())
                        self.decided[body] = decision
                    finally:
                        self._preparing.discard(body)
                    if number % 3 != 2:
                        assert end(peer, transaction, decision).code == 0
                        self.answered.add(body)
        except (OSError, ConnectionError):
            return

    def answer_until(self, address: str, is_done: Callable[[], bool]) -> bool:
        """Answer checks until that holds, a minute at most."""
        with Peer(address, client_id="last") as peer:
            self._answer_checks(peer)
            pause = threading.Event()
            return any(is_done() or pause.wait(0.05) for _ in range(1_200))

    def _answer_checks(self, peer: Peer) -> None:
        peer.heartbeat(produces=("payers",))
        threading.Thread(target=self._answer, args=(peer,), daemon=True).start()

    def _answer(self, peer: Peer) -> None:
        while not peer.closed.is_set():
            try:
                asked = peer.asked(CHECK, timeout=0.5)
            except queue.Empty:
                continue
            (message,) = decode_records(asked.body)
            if message.body in self._preparing:
                continue  # not yet decided; the broker asks again
            fields = {"producerGroup": "payers", "fromTransactionCheck": "true", **asked.fields}
            # The store of an unknown one was never acknowledged.
            decision = self.decided.get(message.body, ROLLBACK)
            with contextlib.suppress(OSError):
                peer.one_way(END_TRANSACTION, {**fields, "commitOrRollback": str(decision)})


def count(address: str) -> int:
    """Return how many messages consumers see; all go to one queue."""
    with Peer(address, client_id="counter") as peer:
        return int(peer.call(MAX_OFFSET, {"topic": "orders", "queueId": "0"}).fields["offset"])


@contextlib.contextmanager
def served(directory: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Run a broker in a process of its own, killed at the end."""
    command = [sys.executable, "-c", SERVER, str(directory)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        assert address, "the server did not start on the store of the round before"
        try:
            yield address, server
        finally:
            server.send_signal(signal.SIGKILL)


@pytest.mark.crash
@pytest.mark.timeout(240 + 30 * ROUNDS)
def test_a_kill_between_any_two_steps_leaves_each_transaction_as_its_producer_decided(tmp_path: Path) -> None:
    """Kills at random moments, of sends, ends, and checks: in the end each is visible once or never."""
    seed = random.randrange(1 << 32)
    print(f"seed={seed}")  # noqa: T201 (shown when the test fails)
    moments, payers = random.Random(seed), Payers(seed)
    for round_number in range(ROUNDS):
        with served(tmp_path) as (address, _):
            names = [f"{round_number}-{thread}" for thread in range(3)]
            producers = [threading.Thread(target=payers.transact, args=(address, name)) for name in names]
            for producer in producers:
                producer.start()
            threading.Event().wait(moments.uniform(0.3, 1.0))
        for producer in producers:
            producer.join()
    committed = {body for body, decision in payers.decided.items() if decision == COMMIT}
    with served(tmp_path) as (address, _):
        assert payers.answer_until(address, lambda: count(address) >= len(committed)), "a committed transaction is lost"
    store = Store(str(tmp_path), Clock.system(), commit_log_file_size=64 << 20)
    visible = bodies(store)
    store.close()
    assert len(visible) == len(set(visible)), "a transaction is visible twice"
    assert set(visible) == committed
    assert payers.answered, "every round was killed before anything was ended"
