"""
`stats`: messages, bytes, tags, keys and delays of topics by time, skew of queues, and lags of groups.

Rows come from an archive, brokers, or a store directory (`row_source`). Each figure is one aggregation, so memory grows
with the number of groups, not of messages.
"""

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (PySpark's own habit)

from ferromq.errors import ConfigError
from ferromq.pipeline.command import shared
from ferromq.pipeline.command.parameters import Parameters
from ferromq.pipeline.command.summary import Summary
from ferromq.pipeline.inputs import group_lags, row_source, store_config
from ferromq.terminal import formatting

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

    Columns: topic, time (start of the span), messages, bytes (of bodies), tags and keys (distinct, estimated to about 5
    %), keyed (messages with a key), retried (redelivered messages), queues, and quantiles: size_p50, size_p99, size_max
    in bytes; delay_p50_ms, delay_p99_ms, delay_max_ms from born to stored. *every* is the length of a span, such as `10
    minutes`; an invalid one raises ConfigError.
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

    `share` is the queue's share of its topic's messages times the number of queues: 1 if all queues are equal.
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
    """Return a row for each topic and tag of *frame*: topic, tag or null, messages, bytes; the largest count first."""
    counted = frame.groupBy("topic", "tag").agg(F.count("*").alias("messages"), F.sum(F.length("body")).alias("bytes"))
    return counted.orderBy("topic", F.desc("messages"), "tag")


def lags(spark: SparkSession, directory: str, topics: Iterable[str] = ()) -> DataFrame:
    """
    Return the lag of each group and queue of the store in *directory*, from its files.

    Columns: topic, consumer_group, queue_id, committed_offset, max_offset, lag. A running broker writes committed
    offsets every few seconds. *topics* limits the result. Raises StoreError if the directory is not a readable store.
    """
    ends = store_config.queue_ends(directory)
    wanted = set(topics)
    rows = [
        (topic, group, queue_id, committed, ends[topic, queue_id], max(ends[topic, queue_id] - committed, 0))
        for (topic, group), offsets in store_config.consumer_offsets(Path(directory)).items()
        if not wanted or topic in wanted
        for queue_id, committed in offsets.items()
        if (topic, queue_id) in ends
    ]
    return spark.createDataFrame(rows, _LAGS).orderBy("topic", "consumer_group", "queue_id")


# --- the command -------------------------------------------------------------------------------------------------


def add_arguments(parameters: Parameters) -> None:
    """Add the command's arguments."""
    row_source.add_arguments(parameters)
    parameters.option(
        "--every",
        metavar="SPAN",
        default="1 hour",
        help="length of a time span, such as '10 minutes' (default: 1 hour)",
    )
    parameters.option("--group", metavar="NAME,…", help="query the brokers for the lags of these groups")
    parameters.option("--show", type=int, default=_SHOWN, metavar="N", help=f"time spans in the summary ({_SHOWN})")
    shared.add_output(parameters, "the figures by topic and span")


@dataclass(frozen=True)
class _Figures:
    spans: Sequence[Mapping[str, Any]]
    queues: Sequence[Mapping[str, Any]]
    tags: Sequence[Mapping[str, Any]]
    lags: Sequence[Mapping[str, Any]]


def run(arguments: SimpleNamespace) -> int:
    """Run the command and return its exit code."""
    with shared.started(arguments, "stats") as spark:
        frame = row_source.read(spark, arguments)
        by_time = stats(frame, every=arguments.every).persist()
        topics = [name for name in arguments.topic.split(",") if name]
        figures = _Figures(
            spans=[row.asDict() for row in by_time.collect()],
            queues=[row.asDict() for row in queues(frame).collect()],
            tags=[row.asDict() for row in tags(frame).limit(_MOST_TAGS).collect()],
            lags=_lags(spark, arguments, topics),
        )
        if arguments.output:
            shared.write(by_time, arguments.output)
        by_time.unpersist()
    _summary(arguments, figures).show(arguments)
    return shared.OK


def _lags(spark: SparkSession, arguments: SimpleNamespace, topics: Sequence[str]) -> list[Mapping[str, Any]]:
    """Return the lags in a store directory, or query the brokers for the named groups."""
    if arguments.log and (Path(arguments.log) / "commitlog").is_dir():
        return [row.asDict() for row in lags(spark, arguments.log, topics).collect()]
    if arguments.group and (arguments.endpoint or arguments.namesrv):
        groups = [name for name in arguments.group.split(",") if name]
        return [
            dict(zip(_LAG_NAMES, row, strict=True))
            for row in group_lags.lags(row_source.address(arguments), topics, groups)
        ]
    return []


def _summary(arguments: SimpleNamespace, figures: _Figures) -> Summary:
    summary = Summary(f"stats {arguments.topic}")
    size = sum(row["bytes"] for row in figures.spans)
    summary.add("messages", sum(row["messages"] for row in figures.spans))
    summary.add("bytes", size, formatting.size(size))
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
    summary: Summary,
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
    sys.exit(shared.main("stats"))
