"""The option `limits`: what its entries say, how they are given, and which are refused."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferromq.config.broker import BrokerConfig
from ferromq.config.limits import Limit, parse_limits
from ferromq.config.namesrv import NameServerConfig
from ferromq.errors import ConfigError

RATES = st.none() | st.integers(1, 1 << 40)
NAMES = st.none() | st.sampled_from(["*", "orders", "a|b-c", "größe"])


def written(limit: Limit) -> str:
    """Return the text of an entry."""
    words = [f"{name}={value}" for name, value in (("user", limit.user), ("topic", limit.topic)) if value is not None]
    if limit.rates is not None:
        (send, send_bytes), (receive, receive_bytes) = limit.rates
        rates = {"send": send, "send_bytes": send_bytes, "receive": receive, "receive_bytes": receive_bytes}
        words += [f"{name}={'none' if value is None else value}" for name, value in rates.items()]
    return " ".join(words if limit.connections is None else [*words, f"connections={limit.connections}"])


@given(st.builds(Limit, NAMES, NAMES, st.none() | st.tuples(st.tuples(RATES, RATES), st.tuples(RATES, RATES)), RATES))
def test_an_entry_is_read_as_it_is_written(limit: Limit) -> None:
    """Whatever it limits."""
    if limit.topic is not None or limit.user is None:
        limit = limit._replace(connections=None)
    is_whole = (limit.user or limit.topic) and (limit.rates or limit.connections)
    if is_whole:
        assert parse_limits((written(limit),)) == [limit]


def test_rates_and_connections_are_given_apart() -> None:
    """An entry of one kind leaves the other to the next closest entry; `none` lifts it."""
    assert parse_limits(("user=ada connections=5", "user=* connections=none send=1")) == [
        Limit("ada", None, None, 5),
        Limit("*", None, ((1, None), (None, None)), (1 << 63) - 1),
    ]


@given(st.text(max_size=60))
def test_any_text_is_an_entry_or_a_configuration_error(text: str) -> None:
    """No other exception comes out."""
    try:
        (limit,) = parse_limits((text,))
    except ConfigError:
        return
    assert limit.user or limit.topic


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ("send=5", "not complete"),
        ("topic=orders", "not complete"),
        ("topic=orders rate=5", "'rate=5' is wrong"),
        ("topic=orders send", "'send' is wrong"),
        ("topic=orders send=1 send=2", "'send=2' is wrong"),
        ("topic=orders send=0", "may be 1 to"),
        ("topic=orders send=many", "where send is many"),
        ("", "not complete"),
        ("user=ada connections=0", "may be 1 to"),
        ("topic=orders connections=5", "with user=NAME and without topic"),
        ("user=ada topic=* connections=none", "with user=NAME and without topic"),
    ],
)
def test_a_wrong_entry_is_named_with_the_way_out(entry: str, why: str) -> None:
    """The error shows the entry and its form."""
    with pytest.raises(ConfigError, match=re.escape(why)):
        parse_limits((entry,))


def test_two_entries_for_the_same_names_are_refused() -> None:
    """Only one of them could hold."""
    with pytest.raises(ConfigError, match="two entries"):
        BrokerConfig.from_options({"limits": ["topic=a send=1", "send=2 topic=a"]})


def test_entries_come_from_files_environment_and_flags(tmp_path: Path) -> None:
    """As a list in TOML, and joined by semicolons elsewhere, RocketMQ's format included."""
    wanted = ("topic=* send=1000", "user=ada send_bytes=4MiB")
    joined = "; ".join(wanted)
    toml, conf = tmp_path / "b.toml", tmp_path / "b.conf"
    toml.write_text(f"limits = {list(wanted)}\n")
    conf.write_text(f"limits={joined}\n")
    loaded = [
        BrokerConfig.load(toml),
        BrokerConfig.load(conf),
        BrokerConfig.load(environment={"FERROMQ_BROKER_LIMITS": joined}),
        BrokerConfig.load(flags={"limits": joined}),
    ]
    assert [config.access.limits for config in loaded] == [wanted] * 4
    assert parse_limits(wanted)[1] == Limit("ada", None, ((None, 4 << 20), (None, None)))


def test_a_name_server_has_no_messages_to_limit() -> None:
    """The error says where the option belongs."""
    with pytest.raises(ConfigError, match="option of brokers"):
        NameServerConfig.from_options({"limits": "topic=* send=1"})
