"""Apache RocketMQ's own consumers with our broker: which messages, in which order, and redeliveries."""

import itertools
from collections.abc import Iterator

import compat_peer
import pytest

import ferromq

MANY = 100_000
BATCH = 100


@pytest.fixture(scope="module")
def mq() -> Iterator[ferromq.Embedded]:
    """Run an embedded broker for all tests; each has topics and groups of its own."""
    with ferromq.embedded() as embedded:
        yield embedded


@pytest.fixture(scope="module")
def sender(mq: ferromq.Embedded, clients: compat_peer.Clients) -> Iterator[str]:
    """Start a producer."""
    clients.start("producer", "sender", mq.namesrv, "senders")
    yield "sender"
    clients.ask("close", "sender")


class Consumers:
    """Java consumers of one group and one topic, closed by the fixture."""

    def __init__(self, mq: ferromq.Embedded, clients: compat_peer.Clients, name: str) -> None:
        self.topic, self.group = f"{name}_topic", f"{name}_group"
        self._mq, self._clients, self._name = mq, clients, name
        self._numbers = itertools.count()
        self.open: list[str] = []

    def create(self, queues: int = 4) -> None:
        """Create the topic and the group."""
        with self._mq.admin() as admin:
            admin.create_topic(self.topic, queues=queues)
            admin.create_group(self.group)

    def push(self, mode: str = "concurrent", failures: int = 0, sql: str | None = None) -> str:
        """Start a push consumer, with an SQL92 expression if given; return its name."""
        return self._start("push", mode, failures, *(("sql", sql) if sql else ()))

    def lite(self) -> str:
        """Start a lite pull consumer; return its name."""
        return self._start("lite")

    def send(self, how: str, prefix: str, count: int, size: int = BATCH) -> None:
        """Let the producer send messages; all must be accepted."""
        assert self._clients.send("sender", how, self.topic, prefix, count, size) == count

    def bodies(self, *names: str) -> list[str]:
        """Return the bodies some consumers got, together."""
        return [taken.body for name in names for taken in self._clients.taken(name)]

    def wait(self, name: str, count: int) -> list[compat_peer.Taken]:
        """Wait until a consumer got so many messages, and return them."""
        assert self._clients.wait_for(name, count, 120) >= count
        return self._clients.taken(name)

    def wait_for_all(self, expected: set[str], *names: str) -> None:
        """Wait until some consumers together got everything; a wait for one of them gives the others their time."""
        for _ in range(240):
            if expected <= set(self.bodies(*names)):
                return
            have = len(self._clients.taken(names[0]))
            self._clients.wait_for(names[0], have + 1, 1)
        pytest.fail(f"{len(expected - set(self.bodies(*names)))} of {len(expected)} messages never came")

    def wait_for_queues(self, *names: str, each: int) -> None:
        """Wait until some consumers share the queues evenly."""
        for _ in range(240):
            shares = [self._clients.queues(name) for name in names]
            if all(len(share) == each for share in shares) and len(set(itertools.chain(*shares))) == each * len(names):
                return
            self._clients.wait_for(names[0], 1 << 30, 1)
        pytest.fail(f"the queues are shared as {shares}")

    def close(self, name: str) -> None:
        """Close a consumer."""
        self._clients.ask("close", name)
        self.open.remove(name)

    def _start(self, kind: str, *words: object) -> str:
        name = f"{self._name}-{next(self._numbers)}"
        self._clients.start(kind, name, self._mq.namesrv, self.group, self.topic, *words)
        self.open.append(name)
        return name


@pytest.fixture
def consumers(
    mq: ferromq.Embedded, clients: compat_peer.Clients, sender: str, request: pytest.FixtureRequest
) -> Iterator[Consumers]:
    """Return what starts consumers of a topic and a group named after the test."""
    consumers = Consumers(mq, clients, request.node.name)
    consumers.create(queues=6)
    yield consumers
    for name in list(consumers.open):
        consumers.close(name)


def expected(prefix: str, count: int) -> set[str]:
    """Return the bodies of messages that were sent."""
    return {f"{prefix}{number}" for number in range(count)}


def test_a_concurrent_consumer_gets_each_message_once(consumers: Consumers) -> None:
    """Those before its start, and those during its wait."""
    consumers.send("sync", "before-", 50)
    name = consumers.push()
    consumers.wait(name, 50)
    consumers.send("sync", "after-", 50)
    bodies = [taken.body for taken in consumers.wait(name, 100)]
    assert sorted(bodies) == sorted(expected("before-", 50) | expected("after-", 50))


def test_an_orderly_consumer_gets_each_queue_in_order(consumers: Consumers) -> None:
    """Also after failures: the queue waits for the message."""
    consumers.send("selector", "o-", 200, 6)
    name = consumers.push("orderly", 10)
    taken = consumers.wait(name, 200)
    assert sorted(message.body for message in taken) == sorted(expected("o-", 200))
    for queue_id in range(6):
        offsets = [message.queue_offset for message in taken if message.queue_id == queue_id]
        assert offsets == sorted(offsets)


