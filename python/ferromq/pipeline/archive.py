"""
`archive`: write commit-log files as Parquet, by topic, date and hour, for Spark, DuckDB and others.

`archive_file` archives and checks one file, and is idempotent. Spark's tasks call it (`archive`, the command), and so
does a store before it deletes a file (`hook`), without Spark in the broker. `partitions` writes the files, `publisher`
adds them to the archive.
"""

import json
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import DateType, IntegerType, StructType

from ferromq import _ferromq
from ferromq.errors import ConfigError, CorruptStore
from ferromq.pipeline.archiving.location import location_of
from ferromq.pipeline.archiving.partitions import PartitionedWriter
from ferromq.pipeline.archiving.publisher import LogPart, Manifest, Publisher
from ferromq.pipeline.command import shared
from ferromq.pipeline.command.parameters import Parameters
from ferromq.pipeline.command.summary import Summary
from ferromq.spark.arrow import arrow_schema, record_batch
from ferromq.spark.file_systems import local_path
from ferromq.spark.schema import SCHEMA

__all__ = ["archive", "archive_file", "hook", "into", "read"]

DIRECTORY = "FERROMQ_ARCHIVE_DIRECTORY"
"""The environment variable with the archive's directory for `hook`."""
ON_CORRUPT = ("fail", "skip")
_BLANK = 8
"""A log file with less free space than this many bytes is full."""
_LOG = "commitlog"
"""The directory of the log files in a store."""
REPORT = (
    "path string, name string, is_new boolean, first_offset long, end long, rows long, corrupt long, files long, "
    "bytes long"
)
"""The columns that `archive` returns for each log file; `bytes` are those of its Parquet files."""

_log = logging.getLogger("ferromq.pipeline")


def archive_file(
    part: LogPart,
    out: str | os.PathLike[str],
    *,
    on_corrupt: str = "fail",
    storage_options: Mapping[str, Any] | None = None,
) -> tuple[Manifest, bool]:
    """
    Archive the records of one log file in *out*; return the manifest, and whether the file was archived now.

    At return everything is on disk, was read back, and has a row for each record. An archived file is skipped, one that
    has grown is archived anew. Idempotent, also after a kill.

    *out* is a directory, or a URL that fsspec opens with *storage_options*. For a record that does not match its
    checksum, *on_corrupt* `fail` raises CorruptStore and archives nothing; `skip` skips it and records it in the
    manifest. Raises StoreError if *out* has another file under the same name.
    """
    if on_corrupt not in ON_CORRUPT:
        raise ConfigError(f"on_corrupt is {on_corrupt!r}; allowed: {', '.join(ON_CORRUPT)}")
    publisher = Publisher(part, location_of(out, storage_options))
    with publisher.entered():
        if publisher.existing is not None:
            return publisher.existing, False
        writer = PartitionedWriter(publisher.parts, publisher.name)
        corrupt: list[tuple[int, str]] = []
        try:
            for batch in _scan(part, on_corrupt, corrupt):
                writer.add(batch)
            written = writer.close()
        except BaseException:
            writer.abort()
            raise
        if sum(file.rows for file in written) != writer.rows:
            raise CorruptStore(f"{part.path} has {writer.rows:,} records, but the files written from it do not")
        return publisher.publish(written, writer.rows, corrupt), True


def _scan(part: LogPart, on_corrupt: str, corrupt: list[tuple[int, str]]) -> Iterator[Any]:
    """Yield the records as batches; add skipped ones to *corrupt*."""
    schema = arrow_schema(SCHEMA)
    scan = _ferromq.LogScan(
        part.path, part.first_offset, part.first_offset, part.end, columns=schema.names, on_corrupt=on_corrupt
    )
    last = -1
    for answer in scan:
        corrupt.extend(answer["corrupt"])
        batch = record_batch(answer["columns"], answer["rows"], schema)
        if batch.num_rows == 0:
            continue
        offsets = batch.column("physical_offset")
        if offsets[0].as_py() <= last:
            raise CorruptStore(f"{part.path} gave physical offset {offsets[0]} after {last}")
        last = offsets[-1].as_py()
        yield batch


def same_everywhere(out: str | os.PathLike[str]) -> str:
    """Return *out* as an absolute path or URL, independent of the working directory."""
    local = local_path(os.fspath(out))
    return os.fspath(out) if local is None else os.fspath(local.absolute())


# --- the store's hook --------------------------------------------------------------------------------------------


