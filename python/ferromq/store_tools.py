"""
Store directories looked at from outside: what is in one, whether it is sound, which messages it holds.

Everything is read-only and takes no lock: the directory may be one of ours or a Java broker's, closed or open (then it
is looked at up to where it was). Memory is bounded, whatever the size::

    summary = store_tools.stat("store")
    with store_tools.verify("store") as verification:
        for finding in verification:
            print(finding.kind, finding.file, finding.expected, finding.found)
    for message in store_tools.dump("store", "orders", key="o-1"):
        ...

The work is done in Rust; here its rows get types. The command line over it is in `_store_commands`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from os import PathLike, fspath
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeAlias

from ferromq._ferromq import LogFile, StoredMessage, StoreDump, StoreVerification, inspect_store
from ferromq.errors import StoreError

__all__ = [
    "CheckpointSummary",
    "ConfigFile",
    "DamagedMessage",
    "Finding",
    "IndexSummary",
    "LogSummary",
    "LostMessage",
    "OwnFile",
    "QueueSummary",
    "StoreSummary",
    "Verification",
    "VerifyReport",
    "dump",
    "read_log_file",
    "stat",
    "verify",
]

StorePath: TypeAlias = str | PathLike[str]
Time: TypeAlias = int | datetime
"""A store timestamp: milliseconds since 1970, or a datetime (without time zone: local time)."""

_PATIENCE = 0.2
"""Seconds after which a wait looks whether the caller was interrupted."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it should be."""

    kind: str
    """`body-checksum`, `queue-gap`, `index-chain`, …: the names are listed in docs/storage-format.md."""
    file: Path
    start: int
    """First byte inside the file; equal to `end` where it is about the file as a whole."""
    end: int
    count: int
    """How many records or entries it is about."""
    expected: str
    found: str


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What a verification looked at, and how much it found."""

    directory: Path
    state: str
    """`closed`, `open` (by a broker, now) or `killed`."""
    log_start: int
    looked_to: int
    """End of the log that was looked at."""
    promised_to: int
    """Records before it had to be in queues and index."""
    log_files: int
    log_bytes: int
    records: int
    queues: int
    queue_entries: int
    index_files: int
    index_entries: int
    not_dispatched: int
    """Records behind `promised_to`, which a broker enters into queues and index later."""
    of_deleted: int
    """Records of deleted topics that are not yet cleaned."""
    findings: Mapping[str, int]
    """How many findings of each kind."""
    notes: Sequence[str]
    """What is worth knowing and no fault."""
    is_complete: bool
    seconds: float

    @property
    def is_sound(self) -> bool:
        """Whether all was looked at and nothing found."""
        return self.is_complete and not self.findings


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
    """Physical offsets that no file holds, between others."""


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
    """How far the files were known to be on disk."""

    log_time: int
    queues_time: int
    index_time: int
    master_flushed_offset: int
    durable_end: int
    """End of the log that is on disk and in queues and index; 0 where the broker does not say."""


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """A file of `config/`."""

    name: str
    bytes: int
    entries: int | None
    """Entries of its table, where it has one."""
    error: str | None
    """Why it cannot be read."""


@dataclass(frozen=True, slots=True)
class OwnFile:
    """A file of `ferromq/`, which only ferromq knows."""

    name: str
    bytes: int
    error: str | None
    is_void: bool
    """The log has moved on under another broker, so it is ignored."""


@dataclass(frozen=True, slots=True)
class StoreSummary:
    """What is in a store directory."""

    directory: Path
    state: str
    """`closed`, `open` (by a broker, now) or `killed`."""
    abort: str | None
    """What the abort file says: who has the store open, or had it when killed."""
    log: LogSummary
    topics: Mapping[str, Sequence[QueueSummary]]
    index: IndexSummary
    checkpoint: CheckpointSummary | None
    config: Sequence[ConfigFile]
    own_files: Sequence[OwnFile]
    problems: Sequence[str]
    """Files that are missing, overlap or cannot be opened."""

    @property
    def last_stop(self) -> str:
        """How the store was left, in words."""
        if self.state == "closed":
            is_ours = any(file.name == "closed" for file in self.own_files)
            return "clean" if is_ours else "clean, by another broker (Java)"
        who = "ferromq" if (self.abort or "").startswith("ferromq") else "another broker (Java)"
        process = (self.abort or "").removeprefix("ferromq").strip()
        name = f"{who}, process {process}" if process else who
        return f"open now: {name}" if self.state == "open" else f"unclean: killed under {name}"


@dataclass(frozen=True, slots=True)
class DamagedMessage:
    """A record that does not match its checksum; everything of it may be wrong."""

    message: StoredMessage


@dataclass(frozen=True, slots=True)
class LostMessage:
    """A queue entry that leads to no record."""

    queue_id: int
    queue_offset: int
    reason: str


def stat(
    directory: StorePath, *, commit_log_paths: Sequence[StorePath] = (), index_slots: int | None = None
) -> StoreSummary:
    """
    Say what is in a store directory.

    *commit_log_paths*: where the commit log lies, if not in `DIR/commitlog`. *index_slots*: hash slots of an index
    file, if not a quarter as many as entries. Raises `StoreError` where it is no store directory, or cannot be read.
    """
    row = inspect_store(fspath(directory), commit_log_paths=_paths(commit_log_paths), index_slots=index_slots)
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
        problems=row["problems"],
    )


class Verification(Iterator[Finding]):
    """
    A verification under way: iterate to get its findings, in no order; `report` is there after the last.

    It runs on threads of its own, which wait while findings are not taken. As a context manager, or by `close`, it
    ends early.
    """

    def __init__(self, running: StoreVerification, on_progress: Callable[[int, int], None] | None) -> None:
        self._running = running
        self._on_progress = on_progress
        self._report: VerifyReport | None = None

    @property
    def report(self) -> VerifyReport:
        """What was looked at and found. Takes the findings that are left."""
        while self._report is None:
            next(self, None)
        return self._report

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Finding:
        while self._report is None:
            event = self._running.next(_PATIENCE)
            if event is None:
                continue
            kind, row = event
            if kind == "finding":
                return Finding(**{**row, "file": Path(row["file"])})
            if kind == "report":
                self._report = VerifyReport(**{**row, "directory": Path(row["directory"])})
            elif self._on_progress is not None:
                self._on_progress(row["done"], row["total"])
        raise StopIteration

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End it where it is. Idempotent."""
        self._running.close()


