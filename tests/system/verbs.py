"""
The verbs of clients against any server, as tests of one class.

`NamesrvVerbs` adds what clients of name servers have. Files of this folder run them against ferromq, files of
tests/compat against Apache RocketMQ. Each test uses names of its own, so all share the servers of a module.
"""

import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, ClassVar, NamedTuple

import blocking
import pytest
from remoting_peer import Peer

import ferromq
from ferromq import Message, MessageView, SendReceipt

PATIENCE = 30.0
SYNC = "sync"
"""Tests that wait for brokers run once."""
SEND = 310
TEXT = b"hello" * 20


class Cluster(NamedTuple):
    """Servers, and what tests need to know of them."""

    namesrv: str
    broker: str
    broker_name: str
    endpoint: str | None = None
    """Where clients connect; by default they find the broker by the name server."""


@contextmanager
def connected(kind: str, cluster: Cluster, **options: Any) -> Iterator[Any]:
    """Yield a connection of one of both kinds, whose calls block."""
    options |= {"timeout": PATIENCE}
    options |= {"endpoint": cluster.endpoint} if cluster.endpoint else {"namesrv": cluster.namesrv}
    with (ferromq.connect if kind == SYNC else blocking.connected)(**options) as mq:
        yield mq


def receive(consumer: Any, count: int, **options: Any) -> list[MessageView]:
    """Receive so many messages."""
    found: list[MessageView] = []
    give_up = time.monotonic() + PATIENCE
    while len(found) < count:
        found += consumer.receive(count - len(found), wait=5, **options)
        assert time.monotonic() < give_up, f"only {len(found)} of {count} messages came"
    return found


def awaited(condition: Callable[[], bool]) -> bool:
    """Wait for an effect in another process."""
    pause = threading.Event()
    return any(condition() or pause.wait(0.05) for _ in range(int(PATIENCE / 0.05)))


