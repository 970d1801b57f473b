"""What all pipeline commands share: arguments, output and exit codes."""

import argparse
import io
import json
import subprocess
import sys
from typing import Any

import pytest

from ferromq.errors import ConfigError
from ferromq.pipeline.command import shared
from ferromq.pipeline.command.summary import Summary
from ferromq.pipeline.command.task_progress import TaskProgress

WITHOUT_PYSPARK = """
import importlib.util, sys
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "pyspark" else find(name, *rest)
from ferromq.cli.main import main
code = main(sys.argv[1:])
print("pyspark" in sys.modules)
sys.exit(code)
"""


def run_without_pyspark(*words: str) -> subprocess.CompletedProcess[str]:
    """Run the command line where PySpark cannot be found."""
    return subprocess.run([sys.executable, "-c", WITHOUT_PYSPARK, *words], capture_output=True, text=True, check=False)


def arguments(**changes: Any) -> argparse.Namespace:
    """Return the defaults of the common arguments."""
    return argparse.Namespace(**{"master": None, "config": [], "json": False, "quiet": True} | changes)


def test_the_list_of_pipelines_needs_no_pyspark() -> None:
    """`ferromq pipeline` lists them, exits with 2 like a command without its action, and imports no PySpark."""
    done = run_without_pyspark("pipeline")
    assert done.returncode == 2
    assert "pipelines:" in done.stderr
    assert done.stdout == "False\n"


def test_a_pipeline_without_pyspark_says_the_pip_line() -> None:
    """With exit code 2 and no other output."""
    done = run_without_pyspark("pipeline", "stats", "--log", "store", "--topic", "orders")
    assert (done.returncode, done.stdout) == (2, "False\n")
    assert done.stderr == "ferromq: ferromq.spark needs pyspark, which is not installed: pip install 'ferromq[spark]'\n"


def test_a_workers_error_is_printed_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Without Spark's and Python's stack traces."""
    text = (
        "An exception was thrown from the Python worker:\nTraceback (most recent call last):\n  File …\n"
        "ferromq.errors.CorruptStore: 00000000000000000000 is broken at 91\n\n\tat org.apache.spark.Nothing\n"
    )

    def fail(_arguments: argparse.Namespace) -> int:
        raise shared.PySparkException(text)

    assert shared.guarded(fail, arguments()) == shared.ERROR
    assert capsys.readouterr().err == "ferromq: 00000000000000000000 is broken at 91\n"


def test_ctrl_c_ends_it_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """With the exit code of shells."""

    def stop(_arguments: argparse.Namespace) -> int:
        raise KeyboardInterrupt

    assert shared.guarded(stop, arguments()) == 130
    assert capsys.readouterr().err == "ferromq: stopped by Ctrl-C\n"


def test_a_setting_without_a_value_is_named() -> None:
    """Before Spark starts."""
    with (
        pytest.raises(ConfigError, match=r"--config is 'spark\.x'; allowed: KEY=VALUE"),
        shared.started(arguments(config=["spark.x"]), "audit"),
    ):
        raise AssertionError("started")


def test_a_summary_is_text_or_json(capsys: pytest.CaptureFixture[str]) -> None:
    """The same figures and tables; text separates thousands, JSON has keys without blanks."""
    summary = Summary("two queues")
    summary.add("messages read", 12_000)
    summary.table("by queue", ("queue id", "messages"), [(0, 5000), (1, 7000)], ">>", more=3)
    summary.show(arguments())
    assert capsys.readouterr().out == (
        "two queues\n  messages read  12,000\n\nby queue\n  queue id  messages\n"
        "         0     5,000\n         1     7,000\n  … and 3 more\n"
    )
    summary.show(arguments(json=True))
    assert json.loads(capsys.readouterr().out) == {
        "messages_read": 12000,
        "by_queue": [{"queue_id": 0, "messages": 5000}, {"queue_id": 1, "messages": 7000}],
    }


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        """Return true."""
        return True


def test_the_bar_ends_with_all_tasks_done(session: Any) -> None:
    """On a terminal it counts the tasks of the jobs in the context; elsewhere nothing is written."""
    terminal, plain = Terminal(), io.StringIO()
    with TaskProgress(session, "count", terminal):
        session.range(0, 100, 1, 3).rdd.count()
    assert terminal.getvalue().rstrip("\n").rsplit("\r", 1)[-1].split()[:5] == ["count", "100%", "3", "of", "3"]
    with TaskProgress(session, "count", plain):
        session.range(3).count()
    assert plain.getvalue() == ""


def test_the_active_session_is_used_and_left_running(session: Any) -> None:
    """A notebook that calls a pipeline keeps its session."""
    with shared.started(arguments(master="local[1]"), "stats") as spark:
        assert spark is session
    assert session.range(2).count() == 2
