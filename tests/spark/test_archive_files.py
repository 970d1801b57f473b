"""One log file as Parquet: partitions, checks, and kills at any moment. Needs neither Spark nor a store."""

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from archive_log import SIZE, Log, archived, as_read

from ferromq.errors import ConfigError, CorruptStore, StoreError
from ferromq.pipeline import archive
from ferromq.pipeline.archiving import partitions
from ferromq.pipeline.archiving.publisher import LogPart, Manifest


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Log:
    """Return an empty log file."""
    return Log(tmp_path / "00000000000000000000", monkeypatch)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Return the path of the archive."""
    return tmp_path / "archive"


def test_duckdb_reads_the_rows_of_the_log(log: Log, out: Path) -> None:
    """Every column of every record, with topic, date and hour from the path; also for topics that paths escape."""
    part = log.grow(1000)
    manifest, is_new = archive.archive_file(part, out)
    assert is_new
    assert manifest.rows == 1000 == sum(file["rows"] for file in manifest.files)
    assert archived(out) == [as_read(row) for row in log.rows]
    names = {path.relative_to(out).parts[0] for path in out.rglob("*.parquet")}
    assert names == {"topic=orders", "topic=%25RETRY%25billing", "topic=a%7Cb_c-d", "topic=%25DLQ%25g%251"}


def test_files_are_zstd_and_few(log: Log, out: Path) -> None:
    """One file for each topic and hour, however rows are divided into batches."""
    log.batch = 7
    manifest, _ = archive.archive_file(log.grow(1000), out)
    groups = {(row["topic"], row["store_timestamp"].replace(minute=0, second=0)) for row in log.rows}
    assert len(manifest.files) == len(groups)
    for file in manifest.files:
        read = pq.ParquetFile(out / file["name"])
        assert {read.metadata.row_group(0).column(0).compression} == {"ZSTD"}
        assert read.metadata.num_rows == file["rows"]


def test_memory_and_open_files_are_bounded(log: Log, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With small limits, groups continue in more files; the rows and their order stay the same."""
    monkeypatch.setattr(partitions.PartitionedWriter.__init__, "__kwdefaults__", {"buffered": 4000, "max_open": 2})
    manifest, _ = archive.archive_file(log.grow(1000), out)
    assert any(file["name"].endswith("-1.parquet") for file in manifest.files)
    assert archived(out) == [as_read(row) for row in log.rows]
    for file in manifest.files:
        offsets = pq.ParquetFile(out / file["name"]).read(["physical_offset"]).column(0).to_pylist()
        assert offsets == sorted(offsets)
        assert (offsets[0], offsets[-1]) == (file["first_offset"], file["last_offset"])


def test_a_file_is_archived_once(log: Log, out: Path) -> None:
    """A second run changes nothing, except that it restores a missing Parquet file."""
    part = log.grow(300)
    manifest, _ = archive.archive_file(part, out)
    assert archive.archive_file(part, out) == (manifest, False)
    (out / manifest.files[0]["name"]).unlink()
    assert archive.archive_file(part, out)[1]
    assert archived(out) == [as_read(row) for row in log.rows]


def test_a_file_that_grew_is_archived_anew(log: Log, out: Path) -> None:
    """No row is repeated, and no file of the earlier attempt remains."""
    archive.archive_file(log.grow(300), out)
    manifest, is_new = archive.archive_file(log.grow(500), out)
    assert is_new
    assert archived(out) == [as_read(row) for row in log.rows]
    assert {str(path.relative_to(out)) for path in out.rglob("*.parquet")} == {file["name"] for file in manifest.files}


def test_another_file_with_the_same_first_record_is_refused(log: Log, out: Path) -> None:
    """A copy of a store that has diverged does not replace the archived file."""
    part = log.grow(300)
    archive.archive_file(part, out)
    content = bytearray(log.path.read_bytes())
    content[5000] ^= 1
    log.path.write_bytes(content)
    with pytest.raises(StoreError, match=r"differs from the file of"):
        archive.archive_file(part, out)
    with pytest.raises(StoreError, match="the log was truncated since"):
        archive.archive_file(LogPart(part.path, 0, part.end - SIZE), out)
    assert archived(out) == [as_read(row) for row in log.rows]


