"""An archive behind a URL is read back after writing. fsspec's memory is the object store."""

import json
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import pytest
from archive_log import SIZE, Log, archived, as_read
from fsspec.implementations.memory import MemoryFileSystem

from ferromq.errors import CorruptStore, StoreError
from ferromq.pipeline import archive
from ferromq.pipeline.archiving.location import UrlLocation
from ferromq.pipeline.archiving.publisher import LogPart, Publisher

URL = "memory://bucket/archive"


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Log:
    """Return an empty log file."""
    return Log(tmp_path / "00000000000000000000", monkeypatch)


@pytest.fixture
def memory() -> Iterator[Any]:
    """Return an empty object store."""
    memory = fsspec.filesystem("memory")
    yield memory
    if memory.exists("/bucket"):
        memory.rm("/bucket", recursive=True)


def names(memory: Any) -> set[str]:
    """Return the names of all objects in the archive."""
    return {name.removeprefix("/bucket/archive/") for name in memory.find("/bucket/archive")}


def test_a_log_is_archived_behind_a_url(log: Log, memory: Any, tmp_path: Path) -> None:
    """Parquet files and a manifest; a second run changes nothing, except that it restores a missing file."""
    part = log.grow(1000)
    manifest, is_new = archive.archive_file(part, URL)
    assert is_new
    assert names(memory) == {f"_ferromq/{manifest.name}.json", *(file["name"] for file in manifest.files)}
    assert len(manifest.files) > 5
    memory.get("/bucket/archive", str(tmp_path / "copy"), recursive=True)
    assert archived(tmp_path / "copy") == [as_read(row) for row in log.rows]
    assert archive.archive_file(part, URL) == (manifest, False)
    memory.rm(f"/bucket/archive/{manifest.files[0]['name']}")
    assert archive.archive_file(part, URL) == (manifest, True)


def test_a_file_that_grew_replaces_its_archive(log: Log, memory: Any, tmp_path: Path) -> None:
    """Each row once; a different file with the same beginning is rejected."""
    archive.archive_file(log.grow(300), URL)
    part = log.grow(700)
    manifest, _ = archive.archive_file(part, URL)
    assert names(memory) == {f"_ferromq/{manifest.name}.json", *(file["name"] for file in manifest.files)}
    memory.get("/bucket/archive", str(tmp_path / "copy"), recursive=True)
    assert archived(tmp_path / "copy") == [as_read(row) for row in log.rows]
    with pytest.raises(StoreError, match=r"memory://bucket/archive/_ferromq/.*json has it up to"):
        archive.archive_file(LogPart(part.path, 0, part.end - SIZE), URL)


def test_an_object_that_differs_from_the_written_one_is_an_error(
    log: Log, memory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hook raises, so the log file stays; repeating it completes the archive."""
    put = MemoryFileSystem.put_file
    spoiled: list[str] = []

    def spoil(self: Any, here: str, there: str, *given: Any, **more: Any) -> None:
        put(self, here, there, *given, **more)
        if not spoiled:
            content = bytearray(self.cat_file(there))
            content[len(content) // 2] ^= 1
            self.pipe_file(there, bytes(content))
            spoiled.append(there)

    monkeypatch.setattr(MemoryFileSystem, "put_file", spoil)
    part = log.grow(500)
    hook, file = archive.into(URL), SimpleNamespace(path=part.path, begin=0, end=part.end)
    with pytest.raises(CorruptStore, match=r"memory://bucket/archive/topic=.*, just written, holds .* with checksum"):
        hook(file)  # type: ignore[arg-type]
    assert not [name for name in names(memory) if name.endswith(".json")]
    hook(file)  # type: ignore[arg-type]
    (name,) = (name for name in names(memory) if name.startswith("_ferromq/"))
    manifest = json.loads(memory.cat_file(f"/bucket/archive/{name}"))
    assert manifest["rows"] == 500
    assert {*(one["name"] for one in manifest["files"]), name} == names(memory)


def test_without_its_manifest_a_file_is_not_archived(log: Log, memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is the object store's, and the file does not count as archived."""

    def refuse(_self: Any, path: str, *_given: Any, **_more: Any) -> None:
        raise PermissionError(f"not here: {path}")

    monkeypatch.setattr(MemoryFileSystem, "pipe_file", refuse)
    with pytest.raises(PermissionError, match="not here"):
        archive.archive_file(log.grow(10), URL)
    assert not memory.exists("/bucket/archive") or not names(memory)


@pytest.mark.parametrize(("where", "is_before"), [(Publisher, True), (UrlLocation, False)])
def test_what_another_machine_archived_meanwhile_keeps_its_manifest(
    log: Log, memory: Any, where: type, is_before: bool
) -> None:
    """The slower machine raises, before it publishes files and before it saves its manifest."""
    short, whole = log.grow(300), log.grow(400)
    name = "publish" if where is Publisher else "move_in"
    step, others = getattr(where, name), []
    with pytest.MonkeyPatch.context() as patch:

        def meanwhile(*given: Any) -> Any:
            patch.undo()
            patch.setattr(UrlLocation, "lock", lambda *_: nullcontext())
            result = None if is_before else step(*given)
            others.append(archive.archive_file(whole, URL)[0])
            return step(*given) if is_before else result

        patch.setattr(where, name, meanwhile)
        with pytest.raises(StoreError, match="by another machine meanwhile"):
            archive.archive_file(short, URL)
    (manifest,) = others
    known = json.loads(memory.cat_file(f"/bucket/archive/_ferromq/{manifest.name}.json"))
    assert known["end"] == whole.end
