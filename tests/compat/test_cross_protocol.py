"""What RocketMQ's remoting clients send its gRPC clients receive, and the other way round: every kind of message."""

import hashlib
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import NamedTuple

import official_peer
import pytest
from compat_peer import Clients
from official_peer import Official
from waiting import eventually

from ferromq import Clock, Embedded, embedded
from ferromq.broker.metadata.groups import GroupConfig
from ferromq.broker.metadata.topics import TopicConfig

COUNT = 12
ALL = frozenset(range(COUNT))
LARGE = 20_000
HOUR_MS = 3_600_000
PATIENCE = 120


class Kind(NamedTuple):
    """A kind of message: how each side sends it, the subscription, and the expected numbers."""

    remoting: tuple[str, int] | None
    """The remoting producer's command: how, and a number; None if it lacks this kind."""
    grpc: Callable[[Embedded, int], dict[str, object]] | None
    """The gRPC producer's command for a message; None if it lacks this kind."""
    topic: str = "NORMAL"
    subscription: tuple[str, str] = ("tag", "*")
    expected: frozenset[int] = ALL
    wait: timedelta = timedelta()
    """The time from the send to the last delivery."""
    before: frozenset[int] = ALL
    """The numbers that are delivered before."""


def plain(_mq: Embedded, _number: int) -> dict[str, object]:
    """Return no option."""
    return {}


def in_an_hour(mq: Embedded, _number: int) -> dict[str, object]:
    """Return a message's delivery time, by the broker's clock."""
    return {"at": mq.clock.now_ms() + HOUR_MS}


def in_turn(_mq: Embedded, number: int) -> dict[str, object]:
    """Return how a transaction ends, as in `java/Sender.java`."""
    return {"transaction": ("commit", "rollback", "open")[number % 3]}


def numbers(of: Callable[[int], bool]) -> frozenset[int]:
    """Return the matching numbers."""
    return frozenset(filter(of, ALL))


KINDS = {
    "normal": Kind(("sync", 0), plain),
    "tagged": Kind(("sync", 0), plain, "NORMAL", ("tag", "even || other"), numbers(lambda number: number % 2 == 0)),
    "filtered": Kind(
        *(("sync", 0), plain, "NORMAL"),
        *(("sql", "number BETWEEN 3 AND 8 AND TAGS <> 'odd'"), numbers(lambda number: number in {4, 6, 8})),
    ),
    "timed": Kind(("timed", HOUR_MS), in_an_hour, "DELAY", wait=timedelta(hours=1), before=frozenset()),
    # Level 3 is ten seconds; gRPC knows no levels.
    "level": Kind(("delayed", 3), None, "DELAY", wait=timedelta(seconds=10), before=frozenset()),
    # An open one is committed when its producer is asked.
    "transactional": Kind(
        *(("transact", 0), in_turn, "TRANSACTION", ("tag", "*"), numbers(lambda number: number % 3 != 1)),
        wait=timedelta(minutes=2),
        before=numbers(lambda number: number % 3 == 0),
    ),
    "batch": Kind(("batch", 5), None),
    # Which a remoting producer compresses.
    "large": Kind(("large", LARGE), plain),
}


@pytest.fixture(scope="module")
def mq() -> Iterator[Embedded]:
    """Run an embedded broker whose clock stands; each test has a topic and a group of its own."""
    with embedded(clock=Clock.manual()) as mq:
        yield mq


@pytest.fixture(scope="module")
def official(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Official]:
    """Run RocketMQ's gRPC client."""
    official = official_peer.java_client(tmp_path_factory.mktemp("official"))
    yield official
    official.kill()


@pytest.fixture(scope="module")
def remoting(mq: Embedded, clients: Clients) -> str:
    """Start a remoting producer, which ends its open transactions when asked, and return its name."""
    clients.start("transactions", "remoting", mq.namesrv, "remoting-producers")
    return "remoting"


def create(mq: Embedded, name: str, kind: Kind) -> tuple[str, str]:
    """Create a topic and a group, and return their names."""
    topic, group = f"{name}-topic", f"{name}-group"
    mq.broker.topics.put(TopicConfig(topic, 4, 4), {"message.type": kind.topic}, "test")
    mq.broker.groups.put(GroupConfig(group), {}, "test")
    return topic, group


def body(number: int, kind: Kind) -> str:
    """Return the body of a message."""
    return f"m-{number}" + "x" * (LARGE if kind == KINDS["large"] else 0)


def shown(body: str) -> str:
    """Return a body as the gRPC client shows it."""
    return body if len(body) <= 200 else f"{len(body)}:{hashlib.sha256(body.encode()).hexdigest()}"


