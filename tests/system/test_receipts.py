"""Receipts name the broker that stored the message and the place of its record, and say what was promised."""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager

import pytest
from grpc_proxy import GrpcProxy

import ferromq
import ferromq.aio
from ferromq import SendReceipt
from ferromq.testing import Broker, Faults

Sending = Callable[[ferromq.Embedded, str], list[SendReceipt]]


@pytest.fixture(scope="module")
def mq() -> Iterator[ferromq.Embedded]:
    """Start a broker with a name."""
    with ferromq.embedded(name="broker-of-receipts") as mq:
        yield mq


def sends(producer: ferromq.Producer, topic: str) -> list[SendReceipt]:
    """Send with each verb; the first send looks up the route, a later one goes through the Rust core."""
    receipts = [producer.send(topic, b"1"), producer.send(topic, b"2")]
    return [*receipts, *producer.send_all(topic, [b"3", b"4"]), producer.submit(topic, b"5").result()]


def in_process(mq: ferromq.Embedded, topic: str) -> list[SendReceipt]:
    """Send without a socket."""
    with mq.producer() as producer:
        return sends(producer, topic)


def in_frames(mq: ferromq.Embedded, topic: str) -> list[SendReceipt]:
    """Send in frames."""
    with ferromq.Producer(mq.endpoint) as producer:
        return sends(producer, topic)


def over_http2(mq: ferromq.Embedded, topic: str) -> list[SendReceipt]:
    """Send by gRPC calls: the proxy takes no frames."""
    with closing(GrpcProxy(mq.endpoint)) as proxy, ferromq.Producer(proxy.endpoint) as producer:
        return sends(producer, topic)


def over_remoting(mq: ferromq.Embedded, topic: str) -> list[SendReceipt]:
    """Send as to a broker of RocketMQ."""
    with ferromq.connect(namesrv=mq.namesrv) as remote, remote.producer() as producer:
        remote.admin().create_topic(topic)
        return sends(producer, topic)


def awaited(mq: ferromq.Embedded, topic: str) -> list[SendReceipt]:
    """Send on an event loop."""

    async def run() -> list[SendReceipt]:
        async with ferromq.aio.Producer(mq.endpoint) as producer:
            receipts = [await producer.send(topic, b"1"), await producer.send(topic, b"2")]
            receipts += await producer.send_all(topic, [b"3", b"4"])
            return [*receipts, await (await producer.submit(topic, b"5"))]

    return asyncio.run(run())


OVER_GRPC = [in_process, in_frames, over_http2, awaited]
ALL = [*OVER_GRPC, over_remoting]


def second_ids(mq: ferromq.Embedded, receipts: Iterable[SendReceipt]) -> list[str]:
    """Return the second ids of the records that the receipts name."""
    places = [(each.topic, each.queue_id, each.queue_offset) for each in receipts]
    for topic, queue_id, offset in places:
        # A stored message is dispatched to its queue a moment later.
        while mq.store.max_offset(topic, queue_id) <= offset:
            time.sleep(0.001)
    return [mq.store.get(*place, 1)[1][0].offset_message_id for place in places]


@contextmanager
def flushing(mq: ferromq.Embedded, policy: str) -> Iterator[None]:
    """Give a broker another flush policy for a while."""
    mq.configure(flush=policy)
    try:
        yield
    finally:
        mq.configure(flush="interval")


@pytest.mark.parametrize("sending", ALL)
def test_each_receipt_names_the_broker_and_the_record(mq: ferromq.Embedded, sending: Sending) -> None:
    """The second id is the one of the record, by which mqadmin finds it."""
    receipts = sending(mq, sending.__name__)
    assert [receipt.broker_name for receipt in receipts] == ["broker-of-receipts"] * 5
    assert [receipt.offset_message_id for receipt in receipts] == second_ids(mq, receipts)


@pytest.mark.parametrize("sending", OVER_GRPC)
def test_durability_is_what_the_flush_policy_promises(mq: ferromq.Embedded, sending: Sending) -> None:
    """Also after a change while the broker runs."""
    for policy, promised in (
        ("interval", "written"),
        ("group", "flushed"),
        ("each", "flushed"),
        ("every 1", "written"),
    ):
        with flushing(mq, policy):
            assert {receipt.durability for receipt in sending(mq, "promised")} == {promised}, policy


def test_an_answer_over_remoting_promises_no_flush(mq: ferromq.Embedded) -> None:
    """It is the same under all policies."""
    with flushing(mq, "group"):
        assert {receipt.durability for receipt in over_remoting(mq, "promised")} == {"written"}


def test_a_recognized_repetition_has_no_second_id(broker: Broker, faults: Faults) -> None:
    """The broker does not look up where the message is; what it promises of it is the same."""
    producer = broker.producer(idempotent=True)
    first = producer.send("orders", b"one")
    faults.lose_answer(containing=b"two")
    repeated = producer.send("orders", b"two")
    assert (first.offset_message_id, repeated.queue_offset) == (second_ids(broker.embedded, [first])[0], -1)
    assert (repeated.offset_message_id, repeated.durability) == (None, "written")


def test_waiting_messages_and_half_messages_have_the_ids_of_their_records(mq: ferromq.Embedded) -> None:
    """They are found by these ids while they wait."""
    with mq.producer(checker=lambda _message: None) as producer:
        delayed = producer.send("later", b"1", delay=3600)
        with producer.transaction() as transaction:
            half = transaction.send("payments", b"2")
    for receipt, body in ((delayed, b"1"), (half, b"2")):
        assert receipt.offset_message_id is not None
        record = mq.store.message_at(int(receipt.offset_message_id[-16:], 16))
        assert record is not None
        assert (record.body, record.offset_message_id) == (body, receipt.offset_message_id)
