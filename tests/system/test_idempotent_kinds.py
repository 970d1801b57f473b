"""An idempotent producer: each kind of message is stored once although its answer was lost; kinds arrive as sent."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import ferromq
import ferromq.aio
from ferromq.admin.settings import MessageType
from ferromq.testing import Broker, Faults

KINDS: dict[str, tuple[MessageType, dict[str, Any]]] = {
    "normal": ("NORMAL", {"keys": "k", "tag": "t", "properties": {"p": "v"}}),
    "group": ("FIFO", {"message_group": "g"}),
    "delay": ("DELAY", {"delay": timedelta(hours=1)}),
    "priority": ("PRIORITY", {"priority": 2}),
}


@pytest.fixture
def broker_options() -> dict[str, Any]:
    """Return the options of the broker: several queues, one of which a repetition goes to again."""
    return {"default_queues": 4}


@pytest.mark.parametrize("kind", KINDS)
def test_a_message_whose_answer_was_lost_is_stored_once(broker: Broker, faults: Faults, kind: str) -> None:
    """The repetition goes to the same queue, and its receipt does not know the offset."""
    message_type, options = KINDS[kind]
    topic = broker.topic("orders", message_type=message_type)
    with ferromq.Producer(broker.endpoint, idempotent=True, clock=broker.clock) as producer:
        first = producer.send(topic, b"first", **options)
        faults.lose_answer(containing=b"the second")
        second = producer.send(topic, b"the second", **options)
        third = producer.send(topic, b"third", **options)
    assert second.queue_offset == -1
    assert -1 not in {first.queue_offset, third.queue_offset}
    if kind == "delay":
        broker.clock.advance(hours=2)
    with broker.consumer(broker.group("g", fifo=kind == "group"), topic) as consumer:
        received = []
        while len(received) < 3:
            for message in consumer.receive(10, wait=timedelta(seconds=10)):
                received.append((message.message_id, message.body))
                message.ack()
        assert not consumer.receive(10, wait=timedelta(seconds=0))
    sent = [(first.message_id, b"first"), (second.message_id, b"the second"), (third.message_id, b"third")]
    assert sorted(received) == sorted(sent)


def submit_and_send_all(broker: Broker, topic: str, lose: Callable[[], None]) -> None:
    """Send with both; the answer to each is lost once."""
    with ferromq.Producer(broker.endpoint, idempotent=True, linger=timedelta(hours=1)) as producer:
        lose()
        futures = [producer.submit(topic, b"lost %d" % number) for number in range(10)]
        producer.flush()
        assert [future.result().queue_offset for future in futures] == [-1] * 10
        lose()
        receipts = producer.send_all(topic, [b"lost %d" % number for number in range(10, 20)])
        assert [receipt.queue_offset for receipt in receipts] == [-1] * 10


def awaited(broker: Broker, topic: str, lose: Callable[[], None]) -> None:
    """Do the same on an event loop."""

    async def run() -> None:
        async with ferromq.aio.Producer(broker.endpoint, idempotent=True, linger=timedelta(hours=1)) as producer:
            lose()
            futures = [await producer.submit(topic, b"lost %d" % number) for number in range(10)]
            await producer.flush()
            assert [(await future).queue_offset for future in futures] == [-1] * 10
            lose()
            receipts = await producer.send_all(topic, [b"lost %d" % number for number in range(10, 20)])
            assert [receipt.queue_offset for receipt in receipts] == [-1] * 10

    asyncio.run(run())


@pytest.mark.parametrize("program", [submit_and_send_all, awaited])
def test_a_batch_whose_answer_was_lost_is_stored_once(
    broker: Broker, faults: Faults, program: Callable[[Broker, str, Callable[[], None]], None]
) -> None:
    """As a whole, with `submit` and `send_all`."""
    topic = broker.topic("orders")
    program(broker, topic, lambda: faults.lose_answer(containing=b"lost"))
    assert sorted(message.body for message in broker.messages(topic)) == sorted(b"lost %d" % n for n in range(20))


def test_a_transaction_of_an_idempotent_producer_commits(broker: Broker) -> None:
    """Its messages have no numbers."""
    topic = broker.topic("orders", message_type="TRANSACTION")
    producer = ferromq.Producer(broker.endpoint, idempotent=True, checker=lambda _: None)
    with producer, producer.transaction() as transaction:
        transaction.send(topic, b"paid")
    assert [message.body for message in broker.messages(topic)] == [b"paid"]


def test_a_broker_that_forgets_too_soon_is_refused(tmp_path: Path) -> None:
    """The error names both options."""
    with ferromq.embedded(tmp_path, dedup_window=5.0) as mq:
        with ferromq.Producer(mq.endpoint, idempotent=True) as producer, pytest.raises(ferromq.ConfigError) as caught:
            producer.send("orders", b"1")
        assert "for 5 s (dedup_window)" in str(caught.value)
        with ferromq.Producer(mq.endpoint, idempotent=True, timeout=4) as producer:
            assert producer.send("orders", b"1").queue_offset == 0


@pytest.mark.parametrize("kind", ["sync", "aio"])
def test_a_message_with_a_number_of_its_own_fails_alone(broker: Broker, kind: str) -> None:
    """Messages that were submitted beside it are sent."""

    async def awaited() -> list[BaseException | ferromq.SendReceipt]:
        async with ferromq.aio.Producer(broker.endpoint, idempotent=True) as producer:
            futures = [await producer.submit(topic, b"x", properties=each) for each in properties]
            return await asyncio.gather(*futures, return_exceptions=True)

    topic, properties = broker.topic("orders"), [{}, {"FERROMQ_SEQUENCE": "w/0/0/0"}, {}]
    if kind == "aio":
        outcomes = asyncio.run(awaited())
    else:
        with ferromq.Producer(broker.endpoint, idempotent=True) as producer:
            futures = [producer.submit(topic, b"x", properties=each) for each in properties]
            outcomes = [future.exception() or future.result() for future in futures]
    assert [type(outcome) for outcome in outcomes] == [ferromq.SendReceipt, ValueError, ferromq.SendReceipt]
