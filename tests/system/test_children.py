"""The fixtures of the suite end the programs that a test starts."""

import subprocess
import sys
from pathlib import Path

CONFTEST = Path(__file__).parent.parent / "conftest.py"
TESTS = """
import subprocess, sys
import pytest

FOREVER = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(1000)"]

def test_that_leaves_one(no_process_left):
    process = subprocess.Popen(FOREVER, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "up\\n"
    print("pid", process.pid)

def test_that_fails():
    with subprocess.Popen(FOREVER, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "up\\n"
        print("pid", process.pid)
        assert False
"""


def test_no_program_outlives_the_test_that_started_it(tmp_path: Path) -> None:
    """It is killed, and the test fails, even if the test itself was interrupted."""
    (tmp_path / "conftest.py").write_text(CONFTEST.read_text().replace("PATIENCE = 10.0", "PATIENCE = 0.1"))
    (tmp_path / "test_it.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", "-p", "no:randomly", "test_it.py"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=50, cwd=tmp_path)
    assert "left: [" in done.stdout, done.stdout
    assert "1 failed, 1 passed, 1 error" in done.stdout, done.stdout
    pids = [line.split("pid ")[1] for line in done.stdout.splitlines() if "pid " in line]
    assert len(pids) == 2
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
