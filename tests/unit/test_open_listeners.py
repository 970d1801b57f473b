"""The warning of listeners that face other hosts without access control."""

import logging

import pytest

from ferromq.access.exposure import warn_of_open_listeners
from ferromq.config.access import AccessConfig
from ferromq.protocol.endpoints import is_loopback


@pytest.mark.parametrize(
    ("host", "only_here"),
    [
        *((host, True) for host in ("127.0.0.1", "127.8.9.1", "LocalHost", "::1", "[::1]", "[::ffff:127.0.0.1]")),
        *((host, False) for host in ("0.0.0.0", "::", "[::]", "10.0.0.7", "[::ffff:10.0.0.7]", "mq.example", "")),
    ],
)
def test_only_this_machine_reaches_loopback(host: str, only_here: bool) -> None:
    """Also as IPv6 writes IPv4; names other than localhost may mean any address."""
    assert is_loopback(host) is only_here


def test_one_line_names_the_open_listeners_and_the_way_out(caplog: pytest.LogCaptureFixture) -> None:
    """Those of the loopback interface are not in it."""
    warn_of_open_listeners(["0.0.0.0:10911", "127.0.0.1:8081", "[::]:10909"], AccessConfig())
    (record,) = caplog.records
    text = record.getMessage()
    assert record.levelno == logging.WARNING
    assert "authentication_enabled" in text
    assert text.endswith("listeners=0.0.0.0:10911,[::]:10909")


@pytest.mark.parametrize(
    ("listeners", "access"),
    [(["127.0.0.1:1", "localhost:2"], AccessConfig()), (["0.0.0.0:1"], AccessConfig(authentication_enabled=True))],
)
def test_without_an_open_door_nothing_is_logged(
    listeners: list[str], access: AccessConfig, caplog: pytest.LogCaptureFixture
) -> None:
    """The loopback interface, or access control."""
    warn_of_open_listeners(listeners, access)
    assert not caplog.records
