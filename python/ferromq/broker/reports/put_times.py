"""
Latencies of recent puts: RocketMQ's classes and percentiles, from buckets that the store counts.

Pure state over cumulative counts.
"""

from collections import deque
from collections.abc import Sequence
from typing import Final

Bucket = tuple[int, int]
"""The last millisecond of a bucket, and the number of puts in it."""

_SPAN_MS: Final = 60_000
# RocketMQ's classes of latencies, and the last millisecond of each; the last class has no limit.
_CLASSES = {
    "<=0ms": 0,
    "0~10ms": 9,
    "10~50ms": 49,
    "50~100ms": 99,
    "100~200ms": 199,
    "200~500ms": 499,
    "500ms~1s": 999,
    "1~2s": 1_999,
    "2~3s": 2_999,
    "3~4s": 3_999,
    "4~5s": 4_999,
    "5~10s": 9_999,
}
_LAST_CLASS = "10s~"


class PutTimes:
    """Samples of cumulative buckets over the last minute. Not thread-safe."""

    def __init__(self) -> None:
        self._samples: deque[tuple[int, Sequence[Bucket]]] = deque()

    def sample(self, now: int, buckets: Sequence[Bucket]) -> None:
        """Add a sample."""
        self._samples.append((now, buckets))
        while len(self._samples) > 1 and self._samples[1][0] <= now - _SPAN_MS:
            self._samples.popleft()

    def recent(self, now: int, buckets: Sequence[Bucket]) -> list[Bucket]:
        """Return the counts of the last minute up to *buckets*; in the first minute, since the first sample."""
        older = [counts for at, counts in self._samples if at <= now - _SPAN_MS]
        before = older[-1] if older else (self._samples[0][1] if self._samples else ())
        earlier = [count for _, count in before] or [0] * len(buckets)
        return [(last, count - then) for (last, count), then in zip(buckets, earlier, strict=True)]


def distribution(buckets: Sequence[Bucket]) -> str:
    """Return the counts by class in RocketMQ's format: `[<=0ms]:3 [0~10ms]:1 …`."""
    counts = dict.fromkeys([*_CLASSES, _LAST_CLASS], 0)
    for last, count in buckets:
        name = next((name for name, bound in _CLASSES.items() if last <= bound), _LAST_CLASS)
        counts[name] += count
    return "".join(f"[{name}]:{count} " for name, count in counts.items())


def percentile(buckets: Sequence[Bucket], share: float) -> float:
    """Return the milliseconds within which a *share* of the puts ended, interpolated as in RocketMQ."""
    rank = int(sum(count for _, count in buckets) * share)
    passed = before = 0
    for last, count in buckets:
        if rank <= passed + count:
            return before + (last - before) * (rank - passed) / count if count else float(before)
        passed, before = passed + count, last
    return float(before)
