"""
The order configurations of a broker's FIFO topics, as name servers have them: each names this broker's queues.

ferromq's name server writes them by itself when a broker registers; RocketMQ's leaves that to whoever makes a topic.
What one that restarted without its table has lost is put there again. Called in the rounds of registration.

RocketMQ's name server has no request that changes a part of a value. So a broker that writes one may overwrite what
another one wrote since it was read: what was written is looked at again in the next round.
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
"""How often a value is written that another broker overwrote at the same moment."""


class NameServerTable(NamedTuple):
    """The order configurations at one name server, by topic."""

    get: Callable[[str], str | None]
    put: Callable[[str, str], object]


class OrderConfigurations:
    """Remembers what name servers had, and completes it; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: Mapping[str, str] = {}

    def registered(
        self,
        before: AckedState | None,
        now: AckedState,
        told: RegistrationAnswer | None,
        at: NameServerTable,
        written: Collection[str],
    ) -> set[str]:
        """
        Complete what a name server has, and return the topics that were written: they are looked at in the next round.

        *before* is what it had been told until now; None: maybe it has just started. *told* is its answer to a
        registration; None: there was nothing to register. *written* are the topics that were written in the round
        before. Raises `NameServerFailed`.
        """
        table = table_of(told.body) if told is not None else None
        is_partial = told is None or told.is_change
        wrote = set[str]()
        for topic in () if now.identity.is_slave else _to_look_at(before, now, told, written):
            # A part of the table may lack what is there.
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
        allowed = topic.permission_within(now.identity.allowed)
        queues = topic.write_queues if allowed & Permission.WRITE else 0
        for turn in range(_WRITES):
            with self._lock:
                lost = all_parts(self._seen.get(topic.name)) if is_new else {}
            wanted = with_part(text_of({**lost, **all_parts(text)}), name, queues)
            if wanted == (text or ""):
                return text
            if turn == 0:
                # The answer to a registration is older than what other brokers wrote meanwhile.
                text = at.get(topic.name)
                wanted = with_part(text_of({**lost, **all_parts(text)}), name, queues)
            at.put(topic.name, wanted)
            text = at.get(topic.name)
        if parts(text).get(name, 0) != queues:
            raise NameServerFailed(f"the order configuration of {topic.name} is overwritten by others: {text}")
        return text


def _to_look_at(
    before: AckedState | None, now: AckedState, told: RegistrationAnswer | None, written: Collection[str]
) -> Iterable[TopicConfig]:
    """Return the FIFO topics that a name server was just told of for the first time, and those written before."""
    topics = now.content.entries
    changed = [topic.name for topic in (_changed(before, now) if told is not None else ())]
    again = [name for name in written if is_fifo(topics.get(name))]
    return [topics[name] for name in dict.fromkeys((*changed, *again))]


def _changed(before: AckedState | None, now: AckedState) -> Iterable[TopicConfig]:
    """Return the FIFO topics that a name server was told and had not before."""
    topics = now.content.entries
    if before is not None and before.identity == now.identity:
        names = changed_since(before.content, now.content)
        return [topics[name] for name in names if is_fifo(topics.get(name))]
    return [topic for topic in topics.values() if is_fifo(topic)]


def table_of(body: bytes) -> dict[str, str] | None:
    """Return the order configurations in the answer to a registration; None: the name server leaves them out."""
    if not body:
        return None
    try:
        return {str(topic): str(value) for topic, value in java_json.loads_object(body)["table"].items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
