"""RocketMQ's official gRPC clients for Java and Node, unmodified, with our broker: every kind of message."""

import hashlib
import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from threading import Event

import pytest
from compat_peer import PeerError
from dispatching import dispatched
from official_peer import Got, Official, Sent

import ferromq
from ferromq.broker.metadata.groups import GroupConfig
from ferromq.broker.metadata.topics import TopicConfig
from ferromq.protocol.retry_policy import Customized, Exponential

COUNT = 20
HOUR_MS = 3_600_000
PAUSE = 0.1


@pytest.fixture(scope="module")
def mq(official: Official) -> Iterator[ferromq.Embedded]:
    """Run an embedded broker whose clock stands, for the tests with one client; each has a topic and a group."""
    with ferromq.embedded(clock=ferromq.Clock.manual()) as embedded:
        yield embedded


class Room:
    """A topic, a group and clients of one test."""

    def __init__(self, mq: ferromq.Embedded, official: Official, name: str) -> None:
        self.mq, self.official = mq, official
        self.topic, self.group = f"{name}-topic", f"{name}-group"
        self._name = name
        self._numbers = itertools.count()
        self._acknowledged: Counter[str] = Counter()
        self.open: list[str] = []

    def create(self, kind: str = "NORMAL", queues: int = 4, **group: object) -> None:
        """Create the topic for messages of a kind, and the group, with these fields of `GroupConfig`."""
        self.mq.broker.topics.put(TopicConfig(self.topic, queues, queues), {"message.type": kind}, "test")
        self.mq.broker.groups.put(GroupConfig(self.group, **group), {}, "test")

    def producer(self, **options: str) -> str:
        """Start a producer and return its name."""
        name = self._new()
        self.official.producer(name, self.mq.endpoint, self.topic, **options)
        self.open.append(name)
        return name

    def simple(self, **options: str) -> str:
        """Start a simple consumer and return its name."""
        name = self._new()
        self.official.simple(name, self.mq.endpoint, self.group, self.topic, **options)
        self.open.append(name)
        return name

    def push(self, **options: str) -> str:
        """Start a push consumer and return its name; it is never closed, which would take as long as its polls."""
        name = self._new()
        self.official.push(name, self.mq.endpoint, self.group, self.topic, **options)
        return name

    def send(self, name: str, prefix: str, count: int = COUNT, **words: object) -> list[Sent]:
        """Send messages PREFIX0, PREFIX1, …; return the outcomes."""
        return self.official.send(name, [(self.topic, f"{prefix}{number}", words) for number in range(count)])

    def receive_all(self, name: str, count: int) -> list[Got]:
        """Let a simple consumer receive until it has *count* messages, acknowledge new ones, and return all."""
        got = self.official.receive_until(name, lambda taken: len(taken) >= count)
        for number in range(self._acknowledged[name], len(got)):
            self.official.ask("ack", name, number)
        self._acknowledged[name] = len(got)
        return got

    def bodies(self, name: str) -> list[str]:
        """Return the bodies a consumer got, in the order they came."""
        return [each.body for each in self.official.taken(name)]

    def dead(self, count: int) -> list[str]:
        """Let time pass until the group has so many dead letters, and return their bodies."""
        dead: list[str] = []
        with self.mq.consumer(f"{self.group}-undertaker", f"%DLQ%{self.group}") as consumer:
            for _ in range(60):
                self.mq.clock.advance(seconds=2)
                messages = consumer.receive(wait=1)
                dead += [message.body.decode() for message in messages]
                consumer.ack(messages)
                if len(dead) >= count:
                    break
        return sorted(dead)

    def eventually(self, condition: Callable[[], bool]) -> bool:
        """Wait at most two seconds until *condition* holds, and return whether it does."""
        pause = Event()
        return any(condition() or pause.wait(PAUSE) for _ in range(20))

    def step_until_given(self, name: str, count: int) -> None:
        """
        Let time pass until a push consumer got *count* messages.

        A client tells the broker of a failure after its listener returned, so one step may come too early.
        """
        for _ in range(60):
            self.mq.clock.advance(seconds=2)
            if self.official.wait_for(name, count, 1) >= count:
                return
        pytest.fail(f"{self.bodies(name)} is less than {count}")

    def _new(self) -> str:
        return f"{self._name}-{next(self._numbers)}"