def into(
    directory: str | os.PathLike[str],
    *,
    on_corrupt: str = "fail",
    storage_options: Mapping[str, Any] | None = None,
) -> Callable[[_ferromq.ExpiredFile], None]:
    """
    Return an archive hook for a store, which archives each file in *directory* before it is deleted.

    *directory* may be a URL, as for `archive_file`. Raises ConfigError or ModuleNotFoundError if it cannot be an
    archive.
    """
    out = same_everywhere(directory)
    location_of(out, storage_options)

    def take(file: _ferromq.ExpiredFile) -> None:
        part = LogPart(os.fspath(file.path), file.begin, file.end)
        manifest, is_new = archive_file(part, out, on_corrupt=on_corrupt, storage_options=storage_options)
        _check_full(part, manifest)
        done = "archived" if is_new else "was archived before"
        _log.info("%s %s rows=%d files=%d into=%s", file.path, done, manifest.rows, len(manifest.files), out)

    return take


def _check_full(part: LogPart, manifest: Manifest) -> None:
    """Raise CorruptStore if the records end in zeros: every file that a store deletes is full."""
    if manifest.corrupt:
        return  # recorded already, and the sizes cannot be followed across it
    at = max((file["last_offset"] for file in manifest.files), default=part.first_offset)
    with Path(part.path).open("rb") as log:
        while part.end - at >= _BLANK:
            log.seek(at - part.first_offset)
            size = int.from_bytes(log.read(4), "big")
            if size == 0:
                raise CorruptStore(f"{part.path} has zeros at physical offset {at} instead of a record")
            at += size


def hook(file: _ferromq.ExpiredFile) -> None:
    """Archive *file* in the directory that the environment names; for `archive = "ferromq.pipeline.archive:hook"`."""
    directory = os.environ.get(DIRECTORY)
    if not directory:
        raise ConfigError(f"the hook has no archive; set {DIRECTORY} to its directory")
    into(directory)(file)


# --- with Spark --------------------------------------------------------------------------------------------------


