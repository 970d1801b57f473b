"""`ferromq store diff`: what one store has and the other lacks, and what differs."""

import contextlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ferromq import store_tools
from ferromq._ferromq import Clock, Store
from ferromq.errors import CorruptStore, StoreError
from ferromq.store_tools import differences


def fill(directory: Path, count: int, topic: str = "orders", mark: bytes = b"") -> None:
    """Store messages in two queues."""
    store = Store(str(directory), Clock.manual(1_700_000_000_000), commit_log_file_size=64 << 10, disk_reserve=0)
    for number in range(count):
        store.append(topic, number % 2, b"%d" % number + mark, born_timestamp=1)
    store.close()


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """Make a store and its copy, with tables."""
    first = tmp_path / "first"
    fill(first, 50)
    (first / "config" / "topics.json").write_text('{"topicConfigTable": {"orders": {"readQueueNums": 2}}}')
    (first / "ferromq" / "access.json").write_text('{"users": [{"username": "ann", "password": "secret-1"}]}')
    return first, Path(shutil.copytree(first, tmp_path / "second"))


def shown(pair: tuple[Path, Path]) -> list[tuple[str, str, object, object]]:
    """Return the differences as tuples."""
    return [(found.kind, found.name, found.first, found.second) for found in store_tools.diff(*pair)]


def run(*words: object) -> subprocess.CompletedProcess[str]:
    """Run `ferromq store diff …`."""
    command = [sys.executable, "-m", "ferromq", "store", "diff", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_a_copy_is_the_same(pair: tuple[Path, Path]) -> None:
    """With the exit code 0."""
    done = run(*pair)
    assert (done.returncode, done.stdout, done.stderr) == (0, "the same\n", "")


def test_messages_that_one_lacks(pair: tuple[Path, Path]) -> None:
    """As the offsets of each queue; a topic that the other lacks is a queue without a range."""
    fill(pair[1], 10)
    fill(pair[0], 2, "extra")
    assert shown(pair) == [
        ("queue", "extra/0", [0, 1], None),
        ("queue", "extra/1", [0, 1], None),
        ("queue", "orders/0", [0, 25], [0, 30]),
        ("queue", "orders/1", [0, 25], [0, 30]),
    ]


def test_messages_that_differ(tmp_path: Path) -> None:
    """Neighbours are one row; where a message lies in the log does not count."""
    fill(tmp_path / "a", 20)
    fill(tmp_path / "b", 3, "other")
    fill(tmp_path / "b", 10)
    fill(tmp_path / "b", 10, mark=b"!")
    found = [row for row in shown((tmp_path / "a", tmp_path / "b")) if row[0] == "messages"]
    assert found == [("messages", f"orders/{queue}", [5, 9, "present"], [5, 9, "present"]) for queue in (0, 1)]


def test_damaged_and_lost_messages_differ(pair: tuple[Path, Path]) -> None:
    """Each with its state."""
    with (pair[1] / "commitlog" / f"{0:020}").open("r+b") as file:
        file.seek(88)
        file.write(b"\x7f")
    with (pair[1] / "consumequeue" / "orders" / "1" / f"{0:020}").open("r+b") as file:
        file.seek(7)
        file.write(b"\x01")
    assert shown(pair) == [
        ("messages", "orders/0", [0, 0, "present"], [0, 0, "damaged"]),
        ("messages", "orders/1", [0, 0, "present"], [0, 0, "lost"]),
    ]


def test_tables_and_users_differ_without_their_keys(pair: tuple[Path, Path]) -> None:
    """Topics, offsets and users; journals count."""
    (pair[1] / "config" / "topics.json").write_text('{"topicConfigTable": {"orders": {"readQueueNums": 3}}}')
    (pair[1] / "config" / "consumerOffset.json").write_text('{"offsetTable":{"orders@g":{0:7}}}')
    (pair[1] / "ferromq" / "access.json").write_text('{"users": [{"username": "ann", "password": "secret-2"}]}')
    rows = {row[:2]: row[2:] for row in shown(pair)}
    assert rows["topic", "orders"] == ({"readQueueNums": 2}, {"readQueueNums": 3})
    assert rows["offset", "orders@g"][0] is None
    done = run(*pair)
    assert done.returncode == 1
    assert "differs" in done.stdout
    assert "secret" not in done.stdout
    lines = [json.loads(line) for line in run(*pair, "--json").stdout.splitlines()]
    assert {line["kind"] for line in lines} == {"topic", "offset", "user"}


def test_policies_are_of_their_user(pair: tuple[Path, Path]) -> None:
    """A right that one store lacks is a difference; a backup of the users is not read in place of a damaged file."""
    entry = {"resource": "Topic:a", "actions": ["Sub"], "decision": "Allow"}
    user = {"username": "ann", "password": "secret-1", "policies": [{"policyType": "Custom", "entries": [entry]}]}
    path = pair[1] / "ferromq" / "access.json"
    path.write_text(json.dumps({"users": [user]}))
    ((kind, name, first, second),) = shown(pair)
    assert (kind, name) == ("user", "ann")
    assert first == {"username": "ann", "password": "same"}
    assert second == {**user, "password": "same"}
    shutil.copy(path, path.with_name("access.json.bak"))
    path.write_text("{")
    with pytest.raises(CorruptStore, match=r"access\.json is not a JSON object"):
        shown(pair)


def test_what_cannot_be_read_has_the_exit_code_2(pair: tuple[Path, Path], tmp_path: Path) -> None:
    """No store, and a damaged table without a backup."""
    missing = run(pair[0], tmp_path / "none")
    assert missing.returncode == 2
    assert "none" in missing.stderr
    (pair[1] / "config" / "topics.json").write_text("{")
    with pytest.raises(CorruptStore, match=r"topics\.json is not a JSON object"):
        shown(pair)
    assert run(*pair).returncode == 2


@settings(deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["users", "username", "topicConfigTable"]), inner)
        ),
        max_leaves=8,
    ).map(json.dumps)
    | st.text(max_size=20)
)
def test_any_table_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, content: str) -> None:
    """Any bytes: a table, or a `StoreError`."""
    directory = tmp_path_factory.getbasetemp() / "tables"
    for folder, name in (("config", "topics.json"), ("ferromq", "access.json")):
        (directory / folder).mkdir(parents=True, exist_ok=True)
        (directory / folder / name).write_text(content, encoding="utf-8", errors="replace")
    for read in (
        lambda: differences._table(directory, "topics.json", "topicConfigTable"),
        lambda: differences._users(directory),
    ):
        with contextlib.suppress(StoreError):
            assert isinstance(read(), dict)
