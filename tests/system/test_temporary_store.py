"""A temporary store whose process was ended by a signal goes with a later start, and nothing else does."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import ferromq

OPEN = """
import ferromq, signal
before = signal.getsignal(signal.SIGTERM)
mq = ferromq.embedded()
assert signal.getsignal(signal.SIGTERM) is before
print(mq.broker.config.store, flush=True)
signal.pause()
"""
AGO = 3600


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make all temporary directories in a directory of the test."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def make_old(directory: Path) -> None:
    """Let a directory be an hour old."""
    moment = directory.stat().st_mtime - AGO
    os.utime(directory, (moment, moment))


def test_it_is_removed_by_a_later_start_once_its_process_is_gone(temporary: Path) -> None:
    """While the process lives it stays, and a young one stays in any case."""
    with subprocess.Popen([sys.executable, "-c", OPEN], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            left = Path(process.stdout.readline().strip())
            make_old(left)
            ferromq.embedded().close()
            assert left.is_dir()
        finally:
            process.send_signal(signal.SIGTERM)
    assert process.returncode == -signal.SIGTERM
    young = left.stat().st_mtime + AGO
    os.utime(left, (young, young))
    ferromq.embedded().close()
    assert left.is_dir()
    make_old(left)
    ferromq.embedded().close()
    assert not left.exists()
    assert list(temporary.iterdir()) == []


def test_a_store_that_was_given_a_directory_is_never_removed(temporary: Path) -> None:
    """Not even with such a name, closed and old; nor is a link or an open store."""
    kept = temporary / "ferromq-data"
    ferromq.embedded(kept).close()
    make_old(kept)
    (temporary / "ferromq-link").symlink_to(kept)
    (temporary / "ferromq-file").touch()
    with ferromq.embedded() as mq:
        own = Path(mq.broker.config.store)
        make_old(own)
        ferromq.embedded().close()
        assert own.is_dir()
        assert {path.name for path in temporary.iterdir()} == {"ferromq-data", "ferromq-link", "ferromq-file", own.name}
        with mq.producer() as producer:
            producer.send("orders", b"still there")
