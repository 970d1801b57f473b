"""Compressed bodies, from our producers to RocketMQ's consumers and from its producers to ours."""

from collections.abc import Iterator

import pytest
from compat_peer import Clients

import ferromq
from ferromq.core.payloads import Compression

PATIENCE = 60
BODIES = [f"{number}-{'x' * 20_000}" for number in range(6)]


@pytest.fixture(scope="module")
def mq() -> Iterator[ferromq.Embedded]:
    """Run an embedded broker for all tests."""
    with ferromq.embedded() as embedded:
        yield embedded


@pytest.mark.parametrize("compression", ["zlib", "lz4", "zstd"])
def test_rocketmqs_consumer_reads_what_our_producer_compressed(
    mq: ferromq.Embedded, clients: Clients, compression: Compression
) -> None:
    """One by one, in the background and in batches."""
    topic = f"to_java_{compression}"
    with mq.admin() as admin:
        admin.create_topic(topic, queues=1)
        admin.create_group(topic)
    with mq.producer(compress=compression) as producer:
        assert producer.send(topic, BODIES[0].encode(), keys="k").broker_name
        producer.submit(topic, ferromq.Message(BODIES[1].encode(), tag="t", properties={"a": "b"})).result()
        producer.send_all(topic, [body.encode() for body in BODIES[2:]])
    clients.start("push", topic, mq.namesrv, topic, topic, "concurrent", 0)
    assert clients.wait_for(topic, len(BODIES), PATIENCE) == len(BODIES)
    assert sorted(message.body for message in clients.taken(topic)) == BODIES
    clients.ask("close", topic)
    with mq.consumer("sizes", topic) as consumer:
        [queue] = consumer.queues()
        stored = consumer.pull(queue, 0, max_messages=10).messages
        assert all(len(message.raw_body) < 1_000 for message in stored)
        assert [message.properties.get("a") for message in stored].count("b") == 1


@pytest.mark.parametrize("compression", ["ZLIB", "LZ4", "ZSTD"])
def test_our_consumer_reads_what_rocketmqs_producer_compressed(
    mq: ferromq.Embedded, clients: Clients, compression: str
) -> None:
    """Received and pulled."""
    topic = f"from_java_{compression}"
    with mq.admin() as admin:
        admin.create_topic(topic, queues=1)
    clients.start("producer", topic, mq.namesrv, topic, compression)
    assert clients.send(topic, "large", topic, "n", 3, 20_000) == 3
    clients.ask("close", topic)
    wanted = [f"n{number}{'x' * 20_000}".encode() for number in range(3)]
    with mq.consumer(topic, topic) as consumer:
        received = consumer.receive_many(3, wait=10)
        consumer.ack(received)
        [queue] = consumer.queues()
        pulled = consumer.pull(queue, 0, max_messages=3).messages
    for messages in (received, pulled):
        assert sorted(message.body for message in messages) == wanted
        assert all(len(message.raw_body) < 1_000 for message in messages)
