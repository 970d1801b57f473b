"""Log lines that clients can cause at will."""

import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from ferromq._proto import messages as pb
from ferromq.broker.grpc_answers import rpc
from ferromq.namesrv.route_info import RouteInfoManager
from ferromq.namesrv.route_types import RegisteredTopics, Registration
from ferromq.process.limited_log import LimitedLog
from ferromq.protocol.codes import ResponseCode
from ferromq.protocol.remoting import guarded


def test_a_flood_is_a_few_lines_and_a_number(caplog: pytest.LogCaptureFixture) -> None:
    """Five in ten seconds, and then one that counts the rest."""
    now = [0.0]
    seldom = LimitedLog(logging.getLogger("ferromq.test"), now=lambda: now[0])
    with caplog.at_level(logging.INFO, "ferromq.test"):
        for number in range(1000):
            assert seldom.log(logging.WARNING, "refused number=%d", number) is (number < 5)
        assert [record.getMessage() for record in caplog.records] == [f"refused number={n}" for n in range(5)]
        now[0] = 10.0
        for number in range(2):
            seldom.log(logging.INFO, "again number=%d", number)
    assert [record.getMessage() for record in caplog.records[5:]] == ["again number=0 suppressed=995", "again number=1"]


FAILURES = [OSError(28, "full"), OSError(5, "broken"), RuntimeError("broken")]
REQUEST: Any = SimpleNamespace(route="1", peer="here", body=b"")


def failing(error: Exception) -> Callable[..., Any]:
    """Return a handler that fails."""

    def handler(*_: object) -> Any:
        raise error

    return handler


@pytest.mark.parametrize("error", FAILURES)
def test_requests_that_fail_are_answered_each_and_logged_a_few_times(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """Over both protocols; an unexpected failure with its traceback."""
    remoting = guarded(failing(error))
    over_grpc = rpc(pb.HeartbeatRequest, pb.HeartbeatResponse, failing(error))
    for _ in range(100):
        assert remoting(REQUEST)[0] != ResponseCode.SUCCESS
        assert pb.HeartbeatResponse.FromString(over_grpc(REQUEST)).status.code == pb.Code.INTERNAL_SERVER_ERROR
    is_full = error is FAILURES[0]
    for name in ("ferromq.remoting", "ferromq.grpc"):
        records = [record for record in caplog.records if record.name == name]
        assert len(records) == 5
        assert all(bool(record.exc_info) is not is_full for record in records)


def test_registrations_that_are_refused_are_logged_a_few_times(caplog: pytest.LogCaptureFixture) -> None:
    """Each names a broker, which may have a very long name."""
    routes = RouteInfoManager()
    for number in range(100):
        broker = Registration("c", "h:1", f"{number}" + "x" * 10_000, 0)
        assert routes.register(broker, RegisteredTopics(is_change=True), 0) is None
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 5
    assert max(map(len, lines)) < 500
