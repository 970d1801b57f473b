"""
Finds the commit-log files of a path and their readable part, and copies remote files to workers.

Files of a store are read as far as they are flushed (`_ferromq.log_files`); other files, named by the 20 digits of
their first physical offset, to their end. A worker copies a file behind a URL to its disk.
"""

import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ferromq import _ferromq
from ferromq.errors import ConfigError, StoreError
from ferromq.spark.file_systems import file_system, local_path

_FILE_NAME = re.compile(r"[0-9]{20}\Z")
_LENGTH, _MOST_READ = 4, 64 << 10
"""Bytes of a record's length field, and the maximum bytes of a record that are compared."""


@dataclass(frozen=True, slots=True)
class LogPart:
    """The records of one file that begin at physical offsets from *begin* up to, not including, *end*."""

    url: str
    """A local path, or a URL that fsspec knows."""
    first_offset: int
    """The physical offset of the file's first byte."""
    begin: int
    end: int
    store: str | None = None
    """The store directory of the file."""

    def __len__(self) -> int:
        return self.end - self.begin


def find(
    paths: Iterable[str], storage_options: Mapping[str, Any], commit_log_paths: Sequence[str] = ()
) -> list[LogPart]:
    """
    Return the readable parts of the files at *paths*, in order and each once.

    Copies of a file count as one. *commit_log_paths* are the log's directories if it is outside the store directory.
    Raises ConfigError for a path without log files, and for copies of different length.
    """
    found: dict[str, LogPart] = {}
    for path in paths:
        local = local_path(path)
        parts = _find_remote(path, storage_options) if local is None else _find_local(local, commit_log_paths)
        found |= {_name(part.url): part for part in parts if part.begin < part.end}
    return _without_copies(list(found.values()), storage_options)


def _without_copies(parts: Sequence[LogPart], storage_options: Mapping[str, Any]) -> list[LogPart]:
    """
    Return each log file once: of copies, one outside a store, which is read completely, or else the first.

    Files of several brokers may begin at the same physical offset. Copies also begin with the same record.
    """
    beginning: dict[int, list[LogPart]] = {}
    for part in parts:
        beginning.setdefault(part.first_offset, []).append(part)
    kept: dict[tuple[int, bytes], LogPart] = {}
    for first, alike in beginning.items():
        for part in alike:
            key = (first, _head(part, storage_options) if len(alike) > 1 else b"")
            other = kept.setdefault(key, part)
            if other.end != part.end:
                raise ConfigError(
                    f"option 'path' has the log file {first:020} twice, as {other.url} up to physical offset "
                    f"{other.end} and as {part.url} up to {part.end}, so its rows would be repeated; allowed: paths "
                    "that hold it once, or copies of the whole file"
                )
            if other.store is not None and part.store is None:
                kept[key] = part
    chosen = set(map(id, kept.values()))
    return [part for part in parts if id(part) in chosen]


def _head(part: LogPart, storage_options: Mapping[str, Any]) -> bytes:
    """Return the first record of a file, or the start of a long one, which identifies it by offset, times and hosts."""
    local = local_path(part.url)
    if local is not None:
        with local.open("rb") as file:
            return _first_record(file)
    filesystem, path = file_system(part.url, storage_options)
    with filesystem.open(path, "rb") as file:
        return _first_record(file)


def _first_record(file: Any) -> bytes:
    head: bytes = file.read(_LENGTH)
    return head + bytes(file.read(min(int.from_bytes(head), _MOST_READ)))


@contextmanager
def on_disk(part: LogPart, storage_options: Mapping[str, Any]) -> Iterator[Path]:
    """Yield a local path of the file; the copy of a remote file is removed afterwards."""
    local = local_path(part.url)
    if local is not None:
        yield local
        return
    filesystem, path = file_system(part.url, storage_options)
    with tempfile.TemporaryDirectory(prefix="ferromq-log-") as folder:
        copy = Path(folder) / path.rpartition("/")[2]
        filesystem.get_file(path, str(copy))
        yield copy


