"""The options of TLS for a broker's gRPC listener, and the keys of RocketMQ's proxy for them."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ferromq.config.keys import JoinedKeys
from ferromq.config.reader import Config
from ferromq.config.values import boolean
from ferromq.errors import ConfigError

if TYPE_CHECKING:
    from ferromq._ferromq import Server

_MODES = ("disabled", "permissive", "enforcing")


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

    joined: ClassVar[JoinedKeys] = {
        ("tlsTestModeEnable", "tlsCertPath", "tlsKeyPath"): _tls,
    }

    def __post_init__(self) -> None:
        if self.grpc_tls_mode not in _MODES:
            raise ConfigError(f"grpc_tls_mode is {self.grpc_tls_mode!r}; it may be {', '.join(_MODES)}")

    def check_together(self) -> None:
        """Raise `ConfigError` if only one of the two files is given."""
        if bool(self.grpc_tls_certificate) != bool(self.grpc_tls_key):
            raise ConfigError("grpc_tls_certificate and grpc_tls_key belong together; give both or neither")

    def set_up(self, server: "Server") -> bool:
        """Set up TLS of *server*; return whether it has files. Raises `ConfigError` with the name of a wrong file."""
        if self.grpc_tls_mode == "disabled" or not self.grpc_tls_certificate:
            server.set_grpc_tls(self.grpc_tls_mode)
            return False
        server.set_grpc_tls(
            self.grpc_tls_mode, certificate=Path(self.grpc_tls_certificate), key=Path(self.grpc_tls_key)
        )
        return True
