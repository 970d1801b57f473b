"""Backups of stores that are stopped, open, under load and interrupted: a start on the copy finds everything."""

import contextlib
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Self

import pytest
from dispatching import dispatched
from hypothesis import given, settings
from hypothesis import strategies as st

import ferromq
from ferromq import store_tools
from ferromq._ferromq import Clock, Store, flushed_end
from ferromq.errors import StoreError, StoreFull, StoreLocked
from ferromq.store_tools import backups as module

SMALL = {"commit_log_file_size": 64 << 10, "consume_queue_file_entries": 100, "disk_reserve": 0}
FAST = {"progress_interval": timedelta(seconds=0.05)}
BODY = b"x" * 500
FIXTURES = Path(__file__).parents[1] / "fixtures" / "store"


def open_store(directory: Path, clock: Clock | None = None) -> Store:
    """Open a store of small files that answers a backup quickly."""
    return Store(str(directory), clock or Clock.system(), **SMALL, **FAST)  # type: ignore[arg-type]


def fill(store: Store, count: int, topic: str = "orders") -> None:
    """Store *count* messages in two queues, and wait until they are there."""
    for number in range(count):
        store.append(topic, number % 2, b"%d " % number + BODY, {"KEYS": f"k{number}"})
    dispatched(store)


def content(directory: Path, topic: str = "orders") -> list[tuple[int, int, bytes]]:
    """Return queue, offset and body of each message, as a start on the directory serves them."""
    store = open_store(directory)
    found = []
    for queue_id in store.queues()[topic]:
        offset = store.min_offset(topic, queue_id)
        while offset < store.max_offset(topic, queue_id):
            _, messages, offset = store.get(topic, queue_id, offset, 1000)
            found += [(queue_id, message.queue_offset, message.body) for message in messages]
    store.close()
    return found


