"""One process at a time has a store directory open, even if its program opens the files, too."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import ferromq

SECOND = """
import ferromq, sys
try:
    ferromq.embedded(sys.argv[1]).close()
    print("opened")
except ferromq.StoreLocked:
    print("refused")
"""

PARENT = """
import os, sys, time, ferromq
mq = ferromq.embedded(sys.argv[1])
child = os.fork()
if child == 0:
    time.sleep(60)
    os._exit(0)
print(child, flush=True)
sys.stdin.read()
"""

JAVA = """
import java.io.RandomAccessFile;

public class Lock {
    public static void main(String[] names) throws Exception {
        try (var file = new RandomAccessFile(names[0], "rw")) {
            var lock = file.getChannel().tryLock(0, 1, false);
            System.out.println(lock == null ? "refused" : "locked");
            System.in.read();
        }
    }
}
"""


def second(directory: Path) -> str:
    """Open *directory* in a process of its own and return the outcome."""
    command = [sys.executable, "-c", SECOND, str(directory)]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout.strip()


@contextlib.contextmanager
def process(*command: object) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run *command*; give it and its first line, and end it."""
    words = [str(word) for word in command]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        try:
            yield running, running.stdout.readline().strip()
        finally:
            running.kill()


def test_a_program_that_copies_its_open_store_keeps_the_lock(tmp_path: Path) -> None:
    """Neither reading the lock file nor a refused open releases it."""
    with ferromq.embedded(tmp_path / "store"):
        shutil.copytree(tmp_path / "store", tmp_path / "copy")
        with pytest.raises(ferromq.StoreLocked):
            ferromq.embedded(tmp_path / "store")
        assert second(tmp_path / "store") == "refused"
    assert second(tmp_path / "store") == "opened"


def test_a_forked_child_does_not_keep_the_lock_of_a_killed_parent(tmp_path: Path) -> None:
    """The lock ends with the process that opened the store."""
    with process(sys.executable, "-c", PARENT, tmp_path) as (parent, child):
        try:
            assert second(tmp_path) == "refused"
            parent.kill()
            parent.wait()
            assert second(tmp_path) == "opened"
        finally:
            os.kill(int(child), signal.SIGKILL)


@pytest.mark.java
@pytest.mark.skipif(shutil.which("javac") is None, reason="no javac on the PATH: Java's lock needs a JDK")
def test_it_is_the_lock_that_java_takes(tmp_path: Path) -> None:
    """Either side refuses while the other has it, also after our process closed the file once."""
    program = tmp_path / "Lock.java"
    program.write_text(JAVA)
    store = tmp_path / "store"
    with ferromq.embedded(store):
        (store / "lock").read_bytes()
        with process("java", program, store / "lock") as (_, said):
            assert said == "refused"
    with process("java", program, store / "lock") as (_, said):
        assert said == "locked"
        with pytest.raises(ferromq.StoreLocked):
            ferromq.embedded(store)
    ferromq.embedded(store).close()
