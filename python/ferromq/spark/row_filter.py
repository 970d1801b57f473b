"""The conditions on rows that a reader checks before it makes them."""

from dataclasses import dataclass
from typing import Any

_LIMIT = 1 << 63


@dataclass(frozen=True, slots=True)
class Interval:
    """The integers from *first* up to, not including, *end*."""

    first: int = -_LIMIT
    end: int = _LIMIT - 1

    def __and__(self, other: "Interval") -> "Interval":
        return Interval(max(self.first, other.first), min(self.end, other.end))

    @property
    def is_empty(self) -> bool:
        """Whether it has no number."""
        return self.first >= self.end


ALL = Interval()


@dataclass(frozen=True, slots=True)
class RowFilter:
    """Conditions that a row must all meet; by default there are none."""

    topics: frozenset[str] | None = None
    queue_ids: frozenset[int] | None = None
    tags: frozenset[str] | None = None
    """The tag is one of these."""
    keys: frozenset[str] | None = None
    """One of the message's keys is one of these."""
    offsets: Interval = ALL
    """Queue offsets."""
    stored: Interval = ALL
    """Milliseconds since 1970, as the broker wrote them."""
    born: Interval = ALL
    """Milliseconds since 1970, as the producer wrote them."""

    @property
    def is_empty(self) -> bool:
        """Whether no row can meet the conditions."""
        sets = (self.topics, self.queue_ids, self.tags, self.keys)
        return any(wanted == frozenset() for wanted in sets) or any(
            span.is_empty for span in (self.offsets, self.stored, self.born)
        )

    def mapping(self) -> dict[str, Any]:
        """Return the filter for `_ferromq.record_columns` and `_ferromq.LogScan`."""
        sets = {"topics": self.topics, "queue_ids": self.queue_ids, "tags": self.tags, "keys": self.keys}
        found: dict[str, Any] = {name: sorted(wanted) for name, wanted in sets.items() if wanted is not None}
        offsets = Interval(max(self.offsets.first, 0), max(self.offsets.end, 0))
        for name, span in {"store_{}_ms": self.stored, "born_{}_ms": self.born, "offset_{}": offsets}.items():
            if span.first != (0 if span is offsets else ALL.first):
                found[name.format("from")] = span.first
            if span.end != ALL.end:
                found[name.format("to")] = span.end
        return found
