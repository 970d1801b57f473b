"""The table of live clients, and the locks of queues: time is an argument."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ferromq.broker.clients.client import Client
from ferromq.broker.clients.memory import ClientMemory, LimitExceeded
from ferromq.broker.clients.queue_locks import LOCK_MS, QueueLocks
from ferromq.broker.clients.subscription import BROADCASTING, ConsumeSettings, Subscription
from ferromq.broker.clients.table import ClientTable, Group, GroupChange
from ferromq.config import consume
from ferromq.config.consume import ConsumeConfig
from ferromq.errors import ConfigError
from ferromq.protocol.java_hash import java_hash
from ferromq.protocol.message_queue import MessageQueue

LEASE = 100


def client(name: str, connection: int, **other: Any) -> Client:
    """Return a remoting client."""
    return Client(name, connection, f"127.0.0.1:{connection}", "JAVA", 513, **other)


class Table(ClientTable):
    """A table of clients that records its notices."""

    def __init__(self, memory: ClientMemory | None = None) -> None:
        self.told: list[GroupChange] = []
        super().__init__(LEASE, self.told.append, memory)

    def take(self) -> list[GroupChange]:
        """Return the changes since the last call."""
        told, self.told[:] = self.told.copy(), []
        return told

    def affected(self) -> list[str]:
        """Return the groups whose members must rebalance since the last call, once for each change."""
        return [change.group for change in self.take() if change.is_affected]


def join(table: ClientTable, name: str, connection: int, now: int = 0, **other: Any) -> bool:
    """Let a client join the group g."""
    wanted = other.pop("subscriptions", [Subscription("t")])
    consume_settings = ConsumeSettings(**other.pop("consume_settings", {}))
    return table.join(
        "g", client(name, connection), now, consume_settings=consume_settings, subscriptions=wanted, **other
    )


def test_members_are_told_when_others_come_and_go() -> None:
    """Those that stay and the new one; not at a renewal."""
    table = Table()
    join(table, "a", 1)
    join(table, "b", 2)
    assert table.affected() == ["g", "g"]
    join(table, "a", 1, now=50)
    assert table.take() == []
    table.leave("g", "a", 1)
    assert table.affected() == ["g"]
    table.leave("g", "a", 1)
    assert table.take() == []


def test_members_are_told_of_other_topics_but_not_of_other_tags() -> None:
    """Queues are shared by topic; the hot path gets both."""
    table = Table()
    join(table, "a", 1, subscriptions=[Subscription("t", version=1)])
    table.take()
    newer = Subscription("t", "red", version=2)
    join(table, "a", 1, subscriptions=[newer])
    assert table.take() == [GroupChange("g", subscribed=(newer,))]
    join(table, "a", 1, subscriptions=[Subscription("t", "blue", version=1)])
    assert table.take() == []
    assert table.subscription("g", "t") == newer
    other = Subscription("u", version=1)
    join(table, "a", 1, subscriptions=[other])
    assert table.take() == [GroupChange("g", (other,), ("t",), is_affected=True, unread=("t",))]


def test_the_subscriptions_of_a_group_end_with_its_last_member() -> None:
    """Only the hot path gets it."""
    table = Table()
    join(table, "a", 1)
    table.take()
    table.close_connection(1)
    assert table.take() == [GroupChange("g", unsubscribed=("t",), unread=("t",))]
    assert table.group("g") is None
    assert table.members("g") == []


def until_refused(act: Callable[[int], object]) -> str:
    """Repeat an action until the clients' memory is used up, and return the error."""
    for number in range(100):
        try:
            act(number)
        except LimitExceeded as error:
            return str(error)
    raise AssertionError("nothing was refused")


def group_of(table: ClientTable) -> Group:
    """Return the group g, which is there."""
    found = table.group("g")
    assert found is not None
    return found


