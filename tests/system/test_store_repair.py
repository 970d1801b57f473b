"""`store_tools.plan_repair` and `ferromq store verify --repair`: what derives from the log is derived again."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ferromq import store_tools
from ferromq._ferromq import Clock, RecoveryProgress, Store, StoreLock
from ferromq.errors import StoreLocked
from ferromq.store_tools import repairs

MESSAGES = 300
Fault = Callable[[Path], object]


def open_store(directory: Path) -> Store:
    """Open a store of small files."""
    return Store(
        str(directory),
        Clock.system(),
        commit_log_file_size=16 << 10,
        consume_queue_file_entries=100,
        index_slots=100,
        index_entries=400,
        disk_reserve=0,
    )


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a closed store of 300 messages in two queues."""
    directory = tmp_path_factory.mktemp("repair") / "store"
    store = open_store(directory)
    for number in range(MESSAGES):
        store.append("orders", number % 2, b"body %d" % number, {"KEYS": f"k{number}", "TAGS": "t"})
    store.close()
    (directory / "config" / "topics.json").write_text('{"topicConfigTable": {}}')
    (directory / "config" / "topics.json.bak").write_text('{"topicConfigTable": {}}')
    return directory


@pytest.fixture
def store(made: Path, tmp_path: Path) -> Path:
    """Copy the store, to plant faults in it."""
    return Path(shutil.copytree(made, tmp_path / "store"))


def change(path: Path, at: int, value: bytes) -> None:
    """Write bytes into a file."""
    with path.open("r+b") as file:
        file.seek(at)
        file.write(value)


def queue(directory: Path) -> Path:
    """Return the first file of a queue."""
    return directory / "consumequeue" / "orders" / "0" / f"{0:020}"


def first_index(directory: Path) -> Path:
    """Return the first file of the index."""
    return min((directory / "index").iterdir())


def tail(directory: Path) -> None:
    """Write rubbish behind the last record."""
    end = store_tools.stat(directory).log.end
    name = max(path for path in (directory / "commitlog").iterdir() if int(path.name) <= end)
    change(name, end - int(name.name), b"rubbish" * 20)


def unfinished(directory: Path) -> None:
    """Store two records as one, and lose the second in a kill: the store drops both."""
    opened = open_store(directory)
    before = {name: (directory / name).read_bytes() for name in ("ferromq/flushed", "ferromq/queues", "checkpoint")}
    ((_, _, _), (_, last, size)) = opened.append_as_one(
        [{"topic": "orders", "queue_id": queue_id, "body": b"as one"} for queue_id in (0, 1)]
    )
    killed = Path(shutil.copytree(directory, directory.with_name("killed")))
    opened.close()
    shutil.rmtree(directory)
    killed.rename(directory)
    for file, content in before.items():
        (directory / file).write_bytes(content)
    name = max(path for path in (directory / "commitlog").iterdir() if int(path.name) <= last)
    change(name, last - int(name.name), bytes(size))


def bodies(directory: Path) -> list[bytes]:
    """Return all bodies as a start serves them."""
    opened = open_store(directory)
    found = []
    for queue_id in (0, 1):
        offset = 0
        while offset < opened.max_offset("orders", queue_id):
            _, messages, offset = opened.get("orders", queue_id, offset, 1000)
            found += [message.body for message in messages]
    assert opened.query_by_key("orders", "k5")
    opened.close()
    return sorted(found)


