"""`archive`: expired files are in Parquet, row by row, before the store deletes them."""

import json
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import pytest

import ferromq
from ferromq import store_tools
from ferromq._ferromq import StoredMessage
from ferromq.cli import main as cli
from ferromq.errors import CorruptStore
from ferromq.pipeline import archive
from ferromq.pipeline.archiving.publisher import LogPart

START = 1_763_766_000_000
"""2025-11-21T23:00:00Z."""
OPTIONS = {"commit_log_file_size": 64 << 10, "default_queues": 2, "retention_age": "1h"}
Row = tuple[Any, ...]

# Opens the store, and kills the process before the N-th change of the archive that its hook makes.
KILLED = """
import os, signal, sys, threading
import ferromq
from ferromq.pipeline import archive

store, at = sys.argv[1], int(sys.argv[2])
out = os.environ[archive.DIRECTORY]

def hear(event, arguments):
    global at
    if event in {"os.rename", "os.remove", "os.mkdir"} and out in str(arguments[0]):
        at -= 1
        if at == 0:
            os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(hear)
clock = ferromq.Clock.manual(int(sys.argv[3]))
with ferromq.embedded(
    store, clock=clock, archive="ferromq.pipeline.archive:hook",
    commit_log_file_size=64 << 10, default_queues=2, retention_age="1h",
) as mq:
    # Expiry skips files whose messages are not in their queues yet.
    while mq.store.stats()["dispatched_offset"] < mq.store.stats()["max_physical_offset"]:
        threading.Event().wait(0.01)
    mq.store.clean(now=True)
sys.exit("it was not killed")
"""


def fill(mq: ferromq.Embedded, count: int = 300) -> None:
    """Send messages of several topics over more than an hour, to fill a few files."""
    with mq.admin() as admin:
        admin.create_group("g")
    with mq.producer() as producer:
        for part in range(0, count, 30):
            for number in range(part, part + 30):
                topic = ("orders", "%RETRY%g", "payments")[number % 3]
                keys = [f"k{number}"] if number % 4 else None
                tag = f"t{number % 5}" if number % 7 else None
                properties = {"number": str(number)}
                producer.send(topic, b"%-1000d" % number, keys=keys, tag=tag, properties=properties)
            mq.clock.advance(minutes=11)


def wait_for_queues(mq: ferromq.Embedded) -> None:
    """Wait until all messages are in their queues; expiry skips files that are not."""
    pause = threading.Event()
    while mq.store.stats()["dispatched_offset"] < mq.store.stats()["max_physical_offset"]:
        pause.wait(0.01)


def in_log(path: Path) -> list[Row]:
    """Return the records of a log file, decoded by another reader than the archive's."""
    found = []
    for record in store_tools.read_log_file(path):
        assert isinstance(record, StoredMessage)
        found.append(
            (
                record.physical_offset,
                record.topic,
                record.queue_id,
                record.queue_offset,
                record.message_id,
                list(record.keys),
                record.tag,
                record.body,
                record.store_timestamp,
                record.born_timestamp,
            )
        )
    return found


def in_archive(out: Path) -> list[Row]:
    """Return the same columns of an archive, read by DuckDB."""
    with duckdb.connect() as connection:
        return connection.sql(
            f"""
            SELECT physical_offset, topic, queue_id, queue_offset, message_id, keys, tag, body,
                   epoch_ms(store_timestamp), epoch_ms(born_timestamp)
            FROM read_parquet('{out}/**/*.parquet', hive_partitioning = true)
            ORDER BY physical_offset
            """
        ).fetchall()


def logs(store: Path) -> dict[str, list[Row]]:
    """Return the records of each log file."""
    return {path.name: in_log(path) for path in sorted((store / "commitlog").iterdir()) if path.name.isdecimal()}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Return a closed store with several log files."""
    directory = tmp_path / "store"
    with ferromq.embedded(directory, clock=ferromq.Clock.manual(START), **{**OPTIONS, "retention_age": "72h"}) as mq:
        fill(mq)
    return directory


@pytest.mark.crash
@pytest.mark.timeout(300)
def test_rows_are_archived_before_their_files_are_deleted(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker killed while it archives resumes without a gap or a duplicate, and deletes nothing early."""
    out = tmp_path / "archive"
    monkeypatch.setenv(archive.DIRECTORY, str(out))
    before = logs(store)
    assert len(before) > 3
    now = START + 5 * 3_600_000
    # While the first file is published; after its manifest, or shortly later.
    for at in (8, 25):
        done = subprocess.run(
            [sys.executable, "-c", KILLED, str(store), str(at), str(now)], capture_output=True, text=True, check=False
        )
        assert done.returncode == -signal.SIGKILL, done.stderr
        archived = {path.name[:20] for path in (out / "_ferromq").glob("*.json")}
        assert before.keys() - logs(store).keys() <= archived
    with ferromq.embedded(
        store, clock=ferromq.Clock.manual(now), archive=f"ferromq.pipeline.archive:into {out}", **OPTIONS
    ) as mq:
        wait_for_queues(mq)
        report = mq.store.clean(now=True)
        assert not report["failure"]
        gone = before.keys() - logs(store).keys()
    assert len(gone) >= 3
    assert in_archive(out) == [row for name in sorted(gone) for row in before[name]]


