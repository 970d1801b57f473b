"""The option for RocketMQ's behaviour, and the options that it sets."""

from datetime import timedelta
from pathlib import Path

import pytest

import ferromq
from ferromq._ferromq import Store
from ferromq.broker.administration.rocketmq_options import as_lines, flat, rocketmq_names
from ferromq.config.broker import BrokerConfig
from ferromq.config.compat import CompatConfig
from ferromq.config.proxy_file import options_of
from ferromq.errors import ConfigError


def _read(tmp_path: Path, text: str) -> CompatConfig:
    file = tmp_path / "broker.conf"
    file.write_text(text)
    return BrokerConfig.load(file, environment={}).compatibility


def test_one_word_sets_the_group() -> None:
    """By default what RocketMQ refuses is allowed."""
    assert BrokerConfig().compatibility.used == {
        "min_invisible_time": timedelta(milliseconds=1),
        "max_invisible_time": timedelta(hours=12),
        "max_delay_time": timedelta.max,
        "grpc_creates_topics": True,
        "ordered_redelivery": "unacknowledged",
    }
    assert BrokerConfig.from_options({"compat": "rocketmq"}).compatibility.used == {
        "min_invisible_time": timedelta(seconds=10),
        "max_invisible_time": timedelta(hours=12),
        "max_delay_time": timedelta(days=1),
        "grpc_creates_topics": False,
        "ordered_redelivery": "from_first",
    }


def test_an_option_that_is_given_wins_wherever_each_was_given(tmp_path: Path) -> None:
    """Also if `compat` comes from a stronger source; `none` returns an option to it."""
    file = tmp_path / "broker.conf"
    file.write_text(
        "minInvisibleTimeMillsForRecv=2000\nmaxInvisibleTimeMills=50000\nordered_redelivery=unacknowledged\n"
    )
    flags = {"compat": "rocketmq"}
    used = BrokerConfig.load(file, environment={}, flags=flags).compatibility.used
    assert (used["min_invisible_time"], used["max_invisible_time"]) == (timedelta(seconds=2), timedelta(seconds=50))
    assert (used["ordered_redelivery"], used["grpc_creates_topics"]) == ("unacknowledged", False)
    environment = {"FERROMQ_BROKER_MIN_INVISIBLE_TIME": "none", "FERROMQ_BROKER_MAX_INVISIBLE_TIME": "forever"}
    used = BrokerConfig.load(file, environment=environment, flags=flags).compatibility.used
    assert (used["min_invisible_time"], used["max_invisible_time"]) == (timedelta(seconds=10), timedelta.max)


def test_every_way_in_names_it(tmp_path: Path) -> None:
    """RocketMQ's file and TOML, environment and flags."""
    assert _read(tmp_path, "compat=rocketmq\n").compat == "rocketmq"
    toml = tmp_path / "broker.toml"
    toml.write_text('compat = "rocketmq"\nmax_delay_time = "2d"\n')
    assert BrokerConfig.from_file(toml).compatibility.used["max_delay_time"] == timedelta(days=2)
    assert BrokerConfig.load(environment={"FERROMQ_BROKER_COMPAT": "rocketmq"}).compatibility.compat == "rocketmq"


def test_a_limit_that_is_rocketmqs_largest_number_is_none(tmp_path: Path) -> None:
    """And is shown so again."""
    config = _read(tmp_path, f"maxDelayTimeMills={(1 << 63) - 1}\n")
    assert config.used["max_delay_time"] == timedelta.max
    shown = rocketmq_names({**flat(BrokerConfig()), **Store.check()})
    assert shown["maxDelayTimeMills"] == str((1 << 63) - 1)


@pytest.mark.parametrize("first", [0, 1])
def test_both_limits_of_an_invisible_time_may_be_moved(tmp_path: Path, first: int) -> None:
    """In either order, from any source: together they allow values that each alone does not."""
    lines = ["minInvisibleTimeMillsForRecv=50000000\n", "maxInvisibleTimeMills=90000000\n"]
    used = _read(tmp_path, lines[first] + lines[1 - first]).used
    assert used["max_invisible_time"] == timedelta(hours=25)
    toml = tmp_path / "broker.toml"
    toml.write_text('min_invisible_time = "13h"\nmax_invisible_time = "24h"\n')
    assert BrokerConfig.load(toml, environment={}).compatibility.used["min_invisible_time"] == timedelta(hours=13)
    environment = {"FERROMQ_BROKER_MIN_INVISIBLE_TIME": "13h", "FERROMQ_BROKER_MAX_INVISIBLE_TIME": "24h"}
    assert BrokerConfig.load(environment=environment).compatibility.used["max_invisible_time"] == timedelta(days=1)
    proxy = tmp_path / "rmq-proxy.json"
    proxy.write_text('{"minInvisibleTimeMillsForRecv": 50000000, "maxInvisibleTimeMills": 90000000}')
    assert BrokerConfig.load(beside=options_of(proxy), environment={}).compatibility.used == used
    with pytest.raises(ConfigError, match="min_invisible_time is 13h, above max_invisible_time, 12h"):
        BrokerConfig.load(environment={"FERROMQ_BROKER_MIN_INVISIBLE_TIME": "13h"})


@pytest.mark.parametrize("value", ["-5", "0"])
def test_a_limit_in_a_file_is_more_than_nothing(tmp_path: Path, value: str) -> None:
    """As it is for an embedded broker."""
    with pytest.raises(ConfigError, match=f"^minInvisibleTimeMillsForRecv={value} in line 1 of "):
        _read(tmp_path, f"minInvisibleTimeMillsForRecv={value}\n")
    with pytest.raises(ConfigError, match=f"^min_invisible_time is {value}ms; it must be 1 ms or more"):
        ferromq.embedded(min_invisible_time=timedelta(milliseconds=int(value)))


def test_what_counts_is_shown() -> None:
    """Under RocketMQ's names and ours."""
    options = {**flat(BrokerConfig.from_options({"compat": "rocketmq", "max_delay_time": "2d"})), **Store.check()}
    lines = as_lines(options).splitlines()
    assert {
        *("minInvisibleTimeMillsForRecv=10000", "maxInvisibleTimeMills=43200000", "maxDelayTimeMills=172800000"),
        *("compat=rocketmq", "min_invisible_time=10s", "max_delay_time=2d", "grpc_creates_topics=false"),
        "ordered_redelivery=from_first",
    } <= set(lines)


@pytest.mark.parametrize(
    ("option", "value", "reason"),
    [
        ("compat", "kafka", "generous, rocketmq"),
        ("ordered_redelivery", "all", "unacknowledged, from_first"),
        ("min_invisible_time", "13h", "above max_invisible_time"),
        ("max_invisible_time", "0s", "1 ms or more"),
        ("max_delay_time", "0s", "1 ms or more"),
        ("grpc_creates_topics", "maybe", "true or false"),
    ],
)
def test_an_invalid_value_is_named(option: str, value: str, reason: str) -> None:
    """With the valid values."""
    with pytest.raises(ConfigError, match=reason):
        BrokerConfig.from_options({option: value})
