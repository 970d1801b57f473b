"""
Where a read begins or ends in each queue, as a user writes it. Pure.

What a place is as a queue offset, only brokers know: `plan` asks them.
"""

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
    """The first message stored then or later."""

    ms: int
    """Milliseconds since 1970."""

    @classmethod
    def parse(cls, text: str) -> "Time":
        """Read ISO-8601 with a zone, or milliseconds since 1970. Raises ValueError that says what is wrong."""
        text = text.strip()
        if text.isascii() and text.isdecimal():
            if int(text) > _LAST:
                raise ValueError("later than 64 bits can say")
            return cls(int(text))
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            raise ValueError(f"no zone is said; write {moment.isoformat()}Z for UTC")
        if moment < _EPOCH:
            raise ValueError("before 1970")
        # Up: a message stored within the millisecond, but before the microsecond, is not wanted.
        return cls(-((_EPOCH - moment) // timedelta(milliseconds=1)))


Position = int | str | Time
"""A queue offset, `earliest`, `latest`, or a time."""


@dataclass(frozen=True, slots=True)
class Positions:
    """The place in each queue."""

    default: str | Time
    """In queues that are not named: `earliest`, `latest` or a time."""
    by_queue: Mapping[str, Mapping[str, Position]] = field(default_factory=dict)
    """Topic → queue, as `3` or `broker-a:3` → place."""

    @classmethod
    def parse(cls, text: str, topics: Sequence[str], default: str) -> "Positions":
        """
        Read `earliest`, `latest` or JSON.

        JSON is {topic: {queue: place}}, or {queue: place} where *topics* is one. Raises ValueError, with the reason
        where it is not plain.
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
                raise ValueError("several topics are read, so each queue stands below its topic")
            read = {topics[0]: read}
        return cls(default, {topic: _places(topic, places) for topic, places in read.items()})


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name stands there twice")
    return found


def _places(topic: str, places: Any) -> dict[str, Position]:
    if not isinstance(places, dict):
        raise ValueError(f"beside topic {topic!r} stands {places!r}")  # noqa: TRY004 (an option's value)
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
            raise ValueError(f"beside queue {queue!r} stands {place!r}: {error}") from None
    raise ValueError(f"beside queue {queue!r} stands {json.dumps(place)}")
