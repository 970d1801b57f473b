"""
What makes the Parquet files of one commit-log file one whole: written aside, checked, put in place, and noted.

    OUT/topic=…/date=…/hour=…/NAME-0.parquet    what readers see
    OUT/_ferromq/NAME.json                      the manifest: the log file is in the archive, whole and on disk
    OUT/_ferromq/NAME.begun                     what is about to be put in place; what a kill left is found by it
    OUT/_ferromq/NAME.parts/                    what is being written

NAME is the log file's, 20 digits, and a hash of its first record: the files of several brokers lie in one archive, and
a master's and its slave's are the same. Readers of Parquet pass over names that begin with `_`. Doing a file again, as
often as one likes and after a kill at any moment, leaves each of its rows in the archive once.
"""

import fcntl
import hashlib
import json
import os
import shutil
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ferromq.errors import CorruptStore, StoreError
from ferromq.pipeline._partitions import Part

CONTROL = "_ferromq"
_CHUNK = 8 << 20
_HEAD = 88
"""Bytes of a record's head, which tell it from others."""


@dataclass(frozen=True, slots=True)
class LogPart:
    """A commit-log file, up to where it may be read."""

    path: str
    first_offset: int
    """Physical offset of its first byte."""
    end: int
    """Physical offset up to which it may be read."""

    def __post_init__(self) -> None:
        if self.end < self.first_offset:
            raise ValueError(f"{self.path} begins at {self.first_offset} and ends before, at {self.end}")


@dataclass(frozen=True, slots=True)
class Manifest:
    """What the archive holds of one commit-log file."""

    name: str
    log_file: str
    """The file's name, 20 digits."""
    first_offset: int
    end: int
    """Physical offset up to which it was read."""
    log_crc32: int
    """Of the bytes of the log up to there."""
    rows: int
    files: Sequence[dict[str, Any]]
    """Path in the archive, rows, bytes, first and last physical offset, and checksum of each Parquet file."""
    corrupt: Sequence[tuple[int, str]] = field(default_factory=tuple)
    """Physical offset and reason of each record that was passed over."""

    @classmethod
    def load(cls, path: Path) -> "Manifest | None":
        """Read one; None where there is none. CorruptStore where it cannot be understood."""
        try:
            values = json.loads(path.read_bytes())
            values["corrupt"] = tuple((offset, reason) for offset, reason in values["corrupt"])
            return cls(**values)
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError) as error:
            raise CorruptStore(f"{path} is no manifest of an archive: {error}") from error

    def is_whole(self, out: Path) -> bool:
        """Say whether its Parquet files are there, each as long as it was written."""
        return all(_size(out / file["name"]) == file["bytes"] for file in self.files)


def name_of(part: LogPart) -> str:
    """Return the name under which *part* is archived."""
    with Path(part.path).open("rb") as file:
        head = file.read(min(_HEAD, part.end - part.first_offset))
        size = int.from_bytes(head[:4], "big")
        rest = file.read(max(0, min(size, 4 << 20, part.end - part.first_offset) - len(head)))
    return f"{part.first_offset:020d}-{hashlib.blake2b(head + rest, digest_size=8).hexdigest()}"


