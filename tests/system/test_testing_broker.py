"""What `ferromq.testing` shows of a broker: its messages, and the progress of groups, for clients of any kind."""

import queue
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from dispatching import dispatched
from remoting_peer import Peer

import ferromq
from ferromq.testing import Broker, Like, VirtualClock
from ferromq.testing.running import Running

SEND, GIVE_BACK, UPDATE_OFFSET = 310, 36, 15
PATIENCE = 10.0
OFFICIAL = """
import sys
from rocketmq import ClientConfiguration, Credentials, FilterExpression, Message, Producer, SimpleConsumer

config = ClientConfiguration(sys.argv[1], Credentials(), "", 10)
producer = Producer(config, ("orders",))
producer.startup()
message = Message()
message.topic, message.body, message.tag, message.keys = "orders", b"two teas", "new", "o-1"
message.add_property("customer", "anna")
producer.send(message)
producer.shutdown()
consumer = SimpleConsumer(config, "billing", {"orders": FilterExpression()}, 2)
consumer.startup()
found = []
while not found:
    found = consumer.receive(32, 15) or []
print("received", flush=True)
sys.stdin.readline()
consumer.ack(found[0])
consumer.shutdown()
"""


@pytest.fixture
def clock() -> VirtualClock:
    """Return a virtual clock."""
    return VirtualClock()


@pytest.fixture
def broker(clock: VirtualClock) -> Iterator[Broker]:
    """Yield a broker on that clock, with 1 queue for each topic."""
    with closing(Running({"default_queues": 1}, clock)) as running, Broker(running) as broker:
        yield broker


@pytest.fixture
def wide() -> Iterator[Broker]:
    """Yield a broker that other tests would share, with 8 queues for each topic."""
    with closing(Running({})) as running, Broker(running, "-1-main") as broker:
        yield broker


def send_over_remoting(peer: Peer, body: bytes, topic: str = "orders", **properties: str) -> None:
    """Send as a client of RocketMQ 4 does."""
    text = "".join(f"{name}\x01{value}\x02" for name, value in properties.items())
    fields = {"a": "makers", "b": topic, "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": "1700000000000", "h": "0"}
    assert peer.call(SEND, {**fields, "i": text, "j": "0", "k": "false", "m": "false"}, body).code == 0


def bodies(messages: list[ferromq.MessageView]) -> list[bytes]:
    """Return the bodies."""
    return [message.body for message in messages]


def test_messages_of_all_queues_come_in_the_order_of_their_sends(wide: Broker) -> None:
    """Whichever client sent them, with all that consumers see of them; reading changes nothing."""
    topic, number = wide.topic("orders"), 0
    with Peer(wide.remoting) as peer:
        for number in range(20):
            if number % 2:
                send_over_remoting(peer, b"%d" % number, topic, TAGS="new", KEYS="o-1 o-2", colour="red")
            else:
                wide.send(topic, b"%d" % number, tag="new", keys=["o-1", "o-2"], properties={"colour": "red"})
    found = wide.messages(topic)
    assert bodies(found) == [b"%d" % number for number in range(20)]
    assert len({message.queue_id for message in found}) > 1
    for message in found:
        assert (message.topic, message.tag, message.keys, message.properties) == (
            topic,
            "new",
            ("o-1", "o-2"),
            {"colour": "red"},
        )
    assert wide.embedded.store.committed_offsets() == {}
    with pytest.raises(TypeError, match="pulled, not received"):
        found[0].ack()


def test_a_long_queue_is_read_to_its_end(broker: Broker) -> None:
    """One read of the store returns only a part."""
    broker.producer().send_all("orders", [b"x" * 3_000 for _ in range(700)])
    assert len(broker.messages("orders")) == 700


