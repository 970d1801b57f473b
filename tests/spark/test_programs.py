"""The demo with all its steps, and the example that reads with Spark, each in a process of its own."""

import subprocess
import sys
from pathlib import Path

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


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_the_spark_example_prints_its_sums() -> None:
    """examples/spark_read.py reads what it sent."""
    done = subprocess.run([sys.executable, EXAMPLES / "spark_read.py"], capture_output=True, text=True, check=True)
    assert [line.split("|")[1:3] for line in done.stdout.splitlines() if line.startswith("|")][1:] == [
        ["    tea", "     8"],
        [" coffee", "     5"],
        ["   milk", "     2"],
    ]
