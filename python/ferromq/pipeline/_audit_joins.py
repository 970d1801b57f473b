"""
Records, queue entries and index entries against each other: joins by place and identity, run by Spark.

What is legal and therefore not told: docs/pipelines.md.
"""

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (as everywhere)

from ferromq.pipeline import _facts, _findings
from ferromq.pipeline._audit_driver import Whole

_TRANSACTION, _COMMITTED, _ROLLED_BACK, _BATCH = 12, 8, 12, 128
"""Of the system flag: half and rolled-back messages enter no queue, rolled-back ones no index."""
_DELAYS = "SCHEDULE_TOPIC_XXXX"
"""Its entries have the time of delivery in place of the tag hash."""
_LIGHT = "%LMQ%"
"""Queues of this prefix have entries that lead to records of other topics."""
_INT_MIN = -(2**31)
"""A smaller tag hash is the place of an extended entry of RocketMQ."""

_IDENTITY = ["topic", "queue_id", "queue_offset"]
_PLACE = [*_IDENTITY, "physical_offset"]


def findings(spark: SparkSession, facts: DataFrame, whole: Whole) -> DataFrame:
    """Return everything that is wrong, as `_findings.SCHEMA` has it."""
    records = facts.where(F.col("part") == _facts.RECORD)
    own = facts.where(F.col("part") == _facts.FINDING).select(*_findings.SCHEMA.names)
    small = spark.createDataFrame([found.row() for found in whole.findings], _findings.SCHEMA)
    parts = [small, *_queues(spark, facts, records, whole), *_keys(facts, records, whole)]
    for part in parts:
        own = own.unionByName(part)
    return own


def _queues(spark: SparkSession, facts: DataFrame, records: DataFrame, whole: Whole) -> list[DataFrame]:
    """Entries and records must be pairs of the same topic, queue, queue offset and place."""
    entries = facts.where(F.col("part") == _facts.ENTRY)
    queued = records.where(F.col("sys_flag").bitwiseAND(_TRANSACTION).isin(0, _COMMITTED)).where(
        F.col("sys_flag").bitwiseAND(_BATCH) == 0
    )
    pairs = entries.select(
        *_PLACE,
        F.col("size").alias("entry_size"),
        F.col("tag_hash").alias("entry_hash"),
        F.col("file").alias("entry_file"),
    ).join(queued.select(*_PLACE, "size", "tag_hash", "store_timestamp", "file"), _PLACE, "full")
    both = F.col("entry_size").isNotNull() & F.col("size").isNotNull()
    is_hash = (
        (F.col("entry_hash") == F.col("tag_hash"))
        | ((F.col("topic") == _DELAYS) & (F.col("entry_hash") >= F.col("store_timestamp")))
        | (F.col("entry_hash") < _INT_MIN)
    )
    sizes = _rows(
        pairs.where(both & (F.col("entry_size") != F.col("size"))),
        "entry-size",
        F.col("entry_file"),
        F.format_string("size %d; the record has %d bytes", "entry_size", "size"),
    )
    hashes = _rows(
        pairs.where(both & ~is_hash),
        "entry-tag-hash",
        F.col("entry_file"),
        F.format_string("tag hash %d; that of the record is %d", "entry_hash", "tag_hash"),
    )
    stray = pairs.where(F.col("size").isNull()).select(*_PLACE, F.col("entry_file").alias("file"))
    lone = pairs.where(F.col("entry_size").isNull()).select(*_PLACE, "file")
    if whole.limit is not None:
        lone = lone.where(F.col("physical_offset") < whole.limit)
    lone = _without_deleted(spark, lone, whole)
    return [sizes, hashes, _strays(stray, records), _lone(lone, queued)]


def _strays(stray: DataFrame, records: DataFrame) -> DataFrame:
    """Entries whose record is not where they lead: another one is there, or none."""
    there = records.select(
        "physical_offset", *(F.col(name).alias(f"found_{name}") for name in (*_IDENTITY, "sys_flag"))
    )
    found = stray.join(there, "physical_offset", "left")
    found = found.where(F.col("found_topic").isNull() | ~F.col("topic").startswith(_LIGHT))
    is_same = F.lit(True)  # noqa: FBT003
    for name in _IDENTITY:
        is_same &= F.col(name) == F.col(f"found_{name}")
    kind = (
        F.when(F.col("found_topic").isNull(), "entry-without-record")
        .when(is_same, "transaction-flag")
        .otherwise("entry-of-other-record")
    )
    detail = (
        F.when(F.col("found_topic").isNull(), F.lit("no record where it leads"))
        .when(is_same, F.format_string("the record enters no queue: system flag %d", "found_sys_flag"))
        .otherwise(
            F.format_string(
                "it leads to a record of %s queue %d at queue offset %d", *(f"found_{name}" for name in _IDENTITY)
            )
        )
    )
    return _rows(found, kind, F.col("file"), detail)


