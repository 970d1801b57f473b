"""A group that receives in order, by both protocols, across a restart, until the last attempt."""

import struct
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from dispatching import dispatched
from remoting_peer import Frame, Peer

import ferromq

SUCCESS, NOTHING, POP, ACK = 0, 210, 200050, 200051
BODY_AT = 84
"""The position of the body's length in a record of two IPv4 hosts."""
AT_ONCE, SOON, LEASE = timedelta(), timedelta(seconds=10), timedelta(seconds=60)


@pytest.fixture
def clock() -> ferromq.Clock:
    """Return a clock that is moved by hand."""
    return ferromq.Clock.manual()


@pytest.fixture
def mq(tmp_path: Path, clock: ferromq.Clock) -> Iterator[ferromq.Embedded]:
    """Run a broker with a FIFO topic, and a group that receives in order and twice at most."""
    with ferromq.embedded(tmp_path, clock=clock) as running:
        with running.admin() as admin:
            admin.create_topic("orders", queues=1, message_type="FIFO")
            admin.create_group("g", fifo=True, retries=1)
        yield running


def send(mq: ferromq.Embedded, *contents: bytes) -> None:
    """Send messages of one message group, and return once they can be read."""
    with mq.producer() as producer:
        for content in contents:
            producer.send("orders", content, message_group="customer")
    dispatched(mq)


def pop(peer: Peer, count: int = 32, **more: str) -> Frame:
    """Pop in order."""
    names = {"consumerGroup": "g", "topic": "orders", "queueId": "-1", "expType": "TAG", "exp": "*", "order": "true"}
    times = {"invisibleTime": "60000", "pollTime": "0", "bornTime": "1"}
    return peer.call(POP, {**names, **times, "maxMsgNums": str(count), "initMode": "0", **more})


def ack(peer: Peer, popped: Frame, offset: int) -> int:
    """Acknowledge a popped message as Java's client does; return the answer's code."""
    start = popped.fields["startOffsetInfo"].split(" ")[2]
    told = " ".join(popped.fields[name] for name in ("popTime", "invisibleTime", "reviveQid"))
    info = f"{start} {told} 0 broker 0 {offset}"
    place = {"consumerGroup": "g", "topic": "orders", "queueId": "0", "offset": str(offset)}
    return peer.call(ACK, {**place, "extraInfo": info}).code


def bodies(answer: Frame) -> list[bytes]:
    """Return the bodies of the records an answer holds."""
    found, rest = [], answer.body
    while rest:
        (size,), (length,) = struct.unpack_from(">i", rest), struct.unpack_from(">i", rest, BODY_AT)
        found.append(rest[BODY_AT + 4 : BODY_AT + 4 + length])
        rest = rest[size:]
    return found


def received(consumer: ferromq.Consumer, count: int = 32, wait: timedelta = SOON) -> list[tuple[bytes, int]]:
    """Receive; return body and attempt of each message."""
    return [(message.body, message.delivery_attempt) for message in consumer.receive(count, wait=wait)]


def test_both_protocols_share_one_order(mq: ferromq.Embedded, clock: ferromq.Clock) -> None:
    """While one holds the queue the other gets nothing; then it begins at the first remaining message."""
    send(mq, b"0", b"1", b"2", b"3")
    with Peer(mq.broker.address) as peer, mq.consumer("g", "orders", invisible_duration=LEASE) as consumer:
        first = consumer.receive(3, wait=SOON)
        assert [message.body for message in first] == [b"0", b"1", b"2"]
        consumer.ack([first[1]])
        assert pop(peer).code == NOTHING
        clock.advance(seconds=60)
        popped = pop(peer, attemptId="one")
        assert (popped.code, bodies(popped)) == (SUCCESS, [b"0", b"2", b"3"])
        assert popped.fields["orderCountInfo"] == "0 qo0%0 1;0 qo0%2 1;0 0 0"
        assert received(consumer, wait=AT_ONCE) == []
        again = pop(peer, attemptId="one")
        assert (bodies(again), again.fields["orderCountInfo"]) == (bodies(popped), popped.fields["orderCountInfo"])
        assert [ack(peer, again, offset) for offset in (3, 2, 0)] == [SUCCESS] * 3
        send(mq, b"4")
        assert received(consumer) == [(b"4", 1)]


def test_the_lock_outlives_the_broker_and_the_last_attempt_ends_in_the_dead_letters(
    mq: ferromq.Embedded, clock: ferromq.Clock, tmp_path: Path
) -> None:
    """The queue stays locked; a message that failed twice is a dead letter, and the next ones follow."""
    send(mq, b"bad", b"good")
    with mq.consumer("g", "orders", invisible_duration=LEASE) as consumer:
        assert received(consumer, 1) == [(b"bad", 1)]
    mq.close()
    with ferromq.embedded(tmp_path, clock=clock) as running:
        with running.consumer("g", "orders", invisible_duration=LEASE) as consumer:
            assert received(consumer, wait=AT_ONCE) == []
            clock.advance(seconds=60)
            assert received(consumer, 1) == [(b"bad", 2)]
            clock.advance(seconds=60)
            assert received(consumer) == [(b"good", 1)]
        with running.consumer("undertaker", "%DLQ%g") as consumer:
            assert [message.body for message in consumer.receive(wait=SOON)] == [b"bad"]
        assert running.store.committed_offset("g", "orders", 0) == 1
        assert running.broker._server.stats()["dead"] == 1
