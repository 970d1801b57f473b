"""Transactions and delay levels over remoting: what a producer decides is what consumers see, at its time, once."""

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from remoting_peer import Frame, Peer

import ferromq
from ferromq._ferromq import Clock, Store

ROUNDS = int(os.environ.get("FERROMQ_TRANSACTION_KILL_ROUNDS", "4"))
SEND, END_TRANSACTION = 310, 37
COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0

SERVER = """
import sys, ferromq
with ferromq.embedded(sys.argv[1], flush="group") as mq:
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
        "g": "1700000000000",
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


def test_consumers_see_what_was_committed_and_once(
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
            assert end(peer, second, COMMIT).code == 0
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


def transact(address: str, name: str, choices: random.Random, decided: dict[bytes, set[int]]) -> None:
    """Begin and end transactions until the broker is gone; note what was decided, and that an answer came."""
    try:
        with Peer(address, client_id=name) as peer:
            for number in range(1_000_000):
                body, decision = f"{name}/{number}".encode(), choices.choice([COMMIT, ROLLBACK])
                transaction = prepare(peer, body)
                decided[body] = {decision}
                assert end(peer, transaction, decision).code == 0
                decided[body].add(-1)
    except (OSError, ConnectionError):
        return


@pytest.mark.crash
@pytest.mark.timeout(240 + 30 * ROUNDS)
def test_a_kill_between_any_two_steps_leaves_each_transaction_decided_once(tmp_path: Path) -> None:
    """Kills at random moments: an answered commit is visible once, a rollback never, an unanswered one at most once."""
    decided: dict[bytes, set[int]] = {}
    seed = random.randrange(1 << 32)
    print(f"seed={seed}")  # noqa: T201 (shown when the test fails)
    moments = random.Random(seed)
    for round_number in range(ROUNDS):
        command = [sys.executable, "-c", SERVER, str(tmp_path)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            address = server.stdout.readline().strip()
            assert address, "the server did not start on the store of the round before"
            names = [f"{round_number}-{thread}" for thread in range(3)]
            producers = [
                threading.Thread(target=transact, args=(address, name, random.Random(f"{seed}/{name}"), decided))
                for name in names
            ]
            for producer in producers:
                producer.start()
            threading.Event().wait(moments.uniform(0.3, 1.0))
            server.send_signal(signal.SIGKILL)
            for producer in producers:
                producer.join()
    store = Store(str(tmp_path), Clock.system(), commit_log_file_size=64 << 20)
    visible = bodies(store)
    store.close()
    assert len(visible) == len(set(visible)), "a transaction is visible twice"
    assert set(visible) <= {body for body, how in decided.items() if COMMIT in how}, "not committed, and visible"
    answered = {body for body, how in decided.items() if how == {COMMIT, -1}}
    assert answered <= set(visible), "an answered commit is lost"
    assert answered, "every round was killed before anything was committed"
