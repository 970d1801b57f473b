"""The demo in a process of its own, and the examples on Spark."""

import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ferromq.demo import flights

EXAMPLES = Path(__file__).parents[2] / "examples"
FERROMQ = "import sys; from ferromq.cli.main import main; sys.exit(main())"


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_the_demo_does_all_its_steps() -> None:
    """`ferromq demo` exits with 0 and a table of its steps."""
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
    assert "All rows were as expected" in done.stdout


def test_the_spark_example_sums_what_it_sent(session: Any) -> None:
    """examples/spark_read.py reads its messages in the running session."""
    main = runpy.run_path(str(EXAMPLES / "spark_read.py"))["main"]
    assert main() == {"tea": 8, "coffee": 5, "milk": 2}


def test_the_log_example_counts_the_messages_of_the_files(session: Any) -> None:
    """examples/spark_log.py reads a store without a broker."""
    main = runpy.run_path(str(EXAMPLES / "spark_log.py"))["main"]
    assert main() == {"coffee": 4, "tea": 3}


def test_the_stream_example_counts_what_it_sent(session: Any, again: Any) -> None:
    """examples/spark_stream.py reads each message once, over two runs of its query."""
    main = runpy.run_path(str(EXAMPLES / "spark_stream.py"))["main"]
    assert again(main) == {"tea": 3, "coffee": 1, "milk": 1}


def test_the_example_draws_the_traffic_of_an_archive(
    session: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """examples/traffic_by_hour.py counts the flights of each hour like the table, and writes its picture."""
    monkeypatch.setenv("MPLBACKEND", "Agg")
    example = runpy.run_path(str(EXAMPLES / "traffic_by_hour.py"))
    assert example["send"](tmp_path / "store", 200) > 3
    traffic = example["count"](tmp_path / "store", tmp_path / "archive")
    expected = flights.load(200).table.groupby("hour").size()
    assert traffic.sum().astype(int).to_dict() == expected.to_dict()
    example["draw"](traffic, tmp_path / "traffic.png")
    assert (tmp_path / "traffic.png").read_bytes().startswith(b"\x89PNG")