def test_the_memory_of_a_connections_clients_is_bounded() -> None:
    """Groups, subscriptions and texts count; existing ones stay, are renewed, and may shrink."""
    table = Table(ClientMemory(of_connection=10_000))
    refusal = until_refused(lambda number: table.produce(f"p{number}", client("a", 1), 0))
    assert re.search(r"of this connection would take \d+ bytes .* 10000 are allowed", refusal)
    assert 4 < len(table.all_producers()) < 10
    table.produce("p0", client("a", 1), 5)
    table.produce("p0", client("b", 2), 5)
    for wanted in ([Subscription("t", "x" * 10_000)], [Subscription(f"t{number}") for number in range(100)]):
        with pytest.raises(LimitExceeded):
            join(table, "c", 3, subscriptions=wanted)
    with pytest.raises(LimitExceeded):
        join(table, "c" * 10_000, 3)
    with pytest.raises(LimitExceeded):
        table.join_over_grpc("g", client("c", 3, is_grpc=True), 0, subscriptions=[Subscription("t", "x" * 10_000)])
    assert table.group("g") is None
    table.close_connection(1)
    table.close_connection(2)
    assert table.memory.total == 0


@pytest.mark.parametrize(("gib", "mib"), [(0, 256), (1, 256), (2, 512), (4, 1024), (64, 1024)])
def test_all_clients_may_use_a_quarter_of_the_memory(monkeypatch: pytest.MonkeyPatch, gib: int, mib: int) -> None:
    """At least 256 MiB, at most 1 GiB, unless the option says otherwise."""
    monkeypatch.setattr(consume, "usable_memory", lambda: gib << 30)
    assert ConsumeConfig().memory_of_clients == mib << 20
    assert ConsumeConfig(client_memory=64 << 20).memory_of_clients == 64 << 20


@pytest.mark.parametrize("name", ["client_memory", "client_memory_by_connection", "lock_memory"])
def test_a_budget_has_a_least_size(name: str) -> None:
    """And a connection cannot have more than all together."""
    with pytest.raises(ConfigError, match=f"{name} is 5; it may be 1048576 to"):
        ConsumeConfig.from_options({name: "5"})
    with pytest.raises(ConfigError, match=r"client_memory_by_connection is 8388608 bytes, but .* take 2097152"):
        ConsumeConfig.from_options({"client_memory": "2MiB"})


def test_the_memory_of_all_clients_is_bounded() -> None:
    """The subscriptions that members share count once for all, and for each of their connections."""
    wanted = [Subscription("t", "x" * 5_000)]
    table = Table(ClientMemory(of_connection=8_000, of_all=20_000))
    refusal = until_refused(lambda connection: join(table, "a", connection, subscriptions=wanted))
    assert re.search(r"of all clients would take \d+ bytes .* 20000 are allowed", refusal)
    assert 8 < len(group_of(table).members) < 14
    until_refused(lambda connection: table.produce("p", client("a", connection), 0))
    join(table, "a", 0, now=1, subscriptions=wanted)
    with pytest.raises(LimitExceeded, match="of this connection"):
        table.join("h", client("a", 0), 0, consume_settings=ConsumeSettings(), subscriptions=wanted)
    table.close_connection(0)
    table.produce("p", client("a", 90), 0)


def test_a_member_without_subscriptions_has_those_of_the_group() -> None:
    """Another member may have sent them, and left."""
    table = Table(ClientMemory(of_connection=8_000))
    join(table, "a", 1, subscriptions=[Subscription("t", "x" * 5_000)])
    join(table, "b", 2, subscriptions=None)
    with pytest.raises(LimitExceeded):
        table.join(
            "h", client("b", 2), 0, consume_settings=ConsumeSettings(), subscriptions=[Subscription("t", "x" * 5_000)]
        )


