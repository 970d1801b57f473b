"""
Mends what `verify` finds in a store directory, without loss: what derives from the log is derived again.

A damaged file is moved aside into `DIR/quarantine`, never deleted. Then a store opens the directory, without retention
and without delivering anything: it rebuilds queues and index from the log, cuts a torn tail, and notes damages of the
log. What the log itself lost cannot be mended; it is listed.
"""

import os
import re
import shutil
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import mode

from ferromq._ferromq import Clock, RecoveryProgress, Store, StoreLock, inspect_store
from ferromq.errors import StoreError, StoreLocked
from ferromq.files import atomic
from ferromq.protocol import java_json
from ferromq.store_tools.verification import (
    INCOMPLETE,
    Finding,
    StorePath,
    Verification,
    VerifyReport,
    paths_of,
    verify,
)

QUARANTINE = "quarantine"
_WITHOUT_ENTRY = re.compile(r"an entry at queue offset \d+ of (?P<topic>.+) queue (?P<queue>\d+)\Z")
"""What `record-without-entry` expects; its file is the log's."""
_OWN_DERIVED = ("queues", "closed", "flushed", "sequences", "unindexed", "timerprecision")
_DERIVED = frozenset({"checkpoint", "config/timermetrics", *(f"ferromq/{name}" for name in _OWN_DERIVED)})
"""Small files that a start derives from the log, or does without."""
_USERS = "ferromq/access.json"
"""Is never restored: its backup lacks the last change, which may have revoked a right."""
_INDEX = frozenset({"index-entry-without-record", "index-other-key", "key-not-indexed", "index-chain", "index-header"})
_HEADER, _SLOTTED = 40, 84
"""Bytes of an index file's header, and of a slot with its four entries."""
_ENTRY = 20
"""Bytes of a queue entry."""
_SHOWN = 1000
"""Findings kept of those that cannot be mended; all are counted."""


@dataclass(frozen=True, slots=True)
class RepairStep:
    """Something that a repair does."""

    action: str
    """`rebuild-queue`, `rebuild-index`, `cut-tail`, `restore`, or `set-aside`."""
    path: Path
    """The file or directory that is moved aside; of a tail, the file whose bytes are copied before the cut."""
    findings: int
    start: int = 0
    end: int = 0
    """The bytes of a tail."""


@dataclass(slots=True)
class Repair:
    """A planned repair. Show it, then call `apply`."""

    directory: Path
    steps: Sequence[RepairStep]
    before: VerifyReport
    lost: Sequence[Finding]
    """Findings that cannot be mended, at most 1,000."""
    lost_count: int
    _verify: Callable[..., Verification] = field(repr=False)
    _options: dict[str, object] = field(repr=False)
    _commit_log_paths: Sequence[str]

    def apply(
        self,
        *,
        on_progress: Callable[[int, int], None] | None = None,
        opening: Callable[[], AbstractContextManager[RecoveryProgress | None]] = nullcontext,
    ) -> "RepairReport":
        """
        Mend the directory, and verify it again. *on_progress* is that of `verify`, for this second verification.

        *opening* returns a context, in which the store is opened and its log walked; another thread reads how far this
        is from the progress that the context gives.

        Raises `StoreLocked` if a broker has it open, and `StoreError` if it cannot be opened. What was moved aside
        stays in the quarantine, also after an error.
        """
        aside = self.directory / QUARANTINE / datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
        if self.steps:
            # The open takes the lock again. A broker that comes between finds what the repair would open.
            with closing(_lock(self.directory)):
                for step in self.steps:
                    self._take_aside(step, aside)
            with opening() as recovery:
                store = Store(
                    str(self.directory),
                    Clock.system(),
                    recovery=recovery,
                    retention_age=None,
                    retention_disk_usage=None,
                    commit_log_paths=list(self._commit_log_paths),
                    **self._options,  # type: ignore[arg-type]
                )
            store.close()
        left: list[Finding] = []
        with self._verify(on_progress=on_progress) as verification:
            for finding in verification:
                left += [finding] if len(left) < _SHOWN else []
            report = verification.report
        return RepairReport(self.directory, self.steps, aside if self.steps else None, left, report)

    def _take_aside(self, step: RepairStep, aside: Path) -> None:
        inside = step.path.is_relative_to(self.directory)
        goal = aside / (step.path.relative_to(self.directory) if inside else step.path.name)
        goal.parent.mkdir(parents=True, exist_ok=True)
        if step.action == "cut-tail":
            with step.path.open("rb") as file, goal.with_name(f"{goal.name}.{step.start}").open("wb") as tail:
                file.seek(step.start)
                for _ in range(step.start, step.end, 1 << 20):
                    tail.write(file.read(min(1 << 20, step.end - file.tell())))
                tail.flush()
                os.fsync(tail.fileno())
        elif step.path.exists():
            step.path.rename(goal)
            if step.action == "restore":
                shutil.copy2(atomic.backup_of(step.path), step.path)
                with step.path.open("rb") as file:
                    os.fsync(file.fileno())
        else:
            return
        # The new name first: a power cut must not leave a file without any.
        for folder in (goal.parent, *goal.parent.parents):
            atomic.sync_directory(folder)
            if folder == self.directory:
                break
        atomic.sync_directory(step.path.parent)


@dataclass(frozen=True, slots=True)
class RepairReport:
    """What a repair did, and what is left."""

    directory: Path
    steps: Sequence[RepairStep]
    quarantine: Path | None
    left: Sequence[Finding]
    """Findings after the repair, at most 1,000: what the log lost, and what must be decided by hand."""
    after: VerifyReport

    @property
    def is_sound(self) -> bool:
        """Whether nothing is left."""
        return self.after.is_sound


