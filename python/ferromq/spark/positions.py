"""Start or end positions of queues, as users write them. `plan` asks the brokers for their queue offsets."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

EARLIEST = "earliest"
LATEST = "latest"

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LAST = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Time:
    """The position of the first message stored at or after a time."""

    ms: int
    """Milliseconds since 1970."""

    @classmethod
    def parse(cls, text: str) -> "Time":
        """Parse ISO-8601 with a zone, or milliseconds since 1970. Raises ValueError with the reason."""
        text = text.strip()
        if text.isascii() and text.isdecimal():
            if int(text) > _LAST:
                raise ValueError("more than 64 bits")
            return cls(int(text))
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            raise ValueError(f"the zone is missing; write {moment.isoformat()}Z for UTC")
        if moment < _EPOCH:
            raise ValueError("before 1970")
        # Rounded up, to exclude messages of the same millisecond that were stored before the microsecond.
        return cls(-((_EPOCH - moment) // timedelta(milliseconds=1)))


Position = int | str | Time
"""A queue offset, `earliest`, `latest`, or a time."""


@dataclass(frozen=True, slots=True)
class Positions:
    """A position in each queue."""

    default: str | Time
    """The position in queues that are not named: `earliest`, `latest` or a time."""
    by_queue: Mapping[str, Mapping[str, Position]] = field(default_factory=dict)
    """Topic → queue, as `3` or `broker-a:3` → position."""

    @classmethod
    def parse(cls, text: str, topics: Sequence[str], default: str) -> "Positions":
        """
        Parse `earliest`, `latest` or JSON.

        JSON is {topic: {queue: position}}, or {queue: position} for a single topic. Raises ValueError.
        """
        if text.strip().lower() in {EARLIEST, LATEST}:
            return cls(text.strip().lower())
        try:
            read = json.loads(text, object_pairs_hook=_without_twins)
        except json.JSONDecodeError:
            raise ValueError from None
        if not isinstance(read, dict):
            raise ValueError  # noqa: TRY004 (the caller's sentence says what is allowed)
        if read and not any(isinstance(value, dict) for value in read.values()):
            if len(topics) != 1:
                raise ValueError("several topics are read, so queues must be listed by topic")
            read = {topics[0]: read}
        return cls(default, {topic: _places(topic, places) for topic, places in read.items()})


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name is repeated")
    return found


def _places(topic: str, places: Any) -> dict[str, Position]:
    if not isinstance(places, dict):
        raise ValueError(f"topic {topic!r} has {places!r}")  # noqa: TRY004 (an option's value)
    return {queue: _place(queue, place) for queue, place in places.items()}


def _place(queue: str, place: Any) -> Position:
    if type(place) is int and 0 <= place <= _LAST:
        return place
    if isinstance(place, str) and place.lower() in {EARLIEST, LATEST}:
        return place.lower()
    if isinstance(place, str) and not place.strip().isdecimal():
        try:
            return Time.parse(place)
        except ValueError as error:
            raise ValueError(f"queue {queue!r} has {place!r}: {error}") from None
    raise ValueError(f"queue {queue!r} has {json.dumps(place)}")