def let_time_pass(mq: Embedded, kind: Kind) -> None:
    """Let the broker's clock go on for as long as the kind waits, in steps, as time does."""
    for _ in range(10):
        mq.clock.advance(seconds=kind.wait.total_seconds() / 10)


def stored(mq: Embedded, topic: str) -> int:
    """Return how many messages a topic has had."""
    return sum(mq.store.max_offset(topic, queue) for queue in range(4))


@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if kind.remoting])
def test_grpc_clients_receive_what_remoting_clients_send(
    mq: Embedded, clients: Clients, official: Official, remoting: str, name: str
) -> None:
    """Each message once, when it is due and not before, with its tag, key and property."""
    kind = KINDS[name]
    topic, group = create(mq, f"to-grpc-{name}", kind)
    assert kind.remoting
    how, size = kind.remoting
    if how == "transact":
        assert int(clients.ask("transact", remoting, topic, "m-", COUNT)) == COUNT
    else:
        assert clients.send(remoting, how, topic, "m-", COUNT, size) == COUNT
    language, expression = kind.subscription
    official.simple(group, mq.endpoint, group, topic, expression=expression, kind=language)
    assert received(official, group, kind.expected & kind.before) == shown_all(kind, kind.before)
    let_time_pass(mq, kind)
    assert received(official, group, kind.expected) == shown_all(kind, ALL)
    for each in official.taken(group):
        number = int(each.properties["number"])
        assert (each.body, each.tag) == (shown(body(number, kind)), "odd" if number % 2 else "even")
        assert each.keys == (f"m-{number}",)
    official.ask("close", group)


def shown_all(kind: Kind, among: frozenset[int]) -> list[str]:
    """Return the bodies of some numbers."""
    return sorted(shown(body(number, kind)) for number in kind.expected & among)


def received(official: Official, name: str, expected: frozenset[int]) -> list[str]:
    """Return the bodies of a simple consumer once it has enough, and gets no more."""
    # The leases last longer than the wait of any kind.
    official.receive_until(name, lambda got: len(got) >= len(expected), invisible_ms=4 * HOUR_MS)
    official.receive(name, invisible_ms=4 * HOUR_MS)
    return sorted(each.body for each in official.taken(name))


@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if kind.grpc])
def test_remoting_clients_receive_what_grpc_clients_send(
    mq: Embedded, clients: Clients, official: Official, name: str
) -> None:
    """Each message once, when it is due and not before."""
    kind = KINDS[name]
    topic, group = create(mq, f"to-remoting-{name}", kind)
    assert kind.grpc
    # A producer is asked about open transactions of the topics of its start.
    producer = f"{group}-producer"
    official.producer(producer, mq.endpoint, topic, verdict="commit")
    official.send(producer, [(topic, body(number, kind), sent_with(mq, kind, number)) for number in range(COUNT)])
    before = len(kind.before)
    assert eventually(lambda: stored(mq, topic) >= before)
    clients.start("push", group, mq.namesrv, group, topic, "concurrent", 0, *kind.subscription)
    assert clients.wait_for(group, len(kind.expected & kind.before), PATIENCE) == len(kind.expected & kind.before)
    assert stored(mq, topic) == before
    let_time_pass(mq, kind)
    assert clients.wait_for(group, len(kind.expected), PATIENCE) == len(kind.expected)
    assert sorted(each.body for each in clients.taken(group)) == sorted(body(number, kind) for number in kind.expected)
    clients.ask("close", group)
    official.ask("close", producer)


def sent_with(mq: Embedded, kind: Kind, number: int) -> dict[str, object]:
    """Return the gRPC producer's command for a message: the defaults of a remoting producer, and its kind."""
    assert kind.grpc
    return {"tag": "odd" if number % 2 else "even", "keys": f"m-{number}", "number": number, **kind.grpc(mq, number)}


def test_a_batch_of_our_client_is_received_over_remoting(mq: Embedded, clients: Clients) -> None:
    """Messages of one gRPC request come one by one."""
    topic, group = create(mq, "batch-to-remoting", KINDS["batch"])
    with mq.producer() as producer:
        producer.send_all(topic, [body(number, KINDS["batch"]).encode() for number in range(COUNT)])
    clients.start("push", group, mq.namesrv, group, topic, "concurrent", 0)
    assert clients.wait_for(group, COUNT, PATIENCE) == COUNT
    assert sorted(each.body for each in clients.taken(group)) == sorted(f"m-{number}" for number in range(COUNT))
    clients.ask("close", group)
