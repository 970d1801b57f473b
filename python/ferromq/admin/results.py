"""What an administrator returns about topics, groups, their lag, and brokers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ferromq.errors import FerromqError
from ferromq.protocol.retry_policy import RetryPolicy
from ferromq.terminal.objects import html_of


class _Shown:
    """Shows its fields as a table in notebooks."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return html_of(self)


@dataclass(frozen=True, slots=True)
class Unreachable(_Shown):
    """A broker that did not answer, so that a result is without its part."""

    address: str
    error: FerromqError


@dataclass(frozen=True, slots=True)
class QueueRange(_Shown):
    """What a broker holds of one queue of a topic."""

    broker: str
    queue_id: int
    min_offset: int
    """The first message that is kept."""
    max_offset: int
    """Behind the last message."""
    updated: int | None
    """When its last message was stored: milliseconds since 1970; None: it has none."""

    @property
    def messages(self) -> int:
        """How many messages are kept."""
        return max(0, self.max_offset - self.min_offset)


@dataclass(frozen=True, slots=True)
class TopicOnBroker(_Shown):
    """The settings of a topic on one broker."""

    address: str
    read_queues: int
    write_queues: int
    permission: str
    """`rw`, `r`, `w` or `none`."""
    message_type: str | None
    """None: the first message decides."""


@dataclass(frozen=True, slots=True)
class TopicDescription(_Shown):
    """A topic: its settings on each broker, its queues, and the groups that read it."""

    name: str
    brokers: tuple[TopicOnBroker, ...]
    queues: tuple[QueueRange, ...]
    """By broker and id."""
    groups: tuple[str, ...]
    """Those that subscribe to it or have read it."""
    unreachable: tuple[Unreachable, ...] = ()

    @property
    def messages(self) -> int:
        """How many messages are kept in all its queues."""
        return sum(queue.messages for queue in self.queues)


@dataclass(frozen=True, slots=True)
class Member(_Shown):
    """A connected client of a consumer group."""

    client_id: str
    address: str
    """Its `host:port`, as a broker sees it."""
    language: str
    """RocketMQ's name for it, as JAVA."""
    version: str
    """The version of RocketMQ's protocol that it tells, as 5.3.0; a bare number is one of a version before 4.0."""
    protocol: str | None
    """`grpc` or `remoting`; None: its broker does not tell, as RocketMQ's do not."""


@dataclass(frozen=True, slots=True)
class GroupDescription(_Shown):
    """A consumer group: its settings, subscriptions and members."""

    name: str
    fifo: bool
    """Whether it consumes each message group in order."""
    retries: int
    """Redeliveries of a failed message before it becomes a dead letter."""
    retry_policy: RetryPolicy
    """The delays before redeliveries, in milliseconds."""
    enabled: bool
    """Whether its consumers are given messages."""
    subscriptions: Mapping[str, str]
    """Topic → expression, of the present members."""
    members: tuple[Member, ...]
    unreachable: tuple[Unreachable, ...] = ()


@dataclass(frozen=True, slots=True)
class QueueLag(_Shown):
    """How far a group is in one queue."""

    topic: str
    broker: str
    queue_id: int
    committed_offset: int
    """The next offset that the group reads; 0 if it has committed none."""
    min_offset: int
    """The first message that is kept; 0 where it was not asked for."""
    max_offset: int
    """Behind the last message."""
    seconds: float | None
    """The age of the oldest message that the group has yet to read; 0.0 without a lag; None: not known."""

    @property
    def messages(self) -> int:
        """How many kept messages the group has yet to read."""
        return max(0, self.max_offset - max(self.committed_offset, self.min_offset))


class _Lag(_Shown):
    """The lag in some queues."""

    __slots__ = ()
    queues: tuple[QueueLag, ...]

    @property
    def messages(self) -> int:
        """How many messages the group has yet to read."""
        return sum(queue.messages for queue in self.queues)

    @property
    def seconds(self) -> float | None:
        """The age of the oldest message that it has yet to read; None: no queue with a lag has a known age."""
        behind = [queue for queue in self.queues if queue.messages]
        ages = [queue.seconds for queue in behind if queue.seconds is not None]
        return max(ages) if ages else None if behind else 0.0


@dataclass(frozen=True, slots=True)
class TopicLag(_Lag):
    """How far a group is in one topic."""

    topic: str
    queues: tuple[QueueLag, ...]


@dataclass(frozen=True, slots=True)
class GroupLag(_Lag):
    """How far a group is in the topics that it has read."""

    group: str
    queues: tuple[QueueLag, ...]
    """By topic, broker and id."""
    unreachable: tuple[Unreachable, ...] = ()
    """
    Brokers whose queues are missing, because they did not answer or only a slave is registered; the lag may then be
    larger.
    """

    @property
    def topics(self) -> tuple[TopicLag, ...]:
        """The lag by topic."""
        names = dict.fromkeys(queue.topic for queue in self.queues)
        return tuple(TopicLag(name, tuple(each for each in self.queues if each.topic == name)) for name in names)