def test_an_unknown_topic_has_no_messages(broker: Broker) -> None:
    """It is not created by the question."""
    assert (broker.messages("nothing"), broker.sent("nothing"), broker.dead_letters("strangers")) == ([], [], [])
    assert broker.unfinished("strangers", "nothing") == []
    with pytest.raises(ferromq.RequestError):
        broker.admin().query_by_key("nothing", "x")


def test_sent_has_what_waits_and_messages_have_not(broker: Broker, clock: VirtualClock) -> None:
    """Both in the order of sending and of storing; of both protocols, and without what was recalled."""
    producer = broker.producer()
    later = producer.send("reminders", b"later", delay=timedelta(days=3))
    producer.send("reminders", b"soon", delay=timedelta(minutes=1))
    taken_back = producer.send("reminders", b"never", delay=timedelta(days=1))
    producer.recall(taken_back)
    with Peer(broker.remoting) as peer:
        send_over_remoting(peer, b"level", "reminders", UNIQ_KEY="K1", DELAY="5")
        send_over_remoting(peer, b"seconds", "reminders", UNIQ_KEY="K2", TIMER_DELAY_SEC="120")
        send_over_remoting(peer, b"now", "reminders", UNIQ_KEY="K3")
    everything = [b"later", b"soon", b"level", b"seconds", b"now"]
    assert bodies(broker.sent("reminders")) == everything
    assert broker.sent("reminders")[0].delivery_timestamp == clock.now_ms() + 3 * 86_400_000
    assert broker.sent("reminders")[0].message_id == later.message_id
    assert {message.topic for message in broker.sent("reminders")} == {"reminders"}
    assert bodies(broker.messages("reminders")) == [b"now"]
    clock.advance(minutes=1)
    assert sorted(bodies(broker.messages("reminders"))) == [b"level", b"now", b"soon"]
    assert bodies(broker.sent("reminders")) == everything
    clock.advance(days=3)
    assert bodies(broker.messages("reminders"))[-1] == b"later"
    assert bodies(broker.sent("reminders")) == everything


def test_a_test_sees_nothing_that_waited_before_it(wide: Broker) -> None:
    """On a shared broker with equal names."""
    wide.send("reminders", b"of another test", delay=3600)
    with wide.of_test("-2-main") as later:
        later.send("reminders", b"its own", delay=3600)
        assert bodies(later.sent("reminders")) == [b"its own"]


def test_a_transaction_is_sent_once_it_is_committed(broker: Broker) -> None:
    """Before, it is no message of the topic; rolled back, it never is."""
    producer = broker.producer("payments", checker=lambda _message: None)
    with producer.transaction() as transaction:
        transaction.send("payments", b"paid")
        broker.assert_sent("payments", [])
    broker.assert_sent("payments", [b"paid"])
    transaction = producer.transaction()
    transaction.send("payments", b"not paid")
    transaction.rollback()
    broker.assert_sent("payments", [b"paid"])


def test_a_wait_ends_with_the_last_message(broker: Broker) -> None:
    """It returns all of them; without them, its error lists those that are there."""
    broker.send("orders", b"one")
    sender = threading.Timer(0.05, broker.send, ("orders", b"two"))
    sender.start()
    assert bodies(broker.wait_for_messages("orders", 2)) == [b"one", b"two"]
    sender.join()
    with pytest.raises(TimeoutError, match=r"orders has 2 of 3 messages after 0.01 s:\n.*body=b'one'") as raised:
        broker.wait_for_messages("orders", 3, timeout=0.01)
    assert "ferromq_clock.advance" in str(raised.value)


