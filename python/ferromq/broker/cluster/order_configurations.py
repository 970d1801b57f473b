"""
The order configurations of a broker's FIFO topics on name servers; each names this broker's queues.

ferromq's name server writes them when a broker registers; RocketMQ's leaves that to administrators. A configuration
that a restarted name server lost is written again, in a round of registration.

RocketMQ's name server cannot change part of a value, so brokers may overwrite each other's writes: the next round
checks what was written.
"""

import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

from ferromq.broker.cluster.name_server_session import AckedState, NameServerFailed, RegistrationAnswer, changed_since
from ferromq.broker.metadata.topics import TopicConfig, is_fifo
from ferromq.protocol import java_json
from ferromq.protocol.order_configuration import all_parts, parts, text_of, with_part
from ferromq.protocol.route import Permission

_WRITES = 3
"""The most writes of a value that other brokers overwrite at the same time."""


class NameServerTable(NamedTuple):
    """The order configurations at one name server, by topic."""

    get: Callable[[str], str | None]
    put: Callable[[str, str], object]


class OrderConfigurations:
    """Remembers and completes the order configurations of name servers; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: Mapping[str, str] = {}

    def registered(
        self,
        before: AckedState | None,
        now: AckedState,
        answer: RegistrationAnswer | None,
        at: NameServerTable,
        written: Collection[str],
    ) -> set[str]:
        """
        Complete a name server's configurations; returns the topics that were written, for the next round to check.

        *before* is its acknowledged state; None: it may have just restarted. *answer* is its answer to a registration;
        None: there was nothing to register. *written* are the topics that the previous round wrote. Raises
        `NameServerFailed`.
        """
        table = table_of(answer.body) if answer is not None else None
        is_partial = answer is None or answer.is_change
        wrote = set[str]()
        for topic in () if now.identity.is_slave else _to_look_at(before, now, answer, written):
            # A partial table may lack an existing configuration.
            is_told = table is not None and (topic.name in table or not is_partial)
            text = table.get(topic.name) if table is not None and is_told else at.get(topic.name)
            made = self._complete(topic, now, text, at, is_new=before is None)
            if made != text:
                wrote.add(topic.name)
            if table is not None and made is not None:
                table[topic.name] = made
        if table is not None:
            with self._lock:
                self._seen = {**self._seen, **table} if is_partial else table
        return wrote

    def _complete(
        self, topic: TopicConfig, now: AckedState, text: str | None, at: NameServerTable, *, is_new: bool
    ) -> str | None:
        name = now.identity.name
        allowed = topic.permission_within(now.identity.permission_of(topic))
        queues = topic.write_queues if allowed & Permission.WRITE else 0
        for turn in range(_WRITES):
            with self._lock:
                lost = all_parts(self._seen.get(topic.name)) if is_new else {}
            wanted = with_part(text_of({**lost, **all_parts(text)}), name, queues)
            if wanted == (text or ""):
                return text
            if turn == 0:
                # Other brokers may have written since the answer to the registration.
                text = at.get(topic.name)
                wanted = with_part(text_of({**lost, **all_parts(text)}), name, queues)
            at.put(topic.name, wanted)
            text = at.get(topic.name)
        if parts(text).get(name, 0) != queues:
            raise NameServerFailed(f"the order configuration of {topic.name} is overwritten by others: {text}")
        return text


def _to_look_at(
    before: AckedState | None, now: AckedState, answer: RegistrationAnswer | None, written: Collection[str]
) -> Iterable[TopicConfig]:
    """Return the FIFO topics that a registration added, and those that the previous round wrote."""
    topics = now.content.entries
    changed = [topic.name for topic in (_changed(before, now) if answer is not None else ())]
    again = [name for name in written if is_fifo(topics.get(name))]
    return [topics[name] for name in dict.fromkeys((*changed, *again))]


def _changed(before: AckedState | None, now: AckedState) -> Iterable[TopicConfig]:
    """Return the FIFO topics that changed since the acknowledged registration."""
    topics = now.content.entries
    if before is not None and before.identity == now.identity:
        names = changed_since(before.content, now.content)
        return [topics[name] for name in names if is_fifo(topics.get(name))]
    return [topic for topic in topics.values() if is_fifo(topic)]


def table_of(body: bytes) -> dict[str, str] | None:
    """Return the order configurations in a registration's answer; None if the name server omits them."""
    if not body:
        return None
    try:
        return {str(topic): str(value) for topic, value in java_json.loads_object(body)["table"].items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
