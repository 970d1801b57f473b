"""`ferromq pipeline replay` and `compact` as commands: sources of rows, and errors."""

import json
import runpy
from pathlib import Path
from typing import Any

import pytest
from dispatching import dispatched

import ferromq
from ferromq.cli import main as cli
from ferromq.pipeline import archive


def summary(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    """Run a pipeline that succeeds, and return its summary."""
    assert cli.main(["pipeline", *words, "--quiet", "--json"]) == 0, capsys.readouterr().err
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_rows_come_from_a_topic_a_log_and_an_archive(
    session: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same messages: replayed from the topic, compacted from the log, compacted from its archive."""
    out = str(tmp_path / "archive")
    with ferromq.embedded(tmp_path / "store") as mq:
        with mq.producer() as producer:
            messages = [ferromq.Message(b"%d" % number, keys=f"k{number % 5}") for number in range(30)]
            producer.send_all("orders", messages)
        dispatched(mq)
        to = ("--to", "again", "--rate", "100000", "--exactly-once", "once")
        assert summary(capsys, "replay", "--endpoint", mq.endpoint, "--topic", "orders", *to)["sent"] == 30
    log = archive.log_parts([str(tmp_path / "store")])
    for part in log:
        archive.archive_file(part, out)
    latest = str(tmp_path / "latest")
    of_archive = summary(capsys, "compact", "--archive", out, "--topic", "orders,again", "--output", latest)
    assert (of_archive["messages"], of_archive["keys"], of_archive["without_key"]) == (60, 10, 0)
    assert session.read.parquet(latest).where("topic = 'orders'").count() == 5
    early = ("--end", "2020-01-01T00:00Z", "--output", str(tmp_path / "none"))
    of_log = summary(capsys, "compact", "--log", str(tmp_path / "store"), "--topic", "orders", *early)
    assert (of_log["messages"], of_log["keys"]) == (0, 0)


@pytest.mark.parametrize("name", ["archive", "audit", "compact", "dead_letters", "replay", "stats"])
def test_each_pipelines_file_is_a_program(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`spark-submit` runs it; `--help` shows its arguments."""
    monkeypatch.setattr("sys.argv", [f"{name}.py", "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(Path(archive.__file__).with_name(f"{name}.py")), run_name="__main__")
    assert ended.value.code == 0
    assert f"ferromq pipeline {name.replace('_', '-')} " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["replay", "--to-endpoint", "h:1"],
            "the source is missing; allowed: one of --archive, --endpoint, --namesrv, --log",
        ),
        (["replay", "--archive", "a"], "no broker to send to; set --to-endpoint"),
        (["replay", "--endpoint", "h:1"], "the topic that is read; allowed: another topic"),
        (["replay", "--endpoint", "h:1", "--to", "t", "--rate", "-3"], "rate is -3.0; allowed: a number above 0"),
        (
            ["replay", "--log", "a", "--to-endpoint", "h:1", "--exactly-once", "a b"],
            "writer is 'a b'; allowed: 1 to 100",
        ),
        (["replay", "--log", "a", "--to-endpoint", "h:1", "--start", "noon"], "--start is 'noon'; allowed: ISO-8601"),
        (["compact", "--archive", "a"], "no destination, or two; allowed: --output PATH, or --to TOPIC"),
        (["compact", "--archive", "a", "--to", "t"], "--to has no broker to send to; set --to-endpoint HOST:PORT"),
        (["compact", "--archive", "a", "--output", "o", "--tombstone", "x"], "tombstone is 'x'; allowed: empty, none"),
    ],
)
def test_wrong_arguments_are_named_before_spark_starts(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the value, the allowed values and exit code 2."""
    assert cli.main(["pipeline", *words, "--topic", "orders"]) == 2
    assert said in capsys.readouterr().err