@dataclass(frozen=True, slots=True)
class QueueReset(_Shown):
    """Where a reset moves a group in one queue."""

    topic: str
    broker: str
    queue_id: int
    from_offset: int | None
    """The committed offset before; None: the group has committed none."""
    to_offset: int
    min_offset: int
    """The first message that is kept."""

    @property
    def replayed(self) -> int:
        """How many kept messages the group reads once more."""
        return 0 if self.from_offset is None else max(0, self.from_offset - max(self.to_offset, self.min_offset))

    @property
    def skipped(self) -> int:
        """How many kept messages the group does not read; without a committed offset it would begin at the first."""
        return max(0, self.to_offset - max(self.from_offset or 0, self.min_offset))


@dataclass(frozen=True, slots=True)
class ReloadedConfig(_Shown):
    """What came of reading a server's configuration file again."""

    changed: tuple[str, ...]
    """The options that changed."""
    restart: tuple[str, ...]
    """The options that differ from the file until the server is restarted."""


@dataclass(frozen=True, slots=True)
class BrokerStatus(_Shown):
    """A registered broker, with its version, rates and disk."""

    cluster: str
    name: str
    broker_id: int
    """0 for a master."""
    address: str
    """Its remoting `host:port`."""
    version: str | None = None
    """RocketMQ's version of its protocol."""
    sent_per_second: float | None = None
    """Messages stored per second, over its last ten seconds."""
    received_per_second: float | None = None
    """Messages handed out per second, over its last ten seconds."""
    sent_today: int | None = None
    """Messages stored since its local midnight."""
    disk_used: float | None = None
    """The used share of the disk of its commit log, from 0 to 1."""
    state: str | None = None
    """`serving`, `draining`, `drained`, `retiring` or `retired`; None: a broker of RocketMQ, which does not say."""
    error: FerromqError | None = None
    """Why it told nothing."""


@dataclass(frozen=True, slots=True)
class User(_Shown):
    """A user of access control. Its secret key is never returned."""

    name: str
    kind: str
    """`Super`, who may do everything, or `Normal`."""
    enabled: bool
    brokers: tuple[str, ...] = ()
    """The addresses of the brokers that have it so."""


@dataclass(frozen=True, slots=True)
class PolicyEntry(_Shown):
    """What a user may do with a resource, or may not."""

    user: str
    policy: str
    """`Custom`, or `Default`, which counts only if no entry of `Custom` matches."""
    resource: str
    """`Topic:NAME`, `Group:NAME`, `Cluster:NAME`; a name may be a prefix with `*` behind it, or `*`; or `*`."""
    actions: tuple[str, ...]
    """`All`, `Pub`, `Sub`, `Create`, `Update`, `Delete`, `Get`, `List`."""
    sources: tuple[str, ...] = ()
    """Addresses of clients and ranges of addresses; empty: all."""
    allow: bool = True
    """False: it denies."""
    brokers: tuple[str, ...] = ()
    """The addresses of the brokers that have it so."""


@dataclass(frozen=True, slots=True)
class Unread(_Shown):
    """Messages of a topic that a group has yet to acknowledge, on one broker."""

    topic: str
    group: str
    messages: int


@dataclass(frozen=True, slots=True)
class Retirement(_Shown):
    """How far a broker is on its way out. Names are whole, with the namespace."""

    broker: str
    is_retired: bool
    """Whether it has left the name servers."""
    unread: tuple[Unread, ...] = ()
    """By topic and group, retries included. A message counts until it is acknowledged."""
    delayed: int = 0
    """Messages that wait for their delivery, retries among them."""
    half: int = 0
    """Half messages whose transactions have not ended; at least, if there are more than 1000."""
    undispatched: int = 0
    """Bytes of the log that are not in queues yet."""
    ordered: tuple[str, ...] = ()
    """Topics whose message groups still belong to the broker."""
    quiet_seconds: float = 0.0
    """Since the last send of a message without order, or since it began to retire."""
    dead_letters: Mapping[str, int] | None = None
    """Dead letters that go with the broker, by group. They hold up nothing."""
    without_readers: Mapping[str, int] | None = None
    """Messages that go with the broker, by topic that no group has read. They hold up nothing."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing is left for consumers, and no message group belongs to the broker."""
        return not (self.unread or self.delayed or self.half or self.undispatched or self.ordered)


@dataclass(frozen=True, slots=True)
class Change(_Shown):
    """A difference between a document and a cluster, which an import removes."""

    kind: str
    """`topic`, `group`, `value`, `option`, `user`, `policy` or `offset`."""
    name: str
    where: str
    """The broker, the name server, or `*`: all name servers."""
    before: Any
    """What is there; None: nothing."""
    after: Any
    error: FerromqError | None = None
    """Why it could not be made."""


@dataclass(frozen=True, slots=True)
class Import(_Shown):
    """What an import changed, or with a dry run would change."""

    changes: tuple[Change, ...]
    """Those with an `error` were not made."""
    without_key: tuple[str, ...] = ()
    """Users that are missing and need a secret key: create them, then import again for their policies."""

    @property
    def is_complete(self) -> bool:
        """Whether the cluster has everything of the document."""
        return not self.without_key and not any(change.error for change in self.changes)
