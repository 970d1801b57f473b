"""How long puts took: RocketMQ's classes and percentiles of the last minute."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ferromq.broker.reports.put_times import Bucket, PutTimes, distribution, percentile
from ferromq.broker.reports.runtime_info import RuntimeInfo
from ferromq.broker.reports.statistics import Rate, Totals

BOUNDS = (0, 1, 5, 9, 10, 49, 50, 1_999, 9_999, 12_000)


def buckets(**counts: int) -> list[Bucket]:
    """Return all buckets with the counts of those that end with `upto_N` milliseconds."""
    return [(bound, counts.get(f"upto_{bound}", 0)) for bound in BOUNDS]


def test_classes_are_written_as_rocketmq_writes_them() -> None:
    """Tools split at spaces and colons."""
    counted = buckets(upto_0=3, upto_1=2, upto_9=1, upto_10=4, upto_49=1, upto_50=7, upto_1999=1, upto_12000=2)
    text = distribution(counted)
    assert text == (
        "[<=0ms]:3 [0~10ms]:3 [10~50ms]:5 [50~100ms]:7 [100~200ms]:0 [200~500ms]:0 [500ms~1s]:0 [1~2s]:1 [2~3s]:0 "
        "[3~4s]:0 [4~5s]:0 [5~10s]:0 [10s~]:2 "
    )


def test_the_last_minute_counts() -> None:
    """Older puts do not; those since the last sample do."""
    times, minute = PutTimes(), 60_000
    assert times.recent(5, buckets(upto_1=1)) == buckets(upto_1=1), "nothing was sampled yet"
    times.sample(0, buckets(upto_1=1))
    assert times.recent(30_000, buckets(upto_1=5)) == buckets(upto_1=4)
    for now in range(10_000, 3 * minute, 10_000):
        times.sample(now, buckets(upto_1=1 + now // 10_000))
    now = 3 * minute - 10_000
    assert times.recent(now, buckets(upto_1=30, upto_50=2)) == buckets(upto_1=30 - 12, upto_50=2)
    assert len(times._samples) <= 8


def test_a_percentile_lies_within_its_bucket() -> None:
    """As RocketMQ finds it: in proportion between the bounds."""
    assert percentile(buckets(), 0.99) == 0.0
    assert percentile(buckets(upto_0=100), 0.99) == 0.0
    assert percentile(buckets(upto_0=50, upto_5=50), 0.99) == 1 + 4 * 49 / 50
    assert percentile(buckets(upto_0=990, upto_12000=10), 0.99) == 0.0
    assert percentile(buckets(upto_0=990, upto_12000=10), 0.999) == 9_999 + 2_001 * 9 / 10


def test_the_longest_times_are_told_under_rocketmqs_names(tmp_path: Path) -> None:
    """Each under its own."""
    names = (
        *("appended", "append_lock_ms", "found_gets", "fruitless_gets", "timed_entered", "timed_delivered"),
        *("timed_rolled", "timed_recalled", "min_physical_offset", "max_physical_offset", "dispatched_offset"),
        "flushed_offset",
    )
    store: Any = SimpleNamespace(
        stats=lambda: {**dict.fromkeys(names, 0), "longest_put_ms": 7, "longest_get_ms": 9},
        put_times=lambda: buckets(upto_9=1),
        nearest_message=lambda _offset: None,
        options=lambda: {"commit_log_paths": ()},
        delay_offsets=dict,
        timed_waiting=lambda: (0, 0, 0),
    )
    statistics: Any = SimpleNamespace(
        bytes_put=lambda: 0, totals=lambda _kind: Totals(0, 0, 0), rate=lambda _kind, _within: Rate()
    )
    request: Any = None
    runtime = RuntimeInfo(store, statistics, tmp_path, transactions=dict, now_ms=lambda: 0, state=lambda: "serving")
    table = json.loads(runtime.info(request)[3])["table"]
    assert (table["putMessageEntireTimeMax"], table["getMessageEntireTimeMax"]) == ("7", "9")
