"""Messages with a delivery time survive a change of broker: from Java to ferromq, and from ferromq to Java."""

import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from java_processes import JavaBroker

import ferromq
from ferromq._ferromq import Clock

sys.path.insert(0, str(Path(__file__).parents[1] / "system"))
from remoting_peer import Frame, Peer

SEND, MAX_OFFSET, RECALL = 310, 30, 370
COUNT = 20
NOWHERE = "127.0.0.1:1"
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


def now_ms() -> int:
    """Return the time of Java brokers."""
    return time.time_ns() // 1_000_000


def send(peer: Peer, body: str, due: int) -> Frame:
    """Send a message that is due at a time."""
    text = f"UNIQ_KEY\x01{body}\x02TIMER_DELIVER_MS\x01{due}\x02"
    fields = {"a": "makers", "b": "orders", "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": str(due), "h": "0"}
    answer = peer.call(SEND, {**fields, "i": text, "j": "0", "k": "false", "m": "false"}, body.encode())
    assert answer.code == 0, answer.remark
    return answer


def awaited(condition: Callable[[], bool]) -> bool:
    """Wait for an effect of another process."""
    pause = threading.Event()
    for _ in range(150):
        if condition():
            return True
        pause.wait(0.1)
    return condition()


def test_ferromq_delivers_javas_timed_messages(tmp_path: Path) -> None:
    """Java stops before the first is due; on our clock each comes in its second, even one that is days away."""
    with JavaBroker(tmp_path, NOWHERE, recallMessageEnable="true") as java, Peer(java.address) as peer:
        start = now_ms() + HOUR_MS
        sent = {str(number): start + 700 * number for number in range(COUNT)}
        sent["far"] = start + 2 * DAY_MS + HOUR_MS
        answers = {body: send(peer, body, due) for body, due in sent.items()}
        gone = answers["7"].fields["recallHandle"]
        assert peer.call(RECALL, {"producerGroup": "makers", "topic": "orders", "recallHandle": gone}).code == 0
        wheel = [{"topic": "rmq_sys_wheel_timer", "queueId": "0"}]
        assert awaited(lambda: peer.call(MAX_OFFSET, wheel[0]).fields["offset"] == str(COUNT + 2))
        java.stop()
    del sent["7"]
    clock = Clock.manual(now_ms())
    with ferromq.embedded(java.store, clock=clock, name="broker-java") as mq:
        assert mq.store.max_offset("orders", 0) == 0
        clock.advance(start - 1 - clock.now_ms())
        for _ in range(60):
            clock.advance(HOUR_MS if clock.now_ms() > start + HOUR_MS else 250)
        while clock.now_ms() < sent["far"] + 1_000:
            clock.advance(HOUR_MS)
        assert awaited(lambda: mq.store.max_offset("orders", 0) == len(sent)), str(mq.store.stats()) + str(
            mq.store.timed_waiting()
        )
        came = {message.body.decode(): message.store_timestamp for message in mq.store.get("orders", 0, 0, 64)[1]}
        assert came.keys() == sent.keys()
        assert all(came[body] >= due for body, due in sent.items())


def test_java_delivers_ferromqs_timed_messages(tmp_path: Path) -> None:
    """Java delivers all, except those delivered or recalled before its start."""
    store = tmp_path / "store"
    clock = Clock.manual(now_ms())
    sizes = {"commit_log_file_size": 16 << 20, "consume_queue_file_entries": 10_000}
    with ferromq.embedded(store, clock=clock, name="broker-java", **sizes) as mq, Peer(mq.broker.address) as peer:
        start = clock.now_ms()
        sent = {str(number): start + 2_000 + 150 * number for number in range(COUNT)}
        answers = {body: send(peer, body, due) for body, due in sent.items()}
        gone = answers["19"].fields["recallHandle"]
        assert peer.call(RECALL, {"producerGroup": "makers", "topic": "orders", "recallHandle": gone}).code == 0
        assert awaited(lambda: mq.store.timed_waiting()[:2] == (COUNT - 1, 0))
        # In the middle of a second: some of a slot are delivered, some wait.
        clock.advance(sent["9"] - start)
        assert awaited(lambda: mq.store.max_offset("orders", 0) == 10)
    with JavaBroker(tmp_path, NOWHERE) as java, Peer(java.address) as peer:
        orders = {"topic": "orders", "queueId": "0"}
        assert awaited(lambda: peer.call(MAX_OFFSET, orders).fields["offset"] == str(COUNT - 1))
        java.stop()
    with ferromq.embedded(store, clock=Clock.manual(now_ms() + 60_000), name="broker-java") as mq:
        messages = mq.store.get("orders", 0, 0, 64)[1]
        assert [message.body.decode() for message in messages[:10]] == [str(number) for number in range(10)]
        assert sorted(int(message.body) for message in messages) == list(range(COUNT - 1))
        assert all(message.store_timestamp >= sent[message.body.decode()] for message in messages)
