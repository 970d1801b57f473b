"""`ferromq store stat|verify|dump` as a user types it, and the functions beneath it."""

import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

import ferromq
from ferromq import store_tools
from ferromq._ferromq import Clock, Store
from ferromq.errors import StoreError

MESSAGES = 300
TIME = 1_700_000_000_000
FIXTURES = Path(__file__).parents[1] / "fixtures"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a closed store of 300 messages of two topics, one stored each second."""
    directory = tmp_path_factory.mktemp("tools") / "store"
    clock = Clock.manual(TIME)
    store = open_store(directory, clock)
    for number in range(MESSAGES):
        properties = {"KEYS": f"k{number} all", "TAGS": "even" if number % 2 == 0 else "odd"}
        store.append(("orders", "bills")[number % 3 == 0], number % 2, f"body {number}".encode(), properties)
        clock.advance(1000)
    store.append("orders", 0, b"\xff\x00", {"KEYS": "binary"})
    store.close()
    return directory


def open_store(directory: Path, clock: Clock) -> Store:
    """Open a store of small files."""
    return Store(
        str(directory),
        clock,
        commit_log_file_size=16 << 10,
        consume_queue_file_entries=100,
        index_slots=100,
        index_entries=400,
        disk_reserve=0,
    )


@pytest.fixture
def store(made: Path, tmp_path: Path) -> Path:
    """Copy the store, to plant faults in it."""
    subprocess.run(["cp", "-r", str(made), str(tmp_path / "store")], check=True)
    return tmp_path / "store"


def run(*words: object) -> subprocess.CompletedProcess[str]:
    """Run `ferromq store …`."""
    command = [sys.executable, "-m", "ferromq", "store", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def change(path: Path, at: int, value: int) -> None:
    """Write one byte."""
    with path.open("r+b") as file:
        file.seek(at)
        file.write(bytes([value]))


def test_stat_shows_what_is_in_a_store(made: Path) -> None:
    """Files, times, the last stop, and a row a queue."""
    done = run("stat", made)
    assert (done.returncode, done.stderr) == (0, "")
    assert "last stop    clean\n" in done.stdout
    assert "2023-11-14 22:13:20.000Z" in done.stdout
    rows = [line.split() for line in done.stdout.splitlines() if line.startswith(("orders", "bills"))]
    assert [(row[0], int(row[1]), int(row[4])) for row in rows] == [
        ("bills", 0, 50), ("bills", 1, 50), ("orders", 0, 101), ("orders", 1, 100),
    ]  # fmt: skip


def test_stat_for_programs(made: Path) -> None:
    """The same as one JSON object, and as Python objects."""
    row = json.loads(run("stat", made, "--json").stdout)
    summary = store_tools.stat(made)
    assert row["log"]["end"] == summary.log.end
    assert [queue["messages"] for queue in row["topics"]["orders"]] == [101, 100]
    assert summary.index.entries == 2 * MESSAGES + 1
    assert (summary.state, row["last_stop"]) == ("closed", "clean")
    assert summary.checkpoint is not None
    assert summary.checkpoint.durable_end == summary.log.end


def test_a_sound_store_is_verified_with_exit_code_0(made: Path) -> None:
    """The summary has the checked parts and no findings."""
    done = run("verify", made)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("sound\n")
    assert f"{MESSAGES + 1:,} records" in done.stdout
    report = json.loads(run("verify", made, "--json").stdout)["report"]
    assert (report["is_sound"], report["records"], report["queue_entries"]) == (True, MESSAGES + 1, MESSAGES + 1)


def test_findings_come_with_file_and_bytes_and_exit_code_1(store: Path) -> None:
    """A changed body and a changed queue entry: each a row, counted, in order."""
    log = store / "commitlog" / f"{0:020}"
    change(log, 90, 0x21)
    change(store / "consumequeue" / "bills" / "0" / f"{0:020}", 11, 1)
    done = run("verify", store)
    assert done.returncode == 1
    assert done.stdout.endswith("not sound\n")
    rows = [line for line in done.stdout.splitlines() if line.startswith(("body-checksum", "entry-size"))]
    assert [row.split()[:2] for row in rows] == [
        ["body-checksum", f"commitlog/{0:020}"],
        ["entry-size", f"consumequeue/bills/0/{0:020}"],
    ]
    *findings, last = [json.loads(line) for line in run("verify", store, "--json").stdout.splitlines()]
    assert {finding["finding"]["kind"] for finding in findings} == {"body-checksum", "entry-size"}
    assert last["report"]["findings"] == {"body-checksum": 1, "entry-size": 1}
    body = next(finding["finding"] for finding in findings if finding["finding"]["kind"] == "body-checksum")
    assert (body["file"], body["start"]) == (str(log), 0)


@pytest.mark.parametrize("action", [["stat"], ["verify"], ["dump", "--topic", "orders"]])
def test_an_unreadable_store_is_named_with_exit_code_2(action: list[str], tmp_path: Path) -> None:
    """No such directory, no store directory."""
    missing = run(*action, tmp_path / "nowhere")
    assert missing.returncode == 2
    assert "nowhere" in missing.stderr
    assert "No such file or directory" in missing.stderr
    other = run(*action, tmp_path)
    assert other.returncode == 2
    assert "no store directory" in other.stderr
    assert "commitlog" in other.stderr
    assert missing.stdout == other.stdout == ""


@pytest.mark.parametrize("action", [["stat"], ["verify"], ["dump", "--topic", "orders"]])
def test_a_missing_commit_log_is_named_with_exit_code_2(action: list[str], made: Path, tmp_path: Path) -> None:
    """A given directory is not skipped."""
    done = run(*action, made, "--commit-log", tmp_path / "none")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{tmp_path / 'none'} in commit_log_paths is not a directory" in done.stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ("verify", "--index-slots", "-5"),
            "Invalid value for '--index-slots': -5 is not in the range 1<=x<=268435455",
        ),
        (("verify", "--index-slots", "0"), "'--index-slots': 0 is not in the range"),
        (("stat", "--index-slots", "x"), "'--index-slots': 'x' is not a valid integer"),
        (("verify", "--threads", "99999999999"), "'--threads': 99999999999 is not in the range 0<=x<=1024"),
        (("dump", "--limit", "99999999999999999999999"), "'--limit': 99999999999999999999999 is no"),
        (("dump", "--queue", "x"), "'--queue': 'x' is not a valid integer"),
        (("dump", "--from-time", "0001-01-01"), "'--from-time': '0001-01-01' is no time as"),
        (("dump", "--to-time", "12345678901234567890123"), "'--to-time': '12345678901234567890123' is no"),
    ],
)
def test_an_invalid_number_is_named_with_exit_code_2(words: tuple[str, ...], told: str, made: Path) -> None:
    """With what it may be."""
    action, option, value = words
    topic = ["--topic", "orders"] if action == "dump" else []
    done = run(action, made, *topic, f"{option}={value}")
    assert (done.returncode, done.stdout) == (2, "")
    assert told in done.stderr
    assert "Traceback" not in done.stderr


def test_a_long_name_leaves_the_rows_of_others_as_they_are(tmp_path: Path) -> None:
    """It moves its own."""
    store = open_store(tmp_path / "store", Clock.manual(TIME))
    for topic in ("orders", "%RETRY%" + 150 * "g"):
        store.append(topic, 0, b"x", {"KEYS": "k"})
    store.close()
    lines = run("stat", tmp_path / "store").stdout.splitlines()
    assert max(len(line) for line in lines if line.startswith("orders")) < 120
    assert any(line.startswith("%RETRY%" + 150 * "g") for line in lines)
    assert any("queues       2 of 2 topics, 2 files" in line for line in lines)
    assert any("index        1 file," in line for line in lines)


def test_an_action_is_needed() -> None:
    """Without one the usage is shown."""
    done = run()
    assert done.returncode == 2
    assert "verify" in done.stderr


def dumped(directory: Path, *words: object) -> list[dict[str, object]]:
    """Dump `orders` as JSON, which ends well."""
    done = run("dump", directory, "--topic", "orders", "--json", *words)
    assert (done.returncode, done.stderr) == (0, "")
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_dump_gives_a_line_a_message(made: Path) -> None:
    """Each with its fields, in the order of the queues; nothing of other topics."""
    rows = dumped(made)
    assert [(row["queue_id"], row["queue_offset"]) for row in rows] == [
        *((0, offset) for offset in range(101)),
        *((1, offset) for offset in range(100)),
    ]
    assert rows[0]["keys"] == ["k2", "all"]
    assert rows[0]["tag"] == "even"
    assert rows[0]["store_timestamp"] == TIME + 2000
    assert rows[0]["body_size"] == len("body 2")
    assert "body" not in rows[0]


def test_a_dump_is_narrowed(made: Path) -> None:
    """By queue, offsets, times, key, tag and count."""
    assert [row["queue_offset"] for row in dumped(made, "--queue", 1, "--from-offset", 3, "--to-offset", 5)] == [3, 4]
    assert len(dumped(made, "--limit", 7)) == 7
    assert [row["keys"] for row in dumped(made, "--key", "k100")] == [["k100", "all"]]
    assert len(dumped(made, "--tag", "odd")) == 100
    first, last = TIME + 10_000, TIME + 19_999
    by_time = dumped(made, "--from-time", first, "--to-time", last)
    assert sorted(row["store_timestamp"] for row in by_time) == [TIME + s * 1000 for s in (10, 11, 13, 14, 16, 17, 19)]
    zoned = datetime.fromtimestamp(first / 1000, UTC).isoformat()
    assert dumped(made, "--from-time", zoned, "--to-time", last) == by_time


def test_a_dump_shows_bodies(made: Path) -> None:
    """As text where they are, else in base64; and without --json as a line for people."""
    bodies = [
        row.get("body", row.get("body_base64")) for row in dumped(made, "--queue", 0, "--from-offset", 99, "--body")
    ]
    assert bodies == ["body 298", "/wA="]
    line = run("dump", made, "--topic", "orders", "--key", "k100", "--body").stdout
    assert "'body 100'" in line
    assert "keys k100 all" in line


def test_an_unknown_topic_is_named_with_those_there_are(made: Path) -> None:
    """So is an unknown queue."""
    done = run("dump", made, "--topic", "order")
    assert done.returncode == 2
    assert "no topic order" in done.stderr
    assert "bills, orders" in done.stderr
    assert "no queue 9" in run("dump", made, "--topic", "orders", "--queue", 9).stderr


def test_a_dump_goes_on_behind_a_lost_record(store: Path) -> None:
    """The entry without a target, and the damaged record, are reported; the exit code is 1."""
    log = store / "commitlog" / f"{0:020}"
    second = int.from_bytes(log.read_bytes()[:4], "big")
    change(log, second + 4, 0)
    done = run("dump", store, "--topic", "orders", "--json")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 1
    assert [row["error"] for row in rows if "error" in row] == [f"no record at physical offset {second}"]
    assert len(rows) == 201
    change(log, second + 4, 0xDA)
    change(log, second + 90, 0)
    messages = list(store_tools.dump(store, "orders"))
    assert sum(isinstance(message, store_tools.DamagedMessage) for message in messages) == 1


def test_a_store_that_is_open_is_looked_at(tmp_path: Path) -> None:
    """Without taking its lock; the result covers the store at that moment."""
    directory = tmp_path / "store"
    with ferromq.embedded(directory) as mq:
        mq.store.append("orders", 0, b"hello")
        summary = store_tools.stat(directory)
        assert summary.state == "open"
        assert summary.last_stop.startswith("open now: ferromq, process ")
        done = run("verify", directory)
        assert (done.returncode, done.stderr) == (0, "")
        assert "a broker has the store open" in done.stdout
        mq.store.append("orders", 0, b"again")
    assert run("verify", directory).returncode == 0
    assert len(list(store_tools.dump(directory, "orders"))) == 2


def test_verification_from_python(store: Path) -> None:
    """Findings and progress are iterated, the report comes last; closing ends it early."""
    told: list[tuple[int, int]] = []
    with store_tools.verify(store, on_progress=lambda done, total: told.append((done, total))) as verification:
        assert list(verification) == []
        assert verification.report.is_sound
    assert told[-1][0] == told[-1][1] > 0
    with pytest.raises(StoreError, match="no store directory"):
        list(store_tools.verify(store / "config"))
    early = store_tools.verify(store)
    early.close()
    with pytest.raises(RuntimeError, match="ended"):
        next(early)


def test_one_file_of_the_log_is_read_alone(store: Path) -> None:
    """Its records of all topics; other bytes are a finding."""
    second = store / "commitlog" / f"{16 << 10:020}"
    messages = list(store_tools.read_log_file(second))
    assert messages[0].physical_offset == 16 << 10
    assert {message.topic for message in messages} == {"orders", "bills"}
    change(second, 4, 0)
    finding, *rest = store_tools.read_log_file(second)
    assert isinstance(finding, store_tools.Finding)
    assert (finding.kind, finding.start) == ("no-record", 0)
    assert len(rest) == len(messages) - 1
    with pytest.raises(ValueError, match="first_offset"):
        store_tools.read_log_file(store / "checkpoint")


def golden() -> list[Path]:
    """Return the checked-in store directories of Java."""
    return sorted({path.parent for path in FIXTURES.rglob("commitlog") if path.is_dir()})


@pytest.mark.parametrize("directory", golden(), ids=lambda path: path.relative_to(FIXTURES).as_posix())
def test_directories_of_java_are_sound(directory: Path) -> None:
    """Made by a Java broker, closed: no findings, and every topic can be dumped."""
    done = run("verify", directory)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    summary = store_tools.stat(directory)
    for topic, queues in summary.topics.items():
        messages = list(store_tools.dump(directory, topic))
        assert len(messages) == sum(queue.messages for queue in queues)


def test_tables_in_ferromq_are_no_findings(store: Path) -> None:
    """Users, layouts, journals, backups and what a master reports; a damaged table is one."""
    own = store / "ferromq"
    (own / "master").mkdir()
    (own / "master" / "broker.json").write_text("{}")
    (own / "topics.journal").write_bytes(b"torn")
    (own / "access.json").write_text("{}")
    (own / "access.json.bak").write_text("{")
    assert run("verify", store).returncode == 0
    (own / "access.json").write_text("{")
    done = run("verify", store)
    assert done.returncode == 1
    assert "own-file  ferromq/access.json" in done.stdout
