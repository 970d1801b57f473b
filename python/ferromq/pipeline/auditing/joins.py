"""
Compares records, queue entries and index entries with joins on Spark.

Two joins give the suspects; a sound store has none. Further joins, over the suspects only, explain them.
docs/pipelines.md lists the differences that are legal.
"""

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (as everywhere)

from ferromq.pipeline.auditing import findings, scan_rows
from ferromq.pipeline.auditing.overview import StoreOverview
from ferromq.protocol import naming

_TRANSACTION, _COMMITTED, _ROLLED_BACK, _BATCH = 12, 8, 12, 128
"""Bits of the system flag. Half and rolled-back messages enter no queue; rolled-back ones no index."""
_LIGHT = "%LMQ%"
"""Queues with this prefix have entries that lead to records of other topics."""
_INT_MIN = -(2**31)
"""A smaller tag hash is the position of an extended entry of RocketMQ."""

_MAX_OFFSET = 2**63 - 1
"""Spark's integers are signed."""

_IDENTITY = ["topic", "queue_id", "queue_offset"]
_PLACE = [*_IDENTITY, "physical_offset"]
_STRAY, _LONE, _STRAY_KEY, _UNINDEXED = "stray", "lone", "stray key", "key-not-indexed"
_COLUMNS = [*findings.SCHEMA.names, "hash", "at"]


def suspects(spark: SparkSession, facts: DataFrame, whole: StoreOverview) -> DataFrame:
    """
    Return findings and suspects, with `hash` and `at` of index entries.

    `explained` turns the kinds `stray`, `lone` and `stray key` into findings; the other kinds are final.
    """
    own = facts.where(F.col("part") == scan_rows.FINDING).select(*_COLUMNS)
    return own.unionByName(_queues(spark, facts, whole)).unionByName(_keys(facts, whole))


def explained(found: DataFrame, kinds: set[str], facts: DataFrame) -> DataFrame:
    """Return the findings for the suspects *found*, which are of these *kinds*."""
    names = findings.SCHEMA.names
    records = facts.where(F.col("part") == scan_rows.RECORD)
    result = found.where(~F.col("kind").isin(_STRAY, _LONE, _STRAY_KEY)).select(*names)
    for kind, explain in ((_STRAY, _strays), (_LONE, _lone), (_STRAY_KEY, _stray_keys)):
        if kind in kinds:
            result = result.unionByName(explain(found.where(F.col("kind") == kind), records))
    return result


def _queued(facts: DataFrame) -> DataFrame:
    """Return the records that need a queue entry."""
    records = facts.where(F.col("part") == scan_rows.RECORD)
    flag = F.col("sys_flag")
    return records.where(flag.bitwiseAND(_TRANSACTION).isin(0, _COMMITTED) & (flag.bitwiseAND(_BATCH) == 0))


def _queues(spark: SparkSession, facts: DataFrame, whole: StoreOverview) -> DataFrame:
    """Compare queue entries with records: each needs a partner of the same topic, queue, queue offset and place."""
    entries = facts.where(F.col("part") == scan_rows.ENTRY).select(
        *_PLACE,
        F.col("size").alias("entry_size"),
        F.col("tag_hash").alias("entry_hash"),
        F.col("file").alias("entry_file"),
    )
    records = _queued(facts).select(*_PLACE, "size", "tag_hash", "store_timestamp", "file")
    pairs = entries.join(records, _PLACE, "full")
    is_hash = (
        (F.col("entry_hash") == F.col("tag_hash"))
        | ((F.col("topic") == naming.SCHEDULE_TOPIC) & (F.col("entry_hash") >= F.col("store_timestamp")))
        | (F.col("entry_hash") < _INT_MIN)
    )
    is_due = F.lit(True) if whole.limit is None else F.col("physical_offset") < whole.limit  # noqa: FBT003
    kind = (
        F.when(F.col("size").isNull(), _STRAY)
        .when(F.col("entry_size").isNull(), F.when(is_due, _LONE))
        .when(F.col("entry_size") != F.col("size"), "entry-size")
        .when(~is_hash, "entry-tag-hash")
    )
    detail = F.when(
        F.col("entry_size") != F.col("size"),
        F.format_string("size %d; the record has %d bytes", "entry_size", "size"),
    ).when(~is_hash, F.format_string("tag hash %d; that of the record is %d", "entry_hash", "tag_hash"))
    found = pairs.select(
        kind.alias("kind"),
        *_PLACE,
        F.coalesce("entry_file", "file").alias("file"),
        detail.alias("detail"),
        F.lit(None).cast("int").alias("hash"),
        F.lit(None).cast("bigint").alias("at"),
    ).where(F.col("kind").isNotNull())
    return _without_deleted(spark, found, whole)