def _lone(lone: DataFrame, queued: DataFrame) -> DataFrame:
    """Tell of records that no entry leads to: second ones of their queue offset, or without entry."""
    others = queued.select(*_IDENTITY, F.col("physical_offset").alias("other"))
    found = lone.join(others, _IDENTITY, "left").where(F.col("other") != F.col("physical_offset"))
    twins = found.groupBy(*_PLACE, "file").agg(F.min("other").alias("other"))
    told = lone.join(twins.select(*_PLACE, "other"), _PLACE, "left")
    is_twin = F.col("other").isNotNull()
    kind = F.when(is_twin, "duplicate-queue-offset").otherwise("record-without-entry")
    detail = F.when(
        is_twin, F.format_string("another record of this queue offset lies at physical offset %d", "other")
    ).otherwise(F.lit("no entry leads to it"))
    return _rows(told, kind, F.col("file"), detail)


def _without_deleted(spark: SparkSession, lone: DataFrame, whole: Whole) -> DataFrame:
    """Leave out records of topics that were deleted: they lie in the log until their file goes."""
    floors = [(topic, queue, place) for (topic, queue), place in whole.marks.deleted.items()]
    if floors:
        deleted = spark.createDataFrame(floors, "topic string, queue_id int, floor bigint")
        lone = lone.join(F.broadcast(deleted), ["topic", "queue_id"], "left")
        lone = lone.where(F.col("floor").isNull() | (F.col("physical_offset") >= F.col("floor"))).drop("floor")
    if whole.topics is not None:
        known = [(topic,) for topic in whole.topics | {name[0] for name in [*whole.queue_ends, *whole.marks.queues]}]
        topics = spark.createDataFrame(known, "topic string")
        lone = lone.join(F.broadcast(topics), "topic", "left_semi")
    return lone


def _keys(facts: DataFrame, records: DataFrame, whole: Whole) -> list[DataFrame]:
    """Index entries must lead to a record with their key, and from each key of each record."""
    entries = facts.where(F.col("part") == _facts.KEY).select(
        "physical_offset", "hash", F.col("file").alias("entry_file"), "at"
    )
    keys = records.select(*_PLACE, "file", F.explode("hashes").alias("hash"))
    pairs = entries.join(keys, ["physical_offset", "hash"], "full")
    missing = pairs.where(F.col("entry_file").isNull())
    if whole.index_limit is not None:
        missing = missing.where(F.col("physical_offset") < whole.index_limit)
    missing = missing.groupBy(*_PLACE, "file").agg(F.count("*").alias("keys"))
    unindexed = _rows(
        missing, "key-not-indexed", F.col("file"), F.format_string("%d keys are not in the index", "keys")
    )
    stray = pairs.where(F.col("file").isNull()).select("physical_offset", "hash", "entry_file", "at")
    there = records.select(*_PLACE, "sys_flag", F.col("hash").alias("tag_key"), F.lit(1).alias("there"))
    found = stray.join(there, "physical_offset", "left")
    # Brokers of RocketMQ 5.5 enter the tag as well.
    is_tag = (F.col("hash") == F.col("tag_key")) & (F.col("sys_flag").bitwiseAND(_TRANSACTION) != _ROLLED_BACK)
    found = found.where(F.col("there").isNull() | ~is_tag)
    kind = F.when(F.col("there").isNull(), "index-entry-without-record").otherwise("index-other-key")
    detail = F.format_string("the entry at byte %d with the key hash %08x leads there", "at", "hash")
    return [unindexed, _rows(found, kind, F.col("entry_file"), detail)]


def _rows(frame: DataFrame, kind: Column | str, file: Column, detail: Column) -> DataFrame:
    """Return *frame* as findings of *kind*."""
    values = {"kind": F.lit(kind) if isinstance(kind, str) else kind, "file": file, "detail": detail}
    return frame.select(*(values.get(name, F.col(name)).alias(name) for name in _findings.SCHEMA.names))