def plan_repair(
    directory: StorePath,
    *,
    commit_log_paths: Sequence[StorePath] = (),
    index_slots: int | None = None,
    threads: int = 0,
    on_progress: Callable[[int, int], None] | None = None,
) -> Repair:
    """
    Verify a store directory that no broker has open, and plan how to mend it; writes nothing.

    If a table of `config/` is lost, there are no steps: no store opens the directory without it. *threads* and
    *on_progress* are those of `verify`. Raises `StoreLocked` if a broker has it open, `StoreError` if it is no store,
    is an unfinished backup, or cannot be read.
    """
    root, paths = Path(directory).resolve(), paths_of(commit_log_paths)
    if (root / INCOMPLETE).exists():
        raise StoreError(f"{root} is an unfinished backup; run `ferromq store backup` with this target again")
    if StoreLock.is_held(str(root)):
        raise StoreLocked(f"a broker has {root} open; stop it, then repair")
    planned: dict[tuple[str, Path], RepairStep] = {}
    lost: list[Finding] = []
    unreadable: set[Path] = set()
    count, is_table_lost = 0, False
    checked = partial(verify, root, commit_log_paths=paths, index_slots=index_slots, threads=threads)
    with checked(on_progress=on_progress) as verification:
        for finding in verification:
            step = _step(root, finding)
            if step is None:
                count += finding.count
                is_table_lost |= finding.kind == "config"
                unreadable |= {finding.file} if finding.kind == "unreadable" else set()
                lost += [finding] if len(lost) < _SHOWN else []
            else:
                key = step.action, step.path
                planned[key] = _joined(planned[key], step) if key in planned else step
        report = verification.report
    summary = inspect_store(str(root), commit_log_paths=paths, index_slots=index_slots)
    steps = sorted(planned.values(), key=lambda step: (step.action, step.path))
    if is_table_lost:
        steps = []
    steps = [step for step in steps if not any(path.is_relative_to(step.path) for path in unreadable)]
    options = _sizes(root, steps, summary["log"]["file_size"], index_slots)
    return Repair(root, steps, report, lost, count, checked, options, paths)


def _joined(one: RepairStep, other: RepairStep) -> RepairStep:
    start, end = min(one.start, other.start), max(one.end, other.end)
    return RepairStep(one.action, one.path, one.findings + other.findings, start, end)


def _lock(root: Path) -> StoreLock:
    try:
        return StoreLock(str(root))
    except StoreLocked as error:
        raise StoreLocked(f"a broker has {root} open; stop it, then repair") from error


def _step(root: Path, finding: Finding) -> RepairStep | None:
    """Return what mends a finding; None if nothing does."""
    path = finding.file
    parts = path.relative_to(root).parts if path.is_relative_to(root) else ()
    match (finding.kind, *parts):
        case ("unreadable", *_):
            # Its bytes may be sound, and the cause is another one: a disk, or permissions.
            return None
        case (_, "consumequeue", topic, queue, *_):
            step = RepairStep("rebuild-queue", root / "consumequeue" / topic / queue, finding.count)
        case (_, "checkpoint") | ("config" | "own-file", *_):
            action = _action("/".join(parts), path)
            if action is None:
                return None
            step = RepairStep(action, path, finding.count)
        case (kind, first, *_) if first == "index" or kind in _INDEX:
            step = RepairStep("rebuild-index", root / "index", finding.count)
        case ("torn-tail" | "unfinished", *_):
            step = RepairStep("cut-tail", path, finding.count, finding.start, finding.end)
        case _:
            found = _WITHOUT_ENTRY.match(finding.expected) if finding.kind == "record-without-entry" else None
            if found is None:
                return None
            queue_path = root / "consumequeue" / found["topic"] / found["queue"]
            step = RepairStep("rebuild-queue", queue_path, finding.count)
    return step


def _action(name: str, path: Path) -> str | None:
    """Return what mends a small file; None if nothing does."""
    if not _is_readable(path):
        return None
    if name in _DERIVED:
        return "set-aside"
    return "restore" if name != _USERS and _has_backup(path) else None


def _is_readable(path: Path) -> bool:
    """Return whether a file can be read, or is missing."""
    try:
        path.read_bytes()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _has_backup(path: Path) -> bool:
    with suppress(OSError, ValueError):
        java_json.loads_object(atomic.backup_of(path).read_bytes())
        return True
    return False


def _sizes(root: Path, steps: Sequence[RepairStep], log_file: int, index_slots: int | None) -> dict[str, object]:
    """Return the sizes of new files: those of the files that a repair takes away."""
    options: dict[str, object] = {"commit_log_file_size": log_file} if log_file else {}
    queues = [step.path for step in steps if step.action == "rebuild-queue"]
    sizes = _file_sizes(queues) or _file_sizes((root / "consumequeue").glob("*/*"))
    if sizes:
        options["consume_queue_file_entries"] = mode(sizes) // _ENTRY
    with suppress(OSError):
        for path in sorted((root / "index").iterdir())[-1:]:
            slots = index_slots or (path.stat().st_size - _HEADER) // _SLOTTED
            entries = (path.stat().st_size - _HEADER - 4 * slots) // 20
            if slots > 0 and entries > 0:
                options |= {"index_slots": slots, "index_entries": entries}
    return options


def _file_sizes(queues: Iterable[Path]) -> list[int]:
    """Return the sizes of the files of queues, without those that no queue file has."""
    sizes = (path.stat().st_size for queue in queues for path in queue.glob("*") if path.name.isdecimal())
    return [size for size in sizes if size and size % _ENTRY == 0]
