"""`format("ferromq-log")` without Spark: the rows of commit-log files."""

import logging
import shutil
import zlib
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import fsspec
import pytest
from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual, IsNotNull, LessThan

import ferromq
from ferromq.errors import ConfigError, CorruptStore
from ferromq.spark.log.source import FerromqLogSource
from ferromq.spark.schema import COLUMNS

FIXTURES = Path(__file__).parents[1] / "fixtures" / "store"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
HEADS = {"columns": ",".join(column for column in COLUMNS if column != "body")}
"""The fixtures' bodies that say they are compressed are not."""

Table = Callable[..., Any]


def listed(name: str) -> list[dict[str, Any]]:
    """Return the queued messages of a fixture, as Java listed them."""
    found = []
    for line in (FIXTURES / f"{name}.txt").read_text().splitlines():
        kind, *values = line.split("\t")
        if kind != "queued":
            continue
        found.append(
            {
                "physical_offset": int(values[0]),
                "topic": values[2],
                "queue_id": int(values[3]),
                "queue_offset": int(values[4]),
                "sys_flag": int(values[7]),
                "born_timestamp": EPOCH + timedelta(milliseconds=int(values[8])),
                "store_timestamp": EPOCH + timedelta(milliseconds=int(values[10])),
                "reconsume_times": int(values[12]),
                "crc": int(values[15]),
            }
        )
    return found


def loose(name: str, folder: Path) -> Path:
    """Copy the files of a fixture's log to *folder*, and return it."""
    shutil.copytree(FIXTURES / name / "commitlog", folder)
    return folder


def by_place(rows: Any) -> list[dict[str, Any]]:
    """Return rows in the order of the log."""
    return sorted(rows.to_pylist(), key=lambda row: row["physical_offset"])


@pytest.mark.parametrize("name", ["stopped", "killed", "property-crc"])
def test_every_message_of_a_java_brokers_files_is_a_row(name: str, tmp_path: Path, table: Table) -> None:
    """Nothing else is a row: half messages and rolled-back ones are in no queue."""
    options = {"path": loose(name, tmp_path / "log"), "includeSystemTopics": "true"}
    rows = by_place(table(FerromqLogSource, {**options, **HEADS}))
    expected = listed(name)
    assert len(rows) == len(expected) > 100
    for row, message in zip(rows, expected, strict=True):
        assert {key: row[key] for key in message if key != "crc"} | {"crc": message["crc"]} == message
    crcs = {message["physical_offset"]: message["crc"] for message in expected}
    bodies = table(FerromqLogSource, {**options, "columns": "physical_offset,body"})
    assert {row["physical_offset"]: zlib.crc32(row["body"]) for row in by_place(bodies)} == crcs


def test_a_java_store_directory_is_read_as_its_files_are(tmp_path: Path, table: Table) -> None:
    """Also if the path names its log directory or a file; internal topics are read only with the option."""
    store = tmp_path / "store"
    shutil.copytree(FIXTURES / "stopped", store)
    whole = by_place(table(FerromqLogSource, {"path": store, **HEADS}))
    topics = {message["topic"] for message in listed("stopped")}
    internal = {topic for topic in topics if topic.startswith("%RETRY%")}
    assert internal
    assert {row["topic"] for row in whole} == topics - internal
    assert by_place(table(FerromqLogSource, {"path": store / "commitlog", **HEADS})) == whole
    files = sorted((store / "commitlog").iterdir())
    assert by_place(table(FerromqLogSource, {"paths": f'["{files[1]}", "{files[0]}"]', **HEADS})) == [
        row for row in whole if row["physical_offset"] < 32768
    ]
    every = table(FerromqLogSource, {"path": f"file://{store}", "includeSystemTopics": "true", **HEADS})
    assert len(every) == len(listed("stopped"))


def test_topics_are_named_or_matched_whatever_the_columns(table: Table) -> None:
    """The column `topic` is not returned unless requested."""
    path = FIXTURES / "stopped"
    named = table(FerromqLogSource, {"path": path, "topics": "bulk,sizes", "columns": "message_id,topic"})
    assert (named.column_names, set(named["topic"].to_pylist())) == (["message_id", "topic"], {"bulk", "sizes"})
    matched = table(FerromqLogSource, {"path": path, "topicPattern": "b.*|s.*", "columns": "message_id"})
    assert matched.column_names == ["message_id"]
    assert sorted(matched["message_id"].to_pylist()) == sorted(named["message_id"].to_pylist())
    retries = next(message["topic"] for message in listed("stopped") if message["topic"].startswith("%RETRY%"))
    assert len(table(FerromqLogSource, {"path": path, "topic": retries, **HEADS})) > 0


def test_parts_of_files_are_read_as_the_whole(table: Table) -> None:
    """Every row is in one part."""
    options = {"path": FIXTURES / "stopped", "includeSystemTopics": "true", **HEADS}
    whole = by_place(table(FerromqLogSource, options))
    files = len(table.partitions)  # type: ignore[attr-defined]
    assert by_place(table(FerromqLogSource, {**options, "maxBytesPerPartition": 2000})) == whole
    assert len(table.partitions) > 3 * files  # type: ignore[attr-defined]


def test_files_of_an_object_store_give_the_same_rows(table: Table) -> None:
    """Each is copied, read and removed."""
    memory = fsspec.filesystem("memory")
    memory.put(f"{FIXTURES}/stopped/", "/stopped", recursive=True)
    local = by_place(table(FerromqLogSource, {"path": FIXTURES / "stopped", "topic": "bulk"}))
    for url in ("memory://stopped", "memory://stopped/commitlog"):
        assert by_place(table(FerromqLogSource, {"path": url, "topic": "bulk"})) == local
    memory.rm("/stopped", recursive=True)


