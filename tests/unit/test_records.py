"""Records and commit-log files as buffers of columns in Python; Rust's tests check their content."""

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from ferromq._ferromq import (
    Clock,
    ColumnBuffer,
    LogScan,
    RemotingClient,
    Store,
    log_files,
    queue_starts,
    record_columns,
)
from ferromq.errors import ConnectionFailed, CorruptStore, StoreError

COUNT = 30


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of a closed store with messages of two topics."""
    directory = tmp_path_factory.mktemp("store")
    store = Store(str(directory), Clock.system(), commit_log_file_size=1 << 16, index_slots=500, index_entries=2000)
    for number in range(COUNT):
        store.append("even" if number % 2 == 0 else "odd", 0, b"%04d" % number * 1000, {"TAGS": f"t{number % 3}"})
    store.close()
    return directory


def offsets(batch: dict[str, Any]) -> list[int]:
    """Return the queue offsets of a batch."""
    _, _, (values,) = batch["columns"]["queue_offset"]
    return list(struct.unpack(f"<{batch['rows']}q", bytes(values)))


def scans(directory: Path, **options: Any) -> Iterator[LogScan]:
    """Scan every file of a store."""
    given = {"columns": ["queue_offset"], **options}
    for path, first, end in log_files(directory):
        yield LogScan(path, first, first, end, **given)


def rows(batches: Sequence[dict[str, Any]]) -> list[int]:
    """Return the queue offsets of all batches."""
    return [offset for batch in batches for offset in offsets(batch)]


def test_a_directory_is_read_file_by_file(directory: Path) -> None:
    """Each file gives its own records, the filter chooses among them, and `read` counts all."""
    batches = [batch for scan in scans(directory, filter={"topics": ["odd"]}, batch_rows=4) for batch in scan]
    assert rows(batches) == list(range(COUNT // 2))
    assert sum(batch["read"] for batch in batches) == COUNT
    assert all(batch["corrupt"] == [] for batch in batches)
    starts = queue_starts(directory)
    assert {topic: list(queues) for topic, queues in starts["queues"].items()} == {"even": [0], "odd": [0]}
    assert starts["queues"]["even"][0] == (0, 0)
    gone = {"queues": {"odd": {0: (3, 0)}}, "undecided_from": 2**64 - 1}
    assert rows([b for s in scans(directory, filter={"starts": gone}) for b in s]) == list(range(3, COUNT // 2))


def test_buffers_are_read_where_they_lie(directory: Path) -> None:
    """A buffer has an address and a length; its bytes can be copied out."""
    (batch, *_) = next(scans(directory, columns=["tag"]))
    null_count, validity, (ends, text) = batch["columns"]["tag"]
    assert (null_count, validity) == (0, None)
    assert isinstance(text, ColumnBuffer)
    assert text.address > 0
    assert bytes(text)[:4] == b"t0t1"
    assert len(ends) == 4 * (batch["rows"] + 1)


def test_damage_is_named_with_its_file_or_told_and_passed_over(directory: Path, tmp_path: Path) -> None:
    """`fail` raises CorruptStore, `skip` goes on."""
    path, first, end = log_files(directory)[0]
    damaged = tmp_path / Path(path).name
    data = bytearray(Path(path).read_bytes())
    data[200] ^= 1
    damaged.write_bytes(data)
    with pytest.raises(CorruptStore, match=rf"{damaged}.*physical offset 0.*checksum"):
        list(LogScan(damaged, first, first, end, columns=["queue_offset"]))
    batches = list(LogScan(damaged, first, first, end, columns=["queue_offset"], on_corrupt="skip"))
    assert batches[0]["corrupt"] == [(0, "the body does not match its checksum")]
    assert rows(batches)[0] == 0  # of the other topic
    with pytest.raises(ValueError, match="byte 0 of part 0: the body does not match its checksum"):
        record_columns([bytes(data)], columns=[])


def test_invalid_arguments_are_named(directory: Path) -> None:
    """Errors of columns, filters, ranges and options have the given and the allowed value."""
    path, first, end = log_files(directory)[0]
    with pytest.raises(ValueError, match=r'column "size" is not known; allowed: topic, queue_id'):
        LogScan(path, first, first, end, columns=["size"])
    with pytest.raises(ValueError, match=r'unknown filter "topic"; allowed: topics'):
        record_columns([], columns=[], filter={"topic": "odd"})
    with pytest.raises(ValueError, match=r'on_corrupt is "ignore"; allowed: fail, skip'):
        LogScan(path, first, first, end, columns=[], on_corrupt="ignore")
    with pytest.raises(ValueError, match="the range of a scan"):
        LogScan(path, 10, 5, end, columns=[])
    with pytest.raises(StoreError, match="nothing"):
        LogScan("/nothing", 0, 0, 1, columns=[])
    with pytest.raises(StoreError, match="no store directory"):
        log_files(Path(path).parent)


def test_a_call_begun_is_answered_once_or_fails_when_waited_for() -> None:
    """The error of a call that is under way comes with its answer."""
    client = RemotingClient()
    pending = client.begin("127.0.0.1:1", 11, {}, timeout=5.0)
    with pytest.raises(ConnectionFailed, match=r"127\.0\.0\.1:1"):
        pending.wait()
    with pytest.raises(RuntimeError, match="already been returned"):
        pending.wait()
    client.close()
