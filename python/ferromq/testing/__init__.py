"""
A pytest plugin for programs that send or receive messages.

Its fixtures give a test a real broker in its own process, time that the test moves, and faults on command; its
assertions compare messages.

    def test_an_order_is_announced(ferromq_broker):
        orders = ferromq_broker.topic("orders")
        place_order(ferromq_broker.endpoint, orders, "two teas")
        ferromq_broker.assert_sent(orders, [b"two teas"])

pytest loads it by itself wherever ferromq is installed. Until a test uses a fixture it imports nothing but pytest.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ferromq.testing.broker import Broker
    from ferromq.testing.clock import VirtualClock
    from ferromq.testing.expectations import Like
    from ferromq.testing.faults import Faults

__all__ = [
    "Broker",
    "Faults",
    "Like",
    "VirtualClock",
    "ferromq_broker",
    "ferromq_clock",
    "ferromq_faults",
    "ferromq_session_broker",
]

_HOMES = {"Broker": "broker", "Faults": "faults", "Like": "expectations", "VirtualClock": "clock"}
_SCOPES = ("session", "test")
_faults = pytest.StashKey["Faults"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option of the seed, and the setting of the broker."""
    parser.getgroup("ferromq").addoption(
        "--ferromq-seed",
        type=int,
        metavar="N",
        help="seed of the random faults of ferromq_faults; a failed test prints the one it had",
    )
    parser.addini(
        "ferromq_broker",
        "broker of a test that uses ferromq_broker: 'session', the same for all tests (default), or 'test', its own",
        default=_SCOPES[0],
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, and check the setting."""
    config.addinivalue_line(
        "markers",
        "ferromq_broker(**options): the test gets a broker of its own, with these options of ferromq.embedded",
    )
    scope = config.getini("ferromq_broker")
    if scope not in _SCOPES:
        raise pytest.UsageError(f"the setting ferromq_broker is {scope!r}; it may be {' or '.join(map(repr, _SCOPES))}")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """End the faults of a test before its fixtures end, so that clients can unregister."""
    if _faults in item.stash:
        item.stash[_faults].end()


@pytest.fixture(scope="session")
def ferromq_session_broker(request: pytest.FixtureRequest) -> "Iterator[Broker]":
    """Run a name server and a broker for the whole session, for programs that are started once for many tests."""
    with _fixtures().broker_of_session(request) as broker:
        yield broker


@pytest.fixture
def ferromq_broker(request: pytest.FixtureRequest) -> "Iterator[Broker]":
    """
    Yield a `Broker` with topics and groups of the test's own.

    It is the broker of the session, unless the test has the marker `ferromq_broker`, uses `ferromq_clock` or
    `ferromq_faults`, or the setting `ferromq_broker` is `test`.
    """
    with _fixtures().broker_of_test(request) as broker:
        if broker.faults is not None:
            request.node.stash[_faults] = broker.faults
        yield broker


@pytest.fixture
def ferromq_clock(request: pytest.FixtureRequest) -> "Iterator[VirtualClock]":
    """Yield the `VirtualClock` of the test's broker, from which ferromq's clients in this process count delays, too."""
    with _fixtures().clock_of_test(request) as clock:
        yield clock


@pytest.fixture
def ferromq_faults(ferromq_broker: "Broker") -> "Faults":
    """Return the `Faults` of the test's broker."""
    faults: Faults = _fixtures().faults_of_test(ferromq_broker)
    return faults


def _fixtures() -> Any:
    return import_module("ferromq.testing.fixtures")


if not TYPE_CHECKING:  # type checkers would accept any name

    def __getattr__(name: str) -> Any:
        """Import public names on first use."""
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
        return value
