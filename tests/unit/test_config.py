"""Configuration: where values come from, who wins, and what an error says."""

from dataclasses import fields
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ferromq.config import LIMIT_FOR_QUEUES, BrokerConfig, NameServerConfig
from ferromq.errors import ConfigError


def write(path: Path, text: str) -> Path:
    """Write a configuration file."""
    path.write_text(text)
    return path


def test_later_sources_win(tmp_path: Path) -> None:
    """Defaults < file < environment < flags."""
    file = write(tmp_path / "b.toml", 'name = "file"\ncluster = "file"\ndefault_queues = 3\n')
    config = BrokerConfig.load(
        file,
        defaults={"store": "given", "name": "given"},
        environment={"FERROMQ_BROKER_CLUSTER": "environment", "FERROMQ_BROKER_NAME": "environment", "PATH": "/bin"},
        flags={"name": "flag", "flush": None},
    )
    assert (config.name, config.cluster, config.default_queues) == ("flag", "environment", 3)
    assert (config.store, config.flush) == ("given", "async")


def test_toml_values_have_units(tmp_path: Path) -> None:
    """Durations and sizes are written as people say them."""
    file = write(
        tmp_path / "b.toml",
        'register_interval = "500ms"\ncommit_log_file_size = "64MiB"\nflush_interval = 2\nnamesrv = ["a:1", "b:2"]\n',
    )
    config = BrokerConfig.from_file(file)
    assert config.register_interval == timedelta(milliseconds=500)
    assert config.commit_log_file_size == 64 << 20
    assert config.flush_interval == timedelta(seconds=2)
    assert config.namesrv == ("a:1", "b:2")


def test_rocketmqs_file_is_read(tmp_path: Path) -> None:
    """Its keys mean what they mean in RocketMQ; those without a meaning here are let be."""
    file = write(
        tmp_path / "broker.conf",
        "# comment\nbrokerClusterName = C\nbrokerName=b\nbrokerId=0\ndeleteWhen=04\nfileReservedTime=48\n"
        "brokerRole=ASYNC_MASTER\nflushDiskType=SYNC_FLUSH\nnamesrvAddr=h:9876;i:9876\nlistenPort=10921\n"
        "brokerIP1=10.0.0.7\nautoCreateTopicEnable=false\nmappedFileSizeCommitLog=1048576\nregisterNameServerPeriod=10000\n",
    )
    config = BrokerConfig.load(file, environment={})
    assert (config.cluster, config.name, config.flush) == ("C", "b", "sync")
    assert config.namesrv == ("h:9876", "i:9876")
    assert (config.listen, config.advertise) == ("0.0.0.0:10921", "10.0.0.7")
    assert config.auto_create_topics is False
    assert config.commit_log_file_size == 1048576
    assert config.register_interval == timedelta(seconds=10)


def test_a_name_servers_file_is_read(tmp_path: Path) -> None:
    """RocketMQ's keys of a name server."""
    file = write(
        tmp_path / "n.properties", "listenPort=1234\nkvConfigPath=/x/kv.json\nscanNotActiveBrokerInterval=700\n"
    )
    config = NameServerConfig.from_properties(file)
    assert config.listen == "0.0.0.0:1234"
    assert config.kv_config_path == "/x/kv.json"
    assert config.scan_interval == timedelta(milliseconds=700)


def test_a_key_without_effect_is_warned_of_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Who relies on it hears what happens instead; keys that mean nothing here are let be."""
    text = "rocketmqHome=/opt\nfileReservedTime=48\ndeleteWhen=04\nfileReservedTime=72\n"
    file = write(tmp_path / "broker.conf", text)
    BrokerConfig.from_properties(file)
    lines = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [line.partition("key=")[2] for line in lines] == [
        f"fileReservedTime line=2 file={file}",
        f"deleteWhen line=3 file={file}",
    ]
    assert all("never deleted" in line for line in lines)


@pytest.mark.parametrize(
    ("text", "suffix", "nearest"),
    [
        ("defualt_queues = 3", ".toml", "did you mean default_queues"),
        ("brokerNmae=a", ".conf", "did you mean brokerName"),
        ("zzzzzz=1", ".conf", "known are"),
    ],
)
def test_an_unknown_key_is_an_error_with_the_nearest_name(tmp_path: Path, text: str, suffix: str, nearest: str) -> None:
    """A typing error never falls silently back to a default."""
    with pytest.raises(ConfigError, match=nearest):
        BrokerConfig.load(write(tmp_path / f"x{suffix}", text), environment={})


def test_an_unknown_variable_is_an_error() -> None:
    """So is one in the environment."""
    with pytest.raises(ConfigError, match=r"FERROMQ_BROKER_.*did you mean flush"):
        BrokerConfig.load(environment={"FERROMQ_BROKER_FLUHS": "sync"})


@pytest.mark.parametrize(
    "options",
    [
        {"listen": "nowhere"},
        {"listen": "host:99999"},
        {"grpc_listen": ":1"},
        {"advertise": "host:"},
        {"advertise": "[::1]:99999"},
        {"grpc_advertise": "a b"},
        {"namesrv": "a:1;b"},
        {"flush": "later"},
        {"default_queues": 0},
        {"default_queues": LIMIT_FOR_QUEUES + 1},
        {"default_queues": "many"},
        {"register_interval": "0s"},
        {"register_interval": "soon"},
        {"auto_create_topics": "maybe"},
        {"commit_log_file_size": "64 apples"},
        {"handler_threads": 0},
        {"name": ""},
        {"store": 5},
    ],
)
def test_a_value_that_may_not_be_is_named(options: dict[str, Any]) -> None:
    """The error names the option."""
    BrokerConfig(default_queues=LIMIT_FOR_QUEUES)
    with pytest.raises(ConfigError, match=next(iter(options))):
        BrokerConfig.from_options(options)


@pytest.mark.parametrize("line", ["brokerRole=SLAVE", "brokerId=1", "listenPort=x", "just words"])
def test_what_rocketmq_can_and_we_cannot_is_an_error(tmp_path: Path, line: str) -> None:
    """A file that asks for a slave does not start a master; the error names the line."""
    with pytest.raises(ConfigError, match="line 1"):
        BrokerConfig.from_properties(write(tmp_path / "b.conf", line))


@pytest.mark.parametrize("name", ["gone.toml", "gone.conf"])
def test_a_missing_file_is_an_error(tmp_path: Path, name: str) -> None:
    """It is named."""
    with pytest.raises(ConfigError, match=name):
        NameServerConfig.load(tmp_path / name, environment={})


@pytest.mark.parametrize("kind", [BrokerConfig, NameServerConfig])
def test_options_stay_few(kind: type) -> None:
    """At most 25 a process, and each is text, number, switch, duration or list."""
    assert len(fields(kind)) <= 25
    kind()