def _without_deleted(spark: SparkSession, found: DataFrame, whole: StoreOverview) -> DataFrame:
    """Drop suspects of deleted topics, whose records stay in the log until their file expires."""
    is_lone = F.col("kind") == _LONE
    floors = [(topic, queue, place) for (topic, queue), place in whole.marks.deleted.items()]
    if floors:
        deleted = spark.createDataFrame(floors, "topic string, queue_id int, floor bigint")
        found = found.join(F.broadcast(deleted), ["topic", "queue_id"], "left")
        is_below = F.coalesce(F.col("physical_offset") < F.col("floor"), F.lit(False))  # noqa: FBT003
        found = found.where(~(is_lone & is_below)).drop("floor")
    if whole.topics is not None:
        known = {*whole.topics, *(name[0] for name in whole.queue_ends), *(name[0] for name in whole.marks.queues)}
        topics = spark.createDataFrame([(topic, True) for topic in known], "topic string, is_known boolean")
        found = found.join(F.broadcast(topics), "topic", "left")
        found = found.where(~is_lone | F.col("is_known")).drop("is_known")
    return found.select(*_COLUMNS)


def _keys(facts: DataFrame, whole: StoreOverview) -> DataFrame:
    """Compare index entries with record keys: each entry needs a record with its key, each key an entry."""
    entries = facts.where(F.col("part") == scan_rows.KEY)
    entries = entries.select("physical_offset", "hash", F.col("file").alias("entry_file"), "at")
    records = facts.where(F.col("part") == scan_rows.RECORD)
    keys = records.select(*_PLACE, "file", F.explode("hashes").alias("hash"))
    pairs = entries.join(keys, ["physical_offset", "hash"], "full")
    is_due = F.lit(True)  # noqa: FBT003
    if whole.index_limit is not None:
        is_due = F.col("physical_offset") < whole.index_limit
    first, end = (min(place, _MAX_OFFSET) for place in whole.marks.unindexed)
    is_due &= ~F.col("physical_offset").between(first, end - 1)
    kind = F.when(F.col("file").isNull(), _STRAY_KEY).when(F.col("entry_file").isNull(), F.when(is_due, _UNINDEXED))
    return pairs.select(
        kind.alias("kind"),
        *_PLACE,
        F.coalesce("entry_file", "file").alias("file"),
        F.when(F.col("entry_file").isNull(), F.format_string("the key hash %08x is not in the index", "hash")).alias(
            "detail"
        ),
        "hash",
        "at",
    ).where(F.col("kind").isNotNull())


def _strays(stray: DataFrame, records: DataFrame) -> DataFrame:
    """Explain entries without a record of their own by the record that they lead to."""
    there = records.select(
        "physical_offset", *(F.col(name).alias(f"found_{name}") for name in (*_IDENTITY, "sys_flag"))
    )
    found = stray.join(there, "physical_offset", "left")
    found = found.where(F.col("found_topic").isNull() | ~F.col("topic").startswith(_LIGHT))
    is_none = F.col("found_topic").isNull()
    is_same = F.lit(True)  # noqa: FBT003
    for name in _IDENTITY:
        is_same &= F.col(name) == F.col(f"found_{name}")
    kind = F.when(is_none, "entry-without-record").when(is_same, "transaction-flag").otherwise("entry-of-other-record")
    other = F.format_string(
        "it leads to a record of %s queue %d at queue offset %d", *(f"found_{name}" for name in _IDENTITY)
    )
    detail = (
        F.when(is_none, F.lit("it leads to no record"))
        .when(is_same, F.format_string("the record enters no queue: system flag %d", "found_sys_flag"))
        .otherwise(other)
    )
    return _rows(found, kind, detail)


def _lone(lone: DataFrame, records: DataFrame) -> DataFrame:
    """Explain records without an entry: they repeat a queue offset, or their entry is missing."""
    others = _queued(records).select(*_IDENTITY, F.col("physical_offset").alias("other"))
    found = lone.join(others, _IDENTITY, "left").where(F.col("other") != F.col("physical_offset"))
    twins = found.groupBy(*_PLACE).agg(F.min("other").alias("other"))
    result = lone.join(twins, _PLACE, "left")
    is_twin = F.col("other").isNotNull()
    twin = F.format_string("another record of this queue offset lies at physical offset %d", "other")
    return _rows(
        result,
        F.when(is_twin, "duplicate-queue-offset").otherwise("record-without-entry"),
        F.when(is_twin, twin).otherwise(F.lit("no entry leads to it")),
    )


def _stray_keys(stray: DataFrame, records: DataFrame) -> DataFrame:
    """Explain index entries whose record is missing or has other keys."""
    there = records.select(
        *(F.col(name).alias(f"found_{name}") for name in _IDENTITY),
        "physical_offset",
        "sys_flag",
        F.col("hash").alias("tag_key"),
    )
    found = stray.drop(*_IDENTITY).join(there, "physical_offset", "left")
    found = found.withColumnsRenamed({f"found_{name}": name for name in _IDENTITY})
    is_none = F.col("topic").isNull()
    # RocketMQ 5.5 also indexes the tag.
    is_tag = (F.col("hash") == F.col("tag_key")) & (F.col("sys_flag").bitwiseAND(_TRANSACTION) != _ROLLED_BACK)
    found = found.where(is_none | ~is_tag)
    kind = F.when(is_none, "index-entry-without-record").otherwise("index-other-key")
    return _rows(found, kind, F.format_string("the entry at byte %d with the key hash %08x leads there", "at", "hash"))


def _rows(frame: DataFrame, kind: Column, detail: Column) -> DataFrame:
    """Return *frame* as findings of *kind*."""
    values = {"kind": kind, "detail": detail}
    return frame.select(*(values.get(name, F.col(name)).alias(name) for name in findings.SCHEMA.names))
