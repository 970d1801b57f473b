"""Changes of a broker's tables are on disk before they count: one write for all, a journal for large tables."""

import errno
import json
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ferromq.broker.metadata.topics import TopicConfig, TopicTable
from ferromq.config.broker import BrokerConfig
from ferromq.files import atomic
from ferromq.files.table_journal import Journal

NOW = 1_700_000_000_000
PATIENCE = 20


def table_of(directory: Path, pushed: list[Any] | None = None) -> TopicTable:
    """Return the topics of the broker in *directory*."""
    config = BrokerConfig()
    told = [] if pushed is None else pushed
    return TopicTable(
        lambda: config, directory, lambda: NOW, lambda name, topic: told.append((name, topic)), lambda *_: None
    )


def large(directory: Path) -> TopicTable:
    """Return a table that is large enough for a journal."""
    table = table_of(directory)
    table.put_all([(TopicConfig(f"many-{number}", 1, 1), {}) for number in range(300)], "peer")
    return table


def in_file(directory: Path) -> set[str]:
    """Return the topics of RocketMQ's file."""
    return set(json.loads((directory / "config" / "topics.json").read_text())["topicConfigTable"])


def journal(directory: Path) -> Path:
    """Return where the journal is."""
    return directory / "ferromq" / "topics.journal"


def full(*_: Any) -> None:
    """Fail as a full disk does."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class Gate:
    """Holds the first write back until it is opened, and counts writes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fail: Callable[..., None] | None = None) -> None:
        self.begun, self.go_on, self.writes = threading.Event(), threading.Event(), 0
        write = atomic.replace_file

        def held(path: Path, content: bytes) -> None:
            self.writes += 1
            if self.writes == 1:
                self.begun.set()
                assert self.go_on.wait(PATIENCE)
                if fail is not None:
                    fail()
            write(path, content)

        monkeypatch.setattr(atomic, "replace_file", held)


def put_together(table: TopicTable, gate: Gate, names: list[str]) -> dict[str, Exception | None]:
    """Put the first topic, the others during its write, and return each result."""
    ended: dict[str, Exception | None] = {}

    def put(name: str) -> None:
        try:
            table.put(TopicConfig(name, 1, 1), {}, "peer")
        except OSError as error:
            ended[name] = error
        else:
            ended[name] = None

    threads = [threading.Thread(target=put, args=(name,)) for name in names]
    threads[0].start()
    assert gate.begun.wait(PATIENCE)
    for thread in threads[1:]:
        thread.start()
    until_decided(table, names)
    gate.go_on.set()
    for thread in threads:
        thread.join(PATIENCE)
    return ended


def until_decided(table: TopicTable, names: list[str]) -> None:
    """Wait until each change but the first is decided and waits for its write."""
    deadline = threading.Event()
    for _ in range(PATIENCE * 100):
        waiting = table._table._batch.content
        if waiting is not None and all(name in waiting.entries for name in names):
            return
        deadline.wait(0.01)
    raise AssertionError("the changes were not decided")


def test_one_write_covers_all_that_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing counts before it is on disk."""
    pushed: list[Any] = []
    table, gate = table_of(tmp_path, pushed), Gate(monkeypatch)
    names = [f"t{number}" for number in range(10)]
    ended = put_together(table, gate, names)
    assert ended == dict.fromkeys(names)
    assert gate.writes == 2
    assert sorted(name for name, _ in pushed) == names
    assert in_file(tmp_path) >= set(names)


def test_a_write_that_fails_fails_all_it_covers_and_leaves_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Later changes on top of it fail, too; the next change finds the old table."""
    pushed: list[Any] = []
    table, gate = table_of(tmp_path, pushed), Gate(monkeypatch, full)
    ended = put_together(table, gate, ["a", "b", "c"])
    assert {name: type(error) for name, error in ended.items()} == dict.fromkeys("abc", OSError)
    assert pushed == []
    assert not {"a", "b", "c"} & set(table.content.entries)
    table.put(TopicConfig("d", 1, 1), {}, "peer")
    assert table.find("a") is None
    assert "d" in in_file(tmp_path)
    assert not {"a", "b", "c"} & in_file(tmp_path)


