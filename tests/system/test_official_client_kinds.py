"""RocketMQ's own Python client, unmodified, with every kind of message and of consumer."""

from collections.abc import Iterator
from datetime import timedelta

import pytest
from test_official_client import run

import ferromq
from ferromq.broker.metadata.groups import GroupConfig
from ferromq.broker.metadata.topics import TopicConfig

pytest.importorskip("rocketmq")

SETUP = """
import collections
from rocketmq import Transaction, TransactionChecker, TransactionResolution
FIFO, DELAY, TRANSACTION, PRIORITY = (topic + kind for kind in ("-fifo", "-delay", "-transaction", "-priority"))

def message(topic, body, **more):
    made = Message()
    made.topic = topic
    made.body = body if isinstance(body, bytes) else body.encode()
    for name, value in more.items():
        setattr(made, name, value)
    return made

def receive(group, topic, count, expression=FilterExpression(), patience=40):
    consumer = SimpleConsumer(config, group, {topic: expression}, 2)
    consumer.startup()
    found, until = {}, time.monotonic() + patience
    while len(found) < count and time.monotonic() < until:
        for message in consumer.receive(32, 60) or []:
            assert not message.corrupted
            found[message.message_id] = message
            consumer.ack(message)
    consumer.shutdown()
    return list(found.values())
"""

FIFO = """
producer = Producer(config, (FIFO,))
producer.startup()
for number in range(30):
    producer.send(message(FIFO, str(number), message_group="g%d" % (number % 3)))
producer.shutdown()
groups = collections.defaultdict(list)
for each in receive("fifo-simple", FIFO, 30):
    groups[each.message_group].append(int(each.body))
print(*(groups[name] == list(range(number, 30, 3)) for number, name in enumerate(sorted(groups))), flush=True)
"""

DELAYED = """
producer = Producer(config, (DELAY,))
producer.startup()
due = int(time.time()) + 4
producer.send(message(DELAY, "late", delivery_timestamp=due))
taken_back = producer.send(message(DELAY, "never", delivery_timestamp=due))
producer.recall_message(DELAY, taken_back.recall_handle)
last = producer.send(message(DELAY, "last", delivery_timestamp=due + 1))
found = receive("delay-simple", DELAY, 2)
print(sorted(each.body.decode() for each in found), time.time() >= due, flush=True)
producer.shutdown()
"""

TRANSACTIONS = """
asked, committed = [], threading.Event()

class Checker(TransactionChecker):
    def check(self, message):
        asked.append(message.body.decode())
        return TransactionResolution.COMMIT if message.body == b"checked" else TransactionResolution.ROLLBACK

producer = Producer(config, (TRANSACTION,), checker=Checker())
producer.startup()
for body, end in (("committed", "commit"), ("rolled back", "rollback"), ("checked", None), ("forgotten", None)):
    transaction = producer.begin_transaction()
    producer.send(message(TRANSACTION, body), transaction)
    if end:
        getattr(transaction, end)()
found = receive("transaction-simple", TRANSACTION, 2)
until = time.monotonic() + 30
while "forgotten" not in asked and time.monotonic() < until:
    time.sleep(0.05)
print(sorted(each.body.decode() for each in found), sorted(set(asked)), flush=True)
producer.shutdown()
"""

PRIORITIES = """
producer = Producer(config, (PRIORITY,))
producer.startup()
for priority in (0, 1, 2):
    producer.send(message(PRIORITY, str(priority), priority=priority))
producer.shutdown()
print(*(sorted(int(each.body) == each.priority for each in receive("priority-simple", PRIORITY, 3))), flush=True)
"""

WRONG_KIND = """
from rocketmq.v5.exception import ClientException
producer = Producer(config, (FIFO,))
producer.startup()
try:
    producer.send(message(FIFO, "normal"))
except Exception as error:
    print("refused", flush=True)
producer.shutdown()
"""

LARGE = """
producer = Producer(config, (topic,))
producer.startup()
body = bytes(range(256)) * (4 << 12)
producer.send(message(topic, body))
for each in receive("large", topic, 1):
    print(len(each.body), each.body == body, flush=True)
try:
    producer.send(message(topic, body + b"!"))
except Exception as error:
    print("4194304" in str(error), flush=True)
producer.shutdown()
"""

SQL = """
producer = Producer(config, (topic,))
producer.startup()
for price in range(10):
    made = message(topic, str(price), tag="even" if price % 2 == 0 else "odd")
    made.add_property("price", str(price))
    producer.send(made)
from rocketmq.grpc_protocol import FilterType
sql = FilterExpression("price > 5 AND TAGS = 'even'", FilterType.SQL)
print(sorted(int(each.body) for each in receive("sql", topic, 2, sql)), flush=True)
print(sorted(int(each.body) for each in receive("tags", topic, 5, FilterExpression("odd || none"))), flush=True)
producer.shutdown()
"""

