"""What a client needs to speak TLS with a broker, read from files when the client is made."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from ferromq.errors import ConfigError

__all__ = ["Tls"]

TlsFile = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class Tls:
    """
    How to speak TLS with brokers; all in PEM files.

    *trust* holds the certificates to believe; None: the system's. *certificate* and *key* are what the client shows
    to a broker that asks. *server_name* is the name to look for in the broker's certificate where it is not the one of
    the endpoint.
    """

    trust: TlsFile | None = None
    certificate: TlsFile | None = None
    key: TlsFile | None = None
    server_name: str | None = None


@dataclass(frozen=True, slots=True)
class Credentials:
    """What channels are made with."""

    channel: Any
    options: tuple[tuple[str, str], ...] = ()


def read_tls(tls: "bool | TlsFile | Tls") -> Credentials | None:
    """Read the files; None without TLS. Raises `ConfigError` for one that cannot be read."""
    if tls is False:
        return None
    if not isinstance(tls, Tls):
        tls = Tls() if tls is True else Tls(tls)
    if (tls.certificate is None) != (tls.key is None):
        raise ConfigError("a certificate of the client needs its key, and a key its certificate")
    channel = grpc.ssl_channel_credentials(_read(tls.trust), _read(tls.key), _read(tls.certificate))
    name = tls.server_name
    return Credentials(channel, () if name is None else (("grpc.ssl_target_name_override", name),))


def _read(path: TlsFile | None) -> bytes | None:
    if path is None:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"the TLS file {os.fspath(path)} cannot be read: {error.strerror}") from error
