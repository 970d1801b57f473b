"""
Makes what the fixtures of the pytest plugin yield; the plugin itself imports this on first use.

It decides which broker a test gets: the one of the session, or one of its own.
"""

import contextlib
import itertools
import random
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from ferromq.process.clock import default_for_clients
from ferromq.testing.broker import Broker
from ferromq.testing.clock import VirtualClock
from ferromq.testing.faults import Faults
from ferromq.testing.running import Running, RunningBehindProxies

BROKER, SESSION, CLOCK, FAULTS = "ferromq_broker", "ferromq_session_broker", "ferromq_clock", "ferromq_faults"
_SEEDS = 1 << 32
_LATE = (
    "{} was requested after the test's broker had started without it; name it among the arguments of the test, or of a "
    "fixture that the test names"
)

_turns = itertools.count(1)
"""The number of each test with names on the broker of the session, in this process."""
_has_started = pytest.StashKey[bool]()


@contextlib.contextmanager
def broker_of_session(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """Run a broker for a whole session; its names have the number 0."""
    with contextlib.closing(Running({})) as running, Broker(running, _suffix(request.config, 0)) as broker:
        yield broker


@contextlib.contextmanager
def broker_of_test(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """Yield the session's broker under names of this test, or run one for the test alone."""
    marks = list(request.node.iter_markers(BROKER))
    wanted = {CLOCK, FAULTS} & set(request.fixturenames)
    if not marks and not wanted and request.config.getini(BROKER) == "session":
        session: Broker = request.getfixturevalue(SESSION)
        request.node.stash[_has_started] = True
        with session.of_test(_suffix(request.config, next(_turns))) as broker:
            yield broker
        return
    clock: VirtualClock | None = request.getfixturevalue(CLOCK) if CLOCK in wanted else None
    options = _options(marks)
    with contextlib.ExitStack() as closing:
        request.node.stash[_has_started] = True
        faults: Faults | None = None
        if FAULTS in wanted:
            directory = request.getfixturevalue("tmp_path_factory").mktemp("ferromq")
            behind = RunningBehindProxies(options, directory, clock)
            running: Running = closing.enter_context(contextlib.closing(behind))
            faults = Faults(behind, _seed(request))
        else:
            running = closing.enter_context(contextlib.closing(Running(options, clock)))
        yield closing.enter_context(Broker(running, faults=faults))


@contextlib.contextmanager
def clock_of_test(request: pytest.FixtureRequest) -> Iterator[VirtualClock]:
    """Yield a virtual clock, from which delays of this process's clients count. Raises `RuntimeError` if it is late."""
    if _has_started in request.node.stash:
        raise RuntimeError(_LATE.format(CLOCK))
    clock = VirtualClock()
    with default_for_clients(clock):
        yield clock


def faults_of_test(broker: Broker) -> Faults:
    """Return the faults of a test's broker. Raises `RuntimeError` if it was started without."""
    if broker.faults is None:
        raise RuntimeError(_LATE.format(FAULTS))
    return broker.faults


def _options(marks: list[pytest.Mark]) -> dict[str, Any]:
    """Return the options of all markers of a test; the closest one counts."""
    options: dict[str, Any] = {}
    for mark in reversed(marks):
        if mark.args:
            raise pytest.UsageError(
                f"the marker {BROKER} has the argument {mark.args[0]!r}; it takes options of the broker by name: "
                f'@pytest.mark.{BROKER}(flush="group")'
            )
        options |= mark.kwargs
    return options


def _seed(request: pytest.FixtureRequest) -> int:
    """Return the seed of a test's faults, and have pytest print it if the test fails."""
    given: int | None = request.config.getoption("--ferromq-seed")
    seed = random.SystemRandom().randrange(_SEEDS) if given is None else given
    request.node.add_report_section("call", FAULTS, f"seed={seed}; --ferromq-seed={seed} repeats its decisions")
    return seed


def _suffix(config: pytest.Config, turn: int) -> str:
    """Return what makes names unique: a number, and the worker of pytest-xdist."""
    worker: Mapping[str, str] = getattr(config, "workerinput", {})
    return f"-{turn}-{worker.get('workerid', 'main')}"
