"""The options of a server's connections: limits, idle time, and TLS of remoting with the keys of `tls.properties`."""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ferromq.config.keys import BOOLEAN, NATURAL, SECONDS, WHOLE, JoinedKeys, Key, Keys
from ferromq.config.reader import Config
from ferromq.config.values import boolean, check_positive, only
from ferromq.errors import ConfigError

if TYPE_CHECKING:
    from ferromq._ferromq import Server

RELOAD_INTERVAL = timedelta(seconds=1)
"""How often a server looks for changed certificate files."""
_MODES = ("disabled", "permissive", "enforcing")
_CLIENT_AUTH = ("none", "optional", "require")
_CHECKS = ("name", "authority", "none")
_SECOND = timedelta(seconds=1)
_LEAST_MEMORY = 64 << 20
_LEAST_FRAME, _MOST_FRAME = 2 << 20, 256 << 20
_MOST = (1 << 30) - 1


def _tls_file(path: str) -> dict[str, Any]:
    """Return the options in RocketMQ's `tls.properties`."""
    return ListenerConfig.parse_properties(path)


def _client_auth(given: Mapping[str, str]) -> dict[str, Any]:
    """Return whether clients need a certificate. RocketMQ can also accept any certificate; ferromq always checks it."""
    wanted = given.get("tls.server.need.client.auth", "none")
    if wanted != "none" and "tls.server.authClient" in given and not boolean(given["tls.server.authClient"]):
        raise ValueError("client certificates are always checked; set tls.server.authClient=true or omit it")
    return {"tls_client_auth": wanted}


def _check_servers(text: str) -> dict[str, Any]:
    """Return what is checked of servers. RocketMQ never checks the host that a certificate names."""
    return {"tls_outgoing_check": "authority" if boolean(text) else "none"}


