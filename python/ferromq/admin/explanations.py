"""
What became of a message in each group that reads its topic.

A broker keeps a committed offset for each queue, copies of a message that is retried, and its dead letter. It keeps no
record of single acknowledgements, so what is behind a committed offset may also have been skipped.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from ferromq._ferromq import StoredMessage
from ferromq.admin import messages, progress
from ferromq.admin.asking import Ask
from ferromq.admin.calls import Calls
from ferromq.admin.dead_letters import DeadLetter
from ferromq.admin.inventory import readers
from ferromq.errors import TopicNotFound
from ferromq.protocol import naming
from ferromq.protocol.message_queue import MessageQueue
from ferromq.terminal.objects import html_of

State = Literal["dead", "retrying", "behind", "pending", "unread"]
_REAL_TOPIC = "REAL_TOPIC"


@dataclass(frozen=True, slots=True)
class InGroup:
    """What became of a message in one group."""

    group: str
    state: State
    """
    `dead`: it is a dead letter. `retrying`: a copy waits for its next delivery. `behind`: the group is past it, so it
    was acknowledged, left out by a filter, or skipped by a reset. `pending`: it was not acknowledged, and may be handed
    out now; brokers do not tell. `unread`: the group has committed no offset of its queue.
    """
    committed_offset: int | None
    """The next offset of its queue that the group reads."""
    attempts: int | None = None
    """How often it was delivered, if a copy tells."""
    reason: str | None = None
    """Why it is dead, if its broker noted that."""

    def _repr_html_(self) -> str:
        return html_of(self)


@dataclass(frozen=True, slots=True)
class Explanation:
    """Where a message is stored, and what became of it in each group that reads its topic."""

    message: StoredMessage
    broker: str
    """The remoting address of the broker that has it."""
    groups: tuple[InGroup, ...]

    def _repr_html_(self) -> str:
        return html_of(self)


def explain(calls: Calls, brokers: Iterable[str], topic: str, message_id: str, namespace: str) -> Explanation | None:
    """Explain the message with an id; None if no broker has it."""
    for address in brokers:
        for message in messages.query(calls, [address], topic, message_id, 1, unique=True):
            ask = Ask(calls, address, 1)
            groups = sorted(readers(ask, topic))
            found = tuple(_in_group(calls, ask, message, group, namespace) for group in groups)
            return Explanation(message, address, found)
    return None


def _in_group(calls: Calls, ask: Ask, message: StoredMessage, group: str, namespace: str) -> InGroup:
    committed = progress.committed(ask, group, MessageQueue(message.topic, "", message.queue_id))
    shown = naming.without_namespace(namespace, group)
    for letter in _copies(calls, ask, naming.DLQ_PREFIX + group, message.message_id):
        dead = DeadLetter(shown, letter, ask.address, namespace)
        return InGroup(shown, "dead", committed, dead.attempts, dead.reason)
    retry = naming.RETRY_PREFIX + group
    copies = [
        *_copies(calls, ask, retry, message.message_id),
        *(
            copy
            for copy in _copies(calls, ask, naming.SCHEDULE_TOPIC, message.message_id)
            if copy.properties.get(_REAL_TOPIC) == retry
        ),
    ]
    if copies:
        last = max(copies, key=lambda copy: copy.reconsume_times)
        next_one = progress.committed(ask, group, MessageQueue(last.topic, "", last.queue_id))
        waits = last.topic != retry or next_one is None or next_one <= last.queue_offset
        return InGroup(shown, "retrying" if waits else "behind", committed, last.reconsume_times + (not waits))
    if committed is None:
        return InGroup(shown, "unread", None)
    return InGroup(shown, "behind" if committed > message.queue_offset else "pending", committed)


def _copies(calls: Calls, ask: Ask, topic: str, message_id: str) -> list[StoredMessage]:
    try:
        return messages.query(calls, [ask.address], topic, message_id, 32, unique=True)
    except TopicNotFound:
        return []
