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


_TLS = {"grpc_tls_trust": "/ca.pem", "grpc_tls_certificate": "/s.pem", "grpc_tls_key": "/s.key"}


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"grpc_tls_client_auth": "always"}, "it may be none, optional, require"),
        ({"grpc_tls_client_auth": "require"}, "takes grpc_tls_trust"),
        ({"grpc_tls_client_auth": "optional", "grpc_tls_trust": "/ca.pem"}, "grpc_tls_certificate"),
        ({"grpc_tls_trust": "/ca.pem"}, "grpc_tls_trust has no effect"),
        ({**_TLS, "grpc_tls_client_auth": "require"}, "grpc_tls_mode=permissive takes plaintext"),
        ({**_TLS, "grpc_tls_client_auth": "optional", "grpc_tls_mode": "disabled"}, "takes plaintext alone"),
        (
            dict.fromkeys(("frame_limit", "grpc_message_limit", "max_message_size"), "8MiB"),
            "max_message_size is 8388608 bytes, .* allow 8388608 bytes at most",
        ),
        ({"grpc_message_limit": "1KiB"}, "grpc_message_limit is 1024 bytes; it may be 4194304 to"),
        ({"grpc_message_limit": "1GiB"}, "grpc_message_limit is 1073741824 bytes"),
    ],
)
def test_wrong_checks_of_clients_and_sizes_are_errors(options: dict[str, str], reason: str) -> None:
    """They name the option and what it takes."""
    with pytest.raises(ConfigError, match=reason):
        BrokerConfig.from_options(options)


def test_the_largest_request_has_the_key_of_the_proxy(tmp_path: Path) -> None:
    """130 MiB without it, as there."""
    assert BrokerConfig().grpc.grpc_message_limit == 130 << 20
    assert _read(tmp_path, "grpcMaxInboundMessageSize=4194304\n").grpc.grpc_message_limit == 4 << 20


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
