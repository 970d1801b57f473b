"""The result of a pull, over either protocol."""

from collections.abc import Sequence
from dataclasses import dataclass

from ferromq._ferromq import Records


@dataclass(frozen=True, slots=True)
class PullResult:
    """Records of a queue, and the offset of the next pull."""

    parts: Sequence[bytes | Records]
    """Complete records in the format of the log."""
    next_offset: int
    min_offset: int
    """The min offset of the queue at that time."""


class AgedOutError(Exception):
    """The queue does not hold the requested offset; the argument is the broker's message."""
