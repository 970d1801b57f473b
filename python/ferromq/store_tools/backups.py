"""
Copies a store directory, also while a ferromq broker has it open, so that a start on the copy finds everything.

A stopped store is locked while it is copied. An open one is copied as a kill would leave it, in this order: the store
writes its consumers' progress on demand; tables and progress are read as of one moment; then queues and index, which
begins again if it took long; then the store flushes, and the log is copied to that flush. So nothing in the copy is
ahead of its log. The log's files are
opened at once, so that the deletion of expired files cannot take them away.

While a target is being written, it contains `backup.incomplete`, and no store opens it. Asking again continues there.
"""

import contextlib
import errno
import json
import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ferromq._ferromq import StoreLock, flushed_end
from ferromq.errors import StoreError, StoreFull, StoreLocked
from ferromq.files import atomic
from ferromq.store_tools.verification import INCOMPLETE, StorePath

ASKED = "backup.asked"
FINISHED = "backup.json"
"""The names are known to the store, see `store/backup.rs`."""
_FORMAT = 1
_CHUNK = 4 << 20
"""Bytes of one read."""
_MARKED = 256 << 20
"""Bytes of the log after which a target is marked to have them, so that asking again continues behind them."""
_RECORD_HEAD = 8
"""Bytes of a record's length and magic code, which are not both zero."""
_COMPARED = 64 << 10
"""Bytes compared at both ends of what a target has of a log file."""
_TRIES = 100
"""Attempts to read small files, or to list queues, that change meanwhile."""
_PATIENCE = 60.0
"""Seconds that an open store may take to answer. It looks once in `progress_interval` (1 s)."""
_POLL = 0.02
"""Seconds between two looks for the answer, a removed file."""
_SETTLED = 2.0
"""Seconds after which a later change of a file gives it another time."""
_SMALL = ("config", "ferromq")
"""Directories of files that are copied as of one moment."""
_IN_PLACE = frozenset({"checkpoint", "ferromq/flushed", "config/timercheck"})
"""Small files that are not replaced: each write leaves one that is valid beside the others."""
_SPARE_FILES = 64
"""Descriptors left for the rest of the process."""
_DELETED = Path("ferromq", "deleted")
"""Changes when a topic is deleted."""
_MOMENT = 1.0
"""Seconds of a pass over the derived files of an open store after which another one copies what has changed."""
_FOLDERS = (
    *("commitlog", "consumequeue", "consumequeue_ext", "batchconsumequeue", "index", "timerlog"),
    *("config", "ferromq", "quarantine"),
)
"""Directories of a store. Only in these a backup removes what the source no longer has."""
_FILES = ("checkpoint", "abort", "timerwheel")
"""Files of a store beside them."""


@dataclass(frozen=True, slots=True)
class BackupReport:
    """What a backup copied."""

    directory: Path
    target: Path
    was_open: bool
    """Whether a broker had the store open."""
    log_start: int
    log_end: int
    """Physical offset at which the copied log ends; of a store that ferromq has not stopped, that of its last file."""
    files: int
    """Files of the copy."""
    copied_bytes: int
    kept_bytes: int
    """Bytes that the target already had."""
    seconds: float


@dataclass(slots=True)
class _Small:
    """A small file: its bytes and permissions."""

    content: bytes
    mode: int


@dataclass(slots=True)
class _Source:
    """A file to copy."""

    path: Path
    target: Path
    size: int
    limit: int
    """Bytes to copy from its begin; the rest stays zero."""
    have: int = 0
    """Bytes that the target has."""
    mtime_ns: int = 0
    """Time to give to the copy; 0: the next backup copies it again."""
    descriptor: int | None = None


