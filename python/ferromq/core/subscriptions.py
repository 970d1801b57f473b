"""What a consumer or a reader subscribes to: topics with their filters, and where it begins."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, tzinfo
from typing import Literal, TypeAlias

from ferromq._ferromq import MessageView
from ferromq._proto import messages as pb
from ferromq.core.filters import Sql, filter_expression
from ferromq.core.requests import milliseconds, resource
from ferromq.errors import ConfigError
from ferromq.protocol import naming

Topics: TypeAlias = str | Sequence[str] | Mapping[str, str | Sql]
"""A topic, several topics, or the filter of each topic."""
Start: TypeAlias = Literal["first", "last"] | datetime | int
"""The first message, the end, or a time: aware, or in milliseconds since 1970."""


@dataclass(slots=True)
class Subscription:
    """Topics of a group, with their filters."""

    group: str
    """Empty for a reader, which has no group."""
    filters: dict[str, pb.FilterExpression]
    """By topic; at least one."""
    begin: str | None = None
    """Where the group begins, as `start_text` writes it; None: where the broker decides."""
    begun: set[tuple[str, str]] = field(default_factory=set)
    """Topics and brokers at which the group has begun."""
    brokers: dict[str, frozenset[str]] = field(default_factory=dict)
    """The brokers of each topic when the first of them was asked."""
    requests: dict[tuple[str, str, str], bytes] = field(default_factory=dict)
    """The first part of encoded receives, by topic, endpoint and broker name."""
    namespace: str = ""
    """In which group and topics are; they are named without it."""

    @property
    def topics(self) -> str:
        """All topics, for texts."""
        return ",".join(self.filters)

    @property
    def first_topic(self) -> str:
        """The only topic, or the first one."""
        return next(iter(self.filters))

    def topic_of(self, message: MessageView) -> str:
        """Return the topic that requests about a message name."""
        return self.first_topic if len(self.filters) == 1 else message.topic

    def start_at(self, topic: str, broker_name: str, brokers: frozenset[str]) -> str:
        """
        Return where the group begins at a broker of a topic that has these *brokers* now.

        At a broker that joins later it is the first message: what is sent there meanwhile must not be missed.
        """
        return self.begin or "first" if broker_name in self.brokers.setdefault(topic, brokers) else "first"

    def settings(self) -> pb.Subscription:
        """Return it as settings."""
        entries = [
            pb.SubscriptionEntry(topic=resource(topic, self.namespace), expression=wanted)
            for topic, wanted in self.filters.items()
        ]
        return pb.Subscription(group=resource(self.group, self.namespace), subscriptions=entries)


def filters_of(topics: Topics, wanted: str | Sql, namespace: str = "") -> dict[str, pb.FilterExpression]:
    """
    Return the filter of each topic; *wanted* is that of topics without one of their own.

    Raises `IllegalName`, `IllegalFilter`, and `ConfigError` without a topic, or with two filters for one.
    """
    given: object = topics
    if not isinstance(given, Iterable):
        raise TypeError(f"topics must be a topic, a sequence of topics, or a filter for each topic, not {given!r}")
    if isinstance(topics, Mapping):
        if wanted != "*":
            raise ConfigError(f"filter is {wanted!r}, and topics has a filter for each topic; give one of the two")
        named = dict(topics)
    elif isinstance(topics, str):
        named = {topics: wanted}
    else:
        named = dict.fromkeys(topics, wanted)
    if not named:
        raise ConfigError("topics is empty; name at least one topic")
    for topic in named:
        naming.check_topic(topic, namespace)
    return {topic: filter_expression(each) for topic, each in named.items()}


def start_text(start: Start) -> str:
    """Return a start as it travels: `first`, `last`, or milliseconds since 1970. Raises `ValueError` for any other."""
    match start:
        case str() if start in {"first", "last"}:
            return start
        case bool():
            pass
        case int() | datetime(tzinfo=tzinfo()):
            return str(milliseconds(start))
    raise ValueError(f"an aware datetime, milliseconds since 1970, 'first' or 'last' is expected, not {start!r}")
