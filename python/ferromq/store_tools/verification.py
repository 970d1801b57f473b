"""Verifies a store directory: findings, in any order, and a report."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from types import TracebackType
from typing import Self, TypeAlias

from ferromq._ferromq import StoreVerification
from ferromq.errors import StoreError

StorePath: TypeAlias = str | PathLike[str]

INCOMPLETE = "backup.incomplete"
"""Exists in a target while a backup is copied into it, see `store/backup.rs`."""
_PATIENCE = 0.2
"""Seconds after which a wait checks for Ctrl-C."""


@dataclass(frozen=True, slots=True)
class Finding:
    """An error in a store directory."""

    kind: str
    """`body-checksum`, `queue-gap`, `index-chain`, …: the names are listed in docs/storage-format.md."""
    file: Path
    start: int
    """First byte in the file; equal to `end` if the finding is about the whole file."""
    end: int
    count: int
    """The number of affected records or entries."""
    expected: str
    found: str


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What a verification checked, and what it found."""

    directory: Path
    state: str
    """`closed`, `open` (by a broker, now) or `killed`."""
    log_start: int
    looked_to: int
    """End of the checked part of the log."""
    promised_to: int
    """Records before this offset must be in queues and index."""
    log_files: int
    log_bytes: int
    records: int
    queues: int
    queue_entries: int
    index_files: int
    index_entries: int
    not_dispatched: int
    """Records after `promised_to`, which a broker dispatches later."""
    of_deleted: int
    """Records of deleted topics that are not yet cleaned."""
    findings: Mapping[str, int]
    """The number of findings of each kind."""
    notes: Sequence[str]
    """Remarks that are not errors."""
    is_complete: bool
    seconds: float

    @property
    def is_sound(self) -> bool:
        """Whether everything was checked and nothing found."""
        return self.is_complete and not self.findings


class Verification(Iterator[Finding]):
    """
    A running verification. Iterate to get its findings, in any order; then read `report`.

    It runs on threads of its own, which wait until findings are taken. `close`, or the end of a `with`, stops it early.
    """

    def __init__(
        self,
        running: StoreVerification,
        on_progress: Callable[[int, int], None] | None,
        found: Sequence[Finding] = (),
    ) -> None:
        self._running = running
        self._on_progress = on_progress
        self._found = list(found)
        self._found_kinds = {finding.kind: finding.count for finding in found}
        self._report: VerifyReport | None = None

    @property
    def report(self) -> VerifyReport:
        """The report. Skips the remaining findings."""
        while self._report is None:
            next(self, None)
        return self._report

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Finding:
        if self._found:
            return self._found.pop()
        while self._report is None:
            event = self._running.next(_PATIENCE)
            if event is None:
                continue
            kind, row = event
            if kind == "finding":
                return Finding(**{**row, "file": Path(row["file"])})
            if kind == "report":
                findings = {**self._found_kinds, **row["findings"]}
                self._report = VerifyReport(**{**row, "directory": Path(row["directory"]), "findings": findings})
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
        """Stop it. Idempotent."""
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
    Check every byte in use of a store directory.

    *threads*: the number of worker threads (0: one per CPU). *on_progress*(done, total) is called with bytes, in the
    iterating thread. This function, or the iteration, raises `StoreError` if it is not a store directory or cannot be
    read.
    """
    running = StoreVerification(
        fspath(directory), commit_log_paths=paths_of(commit_log_paths), index_slots=index_slots, threads=threads
    )
    return Verification(running, on_progress, unfinished(Path(directory)))


def unfinished(directory: Path) -> list[Finding]:
    """Return the finding about the target of a backup that has not ended."""
    path = directory / INCOMPLETE
    found = "an unfinished backup: run `ferromq store backup` again"
    return [Finding("unfinished-backup", path, 0, 0, 1, "a finished backup", found)] if path.exists() else []


def paths_of(paths: Sequence[StorePath]) -> list[str]:
    """Return directories of the commit log as text. Raises `StoreError` if one is not a directory."""
    for path in paths:
        if not Path(path).is_dir():
            raise StoreError(f"{fspath(path)} in commit_log_paths is not a directory")
    return [fspath(path) for path in paths]
