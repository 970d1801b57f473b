"""
The delays before a failed message is redelivered: RocketMQ's `groupRetryPolicy`.

It applies to retries of gRPC clients (in their settings) and of the server.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_SECOND, _MINUTE, _HOUR = 1_000, 60_000, 3_600_000
BACKOFF_MS = (
    *(_SECOND, 5 * _SECOND, 10 * _SECOND, 30 * _SECOND),
    *(minutes * _MINUTE for minutes in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30)),
    *(_HOUR, 2 * _HOUR),
)
"""RocketMQ's delays, by attempt."""
LONGEST_MS = 315_576_000_000 * _SECOND
"""The longest duration in gRPC."""
_LONG_LIMIT = (1 << 63) - 1
# As in RocketMQ: retries skip the first two delays, and powers end at the limit of a long.
_SKIPPED = 2
_MOST_DOUBLINGS = 32


@dataclass(frozen=True, slots=True)
class Customized:
    """A delay for each attempt; the last one repeats."""

    delays_ms: tuple[int, ...] = BACKOFF_MS

    def delay_ms(self, retries: int) -> int:
        """Return the delay after so many retries."""
        return self.delays_ms[min(max(retries, 0) + _SKIPPED, len(self.delays_ms) - 1)]


@dataclass(frozen=True, slots=True)
class Exponential:
    """Each delay is a multiple of the previous one, up to a limit."""

    initial_ms: int = 5 * _SECOND
    max_ms: int = 2 * _HOUR
    multiplier: int = 2

    def delay_ms(self, retries: int) -> int:
        """Return the delay after so many retries."""
        power: int = self.multiplier ** min(max(retries, 0), _MOST_DOUBLINGS)
        return min(self.max_ms, self.initial_ms * power)


RetryPolicy = Customized | Exponential
DEFAULT = Customized()
"""RocketMQ's policy for groups without their own."""


def parse(value: Mapping[str, Any]) -> RetryPolicy:
    """
    Read Java's `groupRetryPolicy`; absent fields have Java's defaults.

    Raises `ValueError` for a wrong value, `TypeError` or `AttributeError` for another form.
    """
    kind = value.get("type")
    if kind not in _KINDS:
        raise ValueError(f"the type of groupRetryPolicy is {str(kind)[:40]!r}; it may be CUSTOMIZED or EXPONENTIAL")
    given = value.get("exponentialRetryPolicy") or {}
    default = Exponential()
    exponential = Exponential(
        _number(given.get("initial", default.initial_ms), LONGEST_MS),
        _number(given.get("max", default.max_ms), LONGEST_MS),
        _number(given.get("multiplier", default.multiplier), _LONG_LIMIT),
    )
    delays = (value.get("customizedRetryPolicy") or {}).get("next") or BACKOFF_MS
    customized = Customized(tuple(_number(delay, LONGEST_MS) for delay in delays))
    return exponential if kind == "EXPONENTIAL" else customized


_KINDS = frozenset({"CUSTOMIZED", "EXPONENTIAL", None})


def _number(value: Any, limit: int) -> int:
    if type(value) is not int or not 0 <= value <= limit:
        raise ValueError(f"groupRetryPolicy has {str(value)[:40]}; expected a whole number from 0 to {limit}")
    return value