FAULTS: dict[str, tuple[str, Fault]] = {
    "entry-without-record": ("rebuild-queue", lambda store: change(queue(store), 40, b"\x00\x00\x00\x00\x00\xff")),
    "entry-of-other-record": (
        "rebuild-queue",
        lambda store: change(queue(store), 20, queue(store).read_bytes()[60:80]),
    ),
    "entry-size": ("rebuild-queue", lambda store: change(queue(store), 31, b"\x01")),
    "entry-tag-hash": ("rebuild-queue", lambda store: change(queue(store), 19, b"\x01")),
    "record-without-entry": ("rebuild-queue", lambda store: shutil.rmtree(queue(store).parent)),
    "queue-gap": ("rebuild-queue", lambda store: change(queue(store), 400, bytes(200))),
    "filler-inside": (
        "rebuild-queue",
        lambda store: change(queue(store), 40, bytes(8) + b"\x7f\xff\xff\xff" + bytes(8)),
    ),
    "queue-short": ("rebuild-queue", lambda store: max(queue(store).parent.iterdir()).unlink()),
    "index-other-key": ("rebuild-index", lambda store: change(first_index(store), 40 + 400 + 20, b"\x11\x11\x11\x11")),
    "index-entry-without-record": (
        "rebuild-index",
        lambda store: change(first_index(store), 40 + 400 + 24, b"\x00\x00\x00\x00\x00\xff"),
    ),
    "key-not-indexed": ("rebuild-index", lambda store: first_index(store).unlink()),
    "index-chain": ("rebuild-index", lambda store: change(first_index(store), 40, b"\x00\x00\x00\x07" * 20)),
    "index-header": ("rebuild-index", lambda store: change(first_index(store), 0, b"\x7f")),
    "checkpoint-beyond-log": ("set-aside", lambda store: change(store / "checkpoint", 32, b"\x00\x7f")),
    "torn-tail": ("cut-tail", tail),
    "unfinished": ("cut-tail", unfinished),
    "config": ("restore", lambda store: (store / "config" / "topics.json").write_text("{")),
    "own-file": ("set-aside", lambda store: (store / "ferromq" / "queues").write_bytes(b"FMQQUEU1 and rubbish")),
}


@pytest.mark.parametrize("kind", FAULTS)
def test_what_derives_from_the_log_is_mended(kind: str, store: Path, made: Path) -> None:
    """The plan names the step, writes nothing, and its application leaves a sound store without a lost message."""
    action, plant = FAULTS[kind]
    before = bodies(Path(shutil.copytree(made, store.with_name("before"))))
    plant(store)
    files = {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}
    repair = store_tools.plan_repair(store)
    assert kind in repair.before.findings
    assert action in {step.action for step in repair.steps}
    assert {path: path.read_bytes() for path in store.rglob("*") if path.is_file()} == files
    progress: list[tuple[int, int]] = []
    recovery = RecoveryProgress()

    @contextlib.contextmanager
    def opening() -> Iterator[RecoveryProgress]:
        yield recovery
        assert not progress
        assert recovery.bytes()[1] > 0

    report = repair.apply(on_progress=lambda done, total: progress.append((done, total)), opening=opening)
    assert report.is_sound, (report.after.findings, repair.steps)
    done, total = progress[-1]
    assert 0 < done == total
    assert report.quarantine is not None
    assert bodies(store) == before
    assert not store_tools.plan_repair(store).steps


@pytest.mark.parametrize("kind", ["queue-gap", "torn-tail", "config"])
def test_damaged_files_are_kept(kind: str, store: Path) -> None:
    """In the quarantine, as they were."""
    FAULTS[kind][1](store)
    damaged = {path.name: path.read_bytes() for path in store.rglob("*") if path.is_file()}
    report = store_tools.plan_repair(store).apply()
    assert report.quarantine is not None
    kept = [path for path in report.quarantine.rglob("*") if path.is_file()]
    assert kept
    for path in kept:
        if kind == "torn-tail":
            assert path.read_bytes().startswith(b"rubbish" * 20)
        else:
            assert path.name in damaged


