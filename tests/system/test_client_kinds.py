"""Every kind of message with ferromq's own client: ordered, delayed, transactional, urgent, filtered, dead."""

import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from consumer_shells import Shell
from contract import EACH_WAY

import ferromq
from ferromq import Message, MessageView, Resolution
from ferromq._ferromq import RemotingClient
from ferromq.client.connection import Channels
from ferromq.protocol import java_json

SOON = timedelta(seconds=10)
AT_ONCE = timedelta()
UPDATE_GROUP = 200


@pytest.fixture
def mq() -> Iterator[ferromq.Embedded]:
    """Yield an embedded broker whose time is moved by hand."""
    with ferromq.embedded(clock=ferromq.Clock.manual()) as embedded:
        yield embedded


@pytest.fixture
def asking() -> Iterator[ferromq.Embedded]:
    """Yield one that asks as often as it takes."""
    with ferromq.embedded(clock=ferromq.Clock.manual(), transaction_check_max=100_000) as embedded:
        yield embedded


def create(mq: ferromq.Embedded, topic: str, message_type: str, queues: int = 4) -> None:
    """Create a topic of a type."""
    with mq.admin() as admin:
        admin.create_topic(topic, queues, message_type=message_type)


def create_fifo_group(mq: ferromq.Embedded, group: str, *, retries: int = 16) -> None:
    """Create a group that keeps order and tries again at once."""
    with mq.admin() as admin:
        admin.create_group(group, fifo=True, retries=retries, retry_delays=[0.01])


def received_one(consumer: ferromq.Consumer) -> MessageView:
    """Receive one message."""
    return consumer.receive(1, wait=SOON)[0]


def received(consumer: Any, count: int) -> list[MessageView]:
    """Receive so many messages."""
    messages: list[MessageView] = []
    while len(messages) < count:
        more = consumer.receive(count - len(messages), wait=SOON)
        assert more, f"only {len(messages)} of {count} messages came"
        messages += more
    return messages


@EACH_WAY
@pytest.mark.parametrize("way", ["send_all", "submit"])
def test_message_groups_keep_the_order_of_sending(mq: ferromq.Embedded, shell: Shell, way: str) -> None:
    """Also where batches of several groups are under way at once."""
    create(mq, "steps", "FIFO")
    create_fifo_group(mq, "walker")
    count = 1500
    messages = [Message(b"%d" % number, message_group=f"g{number % 3}") for number in range(count)]
    with shell.producer(mq, linger=0.001) as producer:
        if way == "send_all":
            receipts = list(producer.send_all("steps", messages))
        else:
            receipts = [future.result(30) for future in [producer.submit("steps", message) for message in messages]]
    places: dict[int, set[int]] = {}
    for number, receipt in enumerate(receipts):
        places.setdefault(number % 3, set()).add(receipt.queue_id)
    assert all(len(queues) == 1 for queues in places.values())
    for group in range(3):
        offsets = [receipt.queue_offset for receipt in receipts[group::3]]
        assert offsets == sorted(offsets)
    came: dict[str | None, list[int]] = {}

    def body(message: MessageView) -> bool:
        came.setdefault(message.message_group, []).append(int(message.body))
        consumer.ack_later(message)
        return sum(map(len, came.values())) == count

    with shell(mq, "walker", "steps") as consumer:
        consumer.iterate(body)
    assert came == {f"g{group}": list(range(group, count, 3)) for group in range(3)}


def test_the_next_of_a_message_group_comes_once_the_one_before_is_acknowledged(mq: ferromq.Embedded) -> None:
    """Iteration drops the messages behind an unacknowledged one; they are redelivered behind it."""
    create(mq, "steps", "FIFO")
    create_fifo_group(mq, "walker")
    with mq.producer() as producer:
        producer.send_all("steps", [Message(b"%d" % number, message_group="g") for number in range(3)])
    with mq.consumer("walker", "steps", invisible_duration=30) as consumer:
        came = iter(consumer)
        assert next(came).body == b"0"
        others = threading.Thread(target=lambda: mq.clock.advance(seconds=31))
        others.start()
        again = next(came)
        others.join()
        assert (again.body, again.delivery_attempt) == (b"0", 2)
        again.ack()
        assert next(came).body == b"1"


