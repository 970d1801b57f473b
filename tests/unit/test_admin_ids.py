"""The times in message ids, the versions in numbers, and the tables in the bodies of brokers' answers."""

import contextlib
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferromq.admin.inventory import version_text
from ferromq.admin.messages import location, sent_at
from ferromq.protocol.message_queue import load_nested, table_of

NOW = datetime(2026, 11, 28, 21, 30, tzinfo=UTC)


def remoting_id(since_month: timedelta, prefix: str = "7F000001162818B4AAC2") -> str:
    """Return an id as RocketMQ's Java clients make it: address, process, hash, milliseconds of the month, number."""
    return f"{prefix}{round(since_month.total_seconds() * 1000):08X}0003"


def test_the_time_of_a_grpc_id_is_in_seconds_since_2021() -> None:
    """Behind version, MAC address and process id."""
    seconds = (NOW - datetime(2021, 1, 1, tzinfo=UTC)).total_seconds()
    assert sent_at(f"01AABBCCDDEEFF1234{int(seconds):08X}00000007", NOW) == NOW
    assert sent_at("02" + "0" * 32, NOW) is None


@pytest.mark.parametrize("prefix", ["7F000001162818B4AAC2", "00" * 16 + "162818B4AAC2"])
def test_the_time_of_a_remoting_id_is_the_last_one_in_a_month(prefix: str) -> None:
    """A later day of this month means last month. A day that no month has gives no time."""
    ago = timedelta(days=3)
    month = NOW.replace(day=1, hour=0, minute=0)
    assert sent_at(remoting_id(NOW - ago - month, prefix), NOW) == NOW - ago
    late = timedelta(days=30)
    assert sent_at(remoting_id(late, prefix), NOW) == datetime(2026, 10, 31, tzinfo=UTC)
    assert sent_at(remoting_id(timedelta(days=40), prefix), NOW) is None


@given(st.text(max_size=60) | st.text("0123456789abcdefABCDEF", min_size=30, max_size=60))
def test_any_text_is_an_id_or_none(text: str) -> None:
    """And an id's time is after 1970."""
    found = sent_at(text, NOW)
    assert found is None or found.timestamp() > 0
    place = location(text)
    assert place is None or (0 < place.port < 1 << 16 and place.offset >= 0)


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0"), (211, "211"), (213, "4.0.0"), (401, "4.9.4"), (513, "5.5.0"), (512, "5.5.0-SNAPSHOT")],
)
def test_versions_have_rocketmqs_numbers(number: int, text: str) -> None:
    """Regular ones since 4.0.0; older ones keep their number."""
    assert version_text(number) == text


@given(st.binary(max_size=200) | st.text(max_size=100).map(str.encode))
def test_any_bytes_are_a_body_or_a_value_error(body: bytes) -> None:
    """Nothing else is raised."""
    with contextlib.suppress(ValueError):
        table_of(load_nested(body), "offsetTable")
