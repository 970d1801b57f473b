"""RocketMQ's `DefaultMQProducer` against an embedded broker: an accepted message is stored once, as sent."""

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from threading import Event

import pytest
from compat_peer import Clients
from mqadmin_script import own

import ferromq
from ferromq._ferromq import RemotingClient, StoredMessage
from ferromq.admin import MessageTrace

COUNT = 200
PATIENCE, PAUSE = 30.0, 0.05


@pytest.fixture(scope="module")
def mq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ferromq.Embedded]:
    """Run an embedded broker."""
    with ferromq.embedded(tmp_path_factory.mktemp("broker")) as embedded:
        yield embedded


@pytest.fixture(scope="module")
def producer(clients: Clients, mq: ferromq.Embedded) -> str:
    """Start a Java producer and return its name."""
    clients.start("producer", "producer", mq.namesrv, "PG")
    return "producer"


def stored(mq: ferromq.Embedded, topic: str) -> list[StoredMessage]:
    """Return the messages of a topic, queue by queue."""
    known = mq.broker.topics.find(topic)
    found: list[StoredMessage] = []
    for queue in range(known.read_queues if known else 0):
        offset = mq.store.min_offset(topic, queue)
        while True:
            status, messages, offset = mq.store.get(topic, queue, offset)
            found += messages
            if status != "FOUND":
                break
    return found


def all_of(mq: ferromq.Embedded, topic: str, count: int) -> list[StoredMessage]:
    """Wait until a topic has *count* messages and return them; readers are a moment behind the receipt."""
    pause = Event()
    for _ in range(int(PATIENCE / PAUSE)):
        if len(stored(mq, topic)) >= count:
            break
        pause.wait(PAUSE)
    return stored(mq, topic)


@pytest.mark.parametrize("how", ["sync", "async", "oneway", "batch", "selector"])
def test_every_message_taken_is_stored_once_as_it_was_sent(
    mq: ferromq.Embedded, clients: Clients, producer: str, how: str
) -> None:
    """Bodies, keys and tags of all messages arrive, each one once, in a topic made on first use."""
    topic = f"from-java-{how}"
    size = 4 if how == "selector" else 32
    if how in {"oneway", "batch"}:
        # A one-way producer gets no notice that the topic is being made.
        assert clients.send(producer, "sync", topic, "first-", 1, 0) == 1
        first = 1
    else:
        first = 0
    assert clients.send(producer, how, topic, "m-", COUNT, size) == COUNT
    messages = [each for each in all_of(mq, topic, COUNT + first) if not each.body.startswith(b"first-")]
    assert Counter(each.body for each in messages) == Counter(f"m-{number}".encode() for number in range(COUNT))
    for each in messages:
        number = int(each.body.removeprefix(b"m-"))
        assert (each.keys, each.tag) == ((f"m-{number}",), "odd" if number % 2 else "even")
        assert each.born_host.startswith("127.0.0.1:")
        if how == "selector":
            assert each.queue_id == number % size
    ids = {each.message_id for each in messages}
    assert len(ids) == COUNT
    if how == "batch":
        last = messages[-1]
        assert "MSG_REGION" not in last.properties
    else:
        assert {each.properties["CLUSTER"] for each in messages} == {mq.broker.config.cluster}


def test_messages_of_one_queue_keep_the_order_they_were_sent_in(
    mq: ferromq.Embedded, clients: Clients, producer: str
) -> None:
    """A selector sends message i to queue i modulo 4; each queue has them in order."""
    topic = "in-order-from-java"
    assert clients.send(producer, "selector", topic, "m-", COUNT, 4) == COUNT
    by_queue: dict[int, list[int]] = {}
    for each in all_of(mq, topic, COUNT):
        by_queue.setdefault(each.queue_id, []).append(int(each.body.removeprefix(b"m-")))
    assert by_queue == {queue: list(range(queue, COUNT, 4)) for queue in range(4)}


def test_a_delayed_message_is_stored_with_its_level_and_comes_when_it_is_over(
    mq: ferromq.Embedded, clients: Clients, producer: str
) -> None:
    """Level 1 is a second; the message arrives in its topic, later than it was stored to wait."""
    topic = "delayed-from-java"
    assert clients.send(producer, "sync", topic, "first-", 1, 0) == 1
    assert clients.send(producer, "delayed", topic, "m-", 5, 1) == 5
    arrived = [each for each in all_of(mq, topic, 6) if each.body.startswith(b"m-")]
    assert len(arrived) == 5
    # By one clock: Java's may be a little ahead of the broker's.
    stored = {each.body: each.store_timestamp for each in mq.store.get("SCHEDULE_TOPIC_XXXX", 0, 0)[1]}
    for each in arrived:
        assert each.store_timestamp - stored[each.body] >= 1_000
        assert each.properties["DELAY"] == "1"


