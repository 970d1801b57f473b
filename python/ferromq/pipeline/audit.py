"""
`audit`: check every record, queue entry and index key of a store directory on Spark.

Each task reads commit-log files, consume queues or index files once and in order; joins compare them. The audit writes
nothing, takes no lock, and keeps one batch a task in memory, so a store may have any size. It may be ferromq's or a
Java broker's, closed or open; of an open store only the records are checked that its broker has dispatched.

`ferromq store verify` does the same on one machine without Spark, and also checks small files (`config/`).
"""

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from os import PathLike
from types import SimpleNamespace
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.storagelevel import StorageLevel

from ferromq.pipeline.auditing import (
    findings,
    joins,
    overview,
    scan_index,
    scan_log,
    scan_queue,
    scan_rows,
    store_files,
)
from ferromq.pipeline.auditing.store_files import QueueFiles, RowFile, StoreFiles
from ferromq.pipeline.command import shared
from ferromq.pipeline.command.parameters import Parameters
from ferromq.pipeline.command.summary import Summary
from ferromq.terminal import formatting

SCHEMA = findings.SCHEMA
_GROUP = 64 << 20
"""Minimum bytes that one task reads; smaller files are grouped."""
_SHOWN = 50
_Item = TypeVar("_Item")


@dataclass(frozen=True)
class Audit:
    """The result of an audit."""

    findings: DataFrame
    """Columns: kind, topic, queue_id, queue_offset, physical_offset, file, detail."""
    counts: dict[str, int]
    """The number of findings of each kind."""
    files: StoreFiles
    promised_to: int | None
    """Physical offset below which records must be in queues and index; None: all records."""
    figures: dict[str, int] = field(default_factory=dict)
    """`log_files`, `log_bytes`, `records`, `queues`, `queue_entries`, `index_files`, `index_entries`."""


def audit(
    spark: SparkSession,
    directory: str | PathLike[str],
    *,
    commit_log_paths: Sequence[str] = (),
    index_slots: int | None = None,
) -> DataFrame:
    """
    Check the store in *directory* and return a row for each finding; no row means that the store is sound.

    Driver and workers must see the directory under the same path. *commit_log_paths* are the directories of the commit
    log if it is not in `DIR/commitlog`. *index_slots* is the number of hash slots of an index file if it is not a
    quarter of its entries. Raises StoreError if the directory is not a readable store.
    """
    return look(spark, directory, commit_log_paths=commit_log_paths, index_slots=index_slots).findings


def look(
    spark: SparkSession,
    directory: str | PathLike[str],
    *,
    commit_log_paths: Sequence[str] = (),
    index_slots: int | None = None,
) -> Audit:
    """Audit as `audit` does, and also return counts and figures. The findings are cached."""
    files = store_files.listed(directory, commit_log_paths)
    limit = overview.promised_to(files)
    tasks = _tasks(files, limit if files.is_open else None, index_slots)
    facts = _read(spark, tasks).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        rows = (
            facts.where(facts.part == scan_rows.FIGURES).select("kind", "topic", "queue_id", "file", "detail").collect()
        )
        figures = [(row.kind, row.topic, row.queue_id, row.file, json.loads(row.detail)) for row in rows]
        whole = overview.StoreOverview.of(files, figures, limit)
        found, counts = _found(spark, facts, whole)
    finally:
        facts.unpersist()
    return Audit(found, counts, files, limit, whole.totals)


def _found(spark: SparkSession, facts: DataFrame, whole: overview.StoreOverview) -> tuple[DataFrame, dict[str, int]]:
    """Return all findings, cached, and the number of each kind."""
    found = spark.createDataFrame([finding.row() for finding in whole.findings], SCHEMA)
    suspects = joins.suspects(spark, facts, whole).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        kinds = {row.kind for row in suspects.select("kind").distinct().collect()}
        if kinds:
            found = found.unionByName(joins.explained(suspects, kinds, facts))
        if whole.files.is_open:
            start = store_files.log_start(whole.files)
            found = found.where(found.physical_offset.isNull() | (found.physical_offset >= start))
        if not kinds and not whole.findings:
            return found, {}
        found = found.persist(StorageLevel.MEMORY_AND_DISK)
        return found, {row.kind: row["count"] for row in found.groupBy("kind").count().collect()}
    finally:
        suspects.unpersist()


