"""RocketMQ's transactions, requests with replies, and groups of Java's consumers and ours, on a broker of ours."""

import contextlib
import threading
from collections.abc import Callable, Iterator

import pytest
from compat_peer import Clients
from waiting import eventually

import ferromq

COUNT = 60
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
PATIENCE = 120


@pytest.fixture(scope="module")
def mq() -> Iterator[ferromq.Embedded]:
    """Run an embedded broker for all tests, which asks about no transaction; each has topics and groups of its own."""
    with ferromq.embedded(transaction_check_interval="1h") as embedded:
        yield embedded


@pytest.fixture
def start(clients: Clients, mq: ferromq.Embedded) -> Iterator[Callable[..., str]]:
    """Return a function that starts a Java client, given its kind, name and further words, to be closed at the end."""
    started: list[str] = []

    def run(kind: str, name: str, *words: object) -> str:
        clients.start(kind, name, mq.namesrv, *words)
        started.append(name)
        return name

    yield run
    for name in started:
        clients.ask("close", name)


def create(mq: ferromq.Embedded, topic: str, group: str) -> None:
    """Create a topic of four queues, and a group."""
    with mq.admin() as admin:
        admin.create_topic(topic, queues=4)
        admin.create_group(group)


def stored(mq: ferromq.Embedded, topic: str) -> int:
    """Return how many messages queue 0 of a topic has had."""
    return mq.store.max_offset(topic, 0)