def archive(
    spark: SparkSession,
    paths: str | Sequence[str],
    out: str,
    *,
    on_corrupt: str = "fail",
    full_only: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> DataFrame:
    """
    Archive commit-log files in *out*, one task for each, and return a row for each file (`REPORT`).

    *paths* are store directories (ferromq's or a Java broker's, open or closed), directories of log files, or log
    files. Files that still grow are archived as far as they are flushed, and anew the next time; *full_only* skips
    them. Paths and *out* must be the same on every machine of a cluster; *out* may be a URL that fsspec opens with
    *storage_options*.
    """
    if on_corrupt not in ON_CORRUPT:
        raise ConfigError(f"on_corrupt is {on_corrupt!r}; allowed: {', '.join(ON_CORRUPT)}")
    target = same_everywhere(out)
    location_of(target, storage_options)  # raises for a bad location before Spark runs
    parts = log_parts([paths] if isinstance(paths, str) else paths, full_only=full_only)
    rows = [(number, part.path, part.first_offset, part.end) for number, part in enumerate(parts)]
    if not rows:
        return spark.createDataFrame([], REPORT)
    frame = spark.createDataFrame(rows, "number int, path string, first_offset long, end long")

    def task(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            reports = []
            for row in batch.to_pylist():
                part = LogPart(row["path"], row["first_offset"], row["end"])
                done = archive_file(part, target, on_corrupt=on_corrupt, storage_options=storage_options)
                reports.append(_report(part.path, *done))
            if reports:
                yield pa.RecordBatch.from_pylist(reports)

    done = frame.repartitionById(len(rows), "number").mapInArrow(task, REPORT).collect()
    return spark.createDataFrame(done, REPORT)


def _report(path: str, manifest: Manifest, is_new: bool) -> dict[str, Any]:
    return {
        "path": path,
        "name": manifest.name,
        "is_new": is_new,
        "first_offset": manifest.first_offset,
        "end": manifest.end,
        "rows": manifest.rows,
        "corrupt": len(manifest.corrupt),
        "files": len(manifest.files),
        "bytes": sum(file["bytes"] for file in manifest.files),
    }


def log_parts(paths: Iterable[str], *, full_only: bool = False) -> list[LogPart]:
    """Return the log files at *paths*. Raises ConfigError for a path without log files."""
    found: list[LogPart] = []
    for name in paths:
        path = Path(name.removeprefix("file://")).absolute()
        if path.is_file():
            _check_name(path)
            parts = [part for part in _in_folder(path.parent) if part.first_offset == int(path.name)]
        elif (path / _LOG).is_dir():
            parts = _in_folder(path / _LOG)
        elif path.is_dir() and any(map(_is_log_file, path.iterdir())):
            parts = _in_folder(path)
        else:
            what = f"has neither a {_LOG} directory nor log files" if path.is_dir() else "does not exist"
            raise ConfigError(
                f"{name} {what}; allowed: a store directory, a directory of commit-log files, or commit-log files, "
                "whose names are 20 digits"
            )
        found += [part for part in parts if part.end > part.first_offset and not (full_only and _grows(part))]
    return found


def _in_folder(folder: Path) -> list[LogPart]:
    """Return the log files in *folder*: in a store only the flushed part, elsewhere the whole files."""
    if folder.name == _LOG:
        return [LogPart(*file) for file in _ferromq.log_files(os.fspath(folder.parent))]
    files = ((int(file.name), file) for file in sorted(folder.iterdir()) if _is_log_file(file))
    return [LogPart(os.fspath(file), first, first + file.stat().st_size) for first, file in files]


def _grows(part: LogPart) -> bool:
    return part.end < part.first_offset + Path(part.path).stat().st_size


def _is_log_file(path: Path) -> bool:
    return path.is_file() and len(path.name) == 20 and path.name.isdecimal()  # noqa: PLR2004 (RocketMQ's names)


def _check_name(path: Path) -> None:
    if not _is_log_file(path):
        raise ConfigError(f"{path} is not a commit-log file; allowed: files whose names are 20 digits")


def read(spark: SparkSession, out: str) -> DataFrame:
    """
    Return the archive *out* as a DataFrame: the columns of the format, then `date` and `hour`.

    Spark's own file systems read a URL, such as `s3a://…` with hadoop-aws.
    """
    local = local_path(out)
    if local is not None and not local.is_dir():
        raise ConfigError(f"the archive {out!r} does not exist; allowed: a directory that `archive` wrote")
    target = out if local is None else f"file://{local.absolute()}"
    # A copy, because `add` changes the schema in place.
    schema = StructType(list(SCHEMA.fields)).add("date", DateType()).add("hour", IntegerType())
    return spark.read.schema(schema).parquet(target).select(*schema.names)


# --- the command -------------------------------------------------------------------------------------------------


def add_arguments(parameters: Parameters) -> None:
    """Add the command's arguments."""
    add = parameters.option
    parameters.argument(
        "paths", nargs=-1, required=True, metavar="STORE_DIR|FILE...", help="store directories, or commit-log files"
    )
    where = "the archive: a directory, created if it is missing, or a URL that fsspec knows"
    parameters.argument("out", metavar="OUT", help=where)
    add(
        "--on-corrupt",
        choices=ON_CORRUPT,
        default="fail",
        help="for a record that does not match its checksum: fail (default), or skip and record it in the manifest",
    )
    add("--storage-options", metavar="JSON", default="{}", help="options for fsspec to open the URL OUT")
    add("--full-only", is_flag=True, help="skip the file that is still appended to")


def run(arguments: SimpleNamespace) -> int:
    """Run the command and return its exit code: 1 if records were skipped."""
    storage_options = _object("--storage-options", arguments.storage_options)
    with shared.started(arguments, "archive") as spark:
        done = archive(
            spark,
            arguments.paths,
            arguments.out,
            on_corrupt=arguments.on_corrupt,
            full_only=arguments.full_only,
            storage_options=storage_options,
        ).collect()
    summary = Summary(f"archive {arguments.out}")
    new = [row for row in done if row.is_new]
    summary.add("log files", len(done))
    summary.add("of them new", len(new))
    summary.add("messages", sum(row.rows for row in done))
    summary.add("Parquet files", sum(row.files for row in done))
    summary.add("Parquet bytes", sum(row.bytes for row in done))
    corrupt = sum(row.corrupt for row in done)
    summary.add("corrupt records", corrupt)
    summary.show(arguments)
    return shared.FINDINGS if corrupt else shared.OK


def _object(name: str, text: str) -> dict[str, Any]:
    try:
        read = json.loads(text)
    except ValueError:
        read = None
    if not isinstance(read, dict):
        raise ConfigError(f'{name} is {text!r}; allowed: a JSON object such as {{"key": "…"}}')
    return read


if __name__ == "__main__":
    sys.exit(shared.main("archive"))
