"""RocketMQ's own Python client, unmodified, works with this broker."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import ferromq
from ferromq.broker.controller import BrokerController
from ferromq.config.broker import BrokerConfig

pytest.importorskip("rocketmq")

# Each in a process of its own: the official client starts threads and event loops it does not always end.
PRELUDE = """
import sys, threading, time
from rocketmq import ClientConfiguration, ConsumeResult, Credentials, FilterExpression, Message, MessageListener
from rocketmq import Producer, PushConsumer, SimpleConsumer

endpoint, topic = sys.argv[1:]
config = ClientConfiguration(endpoint, Credentials(), "", 10)
"""

SEND = """
producer = Producer(config, (topic,))
producer.startup()
for number in range(20):
    message = Message()
    message.topic = topic
    message.body = b"body %d" % number
    message.tag = "new" if number % 2 else "old"
    message.keys = f"key-{number}"
    message.add_property("number", str(number))
    receipt = producer.send(message)
    print(receipt.message_id, flush=True)
producer.shutdown()
"""

RECEIVE = """
consumer = SimpleConsumer(config, "official-simple", {topic: FilterExpression()}, 2)
consumer.startup()
found = {}
until = time.monotonic() + 30
while len(found) < 20 and time.monotonic() < until:
    for message in consumer.receive(32, 15) or []:
        assert not message.corrupted
        found[message.message_id] = message
        consumer.ack(message)
for message in found.values():
    print(message.message_id, message.body.decode(), message.tag, *message.keys, message.properties["number"],
          message.delivery_attempt, flush=True)
consumer.shutdown()
"""

PUSH = """
found, everything = {}, threading.Event()

class Listener(MessageListener):
    def consume(self, message):
        found[message.message_id] = message.body
        if len(found) == 20:
            everything.set()
        return ConsumeResult.SUCCESS

consumer = PushConsumer(config, "official-push", Listener(), {topic: FilterExpression("*")})
consumer.startup()
everything.wait(30)
print(len(found), flush=True)
consumer.shutdown()
"""


WIDE = """
producer = Producer(config, (topic,))
producer.startup()
for number in range(16):
    message = Message()
    message.topic = topic
    message.body = b"%d" % number
    producer.send(message)
producer.shutdown()
consumer = SimpleConsumer(config, "wide-simple", {topic: FilterExpression()}, 2)
consumer.startup()
found, until = {}, time.monotonic() + 150
while len(found) < 16 and time.monotonic() < until:
    for message in consumer.receive(32, 15) or []:
        found[int(message.body)] = str(message.endpoints)
        consumer.ack(message)
print(sorted(found) == list(range(16)), len(set(found.values())), flush=True)
consumer.shutdown()
"""


@pytest.fixture
def mq() -> Iterator[ferromq.Embedded]:
    """Yield an embedded broker."""
    with ferromq.embedded() as embedded:
        yield embedded


def run(mq: ferromq.Embedded, code: str, topic: str = "official", *, seconds: float = 55) -> list[str]:
    """Run code of the official client for *seconds* at most, and return the lines it printed."""
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + code, mq.endpoint, topic],
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_it_sends_and_our_consumer_receives(mq: ferromq.Embedded) -> None:
    """Bodies, tags, keys, properties and ids arrive as they were sent."""
    ids = run(mq, SEND)
    assert len(set(ids)) == 20
    received = {}
    with mq.consumer("ours", "official") as consumer:
        while len(received) < 20 and (messages := consumer.receive(wait=5)):
            received |= {message.message_id: message for message in messages}
            consumer.ack(messages)
    for number, message_id in enumerate(ids):
        message = received[message_id]
        assert message.body == b"body %d" % number
        assert message.tag == ("new" if number % 2 else "old")
        assert message.keys == (f"key-{number}",)
        assert message.properties == {"number": str(number)}


def test_it_receives_what_our_producer_sent(mq: ferromq.Embedded) -> None:
    """Every message once, with a digest that matches and all its properties."""
    with mq.producer() as producer:
        sent = [
            producer.send("official", b"body %d" % n, tag="t", keys=f"key-{n}", properties={"number": str(n)})
            for n in range(20)
        ]
    lines = run(mq, RECEIVE)
    assert sorted(lines) == sorted(f"{r.message_id} body {n} t key-{n} {n} 1" for n, r in enumerate(sent))


def test_it_receives_what_it_sent_itself(mq: ferromq.Embedded) -> None:
    """The whole way with its producer and its simple consumer."""
    ids = run(mq, SEND)
    assert sorted(line.split()[0] for line in run(mq, RECEIVE)) == sorted(ids)


def test_its_push_consumer_is_pushed(mq: ferromq.Embedded) -> None:
    """Assignments, settings and long polls are as it expects them."""
    run(mq, SEND)
    assert run(mq, PUSH)[-1] == "20"


@pytest.mark.timeout(200)
def test_it_finds_every_broker_by_one(mq: ferromq.Embedded, tmp_path: Path) -> None:
    """
    It knows one address, and learns the others from routes: it sends to all, and receives and acknowledges there.

    It draws the broker of each receive by lot, and waits 5 s at one that has nothing.
    """
    options = {"listen": "127.0.0.1:0", "grpc_listen": "127.0.0.1:0", "commit_log_file_size": 1 << 20}
    config = BrokerConfig.from_options({"store": tmp_path, "name": "other", "namesrv": (mq.namesrv,), **options})
    other = BrokerController(config)
    try:
        with mq.admin() as admin:
            admin.create_topic("wide", queues=2)
        assert run(mq, WIDE, "wide", seconds=180) == ["True 2"]
        assert sum(other.store.max_offset("wide", queue_id) for queue_id in range(2)) == 8
    finally:
        other.close()
