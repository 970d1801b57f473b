"""
The live clients of a broker: members of consumer groups, and producers, over both protocols.

`ClientTable` is pure state: the caller passes the time, and a callback gets the changes. `heartbeats` and
`grpc_sessions` fill it; `rebalance` acts on changes.
"""

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from ferromq.broker.clients.client import Client
from ferromq.broker.clients.connection_index import ClientKey, ConnectionIndex
from ferromq.broker.clients.memory import OF_MEMBER, OF_TOPIC, ClientMemory, size_of_subscriptions, size_of_texts
from ferromq.broker.clients.subscription import BROADCASTING, PASSIVELY, ConsumeSettings, Subscription


@dataclass(frozen=True, slots=True)
class GroupChange:
    """A change of a consumer group, by a heartbeat or by the lack of one."""

    group: str
    subscribed: tuple[Subscription, ...] = ()
    """Subscriptions that are new, or newer."""
    unsubscribed: tuple[str, ...] = ()
    """Topics no longer subscribed to."""
    is_affected: bool = False
    """Whether members must rebalance their queues."""
    is_broadcast: bool = False
    """Whether each member reads all messages."""
    unread: tuple[str, ...] = ()
    """Topics that the last remoting member unsubscribed from."""


@dataclass(frozen=True, slots=True)
class Group:
    """A snapshot of a consumer group."""

    name: str
    consume_settings: ConsumeSettings
    members: tuple[Client, ...]
    subscriptions: Mapping[str, Subscription]
    """By topic."""


@dataclass(slots=True)
class _Entry:
    client: Client
    seen_at: int
    stream: int | None = None
    # Only of a gRPC client; the remoting clients of a group share theirs.
    subscriptions: Mapping[str, Subscription] = field(default_factory=dict)
    # Of a remoting client: the topics that it reported itself, even if another member reported others since.
    topics: frozenset[str] = frozenset()
    # Of a gRPC client.
    consume_type: str = PASSIVELY
    # Bytes counted for its connection, and in total. What members share counts for each of their connections.
    counted: int = 0
    counted_of_all: int = 0


@dataclass(slots=True)
class _Group:
    consume_settings: ConsumeSettings
    fingerprint: int | None = None
    members: dict[ClientKey, _Entry] = field(default_factory=dict)
    subscriptions: dict[str, Subscription] = field(default_factory=dict)
    # The number of remoting members, in total and by topic.
    remoting: int = 0
    readers: dict[str, int] = field(default_factory=dict)
    # Bytes of its own subscriptions.
    size: int = 0

    def all_subscriptions(self) -> dict[str, Subscription]:
        found = {topic: each for entry in self.members.values() for topic, each in entry.subscriptions.items()}
        return {**found, **self.subscriptions}

    def clients(self) -> tuple[Client, ...]:
        return tuple(entry.client for entry in self.members.values())

    @property
    def is_broadcast(self) -> bool:
        """Whether each member reads all queues, so that a change of members needs no rebalance."""
        return self.consume_settings.message_model == BROADCASTING

    def read(self, entry: _Entry, topics: frozenset[str]) -> tuple[str, ...]:
        """Set the topics that a remoting member reads; returns those without a reader now."""
        before, entry.topics = entry.topics, topics
        for topic in topics - before:
            self.readers[topic] = self.readers.get(topic, 0) + 1
        unread = []
        for topic in before - topics:
            self.readers[topic] -= 1
            if not self.readers[topic]:
                del self.readers[topic]
                unread.append(topic)
        return tuple(sorted(unread))