class Verbs:
    """The tests; a file has a fixture `cluster`, and a subclass of this class."""

    BEGIN: ClassVar[dict[str, Any]] = {"begin": "first"}
    """The options of consumers that begin with the first message."""
    DURABILITY: str | None = "written"
    """What receipts tell of messages that are written."""
    LEAST_WAIT = 0.0
    """Seconds that a receive waits at least."""
    REFUSED: tuple[str, str] = (r"unknown_topic.*create", "property DELAY is reserved")
    """The errors of a topic that does not exist, and of a property that is the system's."""

    @pytest.fixture(params=["sync", "aio"])
    def kind(self, request: pytest.FixtureRequest) -> str:
        """Run a test with both interfaces."""
        return str(request.param)

    @pytest.fixture
    def names(self, cluster: Cluster, request: pytest.FixtureRequest) -> Callable[..., tuple[str, str]]:
        """Return a function that creates a topic and a group of the test."""
        name = request.node.name.replace("[", "_").replace("]", "").replace("-", "_").removeprefix("test_")

        def create(message_type: Any = "NORMAL", queues: int = 2, **group: Any) -> tuple[str, str]:
            with ferromq.Admin(cluster.namesrv, timeout=PATIENCE) as admin:
                admin.create_topic(name, queues, message_type=message_type)
                admin.create_group(f"g_{name}", **group)
            return name, f"g_{name}"

        return create

    @contextmanager
    def clients(self, kind: str, cluster: Cluster, group: str, topic: str) -> Iterator[tuple[Any, Any]]:
        """Yield a producer, and a consumer that begins with the first message."""
        with (
            connected(kind, cluster) as mq,
            mq.producer() as producer,
            mq.consumer(group, topic, **self.BEGIN) as consumer,
        ):
            yield producer, consumer

    def place(self, stored: MessageView | SendReceipt) -> tuple[Any, int]:
        """Return where a message is, as receipts name it."""
        return stored.queue_id, stored.queue_offset

    def _brings_nothing(self, consumer: Any, seconds: float) -> None:
        assert not consumer.receive(wait=max(seconds, self.LEAST_WAIT))

    def test_a_message_arrives_as_it_was_sent(self, cluster: Cluster, kind: str, names: Any) -> None:
        """With all that a message has; once it is acknowledged it does not come again."""
        topic, group = names()
        with (
            connected(kind, cluster) as mq,
            mq.consumer(group, topic, **self.BEGIN) as consumer,
            mq.producer() as producer,
        ):
            receipt = producer.send(
                topic, b"body", tag="red", keys=["k1", "k2"], properties={"price": "3", "name": "Zoë"}
            )
            (message,) = receive(consumer, 1)
            assert (message.body, message.tag, message.keys) == (b"body", "red", ("k1", "k2"))
            assert message.properties == {"price": "3", "name": "Zoë"}
            assert (message.message_id, message.topic) == (receipt.message_id, topic)
            assert self.place(message) == self.place(receipt)
            assert (message.delivery_attempt, receipt.broker_name) == (1, cluster.broker_name)
            assert receipt.durability == self.DURABILITY
            assert message.born_host
            assert abs(message.born_timestamp - message.store_timestamp) < 60_000
            consumer.change_invisible_duration(message, 2)
            consumer.ack(message)
            self._brings_nothing(consumer, 2.5)
            with ferromq.Admin(cluster.namesrv) as admin:
                assert [each.message_id for each in admin.query_by_key(topic, "k2")] == [receipt.message_id]

    def test_batches_keep_their_messages(self, cluster: Cluster, kind: str, names: Any) -> None:
        """Those of `send_all`, and single messages under way at once; receipts name the places."""
        topic, group = names()
        with self.clients(kind, cluster, group, topic) as (producer, consumer):
            summary = producer.send_all(topic, [Message(b"%d" % number, tag=f"t{number}") for number in range(300)])
            big = producer.send_all(topic, [b"x" * 3_000_000, b"y" * 3_000_000])
            places = {self.place(receipt) for receipt in [*summary, *big]}
            messages = []
            while len(messages) < 302:
                some = receive(consumer, 1)
                consumer.ack(some)
                messages += some
            assert {self.place(message) for message in messages} == places
            if self.DURABILITY is not None:
                assert len({receipt.offset_message_id for receipt in [*summary, *big]} - {None}) == 302
            small = {message.message_id: (message.body, message.tag) for message in messages if len(message.body) < 4}
            assert [small[receipt.message_id] for receipt in summary] == [(b"%d" % n, f"t{n}") for n in range(300)]

    def test_message_groups_keep_their_order(self, cluster: Cluster, names: Any) -> None:
        """In one queue; the next comes when the one before is acknowledged, and a late one comes again first."""
        topic, group = names("FIFO", 4, fifo=True)
        with self.clients(SYNC, cluster, group, topic) as (producer, consumer):
            receipts = [producer.send(topic, b"%d" % number, message_group="walk") for number in range(4)]
            receipts += producer.send_all(topic, [Message(b"%d" % n, message_group="walk") for n in range(4, 6)])
            futures = [producer.submit(topic, b"%d" % number, message_group="walk") for number in (6, 7)]
            receipts += [future.result(PATIENCE) for future in futures]
            assert len({receipt.queue_id for receipt in receipts}) == 1
            came: list[tuple[bytes, int]] = []
            while len(came) < 9:
                (message,) = receive(consumer, 1)
                came.append((message.body, message.delivery_attempt))
                if len(came) == 2:
                    consumer.change_invisible_duration(message, 3)
                else:
                    consumer.ack(message)
            assert [body for body, _ in came] == [b"0", b"1", b"1", *(b"%d" % number for number in range(2, 8))]
            assert [attempt for _, attempt in came] == [1, 1, 2] + [1] * 6

    def test_delayed_messages_come_at_their_time_and_can_be_recalled(self, cluster: Cluster, names: Any) -> None:
        """In a batch, too, which RocketMQ's broker would deliver at once."""
        topic, group = names("DELAY")
        with self.clients(SYNC, cluster, group, topic) as (producer, consumer):
            begin = time.monotonic()
            gone = producer.send(topic, b"never", delay=5)
            assert producer.recall(gone) == gone.message_id
            producer.send_all(topic, [Message(b"%d" % number, delay=2) for number in range(3)])
            messages = receive(consumer, 3)
            assert time.monotonic() - begin > 1
            assert sorted(message.body for message in messages) == [b"0", b"1", b"2"]
            consumer.ack(messages)
            self._brings_nothing(consumer, 4)

    def test_transactions_end_as_decided_and_open_ones_as_checked(self, cluster: Cluster, names: Any) -> None:
        """Committed ones come once, rolled back ones never; a broker asks about one that was left open."""
        topic, group = names("TRANSACTION")
        asked = threading.Event()

        def check(message: MessageView) -> ferromq.Resolution:
            asked.set()
            return ferromq.Resolution.COMMIT if message.body == b"open" else ferromq.Resolution.ROLLBACK

        with (
            connected(SYNC, cluster) as mq,
            mq.consumer(group, topic, **self.BEGIN) as consumer,
            mq.producer(topic, checker=check) as producer,
        ):
            with producer.transaction() as committed:
                committed.send(topic, b"paid", keys=["order"])
            back = producer.transaction()
            back.send(topic, b"refused")
            back.rollback()
            (message,) = receive(consumer, 1)
            assert (message.body, message.keys) == (b"paid", ("order",))
            consumer.ack(message)
            self._leave_open(cluster, topic)
            (message,) = receive(consumer, 1)
            assert message.body == b"open"
            consumer.ack(message)
            assert asked.is_set()
            self._brings_nothing(consumer, 2)

    @staticmethod
    def _leave_open(cluster: Cluster, topic: str) -> None:
        """Store a half message as a producer does that dies at once."""
        properties = {"UNIQ_KEY": f"left-{topic}", "TRAN_MSG": "true", "PGROUP": topic}
        send(cluster, topic, b"open", 4, {**properties, "CHECK_IMMUNITY_TIME_IN_SECONDS": "1"})

    def test_leases_are_changed_and_end(self, cluster: Cluster, names: Any) -> None:
        """A changed lease ends at its new time; a message is redelivered with its attempts counted."""
        topic, group = names()
        with (
            connected(SYNC, cluster) as mq,
            mq.producer() as producer,
            mq.consumer(group, topic, **self.BEGIN, invisible_duration=60) as consumer,
        ):
            producer.send(topic, b"late")
            (first,) = receive(consumer, 1)
            consumer.change_invisible_duration(first, 2)
            (second,) = receive(consumer, 1)
            assert (second.body, second.topic, second.delivery_attempt) == (b"late", topic, 2)
            with pytest.raises(ferromq.LeaseExpired):
                consumer.ack(first)
            consumer.give_back(second)
            (third,) = receive(consumer, 1)
            assert third.delivery_attempt == 2  # unused: no attempt
            consumer.ack(third)
            self._brings_nothing(consumer, 2)

    def test_failed_messages_become_dead_letters(self, cluster: Cluster, names: Any) -> None:
        """By request, and after the retries of the group; administrators list them."""
        topic, group = names(retries=1)
        with (
            connected(SYNC, cluster) as mq,
            mq.producer() as producer,
            mq.consumer(group, topic, **self.BEGIN, invisible_duration=60) as consumer,
        ):
            forwarded = producer.send(topic, b"forwarded", keys=["a"])
            (message,) = receive(consumer, 1)
            consumer.forward_to_dead_letter(message)
            failing = producer.send(topic, b"failing")
            for attempt in (1, 2):
                (message,) = receive(consumer, 1)
                assert (message.body, message.delivery_attempt) == (b"failing", attempt)
                consumer.change_invisible_duration(message, 1)
            with ferromq.Admin(cluster.namesrv) as admin:

                def dead() -> set[str]:
                    self._brings_nothing(consumer, 0.5)
                    return {letter.message.message_id for letter in admin.dead_letters(group)}

                assert awaited(lambda: dead() == {forwarded.message_id, failing.message_id})

    def test_filters_are_those_of_the_consumer(self, cluster: Cluster, kind: str, names: Any) -> None:
        """Tags whose hashes are equal are told apart; SQL is evaluated by the broker."""
        topic, group = names()
        with connected(kind, cluster) as mq, mq.producer() as producer:
            # "Aa" and "BB" have one hash code in Java.
            for tag, price in (("Aa", 1), ("BB", 2), ("C", 3)):
                producer.send(topic, tag.encode(), tag=tag, properties={"price": str(price)})
            with mq.consumer(group, topic, filter="Aa || C", **self.BEGIN) as consumer:
                assert {message.body for message in receive(consumer, 2)} == {b"Aa", b"C"}
                self._brings_nothing(consumer, 1)

    def test_sql_filters(self, cluster: Cluster, kind: str, names: Any) -> None:
        """A condition over properties."""
        topic, group = names()
        with (
            connected(kind, cluster) as mq,
            mq.producer() as producer,
            mq.consumer(group, topic, filter=ferromq.Sql("price > 1"), **self.BEGIN) as consumer,
        ):
            for price in (1, 2, 3):
                producer.send(topic, b"%d" % price, properties={"price": str(price)})
            messages = receive(consumer, 2)
            assert sorted(message.body for message in messages) == [b"2", b"3"]

    def test_wrong_requests_are_refused_with_the_reason(self, cluster: Cluster, kind: str) -> None:
        """A topic that does not exist, a property that is the system's, and numbers, which RocketMQ does not know."""
        with ferromq.Admin(cluster.namesrv) as admin:
            admin.create_topic("numbered", 1, message_type="NORMAL")
        with connected(kind, cluster) as mq, mq.producer() as producer, mq.producer(idempotent=True) as numbering:
            with pytest.raises(ferromq.TopicNotFound, match=self.REFUSED[0]):
                producer.send("unknown_topic", b"x")
            with pytest.raises(ferromq.RequestError, match=self.REFUSED[1]):
                producer.send("numbered", b"x", properties={"DELAY": "3"})
            with pytest.raises(ferromq.Unsupported, match="idempotent"):
                numbering.send("numbered", b"x")

    def test_handlers_run_and_failures_are_retried(self, cluster: Cluster, kind: str, names: Any) -> None:
        """`run` receives ahead; a message whose handler fails comes again after the group's delay."""
        topic, group = names(retry_delays=[1, 1, 1])
        handled: list[tuple[bytes, int]] = []

        def handle(message: MessageView) -> None:
            handled.append((message.body, message.delivery_attempt))
            if len(handled) == 1:
                raise ValueError("the first one fails")
            if len(handled) == 21:
                consumer.stop()

        with self.clients(kind, cluster, group, topic) as (producer, consumer):
            producer.send_all(topic, [b"%d" % number for number in range(20)])
            consumer.run(handle)
        assert {body for body, _ in handled} == {b"%d" % number for number in range(20)}
        assert sorted(attempt for _, attempt in handled) == [1] * 20 + [2]

    def test_bodies_are_compressed_as_javas_producers_do(self, cluster: Cluster, names: Any) -> None:
        """Alone and beside others; the flags of a batch would be those of all its messages."""
        self.check_compression(cluster, names, "zlib")

    def check_compression(self, cluster: Cluster, names: Any, compression: Any) -> None:
        """Check what a producer with this compression sends."""
        topic, group = names()
        with (
            connected(SYNC, cluster) as mq,
            mq.consumer(group, topic, **self.BEGIN) as consumer,
            mq.producer(compress=compression, compress_over=50) as producer,
        ):
            producer.send(topic, TEXT)
            producer.send_all(topic, [b"small", TEXT, b"small", TEXT])
            messages = receive(consumer, 5)
            assert sorted(message.body for message in messages) == sorted([TEXT] * 3 + [b"small"] * 2)
            consumer.ack(messages)

    def test_submitted_messages_get_their_receipts(self, cluster: Cluster, kind: str, names: Any) -> None:
        """Each its own, once it is stored."""
        topic, group = names()
        with self.clients(kind, cluster, group, topic) as (producer, consumer):
            futures = [producer.submit(topic, b"%d" % number) for number in range(50)]
            assert producer.flush(PATIENCE)
            messages = {self.place(each): each.body for each in receive(consumer, 50)}
            assert [messages[self.place(each.result(1))] for each in futures] == [b"%d" % n for n in range(50)]

    def test_a_loop_ends_with_what_it_acknowledged(self, cluster: Cluster, kind: str, names: Any) -> None:
        """What it received ahead another member of the group gets after its end, without an attempt."""
        topic, group = names()
        with connected(kind, cluster) as mq, mq.producer() as producer:
            producer.send_all(topic, [b"%d" % number for number in range(40)])
            seen: list[bytes] = []
            with mq.consumer(group, topic, **self.BEGIN) as consumer:
                for message in consumer:
                    consumer.ack(message)
                    seen.append(message.body)
                    if len(seen) == 25:
                        break
            with mq.consumer(group, topic, **self.BEGIN) as consumer:
                rest = receive(consumer, 15)
                assert sorted(seen + [message.body for message in rest]) == sorted(b"%d" % n for n in range(40))
                assert {message.delivery_attempt for message in rest} == {1}

    def test_handlers_take_batches(self, cluster: Cluster, kind: str, names: Any) -> None:
        """Of the size that was asked for, and smaller ones after the linger; they are acknowledged."""
        topic, group = names()
        sizes: list[int] = []

        def handle(messages: list[MessageView]) -> None:
            sizes.append(len(messages))
            if sum(sizes) == 50:
                consumer.stop()

        with self.clients(kind, cluster, group, topic) as (producer, consumer):
            producer.send_all(topic, [b"%d" % number for number in range(50)])
            consumer.run(handle, batch=20, linger=2)
            assert (sum(sizes), max(sizes)) == (50, 20)

    def test_a_paused_consumer_leaves_messages_to_others(self, cluster: Cluster, kind: str, names: Any) -> None:
        """Those that come during the pause; after it they are its own again."""
        topic, group = names()
        seen: queue.Queue[bytes] = queue.Queue()
        with (
            connected(kind, cluster) as mq,
            mq.producer() as producer,
            mq.consumer(group, topic, **self.BEGIN) as consumer,
            mq.consumer(group, topic, **self.BEGIN) as member,
            ThreadPoolExecutor(1) as pool,
        ):
            producer.send(topic, b"before")
            running = pool.submit(consumer.run, lambda message: seen.put(message.body))
            assert seen.get(timeout=PATIENCE) == b"before"
            consumer.pause()
            producer.send_all(topic, [b"1", b"2", b"3"])
            messages = receive(member, 3)
            assert sorted(message.body for message in messages) == [b"1", b"2", b"3"]
            member.ack(messages)
            consumer.resume()
            producer.send(topic, b"after")
            assert seen.get(timeout=PATIENCE) == b"after"
            consumer.stop()
            running.result(PATIENCE)
        assert seen.empty()

    def test_higher_priorities_come_first(self, cluster: Cluster, kind: str, names: Any) -> None:
        """Though they are sent last, and together."""
        topic, group = names("PRIORITY", 8)
        with (
            self.clients(kind, cluster, group, topic) as (producer, consumer),
            ferromq.Admin(cluster.namesrv, timeout=PATIENCE) as admin,
        ):
            producer.send_all(topic, [Message(b"%d" % priority, priority=priority) for priority in (1, 3, 5)])
            assert awaited(lambda: admin.describe_topic(topic).messages == 3)
            came = [receive(consumer, 1)[0] for _ in range(3)]
            assert [(message.body, message.priority) for message in came] == [(b"5", 5), (b"3", 3), (b"1", 1)]


def send(cluster: Cluster, topic: str, body: bytes, flag: int, properties: dict[str, str]) -> None:
    """Send a message over remoting, with a system flag."""
    text = "".join(f"{name}\x01{value}\x02" for name, value in properties.items())
    fields = {"a": topic, "b": topic, "c": "TBW102", "d": "1", "e": "0", "f": str(flag), "h": "0", "i": text}
    fields |= {"g": str(time.time_ns() // 1_000_000), "j": "0", "k": "false", "m": "false"}
    with Peer(cluster.broker) as peer:
        assert peer.call(SEND, fields, body).code == 0
