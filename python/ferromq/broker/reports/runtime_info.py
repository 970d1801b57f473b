"""
Runtime information of the broker under RocketMQ's names: request 28, which `mqadmin brokerStatus` prints.

All values are measured. RocketMQ's numbers of parts that do not exist here, such as thread pools, are 0.
"""

import os
import shutil
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ferromq._ferromq import Request, Store
from ferromq.broker.reports.put_times import PutTimes, distribution, percentile
from ferromq.broker.reports.statistics import Rate, Statistics, Windows
from ferromq.protocol import java_json, naming
from ferromq.protocol.remoting import Answer, success

if TYPE_CHECKING:
    from ferromq._ferromq import StoreStats

_VERSION, _VERSION_NUMBER = "V5_5_0", 513
"""The RocketMQ version of the protocol, and its ordinal."""
_KIB = 1024
_RATES_MS = (10_000, 60_000, 600_000)
_SECOND, _MINUTE, _HOUR, _DAY = 1_000, 60_000, 3_600_000, 86_400_000
# RocketMQ's thread pools, which do not exist here.
_POOLS = (
    "sendThreadPoolQueue",
    "pullThreadPoolQueue",
    "litePullThreadPoolQueue",
    "queryThreadPoolQueue",
    "ackThreadPoolQueue",
)


class RuntimeInfo:
    """Answers request 28, and samples what it needs; thread-safe."""

    def __init__(
        self,
        store: Store,
        statistics: Statistics,
        directory: Path,
        *,
        transactions: Callable[[], Mapping[str, str]],
        now_ms: Callable[[], int],
        state: Callable[[], str],
    ) -> None:
        """*transactions* returns the values about transactions, under names of our own; *state* that of `Drain`."""
        self._store = store
        self._statistics = statistics
        self._directory = directory
        self._now_ms = now_ms
        self._started_ms = now_ms()
        self._transactions = transactions
        self._state = state
        self._lock = threading.Lock()
        self._puts, self._gets, self._timed = PutTimes(), Windows(), Windows()
        stats = store.stats()
        self._timed_before = (stats["timed_entered"], _left(stats))
        self.sample(self._started_ms)

    def sample(self, now: int) -> None:
        """Sample the store's counters; called every ten seconds."""
        stats, times = self._store.stats(), self._store.put_times()
        with self._lock:
            self._puts.sample(now, times)
            self._gets.sample(now, _gets(stats))
            self._timed.sample(now, self._timed_since(stats))

    def info(self, _request: Request) -> Answer:
        """Answer request 28: all values of RocketMQ's brokers, by name."""
        stats, now = self._store.stats(), self._now_ms()
        table = {
            **self._of_store(stats, now),
            **self._of_messages(),
            **self._of_gets(stats, now),
            **self._of_puts(stats, now),
            **self._of_disk(),
            **self._of_delays(),
            **self._of_timers(stats, now),
            **self._transactions(),
            **_of_pools(),
            "brokerActive": "true",
            "brokerState": self._state(),
            # RocketMQ 5.5.0 dropped it, but rocketmq-exporter fails without it.
            "brokerVersion": str(_VERSION_NUMBER),
            "brokerVersionDesc": _VERSION,
            "startAcceptSendRequestTimeStamp": "0",
        }
        return success(body=java_json.dumps({"table": dict(sorted(table.items()))}))

    def _of_store(self, stats: "StoreStats", now: int) -> dict[str, str]:
        failed = sum(
            value for name, value in stats.items() if name.startswith("failed_puts_") and isinstance(value, int)
        )
        count, size = stats["appended"], self._statistics.bytes_put()
        begin = self._store.nearest_message(stats["min_physical_offset"])
        earliest = None if begin is None else self._store.message_at(begin)
        return {
            "bootTimestamp": str(self._started_ms),
            "runtime": _duration(now - self._started_ms),
            "putMessageTimesTotal": str(count),
            "putMessageFailedTimes": str(failed),
            "putMessageSizeTotal": str(size),
            "putMessageAverageSize": str(size / max(count, 1)),
            "commitLogMinOffset": str(stats["min_physical_offset"]),
            "commitLogMaxOffset": str(stats["max_physical_offset"]),
            "dispatchBehindBytes": str(max(0, stats["max_physical_offset"] - stats["dispatched_offset"])),
            "dispatchMaxBuffer": "0",
            "remainHowManyDataToFlush": _size(max(0, stats["max_physical_offset"] - stats["flushed_offset"])),
            "remainTransientStoreBufferNumbs": str((1 << 31) - 1),
            "pageCacheLockTimeMills": str(stats["append_lock_ms"]),
            "earliestMessageTimeStamp": str(-1 if earliest is None else earliest.store_timestamp),
        }

    def _of_messages(self) -> dict[str, str]:
        put, got = self._statistics.totals("put"), self._statistics.totals("get")
        return {
            "msgPutTotalYesterdayMorning": str(put.yesterday),
            "msgPutTotalTodayMorning": str(put.today),
            "msgPutTotalTodayNow": str(put.now),
            "msgGetTotalYesterdayMorning": str(got.yesterday),
            "msgGetTotalTodayMorning": str(got.today),
            "msgGetTotalTodayNow": str(got.now),
            "putTps": _join(self._statistics.rate("put", within).per_second for within in _RATES_MS),
            "getTransferredTps": _join(self._statistics.rate("get", within).per_second for within in _RATES_MS),
        }

    def _of_gets(self, stats: "StoreStats", now: int) -> dict[str, str]:
        counts = _gets(stats)
        with self._lock:
            rates = [self._gets.recent(within, now, counts) for within in _RATES_MS]
        return {
            "getFoundTps": _join(_found(rate) for rate in rates),
            "getMissTps": _join(_missed(rate) for rate in rates),
            "getTotalTps": _join(_found(rate) + _missed(rate) for rate in rates),
            "getMessageEntireTimeMax": str(stats["longest_get_ms"]),
        }

    def _of_puts(self, stats: "StoreStats", now: int) -> dict[str, str]:
        times = self._store.put_times()
        with self._lock:
            recent = self._puts.recent(now, times)
        return {
            "putMessageEntireTimeMax": str(stats["longest_put_ms"]),
            "putMessageDistributeTime": distribution(recent),
            "putLatency99": f"{percentile(recent, 0.99):.2f}",
            "putLatency999": f"{percentile(recent, 0.999):.2f}",
        }

    def _of_disk(self) -> dict[str, str]:
        paths = [str(path) for path in self._store.options()["commit_log_paths"]]
        logs = paths or [str(self._directory / "commitlog")]
        ratios = {path: _used(Path(path)) for path in logs}
        usage = shutil.disk_usage(self._directory)
        return {
            **{f"commitLogDiskRatio_{path}": str(ratio) for path, ratio in ratios.items()},
            "commitLogDiskRatio": str(min(ratios.values())),
            "consumeQueueDiskRatio": str(_used(self._directory)),
            "commitLogDirCapacity": f"Total : {_size(usage.total)}, Free : {_size(usage.free)}.",
        }

    def _of_delays(self) -> dict[str, str]:
        levels = self._store.delay_offsets()
        return {
            f"scheduleMessageOffset_{level}": f"{offset},{self._store.max_offset(naming.SCHEDULE_TOPIC, level - 1)}"
            for level, offset in levels.items()
            if level > 0
        }

    def _timed_since(self, stats: "StoreStats") -> tuple[int, int]:
        """Return the counts of timed messages that entered and left the wheel since the start."""
        entered, left = self._timed_before
        return stats["timed_entered"] - entered, _left(stats) - left

    def _of_timers(self, stats: "StoreStats", now: int) -> dict[str, str]:
        in_wheel, behind, read_ms = self._store.timed_waiting()
        # An idle wheel is not late.
        late = max(0, now - read_ms) // 1000 if in_wheel and read_ms else 0
        with self._lock:
            rate = self._timed.recent(_RATES_MS[0], now, self._timed_since(stats))
        return {
            "timerReadBehind": str(late),
            "timerOffsetBehind": str(behind),
            "timerCongestNum": str(in_wheel),
            # A pair of counts: entered, left.
            "timerEnqueueTps": str(rate.per_second),
            "timerDequeueTps": str(rate.second_per_second),
        }