class ClientTable:
    """
    The members of consumer groups and the producers, each with a lease that a heartbeat renews.

    Thread-safe. *on_change* gets each change of a consumer group, in order, while the table is locked: it must not
    call the table, nor wait. *memory* counts what clients keep.
    """

    def __init__(
        self, lease_ms: int, on_change: Callable[[GroupChange], None], memory: ClientMemory | None = None
    ) -> None:
        self.memory = memory or ClientMemory()
        """Counts the memory of the table, and of other state of the same clients."""
        self._lease_ms = lease_ms
        self._on_change = on_change
        self._lock = threading.Lock()
        self._groups: dict[str, _Group] = {}
        self._producers: dict[str, dict[ClientKey, _Entry]] = {}
        # By connection, so that closing one of thousands looks at its own clients alone.
        self._consuming = ConnectionIndex()
        self._producing = ConnectionIndex()
        self._streams: set[int] = set()
        # By id, since replies are addressed to a client id at the rate of messages.
        self._by_id: dict[str, Client] = {}

    def join(
        self,
        group: str,
        client: Client,
        now: int,
        *,
        consume_settings: ConsumeSettings,
        subscriptions: Iterable[Subscription] | None = None,
        fingerprint: int = 0,
    ) -> bool:
        """
        Renew a remoting client's lease as a member of a group; *subscriptions* replace the group's, None keeps them.

        Returns whether the client must send its subscriptions again: the group has none, or others than those of its
        *fingerprint*. Raises `LimitExceeded` at a memory limit; an existing member's lease is renewed all the same.
        """
        with self._lock:
            known = self._groups.get(group) or _Group(consume_settings)
            after, put, removed = _replaced(known.subscriptions, subscriptions)
            entry = known.members.get(client.key) or _Entry(client, now)
            size = known.size if subscriptions is None else size_of_subscriptions(after.values())
            own = _size_of_member(group, client) + OF_TOPIC * len(after)
            self._count(entry, now, own + size, own, shared=size - known.size)
            self._groups[group] = known
            model_changed = known.consume_settings.message_model != consume_settings.message_model
            known.consume_settings = consume_settings
            is_other = known.fingerprint not in {None, fingerprint} or (
                subscriptions is None and not known.subscriptions
            )
            known.fingerprint = fingerprint
            topics_changed = after.keys() != known.subscriptions.keys()
            known.subscriptions, known.size = after, size
            is_new = self._renew(group, known, entry, client, now)
            # A client that omits its subscriptions has the group's, or those that it reported before.
            unread = known.read(entry, frozenset(known.subscriptions)) if is_new or subscriptions is not None else ()
            if model_changed:
                put = tuple(known.subscriptions.values())
                # In broadcasting mode the broker keeps no offsets.
                unread += tuple(known.readers) if known.is_broadcast else ()
            is_affected = not known.is_broadcast and (is_new or topics_changed or model_changed)
            if put or removed or is_affected or unread:
                self._on_change(GroupChange(group, put, removed, is_affected, known.is_broadcast, unread))
            return is_other

    def check_room(self, group: str, client: Client, subscriptions: Iterable[Subscription], more: int = 0) -> None:
        """Raise `LimitExceeded` if a client cannot join a group without members and keep *more* bytes beside it."""
        wanted = {each.topic: each for each in subscriptions}
        size = _size_of_member(group, client) + OF_TOPIC * len(wanted) + size_of_subscriptions(wanted.values())
        self.memory.check(client.connection, size + more)

    def join_over_grpc(
        self,
        group: str,
        client: Client,
        now: int,
        *,
        consume_type: str = PASSIVELY,
        subscriptions: Iterable[Subscription] | None = None,
        stream: int | None = None,
    ) -> None:
        """
        Renew a gRPC client's lease as a member of a group; None keeps its subscriptions.

        Each gRPC client has its own subscriptions, and names one with each request. Raises `LimitExceeded` at a memory
        limit; an existing member's lease is renewed all the same.
        """
        with self._lock:
            known = self._groups.get(group) or _Group(ConsumeSettings(consume_type))
            entry = known.members.get(client.key) or _Entry(client, now)
            own = entry.subscriptions if subscriptions is None else {each.topic: each for each in subscriptions}
            self._count(entry, now, _size_of_member(group, client) + size_of_subscriptions(own.values()))
            self._groups[group] = known
            is_new = self._renew(group, known, entry, client, now)
            entry.subscriptions = own
            entry.consume_type = consume_type
            self._place_stream(entry, stream)
            if is_new and not known.is_broadcast:
                self._on_change(GroupChange(group, is_affected=True))

    def produce(self, group: str, client: Client, now: int, *, stream: int | None = None) -> None:
        """Renew a client's lease as a member of a producer group. Raises `LimitExceeded` at a memory limit."""
        with self._lock:
            entry = self._producers.get(group, {}).get(client.key) or _Entry(client, now)
            self._count(entry, now, _size_of_member(group, client))
            self._producers.setdefault(group, {})[client.key] = entry
            entry.client, entry.seen_at = client, now
            self._place_stream(entry, stream)
            self._producing.put(client.key, group)
            if not client.is_grpc:
                self._by_id[client.client_id] = client

    def renew_producer(self, client_id: str, connection: int, now: int) -> None:
        """Renew a producer's lease in all its groups."""
        with self._lock:
            for group in self._producing.groups((connection, client_id)):
                self._producers[group][connection, client_id].seen_at = now

    def leave(self, group: str, client_id: str, connection: int) -> None:
        """Remove a member from a consumer group."""
        with self._lock:
            self._remove_member(group, (connection, client_id))

    def leave_producers(self, group: str, client_id: str, connection: int) -> None:
        """Remove a member from a producer group."""
        with self._lock:
            self._remove_producer(group, (connection, client_id))

    def remove(self, client_id: str, connection: int) -> None:
        """Remove a client from all groups."""
        with self._lock:
            for group in self._consuming.groups((connection, client_id)):
                self._remove_member(group, (connection, client_id))
            for group in self._producing.groups((connection, client_id)):
                self._remove_producer(group, (connection, client_id))

    def end_stream(self, stream: int) -> None:
        """Mark a telemetry stream as ended; the client stays until its lease expires."""
        with self._lock:
            self._streams.discard(stream)

    def close_connection(self, connection: int) -> None:
        """Remove the clients of a closed connection."""
        with self._lock:
            for group, keys in self._consuming.of(connection).items():
                self._remove_members(group, keys)
            for group, keys in self._producing.of(connection).items():
                for key in keys:
                    self._remove_producer(group, key)

    def expire(self, now: int) -> list[Client]:
        """Remove clients whose lease expired; returns the remoting clients without any group left."""
        with self._lock:
            ended: dict[ClientKey, Client] = {}
            for group, known in list(self._groups.items()):
                late = [key for key, entry in known.members.items() if entry.seen_at + self._lease_ms < now]
                ended.update({key: known.members[key].client for key in late})
                self._remove_members(group, late)
            for group, members in list(self._producers.items()):
                for key in [key for key, entry in members.items() if entry.seen_at + self._lease_ms < now]:
                    ended[key] = members[key].client
                    self._remove_producer(group, key)
            return [
                client
                for client in ended.values()
                if not client.is_grpc
                and client.connection not in self._consuming
                and client.connection not in self._producing
            ]

    def group(self, name: str) -> Group | None:
        """Return a snapshot of a consumer group; None if it has no members."""
        with self._lock:
            known = self._groups.get(name)
            return Group(name, known.consume_settings, known.clients(), known.all_subscriptions()) if known else None

    def members(self, group: str) -> list[str]:
        """Return the ids of a consumer group's members, sorted, without duplicates."""
        with self._lock:
            known = self._groups.get(group)
            return sorted({client_id for _, client_id in known.members}) if known else []

    def member(self, group: str, client_id: str) -> Client | None:
        """Return a member of a consumer group; of an id on two connections, the one seen last."""
        with self._lock:
            known = self._groups.get(group)
            return _latest(known.members if known else {}, client_id)

    def stream(self, group: str, client_id: str) -> int | None:
        """Return the open telemetry stream of a member of a consumer group, or None."""
        with self._lock:
            known = self._groups.get(group)
            entries = known.members.values() if known else ()
            found = next((entry.stream for entry in entries if entry.client.client_id == client_id), None)
            return found if found in self._streams else None

    def with_readers(self, group: str, topic: str, there: Callable[[], None], none_there: Callable[[], None]) -> None:
        """
        Call *there* if remoting members read a topic and keep their offsets here, else *none_there*.

        The table is locked meanwhile, so that *on_change* runs before or after; neither function may call the table,
        nor wait.
        """
        with self._lock:
            known = self._groups.get(group)
            are_there = known is not None and not known.is_broadcast and topic in known.readers
            (there if are_there else none_there)()

    def subscription(self, group: str, topic: str) -> Subscription | None:
        """Return a group's subscription to a topic; None if it has none."""
        with self._lock:
            known = self._groups.get(group)
            return known.all_subscriptions().get(topic) if known else None

    def subscriptions_of(self, group: str, client: Client) -> list[Subscription]:
        """Return the subscriptions of a gRPC member of a consumer group."""
        with self._lock:
            known = self._groups.get(group)
            entry = known.members.get(client.key) if known else None
            return list(entry.subscriptions.values()) if entry else []

    def subscribers(self, topic: str) -> set[str]:
        """Return the groups that subscribe to a topic."""
        with self._lock:
            return {group for group, known in self._groups.items() if topic in known.all_subscriptions()}

    def producers(self, group: str) -> list[Client]:
        """Return the members of a producer group."""
        with self._lock:
            return [entry.client for entry in self._producers.get(group, {}).values()]

    def reachable_producers(self, group: str) -> list[tuple[Client, int | None]]:
        """Return the members of a producer group that the broker can call; gRPC clients with their streams."""
        with self._lock:
            entries = self._producers.get(group, {}).values()
            return [
                (entry.client, entry.stream if entry.client.is_grpc else None)
                for entry in entries
                if not entry.client.is_grpc or entry.stream in self._streams
            ]

    def all_producers(self) -> dict[str, list[tuple[Client, int]]]:
        """Return every producer group, with the last heartbeat of each member."""
        with self._lock:
            return {
                group: [(entry.client, entry.seen_at) for entry in members.values()]
                for group, members in self._producers.items()
            }

    def all_consumers(self) -> list[tuple[str, str, Client]]:
        """Return every member of a consumer group, with its group and how it consumes, in RocketMQ's words."""
        with self._lock:
            return [
                (
                    name,
                    entry.consume_type if entry.client.is_grpc else group.consume_settings.consume_type,
                    entry.client,
                )
                for name, group in self._groups.items()
                for entry in group.members.values()
            ]

    def producer(self, client_id: str) -> Client | None:
        """Return the remoting producer with an id; of an id on two connections, the one seen last."""
        return self._by_id.get(client_id)

    def _count(self, entry: _Entry, now: int, own: int, of_all: int | None = None, *, shared: int = 0) -> None:
        """Count the bytes of an entry and its group anew. Raises `LimitExceeded`; the lease is renewed all the same."""
        entry.seen_at, of_all = now, own if of_all is None else of_all
        self.memory.change(entry.client.connection, own - entry.counted, of_all - entry.counted_of_all + shared)
        entry.counted, entry.counted_of_all = own, of_all

    def _renew(self, group: str, known: _Group, entry: _Entry, client: Client, now: int) -> bool:
        """Renew a member's lease; returns whether it is new."""
        is_new = client.key not in known.members
        known.remoting += not client.is_grpc if is_new else entry.client.is_grpc - client.is_grpc
        entry.client, entry.seen_at = client, now
        if is_new:
            known.members[client.key] = entry
            self._consuming.put(client.key, group)
        return is_new

    def _place_stream(self, entry: _Entry, stream: int | None) -> None:
        if stream is not None:
            entry.stream = stream
            self._streams.add(stream)

    def _remove_member(self, group: str, key: ClientKey) -> None:
        known = self._groups.get(group)
        if known is not None and key in known.members:
            self._remove_members(group, [key])

    def _remove_members(self, group: str, keys: list[ClientKey]) -> None:
        if not keys:
            return
        known, unread, had_remoting = self._groups[group], list[str](), self._groups[group].remoting > 0
        for key in keys:
            entry = known.members.pop(key)
            known.remoting -= not entry.client.is_grpc
            unread += known.read(entry, frozenset())
            self._consuming.discard(key, group)
            self._count(entry, entry.seen_at, 0)
        unsubscribed: tuple[str, ...] = ()
        if had_remoting and not known.remoting:
            # The group's subscriptions were those of remoting members; gRPC members have their own.
            unsubscribed = tuple(known.subscriptions)
            consume_type = next((entry.consume_type for entry in known.members.values()), PASSIVELY)
            self._groups[group] = _Group(ConsumeSettings(consume_type), members=known.members)
            self.memory.change(keys[0][0], 0, -known.size)
        is_affected = bool(known.members) and not self._groups[group].is_broadcast
        if not known.members:
            del self._groups[group]
        self._on_change(GroupChange(group, (), unsubscribed, is_affected, unread=tuple(unread)))

    def _remove_producer(self, group: str, key: ClientKey) -> None:
        members = self._producers.get(group, {})
        entry = members.pop(key, None)
        if entry is None:
            return
        self._count(entry, entry.seen_at, 0)
        self._producing.discard(key, group)
        if not members:
            del self._producers[group]
        latest = self._by_id.get(key[1])
        if latest is not None and latest.key == key and not self._producing.groups(key):
            del self._by_id[key[1]]


def _size_of_member(group: str, client: Client) -> int:
    """Return the bytes of a client in a group, without its topics."""
    return OF_MEMBER + size_of_texts(group, *client.texts)


def _replaced(
    present: dict[str, Subscription], wanted: Iterable[Subscription] | None
) -> tuple[dict[str, Subscription], tuple[Subscription, ...], tuple[str, ...]]:
    """Return a group's subscriptions after replacing them by *wanted*, with those put and the topics removed."""
    if wanted is None:
        return present, (), ()
    by_topic = {each.topic: each for each in wanted}
    put = tuple(
        each for topic, each in by_topic.items() if topic not in present or each.version > present[topic].version
    )
    kept = {topic: each for topic, each in present.items() if topic in by_topic}
    return {**kept, **{each.topic: each for each in put}}, put, tuple(topic for topic in present if topic not in kept)


def _latest(entries: Mapping[ClientKey, _Entry], client_id: str) -> Client | None:
    found = [entry for (_, other), entry in entries.items() if other == client_id]
    return max(found, key=lambda entry: entry.seen_at).client if found else None
