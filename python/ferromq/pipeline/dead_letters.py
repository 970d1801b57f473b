"""
`dead-letters`: count dead letters by cause, and list them for a replay.

The name of a dead-letter topic, `%DLQ%GROUP`, gives the group. Properties give the origin: DLQ_ORIGIN_TOPIC and
DLQ_ORIGIN_MESSAGE_ID (ferromq), RETRY_TOPIC and ORIGIN_MESSAGE_ID (RocketMQ). ferromq records the cause in DLQ_REASON
and DLQ_EXCEPTION; a consumer or producer may set another property.
"""

import sys
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 (PySpark's own habit)

from ferromq.errors import ConfigError
from ferromq.pipeline.command import shared
from ferromq.pipeline.command.parameters import Parameters
from ferromq.pipeline.command.summary import Summary
from ferromq.pipeline.inputs import row_source
from ferromq.protocol import naming
from ferromq.protocol.dead_letters import CAUSES, ORIGINS
from ferromq.spark.schema import SCHEMA

__all__ = ["dead_letters", "replay_list"]

REASONS = ("DLQ_REASON", "DLQ_EXCEPTION", "reason", "error", "exception", "cause")
"""Properties that may hold the cause, in any case."""
_SAMPLES = 3
_SHOWN = 50


def dead_letters(frame: DataFrame, *, reasons: Sequence[str] = REASONS) -> DataFrame:
    """
    Return a row for each cause of the dead letters in *frame*; the most frequent first.

    *frame* has the columns of the format.
    Columns: consumer_group, origin_topic (null if unknown), reason (the first property of *reasons* that a message has,
    in any case, up to a line break or colon), reconsume_times, messages, bytes, first_time, last_time, and samples (up
    to three: message id, queue offset). Rows of other topics than `%DLQ%…` are skipped.
    """
    dead = _dead(frame).select(
        "consumer_group",
        _origin_topic().alias("origin_topic"),
        _reason(reasons).alias("reason"),
        "reconsume_times",
        "store_timestamp",
        F.length("body").alias("size"),
        F.struct("queue_offset", _origin_id().alias("message_id")).alias("sample"),
    )
    cause = ["consumer_group", "origin_topic", "reason", "reconsume_times"]
    return (
        dead.groupBy(*cause)
        .agg(
            F.count("*").alias("messages"),
            F.sum("size").alias("bytes"),
            F.min("store_timestamp").alias("first_time"),
            F.max("store_timestamp").alias("last_time"),
            F.first("sample").alias("one"),
            F.min("sample").alias("oldest"),
            F.max("sample").alias("newest"),
        )
        .withColumn("samples", F.array_distinct(F.array("oldest", "newest", "one")))
        .drop("one", "oldest", "newest")
        .orderBy(F.desc("messages"), *cause)
    )


def replay_list(frame: DataFrame) -> DataFrame:
    """
    Return the dead letters of *frame* as rows of their origin topics, so that `replay` sends them there again.

    The columns are those of the format. `topic` and `message_id` are those of the origin, and `properties` lack the
    dead letter's. `queue_id` numbers the dead-letter topics by name, so that positions of two topics differ. Dead
    letters of unknown origin are dropped.
    """
    dead = _dead(frame)
    names = sorted(row.topic for row in dead.select("topic").distinct().collect())
    number = F.create_map(*(F.lit(item) for pair in enumerate(names) for item in reversed(pair))) if names else None
    is_kept = lambda name, _value: ~name.isin(*ORIGINS, *CAUSES)  # noqa: E731 (Spark takes a function of two)
    changed = {
        "queue_id": (F.lit(0) if number is None else number[F.col("topic")]).cast("int"),
        "message_id": _origin_id(),
        "properties": F.map_filter("properties", is_kept),
        "topic": _origin_topic(),
    }
    columns = [changed.get(name, F.col(name)).alias(name) for name in SCHEMA.names]
    return dead.where(_origin_topic().isNotNull()).select(*columns)


def _dead(frame: DataFrame) -> DataFrame:
    prefix = naming.DLQ_PREFIX
    group = F.expr(f"substring(topic, {len(prefix) + 1})")
    return frame.where(F.col("topic").startswith(prefix)).withColumn("consumer_group", group)


def _origin_topic() -> Column:
    return F.coalesce(*(F.element_at("properties", name) for name in ("DLQ_ORIGIN_TOPIC", "RETRY_TOPIC")))


def _origin_id() -> Column:
    names = ("DLQ_ORIGIN_MESSAGE_ID", "ORIGIN_MESSAGE_ID")
    noted = (F.element_at("properties", name) for name in names)
    return F.coalesce(*(F.when(value != "", value) for value in noted), F.col("message_id"))


def _reason(names: Sequence[str]) -> Column:
    """Return the first of these properties that is set, up to a line break or colon: the rest differs by message."""
    text = F.coalesce(*map(_property, names), F.lit(None).cast("string"))
    return F.trim(F.regexp_extract(text, r"^([^:\r\n]*)", 1))


def _property(name: str) -> Column:
    """Return the property of this name, in any case."""
    entries = F.filter(F.map_entries("properties"), lambda pair: F.lower(pair.key) == name.lower())
    return F.get(entries, 0).value


# --- the command -------------------------------------------------------------------------------------------------


def add_arguments(parameters: Parameters) -> None:
    """Add the command's arguments."""
    row_source.add_arguments(parameters, with_topic=False)
    add = parameters.option
    add("--group", metavar="NAME,…", help="consumer groups (default: all; required with --endpoint)")
    add("--reason", metavar="PROPERTY,…", help=f"properties that hold the cause ({', '.join(REASONS)})")
    add("--show", type=int, default=_SHOWN, metavar="N", help=f"causes in the summary ({_SHOWN})")
    add("--replay-list", metavar="DIR", help="write the Parquet list that `replay --archive DIR` sends again")
    shared.add_output(parameters, "the causes")


def run(arguments: SimpleNamespace) -> int:
    """Run the command; return FINDINGS if there are dead letters."""
    reasons = arguments.reason.split(",") if arguments.reason else REASONS
    prefix = naming.DLQ_PREFIX
    arguments.topic = None
    if arguments.group:
        arguments.topic = ",".join(prefix + name for name in arguments.group.split(",") if name)
    elif arguments.endpoint:
        raise ConfigError("--endpoint cannot list topics; allowed: --endpoint with --group NAME,…, or --namesrv")
    with shared.started(arguments, "dead-letters") as spark:
        frame = row_source.read(spark, arguments, prefix=prefix)
        causes = dead_letters(frame, reasons=reasons).persist()
        rows = [row.asDict(recursive=True) for row in causes.collect()]
        if arguments.output:
            shared.write(causes, arguments.output)
        if arguments.replay_list:
            replay_list(frame).write.parquet(arguments.replay_list, compression="zstd")
        causes.unpersist()
    _summary(arguments, rows).show(arguments)
    return shared.FINDINGS if rows else shared.OK


def _summary(arguments: SimpleNamespace, rows: Sequence[dict[str, Any]]) -> Summary:
    summary = Summary(f"dead letters of {arguments.group or 'all groups'}")
    summary.add("messages", sum(row["messages"] for row in rows))
    summary.add("groups", len({row["consumer_group"] for row in rows}))
    summary.add("causes", len(rows))
    if arguments.replay_list:
        summary.add("replay list", arguments.replay_list)
    names = ("consumer_group", "origin_topic", "reason", "reconsume_times", "messages", "first_time", "last_time")
    cells = [
        [*(row[name] for name in names), " ".join(one["message_id"] or "-" for one in row["samples"])]
        for row in rows[: arguments.show]
    ]
    head = [*(name.replace("_", " ") for name in names), "samples"]
    summary.table("by cause", head, cells, "<<<>><<<", more=max(len(rows) - arguments.show, 0))
    return summary


if __name__ == "__main__":
    sys.exit(shared.main("dead-letters"))
