"""
What goes through topics: messages, bytes, tags, keys and delays by time, skew by queue, lags of groups.

Rows come from an archive, a topic through its brokers, or a store directory (`_source`); each figure is one aggregation
over them, so memory is that of the groups, not of the messages.
"""

import argparse
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (PySpark's own habit)

from ferromq.errors import ConfigError
from ferromq.pipeline import _frame, _group_offsets, _source, _store_files
from ferromq.spark.options import Where
from ferromq.terminal import text

__all__ = ["lags", "queues", "stats", "tags"]

_QUANTILES = (0.5, 0.99, 1.0)
_PRECISION = 10_000
_MOST_TAGS = 20
_SHOWN = 50
_EVERY = re.compile(r"[1-9]\d* (second|minute|hour|day|week)s?")
_LAG_NAMES = ("topic", "consumer_group", "queue_id", "committed_offset", "max_offset", "lag")
_LAGS = "topic string, consumer_group string, queue_id int, committed_offset long, max_offset long, lag long"


def stats(frame: DataFrame, *, every: str = "1 hour") -> DataFrame:
    """
    Return a row for each topic and span of store time of *frame*, which has the columns of the format.

    Columns: topic, time (begin of the span), messages, bytes (of bodies), tags and keys (different ones, estimated to
    about 5 %), keyed (messages with a key), retried (messages that were delivered before), queues, and quantiles:
    size_p50, size_p99, size_max in bytes; delay_p50_ms, delay_p99_ms, delay_max_ms from born to stored. *every* is the
    length of a span, such as `10 minutes`; ConfigError where it is none.
    """
    if not _EVERY.fullmatch(every):
        raise ConfigError(f"every is {every!r}; allowed: a number and second, minute, hour, day or week: '10 minutes'")
    size, delay = F.length("body"), F.unix_millis("store_timestamp") - F.unix_millis("born_timestamp")
    key_count = F.coalesce(F.size("keys"), F.lit(0))
    rows = frame.select(
        "topic",
        F.window("store_timestamp", every).start.alias("time"),
        "queue_id",
        "tag",
        F.xxhash64("keys").alias("keys"),
        (key_count > 0).alias("is_keyed"),
        (F.col("reconsume_times") > 0).alias("is_retried"),
        size.alias("size"),
        delay.alias("delay"),
    )
    return (
        rows.groupBy("topic", "time")
        .agg(
            F.count("*").alias("messages"),
            F.sum("size").alias("bytes"),
            F.approx_count_distinct("tag").alias("tags"),
            F.approx_count_distinct(F.when(F.col("is_keyed"), F.col("keys"))).alias("keys"),
            F.count_if("is_keyed").alias("keyed"),
            F.count_if("is_retried").alias("retried"),
            F.count_distinct("queue_id").alias("queues"),
            *_quantiles("size", "size_{}"),
            *_quantiles("delay", "delay_{}_ms"),
        )
        .orderBy("topic", "time")
    )


def _quantiles(column: str, name: str) -> list[Any]:
    return [
        F.percentile_approx(column, share, _PRECISION).alias(
            name.format("max" if share == 1 else f"p{share * 100:.0f}")
        )
        for share in _QUANTILES
    ]


def queues(frame: DataFrame) -> DataFrame:
    """
    Return a row for each queue of *frame*: topic, queue_id, messages, bytes, first and last queue offset and time.

    `share` is the queue's part of its topic's messages, times their number of queues: 1 where they are even.
    """
    each = frame.groupBy("topic", "queue_id").agg(
        F.count("*").alias("messages"),
        F.sum(F.length("body")).alias("bytes"),
        F.min("queue_offset").alias("first_offset"),
        F.max("queue_offset").alias("last_offset"),
        F.min("store_timestamp").alias("first_time"),
        F.max("store_timestamp").alias("last_time"),
    )
    whole = each.groupBy("topic").agg(F.sum("messages").alias("all"), F.count("*").alias("count"))
    share = (F.col("messages") * F.col("count") / F.col("all")).alias("share")
    return each.join(whole, "topic").select(*each.columns, share).orderBy("topic", "queue_id")


def tags(frame: DataFrame) -> DataFrame:
    """Return a row for each topic and tag of *frame*: topic, tag (null without), messages, bytes; the most first."""
    counted = frame.groupBy("topic", "tag").agg(F.count("*").alias("messages"), F.sum(F.length("body")).alias("bytes"))
    return counted.orderBy("topic", F.desc("messages"), "tag")


def lags(spark: SparkSession, directory: str, topics: Iterable[str] = ()) -> DataFrame:
    """
    Return what groups have still to read of the store in *directory*, as its files say: a row for each group and queue.

    Columns: topic, consumer_group, queue_id, committed_offset, max_offset, lag. A broker at work writes committed
    offsets every few seconds. *topics*: only these. StoreError where it is no store directory, or cannot be read.
    """
    ends = _store_files.queue_ends(directory)
    wanted = set(topics)
    rows = [
        (topic, group, queue_id, committed, ends[topic, queue_id], max(ends[topic, queue_id] - committed, 0))
        for (topic, group), offsets in _store_files.consumer_offsets(Path(directory)).items()
        if not wanted or topic in wanted
        for queue_id, committed in offsets.items()
        if (topic, queue_id) in ends
    ]
    return spark.createDataFrame(rows, _LAGS).orderBy("topic", "consumer_group", "queue_id")


# --- the command -------------------------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    _source.add_arguments(parser)
    parser.add_argument(
        "--every", metavar="SPAN", default="1 hour", help="length of a span of time: '10 minutes' (1 hour)"
    )
    parser.add_argument("--group", metavar="NAME,…", help="groups whose lags are asked from the brokers")
    parser.add_argument("--show", type=int, default=_SHOWN, metavar="N", help=f"spans shown in the summary ({_SHOWN})")
    _frame.add_output(parser, "the figures by topic and span")


@dataclass(frozen=True)
class _Figures:
    spans: Sequence[Mapping[str, Any]]
    queues: Sequence[Mapping[str, Any]]
    tags: Sequence[Mapping[str, Any]]
    lags: Sequence[Mapping[str, Any]]


def run(arguments: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    with _frame.started(arguments, "stats") as spark:
        frame = _source.read(spark, arguments)
        by_time = stats(frame, every=arguments.every).persist()
        topics = [name for name in arguments.topic.split(",") if name]
        figures = _Figures(
            spans=[row.asDict() for row in by_time.collect()],
            queues=[row.asDict() for row in queues(frame).collect()],
            tags=[row.asDict() for row in tags(frame).limit(_MOST_TAGS).collect()],
            lags=_lags(spark, arguments, topics),
        )
        if arguments.output:
            _frame.write(by_time, arguments.output)
        by_time.unpersist()
    _summary(arguments, figures).show(arguments)
    return _frame.FINE


def _lags(spark: SparkSession, arguments: argparse.Namespace, topics: Sequence[str]) -> list[Mapping[str, Any]]:
    """Ask a store directory, or the brokers where groups are named."""
    if arguments.log and (Path(arguments.log) / "commitlog").is_dir():
        return [row.asDict() for row in lags(spark, arguments.log, topics).collect()]
    if arguments.group and (arguments.endpoint or arguments.namesrv):
        where = Where(arguments.endpoint, arguments.namesrv)
        groups = [name for name in arguments.group.split(",") if name]
        return [dict(zip(_LAG_NAMES, row, strict=True)) for row in _group_offsets.lags(where, topics, groups)]
    return []


def _summary(arguments: argparse.Namespace, figures: _Figures) -> _frame.Summary:
    summary = _frame.Summary(f"stats {arguments.topic}")
    size = sum(row["bytes"] for row in figures.spans)
    summary.add("messages", sum(row["messages"] for row in figures.spans))
    summary.add("bytes", size, text.size(size))
    summary.add("delay max ms", max((row["delay_max_ms"] for row in figures.spans), default=0))
    names = [
        "topic",
        "time",
        "messages",
        "bytes",
        "tags",
        "keys",
        "size_p50",
        "size_p99",
        "delay_p50_ms",
        "delay_p99_ms",
    ]
    shown = figures.spans[: arguments.show]
    _table(summary, "by time", names, shown, "<<>>>>>>>>", more=len(figures.spans) - len(shown))
    _table(summary, "by queue", ["topic", "queue_id", "messages", "bytes", "share"], figures.queues, "<>>>>")
    _table(summary, "by tag", ["topic", "tag", "messages", "bytes"], figures.tags, "<<>>")
    _table(summary, "lags", _LAG_NAMES, figures.lags, "<<>>>>")
    return summary


def _table(
    summary: _frame.Summary,
    title: str,
    names: Sequence[str],
    rows: Sequence[Mapping[str, Any]],
    alignment: str,
    *,
    more: int = 0,
) -> None:
    cells = [[row[name] for name in names] for row in rows]
    summary.table(title, [name.replace("_", " ") for name in names], cells, alignment, more=more)


if __name__ == "__main__":
    sys.exit(_frame.main("stats"))
