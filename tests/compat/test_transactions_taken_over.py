"""Open transactions of a RocketMQ broker end under ours: each once, as its producer says."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from threading import Event

from compat_peer import Clients
from java_processes import JavaBroker, JavaNameServer

import ferromq
from ferromq._ferromq import Store

COUNT = 30
TOPIC = "orders"
# As `java/Sender.java` decides: it commits, rolls back, or says when it is asked that it commits.
ENDED = Counter(f"m-{number}".encode() for number in range(COUNT) if number % 3 != 1)
FILES = {"commit_log_file_size": 16 << 20, "consume_queue_file_entries": 10_000}
FILES |= {"index_slots": 10_000, "index_entries": 40_000}
PATIENCE, PAUSE = 150.0, 0.2


def eventually(condition: Callable[[], bool]) -> bool:
    """Wait until a condition holds: Java's clients say every 30 s who they are."""
    pause = Event()
    return any(condition() or pause.wait(PAUSE) for _ in range(int(PATIENCE / PAUSE)))


def visible(store: Store) -> Counter[bytes]:
    """Count the messages consumers see, but for those that let a client find the broker."""
    queues = store.queues().get(TOPIC, [])
    found = [message.body for queue in queues for message in store.get(TOPIC, queue, 0, 1_000)[1]]
    return Counter(body for body in found if body.startswith(b"m-"))


def test_what_a_killed_rocketmq_broker_left_open_ends_here(clients: Clients, tmp_path: Path) -> None:
    """It was killed before it said which half messages it had committed, and before it asked about others."""
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
        # Of a rollback RocketMQ stores nothing but the op message: without it its producer is asked.
        assert set(found.values()) == {1}
