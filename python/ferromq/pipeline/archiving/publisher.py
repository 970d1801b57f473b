"""
Adds the Parquet files of one commit-log file to the archive: all of them or none, and each row once.

    OUT/topic=…/date=…/hour=…/NAME-0.parquet    the files that readers see
    OUT/_ferromq/NAME.json                      the manifest: the log file is in the archive, complete and on disk
    OUT/_ferromq/NAME.begun                     the files of an attempt in progress; cleans up after a kill
    OUT/_ferromq/NAME.parts/                    the workspace of an attempt

NAME is the log file's 20 digits and a hash of its first record. So one archive takes files of several brokers, and a
master's and its slave's copies share a name. Parquet readers skip names that begin with `_`. Archiving a file is
idempotent, also after a kill at any moment.
"""

import hashlib
import json
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ferromq.errors import CorruptStore, StoreError
from ferromq.pipeline.archiving.location import END, ArchiveLocation
from ferromq.pipeline.archiving.partitions import ParquetPart

CONTROL = "_ferromq"
_CHUNK = 8 << 20
_HEAD = 88
"""Bytes at the start of a record that identify it."""


@dataclass(frozen=True, slots=True)
class LogPart:
    """The readable part of a commit-log file."""

    path: str
    first_offset: int
    """Physical offset of its first byte."""
    end: int
    """Physical offset at which the readable part ends."""

    def __post_init__(self) -> None:
        if self.end < self.first_offset:
            raise ValueError(f"{self.path} begins at {self.first_offset}, after its end at {self.end}")


@dataclass(frozen=True, slots=True)
class Manifest:
    """Describes the part of one commit-log file that the archive holds."""

    name: str
    log_file: str
    """The file's name, 20 digits."""
    first_offset: int
    end: int
    """Physical offset up to which it was read."""
    log_crc32: int
    """Checksum of the log's bytes up to `end`."""
    rows: int
    files: Sequence[dict[str, Any]]
    """Path in the archive, rows, bytes, first and last physical offset, and checksum of each Parquet file."""
    corrupt: Sequence[tuple[int, str]] = field(default_factory=tuple)
    """Physical offset and reason of each skipped record."""

    @classmethod
    def load(cls, location: ArchiveLocation, name: str) -> "Manifest | None":
        """Read a manifest, or return None if it does not exist. Raises CorruptStore if it is malformed."""
        content = location.load(name)
        if content is None:
            return None
        try:
            values = json.loads(content)
            values["corrupt"] = tuple((offset, reason) for offset, reason in values["corrupt"])
            return cls(**values)
        except (ValueError, TypeError, KeyError) as error:
            raise CorruptStore(f"{location.shown(name)} is not a valid manifest: {error}") from error

    def is_complete(self, location: ArchiveLocation) -> bool:
        """Check that all Parquet files exist in their full size."""
        return all(location.size(file["name"]) == file["bytes"] for file in self.files)


def name_of(part: LogPart) -> str:
    """Return the name under which *part* is archived."""
    with Path(part.path).open("rb") as file:
        head = file.read(min(_HEAD, part.end - part.first_offset))
        size = int.from_bytes(head[:4], "big")
        rest = file.read(max(0, min(size, 4 << 20, part.end - part.first_offset) - len(head)))
    return f"{part.first_offset:020d}-{hashlib.blake2b(head + rest, digest_size=8).hexdigest()}"


class Publisher:
    """
    Adds one log file to an archive, under a lock among the processes of this machine.

    If the file is in the archive already, `existing` is its manifest. Otherwise write the Parquet files to the folder
    `parts` and call `publish`.
    """

    def __init__(self, part: LogPart, location: ArchiveLocation) -> None:
        self._part, self._location = part, location
        self.name = name_of(part)
        self.existing: Manifest | None = None
        self._work = f"{CONTROL}/{self.name}"
        self._manifest, self._begun = f"{self._work}.json", f"{self._work}.begun"
        self._parts: Path | None = None
        self._known: Manifest | None = None
        self._crc32 = 0

    @property
    def parts(self) -> Path:
        """The folder to write to, if the file is not in the archive."""
        assert self._parts is not None, "the file is archived, or `entered` was not called"
        return self._parts

    @contextmanager
    def entered(self) -> Iterator["Publisher"]:
        """Wait for other attempts at this file, then compare it with the archive."""
        location = self._location
        with location.lock(self._work):
            known = self._known = Manifest.load(location, self._manifest)
            self._crc32 = self._compare(known)
            if known is not None and known.end == self._part.end and known.is_complete(location):
                self._end(known.files)
                self.existing = known
                yield self
                return
            self._parts = location.workspace(self._work)
            try:
                yield self
            finally:
                location.leave(self._parts)

    def publish(self, written: Sequence[ParquetPart], rows: int, corrupt: Iterable[tuple[int, str]]) -> Manifest:
        """
        Move the files *written* into the archive, and return the manifest once all of it is on disk.

        Raises StoreError if another machine archived the log file meanwhile.
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
        self._check_not_archived()
        # Saved before the first file moves, so that a later attempt finds all files, also those of earlier attempts.
        self._save(self._begun, sorted({*self._former(), *(part.name for part in written)}))
        self._location.move_in({part.name: part.written for part in written})
        self._check_not_archived()
        self._remove_all_but(files)
        self._save(self._manifest, asdict(manifest))
        self._end(files)
        return manifest

    def _check_not_archived(self) -> None:
        """Raise StoreError if another machine, which this lock does not cover, has archived the file meanwhile."""
        known = Manifest.load(self._location, self._manifest)
        if known is not None and known != self._known and known.end >= self._part.end:
            raise StoreError(
                f"{self._part.path} was archived up to {known.end} by another machine meanwhile "
                f"({self._location.shown(self._manifest)}); archive each log from one machine only"
            )

    def _save(self, name: str, content: Any) -> None:
        self._location.save(name, json.dumps(content).encode() + END)  # the only line, so that END is its end

    def _compare(self, known: Manifest | None) -> int:
        """Return the checksum of the log file. Raises StoreError if the archive holds other content of it."""
        part, manifest = self._part, self._location.shown(self._manifest)
        if known is None or known.end > part.end:
            if known is not None:
                raise StoreError(
                    f"{part.path} ends at {part.end}, but {manifest} has it up to {known.end}: either this store lags "
                    "behind the archived one (archive only full files, or that store), or the log was truncated since "
                    "(archive it into another directory)"
                )
            return log_crc32(part, part.first_offset, part.end, 0)
        former = log_crc32(part, part.first_offset, known.end, 0)
        if former != known.log_crc32:
            raise StoreError(
                f"{part.path} differs from the file of {manifest}, though its first record is the same; "
                "archive it into another directory"
            )
        return log_crc32(part, known.end, part.end, former)

    def _former(self) -> set[str]:
        """Return the Parquet files of earlier attempts, finished or not."""
        known = Manifest.load(self._location, self._manifest)
        names = {file["name"] for file in known.files} if known is not None else set()
        return names | set(json.loads(self._location.load(self._begun) or b"[]"))

    def _remove_all_but(self, files: Iterable[dict[str, Any]]) -> None:
        self._location.remove(self._former() - {file["name"] for file in files})

    def _end(self, files: Iterable[dict[str, Any]]) -> None:
        """Remove the traces of an attempt after its manifest is saved."""
        if self._location.size(self._begun) is not None:
            self._remove_all_but(files)
            self._location.remove([self._begun])
        self._location.clean_up(self._work)


def log_crc32(part: LogPart, begin: int, end: int, crc: int) -> int:
    """Return *crc* continued over the bytes of *part* between two physical offsets."""
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
