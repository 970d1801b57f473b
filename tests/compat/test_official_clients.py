"""RocketMQ's official gRPC clients for Java and Node, unmodified, with a broker of ours: every kind of message."""

import hashlib
import itertools
from collections import Counter
from collections.abc import Iterator

import pytest
from official_peer import Got, Official

import ferromq
from ferromq.broker.groups import GroupConfig
from ferromq.broker.topics import TopicConfig

COUNT = 20
HOUR_MS = 3_600_000


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

    def send(self, name: str, prefix: str, count: int = COUNT, **words: object) -> list[str]:
        """Send messages PREFIX0, PREFIX1, …; return their ids."""
        messages = [(self.topic, f"{prefix}{number}", words) for number in range(count)]
        return [sent.message_id for sent in self.official.send(name, messages)]

    def receive_all(self, name: str, count: int) -> list[Got]:
        """Let a simple consumer receive *count* messages, acknowledge them, and return them."""
        got = self.official.receive_until(name, lambda taken: len(taken) >= count)
        for number in range(len(got)):
            self.official.ask("ack", name, number)
        return got

    def _new(self) -> str:
        return f"{self._name}-{next(self._numbers)}"


@pytest.fixture
def room(mq: ferromq.Embedded, official: Official, request: pytest.FixtureRequest) -> Iterator[Room]:
    """Return what a test needs, named after it."""
    room = Room(mq, official, request.node.originalname)
    yield room
    for name in room.open:
        official.ask("close", name)


def test_normal_messages_come_as_they_were_sent(room: Room) -> None:
    """Body, tag, keys, properties and id, each message once."""
    room.create()
    producer, consumer = room.producer(), room.simple()
    ids = room.send(producer, "m-", tag="blue", keys="k1,k2", color="azure", size=7)
    got = room.receive_all(consumer, COUNT)
    assert sorted((each.message_id, each.body) for each in got) == sorted(
        (message_id, f"m-{number}") for number, message_id in enumerate(ids)
    )
    for each in got:
        assert (each.topic, each.tag, each.keys, each.attempt) == (room.topic, "blue", ("k1", "k2"), 1)
        assert each.properties == {"color": "azure", "size": "7"}
        assert (each.group, each.deliver_at) == ("", "")


def test_a_body_up_to_the_limit_passes_both_ways(room: Room) -> None:
    """4 MiB, which is what the settings allow, or what the client can take; it compresses or not, as it likes."""
    room.create()
    producer, consumer = room.producer(), room.simple()
    limit = room.official.largest_body
    room.official.send(producer, [(room.topic, "0123456789abcdef", {"repeat": limit // 16})])
    [got] = room.receive_all(consumer, 1)
    assert got.body == f"{limit}:{hashlib.sha256(b'0123456789abcdef' * (limit // 16)).hexdigest()}"


def test_tags_choose_what_a_consumer_gets(room: Room) -> None:
    """`a || b` gets both, and nothing else; what is left out does not come later."""
    room.create()
    producer = room.producer()
    for tag in ("a", "b", "c"):
        room.send(producer, f"{tag}-", 5, tag=tag)
    got = room.receive_all(room.simple(expression="a || b"), 10)
    assert Counter(each.tag for each in got) == {"a": 5, "b": 5}
    # A last message that is wanted comes without those that are not.
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
    """A failure comes again after the group's first delay, with one more attempt; all others come once."""
    room.create(backoff_ms=(1_000,))
    producer, consumer = room.producer(), room.push()
    room.send(producer, "good-")
    room.send(producer, "bad-", 3, fail=1)
    assert room.official.wait_for(consumer, COUNT + 3) == COUNT + 3
    for _ in range(60):
        # The client tells the broker of a failure after the listener returned: one step of the clock may be too early.
        room.mq.clock.advance(seconds=2)
        if room.official.wait_for(consumer, COUNT + 6, 1) == COUNT + 6:
            break
    attempts = Counter((each.body[:3], each.attempt) for each in room.official.taken(consumer))
    assert attempts == {("goo", 1): COUNT, ("bad", 1): 3, ("bad", 2): 3}
