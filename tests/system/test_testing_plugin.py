"""The pytest plugin of `ferromq.testing`, as its users run it: pytest in a process of its own."""

import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

LOAD = """
import sys
import pytest
before = set(sys.modules)
import ferromq.testing
print(*sorted(set(sys.modules) - before))
"""
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Return a function that runs pytest on the text of a test file, with these arguments."""

    def run(text: str, *arguments: str, expected: int = 0, **files: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "test_it.py").write_text(textwrap.dedent(text))
        for name, content in files.items():
            (tmp_path / f"{name}.py").write_text(textwrap.dedent(content))
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "ferromq.testing",
            "-p",
            "no:randomly",
            "-p",
            "no:cacheprovider",
        ]
        done = subprocess.run(
            [*command, "-c", os.devnull, f"--rootdir={tmp_path}", *arguments, str(tmp_path / "test_it.py")],
            check=False,
            capture_output=True,
            text=True,
            timeout=50,
            cwd=tmp_path,
        )
        assert done.returncode == expected, done.stdout + done.stderr
        return done

    return run


def load() -> list[str]:
    """Load the plugin into a process of its own; return the modules that came with it."""
    done = subprocess.run([sys.executable, "-c", LOAD], check=True, capture_output=True, text=True, timeout=50)
    return done.stdout.split()


def test_a_project_that_uses_no_fixture_loads_next_to_nothing() -> None:
    """The plugin is loaded wherever ferromq is installed."""
    assert set(load()) == {
        "ferromq",
        "ferromq._ferromq",
        "ferromq.errors",
        "ferromq.message",
        "ferromq.process",
        "ferromq.process.clock",
        "ferromq.terminal",
        "ferromq.terminal.objects",
        "ferromq.testing",
    }


def test_tests_share_a_broker_under_names_of_their_own(run: Run) -> None:
    """In one process and in several; the session's fixture is the same broker."""
    text = """
        import pytest

        seen = []

        @pytest.fixture(scope="session")
        def service(ferromq_session_broker):
            return ferromq_session_broker.endpoint, ferromq_session_broker.topic("audit")

        @pytest.mark.parametrize("number", range(4))
        def test_it(request, ferromq_broker, service, number):
            topic, group = ferromq_broker.topic("orders"), ferromq_broker.group("billing")
            worker = getattr(request.config, "workerinput", {}).get("workerid", "main")
            assert topic.startswith("orders-") and topic.endswith(f"-{worker}")
            assert group == topic.replace("orders", "billing")
            assert service == (ferromq_broker.endpoint, f"audit-0-{worker}")
            seen.append(topic)
            assert len(set(seen)) == len(seen)
            ferromq_broker.assert_sent(topic, [])
            ferromq_broker.send(topic, b"one")
            ferromq_broker.assert_sent(topic, [b"one"])
    """
    assert "4 passed" in run(text).stdout
    assert "4 passed" in run(text, "-n", "2").stdout


OWN = """
    import pytest

    @pytest.mark.parametrize("number", range(2))
    def test_it(ferromq_broker, number):
        assert ferromq_broker.topic("orders") == "orders"
        ferromq_broker.send("orders", b"one")
        ferromq_broker.assert_sent("orders", [b"one"])
"""


def test_a_setting_gives_each_test_a_broker_of_its_own(run: Run) -> None:
    """A wrong value is named."""
    assert "2 passed" in run(OWN, "-o", "ferromq_broker=test").stdout
    done = run(OWN, "-o", "ferromq_broker=module", expected=4)
    assert "the setting ferromq_broker is 'module'; it may be 'session' or 'test'" in done.stderr


def test_a_marker_gives_a_test_a_broker_with_options(run: Run) -> None:
    """The closest one counts; wrong ones are named."""
    text = """
        import pytest

        pytestmark = pytest.mark.ferromq_broker(flush="group", default_queues=2)

        @pytest.mark.ferromq_broker(default_queues=3)
        def test_it(ferromq_broker):
            assert ferromq_broker.embedded.broker.config.default_queues == 3
            assert ferromq_broker.embedded.store.options()["flush"] == "group"
            assert ferromq_broker.topic("orders") == "orders"

        @pytest.mark.ferromq_broker("group")
        def test_wrong(ferromq_broker):
            pass

        @pytest.mark.ferromq_broker(flsh="group")
        def test_unknown(ferromq_broker):
            pass
    """
    done = run(text, "--strict-markers", expected=1)
    assert "1 passed, 2 errors" in done.stdout
    assert "the marker ferromq_broker has the argument 'group'; it takes options of the broker by name" in done.stdout
    assert "unknown option: flsh; did you mean flush?" in done.stdout