@pytest.fixture
def room(mq: ferromq.Embedded, official: Official, request: pytest.FixtureRequest) -> Iterator[Room]:
    """Return a test's topic, group and clients, named after it."""
    room = Room(mq, official, request.node.originalname)
    yield room
    for name in room.open:
        official.ask("close", name)


def test_normal_messages_come_as_they_were_sent(room: Room) -> None:
    """Body, tag, keys, properties and id, each message once."""
    room.create()
    producer, consumer = room.producer(), room.simple()
    sent = room.send(producer, "m-", tag="blue", keys="k1,k2", color="azure", size=7)
    got = room.receive_all(consumer, COUNT)
    assert sorted((each.message_id, each.body) for each in got) == sorted(
        (each.message_id, f"m-{number}") for number, each in enumerate(sent)
    )
    for each in got:
        assert (each.topic, each.tag, each.keys, each.attempt) == (room.topic, "blue", ("k1", "k2"), 1)
        assert each.properties == {"color": "azure", "size": "7"}
        assert (each.group, each.deliver_at) == ("", "")


def test_a_body_up_to_the_limit_passes_both_ways(room: Room) -> None:
    """4 MiB, the limit of the settings, or the client's own limit; compressed or not."""
    room.create()
    producer, consumer = room.producer(), room.simple()
    limit = room.official.largest_body
    room.official.send(producer, [(room.topic, "0123456789abcdef", {"repeat": limit // 16})])
    [got] = room.receive_all(consumer, 1)
    assert got.body == f"{limit}:{hashlib.sha256(b'0123456789abcdef' * (limit // 16)).hexdigest()}"


def test_tls_and_plaintext_are_served_on_one_port(room: Room) -> None:
    """With the broker's self-made certificate, for a client that insists on TLS."""
    room.create()
    sent = []
    for security in room.official.securities:
        sent += room.send(room.producer(security=security), f"{security}-")
    for security in room.official.securities:
        consumer = room.simple(security=security)
        got = room.official.receive_until(consumer, lambda got: len(got) >= len(sent), invisible_ms=1_000)
        assert {each.message_id for each in got} == {each.message_id for each in sent}
        room.mq.clock.advance(seconds=2)


def test_tags_select_messages(room: Room) -> None:
    """`a || b` gets both, and nothing else; others are not delivered later."""
    room.create()
    producer = room.producer()
    for tag in ("a", "b", "c"):
        room.send(producer, f"{tag}-", 5, tag=tag)
    got = room.receive_all(room.simple(expression="a || b"), 10)
    assert Counter(each.tag for each in got) == {"a": 5, "b": 5}
    # The last matching message comes without the others.
    room.send(producer, "last-", 1, tag="a")
    again = room.receive_all(room.simple(expression="a || b"), 1)
    assert [each.body for each in again] == ["last-0"]


def test_an_unacknowledged_message_comes_again_with_its_attempts_counted(room: Room) -> None:
    """After its invisible time, and after the one it is changed to."""
    room.create(queues=1)
    producer, consumer = room.producer(), room.simple()
    room.send(producer, "m-", 1)
    assert len(room.official.receive_until(consumer, lambda got: len(got) >= 1, invisible_ms=30_000)) == 1
    room.mq.clock.advance(seconds=31)
    assert [each.attempt for each in room.official.receive_until(consumer, lambda got: len(got) >= 2)] == [1, 2]
    room.official.ask("change", consumer, 1, HOUR_MS)
    room.mq.clock.advance(minutes=2)
    assert room.official.receive(consumer) == 2
    room.mq.clock.advance(hours=1)
    got = room.official.receive_until(consumer, lambda got: len(got) >= 3)
    assert [(each.body, each.attempt) for each in got] == [("m-0", number) for number in (1, 2, 3)]
    room.official.ask("ack", consumer, 2)


def test_a_push_consumer_gets_every_message_and_what_failed_again(room: Room) -> None:
    """A failed message is redelivered after the group's first delay, with one more attempt; all others come once."""
    room.create(retry=Customized((1_000,)))
    producer, consumer = room.producer(), room.push()
    room.send(producer, "good-")
    room.send(producer, "bad-", 3, fail=1)
    assert room.official.wait_for(consumer, COUNT + 3) == COUNT + 3
    room.step_until_given(consumer, COUNT + 6)
    attempts = Counter((each.body[:3], each.attempt) for each in room.official.taken(consumer))
    assert attempts == {("goo", 1): COUNT, ("bad", 1): 3, ("bad", 2): 3}


def test_a_message_that_fails_too_often_is_dead(room: Room) -> None:
    """It is delivered as often as the group allows, then moves to the group's dead letter topic; others go on."""
    room.create(retries=1, retry=Customized((1_000,)))
    producer, consumer = room.producer(), room.push()
    room.send(producer, "bad-", 2, fail=99)
    room.send(producer, "good-", 2)
    assert room.official.wait_for(consumer, 4) == 4
    room.step_until_given(consumer, 6)
    assert room.dead(2) == ["bad-0", "bad-1"]
    assert Counter(room.bodies(consumer)) == {"bad-0": 2, "bad-1": 2, "good-0": 1, "good-1": 1}


def test_messages_of_one_group_come_in_order_to_one_receiver_at_a_time(room: Room) -> None:
    """Each message group in its order; an unacknowledged message blocks the next ones, and is redelivered first."""
    room.create("FIFO", queues=1, fifo=True)
    producer, first, second = room.producer(), room.simple(), room.simple()
    room.send(producer, "m-", 6, group="g")
    dispatched(room.mq)
    assert room.official.receive(first, 2, 30_000) == 2
    assert room.official.receive(second, 32, 30_000) == 0
    for number in range(2):
        room.official.ask("ack", first, number)
    got = room.official.receive_until(second, lambda got: len(got) >= 4, invisible_ms=30_000)
    room.mq.clock.advance(seconds=31)
    again = room.official.receive_until(first, lambda got: len(got) >= 6)
    assert [(each.body, each.group, each.attempt) for each in again[:2]] == [("m-0", "g", 1), ("m-1", "g", 1)]
    assert [(each.body, each.attempt) for each in got] == [(f"m-{number}", 1) for number in range(2, 6)]
    assert [(each.body, each.attempt) for each in again[2:]] == [(f"m-{number}", 2) for number in range(2, 6)]
    for number in range(2, 6):
        room.official.ask("ack", first, number)


def test_a_fifo_push_consumer_keeps_the_order_where_deliveries_fail(room: Room) -> None:
    """A failed message is redelivered before the next ones."""
    # The Node client knows no customised delays; each waits by its own clock.
    room.create("FIFO", queues=1, fifo=True, retry=Exponential(initial_ms=1_000, max_ms=1_000))
    producer, consumer = room.producer(), room.push()
    room.send(producer, "a-", 2, group="g")
    room.send(producer, "b-", 1, group="g", fail=2)
    room.send(producer, "c-", 2, group="g")
    assert room.official.wait_for(consumer, 7) == 7
    assert room.bodies(consumer) == ["a-0", "a-1", "b-0", "b-0", "b-0", "c-0", "c-1"]


def test_a_message_of_a_group_that_always_fails_is_dead_and_those_after_it_go_on(room: Room) -> None:
    """The client itself sends it to the dead letters."""
    room.create("FIFO", queues=1, fifo=True, retries=1, retry=Exponential(initial_ms=1_000, max_ms=1_000))
    producer, consumer = room.producer(), room.push()
    room.send(producer, "bad-", 1, group="g", fail=99)
    room.send(producer, "good-", 2, group="g")
    assert room.official.wait_for(consumer, 4) == 4
    assert room.bodies(consumer) == ["bad-0", "bad-0", "good-0", "good-1"]
    assert room.dead(1) == ["bad-0"]


def test_a_delayed_message_comes_when_it_is_due_unless_it_is_recalled(room: Room) -> None:
    """An hour later and no second earlier; the receipt's handle recalls one."""
    room.create("DELAY")
    producer, consumer = room.producer(), room.simple()
    due = room.mq.clock.now_ms() + HOUR_MS
    sent = room.send(producer, "m-", 3, at=due)
    assert room.official.ask("recall", producer, room.topic, sent[1].recall_handle) == sent[1].message_id
    room.mq.clock.advance(minutes=59)
    assert room.official.receive(consumer) == 0
    room.mq.clock.advance(minutes=1)
    got = room.receive_all(consumer, 2)
    assert sorted((each.message_id, each.body) for each in got) == sorted(
        (sent[number].message_id, f"m-{number}") for number in (0, 2)
    )
    assert {each.deliver_at for each in got} == {str(due)}
    room.mq.clock.advance(minutes=1)
    assert room.official.receive(consumer) == 2


@pytest.mark.parametrize("verdict", ["commit", "rollback"])
def test_a_transaction_ends_as_its_producer_says_also_when_asked_back(room: Room, verdict: str) -> None:
    """Committed messages come, rolled back ones never; an open one is checked, and ends as the checker answers."""
    room.create("TRANSACTION")
    producer, consumer = room.producer(verdict=verdict), room.simple()
    for end in ("commit", "rollback", "open"):
        room.send(producer, f"{end}-", 3, transaction=end)
    got = room.receive_all(consumer, 3)
    assert sorted(each.body for each in got) == [f"commit-{number}" for number in range(3)]
    for _ in range(60):
        # The first check covers all open ones; one whose answer is in flight is checked twice.
        room.mq.clock.advance(seconds=30)
        if room.eventually(lambda: int(room.official.ask("checked", producer)) >= 3):
            break
    ends = ("commit", "open") if verdict == "commit" else ("commit",)
    expected = [f"{end}-{number}" for end in ends for number in range(3)]
    got = room.receive_all(consumer, len(expected))
    assert sorted(each.body for each in got) == expected
    assert room.official.receive(consumer) == len(expected)


def test_sql_selects_messages(room: Room, caplog: pytest.LogCaptureFixture) -> None:
    """Properties as numbers and texts; a broken expression is refused, with the place of the error."""
    room.create()
    producer = room.producer()
    for price, color in ((1, "red"), (5, "red"), (7, "blue"), (9, "green")):
        room.send(producer, f"{price}-{color}-", 1, price=price, color=color)
    expression = "price BETWEEN 2 AND 8 AND (color = 'red' OR color = 'blue')"
    got = room.receive_all(room.simple(expression=expression, kind="sql"), 2)
    assert sorted(each.body for each in got) == ["5-red-0", "7-blue-0"]
    with pytest.raises(PeerError):
        room.simple(expression="price >", kind="sql")
    # The Java client does not show the server's answer.
    assert "position 7" in caplog.text


def test_higher_priorities_come_first(room: Room) -> None:
    """Also if they were sent last."""
    room.create("PRIORITY", queues=8)
    producer, consumer = room.producer(), room.simple()
    for priority in (1, 3, 5):
        room.send(producer, f"{priority}-", 2, priority=priority)
    dispatched(room.mq)
    for count in range(1, 7):
        room.official.receive(consumer, 1)
        assert len(room.official.taken(consumer)) == count
    assert [(each.body, each.priority) for each in room.official.taken(consumer)] == [
        (f"{priority}-{number}", str(priority)) for priority in (5, 3, 1) for number in range(2)
    ]