def test_rocketmq_reads_from_a_key_of_the_brokers_when_the_message_was_sent(
    mq: ferromq.Embedded, clients: Clients
) -> None:
    """By the clock and in the zone of this machine."""
    client, topic = RemotingClient(), "keyless"
    sent = {"a": "PG", "b": topic, "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": "1700000000000", "h": "0"}
    code, remark, _, _ = client.call(mq.remoting, 310, {**sent, "i": "", "j": "0", "k": "false", "m": "false"}, b"m-0")
    assert code == 0, remark
    (message,) = all_of(mq, topic, 1)
    key = message.properties["UNIQ_KEY"]
    # The key is made just before the message is stored.
    read, stored = int(clients.ask("time", key)), message.store_timestamp
    assert stored - 60_000 <= read <= stored
    printed = clients.admin("queryMsgByUniqueKey", "-t", topic, "-i", key, "-n", mq.namesrv)
    assert f"UNIQ_KEY={key}" in printed, printed


def test_the_trace_of_a_message_is_kept_and_found_by_mqadmin(mq: ferromq.Embedded, clients: Clients) -> None:
    """Without an option of the broker's: the topic of traces is made for the first client that writes one."""
    clients.start("traced", "traced", mq.namesrv, "traced-producers")
    assert clients.send("traced", "sync", "traced-from-java", "m-", 1, 0) == 1
    (message,) = all_of(mq, "traced-from-java", 1)
    # Before the client ends: it sends its traces later, and its end drops unsent ones.
    ours = traced(mq, message.message_id, sends=1)
    clients.ask("close", "traced")
    unique = message.properties["UNIQ_KEY"]
    assert any(unique in trace.keys for trace in stored(mq, "RMQ_SYS_TRACE_TOPIC"))
    printed = clients.admin(*(words := ("queryMsgTraceById", "-i", unique, "-n", mq.namesrv)))
    assert shown(own(*words)) == shown(printed)
    assert "traced-producers" in printed, printed
    assert "success" in printed
    made = mq.broker.topics.find("RMQ_SYS_TRACE_TOPIC")
    assert made is not None
    assert (made.read_queues, made.write_queues) == (4, 4)
    (send,) = ours.sends
    assert f"{send.latency}ms" in printed
    assert (send.group, send.is_success, send.topic) == ("traced-producers", True, "traced-from-java")
    assert (send.client in printed, send.broker, send.body_size) == (True, mq.remoting, 3)


def shown(printed: str) -> list[str]:
    """Return the lines about traces, as they are."""
    return [line.rstrip() for line in printed.splitlines() if line.startswith(("#", "Pub", "Sub"))]


def traced(mq: ferromq.Embedded, message_id: str, **counts: int) -> MessageTrace:
    """Wait until a trace has so many of its parts, and return it."""
    pause = Event()
    with mq.admin() as admin:
        for _ in range(int(PATIENCE / PAUSE)):
            with suppress(ferromq.TopicNotFound):
                found = admin.trace(message_id)
                if all(len(getattr(found, name)) >= count for name, count in counts.items()):
                    assert (found.unreadable, found.is_complete, found.message_id) == (0, True, message_id)
                    return found
            pause.wait(PAUSE)
    raise AssertionError(f"{message_id} was not traced")


def test_a_trace_tells_each_consumption_and_the_end_of_a_transaction(mq: ferromq.Embedded, clients: Clients) -> None:
    """A committed message is half, committed, failed by its consumer once, and delivered again."""
    topic = "traced-transactions"
    clients.start("traced-transactions", "half-traced", mq.namesrv, "traced-halves")
    clients.start("push", "traced-taker", mq.namesrv, "traced-takers", topic, "traced", "1")
    assert clients.ask("transact", "half-traced", topic, "m-", "1") == "1"
    assert clients.ask("await", "traced-taker", "1", "30") == "1"
    (message,) = all_of(mq, topic, 1)
    found = traced(mq, message.message_id, sends=1, transaction_ends=1, consumptions=2)
    clients.ask("close", "half-traced")
    clients.ask("close", "traced-taker")
    words = ("queryMsgTraceById", "-i", message.message_id, "-n", mq.namesrv)
    lines = shown(own(*words))
    assert lines == shown(clients.admin(*words))
    assert [line.split()[0] for line in lines] == ["#Type", "Pub", "#Type", "Sub", "Sub"]
    (send,), (end,) = found.sends, found.transaction_ends
    assert (send.kind, send.topic, send.group) == ("transaction", topic, "traced-halves")
    assert (end.state, end.is_checked, end.group) == ("commit", False, "traced-halves")
    first, second = found.consumptions
    assert (first.result, first.deliveries_before, first.group) == ("failed", 0, "traced-takers")
    assert (second.result, second.deliveries_before, second.group) == ("success", 1, "traced-takers")
    assert send.began <= end.at
    assert first.client == second.client == send.client