@dataclass(slots=True)
class _Copied:
    """What was copied so far."""

    source: Path
    goal: Path
    on_progress: Callable[[int, int], None] | None
    total: int = 0
    done: int = 0
    kept: dict[Path, int] = field(default_factory=dict)
    """Bytes that the target already had, by its file."""
    written: set[Path] = field(default_factory=set)
    """Files of the target that this backup has written anew."""
    directories: set[Path] = field(default_factory=set)
    """Directories with new names."""
    unflushed: list[tuple[Path, int]] = field(default_factory=list)
    """Files to flush, and the times to give them then. Together they cost fewer writes than each on its own."""

    def add(self, count: int) -> None:
        self.done += count
        if self.on_progress is not None:
            self.on_progress(self.done, max(self.total, self.done))

    def keep(self, file: _Source) -> None:
        # A second pass keeps what the first one has copied.
        if file.target not in self.written:
            self.kept[file.target] = file.have

    def flush(self) -> None:
        for path, mtime_ns in self.unflushed:
            with path.open("rb") as file, _named(path):
                os.fsync(file.fileno())
            # Not before: the time says that the content is on disk.
            if mtime_ns:
                os.utime(path, ns=(mtime_ns, mtime_ns))
        self.unflushed.clear()
        for folder in self.directories:
            atomic.sync_directory(folder)
        self.directories.clear()


def backup(
    directory: StorePath,
    target: StorePath,
    *,
    commit_log_paths: Sequence[StorePath] = (),
    on_progress: Callable[[int, int], None] | None = None,
) -> BackupReport:
    """
    Copy a store directory to *target*, a new or empty directory or an earlier backup, which is brought up to date.

    The copy holds every message that was stored, and every offset that was committed, before the call. The store may
    be stopped (of ferromq or a Java broker) or open by ferromq. *commit_log_paths*: directories of the commit log, by
    default `DIR/commitlog`; the copy has one. *on_progress*(done, total) is called with bytes.

    Raises `StoreError` if it is no store, if the target is something else, or if an open store does not answer;
    `StoreFull` if the target has no space; `StoreLocked` if a broker has the target open. After an error, asking
    again continues. Until then no store opens the target.
    """
    began = time.monotonic()
    source, goal = Path(os.path.realpath(directory)), Path(os.path.realpath(target))
    log_paths = [Path(os.path.realpath(path)) for path in commit_log_paths] or [source / "commitlog"]
    _check_source(source, log_paths)
    if goal.is_relative_to(source) or source.is_relative_to(goal):
        raise StoreError(f"{goal} and {source} contain each other; choose a target outside the store")
    copied = _Copied(source, goal, on_progress)
    with contextlib.ExitStack() as opened:
        before = _open_target(source, goal, opened)
        _check_same_log(goal, log_paths, before)
        with _no_space(goal):
            _mark(goal, source, before)
            small, names, was_open = _copy_derived(log_paths, copied, opened)
            end = _flushed(source, small) if was_open else _stopped(source, log_paths, small)
            log = _open_log(goal, log_paths, end, opened)
            noted = end if end is not None else flushed_end(str(source))
            _check_whole(log, log_paths, noted or 0)
            whole_end = end if end is not None else _whole_end(log, noted if "abort" in small else None)
            _copy_log(log, before, whole_end, copied)
            for name, file in small.items():
                _write_small(goal / name, file, copied)
            names |= {*small, *(f"commitlog/{file.path.name}" for file in log)}
            copied.flush()
            _remove_others(goal, names)
            log_end = log[-1].limit + int(log[-1].path.name) if log else 0
            _finish(goal, source, whole_end)
    return BackupReport(
        directory=source,
        target=goal,
        was_open=was_open,
        log_start=int(log[0].path.name) if log else 0,
        log_end=log_end,
        files=len(names),
        copied_bytes=copied.done,
        kept_bytes=sum(copied.kept.values()),
        seconds=time.monotonic() - began,
    )


def _check_source(source: Path, log_paths: Sequence[Path]) -> None:
    for path in (source, *log_paths):
        if not path.is_dir():
            raise StoreError(f"{source} is no store directory: {path} is not a directory")
    if (source / INCOMPLETE).exists():
        raise StoreError(f"{source} is an unfinished backup; finish it first, or copy another store")