def test_a_wait_for_a_group_ends_when_it_has_finished_everything(broker: Broker) -> None:
    """Acknowledged or given up; until then its error lists the unfinished messages with their places."""
    broker.send("orders", b"one", tag="new", keys="o-1")
    broker.send("orders", b"two")
    with pytest.raises(
        TimeoutError, match=r"billing has not finished 2 of 2 messages of orders after 0.01 s:"
    ) as raised:
        broker.wait_until_consumed("billing", "orders", timeout=timedelta(milliseconds=10))
    assert "queue 0, offset 0: body=b'one' tag='new' keys=('o-1',) properties={}" in str(raised.value)
    consumer = broker.consumer("billing", "orders")
    for message in consumer.receive(2):
        if message.body == b"one":
            consumer.ack(message)
        else:
            assert bodies(broker.unfinished("billing", "orders")) == [b"two"]
            broker.assert_consumed("shipping", "nothing")
            consumer.forward_to_dead_letter(message, "bad")
    broker.wait_until_consumed("billing", "orders")
    broker.assert_consumed("billing", "orders", [b"one", b"two"])
    broker.assert_dead_letters("billing", [Like(body=b"two", properties={"DLQ_REASON": "bad"})])


def test_a_wait_with_a_count_waits_for_messages_that_are_not_sent_yet(broker: Broker) -> None:
    """Without, a topic without messages counts as consumed."""
    broker.wait_until_consumed("billing", "orders")
    with pytest.raises(
        TimeoutError, match=r"orders has 0 of 1 messages after 0.01 s; billing has finished all of them"
    ):
        broker.wait_until_consumed("billing", "orders", count=1, timeout=0.01)


@pytest.mark.parametrize("attempt", [1, 2])
def test_a_failed_handler_is_waited_for_before_the_step_to_its_retry(
    broker: Broker, clock: VirtualClock, attempt: int
) -> None:
    """The retry is due in the step, even if the handler takes its time to fail: the wait ends when the broker knows."""
    broker.group("billing", retries=3, retry_delays=[10])
    fails, attempts = threading.Event(), queue.SimpleQueue[int]()

    def handle(message: ferromq.MessageView) -> None:
        attempts.put(message.delivery_attempt)
        if message.delivery_attempt == attempt:
            fails.wait()
        if message.delivery_attempt <= attempt:
            raise ValueError("no")

    broker.send("orders", b"one", keys="o-1")
    consumer = broker.consumer("billing", "orders")
    worker = threading.Thread(target=consumer.run, args=(handle,))
    worker.start()
    for earlier in range(1, attempt):
        assert bodies(broker.wait_for_failures("billing", "orders", attempt=earlier)) == [b"one"]
        clock.advance(10)
    for _ in range(attempt):
        attempts.get(timeout=PATIENCE)
    with pytest.raises(TimeoutError, match=f"attempt {attempt} of billing failed at 0 of 1 messages of orders after"):
        broker.wait_for_failures("billing", "orders", attempt=attempt, timeout=0.01)
    threading.Timer(0.05, fails.set).start()
    assert bodies(broker.wait_for_failures("billing", "orders", attempt=attempt)) == [b"one"]
    clock.advance(timedelta(seconds=10))
    assert attempts.get(timeout=PATIENCE) == attempt + 1
    broker.wait_until_consumed("billing", "orders")
    consumer.stop()
    worker.join()


def test_messages_that_a_filter_skips_count_as_finished(broker: Broker) -> None:
    """Also behind the last one that matches."""
    broker.send("orders", b"one", tag="new")
    broker.send("orders", b"two", tag="old")
    consumer = broker.consumer("billing", "orders", filter="new")
    consumer.ack(consumer.receive(2))
    worker = threading.Thread(target=consumer.run, args=(lambda _message: None,))
    worker.start()
    broker.wait_until_consumed("billing", "orders")
    consumer.stop()
    worker.join()


