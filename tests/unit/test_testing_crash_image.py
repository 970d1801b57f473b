"""The copy of a store as a killed process leaves it."""

import os
from pathlib import Path

import pytest

from ferromq.testing import crash_image
from ferromq.testing.crash_image import copy_image

PARTS = [
    "abort",
    "checkpoint",
    "commitlog",
    "config",
    "consumequeue",
    "ferromq",
    "index",
    "lock",
    "timerlog",
    "timerwheel",
]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Return a directory with the parts of a store."""
    store = tmp_path / "store"
    store.mkdir()
    for name in PARTS:
        (store / name).write_text(name)
    return store


def test_positions_are_copied_first_and_the_log_last(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A position that is ahead of its file would skip messages; the lock belongs to the running store."""
    copied: list[str] = []
    monkeypatch.setattr(crash_image, "_copy", lambda path, _to: copied.append(path.name))
    copy_image(store, tmp_path / "image")
    assert copied[:4] == ["abort", "checkpoint", "config", "ferromq"]
    assert copied[-1] == "commitlog"
    assert sorted(copied) == [name for name in PARTS if name != "lock"]


def test_files_are_copied_with_their_holes(store: Path, tmp_path: Path) -> None:
    """A log file of many megabytes is mostly empty."""
    (store / "commitlog").unlink()
    (store / "commitlog" / "inside").mkdir(parents=True)
    file = store / "commitlog" / "inside" / "00000000000000000000"
    with file.open("wb") as sparse:
        sparse.seek(3 << 20)
        sparse.write(b"a message")
        sparse.truncate(64 << 20)
    copy_image(store, tmp_path / "image")
    copy = tmp_path / "image" / "commitlog" / "inside" / file.name
    assert copy.read_bytes() == file.read_bytes()
    assert copy.stat().st_blocks * 512 < 8 << 20
    assert (tmp_path / "image" / "config").read_text() == "config"


def test_a_file_that_is_gone_meanwhile_is_left_out(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store replaces its small files by renaming."""
    real = Path.is_dir

    def is_dir(path: Path) -> bool:
        if path.name == "config":
            os.unlink(path)  # noqa: PTH108 (a path of the patched class)
        return real(path)

    monkeypatch.setattr(Path, "is_dir", is_dir)
    copy_image(store, tmp_path / "image")
    monkeypatch.undo()
    assert not (tmp_path / "image" / "config").exists()
    assert (tmp_path / "image" / "index").exists()