def test_a_change_of_a_large_table_is_one_line_and_survives_a_kill(tmp_path: Path) -> None:
    """RocketMQ's file follows at the next merge_journal, and at the stop."""
    table = large(tmp_path)
    table.ensure("new", "peer")
    table.put(TopicConfig("many-7", 5, 5), {"message.type": "FIFO"}, "peer")
    table.delete("many-8", "peer")
    table.ensure("gone", "peer")
    table.delete("gone", "peer")
    assert not {"new"} & in_file(tmp_path)
    assert len(journal(tmp_path).read_bytes().splitlines()) == 6
    again = table_of(tmp_path)
    assert again.content.entries == table.content.entries
    assert again.content.version == table.content.version
    assert "new" in in_file(tmp_path)
    again.ensure("newer", "peer")
    assert "newer" not in in_file(tmp_path)
    again.merge_journal()
    assert "newer" in in_file(tmp_path)
    again.ensure("newest", "peer")
    again.close()
    assert "newest" in in_file(tmp_path)
    assert not journal(tmp_path).exists()


def test_a_torn_line_ends_the_journal(tmp_path: Path) -> None:
    """It was never acknowledged."""
    large(tmp_path).ensure("new", "peer")
    with journal(tmp_path).open("ab") as file:
        file.write(b'00000000 {"put":{"half')
    again = table_of(tmp_path)
    assert again.find("new") is not None
    again.ensure("next", "peer")
    assert table_of(tmp_path).find("next") is not None


def test_a_journal_is_not_used_over_a_file_that_another_broker_wrote(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its base file is gone; with a log line."""
    large(tmp_path).ensure("new", "peer")
    file = tmp_path / "config" / "topics.json"
    theirs = json.loads(file.read_text())
    theirs["topicConfigTable"]["theirs"] = {"readQueueNums": 1, "writeQueueNums": 1}
    file.write_text(json.dumps(theirs))
    again = table_of(tmp_path)
    assert again.find("theirs") is not None
    assert again.find("new") is None
    assert "journal ignored" in caplog.text
    again.ensure("next", "peer")
    assert table_of(tmp_path).find("next") is not None


def test_a_damaged_file_is_told_and_its_backup_is_used_with_the_journal(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The log names both; the backup outlives the next write, and the damaged file is kept."""
    table = large(tmp_path)
    table.merge_journal()
    table.put_all([(TopicConfig(f"more-{number}", 1, 1), {}) for number in range(400)], "peer")
    table.merge_journal()
    table.ensure("new", "peer")
    file = tmp_path / "config" / "topics.json"
    file.write_text("{ damaged")
    caplog.set_level(logging.INFO)
    again = table_of(tmp_path)
    assert again.find("many-7") is not None
    assert again.find("new") is not None
    [record] = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert all(str(path) in record.getMessage() for path in (file, file.with_name("topics.json.bak")))
    assert file.with_name("topics.json.damaged").read_text() == "{ damaged"
    assert "new" in in_file(tmp_path)


def test_a_line_that_is_not_written_harms_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The change fails without an effect; those before and after it survive a kill."""
    table = large(tmp_path)
    table.ensure("before", "peer")
    with monkeypatch.context() as patched:
        patched.setattr(os, "fdatasync", full)
        with pytest.raises(OSError, match="No space"):
            table.ensure("lost", "peer")
    assert table.find("lost") is None
    table.ensure("after", "peer")
    again = table_of(tmp_path)
    assert again.find("before") is not None
    assert again.find("after") is not None
    assert again.find("lost") is None


@pytest.mark.parametrize(("module", "call"), [(os, "fdatasync"), (atomic, "sync_directory")])
def test_a_journal_that_cannot_begin_begins_with_the_next_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: Any, call: str
) -> None:
    """Without its first line, or its place in the directory, all that was acknowledged later would be lost."""
    table = large(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(module, call, full)
        with pytest.raises(OSError, match="No space"):
            table.ensure("lost", "peer")
    assert not journal(tmp_path).exists()
    table.ensure("after", "peer")
    again = table_of(tmp_path)
    assert again.find("after") is not None
    assert again.find("lost") is None


def test_a_kill_between_the_file_and_the_new_journal_warns_of_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The file has all changes of the old journal."""
    table = large(tmp_path)
    table.ensure("new", "peer")
    table.delete("many-8", "peer")
    with monkeypatch.context() as patched:
        patched.setattr(Journal, "begin", lambda *_: None)
        table.merge_journal()
    again = table_of(tmp_path)
    assert again.content.entries == table.content.entries
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_full_disk_keeps_the_journal_and_stops_no_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The table is there; it is written once there is space."""
    large(tmp_path).ensure("new", "peer")
    with monkeypatch.context() as patched:
        patched.setattr(atomic, "replace_file", full)
        again = table_of(tmp_path)
        assert again.find("new") is not None
        assert "journal stays" in caplog.text
        with pytest.raises(OSError, match="No space"):
            again.ensure("refused", "peer")
    assert table_of(tmp_path).find("new") is not None
