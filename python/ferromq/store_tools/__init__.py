"""
Works on store directories without a broker: shows, verifies, prints, compares, copies and mends them.

`stat`, `verify`, `dump`, `diff` and `read_log_file` only read, and take no lock. The directory may belong to ferromq or
a Java broker, and may be open: a scan then ends where the log ended when the scan began. Memory is bounded::

    summary = store_tools.stat("store")
    with store_tools.verify("store") as verification:
        for finding in verification:
            print(finding.kind, finding.file, finding.expected, finding.found)
    for message in store_tools.dump("store", "orders", key="o-1"):
        ...
    store_tools.backup("store", "/mnt/backup/store")
    differences = list(store_tools.diff("store", "/mnt/backup/store"))

The Rust core does the work; this module gives its rows types.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from os import fspath
from pathlib import Path
from typing import Any, TypeAlias

from ferromq._ferromq import LogFile, StoredMessage, StoreDump, inspect_store
from ferromq.store_tools.backups import BackupReport, backup
from ferromq.store_tools.differences import Difference, diff
from ferromq.store_tools.repairs import Repair, RepairReport, RepairStep, plan_repair
from ferromq.store_tools.verification import (
    Finding,
    StorePath,
    Verification,
    VerifyReport,
    paths_of,
    unfinished,
    verify,
)

__all__ = [
    "BackupReport",
    "CheckpointSummary",
    "ConfigFile",
    "DamagedMessage",
    "Difference",
    "Finding",
    "IndexSummary",
    "LogSummary",
    "LostMessage",
    "OwnFile",
    "QueueSummary",
    "Repair",
    "RepairReport",
    "RepairStep",
    "StoreSummary",
    "Verification",
    "VerifyReport",
    "backup",
    "diff",
    "dump",
    "plan_repair",
    "read_log_file",
    "stat",
    "verify",
]

Time: TypeAlias = int | datetime
"""A store timestamp: milliseconds since 1970, or a datetime (without time zone: local time)."""


@dataclass(frozen=True, slots=True)
class LogSummary:
    """The commit log. Times are milliseconds since 1970."""

    paths: Sequence[str]
    files: int
    file_size: int
    bytes: int
    start: int
    end: int
    first_time: int | None
    last_time: int | None
    gaps: Sequence[tuple[int, int]]
    """Ranges of physical offsets without a file."""


@dataclass(frozen=True, slots=True)
class QueueSummary:
    """A queue of a topic."""

    queue_id: int
    min_offset: int
    max_offset: int
    messages: int
    bytes: int
    """Bytes of the messages' records."""
    first_time: int | None
    last_time: int | None
    files: int
    file_bytes: int


@dataclass(frozen=True, slots=True)
class IndexSummary:
    """The index of keys."""

    files: int
    bytes: int
    entries: int
    first_time: int | None
    last_time: int | None


@dataclass(frozen=True, slots=True)
class CheckpointSummary:
    """The durable positions of the store's files."""

    log_time: int
    queues_time: int
    index_time: int
    master_flushed_offset: int
    durable_end: int
    """End of the log that is on disk and in queues and index; 0 if the broker does not record it."""


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """A file of `config/`."""

    name: str
    bytes: int
    entries: int | None
    """Entries of its table, if it has one."""
    error: str | None
    """Why it cannot be read."""


@dataclass(frozen=True, slots=True)
class OwnFile:
    """A file of `ferromq/`, which only ferromq reads."""

    name: str
    bytes: int
    error: str | None
    is_void: bool
    """Whether the file is ignored because another broker has written to the log since."""


@dataclass(frozen=True, slots=True)
class StoreSummary:
    """What is in a store directory."""

    directory: Path
    state: str
    """`closed`, `open` (by a broker, now) or `killed`."""
    abort: str | None
    """Content of the abort file: the process that has the store open, or had it when it was killed."""
    log: LogSummary
    topics: Mapping[str, Sequence[QueueSummary]]
    index: IndexSummary
    checkpoint: CheckpointSummary | None
    config: Sequence[ConfigFile]
    own_files: Sequence[OwnFile]
    problems: Sequence[str]
    """Files that are missing, overlap, or cannot be opened."""

    @property
    def last_stop(self) -> str:
        """How the store was last closed, as text."""
        if self.state == "closed":
            is_ours = any(file.name == "closed" for file in self.own_files)
            return "clean" if is_ours else "clean, by another broker (Java)"
        who = "ferromq" if (self.abort or "").startswith("ferromq") else "another broker (Java)"
        process = (self.abort or "").removeprefix("ferromq").strip()
        name = f"{who}, process {process}" if process else who
        return f"open now: {name}" if self.state == "open" else f"unclean: killed under {name}"