def test_what_a_remoting_client_gave_back_is_unfinished(broker: Broker, clock: VirtualClock) -> None:
    """While it waits for its delay, and then in the group's retry topic, until the group's offset passes it there."""
    with Peer(broker.remoting) as peer:
        send_over_remoting(peer, b"one", UNIQ_KEY="K1")
        broker.wait_for_messages("orders")
        (record,) = broker.embedded.store.get("orders", 0, 0)[1]
        back = {"offset": str(record.physical_offset), "group": "billing", "delayLevel": "3", "originTopic": "orders"}
        assert peer.call(GIVE_BACK, back).code == 0

        def commit(topic: str, offset: int) -> None:
            fields = {"consumerGroup": "billing", "topic": topic, "queueId": "0", "commitOffset": str(offset)}
            assert peer.call(UPDATE_OFFSET, fields).code == 0

        commit("orders", 1)
        assert bodies(broker.unfinished("billing", "orders")) == [b"one"]
        assert bodies(broker.wait_for_failures("billing", "orders")) == [b"one"]
        assert broker.wait_for_failures("billing", "orders", 0, attempt=2) == []
        clock.advance(seconds=10)
        assert bodies(broker.messages("%RETRY%billing")) == [b"one"]
        assert bodies(broker.unfinished("billing", "orders")) == [b"one"]
        assert broker.unfinished("billing", "trains") == []
        commit("%RETRY%billing", 1)
        broker.wait_until_consumed("billing", "orders")


def test_an_assertion_waits_as_long_as_it_may(broker: Broker) -> None:
    """And no longer than until it holds."""
    sender = threading.Timer(0.05, broker.send, ("orders", b"one"))
    sender.start()
    broker.assert_sent("orders", [b"one"], timeout=5)
    sender.join()
    with pytest.raises(AssertionError, match="messages sent to orders: 0 expected, 1 found, 0 equal"):
        broker.assert_sent("orders", [], timeout=0.01)
    with pytest.raises(AssertionError, match="billing has not finished 1 of 1 messages"):
        broker.assert_consumed("billing", "orders", timeout=0.01)
    with pytest.raises(AssertionError, match="dead letters of billing: 1 expected, 0 found"):
        broker.assert_dead_letters("billing", [b"one"])
    consumer = broker.consumer("billing", "orders")
    consumer.ack(consumer.receive(1))
    with pytest.raises(AssertionError, match="messages of orders that billing has finished: 1 expected, 1 found"):
        broker.assert_consumed("billing", "orders", [b"two"])


def test_expectations_are_checked_before_anything_is_read(broker: Broker) -> None:
    """A wrong argument is no failed test."""
    one: Any = b"one"
    for check in (broker.assert_sent, broker.assert_dead_letters):
        with pytest.raises(TypeError, match="a list of messages is expected"):
            check("orders", one)
    with pytest.raises(TypeError, match="a list of messages is expected"):
        broker.assert_consumed("billing", "orders", one)
    with pytest.raises(ValueError, match="negative"):
        broker.wait_for_messages("orders", timeout=-1)


def test_names_are_unique_on_a_shared_broker_and_plain_on_ones_own(broker: Broker, wide: Broker) -> None:
    """The same within a test; wrong ones are refused before any use."""
    assert (wide.topic("orders"), wide.group("billing")) == ("orders-1-main", "billing-1-main")
    assert wide.topic("orders") == wide.topic("orders")
    assert (broker.topic("orders"), broker.group("billing")) == ("orders", "billing")
    with pytest.raises(ferromq.IllegalName, match="topic name 'or ders'"):
        wide.topic("or ders")
    with pytest.raises(ferromq.IllegalName, match="consumer group"):
        wide.group("")
    with pytest.raises(ferromq.IllegalName, match="128 characters, the limit is 127"):
        wide.topic("t" * 121)


@pytest.mark.parametrize("name", [None, 7, b"orders"])
def test_names_that_are_no_texts_are_refused(broker: Broker, name: Any) -> None:
    """A topic of no name would have no messages, whatever the program sends."""
    for call in (
        lambda: broker.messages(name),
        lambda: broker.sent(name),
        lambda: broker.dead_letters(name),
        lambda: broker.unfinished("billing", name),
        lambda: broker.wait_for_messages(name),
        lambda: broker.wait_for_failures(name, "orders"),
        lambda: broker.assert_consumed(name, "orders"),
    ):
        with pytest.raises(TypeError, match="the name of a topic or group is a text, not"):
            call()


