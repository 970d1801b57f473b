"""Compressed bodies arrive as they were sent, whatever way a message goes."""

import asyncio

import pytest

import ferromq
from ferromq import aio
from ferromq.core.payloads import Compression
from ferromq.telemetry import Operation, Telemetry

TEXT = b"the same again, " * 1_000
COMPRESSIONS = ["zlib", "lz4", "zstd"]


class Marking(Telemetry):
    """Adds a property to each message."""

    def begin(self, operation: Operation) -> None:
        """Add it."""
        operation.properties["marked"] = "yes"


def received(mq: ferromq.Embedded, count: int) -> list[ferromq.MessageView]:
    """Receive and acknowledge so many messages."""
    with mq.consumer("readers", "texts") as consumer:
        messages = consumer.receive_many(count, wait=10)
        consumer.ack(messages)
        return messages


def check(messages: list[ferromq.MessageView], count: int) -> None:
    """Check that all are the text, compressed on their way."""
    assert [message.body for message in messages] == [TEXT] * count
    assert all(len(message.raw_body) < len(TEXT) / 10 for message in messages)


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("way", ["embedded", "network", "idempotent"])
def test_each_kind_of_send_compresses(way: str, compression: Compression) -> None:
    """Plans, the core, batches and numbered messages encode in places of their own."""
    with ferromq.embedded() as mq:
        connection = mq if way == "embedded" else ferromq.connect(mq.endpoint)
        is_idempotent = way == "idempotent"
        with connection.producer(compress=compression, idempotent=is_idempotent) as producer:
            for _ in range(3):  # by a plan, then by the core
                producer.send("texts", TEXT)
            producer.submit("texts", TEXT, tag="t").result()
            producer.send_all("texts", [TEXT, ferromq.Message(TEXT, keys="k")])
        check(received(mq, 6), 6)


def test_a_transaction_and_a_delayed_message_are_compressed() -> None:
    """The broker stores both in topics of its own first."""
    with ferromq.embedded() as mq:
        with mq.producer("texts", compress="zlib", checker=lambda _: None) as producer, producer.transaction() as tx:
            tx.send("texts", TEXT)
        with mq.producer(compress="zlib") as producer:
            producer.send("later", TEXT, delay=0.1)
        check(received(mq, 1), 1)
        with mq.consumer("readers", "later") as consumer:
            check(consumer.receive(wait=10), 1)


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_asyncio_compresses(compression: Compression) -> None:
    """Its sends are other code."""

    async def send(endpoint: str) -> None:
        async with aio.Producer(endpoint, compress=compression) as producer:
            for _ in range(3):
                await producer.send("texts", TEXT)
            await (await producer.submit("texts", TEXT))
            await producer.send_all("texts", [TEXT, TEXT])

    with ferromq.embedded() as mq:
        asyncio.run(send(mq.endpoint))
        check(received(mq, 6), 6)


def test_tables_have_the_bodies_that_were_sent() -> None:
    """Columns are decoded without messages."""
    with ferromq.embedded() as mq:
        with mq.producer(compress="zstd") as producer:
            producer.send_all("texts", [TEXT] * 3)
        with mq.consumer("readers", "texts") as consumer:
            table = consumer.receive_arrow(3, wait=10)
            assert table.table.column("body").to_pylist() == [TEXT] * 3


def test_properties_that_are_added_later_keep_the_mark_of_the_compression() -> None:
    """Without it the consumer would get compressed bytes."""
    with ferromq.embedded() as mq:
        with mq.producer(compress="lz4", telemetry=Marking()) as producer:
            producer.send("texts", TEXT)
            producer.send_all("texts", [TEXT])
        messages = received(mq, 2)
        check(messages, 2)
        assert all(message.properties["marked"] == "yes" for message in messages)