class Publisher:
    """
    Holds the place of one log file in an archive, alone among processes of this machine while it is entered.

    `existing` is the manifest where the file is in the archive already; otherwise `parts` is an empty folder for what
    is written, and `publish` puts it in place.
    """

    def __init__(self, part: LogPart, out: Path) -> None:
        self._part, self._out = part, out
        self._control = out / CONTROL
        self.name = name_of(part)
        self.existing: Manifest | None = None
        self.parts = self._control / f"{self.name}.parts"
        self._manifest = self._control / f"{self.name}.json"
        self._begun = self._control / f"{self.name}.begun"
        self._crc32 = 0

    @contextmanager
    def entered(self) -> Iterator["Publisher"]:
        """Wait for others that have the same file under way, then look what there is."""
        make_folder(self._control)
        with _locked(self._control / f"{self.name}.lock"):
            known = Manifest.load(self._manifest)
            self._crc32 = self._compare(known)
            if known is not None and known.end == self._part.end and known.is_whole(self._out):
                self._end(known.files)
                self.existing = known
                yield self
                return
            shutil.rmtree(self.parts, ignore_errors=True)
            self.parts.mkdir()
            try:
                yield self
            finally:
                shutil.rmtree(self.parts, ignore_errors=True)

    def publish(self, written: Sequence[Part], rows: int, corrupt: Iterable[tuple[int, str]]) -> Manifest:
        """
        Put *written* in place, and return the manifest once all of it is on disk.

        Raises StoreError where the log file is not what it was when it was begun.
        """
        files = [{key: value for key, value in asdict(part).items() if key != "written"} for part in written]
        manifest = Manifest(
            name=self.name,
            log_file=f"{self._part.first_offset:020d}",
            first_offset=self._part.first_offset,
            end=self._part.end,
            log_crc32=self._crc32,
            rows=rows,
            files=files,
            corrupt=tuple(corrupt),
        )
        # Before the first file is in place: whatever comes next finds them all, those of former attempts too.
        replace_file(self._begun, json.dumps(sorted({*self._former(), *(part.name for part in written)})).encode())
        folders = {(self._out / part.name).parent for part in written}
        for folder in sorted(folders):
            make_folder(folder)
        for part in written:
            part.written.replace(self._out / part.name)
        for folder in sorted(folders):
            sync_folder(folder)
        self._drop_all_but(files)
        replace_file(self._manifest, json.dumps(asdict(manifest), indent=1).encode())
        self._end(files)
        return manifest

    def _compare(self, known: Manifest | None) -> int:
        """Return the checksum of the log file; StoreError where what was archived of it is not what it holds."""
        part = self._part
        if known is None or known.end > part.end:
            if known is not None:
                raise StoreError(
                    f"{part.path} is to be archived up to {part.end}, and {self._manifest} has it up to {known.end}: "
                    "it is of a store that lags behind the one it was archived from (archive full files only, or that "
                    "store), or the log was cut since (archive it into another directory)"
                )
            return log_crc32(part, part.first_offset, part.end, 0)
        former = log_crc32(part, part.first_offset, known.end, 0)
        if former != known.log_crc32:
            raise StoreError(
                f"{part.path} is not the file that {self._manifest} is about, though its first record is the same; "
                "archive it into another directory"
            )
        return log_crc32(part, known.end, part.end, former)

    def _former(self) -> set[str]:
        """Return the Parquet files of former attempts, ended or not."""
        known = Manifest.load(self._manifest)
        names = {file["name"] for file in known.files} if known is not None else set()
        with suppress(FileNotFoundError):
            names |= set(json.loads(self._begun.read_bytes()))
        return names

    def _drop_all_but(self, files: Iterable[dict[str, Any]]) -> None:
        stale = self._former() - {file["name"] for file in files}
        for name in sorted(stale):
            (self._out / name).unlink(missing_ok=True)
        for folder in sorted({(self._out / name).parent for name in stale}):
            if folder.is_dir():
                sync_folder(folder)

    def _end(self, files: Iterable[dict[str, Any]]) -> None:
        """Forget the attempt, which the manifest has replaced."""
        if self._begun.exists():
            self._drop_all_but(files)
            self._begun.unlink(missing_ok=True)
        shutil.rmtree(self.parts, ignore_errors=True)


def log_crc32(part: LogPart, begin: int, end: int, crc: int) -> int:
    """Return *crc*, gone on over the bytes of *part* between two physical offsets."""
    with Path(part.path).open("rb") as file:
        file.seek(begin - part.first_offset)
        left = end - begin
        while left > 0:
            chunk = file.read(min(left, _CHUNK))
            if not chunk:
                raise StoreError(f"{part.path} ends {left:,} bytes before physical offset {end}")
            crc = zlib.crc32(chunk, crc)
            left -= len(chunk)
    return crc


# --- files -------------------------------------------------------------------------------------------------------


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


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock that *path* is, which is there only meanwhile."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
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
