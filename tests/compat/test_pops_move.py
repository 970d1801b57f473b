"""Leases of pop consumers move with the directory: leased here, acknowledged there, the rest is redelivered."""

import time
from pathlib import Path

from compat_checks import JAVAS, OURS, V4_BROKER
from compat_messages import Message
from compat_peer import Peer
from waiting import eventually

import ferromq
from ferromq._ferromq import RemotingClient, decode_records

TOPIC, GROUP = "orders", "workers"
COUNT = 1_000
AGAIN, AGAIN_COUNT = "again", 20
INVISIBLE_MS = 60_000
POP, ACK = 200_050, 200_051


class Popper:
    """A pop consumer on bytes, of either broker."""

    def __init__(self, address: str, topic: str = TOPIC, invisible_ms: int = INVISIBLE_MS) -> None:
        self._address, self._topic, self._invisible_ms = address, topic, invisible_ms
        self._client = RemotingClient()

    def pop(self, count: int) -> dict[int, str]:
        """Return the handles of so many messages by queue offset; a Java broker that just started has none at first."""
        handles: dict[int, str] = {}

        def has_all() -> bool:
            while batch := self._pop_once():
                handles.update(batch)
            return len(handles) >= count

        assert eventually(has_all)
        return handles

    def _pop_once(self) -> dict[int, str]:
        fields = {
            "consumerGroup": GROUP,
            "topic": self._topic,
            "queueId": "0",
            "maxMsgNums": "32",
            "order": "false",
            "invisibleTime": str(self._invisible_ms),
            "pollTime": "0",
            "bornTime": str(int(time.time() * 1000)),
            "initMode": "0",
            "expType": "TAG",
            "exp": "*",
        }
        code, remark, answer, body = self._client.call(self._address, POP, fields, timeout=20)
        # 210 and 209: no message in time.
        assert code in {0, 209, 210}, (code, remark)
        if code:
            return {}
        info = {entry.split(" ")[1]: entry.split(" ")[2] for entry in answer["startOffsetInfo"].split(";")}
        handle = f"{info['0']} {answer['popTime']} {answer['invisibleTime']} {answer['reviveQid']} 0 broker-a 0 "
        return {each.queue_offset: f"{handle}{each.queue_offset}" for each in decode_records(body)}

    def acknowledge(self, offset: int, handle: str) -> None:
        """Acknowledge a message."""
        fields = {
            "consumerGroup": GROUP,
            "topic": self._topic,
            "queueId": "0",
            "offset": str(offset),
            "extraInfo": handle,
        }
        code, remark, *_ = self._client.call(self._address, ACK, fields, timeout=20)
        assert code == 0, remark

    def close(self) -> None:
        """Close its connection."""
        self._client.close()


def test_we_redeliver_the_leases_of_a_java_broker(peer: Peer, tmp_path: Path) -> None:
    """
    1,000 leased, every other one acknowledged: nothing comes until the leases expire, then the other 500.

    Messages that expired at that broker before are in a retry topic: they come at once, as of their topic.
    """
    directory = tmp_path / "store"
    peer.open("left", directory, JAVAS, broker=True)
    peer.ask("topic", "left", TOPIC, 1)
    peer.ask("topic", "left", AGAIN, 1)
    peer.ask("group", "left", GROUP, 16)
    peer.put("left", [Message(TOPIC, 0) for _ in range(COUNT)], V4_BROKER)
    peer.put("left", [Message(AGAIN, 0) for _ in range(AGAIN_COUNT)], V4_BROKER)
    expiring = Popper(peer.ask("address", "left"), AGAIN, 2_000)
    assert len(expiring.pop(AGAIN_COUNT)) == AGAIN_COUNT
    expiring.close()
    began = int(time.time() * 1000)
    popper = Popper(peer.ask("address", "left"))
    handles = popper.pop(COUNT)
    assert sorted(handles) == list(range(COUNT))
    for offset in range(0, COUNT, 2):
        popper.acknowledge(offset, handles[offset])
    popper.close()
    assert eventually(lambda: peer.ask("committed", "left", GROUP, TOPIC, 0) == str(COUNT))
    assert eventually(lambda: peer.ask("end", "left", f"%RETRY%{GROUP}_{AGAIN}") == str(AGAIN_COUNT))
    peer.close("left")

    clock = ferromq.Clock.manual(began)
    with ferromq.embedded(directory, clock=clock, **OURS) as mq:
        popper = Popper(mq.remoting)
        assert popper.pop(0) == {}
        clock.advance(milliseconds=2 * INVISIBLE_MS)
        assert sorted(popper.pop(COUNT // 2)) == list(range(1, COUNT, 2))
        popper.close()
        with mq.consumer(GROUP, AGAIN) as consumer:
            messages = consumer.receive(AGAIN_COUNT)
            assert {(message.topic, message.delivery_attempt) for message in messages} == {(AGAIN, 2)}
            assert len(messages) == AGAIN_COUNT
            consumer.ack(messages)
            clock.advance(hours=1)
            assert consumer.receive(AGAIN_COUNT, wait=0) == []


def test_a_java_broker_redelivers_our_leases(peer: Peer, tmp_path: Path) -> None:
    """1,000 leased, the first 500 acknowledged: the other 500 come, with either broker."""
    directory = tmp_path / "store"
    with ferromq.embedded(directory, **OURS) as mq:
        with mq.admin() as admin:
            admin.create_topic(TOPIC, queues=1)
            admin.create_group(GROUP)
        for number in range(COUNT):
            mq.store.append(TOPIC, 0, b"%d" % number)
        assert eventually(lambda: mq.store.max_offset(TOPIC, 0) == COUNT)
        popper = Popper(mq.remoting)
        handles = popper.pop(COUNT)
        for offset in range(COUNT // 2):
            popper.acknowledge(offset, handles[offset])
        popper.close()
    peer.open("right", directory, JAVAS, broker=True)
    popper = Popper(peer.ask("address", "right"))
    assert sorted(popper.pop(COUNT // 2)) == list(range(COUNT // 2, COUNT))
    popper.close()
    peer.close("right")