def test_each_broadcast_consumer_gets_every_message(consumers: Consumers) -> None:
    """Their offsets are their own."""
    first, second = consumers.push("broadcast"), consumers.push("broadcast")
    consumers.wait_for_queues(first, each=6)
    consumers.wait_for_queues(second, each=6)
    consumers.send("sync", "b-", 100)
    for name in (first, second):
        consumers.wait(name, 100)
        assert set(consumers.bodies(name)) == expected("b-", 100)


def test_a_lite_pull_consumer_gets_each_message_once(consumers: Consumers) -> None:
    """It pulls for itself and commits its offsets."""
    consumers.send("batch", "l-", 500)
    name = consumers.lite()
    assert sorted(taken.body for taken in consumers.wait(name, 500)) == sorted(expected("l-", 500))


def test_a_message_that_failed_comes_again(consumers: Consumers) -> None:
    """By the retry topic, a delay level later; it has its number of attempts."""
    consumers.send("sync", "r-", 20)
    name = consumers.push("concurrent", 5)
    taken = consumers.wait(name, 20)
    assert {message.body for message in taken} == expected("r-", 20)
    assert sum(message.times_before for message in taken) == 5


def check_sql(consumers: Consumers, mode: str) -> None:
    """Consume with an expression: messages before the consumer's start, and during its wait."""
    consumers.send("selector", "a-", 60, 6)
    name = consumers.push(mode, 0, "number BETWEEN 10 AND 29 AND (TAGS = 'even' OR number IN ('13', '17'))")
    consumers.wait(name, 12)
    consumers.send("selector", "b-", 60, 6)
    consumers.wait(name, 24)
    wanted = {13, 17, *range(10, 30, 2)}
    assert sorted(consumers.bodies(name)) == sorted(f"{part}-{number}" for part in "ab" for number in wanted)


def test_a_consumer_by_sql_gets_exactly_what_its_expression_wants(consumers: Consumers) -> None:
    """It pulls by the subscription of its heartbeat."""
    check_sql(consumers, "concurrent")


def test_a_pop_consumer_by_sql_gets_exactly_what_its_expression_wants(
    mq: ferromq.Embedded, clients: compat_peer.Clients, consumers: Consumers
) -> None:
    """Each pop brings the expression."""
    mode = ("setConsumeMode", "-t", consumers.topic, "-g", consumers.group, "-m", "POP", "-q", 0)
    assert "success" in clients.admin(*mode, "-b", mq.broker.address, "-n", mq.namesrv)
    check_sql(consumers, "pop")


def test_a_consumer_with_a_wrong_expression_does_not_start(consumers: Consumers) -> None:
    """The error has the position in the expression."""
    with pytest.raises(compat_peer.PeerError, match="position 10: expected a property"):
        consumers.push("concurrent", 0, "number >  ")


def test_a_pop_consumer_gets_each_message_and_failed_ones_again(
    mq: ferromq.Embedded, clients: compat_peer.Clients, consumers: Consumers
) -> None:
    """RocketMQ's own tool sets the mode; the handles the consumer makes of an answer end and move our leases."""
    mode = ("setConsumeMode", "-t", consumers.topic, "-g", consumers.group, "-m", "POP", "-q", 0)
    assert "success" in clients.admin(*mode, "-b", mq.broker.address, "-n", mq.namesrv)
    consumers.send("sync", "p-", 100)
    name = consumers.push("pop", 5)
    taken = consumers.wait(name, 100)
    assert sorted(message.body for message in taken) == sorted(expected("p-", 100))
    assert sum(message.times_before for message in taken) == 5


def test_consumers_that_join_and_leave_lose_nothing(consumers: Consumers) -> None:
    """100,000 messages while the queues move between three consumers: each comes at least once."""
    names = [consumers.push()]
    consumers.send("batch", "m0-", MANY // 4)
    names.append(consumers.push())
    consumers.send("batch", "m1-", MANY // 4)
    names.append(consumers.push())
    consumers.wait_for_queues(*names, each=2)
    consumers.send("batch", "m2-", MANY // 4)
    all_but_last = set().union(*(expected(f"m{part}-", MANY // 4) for part in range(3)))
    consumers.wait_for_all(all_but_last, *names)
    kept = consumers.bodies(names[0])
    consumers.close(names[0])
    consumers.send("batch", "m3-", MANY // 4)
    consumers.wait_for_queues(*names[1:], each=3)
    last = expected("m3-", MANY // 4)
    consumers.wait_for_all(last, *names[1:])
    assert all_but_last | last == set(kept) | set(consumers.bodies(*names[1:]))