def is_sound(directory: Path) -> bool:
    """Verify a directory; the findings are in the output of a failed test."""
    with store_tools.verify(directory) as verification:
        for finding in verification:
            print(finding)  # noqa: T201
        return verification.report.is_sound


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Make a closed store of 300 messages and a committed offset."""
    store = open_store(tmp_path / "store")
    fill(store, 300)
    store.commit_offset("g", "orders", 0, 77)
    store.close()
    return tmp_path / "store"


def test_the_copy_of_a_stopped_store_is_the_store(source: Path, tmp_path: Path) -> None:
    """Messages, offsets, and a clean last stop."""
    before = content(source)
    report = store_tools.backup(source, tmp_path / "copy")
    assert not report.was_open
    assert is_sound(tmp_path / "copy")
    assert store_tools.stat(tmp_path / "copy").last_stop == "clean"
    assert content(tmp_path / "copy") == before
    store = open_store(tmp_path / "copy")
    assert store.committed_offset("g", "orders", 0) == 77
    store.close()


def test_an_open_store_is_asked_for_its_progress(tmp_path: Path) -> None:
    """An offset that was committed just before the call, and the last message, are in the copy."""
    store = Store(str(tmp_path / "store"), Clock.system(), **SMALL, progress_interval=timedelta(seconds=0.5))  # type: ignore[arg-type]
    fill(store, 300)
    store.commit_offset("g", "orders", 0, 150)
    report = store_tools.backup(tmp_path / "store", tmp_path / "copy")
    fill(store, 10)
    store.close()
    assert report.was_open
    assert is_sound(tmp_path / "copy")
    assert len(content(tmp_path / "copy")) == 300
    copy = open_store(tmp_path / "copy")
    assert copy.committed_offset("g", "orders", 0) == 150
    copy.close()
    assert not (tmp_path / "store" / module.ASKED).exists()


class Load:
    """Sends, acknowledges, and deletes old files and topics until its end."""

    def __init__(self, mq: ferromq.Embedded) -> None:
        self.mq, self.stop = mq, threading.Event()
        self.sent: dict[tuple[int, int], bytes] = {}
        self._threads = [threading.Thread(target=work) for work in (self._send, self._receive, self._delete)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        for thread in self._threads:
            thread.join()

    def _send(self) -> None:
        with self.mq.producer() as producer:
            while not self.stop.is_set():
                body = b"%d " % len(self.sent) + BODY
                receipt = producer.send("orders", body)
                self.sent[receipt.queue_id, receipt.queue_offset] = body
                self.stop.wait(0.002)

    def _receive(self) -> None:
        with self.mq.consumer("g", "orders") as consumer:
            while not self.stop.is_set():
                for message in consumer.messages(idle=0.2):
                    consumer.ack(message)

    def _delete(self) -> None:
        while not self.stop.is_set():
            self.mq.store.clean()
            fill(self.mq.store, 3, "brief")
            self.mq.store.delete_topic("brief")
            self.stop.wait(0.2)


def test_a_backup_under_load(tmp_path: Path, eventually: Callable[[Callable[[], bool]], bool]) -> None:
    """Sends, acknowledgements, deletions of old files and of topics go on: nothing acknowledged before is lost."""
    limits = {"retention_age": "forever", "retention_total_bytes": "512KiB"}
    with ferromq.embedded(tmp_path / "store", **limits, **SMALL, **FAST) as mq:  # type: ignore[arg-type]
        with mq.admin() as admin:
            admin.create_topic("orders", queues=2)
        fill(mq.store, 1000)
        with Load(mq) as load:
            assert eventually(lambda: mq.store.min_offset("orders", 0) > 0 and len(load.sent) > 10)
            assert eventually(lambda: "orders@g" in mq.store.committed_offsets("g", "orders"))
            for _ in range(2):
                acknowledged = dict(load.sent)
                progress = mq.store.committed_offsets("g", "orders")["orders@g"]
                assert store_tools.backup(tmp_path / "store", tmp_path / "copy").was_open
                kept = [mq.store.min_offset("orders", queue_id) for queue_id in (0, 1)]
                assert is_sound(tmp_path / "copy")
    found = {(queue_id, offset): body for queue_id, offset, body in content(tmp_path / "copy")}
    lost = [at for at, body in acknowledged.items() if found.get(at) != body and at[1] >= kept[at[0]]]
    assert not lost, f"{len(lost)} of {len(acknowledged)} are lost, first {lost[0]}"
    copy = open_store(tmp_path / "copy")
    for queue_id, offset in progress.items():
        committed = copy.committed_offset("g", "orders", queue_id)
        assert committed is not None
        assert offset <= committed <= copy.max_offset("orders", queue_id)
    copy.close()


def test_a_second_backup_copies_what_is_new(source: Path, tmp_path: Path) -> None:
    """From a stopped store and from an open one; what the source deleted goes."""
    first = store_tools.backup(source, tmp_path / "copy")
    store = open_store(source)
    fill(store, 100)
    second = store_tools.backup(source, tmp_path / "copy")
    assert second.copied_bytes < first.copied_bytes
    assert second.kept_bytes > 0
    (source / "config" / "strange.json").write_text("{}")
    store_tools.backup(source, tmp_path / "copy")
    (source / "config" / "strange.json").unlink()
    fill(store, 100)
    third = store_tools.backup(source, tmp_path / "copy")
    store.close()
    assert third.kept_bytes > second.kept_bytes
    assert not (tmp_path / "copy" / "config" / "strange.json").exists()
    assert is_sound(tmp_path / "copy")
    assert content(tmp_path / "copy") == content(source)


def test_the_log_of_a_stopped_store_ends_where_ferromq_noted(source: Path, tmp_path: Path) -> None:
    """What follows is not copied, unless a Java broker has written there since."""
    copy, mark, old = tmp_path / "copy", source / "ferromq" / "flushed", (source / "ferromq" / "flushed").read_bytes()
    files = sorted((source / "commitlog").iterdir())
    first = store_tools.backup(source, copy)
    assert int(files[-2].name) < first.log_end < int(files[-1].name) + files[-1].stat().st_size
    assert first.log_end == flushed_end(str(source))
    again = store_tools.backup(source, copy)
    assert (again.log_end, again.kept_bytes >= first.log_end) == (first.log_end, True)
    assert again.copied_bytes <= first.copied_bytes - first.log_end
    store = open_store(source)
    fill(store, 10)
    store.close()
    mark.write_bytes(old)
    with_mark_of_before = store_tools.backup(source, copy)
    files = sorted((source / "commitlog").iterdir())
    assert with_mark_of_before.log_end == int(files[-1].name) + files[-1].stat().st_size
    assert is_sound(copy)
    assert content(copy) == content(source)


def test_a_target_of_something_else_is_refused(source: Path, tmp_path: Path) -> None:
    """A directory with files, the backup of another store, a backup that was opened, and a place in the store."""
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letter").write_text("dear")
    with pytest.raises(StoreError, match="not empty and no backup"):
        store_tools.backup(source, tmp_path / "other")
    assert (tmp_path / "other" / "letter").read_text() == "dear"
    store_tools.backup(source, tmp_path / "copy")
    second = open_store(tmp_path / "second")
    fill(second, 300)
    second.close()
    with pytest.raises(StoreError, match="backup of another store"):
        store_tools.backup(tmp_path / "second", tmp_path / "copy")
    assert content(tmp_path / "copy") == content(source)
    with pytest.raises(StoreError, match="a broker has opened it since"):
        store_tools.backup(source, tmp_path / "copy")
    for target in (tmp_path / "other" / "letter", tmp_path / "other" / "letter" / "copy"):
        with pytest.raises(StoreError, match="letter is not a directory; choose a new or empty directory as target"):
            store_tools.backup(source, target)
    for target in (source, source / "copy", tmp_path):
        with pytest.raises(StoreError, match="contain each other"):
            store_tools.backup(source, target)


def test_only_files_of_the_store_are_removed(source: Path, tmp_path: Path) -> None:
    """A file or another store that was put into a backup is named, and stays."""
    copy = tmp_path / "copy"
    store_tools.backup(source, copy)
    (copy / "notes").write_text("dear")
    with pytest.raises(StoreError, match=r"notes is not of this backup; move it out of"):
        store_tools.backup(source, copy)
    (copy / "notes").unlink()
    shutil.copytree(source, copy / "index" / "other")
    with pytest.raises(StoreError, match=r"other/lock is not of this backup"):
        store_tools.backup(source, copy)
    assert content(copy / "index" / "other") == content(source)


def test_the_copy_is_open_to_no_more_users_than_the_store(source: Path, tmp_path: Path) -> None:
    """A new target and its directories, and an empty one that exists."""
    source.chmod(0o700)
    (source / "ferromq").chmod(0o750)
    (tmp_path / "made").mkdir(mode=0o755)
    for name in ("new", "made"):
        store_tools.backup(source, tmp_path / name)
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o700
        assert (tmp_path / name / "ferromq").stat().st_mode & 0o777 == 0o750


@pytest.mark.parametrize("is_open", [False, True])
def test_a_log_with_a_missing_file_is_refused(tmp_path: Path, is_open: bool) -> None:
    """One in the middle, the last one, or all, because a directory of the log was not named."""
    paths = [tmp_path / name for name in ("one", "two")]
    store = Store(
        str(tmp_path / "store"), Clock.system(), commit_log_paths=[str(path) for path in paths], **SMALL, **FAST
    )  # type: ignore[arg-type]
    fill(store, 500)
    if not is_open:
        store.close()
    (tmp_path / "empty").mkdir()
    begin = tmp_path / "begin"
    begin.mkdir()
    first = min((path for folder in paths for path in folder.iterdir()), key=lambda path: path.name)
    shutil.copy(first, begin)
    for folder in (paths[0], begin, tmp_path / "empty"):
        with pytest.raises(
            StoreError, match=r"no file holds the physical offsets .*name each directory of the log \(--commit-log"
        ):
            store_tools.backup(tmp_path / "store", tmp_path / "copy", commit_log_paths=[folder])
    store_tools.backup(tmp_path / "store", tmp_path / "copy", commit_log_paths=paths)
    store.close()
    assert len(content(tmp_path / "copy")) == 500


def test_delayed_messages_are_delivered_once(
    tmp_path: Path, eventually: Callable[[Callable[[], bool]], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that fall due while a long backup runs are not delivered by the copy again."""
    monkeypatch.setattr(module, "_MOMENT", 0)
    clock = Clock.manual(1_700_000_000_000)
    with ferromq.embedded(tmp_path / "store", clock=clock, **SMALL, **FAST) as mq:  # type: ignore[arg-type]
        with mq.admin() as admin:
            admin.create_topic("timed", queues=1, message_type="DELAY")
        with mq.producer() as producer:
            for number in range(5):
                producer.send("timed", b"%d" % number, delay=60)
        assert eventually(lambda: mq.store.max_offset("rmq_sys_wheel_timer", 0) == 5)

        def fall_due(_done: int, _total: int) -> None:
            clock.advance(61_000)
            assert eventually(lambda: mq.store.max_offset("timed", 0) == 5)

        waits = [fall_due]
        store_tools.backup(tmp_path / "store", tmp_path / "copy", on_progress=lambda *at: waits and waits.pop()(*at))
    later = Clock.manual(clock.now_ms())
    with ferromq.embedded(tmp_path / "copy", clock=later, **SMALL) as mq:  # type: ignore[arg-type]
        with mq.producer() as producer:
            producer.send("timed", b"next", delay=60)
        later.advance(61_000)
        assert eventually(lambda: any(body == b"next" for *_, body in bodies(mq.store)))
        assert [body for *_, body in bodies(mq.store)] == [b"0", b"1", b"2", b"3", b"4", b"next"]


