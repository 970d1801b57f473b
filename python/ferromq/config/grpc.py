"""
The options of a broker's gRPC listener: TLS.

`config` hands them on as part of a broker's; the keys of RocketMQ's proxy for them are here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ferromq.config.reader import Config
from ferromq.config.values import boolean
from ferromq.errors import ConfigError

if TYPE_CHECKING:
    from ferromq._ferromq import Server

_MODES = ("disabled", "permissive", "enforcing")


def _tls(given: Mapping[str, str]) -> dict[str, Any]:
    """Return what the proxy's keys say: files, or a certificate that is made up, its test mode."""
    files = {
        name: given[key]
        for key, name in (("tlsCertPath", "grpc_tls_certificate"), ("tlsKeyPath", "grpc_tls_key"))
        if key in given
    }
    if files and boolean(given.get("tlsTestModeEnable", "false")):
        raise ValueError(
            "tlsTestModeEnable=true makes a certificate up, and there are files of one; "
            "leave out tlsCertPath and tlsKeyPath, or say tlsTestModeEnable=false"
        )
    if not files and not boolean(given.get("tlsTestModeEnable", "true")):
        raise ValueError("tlsTestModeEnable=false takes tlsCertPath and tlsKeyPath; give both")
    return files


@dataclass(frozen=True, kw_only=True)
class GrpcConfig(Config):
    """The options of a broker's gRPC listener."""

    grpc_tls_mode: str = "permissive"
    """`permissive` (TLS and plaintext on the same port), `enforcing` (TLS alone) or `disabled`."""
    grpc_tls_certificate: str = ""
    """PEM file of the certificate, followed by those that signed it; empty: one is made up at the start."""
    grpc_tls_key: str = ""
    """PEM file of its private key, not encrypted; changed together with the certificate, both are taken anew."""

    joined: ClassVar[Mapping[tuple[str, ...], Callable[[Mapping[str, str]], dict[str, Any]]]] = {
        ("tlsTestModeEnable", "tlsCertPath", "tlsKeyPath"): _tls,
    }

    def __post_init__(self) -> None:
        if self.grpc_tls_mode not in _MODES:
            raise ConfigError(f"grpc_tls_mode is {self.grpc_tls_mode!r}; it may be {', '.join(_MODES)}")

    def check_together(self) -> None:
        """Raise `ConfigError` for half a pair of files."""
        if bool(self.grpc_tls_certificate) != bool(self.grpc_tls_key):
            raise ConfigError("grpc_tls_certificate and grpc_tls_key belong together; give both or neither")

    def set_up(self, server: "Server") -> bool:
        """Give TLS to *server*; say whether files of it may change. Raises `ConfigError` naming the wrong one."""
        if self.grpc_tls_mode == "disabled" or not self.grpc_tls_certificate:
            server.set_grpc_tls(self.grpc_tls_mode)
            return False
        server.set_grpc_tls(
            self.grpc_tls_mode, certificate=Path(self.grpc_tls_certificate), key=Path(self.grpc_tls_key)
        )
        return True
