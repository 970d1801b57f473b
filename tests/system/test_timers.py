"""Messages with a delivery time: sent, delivered at their time, and recalled before it."""

import base64
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
from remoting_peer import Frame, Peer

import ferromq
from ferromq._ferromq import Clock, Store
from ferromq._proto import messages as pb

START = 1_700_000_000_000
SEND, RECALL = 310, 370
CHECK_POINT, METRICS = 60, 61
RUNTIME = 28
RPC = "/apache.rocketmq.v2.MessagingService/RecallMessage"

Eventually = Callable[[Callable[[], bool]], bool]


@pytest.fixture
def mq(tmp_path: Path) -> Iterator[ferromq.Embedded]:
    """Run a broker on a clock moved by hand."""
    with ferromq.embedded(tmp_path, clock=Clock.manual(START)) as running:
        yield running


def send(peer: Peer, body: bytes, topic: str = "orders", **properties: str) -> Frame:
    """Send as Java's producer does."""
    text = "".join(f"{name}\x01{value}\x02" for name, value in properties.items())
    fields = {"a": "makers", "b": topic, "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": "1700000000000", "h": "0"}
    return peer.call(SEND, {**fields, "i": text, "j": "0", "k": "false", "m": "false"}, body)


def bodies(store: Store) -> list[bytes]:
    """Return what consumers of the topic see."""
    return [message.body for message in store.get("orders", 0, 0)[1]]


def in_wheel(store: Store, count: int) -> bool:
    """Say whether so many messages are in the wheel, and all of them."""
    return store.timed_waiting()[:2] == (count, 0)


def recall(peer: Peer, handle: str, topic: str = "orders") -> Frame:
    """Ask as Java's producer does."""
    return peer.call(RECALL, {"producerGroup": "makers", "topic": topic, "recallHandle": handle})


def test_runtime_information_has_the_number_of_waiting_messages(mq: ferromq.Embedded, eventually: Eventually) -> None:
    """In the runtime information (28)."""
    with Peer(mq.broker.address) as peer:
        assert send(peer, b"late", TIMER_DELAY_SEC="90").code == 0
        assert eventually(lambda: in_wheel(mq.store, 1))
        table = peer.call(RUNTIME).json()["table"]
    assert (table["timerCongestNum"], table["timerOffsetBehind"]) == ("1", "0")


@pytest.mark.parametrize(
    ("name", "value"),
    [("TIMER_DELIVER_MS", str(START + 90_250)), ("TIMER_DELAY_MS", "90250"), ("TIMER_DELAY_SEC", "90")],
)
def test_a_message_comes_at_the_time_its_producer_gave(
    mq: ferromq.Embedded, eventually: Eventually, name: str, value: str
) -> None:
    """Not a millisecond before, by each of RocketMQ's three properties."""
    due = 90_000 if name == "TIMER_DELAY_SEC" else 90_250
    with Peer(mq.broker.address) as peer:
        assert send(peer, b"late", **{name: value}).code == 0
    assert eventually(lambda: in_wheel(mq.store, 1))
    mq.clock.advance(milliseconds=due - 1)
    assert bodies(mq.store) == []
    mq.clock.advance(milliseconds=1)
    assert eventually(lambda: bodies(mq.store) == [b"late"])
    (message,) = mq.store.get("orders", 0, 0)[1]
    assert message.store_timestamp == START + due


def test_a_past_time_is_now_and_one_too_far_ahead_is_refused(mq: ferromq.Embedded, eventually: Eventually) -> None:
    """The refusal names the limit."""
    with Peer(mq.broker.address) as peer:
        assert send(peer, b"past", TIMER_DELIVER_MS="5").code == 0
        assert eventually(lambda: bodies(mq.store) == [b"past"])
        answer = send(peer, b"far", TIMER_DELAY_SEC=str(3 * 86_400 + 1))
        assert (answer.code, "timer_max_delay" in (answer.remark or "")) == (13, True)
        answer = send(peer, b"x", TIMER_DELAY_SEC="soon")
        assert (answer.code, "TIMER_DELAY_SEC" in (answer.remark or "")) == (13, True)