def bodies(store: Store) -> list[tuple[int, bytes]]:
    """Return offset and body of the messages that were delivered."""
    return [(message.queue_offset, message.body) for message in store.get("timed", 0, 0, 100)[1]]


BROKER = """
import sys, threading
from datetime import timedelta
import ferromq
small = {"commit_log_file_size": 64 << 10, "consume_queue_file_entries": 100, "disk_reserve": 0}
with ferromq.embedded(sys.argv[1], progress_interval=timedelta(seconds=0.05), **small) as mq:
    with mq.admin() as admin:
        admin.create_topic("timed", queues=1, message_type="DELAY")
    sent, stop = [], threading.Event()
    def send():
        with mq.producer() as producer:
            while not stop.is_set():
                producer.send("timed", b"%d" % len(sent), delay=0.2)
                sent.append(0)
    thread = threading.Thread(target=send)
    thread.start()
    for _ in sys.stdin:
        print(len(sent), flush=True)
    stop.set()
    thread.join()
"""


def test_timers_of_a_broker_in_another_process(
    tmp_path: Path, eventually: Callable[[Callable[[], bool]], bool]
) -> None:
    """Delayed messages are sent and delivered meanwhile: the copy delivers each that was sent before."""
    command = [sys.executable, "-c", BROKER, str(tmp_path / "store")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as broker:
        assert broker.stdin is not None
        assert broker.stdout is not None
        sent = 0
        while sent < 50:
            broker.stdin.write("\n")
            broker.stdin.flush()
            sent = int(broker.stdout.readline())
        report = store_tools.backup(tmp_path / "store", tmp_path / "copy")
        broker.stdin.close()
        assert broker.wait(timeout=30) == 0
    assert report.was_open
    assert is_sound(tmp_path / "copy")
    expected = {b"%d" % number for number in range(sent)}
    with ferromq.embedded(tmp_path / "copy", **SMALL) as mq:  # type: ignore[arg-type]
        assert eventually(lambda: expected <= {message.body for message in mq.store.get("timed", 0, 0, 10_000)[1]})


def test_a_topic_that_is_deleted_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between tables and queues: the copy has the offsets of after."""
    store = open_store(tmp_path / "store")
    fill(store, 20)
    store.commit_offset("g", "orders", 0, 10)
    copy_bulk = module._copy_bulk

    def delete(*args: object) -> set[str]:
        monkeypatch.setattr(module, "_copy_bulk", copy_bulk)
        store.delete_topic("orders")
        fill(store, 4)
        return copy_bulk(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "_copy_bulk", delete)
    store_tools.backup(tmp_path / "store", tmp_path / "copy")
    kept = [store.committed_offset("g", "orders", 0), store.min_offset("orders", 0), store.max_offset("orders", 0)]
    store.close()
    assert is_sound(tmp_path / "copy")
    copy = open_store(tmp_path / "copy")
    found = [copy.committed_offset("g", "orders", 0), copy.min_offset("orders", 0), copy.max_offset("orders", 0)]
    copy.close()
    assert found == kept


def test_a_backup_leaves_the_request_of_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If both ask, each waits for an answer of its own; a late one is not removed."""
    store = open_store(tmp_path / "store")
    fill(store, 4)
    asked, held = tmp_path / "store" / module.ASKED, []
    look = module._asks

    def other(path: Path) -> bytes | None:
        found = look(path)
        if found is None and not held:
            held.append(store.close())
            asked.write_text("another")
            found = look(path)
        return found

    monkeypatch.setattr(module, "_asks", other)
    assert module._ask(tmp_path / "store")
    assert asked.read_text() == "another"


def test_an_unfinished_backup_is_named(source: Path) -> None:
    """By `stat`, `verify` and `verify --repair`, which moves nothing."""
    (source / "consumequeue" / "orders" / "0" / f"{0:020}").unlink()
    (source / module.INCOMPLETE).write_text('{"format": 1, "log_end": 0}')
    before = sorted(source.rglob("*"))
    assert any("unfinished backup" in problem for problem in store_tools.stat(source).problems)
    with store_tools.verify(source) as verification:
        assert "unfinished-backup" in verification.report.findings
    with pytest.raises(StoreError, match="is an unfinished backup; run `ferromq store backup`"):
        store_tools.plan_repair(source)
    assert sorted(source.rglob("*")) == before


def test_no_store_and_an_unfinished_backup_are_refused_as_source(source: Path, tmp_path: Path) -> None:
    """Nothing is written there."""
    with pytest.raises(StoreError, match="no store directory"):
        store_tools.backup(tmp_path, tmp_path.parent / "elsewhere")
    assert not (tmp_path / "lock").exists()
    (source / module.INCOMPLETE).write_text("{}")
    with pytest.raises(StoreError, match="unfinished backup"):
        store_tools.backup(source, tmp_path / "copy")


def test_the_target_is_locked_while_it_is_written(source: Path, tmp_path: Path) -> None:
    """A broker that has it open is named; a stopped source cannot be opened meanwhile."""
    store_tools.backup(source, tmp_path / "copy")
    refused = []

    def look(_done: int, _total: int) -> None:
        for directory in (source, tmp_path / "next"):
            with pytest.raises((StoreLocked, StoreError)):
                open_store(directory)
            refused.append(directory)

    store_tools.backup(source, tmp_path / "next", on_progress=look)
    assert refused
    opened = open_store(tmp_path / "next")
    with pytest.raises(StoreError, match="a broker has opened it since"):
        store_tools.backup(source, tmp_path / "next")
    opened.close()


def test_a_full_target_is_named_and_finished_later(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The target is unfinished: a start refuses it, and asking again continues."""
    room, write = [400_000], os.pwrite

    def some(descriptor: int, data: bytes, at: int) -> int:
        room[0] -= len(data)
        if room[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, data, at)

    monkeypatch.setattr(os, "pwrite", some)
    monkeypatch.setattr(module, "_MARKED", 1)
    with pytest.raises(StoreFull, match="free some space and ask again"):
        store_tools.backup(source, tmp_path / "copy")
    monkeypatch.undo()
    with pytest.raises(StoreError, match="a complete backup; run `ferromq store backup` with this target again"):
        open_store(tmp_path / "copy")
    report = store_tools.backup(source, tmp_path / "copy")
    assert report.kept_bytes >= 64 << 10
    assert content(tmp_path / "copy") == content(source)


def test_an_interrupted_backup_continues_where_the_log_was_written(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last file of a stopped store is not full: what is stored there later is in the copy."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "_MARKED", 1)
    monkeypatch.setattr(module, "_write_small", interrupt)
    with pytest.raises(KeyboardInterrupt):
        store_tools.backup(source, tmp_path / "copy")
    monkeypatch.undo()
    store = open_store(source)
    fill(store, 100)
    store.close()
    assert store_tools.backup(source, tmp_path / "copy").kept_bytes > 0
    assert is_sound(tmp_path / "copy")
    assert content(tmp_path / "copy") == content(source)


KILLED = """
import os, signal, sys
from ferromq import store_tools
def kill(done, total):
    if done > int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)
store_tools.backup(sys.argv[1], sys.argv[2], on_progress=kill)
"""


@pytest.mark.crash
@pytest.mark.parametrize("after", [0, 5_000, 100_000])
def test_a_killed_backup_is_finished_by_asking_again(source: Path, tmp_path: Path, after: int) -> None:
    """Also one of an open store, whose backup.asked does not stay."""
    store = open_store(source)
    command = [sys.executable, "-c", KILLED, str(source), str(tmp_path / "copy"), str(after)]
    assert subprocess.run(command, check=False, timeout=30).returncode == -signal.SIGKILL
    with pytest.raises(StoreError, match="run `ferromq store backup`"):
        open_store(tmp_path / "copy")
    fill(store, 50)
    store_tools.backup(source, tmp_path / "copy")
    store.close()
    assert is_sound(tmp_path / "copy")
    assert content(tmp_path / "copy") == content(source)


HOLDER = """
import sys
from ferromq._ferromq import StoreLock
lock = StoreLock(sys.argv[1])
print("held", flush=True)
sys.stdin.readline()
"""


@contextlib.contextmanager
def held(directory: Path) -> Iterator[subprocess.Popen[str]]:
    """Hold the lock in another process, as a broker does that does not answer."""
    command = [sys.executable, "-c", HOLDER, str(directory)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_store_that_does_not_answer_is_named(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An older version, or a hung one: after the time limit, and without a trace in the store."""
    monkeypatch.setattr(module, "_PATIENCE", 0.2)
    with held(source), pytest.raises(StoreError, match="did not answer in 0 s"):
        store_tools.backup(source, tmp_path / "copy")
    assert not (source / module.ASKED).exists()


def test_a_store_that_stops_meanwhile_is_copied_as_stopped(source: Path, tmp_path: Path) -> None:
    """Its broker ends before it answers."""
    with held(source) as holder:
        threading.Timer(0.2, holder.kill).start()
        report = store_tools.backup(source, tmp_path / "copy")
    assert not report.was_open
    assert content(tmp_path / "copy") == content(source)


def test_an_open_java_broker_is_named(source: Path, tmp_path: Path) -> None:
    """It writes no mark of what is on disk."""
    (source / "abort").write_text("4711")
    with held(source), pytest.raises(StoreLocked, match=r"process 4711\): stop a Java broker"):
        store_tools.backup(source, tmp_path / "copy")


def test_a_source_that_cannot_be_read_is_named(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its file."""

    def fail(*_: object) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "pread", fail)
    with pytest.raises(OSError, match=f"{errno.EIO}.*{source}"):
        store_tools.backup(source, tmp_path / "copy")


@pytest.mark.parametrize("name", sorted(path.parent.name for path in FIXTURES.rglob("commitlog") if path.is_dir()))
def test_a_stopped_java_store_is_copied(name: str, tmp_path: Path) -> None:
    """Each store that RocketMQ made, with its messages and tables."""
    (made,) = (path.parent for path in FIXTURES.rglob("commitlog") if path.parent.name == name)
    java = Path(shutil.copytree(made, tmp_path / "java"))
    store_tools.backup(java, tmp_path / "copy")
    assert list(store_tools.diff(java, tmp_path / "copy")) == []
    assert store_tools.stat(tmp_path / "copy").last_stop == store_tools.stat(java).last_stop


def test_a_log_in_several_directories_becomes_one(tmp_path: Path) -> None:
    """The copy needs no option."""
    paths = [tmp_path / "one", tmp_path / "two"]
    store = Store(
        str(tmp_path / "store"),
        Clock.system(),
        **SMALL,
        commit_log_paths=[str(path) for path in paths],  # type: ignore[arg-type]
    )
    fill(store, 500)
    store.close()
    store_tools.backup(tmp_path / "store", tmp_path / "copy", commit_log_paths=paths)
    assert is_sound(tmp_path / "copy")
    assert len(content(tmp_path / "copy")) == 500


@settings(deadline=None)
@given(st.one_of(st.binary(max_size=60), st.dictionaries(st.text(max_size=9), st.integers()).map(json.dumps)))
def test_any_mark_is_read_or_refused(found: bytes | str) -> None:
    """Bytes and JSON: an end of the log, or a `StoreError`."""
    raw = found.encode() if isinstance(found, str) else found
    with contextlib.suppress(StoreError):
        assert module.read_mark(raw, Path("mark")) >= 0
    assert module.read_mark(b'{"format": 1, "log_end": 7}', Path("mark")) == 7


def test_the_command_tells_what_it_copied(source: Path, tmp_path: Path) -> None:
    """As text and as JSON, without a bar where no terminal is; a failure has the exit code 2."""

    def run(*words: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "ferromq", "store", "backup", *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)

    done = run(source, tmp_path / "copy")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"of           {source}, stopped\n" in done.stdout
    row = json.loads(run(source, tmp_path / "copy", "--json").stdout)
    assert (row["target"], row["was_open"]) == (str(tmp_path / "copy"), False)
    assert row["kept_bytes"] > 0
    refused = run(tmp_path / "none", tmp_path / "other")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "no store directory" in refused.stderr
