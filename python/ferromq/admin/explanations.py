"""
What became of a message in each group that reads its topic.

A broker keeps a committed offset for each queue, copies of a message that is retried, and its dead letter; ferromq's
also the leases from that offset on. It keeps no record of single acknowledgements, so what is behind a committed offset
may also have been skipped.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ferromq._ferromq import StoredMessage
from ferromq.admin import messages, progress
from ferromq.admin.asking import Ask, each
from ferromq.admin.calls import Calls
from ferromq.admin.dead_letters import DeadLetter
from ferromq.admin.inventory import readers
from ferromq.admin.results import Unreachable
from ferromq.errors import OutcomeUnknown, RequestError, TopicNotFound
from ferromq.protocol import naming
from ferromq.protocol.delivery import LEASED, OVER, READY
from ferromq.terminal.objects import html_of

State = Literal["dead", "retrying", "leased", "ready", "acknowledged", "behind", "pending", "unread"]
_REAL_TOPIC = "REAL_TOPIC"


@dataclass(frozen=True, slots=True)
class InGroup:
    """What became of a message in one group."""

    group: str
    state: State
    """
    `dead`: it is a dead letter. `retrying`: a copy waits for its next delivery. `leased`: a consumer has it until
    `leased_until`, or gave it back until then. `ready`: it was not acknowledged, and no consumer has a lease of it; one
    that pulls may have it, as pulls leave no lease. `acknowledged`: it was acknowledged, or left out by a filter, and
    an earlier message was not. `behind`: the group is past it, so it was acknowledged, left out by a filter, or skipped
    by a reset. `pending`: it was not acknowledged; whether it is handed out now, its broker does not tell: it is
    RocketMQ, or an older ferromq. `unread`: the group has committed no offset of its queue.
    """
    committed_offset: int | None
    """The next offset of its queue that the group reads."""
    attempts: int | None = None
    """How often it was delivered, if a copy or its lease tells."""
    reason: str | None = None
    """Why it is dead, if its broker noted that."""
    leased_until: int | None = None
    """When its lease expires, in milliseconds since 1970."""
    dead_letter: DeadLetter | None = None
    """
    Its newest dead letter; of `dead`, the newest one at the broker that has the message. In another state it is that of
    an earlier copy: the letter was sent again, and stays until its broker deletes it.
    """

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


def explain(
    calls: Calls, brokers: Iterable[str], topic: str, message_id: str, namespace: str
) -> tuple[Explanation | None, tuple[Unreachable, ...]]:
    """
    Explain the message with an id, None if no broker has it; and return the brokers that did not answer.

    A dead letter that was sent again has the id of its message: the copy that was stored last is explained. Other
    brokers may have dead letters of its earlier copies; one that does not tell them counts as one that did not answer.
    """
    answers, unreachable = each(
        calls, brokers, lambda ask: messages.query_at(ask, topic, message_id, 1, unique=True), later=1
    )
    copies = [(address, message) for address, found in answers for message in found]
    if not copies:
        return None, unreachable
    address, message = max(copies, key=lambda copy: copy[1].store_timestamp)
    groups = _in_groups(Ask(calls, address, 1), message, namespace)
    alive = [group for group, found in groups.items() if found.state != "dead"]
    others = [other for other, _ in answers if other != address]
    letters, silent = _letters_at(calls, others, message, alive, namespace)
    for group in alive:
        known = groups[group].dead_letter
        last = _newest([*letters.get(group, ()), *(() if known is None else (known,))])
        groups[group] = replace(groups[group], dead_letter=last)
    return Explanation(message, address, tuple(groups.values())), (*unreachable, *silent)


def of_copy(calls: Calls, address: str, message: StoredMessage, namespace: str) -> Explanation:
    """Explain a message that a broker has, by what this broker tells."""
    return Explanation(message, address, tuple(_in_groups(Ask(calls, address, 1), message, namespace).values()))


def _in_groups(ask: Ask, message: StoredMessage, namespace: str) -> dict[str, InGroup]:
    """Return what became of a message by group, with whole names, as its broker tells."""
    return {group: _in_group(ask, message, group, namespace) for group in sorted(readers(ask, message.topic))}


def _in_group(ask: Ask, message: StoredMessage, group: str, namespace: str) -> InGroup:
    place = progress.delivery(ask, group, message)
    shown = naming.without_namespace(namespace, group)
    last = _newest(_letters(ask, message, group, namespace))
    if last is not None and _is_copy(last.message, message):
        committed = None if place is None else place.committed
        return InGroup(shown, "dead", committed, last.attempts, last.reason, dead_letter=last)
    return replace(_alive(ask, message, group, shown, place), dead_letter=last)


def _letters_at(
    calls: Calls, brokers: Sequence[str], message: StoredMessage, groups: Collection[str], namespace: str
) -> tuple[dict[str, list[DeadLetter]], list[Unreachable]]:
    """Return the dead letters of a message at other brokers, by group, and the brokers that do not tell them."""
    found: dict[str, list[DeadLetter]] = {}
    failures: list[Unreachable] = []
    for number, address in enumerate(brokers):
        ask = Ask(calls, address, len(brokers) - number)
        try:
            for group in groups:
                found.setdefault(group, []).extend(_letters(ask, message, group, namespace))
        except (OutcomeUnknown, RequestError) as error:
            failures.append(Unreachable(address, error))
    return found, failures


def _letters(ask: Ask, message: StoredMessage, group: str, namespace: str) -> list[DeadLetter]:
    shown = naming.without_namespace(namespace, group)
    letters = _with_id(ask, naming.DLQ_PREFIX + group, message)
    return [DeadLetter(shown, letter, ask.address, namespace) for letter in letters]


def _newest(letters: Iterable[DeadLetter]) -> DeadLetter | None:
    return max(letters, key=lambda letter: letter.message.store_timestamp, default=None)


def _alive(ask: Ask, message: StoredMessage, group: str, shown: str, place: progress.Delivery | None) -> InGroup:
    """Return what became of a message that is no dead letter."""
    committed = None if place is None else place.committed
    retry = naming.RETRY_PREFIX + group
    copies = [
        *_copies(ask, retry, message),
        *(copy for copy in _copies(ask, naming.SCHEDULE_TOPIC, message) if copy.properties.get(_REAL_TOPIC) == retry),
    ]
    if copies:
        last = max(copies, key=lambda copy: copy.reconsume_times)
        return _retried(shown, committed, last, progress.delivery(ask, group, last) if last.topic == retry else None)
    if place is None:
        return InGroup(shown, "unread", None)
    return InGroup(shown, _state(place, message), committed, place.attempts, leased_until=place.leased_until)


def _retried(group: str, committed: int | None, copy: StoredMessage, place: progress.Delivery | None) -> InGroup:
    """Return what became of a message by its last copy, and by that one's place in the retries if it is there."""
    state = "retrying" if place is None else _state(place, copy)
    if place is None or state in {"ready", "pending"}:
        times = copy.reconsume_times + ((place and place.attempts) or 0)
        return InGroup(group, "retrying", committed, times)
    times = copy.reconsume_times + (place.attempts or 1)
    return InGroup(group, state, committed, times, leased_until=place.leased_until)


def _state(place: progress.Delivery, message: StoredMessage) -> State:
    if place.committed > message.queue_offset:
        return "behind"
    states: Mapping[str | None, State] = {READY: "ready", LEASED: "leased", OVER: "acknowledged"}
    return states.get(place.state, "pending")


def _copies(ask: Ask, topic: str, message: StoredMessage) -> list[StoredMessage]:
    """Return the messages of a topic that came from *message*: those with its id that were stored later."""
    return [copy for copy in _with_id(ask, topic, message) if _is_copy(copy, message)]


def _is_copy(copy: StoredMessage, message: StoredMessage) -> bool:
    return copy.store_timestamp >= message.store_timestamp


def _with_id(ask: Ask, topic: str, message: StoredMessage) -> list[StoredMessage]:
    try:
        return messages.query_at(ask, topic, message.message_id, 32, unique=True)
    except TopicNotFound:
        return []
