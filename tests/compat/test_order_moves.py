"""A queue that is consumed in order moves with the directory: its lock, handles, attempts and next message."""

import time
from pathlib import Path

from compat_checks import JAVAS, OURS, V4_BROKER
from compat_messages import Message
from compat_peer import Peer
from waiting import eventually

import ferromq
from ferromq._ferromq import RemotingClient, decode_records

TOPIC, GROUP = "invoices", "accountants"
COUNT = 6
INVISIBLE_MS = 120_000
POP, ACK = 200_050, 200_051


class Popper:
    """A consumer that pops in order, from either broker."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._client = RemotingClient()
        self.counts = ""
        """The attempts of the last pop's messages, from the broker's answer."""

    def pop(self, attempt: str, count: int = 32) -> dict[int, str]:
        """Return the handles of a pop, by queue offset, in the order of the answer."""
        fields = {
            "consumerGroup": GROUP,
            "topic": TOPIC,
            "queueId": "0",
            "maxMsgNums": str(count),
            "order": "true",
            "attemptId": attempt,
            "invisibleTime": str(INVISIBLE_MS),
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
        self.counts = answer.get("orderCountInfo", "")
        start = answer["startOffsetInfo"].split(" ")[2]
        handle = f"{start} {answer['popTime']} {answer['invisibleTime']} {answer['reviveQid']} 0 broker-a 0 "
        return {each.queue_offset: f"{handle}{each.queue_offset}" for each in decode_records(body)}

    def acknowledge(self, offset: int, handle: str) -> None:
        """Acknowledge a message."""
        fields = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "0", "offset": str(offset), "extraInfo": handle}
        code, remark, *_ = self._client.call(self._address, ACK, fields, timeout=20)
        assert code == 0, remark

    def close(self) -> None:
        """Close its connection."""
        self._client.close()


def test_we_go_on_in_the_order_a_java_broker_left(peer: Peer, tmp_path: Path) -> None:
    """The receiver keeps the queue and its handles; when its lease expires the rest is redelivered, counted."""
    directory = tmp_path / "store"
    peer.open("ordered", directory, JAVAS, broker=True)
    peer.ask("topic", "ordered", TOPIC, 1)
    peer.ask("group", "ordered", GROUP, 16)
    peer.put("ordered", [Message(TOPIC, 0) for _ in range(COUNT)], V4_BROKER)
    began = int(time.time() * 1000)
    popper = Popper(peer.ask("address", "ordered"))
    handles: dict[int, str] = {}
    assert eventually(lambda: bool(handles.update(popper.pop("first", 4)) or handles))
    assert list(handles) == [0, 1, 2, 3]
    popper.acknowledge(1, handles[1])
    popper.close()
    peer.close("ordered")

    clock = ferromq.Clock.manual(began)
    with ferromq.embedded(directory, clock=clock, **OURS) as mq:
        popper = Popper(mq.remoting)
        assert popper.pop("other") == {}
        popper.acknowledge(0, handles[0])
        assert mq.store.committed_offset(GROUP, TOPIC, 0) == 2
        assert list(popper.pop("first")) == [2, 3, 4, 5]
        assert popper.counts == "0 0 0"
        clock.advance(milliseconds=2 * INVISIBLE_MS)
        assert list(popper.pop("other")) == [2, 3, 4, 5]
        assert popper.counts.startswith("0 qo0%2 1;")
        popper.close()


def test_a_java_broker_goes_on_in_the_order_we_left(peer: Peer, tmp_path: Path) -> None:
    """It locks the queue, accepts our handles, and goes on at the first unacknowledged message."""
    directory = tmp_path / "store"
    with ferromq.embedded(directory, **OURS) as mq:
        with mq.admin() as admin:
            admin.create_topic(TOPIC, queues=1)
            admin.create_group(GROUP, fifo=True)
        for number in range(COUNT):
            mq.store.append(TOPIC, 0, b"%d" % number)
        assert eventually(lambda: mq.store.max_offset(TOPIC, 0) == COUNT)
        popper = Popper(mq.remoting)
        handles = popper.pop("first", 4)
        assert list(handles) == [0, 1, 2, 3]
        popper.acknowledge(0, handles[0])
        popper.acknowledge(2, handles[2])
        popper.close()

    peer.open("left-in-order", directory, JAVAS, broker=True)
    popper = Popper(peer.ask("address", "left-in-order"))
    popper.acknowledge(1, handles[1])
    assert eventually(lambda: peer.ask("committed", "left-in-order", GROUP, TOPIC, 0) == "3")
    assert popper.pop("other") == {}
    again: dict[int, str] = {}
    assert eventually(lambda: bool(again.update(popper.pop("first")) or again))
    assert list(again) == [3, 4, 5]
    for offset, handle in again.items():
        popper.acknowledge(offset, handle)
    assert eventually(lambda: peer.ask("committed", "left-in-order", GROUP, TOPIC, 0) == str(COUNT))
    popper.close()
    peer.close("left-in-order")