def test_clock_and_faults_give_a_test_a_broker_of_its_own(run: Run) -> None:
    """Together, and in any order of the arguments."""
    text = """
        import ferromq

        def test_clock(ferromq_clock, ferromq_broker):
            assert ferromq_broker.clock is ferromq_clock
            with ferromq.Producer(ferromq_broker.endpoint) as producer:
                ferromq_clock.advance(days=10)
                producer.send("reminders", b"one", delay=60)
            assert ferromq_broker.messages("reminders") == []
            ferromq_clock.advance(minutes=1)
            assert len(ferromq_broker.messages("reminders")) == 1

        def test_both(ferromq_faults, ferromq_broker, ferromq_clock):
            assert ferromq_broker.clock is ferromq_clock
            assert ferromq_broker.faults is ferromq_faults
            assert ferromq_broker.topic("orders") == "orders"

        def test_neither(ferromq_broker):
            assert not ferromq_broker.clock.is_manual
            assert ferromq_broker.topic("orders") != "orders"

        def test_a_clock_alone(ferromq_clock):
            ferromq_clock.advance(days=1)
    """
    assert "4 passed" in run(text).stdout


def test_a_clock_that_comes_late_is_an_error_that_says_so(run: Run) -> None:
    """So are faults: the broker has started without them."""
    text = """
        import pytest

        @pytest.mark.parametrize("own", [False, True])
        @pytest.mark.parametrize("name", ["ferromq_clock", "ferromq_faults"])
        def test_it(request, ferromq_broker, name, own):
            with pytest.raises(RuntimeError, match=f"{name} was requested after the test's broker had started"):
                request.getfixturevalue(name)
    """
    assert "4 passed" in run(text).stdout
    assert "4 passed" in run(text, "-o", "ferromq_broker=test").stdout


def test_faults_end_before_the_fixtures_of_the_test(run: Run) -> None:
    """A program can unregister at a broker that the test left hanging."""
    text = """
        import ferromq
        import pytest

        @pytest.fixture
        def service(ferromq_broker, ferromq_faults):
            with ferromq.Producer(ferromq_broker.endpoint) as producer:
                yield producer
                producer.send("orders", b"closed", timeout=5)

        @pytest.mark.parametrize("fault", ["hang", "refuse"])
        def test_it(ferromq_faults, service, fault):
            getattr(ferromq_faults, fault)()

        def test_down(ferromq_broker, ferromq_faults):
            ferromq_broker.send("orders", b"one")
            ferromq_faults.crash()
    """
    assert "3 passed" in run(text).stdout


def test_a_failed_test_prints_its_seed_and_the_option_sets_it(run: Run) -> None:
    """A passed one prints none."""
    text = """
        def test_it(ferromq_broker, ferromq_faults):
            print("DRAWN", ferromq_faults.random.random())
            ferromq_broker.assert_sent("orders", [b"one"])

        def test_passes(ferromq_broker, ferromq_faults):
            pass
    """
    done = run(text, expected=1)
    seeds = re.findall(r"seed=(\d+); --ferromq-seed=\1 repeats its decisions", done.stdout)
    assert len(seeds) == 1
    again = run(text, f"--ferromq-seed={seeds[0]}", expected=1)
    drawn = [re.findall(r"DRAWN (\S+)", each.stdout) for each in (done, again)]
    assert drawn[0] == drawn[1]
    assert f"--ferromq-seed={seeds[0]} repeats" in again.stdout


def test_a_failed_assertion_shows_the_messages_at_the_line_of_the_test(run: Run) -> None:
    """And none of the plugin's own code."""
    text = """
        def test_it(ferromq_broker):
            topic = ferromq_broker.topic("orders")
            ferromq_broker.send(topic, b"one", tag="new", keys="o-1", properties={"a": "1"})
            ferromq_broker.assert_sent(topic, [b"two"])
    """
    shown = run(text, expected=1).stdout
    assert "E       AssertionError: messages sent to orders-1-main: 1 expected, 1 found, 0 equal" in shown
    assert "  +   1  body=b'one' tag='new' keys=('o-1',) properties={'a': '1'}" in shown
    assert "body: expected b'two', found b'one'" in shown
    assert "def assert_sent" not in shown
    assert "test_it.py:5: AssertionError" in shown


def test_a_test_that_fails_leaves_nothing_behind(run: Run, tmp_path: Path) -> None:
    """Its clients are closed, its broker stops, and the directories of its stores are gone."""
    text = """
        def test_it(ferromq_broker, ferromq_faults):
            ferromq_broker.send("orders", b"one")
            ferromq_broker.consumer("billing", "orders").receive(1)
            ferromq_faults.crash()
            raise AssertionError("as planned")

        def test_shared(ferromq_broker):
            ferromq_broker.send("orders", b"one")
            raise AssertionError("as planned")
    """
    conftest = """
        import threading

        def pytest_unconfigure(config):
            left = [each for each in threading.enumerate() if each.name.startswith("ferromq-")]
            for each in left:
                each.join(10)
            print("LEFT", [each.name for each in left if each.is_alive()])
    """
    done = run(text, f"--basetemp={tmp_path / 'base'}", expected=1, conftest=conftest)
    assert "2 failed" in done.stdout
    assert "LEFT []" in done.stdout
    assert not list((tmp_path / "base").rglob("commitlog"))
