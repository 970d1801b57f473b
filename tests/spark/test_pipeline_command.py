"""What all pipeline commands share: arguments, output and exit codes."""

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ferromq.cli import main as cli
from ferromq.errors import ConfigError
from ferromq.pipeline import replay, stats
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


def arguments(**changes: Any) -> SimpleNamespace:
    """Return the defaults of the common arguments."""
    return SimpleNamespace(**{"master": None, "config": [], "json": False, "quiet": True} | changes)


def test_the_list_of_pipelines_needs_no_pyspark() -> None:
    """`ferromq pipeline` lists them, exits with 2 like a command without its action, and imports no PySpark."""
    done = run_without_pyspark("pipeline")
    assert done.returncode == 2
    assert "dead-letters" in done.stderr
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

    def fail(_arguments: SimpleNamespace) -> int:
        raise shared.PySparkException(text)

    assert shared.guarded(fail, arguments()) == shared.ERROR
    assert capsys.readouterr().err == "ferromq: 00000000000000000000 is broken at 91\n"


def test_ctrl_c_ends_it_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """With the exit code of shells."""

    def stop(_arguments: SimpleNamespace) -> int:
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
        # Spark notes the ends of tasks in a thread of its own.
        session.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    assert terminal.getvalue().rstrip("\r\n").rsplit("\r", 1)[-1].split()[:5] == ["count", "100%", "3", "of", "3"]
    with TaskProgress(session, "count", plain):
        session.range(3).count()
    assert plain.getvalue() == ""


def test_the_active_session_is_used_and_left_running(session: Any) -> None:
    """A notebook that calls a pipeline keeps its session."""
    with shared.started(arguments(master="local[1]"), "stats") as spark:
        assert spark is session
    assert session.range(2).count() == 2


@pytest.fixture
def found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """Return a function that runs the command `stats` or `replay`, and returns what the pipeline gets."""
    for variable in ("FERROMQ_ENDPOINT", "NAMESRV_ADDR", "FERROMQ_ACCESS_KEY", "FERROMQ_SECRET_KEY"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("FERROMQ_CONTEXTS", str(tmp_path / "contexts.json"))
    got: list[dict[str, Any]] = []

    def run(parameters: SimpleNamespace) -> int:
        keys = {name: os.environ.get(name) for name in ("FERROMQ_ACCESS_KEY", "FERROMQ_SECRET_KEY")}
        got.append(vars(parameters) | keys)
        return 0

    for module in (replay, stats):
        monkeypatch.setattr(module, "run", run)

    def call(*words: str, pipeline: str = "stats") -> dict[str, Any]:
        assert cli.main(["pipeline", pipeline, "--topic", "orders", *words]) == 0
        return got.pop()

    return call


def keep(name: str, *words: str) -> None:
    """Keep a context, which becomes the current one."""
    assert cli.main(["context", "add", name, *words]) == 0
    assert cli.main(["context", "use", name]) == 0


def test_a_pipeline_reads_from_the_brokers_of_a_context(
    found: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With its TLS options and keys, which leave the environment again; an address or files come before it."""
    secret = tmp_path / "secret"
    secret.write_text("hidden")
    trust = str(tmp_path / "ca.pem")
    keep("other", "--endpoint", "o:8081")
    keep("prod", "--namesrv", "n:9876", "--tls-trust", trust, "--access-key", "me", "--secret-file", str(secret))
    current = found()
    assert (current["namesrv"], current["endpoint"], current["tls_trust"]) == ("n:9876", None, trust)
    assert (current["FERROMQ_ACCESS_KEY"], current["FERROMQ_SECRET_KEY"]) == ("me", "hidden")
    assert not {"FERROMQ_ACCESS_KEY", "FERROMQ_SECRET_KEY"} & os.environ.keys()
    assert found("--context", "other")["endpoint"] == "o:8081"
    assert found("--namesrv", "n:9876")["tls_trust"] == trust
    given = found("--endpoint", "e:8081")
    assert (given["namesrv"], given["endpoint"], given["tls_trust"]) == (None, "e:8081", None)
    archived = found("--archive", "dir", pipeline="replay")
    assert (archived["namesrv"], archived["tls_trust"]) == (None, None)
    monkeypatch.setenv("FERROMQ_ENDPOINT", "v:8081")
    assert (found()["endpoint"], found()["namesrv"]) == ("v:8081", None)


def test_a_pipeline_takes_the_files_for_tls_from_the_environment(
    found: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the broker that is read, or that is sent to; a pipeline of files alone needs none."""
    monkeypatch.setenv("FERROMQ_TLS_TRUST", "own.pem")
    monkeypatch.setenv("FERROMQ_TLS_CERTIFICATE", "me.pem")
    monkeypatch.setenv("FERROMQ_TLS_KEY", "me.key")
    taken = found("--endpoint", "e:8081", "--tls-trust", "given.pem")
    assert [taken[f"tls_{name}"] for name in ("trust", "certificate", "key")] == ["given.pem", "me.pem", "me.key"]
    sent = found("--archive", "dir", "--to-endpoint", "e:8081", pipeline="replay")
    assert (sent["tls_trust"], sent["endpoint"], sent["archive"]) == ("own.pem", None, "dir")
    assert found("--log", "dir")["tls_trust"] is None


def test_what_a_context_cannot_give_a_pipeline_is_refused(
    found: Callable[..., dict[str, Any]], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A namespace, keys for the workers of a cluster, and a second source."""
    secret = tmp_path / "secret"
    secret.write_text("hidden")
    keep("spaced", "--namesrv", "n:9876", "--namespace", "eu")
    keep("signing", "--namesrv", "n:9876", "--access-key", "me", "--secret-file", str(secret))
    for words, told in (
        (("--context", "spaced"), "whole names of topics: eu%TOPIC"),
        (("--context", "signing", "--master", "spark://m:7077"), "do not reach the workers of spark://m:7077"),
        (("--context", "signing", "--log", "dir"), "--context and --log are two sources"),
        (("--context", "nowhere"), "there is no context 'nowhere'"),
    ):
        assert cli.main(["pipeline", "stats", "--topic", "orders", *words]) == 2
        assert told in capsys.readouterr().err
    assert found("--context", "signing", "--master", "local[2]")["FERROMQ_SECRET_KEY"] == "hidden"