PUSH_FIFO = """
producer = Producer(config, (FIFO,))
producer.startup()
seen, lock, everything = collections.defaultdict(list), threading.Lock(), threading.Event()

class Listener(MessageListener):
    def consume(self, message):
        with lock:
            seen[message.message_group].append((message.body.decode(), message.delivery_attempt))
            count = sum(map(len, seen.values()))
        failed = message.body == b"g0-1" and len(seen["g0"]) == 2
        if count >= 13:
            everything.set()
        return ConsumeResult.FAILURE if failed else ConsumeResult.SUCCESS

for number in range(6):
    for group in ("g0", "g1"):
        producer.send(message(FIFO, f"{group}-{number}", message_group=group))
consumer = PushConsumer(config, "fifo-push", Listener(), {FIFO: FilterExpression()})
consumer.startup()
everything.wait(40)
for group in ("g0", "g1"):
    print(group, *(body for body, _ in seen[group]), flush=True)
consumer.shutdown()
producer.shutdown()
"""

PUSH_DEAD = """
producer = Producer(config, (topic,))
producer.startup()
attempts, tried = [], threading.Event()

class Listener(MessageListener):
    def consume(self, message):
        attempts.append(message.delivery_attempt)
        if len(attempts) == 3:
            tried.set()
        return ConsumeResult.FAILURE

sent = producer.send(message(topic, "deadly"))
consumer = PushConsumer(config, "dying", Listener(), {topic: FilterExpression()})
consumer.startup()
tried.wait(40)
dead = receive("undertaker", "%DLQ%dying", 1)
print(attempts, *(each.body.decode() for each in dead), flush=True)
consumer.shutdown()
producer.shutdown()
"""


@pytest.fixture
def mq() -> Iterator[ferromq.Embedded]:
    """Yield an embedded broker with a topic of each kind, and groups that consume in order or give up soon."""
    options = {"transaction_timeout": timedelta(seconds=2), "transaction_check_interval": timedelta(seconds=1)}
    with ferromq.embedded(**options) as embedded:
        for kind in ("FIFO", "DELAY", "TRANSACTION", "PRIORITY"):
            config = TopicConfig(f"official-{kind.lower()}", 4, 4)
            embedded.broker.topics.put(config, {"message.type": kind}, "test")
        policy = {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1_000]}}
        for name, retries in (("fifo-simple", 16), ("fifo-push", 16), ("dying", 2)):
            group = {"groupName": name, "retryMaxTimes": retries, "groupRetryPolicy": policy}
            ordered = {"consumeMessageOrderly": name.startswith("fifo")}
            embedded.broker.groups.put(GroupConfig.from_request({**group, **ordered}), {}, "test")
        yield embedded


def test_messages_of_a_group_come_in_order(mq: ferromq.Embedded) -> None:
    """Sent by message groups, received by a simple consumer of a group that consumes in order."""
    assert run(mq, SETUP + FIFO) == ["True True True"]


def test_a_push_consumer_keeps_the_order_of_message_groups(mq: ferromq.Embedded) -> None:
    """A message that failed comes again before the next of its group; other groups go on."""
    g0, g1 = run(mq, SETUP + PUSH_FIFO)
    assert g0.split() == ["g0", "g0-0", "g0-1", *(f"g0-{number}" for number in range(1, 6))]
    assert g1.split() == ["g1", *(f"g1-{number}" for number in range(6))]


def test_delayed_messages_come_at_their_time_unless_recalled(mq: ferromq.Embedded) -> None:
    """Not before, and the recalled one never: the one after it has come."""
    assert run(mq, SETUP + DELAYED) == ["['last', 'late'] True"]


def test_transactions_end_as_decided_or_as_their_producer_answers(mq: ferromq.Embedded) -> None:
    """Committed or rolled back ones are not checked; forgotten ones are."""
    lines = run(mq, SETUP + TRANSACTIONS)
    assert lines == ["['checked', 'committed'] ['checked', 'forgotten']"]


def test_messages_have_their_priority(mq: ferromq.Embedded) -> None:
    """As they were sent."""
    assert run(mq, SETUP + PRIORITIES) == ["True True True"]


def test_a_topic_refuses_another_kind(mq: ferromq.Embedded) -> None:
    """The client itself refuses: the route has the topic's kinds."""
    assert run(mq, SETUP + WRONG_KIND) == ["refused"]


def test_the_largest_body_passes_both_ways(mq: ferromq.Embedded) -> None:
    """Four mebibytes, and not a byte more, as the settings say."""
    assert run(mq, SETUP + LARGE) == ["4194304 True", "True"]


def test_filters_choose_messages(mq: ferromq.Embedded) -> None:
    """By SQL over properties and tag, and by tags."""
    assert run(mq, SETUP + SQL) == ["[6, 8]", "[1, 3, 5, 7, 9]"]


def test_what_always_fails_becomes_a_dead_letter(mq: ferromq.Embedded) -> None:
    """After as many attempts as the group allows, with its delays; a consumer of dead letters finds it."""
    assert run(mq, SETUP + PUSH_DEAD) == ["[1, 2, 3] deadly"]
