"""
The verbs of clients that know their brokers by name servers, as tests of one class.

`test_namesrv_verbs` runs them against ferromq, and a file of tests/compat against Apache RocketMQ. Each uses names of
its own, so all share the servers of a module.
"""

import asyncio
import inspect
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple, Self

import pytest
from remoting_peer import Peer

import ferromq
from ferromq import Message, MessageView, aio
from ferromq.protocol import java_json

PATIENCE = 30.0
SYNC = "sync"
"""Tests that wait for brokers run once."""
SEND, CONSUMERS, PRODUCERS = 310, 203, 328
TEXT = b"hello" * 20
COMPRESSED = {
    0x301: zlib.compress(TEXT),
    0x101: bytes.fromhex("04224d186040820f0000005f68656c6c6f0500475068656c6c6f00000000"),
    0x201: bytes.fromhex("28b52ffd20646500002868656c6c6f01008ca96801"),
}
"""System flag → the text as zlib, as a frame of lz4, and by zstd."""


class Cluster(NamedTuple):
    """Servers, and what tests need to know of them."""

    namesrv: str
    broker: str
    broker_name: str


class Awaited:
    """An object of `ferromq.aio` whose calls block: they run on an event loop in a thread of its own."""

    def __init__(self, wrapped: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._wrapped, self._loop = wrapped, loop

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._wrapped, name)
        if not callable(found):
            return found

        def call(*arguments: Any, **options: Any) -> Any:
            return self._run(lambda: found(*arguments, **options))

        return call

    def _run(self, begin: Callable[[], Any]) -> Any:
        async def run() -> Any:
            result = begin()
            return await result if inspect.isawaitable(result) else result

        result = asyncio.run_coroutine_threadsafe(run(), self._loop).result(2 * PATIENCE)
        return Awaited(result, self._loop) if isinstance(result, OF_AIO) else result

    def __enter__(self) -> Self:
        self._run(self._wrapped.__aenter__)
        return self

    def __exit__(self, *error: object) -> None:
        self._run(lambda: self._wrapped.__aexit__(*error))


OF_AIO = (aio.Connection, aio.Producer, aio.Consumer, aio.Reader, aio.Transaction)


@contextmanager
def connected(kind: str, namesrv: str, **options: Any) -> Iterator[Any]:
    """Yield a connection of one of both kinds, whose calls block."""
    if kind == "sync":
        with ferromq.connect(namesrv=namesrv, timeout=PATIENCE, **options) as mq:
            yield mq
        return
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        with Awaited(aio.connect(namesrv=namesrv, timeout=PATIENCE, **options), loop) as mq:
            yield mq
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(PATIENCE)
        loop.close()


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


