"""
Where an archive lies: a directory, or a URL that fsspec knows; and how something is there whole or not at all.

In both, a file is put in place at once and on disk (or as safe as the object store makes it) when the call returns.
Names are those in the archive, with `/`.
"""

import fcntl
import hashlib
import os
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from ferromq.errors import ConfigError, CorruptStore
from ferromq.spark.file_systems import file_system, local_path

END = b"\n"
"""The last byte of what is saved: without it, it is not all there."""
_CHUNK = 8 << 20
_WHOLE_PUTS = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oci", "oss", "memory"})
"""File systems where an object that is written is there when all of it is; in others it is renamed."""


class ArchiveLocation(Protocol):
    """An archive's files."""

    def load(self, name: str) -> bytes | None:
        """Return what the file holds; None where there is none."""

    def save(self, name: str, content: bytes) -> None:
        """Let the file hold *content*, which ends with `END`, or what it held before, whatever happens."""

    def size(self, name: str) -> int | None:
        """Return the bytes of a file; None where there is none."""

    def bring(self, files: Mapping[str, Path]) -> None:
        """Put written files of this machine in place by their names, over what is there; they are gone here."""

    def drop(self, names: Iterable[str]) -> None:
        """Remove files, those that are there."""

    def forget(self, work: str) -> None:
        """Remove what a killed attempt left of *work*, and was not put in place."""

    def workspace(self, work: str) -> Path:
        """Return an empty folder of this machine to write in, which `forget` or `leave` removes."""

    def leave(self, folder: Path) -> None:
        """Remove a folder that `workspace` gave."""

    def alone(self, work: str) -> Any:
        """Hold *work* alone among processes of this machine, as a context manager."""

    def shown(self, name: str) -> str:
        """Return the file's name as people know it."""


def location_of(out: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None) -> ArchiveLocation:
    """Return the place that *out* names. ConfigError and ModuleNotFoundError as `file_system` has them."""
    local = local_path(os.fspath(out))
    if local is not None:
        return DirectoryLocation(local.absolute())
    return UrlLocation(os.fspath(out), storage_options or {})


# --- a directory -------------------------------------------------------------------------------------------------


class DirectoryLocation:
    """A directory of a local or shared file system."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self, name: str) -> bytes | None:
        """Return what the file holds."""
        try:
            return (self._path / name).read_bytes()
        except FileNotFoundError:
            return None

    def save(self, name: str, content: bytes) -> None:
        """Write aside, then rename."""
        make_folder((self._path / name).parent)
        replace_file(self._path / name, content)

    def size(self, name: str) -> int | None:
        """Return the bytes of a file."""
        try:
            return (self._path / name).stat().st_size
        except FileNotFoundError:
            return None

    def bring(self, files: Mapping[str, Path]) -> None:
        """Rename; the names are on disk at return."""
        folders = {(self._path / name).parent for name in files}
        for folder in sorted(folders):
            make_folder(folder)
        for name, written in files.items():
            written.replace(self._path / name)
        for folder in sorted(folders):
            sync_folder(folder)

    def drop(self, names: Iterable[str]) -> None:
        """Remove files; that they are gone is on disk at return."""
        gone = sorted(names)
        for name in gone:
            (self._path / name).unlink(missing_ok=True)
        for folder in sorted({(self._path / name).parent for name in gone}):
            if folder.is_dir():
                sync_folder(folder)

    def forget(self, work: str) -> None:
        """Remove the workspace."""
        shutil.rmtree(self._workspace(work), ignore_errors=True)

    def workspace(self, work: str) -> Path:
        """Return a folder below the archive, so that a rename brings a file in place."""
        self.forget(work)
        self._workspace(work).mkdir()
        return self._workspace(work)

    def leave(self, folder: Path) -> None:
        """Remove the workspace."""
        shutil.rmtree(folder, ignore_errors=True)

    @contextmanager
    def alone(self, work: str) -> Iterator[None]:
        """Lock a file of the archive."""
        path = self._path / f"{work}.lock"
        make_folder(path.parent)
        with _locked(path):
            yield

    def shown(self, name: str) -> str:
        """Return the path."""
        return str(self._path / name)

    def _workspace(self, work: str) -> Path:
        return self._path / f"{work}.parts"


def make_folder(folder: Path) -> None:
    """Make *folder* and those above it, each known to its parent on disk."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """See that the names in *folder* are on disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_file(path: Path, content: bytes) -> None:
    """Write *path* so that it holds *content*, or what it held before, whatever happens; on disk at return."""
    aside = path.with_name(f"{path.name}.new")
    with aside.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)
    sync_folder(path.parent)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock that *path* is, which is there only meanwhile."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        # Who had it removed the file: others lock the one that came after it.
        if _is_same(descriptor, path):
            break
        os.close(descriptor)
    try:
        yield
    finally:
        try:
            path.unlink(missing_ok=True)
        finally:
            os.close(descriptor)


