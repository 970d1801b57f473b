"""
Receipt handles of messages that brokers gave to a pop, POP_MESSAGE (200050).

RocketMQ's handle is eight words: offset of the checkpoint, time of the pop, invisible time, revive queue, kind of
topic, broker name, queue id and queue offset. Its proxy adds the physical offset; this client adds the end of the
lease by its own clock, because a broker answers a late acknowledgement with success.
"""

from collections.abc import Mapping
from typing import NamedTuple

from ferromq.errors import LeaseExpired, ServerError
from ferromq.protocol import naming

_WORDS = 8
_NORMAL, _RETRY, _RETRY_2 = "0", "1", "2"
_NUMBERS = (0, 1, 2, 3, 6, 7)


class Handle(NamedTuple):
    """What names the lease of one message."""

    extra_info: str
    """RocketMQ's own handle."""
    physical_offset: int
    expiry_ms: int
    """When the lease ends, by the monotonic clock of the client."""

    def __str__(self) -> str:
        return f"{self.extra_info} {self.physical_offset} {self.expiry_ms}"

    @classmethod
    def parse(cls, text: str) -> "Handle":
        """Read what `str` wrote. Raises `LeaseExpired` for a text that is no handle of this kind."""
        words = text.split(" ")
        try:
            for index in _NUMBERS:
                int(words[index])
            physical_offset, expiry_ms = map(int, words[_WORDS:])
        except (ValueError, IndexError):
            raise LeaseExpired(f"{text[:100]!r} is no receipt handle of a broker behind name servers") from None
        return cls(" ".join(words[:_WORDS]), physical_offset, expiry_ms)

    @property
    def words(self) -> list[str]:
        """The eight words."""
        return self.extra_info.split(" ")

    @property
    def queue_id(self) -> int:
        """The queue that the message lies in."""
        return int(self.words[6])

    @property
    def offset(self) -> int:
        """Its offset there."""
        return int(self.words[7])

    def topic(self, topic: str, group: str) -> str:
        """Return the topic that the message lies in: *topic*, or the retry topic of *group* for it."""
        match self.words[4]:
            case "1":
                return f"{naming.RETRY_PREFIX}{group}_{topic}"
            case "2":
                return f"{naming.RETRY_PREFIX}{group}+{topic}"
        return topic

    def fields(self, topic: str, group: str) -> dict[str, str]:
        """Return the fields by which requests name the lease."""
        return {
            "consumerGroup": group,
            "topic": self.topic(topic, group),
            "queueId": str(self.queue_id),
            "extraInfo": self.extra_info,
            "offset": str(self.offset),
        }

    def changed(self, fields: Mapping[str, str], expiry_ms: int) -> "Handle":
        """Return the handle after a change of the invisible time, whose answer had *fields*. Raises `ServerError`."""
        words = self.words
        told = [fields.get(name, "") for name in ("popTime", "invisibleTime", "reviveQid")]
        if not all(each.lstrip("-").isdecimal() for each in told):
            raise ServerError(f"a change of an invisible duration was answered with {told}; three numbers are expected")
        changed = [words[7], *told, *words[4:]]
        return Handle(" ".join(changed), self.physical_offset, expiry_ms)


def kind_of(topic: str) -> str:
    """Return RocketMQ's word for the kind of topic that a record lies in."""
    if not topic.startswith(naming.RETRY_PREFIX):
        return _NORMAL
    return _RETRY_2 if "+" in topic else _RETRY


class Popped:
    """What the header of an answer says of the leases of its messages."""

    def __init__(self, fields: Mapping[str, str], broker_name: str) -> None:
        """*fields*: of the answer. Raises `ValueError` or `KeyError` for those of another one."""
        self._lease = [str(int(fields[name])) for name in ("popTime", "invisibleTime", "reviveQid")]
        self._broker_name = broker_name
        self._starts = _table(fields.get("startOffsetInfo", ""))
        self._is_told = bool(self._starts)
        self._counts = _table(fields.get("orderCountInfo", ""))

    def extra_info(self, topic: str, queue_id: int, offset: int) -> str:
        """Return RocketMQ's handle of a message at its place. Raises `ValueError` for one of an unannounced queue."""
        key = kind_of(topic), str(queue_id)
        if key not in self._starts:
            if self._is_told:
                raise ValueError(f"queue {queue_id} of {topic} is not in startOffsetInfo")
            self._starts[key] = offset  # without the field, the first message of a queue is its checkpoint
        return " ".join((str(self._starts[key]), *self._lease, key[0], self._broker_name, str(queue_id), str(offset)))

    def times_before(self, topic: str, queue_id: int, offset: int) -> int | None:
        """Return how often a message of an ordered receive was delivered before; None: the answer does not say."""
        kind = kind_of(topic)
        told = self._counts.get((kind, f"qo{queue_id}%{offset}"))
        return self._counts.get((kind, str(queue_id))) if told is None else told


def _table(text: str) -> dict[tuple[str, str], int]:
    """Read `KIND QUEUE NUMBER`, joined by `;`. Raises `ValueError`."""
    found = {}
    for part in text.split(";") if text else ():
        kind, queue, number = part.split(" ")
        found[kind, queue] = int(number)
    return found
