"""
Temporary store directories: made with a mark, and removed by a later start where their process is gone.

A process that a signal ends removes nothing. What a directory holds is the broker's business.
"""

import contextlib
import fcntl
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
"""Only directories that have a file of this name are removed: others may hold data of another program."""
_LEAST_AGE = 60.0
"""A younger directory may be one whose store is not open yet, in seconds."""


def make() -> str:
    """Make a temporary directory for a store, and remove those whose processes are gone."""
    remove_left()
    directory = tempfile.mkdtemp(prefix=_PREFIX)
    (Path(directory) / _MARK).touch()
    return directory


def remove_left() -> None:
    """Remove the temporary directories of this user that no store has open."""
    with contextlib.suppress(OSError), os.scandir(tempfile.gettempdir()) as entries:
        for entry in entries:
            if entry.name.startswith(_PREFIX):
                # Another program may remove it, too, and another user's may not be looked at.
                with contextlib.suppress(OSError):
                    _remove_where_left(Path(entry.path))


def _remove_where_left(directory: Path) -> None:
    found = directory.lstat()
    is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and (directory / _MARK).is_file()
    if not is_ours or time.time() - found.st_mtime < _LEAST_AGE:
        return
    with contextlib.ExitStack() as held:
        lock = directory / "lock"
        if lock.exists():
            file = held.enter_context(lock.open("r+b"))
            # The store's own lock: an error where a store has it, in this process or another.
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
        shutil.rmtree(directory)
    _log.info("temporary store removed whose process is gone directory=%s", directory)
