"""The key-value table of a name server."""

import json
from pathlib import Path

import pytest

from ferromq.errors import ConfigError
from ferromq.namesrv.kv_config import KvConfig


def test_values_are_on_disk_before_put_returns(tmp_path: Path) -> None:
    """In RocketMQ's form; a new process finds them."""
    path = tmp_path / "namesrv" / "kvConfig.json"
    table = KvConfig(path)
    table.put("n", "k", "v")
    table.put("n", "l", "w")
    assert json.loads(path.read_text()) == {"configTable": {"n": {"k": "v", "l": "w"}}}
    table.delete("n", "k")
    again = KvConfig(path)
    assert again.get("n", "k") is None
    assert again.namespace("n") == {"l": "w"}
    again.delete("n", "l")
    assert KvConfig(path).namespace("n") == {}
    assert KvConfig(path).namespace("never") is None


def test_a_link_to_the_file_stays(tmp_path: Path) -> None:
    """The file that it leads to is changed."""
    real, link = tmp_path / "real.json", tmp_path / "kvConfig.json"
    link.symlink_to(real)
    KvConfig(link).put("n", "k", "v")
    KvConfig(link).put("n", "l", "w")
    assert (link.is_symlink(), link.with_name("kvConfig.json.bak").exists()) == (True, False)
    assert KvConfig(real).namespace("n") == {"k": "v", "l": "w"}


def test_the_same_value_again_writes_nothing(tmp_path: Path) -> None:
    """Brokers put theirs with every registration."""
    path = tmp_path / "kvConfig.json"
    table = KvConfig(path)
    table.put("n", "k", "v")
    before = path.stat().st_mtime_ns
    table.put("n", "k", "v")
    table.delete("n", "other")
    assert path.stat().st_mtime_ns == before


def test_a_file_that_cannot_be_written_changes_nothing(tmp_path: Path) -> None:
    """The table equals the file."""
    table = KvConfig(tmp_path / "file" / "kvConfig.json")
    (tmp_path / "file").rmdir()
    (tmp_path / "file").write_text("in the way of the directory")
    with pytest.raises(OSError, match=r"."):
        table.put("n", "k", "v")
    assert table.get("n", "k") is None


def test_a_start_leaves_the_new_file_of_another_process_alone(tmp_path: Path) -> None:
    """A name server with the same path may replace the file now."""
    path = tmp_path / "kvConfig.json"
    KvConfig(path).put("n", "k", "v")
    fresh = path.with_name("kvConfig.json.tmp")
    fresh.write_text("half")
    KvConfig(path)
    assert fresh.read_text() == "half"


def test_a_file_of_another_kind_is_an_error(tmp_path: Path) -> None:
    """It is named, and not overwritten."""
    path = tmp_path / "kvConfig.json"
    path.write_text('{"configTable": 5}')
    with pytest.raises(ConfigError, match=r"kvConfig\.json"):
        KvConfig(path)
    assert path.read_text() == '{"configTable": 5}'
