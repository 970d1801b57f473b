"""Replaces a file so that a crash leaves its old or its new content."""

import os
from pathlib import Path


def replace_file(path: Path, content: bytes, mode: int = 0o666) -> None:
    """
    Replace *path* by *content* and keep the old file as `.bak`. The content is on disk when this returns.

    *mode* has the most permissions of the file; the process's mask may leave fewer.
    """
    fresh = _write_beside(path, content, mode)
    backup = backup_of(path)
    if path.exists():
        backup.unlink(missing_ok=True)
        os.link(path, backup)
    fresh.replace(path)
    sync_directory(path.parent)


def check_replaceable(path: Path) -> None:
    """Raise `OSError` if *path* cannot be replaced. Creates its directory, as a replacement does."""
    _write_beside(path, b"", 0o600).unlink()


def _write_beside(path: Path, content: bytes, mode: int) -> Path:
    """Write a file beside *path*, flush it, and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(path.name + ".tmp")
    # What an interrupted write left may have other permissions.
    fresh.unlink(missing_ok=True)
    with open(fresh, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return fresh


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
