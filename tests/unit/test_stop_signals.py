"""A server's wait for the signal that stops it: the first one is never missed."""

import os
import signal
import subprocess
import sys

import pytest

BOTH = (signal.SIGINT, signal.SIGTERM)
HEAD = """
import os, signal, sys, threading
from ferromq.process.stop_signals import StopSignals
def kill(number):
    os.kill(os.getpid(), number)
"""
# A signal that a thread receives does not wake the main thread's wait for a lock: it shows on every run what a signal
# between the interpreter's look at pending signals and its wait shows on one run of a hundred.
ANOTHER_THREAD_RECEIVES_IT = """
def receive(is_blocked, number):
    is_blocked.wait()
    kill(number)
for number in map(int, sys.argv[1:]):
    with StopSignals() as stop:
        is_blocked = threading.Event()
        threading.Thread(target=receive, args=(is_blocked, number)).start()
        signal.pthread_sigmask(signal.SIG_BLOCK, [number])
        is_blocked.set()
        stop.wait()
    print("stopped")
"""
IT_COMES_BEFORE_THE_WAIT = """
for number in map(int, sys.argv[1:]):
    with StopSignals() as stop:
        kill(number)
        stop.wait()
    print("stopped")
"""
ANOTHER_SIGNAL_COMES_FIRST = """
for number in map(int, sys.argv[1:]):
    with StopSignals() as stop:
        signal.signal(signal.SIGUSR1, lambda *_: threading.Thread(target=kill, args=(number,)).start())
        kill(signal.SIGUSR1)
        stop.wait()
    print("stopped")
"""
A_SECOND_ONE_COMES = """
number = int(sys.argv[1])
with StopSignals() as stop:
    kill(number)
    stop.wait()
    print("stopping", flush=True)
    kill(number)
    print("stopped", flush=True)
"""


def run(program: str, *numbers: int) -> tuple[int, str]:
    """Run a program to its end; return exit code and output."""
    environment = {**os.environ, "FERROMQ_LOG": "warn"}
    command = [sys.executable, "-c", HEAD + program, *(str(int(number)) for number in numbers)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False, env=environment)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("program", [ANOTHER_THREAD_RECEIVES_IT, IT_COMES_BEFORE_THE_WAIT, ANOTHER_SIGNAL_COMES_FIRST])
def test_the_first_signal_stops_it(program: str) -> None:
    """In any thread, however early, and after any other signal."""
    assert run(program, *BOTH) == (0, "stopped\n" * len(BOTH))


@pytest.mark.parametrize("number", BOTH)
def test_a_second_one_ends_the_process_at_once(number: int) -> None:
    """As the system does with a signal that no program handles."""
    assert run(A_SECOND_ONE_COMES, number) == (-number, "stopping\n")


A_HANGUP_COMES_EARLY = """
with StopSignals(takes_hangup=True) as stop:
    kill(signal.SIGHUP)
    stop.on_hangup(lambda: print("read again", flush=True))
    kill(signal.SIGTERM)
    stop.wait()
    kill(signal.SIGHUP)
    print("stopped", flush=True)
"""
A_SERVER_WITH_A_FILE_STARTS = """
from types import SimpleNamespace
from ferromq.cli.servers import _server_process
with _server_process(SimpleNamespace(config="broker.toml", log_level=None, log_format=None)) as stop:
    kill(signal.SIGHUP)
    print("started")
"""


def test_a_hangup_before_the_wait_is_kept() -> None:
    """It ends no server that starts or stops."""
    assert run(A_HANGUP_COMES_EARLY) == (0, "read again\nstopped\n")
    assert run(A_SERVER_WITH_A_FILE_STARTS) == (0, "started\n")


def test_a_hangup_ends_a_server_without_a_file() -> None:
    """Its terminal is gone, and it has nothing to read again."""
    without = A_SERVER_WITH_A_FILE_STARTS.replace('"broker.toml"', "None")
    assert run(without) == (-signal.SIGHUP, "")