def verify(
    directory: StorePath,
    *,
    commit_log_paths: Sequence[StorePath] = (),
    index_slots: int | None = None,
    threads: int = 0,
    on_progress: Callable[[int, int], None] | None = None,
) -> Verification:
    """
    Look at every byte of a store directory that means something.

    *threads*: how many look (0: one a processor). *on_progress*(done, total) hears of bytes, in the iterating thread.
    It, or iterating, raises `StoreError` where it is no store directory, or cannot be read.
    """
    running = StoreVerification(
        fspath(directory), commit_log_paths=_paths(commit_log_paths), index_slots=index_slots, threads=threads
    )
    return Verification(running, on_progress)


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

    Queue offsets from *from_offset* on, before *to_offset*; store times from *from_time* to *to_time*, both included;
    *key*: one of the keys, or the unique key. Raises `StoreError` where it is no store directory, or has no such topic
    or queue.
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
        commit_log_paths=_paths(commit_log_paths),
    )
    return map(_message, rows)


def read_log_file(
    path: StorePath, *, first_offset: int | None = None
) -> Iterator[StoredMessage | DamagedMessage | Finding]:
    """
    Read the records of one commit log file, of any topic, without the other files of its store.

    *first_offset*: physical offset of its first byte, if its name does not say. Bytes that are no record come as one
    `Finding`. Raises `OSError` where the file cannot be read.
    """
    name = Path(path).name
    if first_offset is None:
        if not name.isdecimal():
            raise ValueError(f"the name {name!r} says no physical offset; pass first_offset")
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


def _paths(paths: Sequence[StorePath]) -> list[str]:
    for path in paths:
        if not Path(path).is_dir():
            raise StoreError(f"{fspath(path)} is no directory; the commit log was to be looked for there")
    return [fspath(path) for path in paths]


def _milliseconds(time: Time | None) -> int | None:
    return int(time.timestamp() * 1000) if isinstance(time, datetime) else time
