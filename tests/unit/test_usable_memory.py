"""The memory that a process may use: the limits of control groups of both versions."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferromq.process.memory import limit_files, limit_in, memory_within, usable_memory

GIB = 1 << 30


def machine(path: Path, groups: str, **limits: str) -> int:
    """Return what a process may use on a machine of 8 GiB; the names of *limits* are files, `__` for a slash."""
    (path / "cgroup").write_text(groups)
    for name, text in limits.items():
        file = path / "fs" / name.replace("__", "/").replace("_max", ".max").replace("_limit", ".limit")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return memory_within(8 * GIB, path / "cgroup", path / "fs")


@pytest.mark.parametrize(
    ("groups", "limits", "wanted"),
    [
        ("0::/\n", {"memory_max": f"{GIB}\n"}, GIB),
        ("0::/\n", {"memory_max": "max\n"}, 8 * GIB),
        ("0::/a/b\n", {"a__b__memory_max": f"{4 * GIB}", "a__memory_max": f"{2 * GIB}"}, 2 * GIB),
        ("0::/../../kubepods\n", {"kubepods__memory_max": f"{GIB}"}, GIB),
        ("5:cpu,memory:/d\n4:cpu:/x\n", {"memory__d__memory_limit_in_bytes": f"{GIB}"}, GIB),
        ("5:memory:/gone\n", {"memory__memory_limit_in_bytes": f"{GIB}"}, GIB),
        ("5:memory:/\n", {"memory__memory_limit_in_bytes": "9223372036854771712"}, 8 * GIB),
        ("", {}, 8 * GIB),
    ],
)
def test_the_least_limit_counts(tmp_path: Path, groups: str, limits: dict[str, str], wanted: int) -> None:
    """Of the group, those above it, and the machine; a container may see its group as the root."""
    assert machine(tmp_path, groups, **limits) == wanted


def test_without_control_groups_the_machine_counts(tmp_path: Path) -> None:
    """Files that are missing or that cannot be read limit nothing."""
    (tmp_path / "memory.max").mkdir()
    (tmp_path / "cgroup").write_text("0::/\n")
    assert memory_within(GIB, tmp_path / "cgroup", tmp_path) == GIB
    assert memory_within(GIB, tmp_path / "none", tmp_path) == GIB
    assert usable_memory() > 0


@given(st.text(max_size=80))
def test_any_text_is_a_limit_or_none(text: str) -> None:
    """The kernel's files, and whatever a container puts in their place."""
    limit = limit_in(text)
    assert limit is None or limit == int(text.strip()) > 0


@given(st.text(max_size=80))
def test_any_list_of_groups_names_files_below_the_root(text: str) -> None:
    """No path leads out of it."""
    root = Path("/fs")
    assert all(path.is_relative_to(root) and ".." not in path.parts for path in limit_files(text, root))