@contextlib.contextmanager
def naming(way_out: str) -> Iterator[None]:
    """Add to the error of a failed listen which option to change."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror}; {way_out}") from error


@dataclass(frozen=True, kw_only=True)
class ListenerConfig(Config):
    """The options of a server's connections. The limits of connections and memory include gRPC."""

    network_memory: int = 256 << 20
    """Bytes of memory for requests in progress, and for answers that clients have not read yet."""
    max_connections: int | None = None
    """Open connections. None: what the descriptor limit leaves for the servers of the process, at most 16,384."""
    max_connections_by_address: int | None = None
    """Open connections from one address. None: as many as `max_connections` allows."""
    accept_backlog: int = 4096
    """Connections that can wait to be accepted. The system may allow fewer."""
    send_buffer: int = 0
    """Bytes that the system buffers of a connection's answers. 0: as the system decides."""
    receive_buffer: int = 0
    """Bytes that the system buffers of a connection's requests. 0: as the system decides."""
    frame_limit: int = 16 << 20
    """Bytes of the largest remoting request. A connection with a larger one is closed."""
    idle_time: timedelta = timedelta(seconds=120)
    """A connection without traffic for this long is closed."""
    one_way_limit: int = 256
    """One-way requests in progress. Above it, connections that send them are not read."""
    call_limit: int = 64
    """Requests to clients in progress; more wait."""
    tls_mode: str = ""
    """`disabled`, `permissive` (TLS and plaintext) or `enforcing`. Empty: permissive if there is a certificate."""
    tls_certificate: str = ""
    """PEM file of the server's certificate, followed by its issuers'."""
    tls_key: str = ""
    """PEM file of its private key, not encrypted. Change both files together; the server then reloads them."""
    tls_client_auth: str = "none"
    """Whether clients need a certificate: `none`, `optional` or `require`."""
    tls_trust: str = ""
    """PEM file of the certificate authorities for clients."""
    tls_outgoing: bool = False
    """Whether connections to other servers speak TLS: to name servers, to the master, from a name server to brokers."""
    tls_outgoing_trust: str = ""
    """PEM file of the certificate authorities of the other servers."""
    tls_outgoing_check: str = "name"
    """What is checked of their certificates: `name` (authority and host), `authority`, or `none`."""
    tls_outgoing_certificate: str = ""
    """PEM file of the certificate to show to servers that ask for one."""
    tls_outgoing_key: str = ""
    """PEM file of its private key, not encrypted. Files are read again for each connection."""

    properties: ClassVar[Keys] = {
        "network_memory": Key("network_memory"),
        "max_connections": Key("max_connections"),
        "max_connections_by_address": Key("max_connections_by_address"),
        "serverSocketBacklog": Key("accept_backlog", WHOLE),
        "serverSocketSndBufSize": Key("send_buffer", NATURAL),
        "serverSocketRcvBufSize": Key("receive_buffer", NATURAL),
        "com.rocketmq.remoting.frameMaxLength": Key("frame_limit", WHOLE),
        "serverChannelMaxIdleTimeSeconds": Key("idle_time", SECONDS),
        "serverOnewaySemaphoreValue": Key("one_way_limit", WHOLE),
        "serverAsyncSemaphoreValue": Key("call_limit", WHOLE),
        "tls.config.file": _tls_file,
        "tls.server.mode": Key("tls_mode"),
        "tls.server.certPath": Key("tls_certificate"),
        "tls.server.keyPath": Key("tls_key"),
        "tls.server.keyPassword": lambda text: only(text, "", "encrypted keys are not supported"),
        "tls.server.trustCertPath": Key("tls_trust"),
        "tls.enable": Key("tls_outgoing", BOOLEAN),
        "tls.client.trustCertPath": Key("tls_outgoing_trust"),
        "tls.client.authServer": _check_servers,
        "tls.client.certPath": Key("tls_outgoing_certificate"),
        "tls.client.keyPath": Key("tls_outgoing_key"),
        "tls.client.keyPassword": lambda text: only(text, "", "encrypted keys are not supported"),
        "tls.test.mode.enable": lambda text: only(text, "false", "no test certificate is generated"),
    }
    joined: ClassVar[JoinedKeys] = {
        ("tls.server.need.client.auth", "tls.server.authClient"): _client_auth,
    }

    def __post_init__(self) -> None:
        if self.network_memory < _LEAST_MEMORY:
            raise ConfigError(
                f"network_memory is {self.network_memory} bytes; it must be {_LEAST_MEMORY} or more, because a "
                "connection may hold a quarter of it, and requests of clients have up to 16 MiB"
            )
        if not _LEAST_FRAME <= self.frame_limit <= _MOST_FRAME:
            raise ConfigError(
                f"frame_limit is {self.frame_limit} bytes; it may be {_LEAST_FRAME} to {_MOST_FRAME}: a heartbeat "
                "and its header have up to 1 MiB each"
            )
        for name in ("max_connections", "max_connections_by_address"):
            if getattr(self, name) is not None:
                check_positive(name, getattr(self, name), 0)
        check_positive("accept_backlog", self.accept_backlog, 0)
        for name in ("accept_backlog", "send_buffer", "receive_buffer"):
            if not 0 <= getattr(self, name) <= _MOST:
                raise ConfigError(f"{name} is {getattr(self, name)}; it may be 0 to {_MOST}")
        check_positive("idle_time", self.idle_time, timedelta())
        check_positive("one_way_limit", self.one_way_limit, 0)
        check_positive("call_limit", self.call_limit, 0)
        choices = {"tls_mode": ("", *_MODES), "tls_client_auth": _CLIENT_AUTH, "tls_outgoing_check": _CHECKS}
        for name, words in choices.items():
            if getattr(self, name) not in words:
                raise ConfigError(f"{name} is {getattr(self, name)!r}; it may be {', '.join(filter(None, words))}")

    def check_together(self) -> None:
        """Raise `ConfigError` if the largest frame does not fit into the share of a connection."""
        if self.frame_limit > self.network_memory // 4:
            raise ConfigError(
                f"frame_limit is {self.frame_limit} bytes, but a connection may hold {self.network_memory // 4}, "
                "a quarter of network_memory; lower the one or raise the other"
            )

    @property
    def mode(self) -> str:
        """The mode of TLS in effect."""
        return self.tls_mode or ("permissive" if self.tls_certificate or self.tls_key else "disabled")

    def outgoing(self) -> dict[str, Any]:
        """Return the arguments of a `RemotingClient` for connections to other servers. Raises `ConfigError`."""
        if not self.tls_outgoing:
            return {}
        if bool(self.tls_outgoing_certificate) != bool(self.tls_outgoing_key):
            raise ConfigError("tls_outgoing_certificate and tls_outgoing_key belong together; give both or neither")
        if self.tls_outgoing_check != "none" and not self.tls_outgoing_trust:
            raise ConfigError(
                "tls_outgoing takes tls_outgoing_trust (RocketMQ's tls.client.trustCertPath), a PEM file of the "
                "certificate authorities of the other servers; tls_outgoing_check=none (tls.client.authServer=false) "
                "accepts any certificate, which protects against eavesdroppers only"
            )
        options: dict[str, Any] = {"tls": True, "check_name": self.tls_outgoing_check == "name"}
        if self.tls_outgoing_check != "none":
            options["trust"] = self.tls_outgoing_trust
        if self.tls_outgoing_certificate:
            options |= {"certificate": self.tls_outgoing_certificate, "key": self.tls_outgoing_key}
        return options

    def limits(self) -> dict[str, Any]:
        """Return the arguments of a `Server`."""
        limits: dict[str, Any] = {
            "memory": self.network_memory,
            "frame": self.frame_limit,
            "idle": self.idle_time / _SECOND,
            "one_way": self.one_way_limit,
            "calls": self.call_limit,
            "backlog": self.accept_backlog,
        }
        options = ("max_connections", "max_connections_by_address", "send_buffer", "receive_buffer")
        # The rest is left to the system.
        return limits | {name: getattr(self, name) for name in options if getattr(self, name)}

    def set_up(self, server: "Server") -> bool:
        """Set up TLS of *server*; return whether there is any. Raises `ConfigError` with the name of a wrong file."""
        if self.mode == "disabled":
            return False
        if not (self.tls_certificate and self.tls_key):
            raise ConfigError(
                f"tls_mode is {self.mode}, which takes tls_certificate and tls_key (RocketMQ's tls.server.certPath and "
                "tls.server.keyPath); give both, or set tls_mode=disabled"
            )
        server.set_tls(
            self.mode,
            certificate=Path(self.tls_certificate),
            key=Path(self.tls_key),
            client_auth=self.tls_client_auth,
            trust=Path(self.tls_trust) if self.tls_trust else None,
        )
        return True
