"""
The options of a server's connections: TLS of remoting, limits, and when an idle one is closed.

`_namesrv_config` and `config` hand them on; RocketMQ's keys for them are here, those of its `tls.properties` too.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ferromq.config.reader import Config
from ferromq.config.values import boolean, check_positive, only, whole
from ferromq.errors import ConfigError

if TYPE_CHECKING:
    from ferromq._ferromq import Server

RELOAD_INTERVAL = timedelta(seconds=1)
"""How often changed files of TLS are looked for."""
_MODES = ("disabled", "permissive", "enforcing")
_CLIENT_AUTH = ("none", "optional", "require")
_SECOND = timedelta(seconds=1)
_LEAST_MEMORY = 64 << 20
_CLIENT_SIDE = "it is for clients, and this is a server"


def _tls_file(path: str) -> dict[str, Any]:
    """Return the options in RocketMQ's `tls.properties`."""
    return ListenerConfig.parse_properties(path)


def _client_auth(given: Mapping[str, str]) -> dict[str, Any]:
    """Return what is asked of clients; RocketMQ may ask for a certificate and take any."""
    wanted = given.get("tls.server.need.client.auth", "none")
    if wanted != "none" and "tls.server.authClient" in given and not boolean(given["tls.server.authClient"]):
        raise ValueError(
            "the certificate of a client is always checked; say tls.server.authClient=true, or leave it out"
        )
    return {"tls_client_auth": wanted}


@contextlib.contextmanager
def naming(way_out: str) -> Iterator[None]:
    """Have the error of an address that cannot be listened on say which option to change."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror}; {way_out}") from error


@dataclass(frozen=True, kw_only=True)
class ListenerConfig(Config):
    """The options of a server's connections; the limits of number and memory hold for gRPC, too."""

    network_memory: int = 256 << 20
    """Bytes of memory for requests that arrive or are answered, and for answers that clients have not taken yet."""
    max_connections: int | None = None
    """Open connections; none: what the limit of descriptors leaves all servers of the process, and at most 16,384."""
    idle_time: timedelta = timedelta(seconds=120)
    """How long a connection may be silent."""
    one_way_limit: int = 256
    """One-way requests under way; beyond it connections that send them are not read."""
    call_limit: int = 64
    """Requests to clients under way; more wait."""
    tls_mode: str = ""
    """`disabled`, `permissive` (both), `enforcing`; empty: permissive with a certificate, or disabled."""
    tls_certificate: str = ""
    """PEM file of the server's certificate, followed by those that signed it."""
    tls_key: str = ""
    """PEM file of its private key, not encrypted; changed together with the certificate, both are taken anew."""
    tls_client_auth: str = "none"
    """Whether clients show a certificate: `none`, `optional` or `require`."""
    tls_trust: str = ""
    """PEM file of the certificates that sign clients'."""

    properties: ClassVar[Mapping[str, Callable[[str], dict[str, Any]]]] = {
        "network_memory": lambda text: {"network_memory": text},
        "max_connections": lambda text: {"max_connections": text},
        "serverChannelMaxIdleTimeSeconds": lambda text: {"idle_time": whole(text) * _SECOND},
        "serverOnewaySemaphoreValue": lambda text: {"one_way_limit": whole(text)},
        "serverAsyncSemaphoreValue": lambda text: {"call_limit": whole(text)},
        "tls.config.file": _tls_file,
        "tls.server.mode": lambda text: {"tls_mode": text},
        "tls.server.certPath": lambda text: {"tls_certificate": text},
        "tls.server.keyPath": lambda text: {"tls_key": text},
        "tls.server.keyPassword": lambda text: only(text, "", "the key may not be encrypted"),
        "tls.server.trustCertPath": lambda text: {"tls_trust": text},
        "tls.test.mode.enable": lambda text: only(text, "false", "no certificate is made up"),
    }
    joined: ClassVar[Mapping[tuple[str, ...], Callable[[Mapping[str, str]], dict[str, Any]]]] = {
        ("tls.server.need.client.auth", "tls.server.authClient"): _client_auth,
    }
    without_effect: ClassVar[Mapping[str, str]] = dict.fromkeys(
        (
            *("tls.enable", "tls.client.authServer", "tls.client.certPath", "tls.client.keyPassword"),
            *("tls.client.keyPath", "tls.client.trustCertPath"),
        ),
        _CLIENT_SIDE,
    )

    def __post_init__(self) -> None:
        if self.network_memory < _LEAST_MEMORY:
            raise ConfigError(
                f"network_memory is {self.network_memory} bytes; it must be {_LEAST_MEMORY} or more, as a connection "
                "may hold a quarter of it and a frame has up to 16 MiB"
            )
        if self.max_connections is not None:
            check_positive("max_connections", self.max_connections, 0)
        check_positive("idle_time", self.idle_time, timedelta())
        check_positive("one_way_limit", self.one_way_limit, 0)
        check_positive("call_limit", self.call_limit, 0)
        for name, words in (("tls_mode", ("", *_MODES)), ("tls_client_auth", _CLIENT_AUTH)):
            if getattr(self, name) not in words:
                raise ConfigError(f"{name} is {getattr(self, name)!r}; it may be {', '.join(filter(None, words))}")

    @property
    def mode(self) -> str:
        """The mode of TLS, also where none was given."""
        return self.tls_mode or ("permissive" if self.tls_certificate or self.tls_key else "disabled")

    def limits(self) -> dict[str, Any]:
        """Return what a `Server` is made with."""
        limits: dict[str, Any] = {
            "memory": self.network_memory,
            "idle": self.idle_time / _SECOND,
            "one_way": self.one_way_limit,
            "calls": self.call_limit,
        }
        if self.max_connections is not None:
            limits["max_connections"] = self.max_connections
        return limits

    def set_up(self, server: "Server") -> bool:
        """Give TLS to *server*; say whether there is any. Raises `ConfigError` naming the file that is wrong."""
        if self.mode == "disabled":
            return False
        if not (self.tls_certificate and self.tls_key):
            raise ConfigError(
                f"tls_mode is {self.mode}, which takes tls_certificate and tls_key (RocketMQ's tls.server.certPath and "
                "tls.server.keyPath); give both, or say tls_mode=disabled"
            )
        server.set_tls(
            self.mode,
            certificate=Path(self.tls_certificate),
            key=Path(self.tls_key),
            client_auth=self.tls_client_auth,
            trust=Path(self.tls_trust) if self.tls_trust else None,
        )
        return True

    def keys(self) -> dict[str, str]:
        """Return the options as RocketMQ's keys and values."""
        return {
            "network_memory": str(self.network_memory),
            **({} if self.max_connections is None else {"max_connections": str(self.max_connections)}),
            "serverChannelMaxIdleTimeSeconds": str(self.idle_time // _SECOND),
            "serverOnewaySemaphoreValue": str(self.one_way_limit),
            "serverAsyncSemaphoreValue": str(self.call_limit),
            "tls.server.mode": self.mode,
            "tls.server.certPath": self.tls_certificate,
            "tls.server.keyPath": self.tls_key,
            "tls.server.need.client.auth": self.tls_client_auth,
            "tls.server.trustCertPath": self.tls_trust,
        }
