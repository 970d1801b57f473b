"""
The memory that this process may use: the machine's, or the limit of its container if that is less.

The limits are those of control groups: `memory.max` of version 2, `memory.limit_in_bytes` of version 1. A group has the
limits of the groups above it, too.
"""

import functools
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

_GROUPS = Path("/proc/self/cgroup")
_ROOT = Path("/sys/fs/cgroup")
_MOST_DIGITS = 20


@functools.cache
def usable_memory() -> int:
    """Return the bytes that this process may use, as they were when it asked first."""
    return memory_within(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), _GROUPS, _ROOT)


def memory_within(machine: int, groups: Path, root: Path) -> int:
    """Return the least of *machine*'s bytes and the limits under *root* of the control groups in the file *groups*."""
    limits = (limit_in(_text(path)) for path in limit_files(_text(groups), root))
    return min([machine, *(limit for limit in limits if limit is not None)])


def limit_files(groups: str, root: Path) -> Iterator[Path]:
    """Yield the files with limits for *groups*, the text of a file `cgroup` with lines `number:controllers:path`."""
    for line in groups.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            base, name = root, "memory.max"
        elif "memory" in controllers.split(","):
            base, name = root / "memory", "memory.limit_in_bytes"
        else:
            continue
        group = PurePosixPath(path)
        # A container often sees its own group as the root, whatever the path says.
        for each in (group, *group.parents):
            parts = [part for part in each.parts if part not in {"/", ".."}]
            yield base.joinpath(*parts, name)


def limit_in(text: str) -> int | None:
    """Return the limit in the text of a file, in bytes; None for `max`, 0 and anything else that is no limit."""
    number = text.strip()
    if not (number.isascii() and number.isdecimal()) or len(number) > _MOST_DIGITS:
        return None
    return int(number) or None


def _text(path: Path) -> str:
    """Return the text of a file; without it there is no limit."""
    try:
        return path.read_text("utf-8", "replace")
    except (OSError, ValueError):
        return ""
