"""One row of `make matrix`: a client without a polling timeout, against RocketMQ and against ferromq."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from compat_peer import ROOT

_CANNOT_FETCH = 77
_LIMIT_S = 400.0
_END_S = 90.0
_CHECKS = "send acknowledge tags sql order delay late_ack second_ack unknown_topic wrong_type"
"""Those of a simple consumer and of refusals; the others take longer, and run nightly."""


@pytest.mark.timeout(_LIMIT_S + 2 * _END_S)
def test_javas_client_5_0_3_finds_no_difference_without_a_reason(tmp_path: Path) -> None:
    """The same program against both; RocketMQ's failures on a busy machine are left to the nightly rows."""
    output = tmp_path / "output"
    command = [sys.executable, str(ROOT / "tests" / "matrix" / "run.py")]
    with output.open("w") as log:
        process = subprocess.Popen(
            [*command, "--only", "java-grpc-5.0.3", "--checks", _CHECKS, "--skip", "--ours"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            start_new_session=True,
        )
    try:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_LIMIT_S)
    finally:
        _end(process)
    if process.returncode == _CANNOT_FETCH:
        pytest.skip(output.read_text())
    assert process.returncode == 0, output.read_text()[-6_000:]


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the running processes: first with a signal that lets them end their children."""
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_END_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
