"""One row of `make matrix`: a client that never says how long it waits, against the original and against ours."""

import subprocess
import sys

import pytest
from compat_peer import ROOT

_CANNOT_FETCH = 77


@pytest.mark.timeout(600)
def test_javas_client_5_0_3_finds_no_difference_without_a_reason() -> None:
    """The same program against both; the other rows run nightly."""
    command = [sys.executable, str(ROOT / "tests" / "matrix" / "run.py"), "--only", "java-grpc-5.0.3", "--skip"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    if done.returncode == _CANNOT_FETCH:
        pytest.skip(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr[-2_000:]
