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
    def load(cls, place: ArchiveLocation, name: str) -> "Manifest | None":
        """Read one; None where there is none. CorruptStore where it cannot be understood."""
        content = place.load(name)
        if content is None:
            return None
        try:
            values = json.loads(content)
            values["corrupt"] = tuple((offset, reason) for offset, reason in values["corrupt"])
            return cls(**values)
        except (ValueError, TypeError, KeyError) as error:
            raise CorruptStore(f"{place.shown(name)} is no manifest of an archive: {error}") from error

    def is_whole(self, place: ArchiveLocation) -> bool:
        """Say whether its Parquet files are there, each as long as it was written."""
        return all(place.size(file["name"]) == file["bytes"] for file in self.files)


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

    def __init__(self, part: LogPart, place: ArchiveLocation) -> None:
        self._part, self._place = part, place
        self.name = name_of(part)
        self.existing: Manifest | None = None
        self._work = f"{CONTROL}/{self.name}"
        self._manifest, self._begun = f"{self._work}.json", f"{self._work}.begun"
        self._parts: Path | None = None
        self._known: Manifest | None = None
        self._crc32 = 0

    @property
    def parts(self) -> Path:
        """The folder to write in, where the file is not in the archive."""
        assert self._parts is not None, "the file is there, or nobody entered"
        return self._parts

    @contextmanager
    def entered(self) -> Iterator["Publisher"]:
        """Wait for others that have the same file under way, then look what there is."""
        place = self._place
        with place.alone(self._work):
            known = self._known = Manifest.load(place, self._manifest)
            self._crc32 = self._compare(known)
            if known is not None and known.end == self._part.end and known.is_whole(place):
                self._end(known.files)
                self.existing = known
                yield self
                return
            self._parts = place.workspace(self._work)
            try:
                yield self
            finally:
                place.leave(self._parts)

    def publish(self, written: Sequence[ParquetPart], rows: int, corrupt: Iterable[tuple[int, str]]) -> Manifest:
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
        self._refuse_what_is_done()
        # Before the first file is in place: whatever comes next finds them all, those of former attempts too.
        self._save(self._begun, sorted({*self._former(), *(part.name for part in written)}))
        self._place.bring({part.name: part.written for part in written})
        self._refuse_what_is_done()
        self._drop_all_but(files)
        self._save(self._manifest, asdict(manifest))
        self._end(files)
        return manifest

    def _refuse_what_is_done(self) -> None:
        """Raise StoreError where another machine, which the lock does not reach, has archived as much meanwhile."""
        known = Manifest.load(self._place, self._manifest)
        if known is not None and known != self._known and known.end >= self._part.end:
            raise StoreError(
                f"{self._part.path} was archived up to {known.end} by another machine meanwhile "
                f"({self._place.shown(self._manifest)}); let one machine archive a log"
            )

    def _save(self, name: str, content: Any) -> None:
        self._place.save(name, json.dumps(content).encode() + END)  # the only line, so that END is its end

    def _compare(self, known: Manifest | None) -> int:
        """Return the checksum of the log file; StoreError where what was archived of it is not what it holds."""
        part, manifest = self._part, self._place.shown(self._manifest)
        if known is None or known.end > part.end:
            if known is not None:
                raise StoreError(
                    f"{part.path} is to be archived up to {part.end}, and {manifest} has it up to {known.end}: "
                    "it is of a store that lags behind the one it was archived from (archive full files only, or that "
                    "store), or the log was cut since (archive it into another directory)"
                )
            return log_crc32(part, part.first_offset, part.end, 0)
        former = log_crc32(part, part.first_offset, known.end, 0)
        if former != known.log_crc32:
            raise StoreError(
                f"{part.path} is not the file that {manifest} is about, though its first record is the same; "
                "archive it into another directory"
            )
        return log_crc32(part, known.end, part.end, former)

    def _former(self) -> set[str]:
        """Return the Parquet files of former attempts, ended or not."""
        known = Manifest.load(self._place, self._manifest)
        names = {file["name"] for file in known.files} if known is not None else set()
        return names | set(json.loads(self._place.load(self._begun) or b"[]"))

    def _drop_all_but(self, files: Iterable[dict[str, Any]]) -> None:
        self._place.drop(self._former() - {file["name"] for file in files})

    def _end(self, files: Iterable[dict[str, Any]]) -> None:
        """Forget the attempt, which the manifest has replaced."""
        if self._place.size(self._begun) is not None:
            self._drop_all_but(files)
            self._place.drop([self._begun])
        self._place.forget(self._work)


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