def _of_pools() -> dict[str, str]:
    of_pools = [f"{name}{what}" for name in _POOLS for what in ("Size", "Capacity", "HeadWaitTimeMills")]
    return dict.fromkeys([*of_pools, "EndTransactionQueueSize", "EndTransactionThreadPoolQueueCapacity"], "0")


def _gets(stats: "StoreStats") -> tuple[int, int]:
    """Return the counts of reads that found a message, and of those that found none."""
    return stats["found_gets"], stats["fruitless_gets"]


def _found(rate: Rate) -> float:
    return rate.per_second


def _missed(rate: Rate) -> float:
    return rate.second_per_second


def _left(stats: "StoreStats") -> int:
    return stats["timed_delivered"] + stats["timed_rolled"] + stats["timed_recalled"]


def _join(rates: Iterable[float]) -> str:
    return " ".join(map(str, rates))


def _used(path: Path) -> float:
    """Return the used share of the disk, as RocketMQ computes it; -1 if the path does not exist."""
    try:
        stat = os.statvfs(path)
    except OSError:
        return -1.0
    used = stat.f_blocks - stat.f_bfree
    entire = used + stat.f_bavail
    return -(-used * 100 // entire) / 100 if entire else 0.0


def _size(count: int) -> str:
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < _KIB or unit == "TiB":
            return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= _KIB
    raise AssertionError


def _duration(elapsed_ms: int) -> str:
    days, rest = divmod(max(0, elapsed_ms), _DAY)
    hours, rest = divmod(rest, _HOUR)
    minutes, rest = divmod(rest, _MINUTE)
    return f"[ {days} days, {hours} hours, {minutes} minutes, {rest // _SECOND} seconds ]"
