"""
Measures how long the pytest plugin takes: to load, and to start a broker for each test.

    python benches/testing.py [--tests 20]
"""

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

TEST = """
import pytest

@pytest.mark.parametrize("number", range({tests}))
def test_it(ferromq_broker, number):
    pass
"""
LOAD = """
import pytest, time
begin = time.perf_counter()
import ferromq.testing
print((time.perf_counter() - begin) * 1000)
"""


def main() -> None:
    """Print the time to load, and that of the first fixture and of the others."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tests", type=int, default=20, help="tests with a broker each (default: 20)")
    tests = parser.parse_args().tests
    load = [sys.executable, "-c", LOAD]
    times = [float(subprocess.run(load, check=True, capture_output=True, text=True).stdout) for _ in range(5)]
    print(f"load the plugin   {statistics.median(times):7.1f} ms ({min(times):.1f} to {max(times):.1f})")
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "test_it.py"
        path.write_text(TEST.format(tests=tests))
        command = [sys.executable, "-m", "pytest", "-p", "ferromq.testing", "-p", "no:randomly", "-c", os.devnull]
        shown = ["-o", "ferromq_broker=test", "--durations=0", "--durations-min=0", "-vv", str(path)]
        said = subprocess.run([*command, *shown], check=True, capture_output=True, text=True, cwd=directory).stdout
    first, *others = sorted(
        (float(found) for found in re.findall(r"^([\d.]+)s setup", said, re.MULTILINE)), reverse=True
    )
    print(f"first broker      {first * 1000:7.1f} ms")
    print(f"following brokers {statistics.median(others) * 1000:7.1f} ms (up to {max(others) * 1000:.1f})")


if __name__ == "__main__":
    main()
