"""Open transactions survive a change of broker, RocketMQ to ferromq and back: each ends once, as decided."""

import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from compat_peer import Clients
from java_processes import JavaBroker, JavaNameServer

import ferromq
from ferromq._ferromq import Clock, Store, decode_records

sys.path.insert(0, str(Path(__file__).parents[1] / "system"))
from remoting_peer import Peer
from waiting import eventually

COUNT = 30
TOPIC = "orders"
# As in `java/Sender.java`: it commits, rolls back, or commits at the check-back.
ENDED = Counter(f"m-{number}".encode() for number in range(COUNT) if number % 3 != 1)
FILES = {"commit_log_file_size": 16 << 20, "consume_queue_file_entries": 10_000}
FILES |= {"index_slots": 10_000, "index_entries": 40_000}
PATIENCE = 150.0
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
SEND, END_TRANSACTION, CHECK = 310, 37, 39
COMMIT, ROLLBACK = 8, 12
GROUP = "payers"
NOWHERE = "127.0.0.1:1"


def visible(store: Store) -> Counter[bytes]:
    """Count the visible messages, without those that let a client find the broker."""
    queues = store.queues().get(TOPIC, [])
    found = [message.body for queue in queues for message in store.get(TOPIC, queue, 0, 1_000)[1]]
    return Counter(body for body in found if body.startswith(b"m-"))


def test_open_transactions_of_a_killed_rocketmq_broker_end_here(clients: Clients, tmp_path: Path) -> None:
    """It was killed before it noted its committed half messages, and before it checked others."""
    with (
        JavaNameServer(tmp_path / "names") as names,
        JavaBroker(tmp_path / "java", names.address, transactionCheckInterval=600_000) as java,
    ):
        clients.start("transactions", "before", names.address, "payers")
        assert int(clients.ask("transact", "before", TOPIC, "m-", COUNT)) == COUNT
        java.kill()
    checks = {"transaction_check_interval": "1s", "transaction_timeout": "1s", "transaction_check_max": 1_000}
    with ferromq.embedded(java.store, **FILES, **checks) as mq:
        clients.start("transactions", "here", mq.namesrv, "payers")
        assert int(clients.ask("transact", "here", TOPIC, "find-", 1)) == 1
        assert eventually(lambda: visible(mq.store) & ENDED == ENDED)
        found = visible(mq.store)
        assert found & ENDED == ENDED
        # RocketMQ stores only an op message for a rollback: without it the producer is asked.
        assert set(found.values()) == {1}


class Halves:
    """Half messages sent to our broker; body `m-N`, by its number."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._places: dict[int, dict[str, str]] = {}

    def _call(self, code: int, fields: dict[str, str], body: bytes = b"") -> Mapping[str, str]:
        answer = self._peer.call(code, fields, body, timeout=PATIENCE)
        assert answer.code == 0, answer.remark
        return answer.fields

    def prepare(self, number: int, born_ms: int) -> None:
        """Send one as Java's producer does."""
        body = f"m-{number}"
        names = {"TRAN_MSG": "true", "PGROUP": GROUP, "UNIQ_KEY": f"7F0000010001{number:020X}", "KEYS": body}
        text = "".join(f"{name}\x01{value}\x02" for name, value in names.items())
        fields = {"a": GROUP, "b": TOPIC, "c": "TBW102", "d": "4", "e": str(number % 4), "f": "4", "g": str(born_ms)}
        fields |= {"h": "0", "i": text, "j": "0", "k": "false", "m": "false"}
        answer = self._call(SEND, fields, body.encode())
        self._places[number] = {
            "producerGroup": GROUP,
            "tranStateTableOffset": answer["queueOffset"],
            "commitLogOffset": str(int(answer["msgId"][16:], 16)),
        }

    def end(self, number: int, decision: int) -> None:
        """End one by its first place."""
        self._call(END_TRANSACTION, {**self._places[number], "commitOrRollback": str(decision)})