@pytest.mark.parametrize("kind", ["queue-gap", "torn-tail", "config"])
def test_what_was_moved_aside_is_on_disk_before_the_store_is_opened(
    kind: str, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The open cuts the log: after a power cut the quarantine has the only copy of a tail."""
    FAULTS[kind][1](store)
    synced = set[int]()
    monkeypatch.setattr("os.fsync", lambda file: synced.add(os.fstat(file).st_ino))
    written = {"torn-tail": "quarantine/*/commitlog/*", "config": "config/topics.json", "queue-gap": "consumequeue"}
    places = {"torn-tail": "commitlog", "config": "config", "queue-gap": "consumequeue/orders"}
    unsynced: list[Path] = []

    @contextlib.contextmanager
    def opening() -> Iterator[None]:
        (aside,) = (store / repairs.QUARANTINE).iterdir()
        moved = aside / places[kind]
        folders = [path for path in (moved, *moved.parents) if path.is_relative_to(store)]
        (file,) = store.glob(written[kind])
        needed = [*folders, store / places[kind], *([file] if file.is_file() else [])]
        unsynced.extend(path for path in needed if path.stat().st_ino not in synced)
        yield

    store_tools.plan_repair(store).apply(opening=opening)
    assert not unsynced


def test_what_the_log_lost_is_listed(store: Path) -> None:
    """A damaged body cannot be mended: it is listed before and after, and the rebuilt queue has no entry of it."""
    change(store / "commitlog" / f"{0:020}", 90, b"\x21")
    change(queue(store), 31, b"\x01")
    repair = store_tools.plan_repair(store)
    assert [finding.kind for finding in repair.lost] == ["body-checksum"]
    report = repair.apply()
    assert not report.is_sound
    assert {finding.kind for finding in report.left} == {"body-checksum", "record-without-entry"}


def test_an_open_store_is_refused(store: Path) -> None:
    """At the plan, and at the application."""
    change(queue(store), 31, b"\x01")
    repair = store_tools.plan_repair(store)
    lock = StoreLock(str(store))
    with pytest.raises(StoreLocked, match="stop it, then repair"):
        store_tools.plan_repair(store)
    with pytest.raises(StoreLocked, match="stop it, then repair"):
        repair.apply()
    lock.close()
    assert repair.apply().is_sound


def test_a_queue_that_the_log_has_passed_continues(store: Path) -> None:
    """Where it was: an offset is used once, also if nothing of the queue can be derived any more."""
    opened = open_store(store)
    for _ in range(10):
        opened.append("young", 0, b"x" * 10_000)
    opened.close()
    end = store_tools.stat(store).log.end
    for path in (store / "commitlog").iterdir():
        if int(path.name) < end - (64 << 10):
            path.unlink()
    change(max(queue(store).parent.iterdir()), 400, b"\x7f")
    assert [step.action for step in store_tools.plan_repair(store).steps] == ["rebuild-queue"]
    assert store_tools.plan_repair(store).apply().is_sound
    opened = open_store(store)
    assert opened.max_offset("orders", 0) == MESSAGES // 2
    opened.close()


def test_a_rebuilt_queue_has_files_of_the_same_size(store: Path) -> None:
    """Those of the queues that were moved aside."""
    for queue_id in ("0", "1"):
        change(queue(store).parents[1] / queue_id / queue(store).name, 31, b"\x01")
    sizes = {path.name: path.stat().st_size for path in queue(store).parent.iterdir()}
    assert store_tools.plan_repair(store).apply().is_sound
    assert {path.name: path.stat().st_size for path in queue(store).parent.iterdir()} == sizes


def damage(path: Path, backup: str | None = None) -> None:
    """Damage a small file; *backup*: the content of its backup, else it has none."""
    path.write_text("{damaged")
    kept = path.with_name(f"{path.name}.bak")
    kept.unlink(missing_ok=True)
    if backup is not None:
        kept.write_text(backup)


LOST: dict[str, tuple[str, Fault]] = {
    "users": ("ferromq/access.json", lambda store: damage(store / "ferromq" / "access.json", '{"users": []}')),
    **{
        name: (f"config/{name}.json", lambda store, name=name: damage(store / "config" / f"{name}.json"))  # type: ignore[misc]
        for name in ("topics", "subscriptionGroup", "consumerOffset")
    },
}


@pytest.mark.parametrize("case", LOST)
def test_what_nothing_derives_is_not_set_aside(case: str, store: Path) -> None:
    """Users, and tables without a backup: each is listed, stays where it is, and the exit code is 1."""
    name, plant = LOST[case]
    plant(store)
    content = (store / name).read_bytes()
    repair = store_tools.plan_repair(store)
    assert [finding.file for finding in repair.lost] == [store / name]
    done = run(store, "--yes")
    assert done.returncode == 1, done.stderr
    assert name in done.stdout
    assert (store / name).read_bytes() == content
    assert not (store / "quarantine").exists()


def test_a_lost_table_is_put_back_first(store: Path) -> None:
    """A store does not open without it, so a damaged queue is not moved aside."""
    change(queue(store), 31, b"\x01")
    damage(store / "config" / "consumerOffset.json")
    assert not store_tools.plan_repair(store).steps
    assert "put the table back first" in run(store, "--dry-run").stdout
    (store / "config" / "consumerOffset.json").unlink()
    assert store_tools.plan_repair(store).apply().is_sound


UNREADABLE = ("config/topics.json", "ferromq/queues", f"consumequeue/orders/0/{0:020}", "checkpoint")


@pytest.mark.parametrize("name", UNREADABLE)
def test_what_cannot_be_read_stays(name: str, store: Path) -> None:
    """A disk error or a permission is no damage of the file: it is listed, and not moved."""
    path = store / name
    path.unlink()
    path.mkdir()
    repair = store_tools.plan_repair(store)
    assert repair.lost_count
    assert path not in {step.path for step in repair.steps}
    assert path.parent not in {step.path for step in repair.steps}


def missing_file(store: Path) -> None:
    """Remove a file from the middle of the log."""
    sorted((store / "commitlog").iterdir())[1].unlink()


def short_file(store: Path) -> None:
    """Make a queue file end within an entry."""
    with queue(store).open("r+b") as file:
        file.truncate(1990)


def test_a_missing_file_of_the_log_is_listed(store: Path) -> None:
    """It cannot be mended; the other messages are served."""
    missing_file(store)
    repair = store_tools.plan_repair(store)
    assert "missing-file" in {finding.kind for finding in repair.lost}
    assert not repair.apply().is_sound


def test_a_short_queue_file_is_rebuilt(store: Path, made: Path) -> None:
    """From the log, without a loss."""
    before = bodies(Path(shutil.copytree(made, store.with_name("before"))))
    short_file(store)
    repair = store_tools.plan_repair(store)
    assert "file-size" in repair.before.findings
    assert repair.apply().is_sound
    assert bodies(store) == before


def test_a_java_store_is_mended(tmp_path: Path) -> None:
    """A lost queue and a lost index of a store that RocketMQ closed."""
    fixtures = Path(__file__).parents[1] / "fixtures" / "store"
    made = next(path.parent for path in sorted(fixtures.rglob("commitlog")) if store_tools.stat(path.parent).topics)
    java = Path(shutil.copytree(made, tmp_path / "java"))
    topic = next(iter(store_tools.stat(java).topics))
    shutil.rmtree(java / "consumequeue" / topic)
    report = store_tools.plan_repair(java).apply()
    assert "record-without-entry" not in report.after.findings
    assert list(store_tools.diff(made, java)) == []


def test_both_verifications_use_the_threads(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the repair and after it."""
    asked, verify = list[int](), repairs.verify

    def counted(*arguments: Any, **options: Any) -> Any:
        asked.append(options["threads"])
        return verify(*arguments, **options)

    monkeypatch.setattr(repairs, "verify", counted)
    store_tools.plan_repair(store, threads=2).apply()
    assert asked == [2, 2]


def run(*words: object) -> subprocess.CompletedProcess[str]:
    """Run `ferromq store verify --repair …`."""
    command = [sys.executable, "-m", "ferromq", "store", "verify", "--repair", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, stdin=subprocess.DEVNULL)


def test_the_command_shows_its_plan_and_asks(store: Path) -> None:
    """`--dry-run` writes nothing; without a terminal it takes `--yes`; exit code 0 once the store is sound."""
    change(queue(store), 31, b"\x01")
    dry = run(store, "--dry-run")
    assert dry.returncode == 1
    assert "rebuild-queue  consumequeue/orders/0" in dry.stdout
    assert dry.stdout.endswith("\nnot sound\n")
    refused = run(store)
    assert refused.returncode == 2
    assert "--yes" in refused.stderr
    assert not (store / "quarantine").exists()
    done = run(store, "--yes")
    assert (done.returncode, done.stderr) == (0, "")
    assert "moved aside" in done.stdout
    assert done.stdout.endswith("sound\n")
    again = json.loads(run(store, "--yes", "--json").stdout)
    assert (again["steps"], again["is_sound"]) == ([], True)
    assert run(store, "--dry-run").stdout == "sound\n"