@EACH_WAY
def test_a_delayed_message_comes_when_it_is_due_and_not_before(mq: ferromq.Embedded, shell: Shell) -> None:
    """By a delay or at a time, on the broker's clock."""
    create(mq, "reminders", "DELAY")
    at = mq.clock.now_ms() + 2 * 3_600_000
    with shell.producer(mq, clock=mq.clock) as producer, shell(mq, "desk", "reminders") as consumer:
        producer.send("reminders", b"delay", delay=timedelta(hours=1))
        producer.send("reminders", b"time", delivery_timestamp=at)
        mq.clock.advance(minutes=59)
        assert consumer.receive(wait=AT_ONCE) == []
        mq.clock.advance(minutes=2)
        (message,) = received(consumer, 1)
        assert message.body == b"delay"
        consumer.ack(message)
        assert consumer.receive(wait=AT_ONCE) == []
        mq.clock.advance(hours=1)
        (message,) = received(consumer, 1)
        assert (message.body, message.delivery_timestamp) == (b"time", at)


@EACH_WAY
def test_a_recalled_message_never_comes(mq: ferromq.Embedded, shell: Shell) -> None:
    """Its receipt is the handle; a message with the same delivery time is delivered."""
    create(mq, "reminders", "DELAY")
    with shell.producer(mq, clock=mq.clock) as producer, shell(mq, "desk", "reminders") as consumer:
        recalled = producer.send("reminders", b"recalled", delay=timedelta(hours=1))
        producer.send("reminders", b"kept", delay=timedelta(hours=1))
        assert producer.recall(recalled) == recalled.message_id
        mq.clock.advance(hours=1, seconds=5)
        (message,) = received(consumer, 1)
        assert message.body == b"kept"
        consumer.ack(message)
        assert consumer.receive(wait=AT_ONCE) == []
        with pytest.raises(ValueError, match="only delayed"):
            producer.recall(producer.send("orders", b"x"))


