"""Fixtures of all tests: the kit for calls between processes, and the end of a test's programs."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import pytest
from hypothesis import settings

# The kit for calls between processes, the runner of the documents' blocks, and the visitor of dashboards.
sys.path[:0] = [str(Path(__file__).parent / folder) for folder in ("faults", "pages", "browser")]

# Tests of a class that several files run.
pytest.register_assert_rewrite("verbs", "namesrv_verbs")

# Tests run side by side, and the commands' default port is one.
os.environ |= {f"FERROMQ_{server}_METRICS_LISTEN": "off" for server in ("BROKER", "NAMESRV")}

# Servers that tests start read their configuration again at this signal, which `nohup` ignores for all children.
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# The duration of an example depends on the machine; it is no promise.
settings.register_profile("ferromq", deadline=None)
settings.load_profile("ferromq")

PATIENCE = 10.0
_plain_exit = subprocess.Popen.__exit__


@pytest.fixture
def no_thread_left() -> Iterator[None]:
    """Fail if a thread of ours is left after the test; request it before fixtures that start threads."""
    before = set(threading.enumerate())
    yield
    for thread in threading.enumerate():
        if thread not in before and thread.name.startswith("ferromq-"):
            thread.join(PATIENCE)
            assert not thread.is_alive(), f"{thread.name} is left"


@pytest.fixture(autouse=True)
def failed_tests_kill_their_children(monkeypatch: pytest.MonkeyPatch) -> None:
    """End the child of a `with` at an exception: else the test waits for it for ever."""

    def leave(
        process: "subprocess.Popen[bytes]",
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            process.kill()
        _plain_exit(process, kind, error, trace)

    monkeypatch.setattr(subprocess.Popen, "__exit__", leave)


@pytest.fixture
def no_process_left() -> Iterator[None]:
    """Kill the children that a test leaves, and fail; earlier ones, such as a JVM, stay."""
    before = _children()
    yield
    left = _children() - before
    give_up = time.monotonic() + PATIENCE
    while left and time.monotonic() < give_up:
        # A child that was just signalled may still be ending.
        time.sleep(0.01)
        left &= _children()
    commands = []
    for child in left:
        with contextlib.suppress(OSError):  # it has ended meanwhile
            commands.append(Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ").decode())
            os.kill(child, signal.SIGKILL)
    assert not commands, f"left: {commands}"


def _children() -> set[int]:
    """Return the running children of this process; none if the system does not list them."""
    found = set()
    for path in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):  # the thread has ended meanwhile
            found |= {int(word) for word in path.read_text().split()}
    return {child for child in found if _runs(child)}


def _runs(child: int) -> bool:
    try:
        status = Path(f"/proc/{child}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"
