"""Log lines that clients can cause as often as they like."""

import logging

import pytest

from ferromq._seldom import Seldom


def test_a_flood_is_a_few_lines_and_a_number(caplog: pytest.LogCaptureFixture) -> None:
    """Five in ten seconds, and then one that counts the rest."""
    now = [0.0]
    seldom = Seldom(logging.getLogger("ferromq.test"), now=lambda: now[0])
    with caplog.at_level(logging.INFO, "ferromq.test"):
        for number in range(1000):
            assert seldom.log(logging.WARNING, "refused number=%d", number) is (number < 5)
        assert [record.getMessage() for record in caplog.records] == [f"refused number={n}" for n in range(5)]
        now[0] = 10.0
        for number in range(2):
            seldom.log(logging.INFO, "again number=%d", number)
    assert [record.getMessage() for record in caplog.records[5:]] == ["again number=0 left_out=995", "again number=1"]