def leave_halves(mq: ferromq.Embedded, peer: Peer) -> tuple[set[str], set[str]]:
    """Leave some of every kind; return the bodies of the committed and the open ones."""
    halves, committed, open_ones = Halves(peer), set[str](), set[str]()

    def prepare(numbers: range) -> None:
        for number in numbers:
            halves.prepare(number, mq.clock.now_ms())

    def end(numbers: range) -> None:
        halves.end(numbers[0], COMMIT)
        halves.end(numbers[1], ROLLBACK)
        committed.add(f"m-{numbers[0]}")

    prepare(range(6))
    end(range(2))
    assert eventually(lambda: mq.store.max_offset(HALF_TOPIC, 0) == 6)
    # No producer is connected; they are put back all the same.
    mq.clock.advance(seconds=31)
    assert eventually(lambda: mq.store.max_offset(HALF_TOPIC, 0) == 10)
    end(range(2, 4))
    mq.clock.advance(seconds=31)
    assert eventually(lambda: mq.store.max_offset(HALF_TOPIC, 0) == 12)
    end(range(4, 6))
    # Open ones that were put back once, and open ones that were not.
    prepare(range(6, 12))
    end(range(6, 8))
    assert eventually(lambda: mq.store.max_offset(HALF_TOPIC, 0) == 18)
    mq.clock.advance(seconds=31)
    assert eventually(lambda: mq.store.max_offset(HALF_TOPIC, 0) == 22)
    end(range(8, 10))
    prepare(range(12, 16))
    end(range(12, 14))
    open_ones.update(f"m-{number}" for number in (10, 11, 14, 15))
    return committed, open_ones


def asked_about(peer: Peer, bodies: set[str], rounds: int) -> dict[str, list[tuple[int, dict[str, str]]]]:
    """Return the checks until each of *bodies* was checked so often: number of checks, and its end."""
    asked = dict[str, list[tuple[int, dict[str, str]]]]()
    while not all(len(asked.get(body, ())) >= rounds for body in bodies):
        question = peer.asked(CHECK, timeout=PATIENCE)
        (message,) = decode_records(question.body)
        fields = {"producerGroup": GROUP, "commitOrRollback": str(COMMIT), **question.fields}
        times = int(message.properties["TRANSACTION_CHECK_TIMES"])
        asked.setdefault(message.body.decode(), []).append((times, fields))
    return asked


def test_our_open_transactions_end_under_rocketmq(tmp_path: Path) -> None:
    """Only the open ones are checked, once a round, put back before or not; each is seen once."""
    directory = tmp_path / "java" / "store"
    clock = Clock.manual(time.time_ns() // 1_000_000 - 200_000)
    with ferromq.embedded(directory, clock=clock, name="broker-java", **FILES) as mq, Peer(mq.broker.address) as peer:
        committed, open_ones = leave_halves(mq, peer)
    checks = {"transactionCheckInterval": 1_000, "transactionTimeOut": 1_000, "transactionCheckMax": 1_000}
    with JavaBroker(tmp_path / "java", NOWHERE, **checks) as java:
        with Peer(java.address) as peer:
            peer.heartbeat(produces=(GROUP,))
            asked = asked_about(peer, open_ones, 3)
            assert asked.keys() == open_ones
            for questions in asked.values():
                times = [number for number, _ in questions]
                assert times == list(range(times[0], times[0] + len(times)))
                # RocketMQ would commit once for every answer.
                assert peer.call(END_TRANSACTION, questions[-1][1], timeout=PATIENCE).code == 0
        java.stop()
    with ferromq.embedded(java.store, **FILES) as mq:
        assert eventually(lambda: mq.store.stats()["dispatched_offset"] == mq.store.stats()["max_physical_offset"])
        assert visible(mq.store) == Counter(body.encode() for body in committed | open_ones)