def test_the_memory_of_locks_is_bounded() -> None:
    """Existing ones are renewed; an expired or unlocked one frees memory."""
    most = 10_000
    locks, queue = QueueLocks(max_bytes=most), MessageQueue("t", "a", 0)
    other = MessageQueue("x" * (most // 2), "a", 0)
    assert locks.lock("g", [queue, other], "a", 0) == [queue, other]
    for client_id in ("b", "a"):
        with pytest.raises(LimitExceeded, match=f"{most} are allowed; .* lock_memory"):
            locks.lock("h", [other], client_id, 0)
    assert locks.lock("g", [queue, other], "a", 1) == [queue, other]
    locks.unlock("g", [other], "a")
    assert locks.lock("h", [other, other], "b", 1) == [other]
    with pytest.raises(LimitExceeded):
        locks.lock("g", [other], "a", 1)
    assert locks.lock("h", [other], "c", LOCK_MS + 2) == [other]
    locks.expire(LOCK_MS + LOCK_MS + 3)
    assert locks.lock("g", [other], "a", LOCK_MS) == [other]
    locks.expire(3 * LOCK_MS)
    assert locks._size == 0


def test_members_that_each_read_everything_are_not_told() -> None:
    """In broadcasting mode a change of members needs no rebalance."""
    table = Table()
    join(table, "a", 1, consume_settings={"message_model": BROADCASTING})
    join(table, "b", 2, consume_settings={"message_model": BROADCASTING})
    assert table.affected() == []


def test_a_group_has_members_over_both_protocols() -> None:
    """They are in one list and both are reported; the subscriptions of a gRPC client are its own."""
    table = Table()
    join(table, "a", 1)
    table.take()
    table.join_over_grpc("g", client("b", 2, is_grpc=True), 0, subscriptions=[Subscription("u", "red")], stream=9)
    (change,) = table.take()
    assert change.is_affected
    assert not change.subscribed
    assert table.members("g") == ["a", "b"]
    group = table.group("g")
    assert group is not None
    assert sorted(group.subscriptions) == ["t", "u"]
    assert table.subscribers("u") == {"g"}
    assert table.stream("g", "b") == 9
    # A remoting heartbeat does not remove subscriptions of gRPC members.
    join(table, "a", 1)
    assert table.subscription("g", "u") == Subscription("u", "red")
    table.end_stream(9)
    assert table.stream("g", "b") is None
    assert table.members("g") == ["a", "b"]
    table.remove("b", 2)
    assert table.affected() == ["g"]
    assert table.subscription("g", "u") is None


def test_topics_are_unread_when_no_member_reads_them() -> None:
    """Not when another member's heartbeat lacks them, as where two programs share a group by mistake."""
    table = Table()
    t, u = [Subscription("t")], [Subscription("u")]
    join(table, "a", 1, subscriptions=t)
    for _ in range(3):
        join(table, "b", 2, subscriptions=u)
        join(table, "a", 1, subscriptions=t)
        join(table, "c", 3, subscriptions=None)
    assert [change.unread for change in table.take() if change.unread] == []
    table.leave("g", "b", 2)
    join(table, "c", 3, subscriptions=u)
    join(table, "a", 1, subscriptions=u)
    table.close_connection(3)
    table.close_connection(1)
    assert [change.unread for change in table.take() if change.unread] == [("u",), ("t",), ("u",)]


def test_readers_are_remoting_members_that_keep_their_offsets_here() -> None:
    """Readers are found with the table locked, by each member's own topics."""
    table, found = Table(), list[str]()

    def ask(topic: str) -> str:
        table.with_readers("g", topic, there=lambda: found.append("there"), none_there=lambda: found.append("none"))
        return found.pop()

    assert ask("t") == "none"
    table.join_over_grpc("g", client("c", 3, is_grpc=True), 0, subscriptions=[Subscription("t")])
    assert ask("t") == "none"
    join(table, "a", 1)
    join(table, "b", 2, subscriptions=[Subscription("u")])
    assert (ask("t"), ask("u"), ask("v")) == ("there", "there", "none")
    table.take()
    join(table, "a", 1, consume_settings={"message_model": BROADCASTING})
    assert ask("t") == "none"
    assert set(table.take()[0].unread) == {"t", "u"}


def test_subscriptions_of_remoting_members_end_with_the_last_of_them() -> None:
    """A gRPC member that stays has its own topics and settings; subscriptions that are gone are not asked for."""
    table = Table()
    table.join_over_grpc("g", client("c", 3, is_grpc=True), 0, consume_type="CONSUME_ACTIVELY")
    join(table, "a", 1, consume_settings={"message_model": BROADCASTING}, fingerprint=7)
    join(table, "b", 2, consume_settings={"message_model": BROADCASTING}, fingerprint=7)
    table.leave("g", "a", 1)
    assert table.subscription("g", "t") is not None
    table.take()
    table.leave("g", "b", 2)
    assert table.take() == [GroupChange("g", unsubscribed=("t",), is_affected=True, unread=("t",))]
    group = table.group("g")
    assert group is not None
    assert (dict(group.subscriptions), group.consume_settings) == ({}, ConsumeSettings("CONSUME_ACTIVELY"))
    assert not join(table, "d", 4, fingerprint=8)


def test_a_connection_that_ends_takes_its_own_clients_alone() -> None:
    """Of many on it, in several groups; of a client with one id on two, the other stays."""
    table = Table()
    for name in ("a", "b"):
        join(table, name, 1)
        table.join("h", client(name, 1), 0, consume_settings=ConsumeSettings(), subscriptions=[Subscription("t")])
        table.produce("p", client(name, 1), 0)
    join(table, "a", 2)
    table.remove("b", 1)
    assert (table.members("g"), table.members("h")) == (["a"], ["a"])
    assert [each.client_id for each in table.producers("p")] == ["a"]
    table.renew_producer("a", 1, 50)
    assert table.all_producers() == {"p": [(client("a", 1), 50)]}
    table.close_connection(1)
    assert (table.members("g"), table.members("h"), table.producers("p")) == (["a"], [], [])


def test_leases_end_and_are_renewed() -> None:
    """A lease expires after its time, not at it; changes are reported, and connections without clients returned."""
    table = Table()
    join(table, "a", 1)
    join(table, "b", 2, now=60)
    table.produce("p", client("a", 1), 0)
    table.join_over_grpc("other", client("c", 3, is_grpc=True), 0)
    table.take()
    assert table.expire(LEASE) == []
    assert table.expire(LEASE + 1) == [client("a", 1)]
    assert [(change.group, change.is_affected) for change in table.take()] == [("g", True), ("other", False)]
    assert table.members("g") == ["b"]
    assert table.producers("p") == []
    assert table.expire(160) == []
    assert table.expire(161) == [client("b", 2)]


def test_a_connection_with_a_live_member_is_kept() -> None:
    """A client that silently left one of its groups is alive for the others."""
    table = Table()
    join(table, "a", 1)
    table.produce("p", client("a", 1), 60)
    assert table.expire(LEASE + 1) == []
    assert (table.members("g"), len(table.producers("p"))) == ([], 1)


def test_a_client_that_reconnects_is_one_member() -> None:
    """The end of its old connection does not change the answer."""
    table = Table()
    join(table, "a", 1)
    join(table, "a", 2, now=1)
    table.produce("p", client("a", 1), 0)
    table.produce("p", client("a", 2), 1)
    assert table.members("g") == ["a"]
    found = table.member("g", "a")
    assert found is not None
    assert found.connection == 2
    table.close_connection(1)
    assert table.members("g") == ["a"]
    assert table.producer("a") == client("a", 2)
    table.close_connection(2)
    assert table.producer("a") is None
    assert table.members("g") == []


def test_a_producer_is_found_by_its_id_as_long_as_it_is_in_a_group() -> None:
    """Replies go there."""
    table = Table()
    table.produce("p", client("a", 1), 0)
    table.produce("q", client("a", 1), 0)
    table.leave_producers("p", "a", 1)
    assert table.producer("a") == client("a", 1)
    assert table.all_producers() == {"q": [(client("a", 1), 0)]}
    table.leave_producers("q", "a", 1)
    assert table.producer("a") is None


def test_a_client_that_left_out_its_subscriptions_is_asked_for_them() -> None:
    """If the group has none, as after a restart of the broker, or others than the fingerprint."""
    table = Table()
    assert join(table, "a", 1, subscriptions=None, fingerprint=7)
    assert not join(table, "a", 1, fingerprint=7)
    assert not join(table, "a", 1, subscriptions=None, fingerprint=7)
    assert join(table, "b", 2, fingerprint=8)
    assert join(table, "a", 1, subscriptions=None, fingerprint=7)
    assert table.subscription("g", "t") is not None


@pytest.mark.parametrize(
    ("text", "hash_code"), [("", 0), ("TagA", 2598919), ("polygenelubricants", -(1 << 31)), ("\U0001f600", 1772899)]
)
def test_tags_are_hashed_as_java_does(text: str, hash_code: int) -> None:
    """Java's filter compares the hashes."""
    assert java_hash(text) == hash_code


def test_an_expression_names_its_tags() -> None:
    """All tags, and a filter that is not of tags, name none."""
    wanted = Subscription.of("t", "TagA || b", "TAG", 3)
    assert (wanted.tags, wanted.codes) == (("TagA", "b"), (2598919, 98))
    assert Subscription.of("t", "*", "TAG", 3).tags == ()
    assert Subscription.of("t", "a > 5", "SQL92", 3).tags == ()


# Queue locks

QUEUES = [MessageQueue("t", "broker-a", number) for number in range(3)]


def test_a_queue_is_locked_for_one_member_of_a_group() -> None:
    """The others get what is left; other groups have locks of their own."""
    locks = QueueLocks()
    assert locks.lock("g", QUEUES[:2], "a", 0) == QUEUES[:2]
    assert locks.lock("g", QUEUES, "b", 0) == QUEUES[2:]
    assert locks.lock("h", QUEUES, "b", 0) == QUEUES
    locks.unlock("g", QUEUES, "b")
    assert locks.lock("g", QUEUES, "a", 0) == QUEUES


def test_a_lock_without_a_renewal_expires() -> None:
    """After 60 seconds, not at them; renewing begins them anew."""
    locks = QueueLocks()
    locks.lock("g", QUEUES[:1], "a", 0)
    locks.lock("g", QUEUES[:1], "a", 1_000)
    assert locks.lock("g", QUEUES[:1], "b", 1_000 + LOCK_MS) == []
    assert locks.lock("g", QUEUES[:1], "b", 1_001 + LOCK_MS) == QUEUES[:1]
    assert locks.lock("g", QUEUES[:1], "a", 1_001 + LOCK_MS) == []


def test_each_change_of_the_end_of_a_groups_locks_is_reported() -> None:
    """The latest lock counts; None once all are unlocked or expired."""
    told: list[tuple[str, int | None]] = []
    locks = QueueLocks(100, on_change=lambda *change: told.append(change))
    locks.lock("g", QUEUES[:1], "a", 0)
    locks.lock("g", QUEUES[:2], "b", 10)
    locks.lock("g", QUEUES[:1], "c", 20)
    locks.unlock("g", QUEUES, "b")
    locks.unlock("g", QUEUES, "b")
    locks.unlock("g", QUEUES, "a")
    locks.lock("h", QUEUES, "a", 30)
    locks.expire(130)
    locks.expire(131)
    assert told == [("g", 100), ("g", 110), ("g", 100), ("g", None), ("h", 130), ("h", None)]


@dataclass
class Model:
    """A simple model of clients and locks."""

    now: int = 0
    seen: dict[tuple[str, int, str], int] = field(default_factory=dict)
    """(group, connection, client) → when it was seen."""
    owners: dict[tuple[str, MessageQueue], tuple[str, int]] = field(default_factory=dict)

    def members(self, group: str) -> set[str]:
        """Return the ids of the members of a group."""
        return {name for other, _, name in self.seen if other == group}


GROUPS = st.sampled_from(["g", "h"])
NAMES = st.sampled_from(["a", "b", "c"])
CONNECTIONS = st.integers(1, 4)


class Clients(RuleBasedStateMachine):
    """Random heartbeats, departures and locks against a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.model, self.table, self.locks = Model(), Table(), QueueLocks(LEASE)
        self.wanted: dict[str, set[str]] = {}
        self.heard: dict[str, set[str]] = {}

    @rule(group=GROUPS, name=NAMES, connection=CONNECTIONS, topics=st.sets(st.sampled_from(["t", "u"]), min_size=1))
    def join(self, group: str, name: str, connection: int, topics: set[str]) -> None:
        """Join a group, or stay."""
        before = set(self.model.seen)
        wanted = [Subscription(topic) for topic in topics]
        self.table.join(
            group, client(name, connection), self.model.now, consume_settings=ConsumeSettings(), subscriptions=wanted
        )
        changed = (group, connection, name) not in before or self.wanted.get(group) != topics
        self.model.seen[group, connection, name] = self.model.now
        self.wanted[group] = topics
        self.expect_told({group} if changed else set())

    @rule(group=GROUPS, name=NAMES, connection=CONNECTIONS)
    def leave(self, group: str, name: str, connection: int) -> None:
        """Leave a group."""
        self.table.leave(group, name, connection)
        self.forget({(group, connection, name)})

    @rule(connection=CONNECTIONS)
    def close(self, connection: int) -> None:
        """Lose a connection."""
        self.table.close_connection(connection)
        self.forget({key for key in self.model.seen if key[1] == connection})

    @rule(step=st.integers(0, LEASE + 1))
    def pass_time(self, step: int) -> None:
        """Let time pass."""
        self.model.now += step
        self.table.expire(self.model.now)
        self.locks.expire(self.model.now)
        self.forget({key for key, seen in self.model.seen.items() if self.model.now - seen > LEASE})

    @rule(group=GROUPS, name=NAMES, queues=st.lists(st.sampled_from(QUEUES), unique=True))
    def lock(self, group: str, name: str, queues: list[MessageQueue]) -> None:
        """Lock queues: exactly those that no other client holds."""
        held = self.locks.lock(group, queues, name, self.model.now)
        for queue in queues:
            owner, renewed = self.model.owners.get((group, queue), (name, 0))
            is_free = owner == name or self.model.now - renewed > LEASE
            assert (queue in held) == is_free
            if is_free:
                self.model.owners[group, queue] = name, self.model.now

    @rule(group=GROUPS, name=NAMES, queues=st.lists(st.sampled_from(QUEUES), unique=True))
    def unlock(self, group: str, name: str, queues: list[MessageQueue]) -> None:
        """Free queues."""
        self.locks.unlock(group, queues, name)
        for queue in queues:
            if self.model.owners.get((group, queue), ("", 0))[0] == name:
                del self.model.owners[group, queue]

    def forget(self, gone: set[tuple[str, int, str]]) -> None:
        """Take members away."""
        gone &= set(self.model.seen)
        for key in gone:
            del self.model.seen[key]
        for group in {group for group, _, _ in gone}:
            if not self.model.members(group):
                del self.wanted[group]
        self.expect_told({group for group, _, _ in gone})

    def expect_told(self, groups: set[str]) -> None:
        """Every changed group is reported with all its members, and no other."""
        told = self.table.take()
        for change in told:
            heard = self.heard.setdefault(change.group, set())
            heard -= set(change.unsubscribed)
            heard |= {wanted.topic for wanted in change.subscribed}
        assert {change.group for change in told if change.is_affected or change.unsubscribed} >= groups
        for group in groups:
            last = [change for change in told if change.group == group][-1]
            assert last.is_affected == bool(self.model.members(group))

    @invariant()
    def members_are_those_seen(self) -> None:
        """Compare members and the hot path's subscriptions with the model."""
        for group in ("g", "h"):
            assert self.table.members(group) == sorted(self.model.members(group))
            assert self.heard.get(group, set()) == self.wanted.get(group, set())
            assert (self.table.group(group) is None) == (not self.model.members(group))

    @invariant()
    def memory_is_counted_while_a_client_exists(self) -> None:
        """After any joins and leaves."""
        there = any(map(self.model.members, ("g", "h"))) or bool(self.table.all_producers())
        assert (self.table.memory.total > 0) == there
        assert self.table.memory.total >= 0


Clients.TestCase.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)
TestClients = Clients.TestCase