def test_a_message_is_recalled_over_remoting_and_over_grpc(mq: ferromq.Embedded, eventually: Eventually) -> None:
    """Its handle is in the answer to its send; the others are delivered."""
    with Peer(mq.broker.address) as peer:
        handles = [
            send(peer, b"%d" % number, UNIQ_KEY=f"KEY{number}", TIMER_DELAY_SEC="60").fields["recallHandle"]
            for number in range(3)
        ]
        assert base64.urlsafe_b64decode(handles[0]).split(b" ")[::4] == [b"v1", b"KEY0"]
        answer = recall(peer, handles[0])
        assert (answer.code, answer.fields["msgId"]) == (0, "KEY0")
    with grpc.insecure_channel(mq.endpoint) as channel:
        call = channel.unary_unary(
            RPC,
            request_serializer=pb.RecallMessageRequest.SerializeToString,
            response_deserializer=pb.RecallMessageResponse.FromString,
        )
        request = pb.RecallMessageRequest(topic=pb.Resource(name="orders"), recall_handle=handles[1])
        response = call(request)
        assert (response.status.code, response.message_id) == (pb.Code.OK, "KEY1")
        response = call(pb.RecallMessageRequest(topic=pb.Resource(name="orders"), recall_handle="no handle"))
        assert response.status.code == pb.Code.INTERNAL_SERVER_ERROR
    mq.clock.advance(minutes=1)
    assert eventually(lambda: bodies(mq.store) == [b"2"])
    assert eventually(lambda: mq.store.stats()["timed_recalled"] == 2)


def test_recalls_can_be_switched_off(mq: ferromq.Embedded, eventually: Eventually) -> None:
    """While the broker runs, by RocketMQ's key: the answer is its 16, and the message comes."""
    with Peer(mq.broker.address) as peer:
        handle = send(peer, b"stays", TIMER_DELAY_SEC="60").fields["recallHandle"]
        mq.broker.settings.update({"recallMessageEnable": "false"}, {})
        answer = recall(peer, handle)
        assert (answer.code, "forbidden" in (answer.remark or "")) == (16, True)
        mq.clock.advance(minutes=1)
        assert eventually(lambda: bodies(mq.store) == [b"stays"])


def test_a_delivered_or_foreign_message_is_not_recalled(mq: ferromq.Embedded, eventually: Eventually) -> None:
    """Each with RocketMQ's code."""
    with Peer(mq.broker.address) as peer:
        handle = send(peer, b"done", TIMER_DELAY_SEC="1").fields["recallHandle"]
        assert eventually(lambda: in_wheel(mq.store, 1))
        assert recall(peer, handle, "unknown").code == 17
        send(peer, b"x", "flights")
        assert recall(peer, handle, "flights").code == 604
        _, _, name, time, key = base64.urlsafe_b64decode(handle).decode().split(" ")
        elsewhere = base64.urlsafe_b64encode(f"v1 orders not-{name} {time} {key}".encode()).decode()
        for wrong in (elsewhere, "", "%%%", base64.urlsafe_b64encode(b"v2 a b c d").decode()):
            assert recall(peer, wrong).code == 604
        mq.clock.advance(seconds=1)
        assert eventually(lambda: bodies(mq.store) == [b"done"])
        answer = recall(peer, handle)
        assert (answer.code, "timestamp invalid" in (answer.remark or "")) == (604, True)


def test_messages_wait_over_a_restart_and_a_committed_transaction_waits_too(
    tmp_path: Path, eventually: Eventually
) -> None:
    """One clock for both brokers."""
    clock = Clock.manual(START)
    with ferromq.embedded(tmp_path, clock=clock) as mq, Peer(mq.broker.address) as peer:
        assert send(peer, b"timed", TIMER_DELAY_SEC="60").code == 0
        topic, queue_id, properties = mq.store.delayed("orders", 0, {"TIMER_DELIVER_MS": str(START + 60_000)}) or (
            "",
            0,
            {},
        )
        assert (topic, properties["REAL_TOPIC"]) == ("rmq_sys_wheel_timer", "orders")
        mq.store.append(topic, queue_id, b"committed", properties)
    clock.advance(59_999)
    with ferromq.embedded(tmp_path, clock=clock) as mq:
        assert bodies(mq.store) == []
        clock.advance(1)
        assert eventually(lambda: sorted(bodies(mq.store)) == [b"committed", b"timed"])


def test_a_slave_asks_its_master_how_far_the_wheel_is(mq: ferromq.Embedded, eventually: Eventually) -> None:
    """Requests 60 and 61, in RocketMQ's forms."""
    with Peer(mq.broker.address) as peer:
        send(peer, b"waits", TIMER_DELAY_SEC="60")
        assert eventually(lambda: in_wheel(mq.store, 1))
        answer = peer.call(CHECK_POINT, {})
        assert struct.unpack(">qqqq", answer.body[:32])[2:] == (1, 1)
        assert len(answer.body) == 56
        assert peer.call(METRICS, {}).json()["timingCount"]["orders"]["count"] == 1
