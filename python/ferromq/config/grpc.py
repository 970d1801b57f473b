"""The options of TLS for a broker's gRPC listener, and the keys of RocketMQ's proxy for them."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ferromq.config.keys import WHOLE, JoinedKeys, Key, Keys
from ferromq.config.reader import Config
from ferromq.config.values import boolean
from ferromq.errors import ConfigError

if TYPE_CHECKING:
    from ferromq._ferromq import Server

_MODES = ("disabled", "permissive", "enforcing")
_CLIENT_AUTH = ("none", "optional", "require")
_LEAST_MESSAGE, _MOST_MESSAGE = 4 << 20, (1 << 30) - 1


def _tls(given: Mapping[str, str]) -> dict[str, Any]:
    """Return the files of the proxy's keys. Without files, the proxy's test mode generates a certificate."""
    files = {
        name: given[key]
        for key, name in (("tlsCertPath", "grpc_tls_certificate"), ("tlsKeyPath", "grpc_tls_key"))
        if key in given
    }
    if files and boolean(given.get("tlsTestModeEnable", "false")):
        raise ValueError(
            "tlsTestModeEnable=true generates a certificate, but files are given; "
            "omit tlsCertPath and tlsKeyPath, or set tlsTestModeEnable=false"
        )
    if not files and not boolean(given.get("tlsTestModeEnable", "true")):
        raise ValueError("tlsTestModeEnable=false takes tlsCertPath and tlsKeyPath; give both")
    return files


@dataclass(frozen=True, kw_only=True)
class GrpcConfig(Config):
    """The options of a broker's gRPC listener."""

    grpc_tls_mode: str = "permissive"
    """`permissive` (TLS and plaintext on the same port), `enforcing` (TLS only) or `disabled`."""
    grpc_tls_certificate: str = ""
    """PEM file of the certificate, followed by its issuers'. Empty: the broker generates one at the start."""
    grpc_tls_key: str = ""
    """PEM file of its private key, not encrypted. Change both files together; the broker then reloads them."""

    grpc_tls_client_auth: str = "none"
    """Whether clients need a certificate: `none`, `optional` or `require`."""
    grpc_tls_trust: str = ""
    """PEM file of the certificate authorities for clients."""
    grpc_message_limit: int = 130 << 20
    """Bytes of the largest request that sends messages. A connection's share of `network_memory` is a limit, too."""

    properties: ClassVar[Keys] = {
        "grpcMaxInboundMessageSize": Key("grpc_message_limit", WHOLE),
    }
    joined: ClassVar[JoinedKeys] = {
        ("tlsTestModeEnable", "tlsCertPath", "tlsKeyPath"): _tls,
    }

    def __post_init__(self) -> None:
        if self.grpc_tls_mode not in _MODES:
            raise ConfigError(f"grpc_tls_mode is {self.grpc_tls_mode!r}; it may be {', '.join(_MODES)}")
        if self.grpc_tls_client_auth not in _CLIENT_AUTH:
            raise ConfigError(
                f"grpc_tls_client_auth is {self.grpc_tls_client_auth!r}; it may be {', '.join(_CLIENT_AUTH)}"
            )
        if not _LEAST_MESSAGE <= self.grpc_message_limit <= _MOST_MESSAGE:
            raise ConfigError(
                f"grpc_message_limit is {self.grpc_message_limit} bytes; it may be {_LEAST_MESSAGE} to "
                f"{_MOST_MESSAGE}: a batch of a client has to fit"
            )

    def check_together(self) -> None:
        """Raise `ConfigError` if an option lacks those that it takes."""
        if bool(self.grpc_tls_certificate) != bool(self.grpc_tls_key):
            raise ConfigError("grpc_tls_certificate and grpc_tls_key belong together; give both or neither")
        if self.grpc_tls_client_auth != "none" and not (self.grpc_tls_certificate and self.grpc_tls_trust):
            raise ConfigError(
                f"grpc_tls_client_auth is {self.grpc_tls_client_auth}, which takes grpc_tls_trust, a PEM file of the "
                "certificate authorities for clients, and grpc_tls_certificate with grpc_tls_key; give all, or set "
                "grpc_tls_client_auth=none"
            )
        if self.grpc_tls_client_auth == "none" and self.grpc_tls_trust:
            raise ConfigError(
                "grpc_tls_trust has no effect while clients are asked for no certificate; set "
                "grpc_tls_client_auth=optional or require, or omit it"
            )
        if self.grpc_tls_client_auth == "optional" and self.grpc_tls_mode == "disabled":
            raise ConfigError(
                "grpc_tls_client_auth is optional, but grpc_tls_mode=disabled takes plaintext alone; set "
                "grpc_tls_mode=permissive or enforcing"
            )
        if self.grpc_tls_client_auth == "require" and self.grpc_tls_mode != "enforcing":
            raise ConfigError(
                f"grpc_tls_client_auth is require, but grpc_tls_mode={self.grpc_tls_mode} takes plaintext, which has "
                "no certificate; set grpc_tls_mode=enforcing"
            )

    def set_up(self, server: "Server") -> bool:
        """Set up TLS of *server*; return whether it has files. Raises `ConfigError` with the name of a wrong file."""
        if self.grpc_tls_mode == "disabled" or not self.grpc_tls_certificate:
            server.set_grpc_tls(self.grpc_tls_mode)
            return False
        server.set_grpc_tls(
            self.grpc_tls_mode,
            certificate=Path(self.grpc_tls_certificate),
            key=Path(self.grpc_tls_key),
            client_auth=self.grpc_tls_client_auth,
            trust=Path(self.grpc_tls_trust) if self.grpc_tls_trust else None,
        )
        return True
