"""
Stores the files of an archive in a directory or at a URL that fsspec knows.

Each file appears atomically, and is on disk (or as durable as the object store makes it) when the call returns. Names
are paths inside the archive, with `/`.
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
"""The last byte of a saved file. A file without it is incomplete."""
_CHUNK = 8 << 20
_ATOMIC_WRITES = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oci", "oss", "memory"})
"""File systems where a written object appears atomically. In others, files are written aside and renamed."""


class ArchiveLocation(Protocol):
    """The files of an archive."""

    def load(self, name: str) -> bytes | None:
        """Return the content of a file, or None if it does not exist."""

    def save(self, name: str, content: bytes) -> None:
        """Replace the file atomically by *content*, which ends with `END`."""

    def size(self, name: str) -> int | None:
        """Return the size of a file in bytes, or None if it does not exist."""

    def move_in(self, files: Mapping[str, Path]) -> None:
        """Move local files into the archive under their names, replacing existing files."""

    def remove(self, names: Iterable[str]) -> None:
        """Remove the files that exist."""

    def clean_up(self, work: str) -> None:
        """Remove the workspace that a killed attempt at *work* left."""

    def workspace(self, work: str) -> Path:
        """Return an empty local folder to write in; `clean_up` or `leave` removes it."""

    def leave(self, folder: Path) -> None:
        """Remove a folder that `workspace` returned."""

    def lock(self, work: str) -> Any:
        """Hold a lock on *work* among the processes of this machine, as a context manager."""

    def shown(self, name: str) -> str:
        """Return the full path or URL of a file, for messages."""


def location_of(out: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None) -> ArchiveLocation:
    """Return the location that *out* names. Raises ConfigError and ModuleNotFoundError as `file_system` does."""
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
        """Return the content of a file."""
        try:
            return (self._path / name).read_bytes()
        except FileNotFoundError:
            return None

    def save(self, name: str, content: bytes) -> None:
        """Write aside, then rename."""
        make_folder((self._path / name).parent)
        replace_file(self._path / name, content)

    def size(self, name: str) -> int | None:
        """Return the size of a file."""
        try:
            return (self._path / name).stat().st_size
        except FileNotFoundError:
            return None

    def move_in(self, files: Mapping[str, Path]) -> None:
        """Rename the files and sync their folders."""
        folders = {(self._path / name).parent for name in files}
        for folder in sorted(folders):
            make_folder(folder)
        for name, written in files.items():
            written.replace(self._path / name)
        for folder in sorted(folders):
            sync_folder(folder)

    def remove(self, names: Iterable[str]) -> None:
        """Remove the files and sync their folders."""
        gone = sorted(names)
        for name in gone:
            (self._path / name).unlink(missing_ok=True)
        for folder in sorted({(self._path / name).parent for name in gone}):
            if folder.is_dir():
                sync_folder(folder)

    def clean_up(self, work: str) -> None:
        """Remove the workspace."""
        shutil.rmtree(self._workspace(work), ignore_errors=True)

    def workspace(self, work: str) -> Path:
        """Return a folder inside the archive, so that a rename moves a file in."""
        self.clean_up(work)
        self._workspace(work).mkdir()
        return self._workspace(work)

    def leave(self, folder: Path) -> None:
        """Remove the workspace."""
        shutil.rmtree(folder, ignore_errors=True)

    @contextmanager
    def lock(self, work: str) -> Iterator[None]:
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
    """Make *folder* and its parents, and sync each parent."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Sync the names in *folder* to disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_file(path: Path, content: bytes) -> None:
    """Replace *path* atomically by *content*, and sync it to disk."""
    aside = path.with_name(f"{path.name}.new")
    with aside.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)
    sync_folder(path.parent)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock file *path*, which exists only while it is held."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        # The previous holder may have removed the file: then others lock its successor.
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
    A URL that fsspec knows. Files are written locally first, and read back after the upload.

    Without atomic writes, a file is uploaded under a name that Parquet readers skip, and renamed.
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
        self._is_atomic = not _ATOMIC_WRITES.isdisjoint([known] if isinstance(known, str) else known)
        # A cached listing lacks the files that others wrote meanwhile.
        self._files.invalidate_cache()

    def load(self, name: str) -> bytes | None:
        """Return the content of a file. A complete file that was not renamed yet is renamed now."""
        path = self._path(name)
        with suppress(FileNotFoundError):
            return bytes(self._files.cat_file(path))
        if self._is_atomic:
            return None
        with suppress(FileNotFoundError):
            content = bytes(self._files.cat_file(_aside(path)))
            if content.endswith(END):
                self._files.mv(_aside(path), path)
                return content
        return None

    def save(self, name: str, content: bytes) -> None:
        """Write the file and read it back."""
        self._write(name, lambda path: self._files.pipe_file(path, content))
        if self.load(name) != content:
            raise CorruptStore(f"{self.shown(name)}, just written, holds something else")

    def size(self, name: str) -> int | None:
        """Return the size of a file."""
        try:
            return int(self._files.info(self._path(name))["size"])
        except FileNotFoundError:
            return None

    def move_in(self, files: Mapping[str, Path]) -> None:
        """Upload each file, read every byte back, and compare."""
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

    def remove(self, names: Iterable[str]) -> None:
        """Remove the files, and uploads of them that were not renamed."""
        for name in sorted(names):
            path = self._path(name)
            for there in (path,) if self._is_atomic else (_aside(path), path):
                with suppress(FileNotFoundError):
                    self._files.rm_file(there)

    def clean_up(self, work: str) -> None:
        """Do nothing: the workspace of a killed attempt is in that machine's temporary folder."""

    def workspace(self, work: str) -> Path:
        """Return a local temporary folder."""
        del work
        return Path(tempfile.mkdtemp(prefix="ferromq-archive-"))

    def leave(self, folder: Path) -> None:
        """Remove the temporary folder."""
        shutil.rmtree(folder, ignore_errors=True)

    @contextmanager
    def lock(self, work: str) -> Iterator[None]:
        """Lock a local file that is named after the URL."""
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
        if self._is_atomic:  # such file systems have no folders to make
            write(path)
            return
        self._files.makedirs(path.rpartition("/")[0], exist_ok=True)
        aside = _aside(path)
        write(aside)
        if self._files.exists(path):  # not every file system renames over an existing file
            self._files.rm_file(path)
        self._files.mv(aside, path)


def _aside(path: str) -> str:
    """Return the name under which *path* is written before it is renamed."""
    folder, _, last = path.rpartition("/")
    return f"{folder}/_{last}.new"


def _checksum(file: Any) -> tuple[int, int]:
    size, crc = 0, 0
    while chunk := file.read(_CHUNK):
        size, crc = size + len(chunk), zlib.crc32(chunk, crc)
    return size, crc