@dataclass(frozen=True, slots=True)
class DamagedMessage:
    """A record that does not match its checksum; any of its fields may be wrong."""

    message: StoredMessage


@dataclass(frozen=True, slots=True)
class LostMessage:
    """A queue entry without a record."""

    queue_id: int
    queue_offset: int
    reason: str


def stat(
    directory: StorePath, *, commit_log_paths: Sequence[StorePath] = (), index_slots: int | None = None
) -> StoreSummary:
    """
    Return what is in a store directory.

    *commit_log_paths*: directories of the commit log, by default `DIR/commitlog`. *index_slots*: hash slots of an index
    file, by default a quarter of its entries. Raises `StoreError` if it is not a store directory or cannot be read.
    """
    row = inspect_store(fspath(directory), commit_log_paths=paths_of(commit_log_paths), index_slots=index_slots)
    checkpoint = row["checkpoint"]
    return StoreSummary(
        directory=Path(row["directory"]),
        state=row["state"],
        abort=row["abort"],
        log=LogSummary(**row["log"]),
        topics={name: [QueueSummary(**queue) for queue in queues] for name, queues in row["topics"].items()},
        index=IndexSummary(**row["index"]),
        checkpoint=None if checkpoint is None else CheckpointSummary(**checkpoint),
        config=[ConfigFile(**file) for file in row["config"]],
        own_files=[OwnFile(**file) for file in row["own_files"]],
        problems=[*row["problems"], *(f"{found.file}: {found.found}" for found in unfinished(Path(directory)))],
    )


def dump(
    directory: StorePath,
    topic: str,
    *,
    queue_id: int | None = None,
    from_offset: int | None = None,
    to_offset: int | None = None,
    from_time: Time | None = None,
    to_time: Time | None = None,
    key: str | None = None,
    tag: str | None = None,
    limit: int | None = None,
    commit_log_paths: Sequence[StorePath] = (),
) -> Iterator[StoredMessage | DamagedMessage | LostMessage]:
    """
    Read the messages of a topic, queue after queue, in the order of queue offsets.

    The queue offsets begin at *from_offset* and end before *to_offset*. The store times are from *from_time* to
    *to_time*, both included. *key* is one of a message's keys or its unique key. Raises `StoreError` if it is not a
    store directory, or has no such topic or queue.
    """
    rows = StoreDump(
        fspath(directory),
        topic,
        queue_id=queue_id,
        from_offset=from_offset,
        to_offset=to_offset,
        from_time=_milliseconds(from_time),
        to_time=_milliseconds(to_time),
        key=key,
        tag=tag,
        limit=limit,
        commit_log_paths=paths_of(commit_log_paths),
    )
    return map(_message, rows)


def read_log_file(
    path: StorePath, *, first_offset: int | None = None
) -> Iterator[StoredMessage | DamagedMessage | Finding]:
    """
    Read the records of one commit log file, of any topic, without the other files of its store.

    *first_offset*: physical offset of its first byte; by default its name. Each range of bytes without a record is one
    `Finding`. Raises `OSError` if the file cannot be read.
    """
    name = Path(path).name
    if first_offset is None:
        if not name.isdecimal():
            raise ValueError(f"the name {name!r} is not a physical offset; pass first_offset")
        first_offset = int(name)
    return map(_scanned, LogFile(fspath(path), first_offset))


def _message(row: tuple[StoredMessage, bool] | tuple[int, int, str]) -> StoredMessage | DamagedMessage | LostMessage:
    match row:
        case (StoredMessage() as message, bool(is_sound)):
            return message if is_sound else DamagedMessage(message)
        case (int(queue_id), int(queue_offset), str(reason)):
            return LostMessage(queue_id, queue_offset, reason)
    raise TypeError(row)


def _scanned(row: tuple[StoredMessage, bool] | dict[str, Any]) -> StoredMessage | DamagedMessage | Finding:
    if isinstance(row, dict):
        return Finding(**{**row, "file": Path(row["file"])})
    message, is_sound = row
    return message if is_sound else DamagedMessage(message)


def _milliseconds(time: Time | None) -> int | None:
    return int(time.timestamp() * 1000) if isinstance(time, datetime) else time
