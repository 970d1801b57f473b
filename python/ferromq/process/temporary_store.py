"""
Temporary store directories, with a mark by which a later start finds and removes them.

A process killed by a signal cannot remove its own directory.
"""

import contextlib
import logging
import os
import shutil
import stat
import tempfile
import time
from pathlib import Path

_log = logging.getLogger("ferromq.embedded")

_PREFIX = "ferromq-"
_MARK = "temporary-store"
"""Only directories with this file are removed; others may belong to another program."""
_LEAST_AGE = 60.0
"""Seconds. The store in a younger directory may not be open yet."""


def make() -> str:
    """Create a temporary directory for a store, and remove those of ended processes."""
    remove_left()
    directory = tempfile.mkdtemp(prefix=_PREFIX)
    (Path(directory) / _MARK).touch()
    return directory


def remove_left() -> None:
    """Remove this user's temporary directories that no store has open."""
    with contextlib.suppress(OSError), os.scandir(tempfile.gettempdir()) as entries:
        for entry in entries:
            if entry.name.startswith(_PREFIX):
                # Another process may remove it at the same time, and other users' directories are not readable.
                with contextlib.suppress(OSError):
                    _remove_if_left(Path(entry.path))


def _remove_if_left(directory: Path) -> None:
    found = directory.lstat()
    is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and (directory / _MARK).is_file()
    if not is_ours or time.time() - found.st_mtime < _LEAST_AGE:
        return
    import fcntl  # noqa: PLC0415 (Windows has none; there this module can be imported)

    with contextlib.ExitStack() as held:
        lock = directory / "lock"
        if lock.exists():
            file = held.enter_context(lock.open("r+b"))
            # The store's own lock: fails if a store has it, in this process or another.
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
        shutil.rmtree(directory)
    _log.info("temporary store of an ended process removed directory=%s", directory)
