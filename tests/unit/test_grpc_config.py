"""The options of the gRPC listener, and the keys of RocketMQ's proxy for them."""

from pathlib import Path

import pytest

from ferromq.config.broker import BrokerConfig
from ferromq.config.grpc import GrpcConfig
from ferromq.errors import ConfigError


def _read(tmp_path: Path, text: str) -> BrokerConfig:
    file = tmp_path / "broker.conf"
    file.write_text(text)
    return BrokerConfig.load(file, environment={})


def test_keys_of_the_proxy_name_a_certificate_or_ask_for_one_made_up(tmp_path: Path) -> None:
    """Its test mode is the default here as there."""
    grpc = _read(tmp_path, "tlsTestModeEnable=false\ntlsCertPath=/x/a.crt\ntlsKeyPath=/x/a.key\n").grpc
    assert (grpc.grpc_tls_certificate, grpc.grpc_tls_key) == ("/x/a.crt", "/x/a.key")
    assert _read(tmp_path, "tlsTestModeEnable=true\n").grpc == BrokerConfig().grpc


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("tlsTestModeEnable=true\ntlsCertPath=a\ntlsKeyPath=b\n", "generates a certificate"),
        ("tlsTestModeEnable=false\n", "give both"),
        ("tlsCertPath=a\n", "belong together"),
    ],
)
def test_a_contradiction_is_an_error(tmp_path: Path, text: str, reason: str) -> None:
    """With the way out."""
    with pytest.raises(ConfigError, match=reason):
        _read(tmp_path, text)


def test_an_unknown_mode_is_an_error() -> None:
    """The modes are named."""
    with pytest.raises(ConfigError, match="permissive"):
        GrpcConfig(grpc_tls_mode="tls")


def test_types_are_checked_as_rocketmqs_key_says(tmp_path: Path) -> None:
    """Left out: over gRPC alone, as in RocketMQ."""
    wanted = {"": "grpc", "enableTopicMessageTypeCheck=true\n": "all", "enableTopicMessageTypeCheck=false\n": "none"}
    assert {text: _read(tmp_path, text).sends.check_types for text in wanted} == wanted


def test_a_pair_of_files_may_stand_in_toml(tmp_path: Path) -> None:
    """And in the environment; half of a pair is an error."""
    file = tmp_path / "broker.toml"
    file.write_text('grpc_tls_certificate = "/c.pem"\ngrpc_tls_key = "/k.pem"\n')
    grpc = BrokerConfig.load(file, environment={}).grpc
    assert (grpc.grpc_tls_certificate, grpc.grpc_tls_key) == ("/c.pem", "/k.pem")
    variables = {"FERROMQ_BROKER_GRPC_TLS_CERTIFICATE": "/c.pem", "FERROMQ_BROKER_GRPC_TLS_KEY": "/k.pem"}
    assert BrokerConfig.load(environment=variables).grpc == grpc
    with pytest.raises(ConfigError, match="belong together"):
        BrokerConfig.load(environment={"FERROMQ_BROKER_GRPC_TLS_KEY": "/k.pem"})
