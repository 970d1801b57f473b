"""
`compact`: keep the last message for each key of a topic, and write it as Parquet or send it to a topic.

The last message of a queue has the highest queue offset. Across queues, the highest store time decides, then the queue
offset, queue id and store host. Keys of different topics are different keys. A message counts for each of its keys.
"""

import sys
from types import SimpleNamespace

from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F  # noqa: N812 (PySpark's own habit)

from ferromq.errors import ConfigError
from ferromq.pipeline import replay
from ferromq.pipeline.command import shared
from ferromq.pipeline.command.parameters import Parameters
from ferromq.pipeline.command.summary import Summary
from ferromq.pipeline.inputs import row_source
from ferromq.spark.schema import SCHEMA

__all__ = ["compact"]

WITHOUT_KEY = ("drop", "keep")


def compact(
    frame: DataFrame, *, tombstone: str = "empty", without_key: str = "drop", counts: Observation | None = None
) -> DataFrame:
    """
    Return the last row for each topic and key of *frame*, which has the columns of the format, and the column `key`.

    *tombstone* selects the messages that delete their key: `empty` (a body of length 0), `tag:NAME`, `property:NAME`
    (with any value), or `none`. A deleted key has no row. *without_key* `drop` drops rows without keys, `keep` returns
    all of them with a null `key`. *counts* observes `messages`, `without_key` and `tombstones` of *frame*.
    """
    is_tombstone = _tombstone(tombstone)
    if without_key not in WITHOUT_KEY:
        raise ConfigError(f"without_key is {without_key!r}; allowed: {', '.join(WITHOUT_KEY)}")
    names = SCHEMA.names
    has_key = F.coalesce(F.size("keys"), F.lit(0)) > 0
    if counts is not None:
        frame = frame.observe(
            counts,
            F.count(F.lit(1)).alias("messages"),
            F.count_if(~has_key).alias("without_key"),
            F.count_if(has_key & is_tombstone).alias("tombstones"),
        )
    if without_key == "drop":
        frame = frame.where(has_key)
    # A message without a key is a group of its own.
    alone = F.when(~has_key, F.struct("store_host", "queue_id", "queue_offset"))
    rows = frame.select(
        "topic",
        "queue_id",
        "queue_offset",
        "store_host",
        alone.alias("alone"),
        F.explode_outer(F.array_distinct("keys")).alias("key"),
        F.struct(*names).alias("row"),
    )
    last_of_queue = rows.groupBy("topic", "key", "alone", "store_host", "queue_id").agg(
        F.max_by("row", "queue_offset").alias("row")
    )
    order = F.struct("row.store_timestamp", "row.queue_offset", "queue_id", "store_host")
    last = last_of_queue.groupBy("topic", "key", "alone").agg(F.max_by("row", order).alias("row"))
    return last.select("row.*", "key").where(F.col("key").isNull() | ~is_tombstone)


def _mark(text: str) -> tuple[str, str]:
    """Split the option *tombstone* into kind and name. Raises ConfigError if it is invalid."""
    kind, _, name = text.partition(":")
    if text not in {"empty", "none"} and not (kind in {"tag", "property"} and name):
        raise ConfigError(f"tombstone is {text!r}; allowed: empty, none, tag:NAME, property:NAME")
    return kind, name


def _tombstone(text: str) -> Column:
    """Return the condition of the option *tombstone*."""
    kind, name = _mark(text)
    no = F.lit(False)  # noqa: FBT003 (a literal of Spark)
    if kind == "empty":
        return F.coalesce(F.length("body"), F.lit(0)) == 0
    if kind == "tag":
        return F.coalesce(F.col("tag") == name, no)
    if kind == "property":
        return F.coalesce(F.map_contains_key("properties", name), no)
    return no


def add_arguments(parameters: Parameters) -> None:
    """Add the command's arguments."""
    row_source.add_arguments(parameters)
    add = parameters.option
    shared.add_output(parameters, "the messages")
    add("--to", metavar="TOPIC", help="send the messages to this topic")
    add("--to-endpoint", metavar="HOST:PORT", help="gRPC endpoint of a broker to send to (default: --endpoint)")
    add(
        "--tombstone",
        metavar="WHAT",
        default="empty",
        help="messages that delete their key: empty (no body; the default), none, tag:NAME, property:NAME",
    )
    add("--without-key", choices=WITHOUT_KEY, default="drop", help="what to do with messages without keys (drop)")


def run(arguments: SimpleNamespace) -> int:
    """Run the command and return its exit code."""
    if bool(arguments.output) == bool(arguments.to):
        raise ConfigError("no destination, or two; allowed: --output PATH, or --to TOPIC")
    row_source.describe(arguments)
    _mark(arguments.tombstone)
    target = arguments.to_endpoint or arguments.endpoint
    if arguments.to and not target:
        raise ConfigError("--to has no broker to send to; set --to-endpoint HOST:PORT")
    counts = Observation("compact")
    with shared.started(arguments, "compact") as spark:
        frame = row_source.read(spark, arguments)
        options = {"tombstone": arguments.tombstone, "without_key": arguments.without_key, "counts": counts}
        last = compact(frame, **options)
        kept = Observation("kept")
        last = last.observe(kept, F.count("key").alias("keys"))
        if arguments.output:
            shared.write(last, arguments.output)
        else:
            # A message that is the last for several keys is sent once.
            once = last.drop("key").dropDuplicates(["topic", "store_host", "queue_id", "queue_offset"])
            sent = (
                replay.replay(once, target, to=arguments.to, tls=row_source.tls(arguments)).agg(F.sum("sent")).first()
            )
        summary = Summary(f"compact {arguments.topic}")
        for name in ("messages", "without_key", "tombstones"):
            summary.add(name.replace("_", " "), counts.get[name])
        summary.add("keys", kept.get["keys"])
        if arguments.to:
            summary.add("sent", sent[0] or 0 if sent is not None else 0)
    summary.show(arguments)
    return shared.OK


if __name__ == "__main__":
    sys.exit(shared.main("compact"))
