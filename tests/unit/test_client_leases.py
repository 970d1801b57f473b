"""A consumer's log of refused acknowledgements; time is an argument."""

import logging

import pytest

from ferromq.core.leases import Refusals
from ferromq.errors import LeaseExpired, RequestTimeout
from ferromq.process.limited_log import LimitedLog

STALE = LeaseExpired("the lease ended")


def test_each_refusal_is_counted_by_one_line(caplog: pytest.LogCaptureFixture) -> None:
    """Five lines in ten seconds; the next one counts those in between, the last one the rest."""
    now = [0.0]
    log = logging.getLogger("ferromq.client")
    refusals = Refusals(LimitedLog(log, now=lambda: now[0]))
    for _ in range(100):
        refusals.add([(1, STALE), (1, STALE)])
    refusals.add([])
    now[0] = 10.0
    for _ in range(50):
        refusals.add([(3, STALE)])
    refusals.end()
    refusals.end()
    counts = [record.args[0] for record in caplog.records if isinstance(record.args, tuple)]
    assert counts == [2, 2, 2, 2, 2, 190 + 3, 3, 3, 3, 3, 45 * 3]


def test_the_first_refusal_is_taken_with_the_number_of_all() -> None:
    """And once, independent of the log."""
    refusals = Refusals()
    for _ in range(20):
        refusals.add([(2, RequestTimeout("first")), (1, STALE)])
    error = refusals.take()
    assert isinstance(error, RequestTimeout)
    assert "60 acknowledgements failed" in error.__notes__[0]
    assert refusals.take() is None
