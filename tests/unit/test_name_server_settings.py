"""The options of a running name server, and the file they come from."""

import contextlib
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferromq.config.at_run_time import NAME_SERVER_KEYS
from ferromq.config.file_edit import ProtectedKey
from ferromq.config.listener import ListenerConfig
from ferromq.config.namesrv import NameServerConfig
from ferromq.errors import ConfigError
from ferromq.namesrv.settings import PROTECTED_KEYS, Settings


def test_what_is_shown_is_a_configuration_file_again(tmp_path: Path) -> None:
    """Every option, by RocketMQ's key where it has one."""
    config = NameServerConfig(
        listen="127.0.0.1:1",
        kv_config_path="/x/kv.json",
        lease=timedelta(seconds=7),
        order_messages=True,
        connections=ListenerConfig(one_way_limit=3, tls_mode="disabled"),
    )
    file = tmp_path / "shown.conf"
    file.write_text(Settings(config).text())
    assert NameServerConfig.from_properties(file) == config
    assert "orderMessageEnable=true\n" in file.read_text()


def test_a_change_takes_effect_and_is_reported() -> None:
    """Listeners get the options at once and after every change; equal values change nothing."""
    settings = Settings(NameServerConfig())
    heard: list[bool] = []
    settings.listen(lambda config: heard.append(config.order_messages))
    settings.update("orderMessageEnable=true\nwaitSecondsForService=3\n")
    settings.update("orderMessageEnable=true\n")
    assert heard == [False, True]
    assert settings.config == NameServerConfig(order_messages=True, service_wait=timedelta(seconds=3))


@pytest.mark.parametrize("key", sorted(NAME_SERVER_KEYS))
def test_every_key_of_run_time_can_be_changed(key: str) -> None:
    """And is shown as it was set."""
    settings = Settings(NameServerConfig())
    value = {"lease": "9000ms"}.get(key) or ("9" if NameServerConfig().keys()[key].isdecimal() else "true")
    settings.update(f"{key}={value}")
    assert f"{key}={value}\n" in settings.text()


def test_fixed_keys_are_named() -> None:
    """Keys of files always, others by configuration; the rest of the request has no effect."""
    settings = Settings(NameServerConfig(protected_keys=("enableTopicList",)))
    for key in (*PROTECTED_KEYS, "enableTopicList"):
        with pytest.raises(ProtectedKey, match=key):
            settings.update(f"orderMessageEnable=true\n{key}=x\n")
    assert not settings.config.order_messages


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("orderMessageEnable1=true", "did you mean orderMessageEnable"),
        ("orderMessageEnable=maybe", "orderMessageEnable=maybe in the request: .*true or false"),
        ("listenPort=1", "listenPort needs a restart"),
        ("serverWorkerThreads=9", "serverWorkerThreads has no effect"),
        ("orderMessageEnable=true\nclusterTest=true", "^clusterTest=true in the request: .*; use false$"),
        ("orderMessageEnable=true\nenableControllerInNamesrv=true", "no controller in this name server; use false"),
        ("orderMessageEnable=true\nuseTLS=true", "are not encrypted; use false"),
        ("orderMessageEnable=yes", "RocketMQ reads yes as false"),
        ("scanNotActiveBrokerInterval=0", "more than 0"),
        ("just words", "line 1 of the request is not KEY=VALUE"),
    ],
)
def test_an_impossible_change_is_an_error(text: str, message: str) -> None:
    """It names the key, and nothing changes."""
    settings = Settings(NameServerConfig())
    with pytest.raises(ConfigError, match=message):
        settings.update(text)
    assert settings.config == NameServerConfig()


@given(
    st.text(max_size=60)
    | st.sampled_from(sorted(NAME_SERVER_KEYS)).flatmap(lambda key: st.text(max_size=9).map(f"{key}={{}}".format))
)
def test_any_text_is_a_change_or_an_error(text: str) -> None:
    """No other error; the current options can be shown."""
    settings = Settings(NameServerConfig())
    with contextlib.suppress(ConfigError):
        settings.update(text)
    assert settings.text()


def test_a_change_is_written_to_the_file_of_rocketmqs_kind(tmp_path: Path) -> None:
    """In place if the key is there, else at the end; the rest, with comments, stays."""
    file = tmp_path / "namesrv.conf"
    file.write_text("# mine\n enableTopicList = true\nlistenPort=1\n")
    settings = Settings(NameServerConfig.load(file, environment={}), file)
    settings.update("enableTopicList=false\norderMessageEnable=true")
    assert file.read_text() == "# mine\nenableTopicList=false\nlistenPort=1\norderMessageEnable=true\n"
    assert NameServerConfig.load(file, environment={}) == settings.config


def test_a_change_is_written_to_a_toml_file(tmp_path: Path) -> None:
    """Under ferromq's names."""
    file = tmp_path / "namesrv.toml"
    file.write_text('listen = "127.0.0.1:1"  # mine\nscan_interval = "1s"\n')
    settings = Settings(NameServerConfig.load(file, environment={}), file)
    settings.update("scanNotActiveBrokerInterval=2000\norderMessageEnable=true")
    assert file.read_text() == 'listen = "127.0.0.1:1"  # mine\nscan_interval = "2000ms"\norder_messages = true\n'
    assert NameServerConfig.load(file, environment={}) == settings.config


def test_an_invalid_file_is_left_unchanged(tmp_path: Path) -> None:
    """An operator edited it to an invalid state: the change is refused."""
    file = tmp_path / "namesrv.toml"
    settings = Settings(NameServerConfig(), file)
    text = 'listen = "127.0.0.1:1"\n[notes]\nscan_interval = "1s"\n'
    file.write_text(text)
    with pytest.raises(ConfigError, match="notes"):
        settings.update("orderMessageEnable=true")
    assert file.read_text() == text
    assert not settings.config.order_messages


def test_a_file_that_cannot_be_written_changes_nothing(tmp_path: Path) -> None:
    """The current options and those after a restart stay the same."""
    settings = Settings(NameServerConfig(), tmp_path / "gone.conf")
    with pytest.raises(OSError, match=r"gone\.conf"):
        settings.update("orderMessageEnable=true")
    assert not settings.config.order_messages