# --- the target --------------------------------------------------------------------------------------------------


def _open_target(source: Path, goal: Path, opened: contextlib.ExitStack) -> int:
    """Lock the target and return the end of the log that it has. Raises `StoreError` if it is no backup."""
    mode = _mode_of_folder(source)
    try:
        goal.parent.mkdir(parents=True, exist_ok=True)
        goal.mkdir(mode, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise StoreError(f"{error.filename} is not a directory; choose a new or empty directory as target") from error
    marks = [goal / name for name in (INCOMPLETE, FINISHED) if (goal / name).exists()]
    if not marks and any(path.name != "lock" for path in goal.iterdir()):
        raise StoreError(
            f"{goal} is not empty and no backup, or a broker has opened it since; choose a new directory as target"
        )
    try:
        lock = StoreLock(str(goal))
    except StoreLocked as error:
        raise StoreLocked(f"a broker has {goal} open, or another backup writes it; choose another target") from error
    opened.callback(lock.close)
    if marks:
        _check_content(source, goal)
        return read_mark(marks[0].read_bytes(), marks[0])
    # Secret keys and bodies of the store must not become readable to more users.
    if (found := goal.stat().st_mode & 0o777) & ~mode:
        goal.chmod(found & mode)
    return 0


def _check_content(source: Path, goal: Path) -> None:
    """Raise `StoreError` if the target has something that belongs to neither the store nor a backup."""
    known = {*_FOLDERS, *_FILES, "lock", INCOMPLETE, f"{INCOMPLETE}.tmp", FINISHED}
    strange = [path for path in sorted(goal.iterdir()) if path.name not in known]
    strange += [lock for name in _FOLDERS for lock in sorted((goal / name).rglob("lock")) if lock.is_file()]
    for path in strange:
        if not (source / path.relative_to(goal)).exists():
            raise StoreError(f"{path} is not of this backup; move it out of {goal}, or choose another target")


def read_mark(content: bytes, path: Path) -> int:
    """Return the end of the log that a target has, from the content of its mark. Raises `StoreError`."""
    try:
        found = json.loads(content)
        version, end = found["format"], found["log_end"]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise StoreError(f"{path} does not describe a backup; choose a new directory as target") from error
    if version != _FORMAT:
        raise StoreError(f"{path} has the format {version!r}; this version of ferromq knows {_FORMAT}")
    if not isinstance(end, int) or isinstance(end, bool) or not 0 <= end < 1 << 63:
        raise StoreError(f"{path} does not describe a backup: its log ends at {end!r}; choose a new directory")
    return end


def _mark(goal: Path, source: Path, log_end: int) -> None:
    """Mark the target as unfinished, with the end of the log that it has."""
    text = json.dumps({"format": _FORMAT, "source": str(source), "log_end": log_end})
    fresh = goal / f"{INCOMPLETE}.tmp"
    with fresh.open("w") as file:
        file.write(f"{text}\n")
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(goal / INCOMPLETE)
    (goal / FINISHED).unlink(missing_ok=True)
    atomic.sync_directory(goal)


def _finish(goal: Path, source: Path, log_end: int) -> None:
    _mark(goal, source, log_end)
    (goal / INCOMPLETE).replace(goal / FINISHED)
    atomic.sync_directory(goal)


def _check_same_log(goal: Path, log_paths: Sequence[Path], end: int) -> None:
    """Raise `StoreError` if the target's log before *end* differs from the source's."""
    for path in _log_files(log_paths):
        copy = goal / "commitlog" / path.name
        if int(path.name) >= end or not copy.exists():
            continue
        with contextlib.ExitStack() as opened:
            try:
                ours = opened.enter_context(path.open("rb"))
            except FileNotFoundError:
                # It has expired meanwhile.
                continue
            theirs = opened.enter_context(copy.open("rb"))
            have = min(end - int(path.name), os.fstat(ours.fileno()).st_size)
            for at in {0, max(have - _COMPARED, 0)}:
                count = min(_COMPARED, have)
                if os.pread(ours.fileno(), count, at) != os.pread(theirs.fileno(), count, at):
                    raise StoreError(
                        f"{copy} differs from {path}: the target is a backup of another store; choose another target"
                    )


def _remove_others(goal: Path, names: set[str]) -> None:
    """Remove files of the target that the source no longer has."""
    for name in _FILES:
        if name not in names:
            (goal / name).unlink(missing_ok=True)
    for folder, _, files in (found for name in _FOLDERS for found in os.walk(goal / name, topdown=False)):
        at = Path(folder)
        for file in files:
            if str((at / file).relative_to(goal)) not in names:
                (at / file).unlink()
        if at.relative_to(goal).parts[:1] == ("consumequeue",) and at.parent != goal:
            # A queue that was deleted leaves an empty directory.
            with contextlib.suppress(OSError):
                at.rmdir()


# --- what is derived from the log, tables and progress ------------------------------------------------------------


def _copy_derived(
    log_paths: Sequence[Path], copied: _Copied, opened: contextlib.ExitStack
) -> tuple[dict[str, _Small], set[str], bool]:
    """
    Copy queues, index and timers; return tables and progress, the names of what was copied, and if the store is open.

    A file or a topic that is deleted meanwhile begins it again, so that no queue has a gap, and tables fit the queues.
    """
    source = copied.source
    is_open, is_again = not _lock(source, opened), False
    for _ in range(_TRIES):
        if is_open and not _ask(source):
            is_open = not _lock(source, opened)
            continue
        began, deleted = time.monotonic(), _state(source / _DELETED)
        small = _read_small(source)
        try:
            names = _copy_bulk(log_paths, copied)
        except FileNotFoundError:
            continue
        if not is_open:
            return small, names, is_open
        if _state(source / _DELETED) != deleted:
            continue
        if not is_again and time.monotonic() - began > _MOMENT:
            # The copy would deliver again what was delivered since its progress was read.
            is_again = True
            continue
        if _ask(source):
            return small, names, is_open
        is_open = not _lock(source, opened)
    raise StoreError(f"files of {source} are deleted faster than they can be copied; try again when it has less to do")


def _lock(source: Path, opened: contextlib.ExitStack) -> bool:
    """Lock a stopped store; returns False if it is open by ferromq."""
    try:
        lock = StoreLock(str(source))
    except StoreLocked:
        abort = _read(source / "abort")
        # Without an abort file a broker is opening or closing the store.
        if abort is not None and not abort.content.startswith((b"ferromq", b"taking over")):
            who = abort.content.decode(errors="replace").strip()
            raise StoreLocked(
                f"{source} is open by another broker (process {who}): stop a Java broker for its backup"
            ) from None
        return False
    opened.callback(lock.close)
    return True


def _ask(source: Path) -> bool:
    """Let the open store write its progress and flush its log; returns False if it was stopped meanwhile."""
    asked, deadline = source / ASKED, time.monotonic() + _PATIENCE
    token = uuid.uuid4().bytes
    is_asked = False
    try:
        while True:
            if not is_asked:
                # Another backup may wait. Its answer covers less than is stored now.
                with contextlib.suppress(FileExistsError), asked.open("xb") as file:
                    is_asked = True
                    file.write(token)
            elif _asks(asked) != token:
                is_asked = False
                return True
            if not StoreLock.is_held(str(source)):
                return False
            if time.monotonic() > deadline:
                raise StoreError(
                    f"the store {source} did not answer in {_PATIENCE:.0f} s. Its log names the cause if it cannot "
                    "write; a version of ferromq before this one does not answer: stop it for the backup"
                )
            time.sleep(_POLL)
    finally:
        if is_asked and _asks(asked) == token:
            asked.unlink(missing_ok=True)


def _asks(asked: Path) -> bytes | None:
    """Return the token of the backup that waits for an answer; None also for one of another user."""
    try:
        return asked.read_bytes()
    except (FileNotFoundError, PermissionError):
        return None


def _read_small(source: Path) -> dict[str, _Small]:
    """Read tables and progress as of one moment. Raises `StoreError` if they change all the time."""
    for _ in range(_TRIES):
        before = _signatures(source)
        found = {name: _read(source / name) for name in before}
        if _signatures(source) == before:
            return {name: file for name, file in found.items() if file is not None}
    raise StoreError(f"the tables in {source / 'config'} change faster than they can be read; try again")


def _signatures(source: Path) -> dict[str, tuple[int, ...]]:
    """Return the state of each small file, by name."""
    found: dict[str, tuple[int, ...]] = {}
    folders = [source, *(path for name in _SMALL for path in (source / name, *_folders(source / name)))]
    for folder in folders:
        if not folder.is_dir():
            continue
        for entry in os.scandir(folder):
            name = str(Path(entry.path).relative_to(source))
            is_skipped = name in {"lock", "timerwheel", ASKED, FINISHED} or _is_unfinished(name)
            if is_skipped or not entry.is_file():
                continue
            if state := _state(Path(entry.path)):
                found[name] = () if name in _IN_PLACE else state
    return found


def _state(path: Path) -> tuple[int, ...]:
    """Return a value that differs once the file is changed; an empty one if it does not exist."""
    try:
        state = path.stat()
    except FileNotFoundError:
        return ()
    return state.st_ino, state.st_size, state.st_mtime_ns


def _folders(path: Path) -> list[Path]:
    return [Path(folder) / name for folder, names, _ in os.walk(path) for name in names]


def _is_unfinished(name: str) -> bool:
    """Return whether it is a file that a store is about to rename."""
    return name.endswith((".tmp", ".new"))


def _read(path: Path) -> _Small | None:
    try:
        with path.open("rb") as file:
            return _Small(file.read(), os.fstat(file.fileno()).st_mode & 0o777)
    except FileNotFoundError:
        return None


def _write_small(path: Path, file: _Small, copied: _Copied) -> None:
    fresh = path.with_name(f"{path.name}.tmp")
    _make_folder(path.parent, copied)
    fresh.unlink(missing_ok=True)
    with open(fresh, "wb", opener=lambda name, flags: os.open(name, flags, file.mode)) as written:
        written.write(file.content)
    fresh.replace(path)
    copied.unflushed.append((path, 0))
    copied.add(len(file.content))


def _copy_bulk(log_paths: Sequence[Path], copied: _Copied) -> set[str]:
    """Copy queues, index and timers; return their names. Raises `FileNotFoundError` if one is deleted meanwhile."""
    source, goal = copied.source, copied.goal
    files = [_bulk_file(path, goal / path.relative_to(source)) for path in _bulk_paths(source, log_paths)]
    copied.total = copied.done + sum(file.limit - file.have for file in files) + _size_of_log(log_paths)
    try:
        for file in files:
            if file.have:
                copied.keep(file)
                continue
            with file.path.open("rb") as ours:
                _copy_file(ours.fileno(), file, copied)
    finally:
        copied.flush()
    return {str(file.path.relative_to(source)) for file in files}


def _bulk_paths(source: Path, log_paths: Sequence[Path]) -> Iterator[Path]:
    skipped = {source / "commitlog", *(source / name for name in _SMALL), *log_paths}
    if (source / "timerwheel").exists():
        yield source / "timerwheel"
    for folder, folders, files in os.walk(source, onerror=_raise, followlinks=True):
        at = Path(folder)
        folders[:] = [name for name in folders if at / name not in skipped]
        if at != source:
            yield from (at / name for name in files if not _is_unfinished(name))


def _raise(error: OSError) -> None:
    raise error


def _bulk_file(path: Path, copy: Path) -> _Source:
    state = path.stat()
    is_settled = time.time() - state.st_mtime > _SETTLED
    file = _Source(path, copy, state.st_size, state.st_size, mtime_ns=state.st_mtime_ns if is_settled else 0)
    # Only the files of queues and index are written by calls, which change a file's time at once.
    if path.parts[-4:-3] == ("consumequeue",) or path.parent.name == "index":
        with contextlib.suppress(FileNotFoundError):
            there = copy.stat()
            if (there.st_size, there.st_mtime_ns) == (state.st_size, state.st_mtime_ns):
                file.have = state.st_size
    return file


# --- the log -----------------------------------------------------------------------------------------------------


def _flushed(source: Path, small: dict[str, _Small]) -> int:
    """Return the end of the open store's log at its last flush, and take its mark over into *small*."""
    for _ in range(_TRIES):
        end, mark = flushed_end(str(source)), _read(source / "ferromq" / "flushed")
        if end is not None and mark is not None and flushed_end(str(source)) == end:
            small["ferromq/flushed"] = mark
            return end
    raise StoreError(f"{source / 'ferromq' / 'flushed'} does not say how far the log is on disk; stop the broker first")


def _stopped(source: Path, log_paths: Sequence[Path], small: Mapping[str, _Small]) -> int | None:
    """Return the end of the log of a store that ferromq has stopped; None if it is not noted, as by a Java broker."""
    end = None if "abort" in small else flushed_end(str(source))
    if end is None:
        return None
    for path in _log_files(log_paths):
        at = end - int(path.name)
        if 0 <= at < path.stat().st_size:
            with path.open("rb") as file:
                file.seek(at)
                # A Java broker that had the store since has written there.
                return None if any(file.read(_RECORD_HEAD)) else end
    return None


def _log_files(log_paths: Sequence[Path]) -> list[Path]:
    """Return the files of the log in order."""
    found = [path for folder in log_paths for path in folder.iterdir() if path.name.isdecimal()]
    return sorted(found, key=lambda path: int(path.name))


def _size_of_log(log_paths: Sequence[Path]) -> int:
    total = 0
    for path in _log_files(log_paths):
        # A file may expire meanwhile.
        with contextlib.suppress(FileNotFoundError):
            total += path.stat().st_blocks * 512
    return total


def _open_log(goal: Path, log_paths: Sequence[Path], end: int | None, opened: contextlib.ExitStack) -> list[_Source]:
    """Open all files of the log up to *end*, so that none can be deleted before it is copied."""
    for _ in range(_TRIES):
        log: list[_Source] = []
        with contextlib.ExitStack() as trying:
            try:
                for path in _log_files(log_paths):
                    descriptor = os.open(path, os.O_RDONLY)
                    trying.callback(os.close, descriptor)
                    size = os.fstat(descriptor).st_size
                    limit = size if end is None else min(size, end - int(path.name))
                    if limit > 0:
                        copy = goal / "commitlog" / path.name
                        log.append(_Source(path, copy, size, limit, descriptor=descriptor))
            except FileNotFoundError:
                # The oldest file has expired.
                continue
            except OSError as error:
                if error.errno != errno.EMFILE:
                    raise
                count = len(_log_files(log_paths)) + _SPARE_FILES
                raise StoreError(
                    f"the log has more files than this process may open; allow {count} (`ulimit -n {count}`)"
                ) from error
            opened.push(trying.pop_all())
            return log
    raise StoreError(f"files of the log in {log_paths[0]} are deleted faster than they can be opened; try again")


def _check_whole(log: Sequence[_Source], log_paths: Sequence[Path], end: int) -> None:
    """Raise `StoreError` if a file of the log is missing, or if the log ends before *end*."""
    at = int(log[0].path.name) if log else 0
    way_out = f"name each directory of the log (--commit-log), not only {', '.join(map(str, log_paths))}"
    for file in log:
        base = int(file.path.name)
        if base > at:
            raise StoreError(f"no file holds the physical offsets {at:,} to {base:,} of the log; {way_out}")
        at = base + file.size
    if at < end:
        raise StoreError(f"no file holds the physical offsets {at:,} to {end:,} of the log; {way_out}")


def _copy_log(log: Sequence[_Source], before: int, whole_end: int, copied: _Copied) -> None:
    for file in log:
        if file.target.exists() and file.target.stat().st_size == file.size:
            file.have = max(min(before - int(file.path.name), file.limit), 0)
    copied.total = copied.done + sum(file.limit - file.have for file in log)
    _make_folder(copied.goal / "commitlog", copied)
    unmarked = 0
    for file in log:
        copied.keep(file)
        assert file.descriptor is not None
        if file.have < file.limit:
            _copy_file(file.descriptor, file, copied)
            unmarked += file.limit - file.have
        if unmarked >= _MARKED:
            copied.flush()
            _mark(copied.goal, copied.source, min(int(file.path.name) + file.limit, whole_end))
            unmarked = 0


def _whole_end(log: Sequence[_Source], flushed: int | None) -> int:
    """Return what the next backup need not copy again of a store without a noted end; *flushed*: of a killed one."""
    # The last file is prepared ahead, and the one before it may be written.
    end = int(log[max(len(log) - 2, 0)].path.name) if log else 0
    # A start cuts what a kill left behind the last flush.
    return end if flushed is None else min(end, flushed)


# --- files -------------------------------------------------------------------------------------------------------


def _mode_of_folder(source: Path) -> int:
    """Return the permissions of a copied directory: those of the source, but its owner may write."""
    # A log elsewhere, or a directory that was deleted meanwhile.
    with contextlib.suppress(FileNotFoundError):
        return source.stat().st_mode & 0o777 | 0o700
    return 0o700


def _make_folder(folder: Path, copied: _Copied) -> None:
    if not folder.exists():
        _make_folder(folder.parent, copied)
        folder.mkdir(_mode_of_folder(copied.source / folder.relative_to(copied.goal)))
        copied.directories.add(folder.parent)
    copied.directories.add(folder)


def _copy_file(ours: int, file: _Source, copied: _Copied) -> None:
    """Copy what the target does not have of a file, without its holes."""
    _make_folder(file.target.parent, copied)
    if not file.have:
        copied.written.add(file.target)
        copied.kept.pop(file.target, None)
    theirs = os.open(file.target, os.O_RDWR | os.O_CREAT, os.fstat(ours).st_mode & 0o777)
    try:
        # Removes what an interrupted backup left.
        os.ftruncate(theirs, file.have)
        os.ftruncate(theirs, file.size)
        for start, end in _data(ours, file.have, file.limit):
            at = start
            while at < end:
                with _named(file.path):
                    content = os.pread(ours, min(_CHUNK, end - at), at)
                if not content:
                    raise StoreError(f"{file.path} became shorter while it was copied; try again")
                with _named(file.target):
                    written = os.pwrite(theirs, content, at)
                at += written
                copied.add(written)
        copied.unflushed.append((file.target, file.mtime_ns))
    finally:
        os.close(theirs)


def _data(descriptor: int, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges of a file that are not holes; the whole range where the system cannot say."""
    if not hasattr(os, "SEEK_DATA"):
        yield start, end
        return
    while start < end:
        try:
            begin = os.lseek(descriptor, start, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return
            raise
        start = os.lseek(descriptor, begin, os.SEEK_HOLE)
        if begin < end:
            yield begin, min(start, end)


@contextlib.contextmanager
def _named(path: Path) -> Iterator[None]:
    """Name the file of an operation on a descriptor in its error."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


@contextlib.contextmanager
def _no_space(goal: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in {errno.ENOSPC, errno.EDQUOT}:
            raise
        raise StoreFull(
            f"no space left under {goal}: the backup is unfinished; free some space and ask again, it continues"
        ) from error
