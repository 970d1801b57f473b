"""
The order configurations of a broker's FIFO topics, as name servers have them: each names this broker's queues.

ferromq's name server writes them by itself when a broker registers; RocketMQ's leaves that to whoever makes a topic.
What one that restarted without its table has lost is put there again. Called in the rounds of registration.
"""

import threading
from collections.abc import Callable, Iterable, Mapping

from ferromq import _json
from ferromq._order_configuration import parts, text_of, with_part
from ferromq.broker import registration
from ferromq.broker.name_server_link import Known, NameServerFailed
from ferromq.broker.topics import TopicConfig, is_fifo
from ferromq.route import Permission

_WRITES = 3
"""How often a value is written that another broker overwrote at the same moment."""
Get = Callable[[str], str | None]
Put = Callable[[str, str], object]


class OrderConfigurations:
    """Remembers what name servers had, and completes it; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: Mapping[str, str] = {}

    def registered(self, before: Known | None, now: Known, body: bytes, get: Get, put: Put) -> None:
        """
        Complete what a name server has, which has just taken a registration and answered *body*.

        *before* is what it had been told until then; None: maybe it has just started. Raises `NameServerFailed`.
        """
        table = table_of(body)
        if not now.identity.is_slave:
            for topic in _changed(before, now):
                text = get(topic.name) if table is None else table.get(topic.name)
                made = self._complete(topic, now, text, get, put, is_new=before is None)
                if table is not None and made is not None:
                    table[topic.name] = made
        if table is not None:
            with self._lock:
                self._seen = table

    def _complete(
        self, topic: TopicConfig, now: Known, text: str | None, get: Get, put: Put, *, is_new: bool
    ) -> str | None:
        name = now.identity.name
        allowed = registration.restricted(topic, now.identity.allowed)
        queues = topic.write_queues if allowed & Permission.WRITE else 0
        for turn in range(_WRITES):
            with self._lock:
                lost = parts(self._seen.get(topic.name)) if is_new else {}
            wanted = with_part(text_of({**lost, **parts(text)}), name, queues)
            if wanted == (text or ""):
                return text
            if turn == 0:
                # The answer to a registration is older than what other brokers wrote meanwhile.
                text = get(topic.name)
                wanted = with_part(text_of({**lost, **parts(text)}), name, queues)
            put(topic.name, wanted)
            text = get(topic.name)
        if parts(text).get(name, 0) != queues:
            raise NameServerFailed(f"the order configuration of {topic.name} is overwritten by others: {text}")
        return text


def _changed(before: Known | None, now: Known) -> Iterable[TopicConfig]:
    """Return the FIFO topics that a name server was told and had not before."""
    is_same = before is not None and before.identity == now.identity
    known = before.content.entries if before is not None and is_same else {}
    return [topic for name, topic in now.content.entries.items() if is_fifo(topic) and known.get(name) is not topic]


def table_of(body: bytes) -> dict[str, str] | None:
    """Return the order configurations in the answer to a registration; None: the name server leaves them out."""
    if not body:
        return None
    try:
        return {str(topic): str(value) for topic, value in _json.loads_object(body)["table"].items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