def _name(url: str) -> str:
    """Return the canonical name of a file, so that a file behind links is read once."""
    local = local_path(url)
    return url if local is None else str(local.resolve())


def queue_starts(store: str, commit_log_paths: Sequence[str] = ()) -> Mapping[str, Any]:
    """Return the starts of a store's queues, for a scan's filter. Call it after `find`."""
    return _ferromq.queue_starts(store, commit_log_paths=_local_paths(commit_log_paths))


def _find_local(path: Path, commit_log_paths: Sequence[str]) -> list[LogPart]:
    if path.is_dir():
        if commit_log_paths or (path / "commitlog").is_dir():
            return _of_store(path, commit_log_paths)
        if _is_inside_store(path):
            return _of_store(path.parent)
        files = sorted(file for file in path.iterdir() if _FILE_NAME.match(file.name) and file.is_file())
        if not files:
            raise _nothing(str(path), "it has no folder commitlog and no file named by 20 digits")
        return [_loose(str(file), file.stat().st_size) for file in files]
    if not path.exists():
        raise _nothing(str(path), "it does not exist; in a cluster, the path must exist on each machine")
    if not _FILE_NAME.match(path.name):
        raise _nothing(str(path), "a file is named by the 20 digits of its first physical offset")
    if _is_inside_store(path.parent):
        whole = path.resolve()
        return [part for part in _of_store(path.parent.parent) if Path(part.url).resolve() == whole]
    return [_loose(str(path), path.stat().st_size)]


def _is_inside_store(folder: Path) -> bool:
    """Check whether *folder* is the commit log of a store, whose last file may not be flushed to its end."""
    beside = folder.resolve().parent
    return folder.resolve().name == "commitlog" and any(
        (beside / name).exists() for name in ("checkpoint", "consumequeue")
    )


def _of_store(store: Path, commit_log_paths: Sequence[str] = ()) -> list[LogPart]:
    try:
        files = _ferromq.log_files(store, commit_log_paths=_local_paths(commit_log_paths))
    except StoreError as error:
        raise _nothing(str(store), f"the store cannot be read ({error})") from error
    return [LogPart(path, first, first, end, str(store)) for path, first, end in files]


def _local_paths(paths: Sequence[str]) -> list[Path]:
    return [local_path(path) or Path(path) for path in paths]


def _loose(url: str, size: int) -> LogPart:
    first = int(url.rpartition("/")[2][-20:])
    return LogPart(url, first, first, first + size)


def _find_remote(url: str, storage_options: Mapping[str, Any]) -> list[LogPart]:
    try:
        filesystem, path = file_system(url, storage_options)
    except ConfigError as error:
        raise _nothing(url, str(error)) from error
    if filesystem.isfile(path):
        if not _FILE_NAME.search(path):
            raise _nothing(url, "a file is named by the 20 digits of its first physical offset")
        return [_loose(filesystem.unstrip_protocol(path), filesystem.size(path))]
    if not filesystem.isdir(path):
        raise _nothing(url, "it does not exist")
    folder = path.rstrip("/")
    if filesystem.isdir(f"{folder}/commitlog"):
        folder = f"{folder}/commitlog"
    files = sorted(
        (entry["name"], entry["size"])
        for entry in filesystem.ls(folder, detail=True)
        if entry["type"] == "file" and _FILE_NAME.match(entry["name"].rpartition("/")[2])
    )
    if not files:
        raise _nothing(url, "it has no folder commitlog and no file named by 20 digits")
    return [_loose(filesystem.unstrip_protocol(name), size) for name, size in files]


def _nothing(path: str, why: str) -> ConfigError:
    return ConfigError(
        f"option 'path' is {path!r}, but {why}; "
        "allowed: a store directory, a directory of commit-log files, or one of them"
    )