def test_a_log_is_archived_as_far_as_it_is_flushed(tmp_path: Path) -> None:
    """Also if the path names its directory or one of its files; unflushed bytes may still change."""
    with ferromq.embedded(tmp_path / "store") as mq, mq.producer() as producer:
        producer.send("orders", b"x")
    log = tmp_path / "store" / "commitlog"
    (part,) = archive.log_parts([str(tmp_path / "store")])
    assert part.end < part.first_offset + Path(part.path).stat().st_size
    for path in (log, log / f"{0:020d}"):
        assert archive.log_parts([str(path)]) == [part]
    assert archive.log_parts([str(log)], full_only=True) == []
    copy = tmp_path / "files"
    copy.mkdir()
    (copy / f"{4096:020d}").write_bytes(b"x" * 100)
    assert archive.log_parts([str(copy)]) == [LogPart(str(copy / f"{4096:020d}"), 4096, 4196)]


def test_a_hook_that_cannot_write_keeps_the_file(store: Path, tmp_path: Path) -> None:
    """The report has the reason, as for any failing hook."""
    (tmp_path / "archive").write_bytes(b"a file where the directory should be")
    hook = archive.into(tmp_path / "archive")
    clock = ferromq.Clock.manual(START + 5 * 3_600_000)
    before = logs(store).keys()
    with ferromq.embedded(store, clock=clock, archive=hook, **OPTIONS) as mq:
        wait_for_queues(mq)
        report = mq.store.clean(now=True)
    assert report["removed_files"] == 0
    assert "archive" in report["failure"]
    assert logs(store).keys() == before


def test_a_hook_keeps_a_file_that_ends_in_zeros(store: Path, tmp_path: Path) -> None:
    """An expired file is full, even if the next one is on another disk, so zeros are a gap."""
    path = sorted((store / "commitlog").iterdir())[1]
    (tmp_path / "disk").mkdir()
    alone = tmp_path / "disk" / path.name
    content = bytearray(path.read_bytes())
    rows, begin = in_log(path), int(path.name)
    file = SimpleNamespace(path=alone, begin=begin, end=begin + len(content))
    alone.write_bytes(content)
    archive.into(tmp_path / "whole")(file)  # type: ignore[arg-type]
    assert in_archive(tmp_path / "whole") == rows
    hole = rows[len(rows) // 2][0] - begin
    content[hole:] = bytes(len(content) - hole)
    alone.write_bytes(content)
    with pytest.raises(CorruptStore, match=f"zeros at physical offset {begin + hole}"):
        archive.into(tmp_path / "hole")(file)  # type: ignore[arg-type]


def test_a_damaged_record_is_an_error_or_skipped(store: Path, tmp_path: Path) -> None:
    """By default nothing is archived; with `skip` only that record is missing, and the manifest has its offset."""
    path = min((store / "commitlog").iterdir())
    rows = in_log(path)
    content = bytearray(path.read_bytes())
    content[rows[5][0] + 200] ^= 0x55
    path.write_bytes(content)
    part = LogPart(str(path), 0, path.stat().st_size)
    with pytest.raises(CorruptStore, match=path.name):
        archive.archive_file(part, tmp_path / "archive")
    assert not list((tmp_path / "archive").rglob("*.parquet"))
    manifest, _ = archive.archive_file(part, tmp_path / "archive", on_corrupt="skip")
    assert [offset for offset, _reason in manifest.corrupt] == [rows[5][0]]
    assert in_archive(tmp_path / "archive") == rows[:5] + rows[6:]


def test_spark_archives_a_store_and_reads_it_back(
    session: Any, store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One task a file; repeating the command archives nothing new; the columns are those of the format."""
    out = tmp_path / "archive"
    expected = [row for rows in logs(store).values() for row in rows]
    report = archive.archive(session, str(store), str(out)).collect()
    # The file that the store creates in advance may have no records.
    assert [row.rows for row in sorted(report, key=lambda row: row.first_offset)] == [
        len(rows) for rows in logs(store).values() if rows
    ]
    assert all(row.is_new and row.corrupt == 0 for row in report)
    assert in_archive(out) == expected
    options = {"path": str(tmp_path / "behind"), "target_protocol": "file"}
    again = archive.archive(session, str(store), "dir://", storage_options=options).collect()
    assert [(row.name, row.rows, row.is_new) for row in again] == [(row.name, row.rows, True) for row in report]
    assert in_archive(tmp_path / "behind") == expected
    two = [str(store / "commitlog" / row.name[:20]) for row in report[:2]]
    assert cli.main(["pipeline", "archive", *two, str(out), "--quiet", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["log_files"], said["of_them_new"], said["messages"]) == (2, 0, report[0].rows + report[1].rows)
    frame = archive.read(session, str(out))
    assert frame.columns[:3] == ["topic", "queue_id", "queue_offset"]
    assert frame.columns[-2:] == ["date", "hour"]
    found = frame.orderBy("physical_offset").select("physical_offset", "topic", "body", "tag", "properties").collect()
    assert [(row.physical_offset, row.topic, bytes(row.body), row.tag) for row in found] == [
        (row[0], row[1], row[7], row[6]) for row in expected
    ]
    assert [row.properties["number"] for row in found] == [str(int(row[7])) for row in expected]


def test_a_path_without_a_log_is_named_in_the_error(
    session: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With exit code 2."""
    assert cli.main(["pipeline", "archive", str(tmp_path / "none"), str(tmp_path / "out"), "--quiet"]) == 2
    assert "none does not exist; allowed: a store directory" in capsys.readouterr().err