# --- the tasks ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Task:
    """The input of one task: commit-log files, queues, or index files."""

    files: Sequence[RowFile] = ()
    queues: Sequence[QueueFiles] = ()
    index: Sequence[RowFile] = ()
    log_start: int = 0
    until: int | None = None
    index_slots: int | None = None
    is_closed: bool = True

    def run(self) -> Iterator[pa.RecordBatch]:
        """Scan the files. Files that a running broker has removed are skipped."""
        for file in self.files:
            yield from self._unless_gone(scan_log.scan(file, sys.maxsize if self.until is None else self.until))
        for queue in self.queues:
            yield from self._unless_gone(scan_queue.scan(queue, self.log_start, self.until))
        for file in self.index:
            entries = scan_index.scan(
                file, self.log_start, self.until, slots=self.index_slots, has_slots=self.is_closed
            )
            yield from self._unless_gone(entries)

    def _unless_gone(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            yield from batches
        except FileNotFoundError:
            if self.until is None:
                raise
        except OSError as error:
            detail = f"the file cannot be read: {error}"
            yield scan_rows.findings([{"kind": "unreadable", "file": str(error.filename or ""), "detail": detail}])


def _tasks(files: StoreFiles, until: int | None, index_slots: int | None) -> list[_Task]:
    """Return the tasks: one for each large file, and one for each group of small files."""
    common: dict[str, Any] = {
        "log_start": files.log_start,
        "until": until,
        "index_slots": index_slots,
        "is_closed": files.state == "closed",
    }
    logs = [file for file in files.log if until is None or file.base < until]
    tasks = [_Task(files=group, **common) for group in _groups(logs, lambda file: file.length)]
    tasks += [
        _Task(queues=group, **common)
        for group in _groups(files.queues, lambda queue: sum(file.length for file in queue.files))
    ]
    return tasks + [_Task(index=group, **common) for group in _groups(files.index, lambda file: file.length)]


def _groups(items: Iterable[_Item], size: Callable[[_Item], int]) -> Iterator[list[_Item]]:
    group: list[_Item] = []
    held = 0
    for item in items:
        group.append(item)
        held += size(item)
        if held >= _GROUP:
            yield group
            group, held = [], 0
    if group:
        yield group


def _read(spark: SparkSession, tasks: Sequence[_Task]) -> DataFrame:
    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from tasks[number].run()

    return spark.range(0, len(tasks), 1, max(len(tasks), 1)).mapInArrow(run, scan_rows.SPARK)


# --- the command -------------------------------------------------------------------------------------------------


def add_arguments(parameters: Parameters) -> None:
    """Add the command's arguments."""
    parameters.argument("directory", metavar="DIR", help="store directory of ferromq or a Java broker, closed or open")
    parameters.option(
        "--commit-log",
        "commit_log_paths",
        multiple=True,
        metavar="DIR",
        help="directory of the commit log, if it is not DIR/commitlog; may be repeated",
    )
    parameters.option(
        "--index-slots", type=int, metavar="N", help="hash slots of an index file (default: a quarter of its entries)"
    )
    parameters.option("--show", type=int, default=_SHOWN, metavar="N", help=f"findings in the summary ({_SHOWN})")
    shared.add_output(parameters, "the findings")


def run(arguments: SimpleNamespace) -> int:
    """Audit a store and print the summary; return FINDINGS if it is not sound."""
    with shared.started(arguments, "audit") as spark:
        found = look(
            spark,
            arguments.directory,
            commit_log_paths=arguments.commit_log_paths,
            index_slots=arguments.index_slots,
        )
        rows = [tuple(row) for row in found.findings.orderBy(*SCHEMA.names[:6]).limit(arguments.show).collect()]
        if arguments.output:
            shared.write(found.findings, arguments.output)
        found.findings.unpersist()
    _summary(found, rows).show(arguments)
    return shared.FINDINGS if found.counts else shared.OK


def _summary(found: Audit, rows: Sequence[tuple[Any, ...]]) -> Summary:
    total = sum(found.counts.values())
    figures = found.figures
    summary = Summary(f"{found.files.directory} ({found.files.state}): {'not sound' if total else 'sound'}")
    summary.add("records", figures["records"])
    size = figures["log_bytes"]
    files = formatting.number(figures["log_files"], "file")
    summary.add("log bytes", size, f"{formatting.size(size)} in {files}")
    for name in ("queues", "queue_entries", "index_files", "index_entries"):
        summary.add(name.replace("_", " "), figures[name])
    if found.promised_to is not None:
        summary.add("promised to", found.promised_to, f"physical offset {found.promised_to:,}")
    summary.add("findings", total)
    summary.table("kinds", ("kind", "count"), sorted(found.counts.items()), "<>")
    summary.table("first findings", SCHEMA.names, rows, "<<>>><<", more=total - len(rows))
    return summary


if __name__ == "__main__":
    sys.exit(shared.main("audit"))