def test_consumers_see_exactly_the_committed_messages(
    mq: ferromq.Embedded, clients: Clients, start: Callable[..., str]
) -> None:
    """One third is committed, one rolled back, and one, unknown to its producer, stays open."""
    create(mq, "transacted", "transacted_group")
    producer = start("transactions", "transactions", "transacted_producers")
    assert int(clients.ask("transact", producer, "transacted", "t-", COUNT)) == COUNT
    # A decision goes one way, so it is waited for: two of three end, each with a mark.
    assert eventually(lambda: stored(mq, OP_TOPIC) >= COUNT * 2 // 3)
    assert stored(mq, HALF_TOPIC) == COUNT
    # The last message is read last: only committed ones came before it.
    sender = start("producer", "after", "after_producers")
    assert clients.send(sender, "selector", "transacted", "last-", 4, 4) == 4
    taker = start("push", "committed", "transacted_group", "transacted", "concurrent", 0)
    committed = {f"t-{number}" for number in range(0, COUNT, 3)}
    last = {f"last-{number}" for number in range(4)}
    assert clients.wait_for(taker, len(committed | last), PATIENCE) == len(committed | last)
    assert bodies(clients, taker) == committed | last
    assert stored(mq, OP_TOPIC) == COUNT * 2 // 3


def test_each_request_gets_the_reply_to_it(mq: ferromq.Embedded, clients: Clients, start: Callable[..., str]) -> None:
    """The broker forwards the reply to the requesting producer, not to others of its group."""
    create(mq, "asked", "asked_group")
    replier = start("replier", "replier", "asked_group", "asked")
    first, second = (start("producer", name, "asking") for name in ("asking-1", "asking-2"))
    for asking in (first, second, first):
        replies = clients.ask("request", asking, "asked", f"{asking}-", 5)
        assert replies.split(",") == [f"re:{asking}-{number}" for number in range(5)]
    assert clients.wait_for(replier, 15, PATIENCE) == 15


@contextlib.contextmanager
def replying(mq: ferromq.Embedded, topic: str, group: str) -> Iterator[None]:
    """Reply to requests with our consumer."""

    def handle(message: ferromq.MessageView) -> None:
        consumer.reply(message, b"re:" + message.body, properties={"ours": "yes"})

    with mq.consumer(group, topic) as consumer:
        thread = threading.Thread(target=consumer.run, args=(handle,))
        thread.start()
        try:
            yield
        finally:
            consumer.stop()
            thread.join()


def test_our_consumer_replies_to_java_requesters(
    mq: ferromq.Embedded, clients: Clients, start: Callable[..., str]
) -> None:
    """Its replies reach the waiting `request` of each."""
    create(mq, "asked_of_ours", "ours_group")
    asking = start("producer", "asking-ours", "asking_ours")
    with replying(mq, "asked_of_ours", "ours_group"):
        replies = clients.ask("request", asking, "asked_of_ours", "q-", 5)
    assert replies.split(",") == [f"re:q-{number}" for number in range(5)]


def test_our_producer_gets_the_replies_of_java_consumers(mq: ferromq.Embedded, start: Callable[..., str]) -> None:
    """A large reply is compressed by RocketMQ's producer; we decompress it."""
    create(mq, "asked_of_java", "java_group")
    start("replier", "java-replier", "java_group", "asked_of_java")
    large = bytes(100_000)
    with mq.producer() as producer:
        for body in (b"1", b"2", large):
            assert producer.request("asked_of_java", body, timeout=PATIENCE / 2).body == b"re:" + body


def bodies(clients: Clients, name: str) -> set[str]:
    """Return the bodies a Java consumer got."""
    return {message.body for message in clients.taken(name)}


class Acknowledging(threading.Thread):
    """A consumer of ours that acknowledges its messages; a lease may be gone if the Java consumer was faster."""

    def __init__(self, consumer: ferromq.Consumer) -> None:
        super().__init__()
        self.bodies: list[str] = []
        self.failure: BaseException | None = None
        self._consumer = consumer
        self._is_over = threading.Event()
        self.start()

    def run(self) -> None:
        """Receive until told to stop."""
        try:
            while not self._is_over.is_set():
                for message in self._consumer.receive(8, wait=0.5):
                    self.bodies.append(bytes(message.body).decode())
                    with contextlib.suppress(ferromq.LeaseExpired):
                        self._consumer.ack(message)
        except BaseException as failure:
            self.failure = failure
            raise

    def stop(self) -> None:
        """Wait for its end."""
        self._is_over.set()
        self.join()


def test_a_group_of_a_java_consumer_and_ours_loses_nothing(
    mq: ferromq.Embedded, clients: Clients, start: Callable[..., str]
) -> None:
    """
    At least one of the two consumes each message.

    More is not promised: the Java consumer pulls its share of the queues while ours, over gRPC, lease messages of any
    queue. So a message may be seen by both, and how many each gets is chance. An offset that the Java one commits
    acknowledges what lies before it, leased or not. What a third consumer leased from a queue that is not Java's is
    redelivered when its lease ends.
    """
    create(mq, "shared", "shared_group")
    sender = start("producer", "shared-sender", "shared_producers")
    assert clients.send(sender, "sync", "shared", "a-", 200, 0) == 200
    idle = mq.consumer("shared_group", "shared", invisible_duration=3_600)
    leased = idle.receive(50)
    assert leased
    java = start("push", "shared-java", "shared_group", "shared", "concurrent", 0)
    assert clients.wait_for(java, 1, PATIENCE)
    with mq.consumer("shared_group", "shared") as consumer:
        ours = Acknowledging(consumer)
        try:
            assert clients.send(sender, "sync", "shared", "b-", 200, 0) == 200
            sent = {f"{part}-{number}" for part in "ab" for number in range(200)}
            # The broker decides which queues are Java's, and which queue the idle consumer leases from.
            waiting = {bytes(message.body).decode() for message in leased}
            expected = sent - waiting
            assert eventually(lambda: expected <= {*ours.bodies, *bodies(clients, java)} or not ours.is_alive())
            idle.give_back(leased)
            assert eventually(lambda: sent <= {*ours.bodies, *bodies(clients, java)} or not ours.is_alive())
            clients.ask("stop", java)
            theirs = bodies(clients, java)
            assert clients.send(sender, "sync", "shared", "c-", 50, 0) == 50
            sent |= {f"c-{number}" for number in range(50)}
            assert eventually(lambda: sent <= theirs | set(ours.bodies) or not ours.is_alive())
        finally:
            ours.stop()
    assert ours.failure is None
    assert sent <= theirs | set(ours.bodies)
    assert theirs
