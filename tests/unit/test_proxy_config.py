"""RocketMQ's file of a proxy, whose work the broker does."""

import json
from datetime import timedelta
from pathlib import Path

import pytest

from ferromq.config.broker import BrokerConfig
from ferromq.config.proxy_file import REFUSED_OF_PROXY, ProxyKeys, options_of
from ferromq.errors import ConfigError

# Each refused key with a value that is refused; the value that works is RocketMQ's default.
REFUSALS = {
    "metricsExporterType": ("PROM", "DISABLE"),
    "proxyMode": ("CLUSTER", "local"),
    "maxMessageSize": (1000, 4194304),
    "namesrvDomain": ("jmenv.example", ""),
    "namesrvDomainSubgroup": ("a", ""),
    "metricCollectorMode": ("on", "off"),
    "tlsKeyPassword": ("secret", ""),
    "enableMessageBodyEmptyCheck": (False, True),
    "enableProxyAutoRenew": (False, True),
    "useDelayLevel": (True, False),
    "maxMessageGroupSize": (10, 64),
    "maxUserPropertySize": (10, 16384),
    "userPropertyMaxNum": (10, 128),
    "maxTransactionRecoverySecond": (10, 3600),
    "grpcClientProducerMaxAttempts": (10, 3),
    "grpcClientProducerBackoffInitialMillis": (11, 10),
    "grpcClientProducerBackoffMaxMillis": (11, 1000),
    "grpcClientProducerBackoffMultiplier": (11, 2),
    "grpcClientConsumerLongPollingBatchSize": (11, 32),
    "grpcClientConsumerMinLongPollingTimeoutMillis": (11, 5000),
    "grpcClientConsumerMaxLongPollingTimeoutMillis": (11, 20000),
}


def write(tmp_path: Path, keys: object) -> Path:
    """Write a file of a proxy."""
    file = tmp_path / "rmq-proxy.json"
    file.write_text(json.dumps(keys))
    return file


def test_its_keys_are_options_of_the_broker(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """They override the broker's own file, as in RocketMQ; one line lists keys without effect."""
    keys = {
        "rocketMQClusterName": "C",
        "grpcServerPort": 18081,
        "namesrvAddr": "a:1;b:2",
        "minInvisibleTimeMillsForRecv": 2000,
        "maxInvisibleTimeMills": 60000,
        "maxDelayTimeMills": 5000,
        "enableTopicMessageTypeCheck": False,
        "tlsTestModeEnable": False,
        "tlsCertPath": "/c.pem",
        "tlsKeyPath": "/k.pem",
        "grpcThreadPoolNums": 20,
    }
    file = tmp_path / "broker.conf"
    file.write_text("brokerName=b\nnamesrvAddr=other:9876\n")
    config = BrokerConfig.load(file, beside=options_of(write(tmp_path, keys)), environment={})
    assert (config.name, config.grpc_listen, config.namesrv) == ("b", "0.0.0.0:18081", ("a:1", "b:2"))
    assert config.sends.check_types == "none"
    used = config.compatibility.used
    assert (used["min_invisible_time"], used["max_invisible_time"]) == (timedelta(seconds=2), timedelta(minutes=1))
    assert used["max_delay_time"] == timedelta(seconds=5)
    assert (config.grpc.grpc_tls_certificate, config.grpc.grpc_tls_key) == ("/c.pem", "/k.pem")
    (line,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "rocketMQClusterName: there is no process between the broker and its clients" in line
    assert "grpcThreadPoolNums: the broker's own threads" in line


@pytest.mark.parametrize("key", sorted(REFUSALS))
def test_a_value_that_is_not_kept_is_refused(tmp_path: Path, key: str) -> None:
    """The value that describes ferromq is accepted."""
    asked, works = REFUSALS[key]
    shown = str(asked).lower() if isinstance(asked, bool) else asked
    with pytest.raises(ConfigError, match=f"^{key}={shown} in "):
        options_of(write(tmp_path, {key: asked}))
    assert options_of(write(tmp_path, {key: works})) == {}


def test_a_mode_that_a_flag_gives_wins(tmp_path: Path) -> None:
    """As in RocketMQ."""
    file = write(tmp_path, {"proxyMode": "CLUSTER", "grpcServerPort": 1})
    assert options_of(file, has_mode=True) == {"grpc_listen": "0.0.0.0:1"}


def test_every_refusal_is_shown() -> None:
    """No key is refused without a test."""
    assert REFUSED_OF_PROXY.keys() == REFUSALS.keys()


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ([1], "is not a JSON object"),
        ({"grpcServerPort": None}, "grpcServerPort in .* is null"),
        ({"grpcServerPort": "81a"}, "grpcServerPort=81a in .*: expected a whole number"),
        ({"grpcServrPort": 1}, "did you mean grpcServerPort"),
        ({"enableTopicMessageTypeCheck": "yes"}, "RocketMQ reads yes as false"),
        ({"grpcServerPort": 99999}, "grpc_listen is"),
    ],
)
def test_a_file_that_is_wrong_is_an_error(tmp_path: Path, keys: object, told: str) -> None:
    """It names the key."""
    with pytest.raises(ConfigError, match=told):
        options_of(write(tmp_path, keys))


def test_no_key_means_two_things() -> None:
    """A key has an effect, or has none."""
    joined = {key for group in ProxyKeys.joined for key in group}
    assert not ProxyKeys.without_effect.keys() & (ProxyKeys.properties.keys() | joined)


def test_another_command_says_which_one_takes_it(tmp_path: Path) -> None:
    """A proxy's file is no file of a broker."""
    with pytest.raises(ConfigError, match="mqbroker --enable-proxy takes"):
        BrokerConfig.load(write(tmp_path, {}), environment={})


def test_a_proxy_turns_access_control_on_but_not_off(tmp_path: Path) -> None:
    """What the broker's file turns on holds for its proxy, too."""
    assert options_of(write(tmp_path, {"authenticationEnabled": False, "authorizationEnabled": False})) == {}
    assert options_of(write(tmp_path, {"authenticationEnabled": True})) == {"authentication_enabled": True}
    both = {"authentication_enabled": True, "authorization_enabled": True}
    assert options_of(write(tmp_path, {"authorizationEnabled": True})) == both
    names = "apache.rocketmq.v2.HeartbeatRequest"
    assert options_of(write(tmp_path, {"authenticationWhitelist": names})) == {"authentication_whitelist": (names,)}
