"""Finding the commit-log files of a path, and copying those of an object store to a worker."""

import builtins
import importlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import fsspec
import pytest

from ferromq._ferromq import Clock, Store
from ferromq.errors import ConfigError
from ferromq.spark.log.files import LogPart, find, on_disk

FIRST, SECOND = "00000000000000000000", "00000000000000001024"


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """Return a directory with two archived files, and other files."""
    (tmp_path / SECOND).write_bytes(b"b" * 10)
    (tmp_path / FIRST).write_bytes(b"a" * 1024)
    (tmp_path / "README").write_text("x")
    (tmp_path / f"{FIRST}.sha256").write_text("x")
    (tmp_path / "00000000000000002048").mkdir()
    return tmp_path


@pytest.fixture
def bucket(archive: Path) -> Iterator[str]:
    """Return the URL of a copy in fsspec's memory."""
    memory = fsspec.filesystem("memory")
    memory.put(f"{archive}/", "/bucket/log", recursive=True)
    yield "memory://bucket/log"
    memory.rm("/bucket", recursive=True)


@pytest.mark.parametrize("prefix", ["", "file:", "file://", "local://"])
def test_loose_files_are_read_in_order_to_their_end(archive: Path, prefix: str) -> None:
    """Files whose name is not 20 digits are skipped."""
    parts = [
        LogPart(str(archive / FIRST), 0, 0, 1024),
        LogPart(str(archive / SECOND), 1024, 1024, 1034),
    ]
    assert find([f"{prefix}{archive}"], {}) == parts
    assert find([str(archive / SECOND), str(archive)], {}) == parts[::-1]


def test_a_file_that_several_paths_mean_is_read_once(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Links and relative paths lead to the same rows."""
    (archive / "link").symlink_to(archive)
    monkeypatch.chdir(archive.parent)
    parts = find([str(archive), archive.name, str(archive / "link"), f"{archive / 'link' / FIRST}"], {})
    assert [part.first_offset for part in parts] == [0, 1024]


def test_a_copy_beside_its_store_is_read_once_and_other_brokers_files_too(tmp_path: Path) -> None:
    """The copy outside the store is read; files that only begin at the same offset are different files."""
    store, copies, other = tmp_path / "store", tmp_path / "copies", tmp_path / "other"
    for folder, host in ((store, b"mine"), (other, b"other")):
        messages = Store(str(folder), Clock.manual(1_700_000_000_000), commit_log_file_size=4096, disk_reserve=0)
        for number in range(30):
            messages.append("orders", 0, b"%-500d" % number + host, {})
        messages.close()
    full = sorted((store / "commitlog").iterdir())[:2]
    copies.mkdir()
    for file in full:
        shutil.copy(file, copies)
    alone = find([str(store)], {})
    assert len(alone) > 3
    for paths in ([str(store), str(copies)], [str(copies), str(store)]):
        both = find(paths, {})
        assert sorted((part.first_offset, part.end) for part in both) == [(one.first_offset, one.end) for one in alone]
        assert {part.url for part in both if part.store is None} == {str(copies / file.name) for file in full}
    everything = find([str(store), str(copies), str(other)], {})
    assert len(everything) == len(alone) + len(find([str(other)], {}))


def test_a_copy_of_another_length_is_refused(tmp_path: Path) -> None:
    """It is unknown which rows are repeated; the error names both files."""
    for folder, count in (("a", 900), ("b", 1000)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / FIRST).write_bytes((100).to_bytes(4, "big") + b"m" * count)
    with pytest.raises(ConfigError, match=f"log file {FIRST} twice, as .*a/{FIRST} up to .*904 and as .*1004"):
        find([str(tmp_path / "a"), str(tmp_path / "b")], {})


def test_files_of_an_object_store_are_found_and_copied_one_at_a_time(bucket: str) -> None:
    """The copy is removed after the read."""
    parts = find([bucket], {})
    assert [(part.first_offset, part.begin, part.end) for part in parts] == [(0, 0, 1024), (1024, 1024, 1034)]
    assert find([f"{bucket}/{SECOND}"], {}) == parts[1:]
    with on_disk(parts[1], {}) as path:
        assert path.read_bytes() == b"b" * 10
        assert path.name == SECOND
    assert not path.exists()
    assert not path.parent.exists()


def test_a_copy_in_an_object_store_is_read_once(bucket: str, archive: Path) -> None:
    """The first of both is read."""
    assert [part.url for part in find([str(archive), bucket], {})] == [str(archive / FIRST), str(archive / SECOND)]
    assert {part.url for part in find([bucket, str(archive)], {})} == {part.url for part in find([bucket], {})}


def test_a_local_file_is_not_copied(archive: Path) -> None:
    """It stays in place."""
    with on_disk(LogPart(str(archive / FIRST), 0, 0, 1024), {}) as path:
        assert path == archive / FIRST
    assert path.exists()


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("{}/nowhere", ["nowhere'", "it does not exist", "on each"]),
        ("{}/README", ["README'", "20 digits"]),
        ("{}/00000000000000002048", ["2048'", "no folder commitlog and no file"]),
        ("memory://nowhere", ["'memory://nowhere'", "it does not exist"]),
        ("nonsense://a/b", ["'nonsense://a/b'", "fsspec says", "nonsense"]),
    ],
)
def test_a_path_that_holds_no_log_is_an_error(archive: Path, path: str, words: list[str]) -> None:
    """The error has the option, the path, the problem and the allowed values."""
    with pytest.raises(ConfigError) as raised:
        find([path.format(archive)], {})
    said = str(raised.value)
    assert [word for word in ["option 'path'", *words, "allowed: a store directory"] if word not in said] == []


def without(monkeypatch: pytest.MonkeyPatch, *missing: str) -> None:
    """Simulate missing packages."""
    found, imported = importlib.import_module, builtins.__import__

    def check(name: str) -> None:
        if name.partition(".")[0] in missing:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    def import_module(name: str, package: str | None = None) -> ModuleType:
        check(name)
        return found(name, package)

    def import_here(name: str, *rest: Any, **more: Any) -> Any:
        check(name)
        return imported(name, *rest, **more)

    monkeypatch.setattr(importlib, "import_module", import_module)
    monkeypatch.setattr(builtins, "__import__", import_here)


@pytest.mark.parametrize(
    ("missing", "words"),
    [("fsspec", "needs fsspec, which is not installed"), ("s3fs", "needs more of fsspec")],
)
def test_a_missing_package_says_the_pip_line(monkeypatch: pytest.MonkeyPatch, missing: str, words: str) -> None:
    """The command installs the package for the URL's scheme."""
    without(monkeypatch, missing)
    with pytest.raises(ModuleNotFoundError, match=words) as raised:
        find(["s3://bucket/log"], {})
    assert "'s3://bucket/log'" in str(raised.value)
    assert str(raised.value).endswith("pip install 'fsspec[s3]'")
