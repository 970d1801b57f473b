"""The demo with all its steps, in a process of its own, and the example that reads with Spark."""

import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
FERROMQ = "import sys; from ferromq.cli import main; sys.exit(main())"


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_the_demo_does_all_its_steps() -> None:
    """`ferromq demo` ends with 0 and a table of what it did."""
    command = [sys.executable, "-c", FERROMQ, "demo", "--rows", "3000"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    steps = [line.split()[0] for line in done.stdout.splitlines() if "  " in line]
    assert [step for step in steps if step in {"sent", "consumed", "queried", "Spark", "acknowledged"}] == [
        "sent",
        "consumed",
        "queried",
        "Spark",
        "acknowledged",
    ]
    assert "All as it should be" in done.stdout


def test_the_spark_example_sums_what_it_sent(session: Any) -> None:
    """examples/spark_read.py reads what it sent, in the session that runs already."""
    main = runpy.run_path(str(EXAMPLES / "spark_read.py"))["main"]
    assert main() == {"tea": 8, "coffee": 5, "milk": 2}


def test_the_log_example_counts_what_lies_in_the_files(session: Any) -> None:
    """examples/spark_log.py reads a store whose broker is gone."""
    main = runpy.run_path(str(EXAMPLES / "spark_log.py"))["main"]
    assert main() == {"coffee": 4, "tea": 3}


def test_the_stream_example_counts_what_it_sent(session: Any) -> None:
    """examples/spark_stream.py reads each message once, over two runs of its query."""
    main = runpy.run_path(str(EXAMPLES / "spark_stream.py"))["main"]
    assert main() == {"tea": 3, "coffee": 1, "milk": 1}
