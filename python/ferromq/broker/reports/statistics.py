"""
Message rates of the last minute, hour and day, and counts since midnight.

`Windows` is pure state over cumulative counts. `Statistics` samples the hot path's counters and answers request 315.
"""

import datetime as dt
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from ferromq._ferromq import Request
from ferromq.protocol import java_json
from ferromq.protocol.codes import ResponseCode
from ferromq.protocol.remoting import Answer, failure, required, success

Counts = tuple[int, int]
"""Cumulative messages and bytes."""
Traffic = Mapping[str, Mapping[str, Counts]]
"""`put` by topic, `get` and `send_back` by `topic@group`."""

SAMPLE_MS: Final = 10_000
_MINUTE_MS, _HOUR_MS, _DAY_MS = 60_000, 3_600_000, 86_400_000
# As in RocketMQ: the length of a window, and the distance of its samples.
_WINDOWS: Mapping[str, tuple[int, int]] = {
    "Minute": (_MINUTE_MS, SAMPLE_MS),
    "Hour": (_HOUR_MS, 600_000),
    "Day": (_DAY_MS, _HOUR_MS),
}
_TEN_MINUTES_MS = 600_000


@dataclass(frozen=True, slots=True)
class Rate:
    """The counts of a window."""

    messages: int = 0
    bytes: int = 0
    elapsed_ms: int = 0

    @property
    def per_second(self) -> float:
        """Messages a second."""
        return self.messages * 1000 / self.elapsed_ms if self.elapsed_ms > 0 else 0.0

    @property
    def bytes_per_second(self) -> float:
        """Bytes a second."""
        return self.second_per_second

    @property
    def second_per_second(self) -> float:
        """The second count of a pair, per second: bytes, or what is counted in their place."""
        return self.bytes * 1000 / self.elapsed_ms if self.elapsed_ms > 0 else 0.0


@dataclass(slots=True)
class _Series:
    """Samples of one counter in order; the oldest is at the beginning of the window or before it."""

    length_ms: int
    distance_ms: int
    samples: deque[tuple[int, Counts]] = field(default_factory=deque)

    def sample(self, now: int, counts: Counts) -> None:
        if self.samples and counts[0] < self.samples[-1][1][0]:
            self.samples.clear()  # the topic or group was deleted, and made again
        if not self.samples:
            # A new counter started after the last sample.
            self.samples.append((now - SAMPLE_MS, (0, 0)))
        if now - self.samples[-1][0] >= self.distance_ms:
            self.samples.append((now, counts))
            while len(self.samples) > 1 and self.samples[1][0] <= now - self.length_ms:
                self.samples.popleft()

    def rate(self, now: int, counts: Counts, within_ms: int) -> Rate:
        older = [sample for sample in self.samples if sample[0] <= now - within_ms]
        begin, before = older[-1] if older else (self.samples[0] if self.samples else (now, counts))
        if counts[0] < before[0]:
            before = (0, 0)  # as in `sample`
        return Rate(counts[0] - before[0], counts[1] - before[1], now - begin)


class Windows:
    """Samples of one counter, kept for a day. Not thread-safe."""

    def __init__(self) -> None:
        self._series = {name: _Series(length, distance) for name, (length, distance) in _WINDOWS.items()}

    def sample(self, now: int, counts: Counts) -> None:
        """Add a sample; called every ten seconds."""
        for series in self._series.values():
            series.sample(now, counts)

    def rate(self, window: str, now: int, counts: Counts) -> Rate:
        """Return the rate of the last `Minute`, `Hour` or `Day`, up to the current counts."""
        series = self._series[window]
        return series.rate(now, counts, series.length_ms)

    def recent(self, within_ms: int, now: int, counts: Counts) -> Rate:
        """Return the rate of the last *within_ms*, at most an hour."""
        name = "Minute" if within_ms <= _MINUTE_MS else "Hour"
        return self._series[name].rate(now, counts, within_ms)


class Totals(NamedTuple):
    """Message counts since the start, as of the midnight before last, the last midnight, and now."""

    yesterday: int
    today: int
    now: int


# RocketMQ's names: the kind of traffic, and whether bytes are counted instead of messages.
_STATISTICS: Mapping[str, tuple[str, bool]] = {
    "TOPIC_PUT_NUMS": ("put", False),
    "TOPIC_PUT_SIZE": ("put", True),
    "GROUP_GET_NUMS": ("get", False),
    "GROUP_GET_SIZE": ("get", True),
    "SNDBCK_PUT_NUMS": ("send_back", False),
}
_OF_BROKER: Mapping[str, str] = {"BROKER_PUT_NUMS": "put", "BROKER_GET_NUMS": "get"}
_KINDS = ("put", "get", "send_back")


