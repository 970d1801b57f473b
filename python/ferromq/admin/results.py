"""What an administrator returns about topics, groups, their lag, and brokers."""

from collections.abc import Mapping
from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True)
class TopicLag(_Shown):
    """How far a group is in one topic."""

    topic: str
    queues: tuple[QueueLag, ...]

    @property
    def messages(self) -> int:
        """How many messages the group has yet to read."""
        return sum(queue.messages for queue in self.queues)

    @property
    def seconds(self) -> float | None:
        """The age of the oldest message that it has yet to read; None: of no queue with a lag it is known."""
        return _oldest(self.queues)


@dataclass(frozen=True, slots=True)
class GroupLag(_Shown):
    """How far a group is in the topics that it has read."""

    group: str
    queues: tuple[QueueLag, ...]
    """By topic, broker and id."""
    unreachable: tuple[Unreachable, ...] = ()
    """Brokers whose queues are missing; the lag is then at least what is told."""

    @property
    def topics(self) -> tuple[TopicLag, ...]:
        """The lag by topic."""
        names = dict.fromkeys(queue.topic for queue in self.queues)
        return tuple(TopicLag(name, tuple(each for each in self.queues if each.topic == name)) for name in names)

    @property
    def messages(self) -> int:
        """How many messages the group has yet to read."""
        return sum(queue.messages for queue in self.queues)

    @property
    def seconds(self) -> float | None:
        """The age of the oldest message that it has yet to read; None: of no queue with a lag it is known."""
        return _oldest(self.queues)


def _oldest(queues: tuple[QueueLag, ...]) -> float | None:
    behind = [queue for queue in queues if queue.messages]
    ages = [queue.seconds for queue in behind if queue.seconds is not None]
    return max(ages) if ages else None if behind else 0.0


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
    error: FerromqError | None = None
    """Why it told nothing."""
