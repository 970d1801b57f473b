"""`ferromq bench send` and `receive`: what they measure, what they leave behind, and how they end."""

import itertools
import json
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from dispatching import dispatched
from hypothesis import given
from hypothesis import strategies as st

import ferromq
from ferromq.cli import main as cli
from ferromq.cli.administration import bench


def ran(*words: str) -> tuple[int, str, str]:
    """Run a command in this process; return exit code, output and errors."""
    with CliRunner().isolation("") as (out, error, _):
        return cli.main(["bench", *words]), out.getvalue().decode(), error.getvalue().decode()


@given(st.lists(st.floats(1e-6, 100), min_size=1, max_size=300), st.sampled_from([0.5, 0.99, 0.999]))
def test_a_share_is_at_most_one_percent_too_long(seconds: list[float], share: float) -> None:
    """And never too short; also of two that were merged."""
    halves = bench.Latencies(), bench.Latencies()
    for number, each in enumerate(seconds):
        halves[number % 2].add(each)
    halves[0].merge(halves[1])
    found = halves[0].share(share)
    exact = sorted(seconds)[-(-round(share * 1000) * len(seconds) // 1000) - 1]
    assert found is not None
    assert exact * 0.999999 <= found <= exact * 1.010001


@pytest.mark.parametrize("words", [("--threads", "2"), ("--batch", "30"), ("--rate", "5000", "--threads", "3")])
def test_sends_are_measured_and_nothing_is_left(words: tuple[str, ...]) -> None:
    """Exactly as many messages as wanted, in a temporary topic."""
    with ferromq.embedded() as mq:
        code, out, error = ran("send", "--count", "100", "--size", "10", *words, "--namesrv", mq.namesrv, "--json")
        assert (code, error) == (0, "")
        found = json.loads(out)
        assert (found["messages"], found["bytes"]) == (100, 1000)
        latency = found["latency_seconds"]
        assert 0 < latency["p50"] <= latency["p99"] <= latency["p99.9"] <= latency["max"] <= found["seconds"] + 1
        with mq.admin() as admin:
            assert admin.topics(system=False) == []


def test_receives_are_measured_and_nothing_is_left() -> None:
    """The temporary topic is filled first; each message counts once."""
    with ferromq.embedded() as mq:
        words = ("--count", "200", "--size", "10", "--threads", "2", "--batch", "7", "--endpoint", mq.endpoint)
        code, out, error = ran("receive", *words, "--json")
        assert (code, error) == (0, "")
        assert (json.loads(out)["messages"], json.loads(out)["bytes"]) == (200, 2000)
        with mq.admin() as admin:
            assert not [name for name in admin.topics() if "ferromq-bench-" in name]
            assert (admin.topics(system=False), admin.groups(system=False)) == ([], [])


def test_a_named_topic_is_used_after_a_question_and_stays() -> None:
    """A missing one is an error."""
    with ferromq.embedded() as mq, mq.admin() as admin:
        admin.create_topic("orders")
        words = ("orders", "--count", "3", "--namesrv", mq.namesrv)
        assert ran("send", *words)[0] == 2
        assert ran("send", *words, "--yes")[0] == 0
        assert ran("receive", *words, "--yes")[1].startswith("messages     3 in ")
        assert admin.topics(system=False) == ["orders"]
        assert ran("send", "nowhere", *words[1:], "--yes")[0] == 3


def test_ctrl_c_ends_it_with_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """With exit code 0, and without the temporary topic."""
    sent = threading.Event()

    class Interrupted(threading.Event):
        """Is interrupted once messages were sent."""

        def wait(self, timeout: float | None = None) -> bool:
            """Wait, or press Ctrl-C in the main thread."""
            if threading.current_thread() is threading.main_thread() and timeout == 3600.0:
                assert sent.wait(20)
                raise KeyboardInterrupt
            return super().wait(timeout)

    real = bench.Latencies.add

    def add(self: bench.Latencies, seconds: float) -> None:
        real(self, seconds)
        sent.set()

    names = {name: getattr(threading, name) for name in ("Thread", "Lock", "TIMEOUT_MAX")}
    monkeypatch.setattr(bench, "threading", SimpleNamespace(**names, Event=Interrupted))
    monkeypatch.setattr(bench.Latencies, "add", add)
    with ferromq.embedded() as mq:
        code, out, _ = ran("send", "--duration", "3600", "--namesrv", mq.namesrv, "--json")
        assert code == 0
        assert json.loads(out)["messages"] > 0
        with mq.admin() as admin:
            assert admin.topics(system=False) == []


def test_a_failure_ends_it_with_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the exit code of the failure; the temporary topic is deleted all the same, or named."""
    real, calls = ferromq.Producer.send, itertools.count()

    def send(*arguments: Any) -> Any:
        if next(calls) > 3:
            raise ferromq.ConnectionFailed("the broker is gone")
        return real(*arguments)

    monkeypatch.setattr(ferromq.Producer, "send", send)
    with ferromq.embedded() as mq, mq.admin() as admin:
        words = ("send", "--namesrv", mq.namesrv, "--duration", "20", "--json")
        code, out, error = ran(*words)
        assert (code, json.loads(out)["messages"], "the broker is gone" in error) == (4, 3, True)
        assert admin.topics(system=False) == []

        def refuse(_admin: ferromq.Admin, name: str) -> None:
            raise ferromq.ServerError(f"{name} stays")

        monkeypatch.setattr(ferromq.Admin, "delete_topic", refuse)
        assert "may be left over, and ferromq topic delete ferromq-bench-" in ran(*words)[2]


def test_too_few_messages_end_a_receive(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says so, and prints what was measured."""
    monkeypatch.setattr(bench, "_WAIT", 0.05)
    monkeypatch.setattr(bench, "_IDLE", 2)
    with ferromq.embedded() as mq:
        with mq.producer() as producer:
            producer.send_all("orders", [ferromq.Message(b"tea")] * 5)
        dispatched(mq)
        words = ("receive", "orders", "--yes", "--namesrv", mq.namesrv, "--json")
        code, out, error = ran(*words, "--count", "100", "--threads", "2")
        assert (code, json.loads(out)["messages"]) == (0, 5)
        assert error == "ferromq: orders had no further message for 2 s; wanted were 100\n"
        code, out, error = ran(*words, "--size", "7")
        assert (code, out, "leave it out with TOPIC" in error) == (2, "", True)


def test_nothing_is_left_over_of_a_cluster_that_is_away() -> None:
    """Nothing was made there."""
    code, out, error = ran("send", "--namesrv", "127.0.0.1:1", "--timeout", "2")
    assert (code, out, "left over" in error) == (4, "", False)