class Statistics:
    """Samples the broker's traffic, and answers request 315; thread-safe."""

    def __init__(self, traffic: Callable[[], Traffic], now_ms: Callable[[], int], cluster: str) -> None:
        self._traffic = traffic
        self._now_ms = now_ms
        self._cluster = cluster
        self._lock = threading.Lock()
        self._windows: dict[tuple[str, str], Windows] = {}
        self._sums: dict[str, Windows] = {kind: Windows() for kind in _KINDS}
        self._last: dict[str, Mapping[str, Counts]] = {kind: {} for kind in _KINDS}
        self._gone: dict[str, Counts] = dict.fromkeys(_KINDS, (0, 0))
        """Counts of topics and groups that were deleted: sums do not go down."""
        self._midnights: dict[str, tuple[int, int]] = dict.fromkeys(_KINDS, (0, 0))
        self._day = _day(now_ms())
        self.sample(now_ms())

    def sample(self, now: int) -> None:
        """Sample all counters; called every ten seconds."""
        with self._lock:
            # Sums need counters in the order in which they were read.
            traffic = self._traffic()
            for kind in _KINDS:
                counters = traffic.get(kind, {})
                self._sums[kind].sample(now, self._sum(kind, counters))
                for key, counts in counters.items():
                    self._windows.setdefault((kind, key), Windows()).sample(now, counts)
            known = {(kind, key) for kind in _KINDS for key in traffic.get(kind, {})}
            for gone in self._windows.keys() - known:
                del self._windows[gone]
            if _day(now) != self._day:
                self._day = _day(now)
                self._midnights = {
                    kind: (self._midnights[kind][1], self._sum(kind, traffic.get(kind, {}))[0]) for kind in _KINDS
                }

    def rate(self, kind: str, within_ms: int, key: str | None = None) -> Rate:
        """Return a recent rate of *kind* `put`, `get` or `send_back`, of one topic or `topic@group`, or of all."""
        with self._lock:
            now, counters = self._now_ms(), self._traffic().get(kind, {})
            if key is None:
                return self._sums[kind].recent(within_ms, now, self._sum(kind, counters))
            return self._recent(kind, key, now, counters, within_ms)

    def per_second(self, kind: str, *keys: str) -> float:
        """Return the messages per second over the last minute, summed over topics or `topic@group`."""
        now, counters = self._now_ms(), self._traffic().get(kind, {})
        with self._lock:
            return sum(self._recent(kind, key, now, counters, _MINUTE_MS).per_second for key in keys)

    def totals(self, kind: str) -> Totals:
        """Return the message counts of a kind, at both midnights and now."""
        with self._lock:
            return Totals(*self._midnights[kind], self._sum(kind, self._traffic().get(kind, {}))[0])

    def bytes_put(self) -> int:
        """Return the bytes of all messages stored since the start."""
        with self._lock:
            return self._sum("put", self._traffic().get("put", {}))[1]

    def view(self, request: Request) -> Answer:
        """Answer request 315: one of RocketMQ's statistics, by name and key, over minute, hour and day."""
        name, key = required(request.fields, "statsName"), required(request.fields, "statsKey")
        found = self._rates(name, key)
        if found is None:
            known = ", ".join(sorted([*_STATISTICS, *_OF_BROKER]))
            why = f"known are {known}" if name not in {*_STATISTICS, *_OF_BROKER} else "nothing was counted for it yet"
            return failure(ResponseCode.SYSTEM_ERROR, f"the stats <{name}> <{key}> not exist: {why}")
        is_size = name.endswith("_SIZE")
        return success(
            body=java_json.dumps({f"stats{window}": _item(rate, is_size=is_size) for window, rate in found.items()})
        )

    def _sum(self, kind: str, counters: Mapping[str, Counts]) -> Counts:
        """Return the sum of a kind since the start, with what was counted of topics and groups that are gone."""
        nothing = (0, 0)
        gone = [last for key, last in self._last[kind].items() if counters.get(key, nothing)[0] < last[0]]
        self._last[kind] = dict(counters)
        messages, size = (sum(counts[part] for counts in gone) + self._gone[kind][part] for part in (0, 1))
        self._gone[kind] = (messages, size)
        return (
            messages + sum(counts[0] for counts in counters.values()),
            size + sum(counts[1] for counts in counters.values()),
        )

    def _recent(self, kind: str, key: str, now: int, counters: Mapping[str, Counts], within_ms: int) -> Rate:
        windows = self._windows.get((kind, key))
        if key not in counters:
            return Rate()
        # A counter newer than the last sample counts from one sample distance ago.
        return (windows or _new(now)).recent(within_ms, now, counters[key])

    def _rates(self, name: str, key: str) -> dict[str, Rate] | None:
        with self._lock:
            now, traffic = self._now_ms(), self._traffic()
            if name in _OF_BROKER and key == self._cluster:
                kind = _OF_BROKER[name]
                windows, counts = self._sums[kind], self._sum(kind, traffic.get(kind, {}))
            elif name in _STATISTICS and key in traffic.get(_STATISTICS[name][0], {}):
                kind = _STATISTICS[name][0]
                windows, counts = self._windows.get((kind, key)) or _new(now), traffic[kind][key]
            else:
                return None
            return {window: windows.rate(window, now, counts) for window in _WINDOWS}


def _new(now: int) -> Windows:
    windows = Windows()
    windows.sample(now, (0, 0))
    return windows


def _day(now: int) -> dt.date:
    return dt.datetime.fromtimestamp(now / 1000).astimezone().date()


def _item(rate: Rate, *, is_size: bool) -> dict[str, Any]:
    total = rate.bytes if is_size else rate.messages
    return {
        "avgpt": total / rate.messages if rate.messages else 0.0,
        "sum": total,
        "tps": rate.bytes_per_second if is_size else rate.per_second,
    }