def test_logs_of_several_brokers_lie_side_by_side(tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files with the same name but another first record are different files."""
    for broker, skipped in (("a", 0), ("b", 7)):
        (tmp_path / broker).mkdir()
        log = Log(tmp_path / broker / f"{0:020d}", monkeypatch)
        log.rows = []
        part = log.grow(100 + skipped)
        log.path.write_bytes(
            log.path.read_bytes().replace(b"127.0.0.1", broker.encode() * 9).replace(b"id-", b"i" + broker.encode() * 2)
        )
        archive.archive_file(part, out)
    assert len(archived(out)) == 207


def test_a_damaged_parquet_file_is_not_published(log: Log, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unreadable or wrong file is an error that names it; readers see nothing."""
    part = log.grow(300)
    monkeypatch.setattr(partitions.os, "fsync", spoil(b"\x00"))
    with pytest.raises(CorruptStore, match=r"just written"):
        archive.archive_file(part, out)
    assert list(out.rglob("*.parquet")) == []
    monkeypatch.undo()


def spoil(byte: bytes) -> Callable[[int], None]:
    """Return an fsync that corrupts a byte of the file."""

    def sync(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if path.is_dir():
            return
        content = bytearray(path.read_bytes())
        content[len(content) // 3] ^= 0x55
        path.write_bytes(bytes(content))

    return sync


# --- kills -------------------------------------------------------------------------------------------------------


class Killed(BaseException):
    """Simulates the death of the process: no later change reaches the disk."""


class Kill:
    """Simulates a kill before change number *at* of the disk."""

    def __init__(self) -> None:
        self.left: int | None = None
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.left is None:
            return
        writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if writes or event in {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.unlink"}:
            if self.left <= 0:
                raise Killed
            self.left -= 1


@pytest.fixture(scope="module")
def kill() -> Iterator[Kill]:
    """Return the switch for kills, turned off at the end."""
    kill = Kill()
    yield kill
    kill.left = None


def run_to(kill: Kill, at: int, bring: Callable[[], object]) -> bool:
    """Archive until change number *at*; return whether it completed."""
    kill.left = at
    try:
        bring()
    except Killed:
        return False
    finally:
        kill.left = None
    return True


def places(out: Path) -> list[int]:
    """Return the physical offsets in the archive, with repetitions."""
    found: list[int] = []
    for path in out.glob("topic=*/date=*/hour=*/*.parquet"):
        found += pq.ParquetFile(path).read(["physical_offset"]).column(0).to_pylist()
    return sorted(found)


@pytest.mark.parametrize("former", [0, 20], ids=["new", "grown"])
@pytest.mark.parametrize("is_url", [False, True], ids=["directory", "url"])
def test_a_kill_at_any_moment_leaves_no_hole_and_no_duplicate(  # noqa: PLR0917 (fixtures)
    log: Log, tmp_path: Path, kill: Kill, former: int, is_url: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Repeating the run completes the archive; the manifest exists only with all its files."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))

    def bring(part: LogPart, out: Path) -> Manifest:
        if not is_url:
            return archive.archive_file(part, out)[0]
        # A file system that renames.
        options = {"path": str(out), "target_protocol": "file"}
        return archive.archive_file(part, "dir://", storage_options=options)[0]

    limits = {"buffered": 1500, "max_open": 2}
    monkeypatch.setattr(partitions.PartitionedWriter.__init__, "__kwdefaults__", limits)
    monkeypatch.setattr(os, "fsync", lambda _descriptor: None)  # the machine does not fail
    parts = [log.grow(former), log.grow(20)] if former else [log.grow(40)]
    whole, expected = parts[-1], [row["physical_offset"] for row in log.rows]
    for at in range(1000):
        out = tmp_path / f"archive-{at}"
        for part in parts[:-1]:
            bring(part, out)
        is_through = run_to(kill, at, partial(bring, whole, out))
        ends = [json.loads(path.read_text())["end"] for path in out.glob("_ferromq/*.json")]
        assert set(ends) <= {part.end for part in parts}
        assert ends != [whole.end] or places(out) == expected
        manifest = bring(whole, out)
        assert places(out) == expected
        assert not list(out.rglob("*.new"))
        assert [path.name for path in (out / "_ferromq").iterdir()] == [f"{manifest.name}.json"]
        if is_through:
            break
    assert at > 2 * len(manifest.files)
    assert archived(out) == [as_read(row) for row in log.rows]


def test_wrong_arguments_name_what_is_allowed(log: Log, out: Path, tmp_path: Path) -> None:
    """The error has the value and the allowed values."""
    part = log.grow(1)
    with pytest.raises(ConfigError, match="on_corrupt is 'ignore'; allowed: fail, skip"):
        archive.archive_file(part, out, on_corrupt="ignore")
    with pytest.raises(ConfigError, match=r"is 'nonsense://b/c'; allowed: a directory, or a URL that fsspec"):
        archive.archive_file(part, "nonsense://b/c")
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'fsspec\[s3\]'"):
        archive.into("s3://b/c")
    with pytest.raises(ConfigError, match="nowhere does not exist; allowed: a store directory"):
        archive.log_parts([str(tmp_path / "nowhere")])
    (tmp_path / "other").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"other is not a commit-log file; allowed: .* 20 digits"):
        archive.log_parts([str(tmp_path / "other")])


def test_without_its_directory_the_hook_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store then keeps the file."""
    monkeypatch.delenv(archive.DIRECTORY, raising=False)
    with pytest.raises(ConfigError, match="set FERROMQ_ARCHIVE_DIRECTORY"):
        archive.hook(None)  # type: ignore[arg-type] # it is not looked at
