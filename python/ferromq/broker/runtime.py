"""
What a broker says of itself at run time, under RocketMQ's names: request 28, which `mqadmin brokerStatus` prints.

Numbers RocketMQ has of things that are not here, as thread pools with queues, are those of idle ones.
"""

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from ferromq import _json, _names
from ferromq._ferromq import Request, Store
from ferromq._remoting import Answer, success
from ferromq.broker.statistics import Statistics

_VERSION = "V5_5_0"
"""The RocketMQ whose protocol this is."""
_KIB = 1024
_RATES_MS = (10_000, 60_000, 600_000)
_SECOND, _MINUTE, _HOUR, _DAY = 1_000, 60_000, 3_600_000, 86_400_000
# RocketMQ's pools, its names for what waits in them, and how much may by default.
_POOLS = {
    "sendThreadPoolQueue": 10_000,
    "pullThreadPoolQueue": 100_000,
    "litePullThreadPoolQueue": 100_000,
    "queryThreadPoolQueue": 20_000,
    "ackThreadPoolQueue": 100_000,
}
_TRANSACTION_CAPACITY = 100_000
_PUT_TIMES = (
    "<=0ms", "0~10ms", "10~50ms", "50~100ms", "100~200ms", "200~500ms", "500ms~1s", "1~2s", "2~3s", "3~4s", "4~5s",
    "5~10s", "10s~",
)  # fmt: skip


class Runtime:
    """Answers what a broker does now."""

    def __init__(
        self,
        store: Store,
        statistics: Statistics,
        directory: Path,
        *,
        transactions: Callable[[], Mapping[str, str]],
        now_ms: Callable[[], int],
    ) -> None:
        """*transactions* says what is told of them, under names of our own."""
        self._store = store
        self._statistics = statistics
        self._directory = directory
        self._now_ms = now_ms
        self._started_ms = now_ms()
        self._transactions = transactions

    def info(self, _request: Request) -> Answer:
        """Answer request 28: everything RocketMQ's brokers say, by its name."""
        table = {
            **self._of_store(),
            **self._of_rates(),
            **self._of_disk(),
            **self._of_delays(),
            **self._of_timers(),
            **self._transactions(),
            **_of_pools(),
            "brokerActive": "true",
            "brokerVersionDesc": _VERSION,
            "startAcceptSendRequestTimeStamp": "0",
        }
        return success(body=_json.dumps({"table": dict(sorted(table.items()))}))

    def _of_store(self) -> dict[str, str]:
        stats = self._store.stats()
        now = self._now_ms()
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
            "pageCacheLockTimeMills": "0",
            "earliestMessageTimeStamp": str(-1 if earliest is None else earliest.store_timestamp),
        }

    def _of_rates(self) -> dict[str, str]:
        put, got = self._statistics.totals("put"), self._statistics.totals("get")
        puts, gets = self._per_second("put"), self._per_second("get")
        return {
            "msgPutTotalYesterdayMorning": str(put.yesterday),
            "msgPutTotalTodayMorning": str(put.today),
            "msgPutTotalTodayNow": str(put.now),
            "msgGetTotalYesterdayMorning": str(got.yesterday),
            "msgGetTotalTodayMorning": str(got.today),
            "msgGetTotalTodayNow": str(got.now),
            "putTps": puts,
            "getFoundTps": gets,
            "getMissTps": " ".join("0.0" for _ in _RATES_MS),
            "getTotalTps": gets,
            "getTransferredTps": gets,
            # How long single messages took is not measured.
            "putMessageEntireTimeMax": "0",
            "getMessageEntireTimeMax": "0",
            "putMessageDistributeTime": "".join(f"[{name}]:0 " for name in _PUT_TIMES),
            "putLatency99": "0.00",
            "putLatency999": "0.00",
        }

    def _per_second(self, kind: str) -> str:
        return " ".join(str(self._statistics.rate(kind, within).per_second) for within in _RATES_MS)

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
            f"scheduleMessageOffset_{level}": f"{offset},{self._store.max_offset(_names.SCHEDULE_TOPIC, level - 1)}"
            for level, offset in levels.items()
            if level > 0
        }

    def _of_timers(self) -> dict[str, str]:
        in_wheel, behind, read_ms = self._store.timed_waiting()
        # An idle wheel is not late.
        late = max(0, self._now_ms() - read_ms) // 1000 if in_wheel and read_ms else 0
        return {
            "timerReadBehind": str(late),
            "timerOffsetBehind": str(behind),
            "timerCongestNum": str(in_wheel),
            "timerEnqueueTps": "0.0",
            "timerDequeueTps": "0.0",
        }


def _of_pools() -> dict[str, str]:
    sizes = {f"{name}Size": "0" for name in _POOLS}
    capacities = {f"{name}Capacity": str(capacity) for name, capacity in _POOLS.items()}
    waits = {f"{name}HeadWaitTimeMills": "0" for name in _POOLS}
    transactions = {
        "EndTransactionQueueSize": "0",
        "EndTransactionThreadPoolQueueCapacity": str(_TRANSACTION_CAPACITY),
    }
    return {**sizes, **capacities, **waits, **transactions}


def _used(path: Path) -> float:
    """Return the share of the disk that is in use, as RocketMQ counts it; -1 where the path is not there."""
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