def test_the_reader_handles_filters(table: Table) -> None:
    """Topic, queue, offset and time; Spark has no filter left to evaluate."""
    messages = [message for message in listed("stopped") if message["topic"] == "bulk" and message["queue_id"] == 1]
    times = sorted(message["store_timestamp"] for message in messages)
    first, end = times[len(times) // 3], times[2 * len(times) // 3]
    filters = [
        IsNotNull(("queue_id",)),
        EqualTo(("topic",), "bulk"),
        EqualTo(("queue_id",), 1),
        GreaterThanOrEqual(("store_timestamp",), first),
        LessThan(("store_timestamp",), end),
        GreaterThanOrEqual(("queue_offset",), 3),
    ]
    rows = by_place(table(FerromqLogSource, {"path": FIXTURES / "stopped"}, filters))
    assert table.left == []  # type: ignore[attr-defined]
    expected = [one for one in messages if first <= one["store_timestamp"] < end and one["queue_offset"] >= 3]
    assert [row["physical_offset"] for row in rows] == [one["physical_offset"] for one in expected]
    timed = {"startingTimestamp": first.isoformat(), "endingTimestamp": end.isoformat()}
    assert by_place(table(FerromqLogSource, {"path": FIXTURES / "stopped", **timed}, filters)) == rows


def test_tags_and_keys_choose_messages(table: Table) -> None:
    """As filter or as option; a message matches with any of its keys."""
    options = {"path": FIXTURES / "stopped", **HEADS}
    rows = by_place(table(FerromqLogSource, options))
    tag = next(row["tag"] for row in rows if row["tag"])
    key = next(row["keys"][-1] for row in rows if len(row["keys"]) > 1)
    tagged = [row for row in rows if row["tag"] == tag]
    assert by_place(table(FerromqLogSource, options, [EqualTo(("tag",), tag)])) == tagged
    assert by_place(table(FerromqLogSource, {**options, "tags": tag})) == tagged
    with_key = [row for row in rows if key in row["keys"]]
    assert by_place(table(FerromqLogSource, {**options, "keys": key})) == with_key


def test_damage_is_an_error_or_is_logged_and_skipped(
    tmp_path: Path, table: Table, caplog: pytest.LogCaptureFixture
) -> None:
    """The error has file and offset; the warning counts the records; all other rows are read."""
    folder = loose("stopped", tmp_path / "log")
    options = {"path": folder, "includeSystemTopics": "true", **HEADS}
    whole = by_place(table(FerromqLogSource, options))
    hit = [row for row in whole if 16384 <= row["physical_offset"] < 32768][3:6:2]
    with (folder / f"{16384:020}").open("r+b") as file:
        for row in hit:
            file.seek(row["physical_offset"] - 16384 + 100)
            byte = file.read(1)[0]
            file.seek(-1, 1)
            file.write(bytes([byte ^ 0xFF]))
    with pytest.raises(CorruptStore, match=f"{16384:020}.*{hit[0]['physical_offset']}"):
        table(FerromqLogSource, options)
    with caplog.at_level(logging.WARNING, "ferromq.spark"):
        rows = by_place(table(FerromqLogSource, {**options, "onCorrupt": "skip"}))
    assert rows == [row for row in whole if row not in hit]
    (said,) = (record.getMessage() for record in caplog.records)
    assert said.startswith(f"2 damaged places of {folder}/{16384:020} were skipped: ")
    assert [str(row["physical_offset"]) in said for row in hit] == [True, True]


def test_a_running_brokers_files_are_read_up_to_what_is_flushed(tmp_path: Path, table: Table) -> None:
    """With any flush policy; nothing is locked or changed."""
    file = tmp_path / "commitlog" / f"{0:020}"
    with ferromq.embedded(tmp_path, flush="interval 3600s") as mq, mq.producer() as producer:
        receipts = [producer.send("orders", b"%d" % number) for number in range(10)]
        assert len(table(FerromqLogSource, {"path": tmp_path})) == 0
        assert len(table(FerromqLogSource, {"path": file})) == 0
        mq.configure(flush="group")
        receipts.append(producer.send("orders", b"last"))
        rows = table(FerromqLogSource, {"path": tmp_path}).to_pylist()
        assert {(row["queue_id"], row["queue_offset"], row["message_id"]) for row in rows} == {
            (receipt.queue_id, receipt.queue_offset, receipt.message_id) for receipt in receipts
        }
        assert table(FerromqLogSource, {"path": file}).to_pylist() == rows


def test_expired_messages_are_read_only_with_the_option(tmp_path: Path, table: Table) -> None:
    """So a topic that was created again has each queue offset once."""
    with ferromq.embedded(tmp_path, flush="group") as mq, mq.producer() as producer, mq.admin() as admin:
        producer.send("orders", b"old")
        admin.delete_topic("orders")
        admin.create_topic("orders")
        producer.send("orders", b"new")
    assert table(FerromqLogSource, {"path": tmp_path})["body"].to_pylist() == [b"new"]
    every = table(FerromqLogSource, {"path": tmp_path, "includeExpired": "true"})
    assert every["body"].to_pylist() == [b"old", b"new"]


def test_a_stream_of_files_is_refused() -> None:
    """The error names the alternatives."""
    with pytest.raises(ConfigError, match="'ferromq-log' has no stream"):
        FerromqLogSource({"path": "/x"}).streamReader(None)