@EACH_WAY
def test_a_transaction_is_seen_once_committed_and_never_when_rolled_back(mq: ferromq.Embedded, shell: Shell) -> None:
    """Leaving the block commits, an exception rolls back, both can be explicit."""
    create(mq, "payments", "TRANSACTION")
    with (
        shell.producer(mq, checker=lambda _: Resolution.UNKNOWN) as producer,
        shell(mq, "ledger", "payments") as consumer,
    ):
        with producer.transaction() as tx:
            tx.send("payments", b"one", keys="k", tag="paid", properties={"p": "q"})
            tx.send("payments", b"two")
            assert consumer.receive(wait=AT_ONCE) == []
        assert tx.resolution is Resolution.COMMIT
        assert repr(tx).endswith("Transaction commit>")
        with pytest.raises(ZeroDivisionError), producer.transaction() as tx:
            tx.send("payments", b"never %d" % (1 // 0 if tx.send("payments", b"never") else 0))
        assert tx.resolution is Resolution.ROLLBACK
        with producer.transaction() as tx:
            tx.send("payments", b"never either")
            tx.rollback()
        with pytest.raises(RuntimeError, match="rollback"):
            tx.send("payments", b"late")
        messages = {message.body: message for message in received(consumer, 2)}
        assert set(messages) == {b"one", b"two"}
        one = messages[b"one"]
        assert (one.keys, one.tag, one.properties) == (("k",), "paid", {"p": "q"})
        consumer.ack(messages.values())
        mq.clock.advance(minutes=5)
        assert consumer.receive(wait=AT_ONCE) == []
    with shell.producer(mq) as producer, pytest.raises(ferromq.ConfigError, match="checker"):
        producer.transaction()


@pytest.mark.parametrize("answer", [Resolution.COMMIT, Resolution.ROLLBACK])
def test_a_transaction_whose_producer_died_is_settled_by_the_checker_of_another(
    asking: ferromq.Embedded, answer: Resolution, eventually: object
) -> None:
    """The new producer has sent nothing; naming the topic is enough."""
    create(asking, "payments", "TRANSACTION")
    asked: list[tuple[bytes, str | None]] = []
    done = threading.Event()

    def checker(message: MessageView) -> Resolution:
        asked.append((message.body, message.tag))
        if len(asked) == 1:
            raise ValueError("the database is away")
        done.set()
        return answer

    with asking.producer(checker=lambda _: None) as died:
        died.transaction().send("payments", b"orphan", tag="paid")
    with asking.producer("payments", checker=checker), asking.consumer("ledger", "payments") as consumer:
        for _ in range(100):
            asking.clock.advance(seconds=31)
            if done.wait(0.1):
                break
        assert asked == [(b"orphan", "paid")] * 2
        if answer is Resolution.COMMIT:
            (message,) = received(consumer, 1)
            assert message.body == b"orphan"
            consumer.ack(message)
        asking.clock.advance(minutes=5)
        assert consumer.receive(wait=AT_ONCE) == []


@pytest.mark.parametrize("answer", [Resolution.COMMIT, Resolution.ROLLBACK])
def test_an_end_that_a_checker_has_decided_otherwise_is_an_error(
    asking: ferromq.Embedded, answer: Resolution, eventually: Callable[[Callable[[], bool]], bool]
) -> None:
    """The broker asked another producer while the transaction was open; the same decision is no error."""
    create(asking, "payments", "TRANSACTION")
    answered, transactions = threading.Event(), asking.broker._components.transactions

    def checker(_: MessageView) -> Resolution:
        answered.set()
        return answer

    def checked() -> ferromq.Transaction[bytes]:
        """Return a transaction that is open here, and ended at the broker."""
        answered.clear()
        tx = producer.transaction()
        tx.send("payments", b"x")
        # The broker asks any of the two producers, once each time; it must not give up before the other one answers.
        while not answered.wait(0.1):
            asking.clock.advance(seconds=31)
        assert eventually(lambda: transactions.counts()["transactionHalfOpen"] == "0")
        return tx

    with asking.producer("payments", checker=lambda _: None) as producer, asking.producer("payments", checker=checker):
        other, same = checked(), checked()
        end, end_same = (other.rollback, same.commit) if answer is Resolution.COMMIT else (other.commit, same.rollback)
        with pytest.raises(ferromq.RequestError, match="before: another producer of its group answered a check-back"):
            end()
        end_same()


def test_a_lost_commit_is_repeated_by_the_producer_that_decided(
    asking: ferromq.Embedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its checker is not asked; the error explains what happens."""
    create(asking, "payments", "TRANSACTION")
    never: list[bytes] = []
    with (
        asking.producer("payments", checker=lambda message: never.append(message.body)) as producer,
        asking.consumer("ledger", "payments") as consumer,
    ):
        tx = producer.transaction()
        tx.send("payments", b"decided")
        with monkeypatch.context() as patch:
            lose_answers(patch, "EndTransaction")
            with pytest.raises(ferromq.OutcomeUnknown) as caught:
                tx.commit()
        assert "is decided" in caught.value.__notes__[0]
        for _ in range(100):
            asking.clock.advance(seconds=31)
            messages = consumer.receive(wait=0.1)
            if messages:
                break
        assert [message.body for message in messages] == [b"decided"]
        assert never == []


def lose_answers(patch: pytest.MonkeyPatch, method: str) -> None:
    """Lose the requests of a method."""
    call = Channels.call

    def lost(self: Channels, endpoint: str, name: str, *request: Any) -> bytes:
        if name == method:
            raise ferromq.ConnectionFailed("the connection broke")
        return call(self, endpoint, name, *request)

    patch.setattr(Channels, "call", lost)


def test_higher_priorities_come_first(mq: ferromq.Embedded) -> None:
    """And consumers see them."""
    create(mq, "calls", "PRIORITY", 8)
    with mq.producer() as producer, mq.consumer("desk", "calls") as consumer:
        for priority in (0, 3, 1, 7):
            producer.send("calls", b"%d" % priority, priority=priority)
        with mq.consumer("early", "calls") as early:
            received(early, 4)  # now readers see them all
        first = received(consumer, 1)[0]
        assert (first.body, first.priority) == (b"7", 7)


def test_a_group_obeys_its_priority_factor(mq: ferromq.Embedded) -> None:
    """Its `priority.factor` is a percentage of receives; it counts from the next receive on."""
    create(mq, "calls", "PRIORITY", 2)
    remoting = RemotingClient()

    def factor(value: str) -> None:
        group = {"groupName": "desk", "attributes": {"+priority.factor": value}}
        assert remoting.call(mq.remoting, UPDATE_GROUP, {}, java_json.dumps(group))[0] == 0

    with mq.producer() as producer, mq.consumer("early", "calls") as early, mq.consumer("desk", "calls") as desk:
        for number in range(20):
            producer.send("calls", b"x", priority=number % 2)
        received(early, 20)  # now readers see them all

        def priorities(count: int) -> list[int | None]:
            return [received_one(desk).priority for _ in range(count)]

        factor("0")
        first = priorities(10)
        assert 0 in first, "higher ones first would be ten ones"
        factor("100")
        assert priorities(10) == [1] * (10 - first.count(1)) + [0] * (10 - first.count(0))
    remoting.close()


def test_a_condition_in_sql_chooses_by_properties(mq: ferromq.Embedded) -> None:
    """Other messages of the topic are skipped."""
    with mq.producer() as producer:
        for price in range(6):
            producer.send("offers", b"%d" % price, properties={"price": str(price), "region": "eu"})
    wanted = ferromq.Sql("price > 3 AND region IN ('eu', 'us')")
    with mq.consumer("buyer", "offers", filter=wanted) as consumer:
        assert {message.body for message in received(consumer, 2)} == {b"4", b"5"}
        assert consumer.receive(wait=AT_ONCE) == []


def test_an_invalid_condition_is_refused_with_its_position(mq: ferromq.Embedded) -> None:
    """When the consumer is made, not when messages fail to arrive."""
    with pytest.raises(ferromq.IllegalFilter, match="position 7"):
        ferromq.Sql("price >")
    with pytest.raises(TypeError, match="int"):
        mq.consumer("buyer", "offers", filter=3)


def test_a_topic_refuses_messages_of_another_kind(mq: ferromq.Embedded) -> None:
    """With RocketMQ's code."""
    create(mq, "steps", "FIFO")
    with mq.producer() as producer:
        with pytest.raises(ferromq.RequestError, match="FIFO") as caught:
            producer.send("steps", b"plain")
        assert caught.value.code == 40014


def test_a_message_can_be_given_up(mq: ferromq.Embedded) -> None:
    """It moves to the group's dead letter queue, and is never redelivered in the group."""
    with mq.producer() as producer:
        producer.send("orders", b"bad", properties={"p": "q"})
    with mq.consumer("billing", "orders") as consumer:
        (message,) = received(consumer, 1)
        consumer.forward_to_dead_letter(message)
        mq.clock.advance(minutes=5)
        assert consumer.receive(wait=AT_ONCE) == []
        consumer.ack(message)  # it returns at once: nothing is left to do
    with mq.consumer("undertaker", "%DLQ%billing") as consumer:
        (dead,) = received(consumer, 1)
        assert (dead.body, dead.properties["p"]) == (b"bad", "q")