def _is_same(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


# --- a URL -------------------------------------------------------------------------------------------------------


class UrlLocation:
    """
    A URL that fsspec knows. Files are written on this machine first, and read back once they are there.

    Where a write is not whole at once, it goes to a name that readers of Parquet pass over, and is renamed.
    """

    def __init__(self, url: str, storage_options: Mapping[str, Any]) -> None:
        try:
            self._files, root = file_system(url, storage_options)
        except ConfigError as error:
            raise ConfigError(
                f"the archive is {url!r}; allowed: a directory, or a URL that fsspec knows ({error})"
            ) from error
        self._url, self._root = url.rstrip("/"), root.rstrip("/")
        known = self._files.protocol
        self._is_whole_at_once = not _WHOLE_PUTS.isdisjoint([known] if isinstance(known, str) else known)
        # What others wrote meanwhile is not in a listing that was kept.
        self._files.invalidate_cache()

    def load(self, name: str) -> bytes | None:
        """Return what the file holds; one that was about to be renamed is, where it is all there."""
        path = self._path(name)
        with suppress(FileNotFoundError):
            return bytes(self._files.cat_file(path))
        if self._is_whole_at_once:
            return None
        with suppress(FileNotFoundError):
            content = bytes(self._files.cat_file(_aside(path)))
            if content.endswith(END):
                self._files.mv(_aside(path), path)
                return content
        return None

    def save(self, name: str, content: bytes) -> None:
        """Write, and read back."""
        self._write(name, lambda path: self._files.pipe_file(path, content))
        if self.load(name) != content:
            raise CorruptStore(f"{self.shown(name)}, just written, holds something else")

    def size(self, name: str) -> int | None:
        """Return the bytes of a file."""
        try:
            return int(self._files.info(self._path(name))["size"])
        except FileNotFoundError:
            return None

    def bring(self, files: Mapping[str, Path]) -> None:
        """Copy each, read every byte back, and compare."""
        for name, written in files.items():
            self._write(name, partial(self._files.put_file, str(written)))
            with written.open("rb") as ours, self._files.open(self._path(name), "rb") as theirs:
                expected, found = _checksum(ours), _checksum(theirs)
            if expected != found:
                raise CorruptStore(
                    f"{self.shown(name)}, just written, holds {found[0]:,} bytes with checksum {found[1]:08x} where "
                    f"{expected[0]:,} with {expected[1]:08x} were written"
                )
            written.unlink()

    def drop(self, names: Iterable[str]) -> None:
        """Remove files, and what was not renamed to be them."""
        for name in sorted(names):
            path = self._path(name)
            for there in (path,) if self._is_whole_at_once else (_aside(path), path):
                with suppress(FileNotFoundError):
                    self._files.rm_file(there)

    def forget(self, work: str) -> None:
        """Do nothing: what a killed attempt left here, its machine removes."""

    def workspace(self, work: str) -> Path:
        """Return a temporary folder of this machine."""
        del work
        return Path(tempfile.mkdtemp(prefix="ferromq-archive-"))

    def leave(self, folder: Path) -> None:
        """Remove the temporary folder."""
        shutil.rmtree(folder, ignore_errors=True)

    @contextmanager
    def alone(self, work: str) -> Iterator[None]:
        """Lock a file of this machine, named after the URL."""
        name = hashlib.blake2b(f"{self._url}/{work}".encode(), digest_size=16).hexdigest()
        with _locked(Path(tempfile.gettempdir()) / f"ferromq-archive-{os.getuid()}-{name}.lock"):
            yield

    def shown(self, name: str) -> str:
        """Return the URL."""
        return f"{self._url}/{name}"

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if self._root else name

    def _write(self, name: str, write: Callable[[str], object]) -> None:
        path = self._path(name)
        if self._is_whole_at_once:  # such have no folders to be made
            write(path)
            return
        self._files.makedirs(path.rpartition("/")[0], exist_ok=True)
        aside = _aside(path)
        write(aside)
        if self._files.exists(path):  # not every file system renames over what is there
            self._files.rm_file(path)
        self._files.mv(aside, path)


def _aside(path: str) -> str:
    """Return the name that *path* is renamed from."""
    folder, _, last = path.rpartition("/")
    return f"{folder}/_{last}.new"


def _checksum(file: Any) -> tuple[int, int]:
    size, crc = 0, 0
    while chunk := file.read(_CHUNK):
        size, crc = size + len(chunk), zlib.crc32(chunk, crc)
    return size, crc