def test_every_kind_of_client_is_made_and_closed(clock: VirtualClock) -> None:
    """By the broker itself, or by a connection to it."""
    with closing(Running({"default_queues": 1}, clock)) as running:
        with Broker(running) as broker:
            mq = broker.connect(timeout=5)
            with mq.producer() as producer:
                producer.send("orders", b"one")
            dispatched(broker.embedded)
            reader = broker.reader("orders", begin="first")
            assert [message.body for message in reader.messages(until="end")] == [b"one"]
            assert repr(broker) == f'<Broker endpoint="{broker.endpoint}" namesrv="{broker.namesrv}" up>'
        assert mq.closed
        assert reader.closed
    assert repr(broker) == "<Broker down>"


def test_options_of_a_topic_or_group_create_it(wide: Broker) -> None:
    """Without options the first use does."""
    ordered, plain = wide.topic("steps", queues=2, message_type="FIFO"), wide.topic("orders")
    group = wide.group("billing", retries=3, retry_delays=[1, 10])
    assert ordered in wide.admin().topics()
    assert plain not in wide.admin().topics()
    with pytest.raises(ferromq.AlreadyExists, match="queues is 2, not 3"):
        wide.admin().create_topic(ordered, 3)
    with pytest.raises(ferromq.AlreadyExists, match="retries is 3, not 4"):
        wide.admin().create_group(group, retries=4)
    with pytest.raises(ferromq.RequestError, match="FIFO"):
        wide.send(ordered, b"without a message group")


def test_clients_of_the_test_end_with_it(no_thread_left: None) -> None:
    """Those of the broker's methods, while the broker still runs."""
    with closing(Running({})) as running:
        with Broker(running) as broker:
            broker.send("orders", b"one")
            producer, consumer = broker.producer(), broker.consumer("billing", "orders")
            admin = broker.admin()
            assert broker.admin() is admin
        for call in (lambda: producer.send("orders", b"x"), consumer.receive):
            with pytest.raises(ferromq.ClientClosed):
                call()
        dispatched(running.mq)
        assert running.mq.store.queues()


def test_the_official_client_is_tested_the_same_way(broker: Broker) -> None:
    """RocketMQ's own Python client sends and acknowledges in another process."""
    pytest.importorskip("rocketmq")
    command = [sys.executable, "-c", OFFICIAL, broker.endpoint]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdin is not None
        assert client.stdout is not None
        assert any("received" in line for line in client.stdout)
        broker.assert_sent(
            "orders", [ferromq.Message(b"two teas", tag="new", keys="o-1", properties={"customer": "anna"})]
        )
        assert bodies(broker.unfinished("billing", "orders")) == [b"two teas"]
        client.stdin.write("acknowledge\n")
        client.stdin.flush()
        broker.wait_until_consumed("billing", "orders", timeout=20)
        client.stdin.close()
        client.wait(20)


def test_the_clock_of_a_broker_is_no_option_of_it() -> None:
    """A fixture gives it."""
    with pytest.raises(ferromq.ConfigError, match="ferromq_clock"):
        Running({"clock": ferromq.Clock.manual()})
    with pytest.raises(ferromq.ConfigError, match="did you mean auto_create_topics"):
        Running({"auto_create_topic": False})


def test_times_may_be_given_as_datetime(broker: Broker, clock: VirtualClock) -> None:
    """`now` of the clock has a zone, so it fits into messages and expectations."""
    due = clock.now() + timedelta(hours=1)
    assert due.tzinfo is UTC
    assert clock.now() == datetime.fromtimestamp(clock.now_ms() / 1000, UTC)
    broker.send("reminders", b"one", delivery_timestamp=due)
    broker.assert_sent("reminders", [Like(delivery_timestamp=due)])
