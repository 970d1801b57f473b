"""What a pull answers, whichever protocol carried it."""

from collections.abc import Sequence
from dataclasses import dataclass

from ferromq._ferromq import Records


@dataclass(frozen=True, slots=True)
class PullResult:
    """Records of a queue, and where it goes on."""

    parts: Sequence[bytes | Records]
    """Whole records one after the other, as they lie in the log."""
    next_offset: int
    min_offset: int
    """The first offset that the queue held when it was read: from there on nothing had aged out."""


class AgedOutError(Exception):
    """The queue does not hold the offset that was asked for; the broker's words are the argument."""