class NamesrvVerbs:
    """The tests; a file has a fixture `cluster`, and a subclass of this class."""

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

    def test_a_message_arrives_as_it_was_sent(self, cluster: Cluster, kind: str, names: Any) -> None:
        """With all that a message has; once it is acknowledged it does not come again."""
        topic, group = names()
        with (
            connected(kind, cluster.namesrv) as mq,
            mq.consumer(group, topic, begin="first", invisible_duration=2) as consumer,
            mq.producer() as producer,
        ):
            receipt = producer.send(
                topic, b"body", tag="red", keys=["k1", "k2"], properties={"price": "3", "name": "Zoë"}
            )
            (message,) = receive(consumer, 1)
            assert (message.body, message.tag, message.keys) == (b"body", "red", ("k1", "k2"))
            assert message.properties == {"price": "3", "name": "Zoë"}
            assert (message.message_id, message.topic) == (receipt.message_id, topic)
            assert (message.queue_id, message.queue_offset) == (receipt.queue_id, receipt.queue_offset)
            assert (message.delivery_attempt, receipt.broker_name) == (1, cluster.broker_name)
            assert receipt.durability == "written"
            assert message.born_host
            assert abs(message.born_timestamp - message.store_timestamp) < 60_000
            consumer.ack(message)
            assert not consumer.receive(wait=2.5)
            with ferromq.Admin(cluster.namesrv) as admin:
                assert [each.message_id for each in admin.query_by_key(topic, "k2")] == [receipt.message_id]

    def test_batches_keep_their_messages(self, cluster: Cluster, kind: str, names: Any) -> None:
        """Those of `send_all`, and single messages under way at once; receipts name the places."""
        topic, group = names()
        with (
            connected(kind, cluster.namesrv) as mq,
            mq.producer() as producer,
            mq.consumer(group, topic, begin="first") as consumer,
        ):
            summary = producer.send_all(topic, [Message(b"%d" % number, tag=f"t{number}") for number in range(300)])
            big = producer.send_all(topic, [b"x" * 3_000_000, b"y" * 3_000_000])
            places = {(receipt.queue_id, receipt.queue_offset) for receipt in [*summary, *big]}
            messages = []
            while len(messages) < 302:
                some = receive(consumer, 1)
                consumer.ack(some)
                messages += some
            assert {(message.queue_id, message.queue_offset) for message in messages} == places
            assert len({receipt.offset_message_id for receipt in [*summary, *big]} - {None}) == 302
            small = {message.message_id: (message.body, message.tag) for message in messages if len(message.body) < 4}
            assert [small[receipt.message_id] for receipt in summary] == [(b"%d" % n, f"t{n}") for n in range(300)]

    def test_message_groups_keep_their_order(self, cluster: Cluster, names: Any) -> None:
        """In one queue; the next comes when the one before is acknowledged, and a late one comes again first."""
        topic, group = names("FIFO", 4, fifo=True)
        with (
            connected(SYNC, cluster.namesrv) as mq,
            mq.producer() as producer,
            mq.consumer(group, topic, begin="first") as consumer,
        ):
            receipts = [producer.send(topic, b"%d" % number, message_group="walk") for number in range(4)]
            receipts += producer.send_all(topic, [Message(b"%d" % n, message_group="walk") for n in range(4, 8)])
            assert len({receipt.queue_id for receipt in receipts}) == 1
            came: list[tuple[bytes, int]] = []
            while len(came) < 9:
                (message,) = receive(consumer, 1, invisible_duration=3 if len(came) == 1 else 30)
                came.append((message.body, message.delivery_attempt))
                if len(came) != 2:  # of that one the lease ends
                    consumer.ack(message)
            assert [body for body, _ in came] == [b"0", b"1", b"1", *(b"%d" % number for number in range(2, 8))]
            assert [attempt for _, attempt in came] == [1, 1, 2] + [1] * 6

    def test_delayed_messages_come_at_their_time_and_can_be_recalled(self, cluster: Cluster, names: Any) -> None:
        """In a batch, too, which RocketMQ's broker would deliver at once."""
        topic, group = names("DELAY")
        with (
            connected(SYNC, cluster.namesrv) as mq,
            mq.producer() as producer,
            mq.consumer(group, topic, begin="first") as consumer,
        ):
            begin = time.monotonic()
            gone = producer.send(topic, b"never", delay=3)
            assert producer.recall(gone) == gone.message_id
            producer.send_all(topic, [Message(b"%d" % number, delay=2) for number in range(3)])
            messages = receive(consumer, 3)
            assert time.monotonic() - begin > 1
            assert sorted(message.body for message in messages) == [b"0", b"1", b"2"]
            consumer.ack(messages)
            assert not consumer.receive(wait=2)

    def test_transactions_end_as_decided_and_open_ones_as_checked(self, cluster: Cluster, names: Any) -> None:
        """Committed ones come once, rolled back ones never; a broker asks about one that was left open."""
        topic, group = names("TRANSACTION")
        asked = threading.Event()

        def check(message: MessageView) -> ferromq.Resolution:
            asked.set()
            return ferromq.Resolution.COMMIT if message.body == b"open" else ferromq.Resolution.ROLLBACK

        with (
            connected(SYNC, cluster.namesrv) as mq,
            mq.consumer(group, topic, begin="first") as consumer,
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
            assert not consumer.receive(wait=2)

    @staticmethod
    def _leave_open(cluster: Cluster, topic: str) -> None:
        """Store a half message as a producer does that dies at once."""
        properties = {"UNIQ_KEY": f"left-{topic}", "TRAN_MSG": "true", "PGROUP": topic}
        send(cluster, topic, b"open", 4, {**properties, "CHECK_IMMUNITY_TIME_IN_SECONDS": "1"})

    def test_leases_are_changed_and_end(self, cluster: Cluster, names: Any) -> None:
        """A changed lease ends at its new time; a message is redelivered with its attempts counted."""
        topic, group = names()
        with (
            connected(SYNC, cluster.namesrv) as mq,
            mq.producer() as producer,
            mq.consumer(group, topic, begin="first", invisible_duration=60) as consumer,
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
            assert not consumer.receive(wait=2)

    def test_failed_messages_become_dead_letters(self, cluster: Cluster, names: Any) -> None:
        """By request, and after the retries of the group; administrators list them."""
        topic, group = names(retries=1)
        with (
            connected(SYNC, cluster.namesrv) as mq,
            mq.producer() as producer,
            mq.consumer(group, topic, begin="first", invisible_duration=60) as consumer,
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
                    assert not consumer.receive(wait=0.5)
                    return {letter.message.message_id for letter in admin.dead_letters(group)}

                assert awaited(lambda: dead() == {forwarded.message_id, failing.message_id})

    def test_filters_are_those_of_the_consumer(self, cluster: Cluster, kind: str, names: Any) -> None:
        """Tags whose hashes are equal are told apart; SQL is evaluated by the broker."""
        topic, group = names()
        with connected(kind, cluster.namesrv) as mq, mq.producer() as producer:
            # "Aa" and "BB" have one hash code in Java.
            for tag, price in (("Aa", 1), ("BB", 2), ("C", 3)):
                producer.send(topic, tag.encode(), tag=tag, properties={"price": str(price)})
            with mq.consumer(group, topic, filter="Aa || C", begin="first") as consumer:
                assert {message.body for message in receive(consumer, 2)} == {b"Aa", b"C"}
                assert not consumer.receive(wait=1)
            with mq.reader(topic, filter="BB") as reader:
                assert [message.body for message in self._read(reader, 1)] == [b"BB"]

    def test_sql_filters(self, cluster: Cluster, kind: str, names: Any) -> None:
        """A condition over properties."""
        topic, group = names()
        with (
            connected(kind, cluster.namesrv) as mq,
            mq.producer() as producer,
            mq.consumer(group, topic, filter=ferromq.Sql("price > 1"), begin="first") as consumer,
        ):
            for price in (1, 2, 3):
                producer.send(topic, b"%d" % price, properties={"price": str(price)})
            messages = receive(consumer, 2)
            assert sorted(message.body for message in messages) == [b"2", b"3"]

    @staticmethod
    def _read(reader: Any, count: int) -> list[MessageView]:
        found: list[MessageView] = []
        assert awaited(lambda: found.extend(reader.read(wait=0.2)) or len(found) >= count)
        return found

    def test_queues_are_pulled_by_offset_and_offsets_committed(self, cluster: Cluster, kind: str, names: Any) -> None:
        """From any offset; the broker keeps what was committed, and answers a wait once a message comes."""
        topic, group = names(queues=1)
        with (
            connected(kind, cluster.namesrv) as mq,
            mq.producer() as producer,
            mq.consumer(group, topic) as consumer,
        ):
            (queue,) = consumer.queues()
            assert (queue.broker_name, queue.queue_id, queue.topic) == (cluster.broker_name, 0, topic)
            producer.send_all(topic, [b"%d" % number for number in range(10)])
            assert awaited(lambda: consumer.offset_at(queue, "end") == 10)
            pulled = consumer.pull(queue, 3, 4)
            assert [message.body for message in pulled.messages] == [b"3", b"4", b"5", b"6"]
            assert pulled.next_offset == 7
            assert consumer.pull(queue, 10) == ([], 10)
            begin = time.monotonic()
            assert consumer.pull(queue, 10, wait=1) == ([], 10)
            assert 0.9 < time.monotonic() - begin < 5
            later = threading.Timer(0.5, producer.send, (topic, b"10"))
            later.start()
            assert [message.body for message in consumer.pull(queue, 10, wait=20).messages] == [b"10"]
            later.join()
            assert consumer.offset_at(queue, "begin") == 0
            assert consumer.offset_at(queue, pulled.messages[0].store_timestamp) <= 3
            consumer.commit_offset(queue, 7)
            assert consumer.committed_offset(queue) == 7
            assert consumer.progress().lag == 4

    def test_readers_leave_no_group_behind(self, cluster: Cluster, kind: str, names: Any) -> None:
        """They read all queues from the first message on."""
        topic, _ = names(queues=3)
        with connected(kind, cluster.namesrv) as mq, mq.producer() as producer:
            producer.send_all(topic, [b"%d" % number for number in range(20)])
            for number in range(20, 25):
                producer.send(topic, b"%d" % number)
            with mq.reader(topic) as reader:
                assert {message.body for message in self._read(reader, 25)} == {b"%d" % n for n in range(25)}

    def test_clients_are_known_while_they_live(self, cluster: Cluster, kind: str, names: Any) -> None:
        """Consumers with their subscriptions, producers that can be asked by their topics."""
        topic, group = names()
        with Peer(cluster.broker) as peer:

            def consumers() -> list[Any]:
                answer = peer.call(CONSUMERS, {"consumerGroup": group})
                return list(java_json.loads_object(answer.body)["connectionSet"]) if answer.code == 0 else []

            def producers() -> bool:
                return topic in java_json.loads_object(peer.call(PRODUCERS, {}).body)["data"]

            with connected(kind, cluster.namesrv) as mq:
                with (
                    mq.consumer(group, topic, filter="a || b") as consumer,
                    mq.producer(topic, checker=lambda _: None) as producer,
                ):
                    producer.send(topic, b"x")
                    consumer.receive(wait=0)
                    assert len(consumers()) == 1
                    assert awaited(producers)
                assert not consumers()
                assert not producers()

    @pytest.mark.parametrize("flag", COMPRESSED)
    def test_compressed_bodies_are_read(self, cluster: Cluster, names: Any, flag: int) -> None:
        """Those of Java's producers, in each of their three formats."""
        topic, group = names()
        with (
            ferromq.connect(namesrv=cluster.namesrv) as mq,
            mq.consumer(group, topic, begin="first") as consumer,
            mq.reader(topic) as reader,
        ):
            send(cluster, topic, COMPRESSED[flag], flag, {"UNIQ_KEY": f"compressed-{flag}"})
            assert [message.body for message in receive(consumer, 1)] == [TEXT]
            assert [message.body for message in self._read(reader, 1)] == [TEXT]

    @pytest.mark.parametrize("compression", ["zlib", "lz4", "zstd"])
    def test_bodies_are_compressed_as_javas_producers_do(self, cluster: Cluster, names: Any, compression: Any) -> None:
        """Alone and beside others; the flags of a batch would be those of all its messages."""
        topic, group = names()
        with (
            ferromq.connect(namesrv=cluster.namesrv) as mq,
            mq.consumer(group, topic, begin="first") as consumer,
            mq.producer(compress=compression, compress_over=50) as producer,
        ):
            producer.send(topic, TEXT)
            producer.send_all(topic, [b"small", TEXT, b"small", TEXT])
            messages = receive(consumer, 5)
            assert sorted(message.body for message in messages) == sorted([TEXT] * 3 + [b"small"] * 2)
            consumer.ack(messages)

    def test_wrong_requests_are_refused_with_the_reason(self, cluster: Cluster, kind: str) -> None:
        """A topic that does not exist, a property that is the system's, and numbers, which RocketMQ does not know."""
        with ferromq.Admin(cluster.namesrv) as admin:
            admin.create_topic("numbered", 1, message_type="NORMAL")
        with (
            connected(kind, cluster.namesrv) as mq,
            mq.producer() as producer,
            mq.producer(idempotent=True) as numbering,
        ):
            with pytest.raises(ferromq.TopicNotFound, match=r"unknown_topic.*create"):
                producer.send("unknown_topic", b"x")
            with pytest.raises(ferromq.RequestError, match="property DELAY is reserved"):
                producer.send("numbered", b"x", properties={"DELAY": "3"})
            with pytest.raises(ferromq.Unsupported, match="idempotent"):
                numbering.send("numbered", b"x")

    def test_requests_are_replied_to(self, cluster: Cluster, kind: str, names: Any) -> None:
        """The requester and the replier find their broker by its route."""
        topic, group = names()
        with (
            connected(kind, cluster.namesrv) as mq,
            mq.producer() as producer,
            mq.consumer(group, topic, begin="first") as consumer,
            ThreadPoolExecutor(1) as pool,
        ):
            reply = pool.submit(producer.request, topic, b"ping", timeout=PATIENCE)
            (message,) = receive(consumer, 1)
            consumer.reply(message, b"pong")
            consumer.ack(message)
            assert reply.result(PATIENCE).body == b"pong"

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

        async def handle_soon(message: MessageView) -> None:
            await asyncio.to_thread(handle, message)

        with (
            connected(kind, cluster.namesrv) as mq,
            mq.producer() as producer,
            mq.consumer(group, topic, begin="first") as consumer,
        ):
            producer.send_all(topic, [b"%d" % number for number in range(20)])
            consumer.run(handle if kind == "sync" else handle_soon)
        assert {body for body, _ in handled} == {b"%d" % number for number in range(20)}
        assert sorted(attempt for _, attempt in handled) == [1] * 20 + [2]


def send(cluster: Cluster, topic: str, body: bytes, flag: int, properties: dict[str, str]) -> None:
    """Send a message over remoting, with a system flag."""
    text = "".join(f"{name}\x01{value}\x02" for name, value in properties.items())
    fields = {"a": topic, "b": topic, "c": "TBW102", "d": "1", "e": "0", "f": str(flag), "h": "0", "i": text}
    fields |= {"g": str(time.time_ns() // 1_000_000), "j": "0", "k": "false", "m": "false"}
    with Peer(cluster.broker) as peer:
        assert peer.call(SEND, fields, body).code == 0
