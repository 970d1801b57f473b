"""Replaces a file so that a crash leaves its old or its new content."""

import os
import secrets
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def replace_file(path: Path, content: bytes, mode: int = 0o666) -> None:
    """
    Replace *path* by *content* and keep the old file as `.bak`. The content is on disk when this returns.

    *mode* has the most permissions of the file; the process's mask may leave fewer.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with _written(path.with_name(f"{path.name}.tmp"), content, mode) as fresh:
        backup = backup_of(path)
        if path.exists():
            backup.unlink(missing_ok=True)
            os.link(path, backup)
        fresh.replace(path)
    sync_directory(path.parent)


def check_replaceable(path: Path) -> None:
    """Raise `OSError` if *path* cannot be replaced. Creates its directory, as a replacement does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Without a name: a process that replaces the file now has its own new file there.
    with tempfile.TemporaryFile(dir=path.parent):
        pass


def put_file(path: Path, content: bytes, mode: int = 0o666) -> None:
    """
    Replace *path*, or the file that it links to, by *content*, and keep no backup. The directory must be there.

    *mode* has the most permissions of a new file; a file that is there keeps its own. What is no regular file, such as
    a pipe or a device, is written to, and so is an open file by a path such as `/dev/stdout`, at its end.
    """
    try:
        found = path.stat().st_mode
    except FileNotFoundError:
        found = None
    if found is not None and (not stat.S_ISREG(found) or _is_of_process(path)):
        with path.open("ab") as file:
            file.write(content)
        return
    path = followed(path)
    # Several processes may do this at once.
    beside = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    with _written(beside, content, mode if found is None else stat.S_IMODE(found)) as fresh:
        if found is not None:
            fresh.chmod(stat.S_IMODE(found))  # the process's mask does not count
        fresh.replace(path)
    sync_directory(path.parent)


def followed(path: Path) -> Path:
    """Return the path of the file that *path* links to, which need not be there; *path* itself if it is no link."""
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def _is_of_process(path: Path) -> bool:
    """Say whether *path*, which exists, leads to an open file of a process, as `/dev/stdout` and `/dev/fd/1` do."""
    while path.is_symlink():
        folder = Path(os.path.realpath(path.parent))
        if folder.is_relative_to("/proc"):
            return True
        path = folder / path.readlink()
    return False


@contextmanager
def _written(fresh: Path, content: bytes, mode: int) -> Iterator[Path]:
    """Write *content* into the new file *fresh*, and yield it once it is on disk; remove it at an error."""
    # What an interrupted write left may have other permissions.
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        yield fresh
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise


def sync_directory(path: Path) -> None:
    """Flush a directory, so that new names in it survive a crash."""
    directory = os.open(path, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def backup_of(path: Path) -> Path:
    """Return the path of the backup of *path*."""
    return path.with_name(path.name + ".bak")
