"""What a client needs to speak TLS with a broker, read from files when the client is made."""

import logging
import os
import pkgutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ferromq import _ferromq
from ferromq.errors import ConfigError, Unsupported
from ferromq.terminal.objects import html_of

__all__ = ["Tls"]

_log = logging.getLogger("ferromq.client")

TlsFile = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class Tls:
    """
    How to speak TLS with brokers; all in PEM files.

    *trust* holds the certificates to believe. None: those of gRPC, which are Mozilla's, or those of the file that the
    environment variable `GRPC_DEFAULT_SSL_ROOTS_FILE_PATH` names; over remoting the system's. *certificate* and *key*
    are what the client shows to a broker that asks. *server_name* is the name to look for in the broker's certificate
    where it is not the one of the endpoint.
    """

    trust: TlsFile | None = None
    certificate: TlsFile | None = None
    key: TlsFile | None = None
    server_name: str | None = None

    def _repr_html_(self) -> str:
        return html_of(self)


@dataclass(frozen=True, slots=True)
class Credentials:
    """What connections are made with."""

    channel: Any
    options: tuple[tuple[str, str], ...] = ()
    frames: _ferromq.FramedTls | None = None
    """For framed calls; None if only gRPC can use the files."""


def check_tls(tls: "bool | TlsFile | Tls") -> None:
    """Raise `ConfigError` for a file that cannot be read; whether it holds what it must is seen by those who use it."""
    given = options_of(tls)
    if given is not None:
        _check_pair(given)
        for path in (given.trust, given.certificate, given.key):
            _read(path)


def options_of(tls: "bool | TlsFile | Tls") -> Tls | None:
    """Return the options of TLS; None without it. Raises `TypeError`."""
    if isinstance(tls, bool):
        return Tls() if tls else None
    given: object = tls
    if not isinstance(given, Tls | str | os.PathLike):
        raise TypeError(f"tls must be True, False, the path of a file, or a ferromq.Tls, not {given!r}")
    return tls if isinstance(tls, Tls) else Tls(tls)


def read_tls(tls: "bool | TlsFile | Tls") -> Credentials | None:
    """Read the files; None without TLS. Raises `ConfigError` for one that cannot be read."""
    given = options_of(tls)
    if given is None:
        return None
    _check_pair(given)
    import grpc  # noqa: PLC0415 (an administrator needs these options, and mostly no gRPC)

    trust, certificate, key = _read(given.trust), _read(given.certificate), _read(given.key)
    name = given.server_name
    try:
        frames = _ferromq.FramedTls(_default_roots() if trust is None else trust, certificate, key, name)
    except ConfigError as error:
        raise ConfigError(f"a TLS file of {_files(given)} cannot be used: {error}") from None
    except Unsupported as error:
        _log.warning("calls go over HTTP/2, which is slower: a TLS file of %s cannot be used: %s", _files(given), error)
        frames = None
    channel = grpc.ssl_channel_credentials(trust, key, certificate)
    return Credentials(channel, () if name is None else (("grpc.ssl_target_name_override", name),), frames)


def _default_roots() -> bytes:
    """Return the certificates that gRPC trusts without any of the user's."""
    path = os.environ.get("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH")
    if path:
        with suppress(OSError):  # gRPC takes its own then, too
            return Path(path).read_bytes()
    return pkgutil.get_data("grpc._cython", "_credentials/roots.pem") or b""


def ssl_context(tls: "bool | TlsFile | Tls") -> Any:
    """Return the `ssl.SSLContext` for these options; None without TLS. Raises `ConfigError` for a bad file."""
    given = options_of(tls)
    if given is None:
        return None
    import ssl  # noqa: PLC0415 (few clients need it)

    try:
        context = ssl.create_default_context(cafile=None if given.trust is None else os.fspath(given.trust))
        if given.certificate is not None:
            context.load_cert_chain(given.certificate, given.key)
    except OSError as error:
        raise ConfigError(f"a TLS file of {_files(given)} cannot be used: {error}") from error
    return context


def remoting_options(tls: "bool | TlsFile | Tls") -> dict[str, Any]:
    """
    Return the arguments of a `RemotingClient` for these options of TLS.

    Raises `ConfigError` for a certificate without its key, for `server_name`, and if the system has no certificates.
    """
    given = options_of(tls)
    if given is None:
        return {}
    _check_pair(given)
    if given.server_name is not None:
        raise ConfigError(
            f"server_name is {given.server_name!r}; over remoting a certificate must have the host of its server: give "
            "the servers such certificates, and leave server_name out"
        )
    files = {"trust": given.trust or _of_the_system(), "certificate": given.certificate, "key": given.key}
    return {"tls": True, **{name: os.fspath(path) for name, path in files.items() if path is not None}}


def _of_the_system() -> str:
    """Return the file of the certificates that the system trusts."""
    import ssl  # noqa: PLC0415 (few administrators need it)

    paths = ssl.get_default_verify_paths()
    if paths.cafile is None:
        raise ConfigError(
            "tls=True trusts what the system trusts, and the system has no file of certificates "
            f"({paths.openssl_cafile} is missing); give one: tls='ca.pem', or set {paths.openssl_cafile_env}"
        )
    return paths.cafile


def _files(tls: Tls) -> str:
    """Return the paths, for an error."""
    return ", ".join(os.fspath(path) for path in (tls.trust, tls.certificate, tls.key) if path is not None)


def _check_pair(tls: Tls) -> None:
    if (tls.certificate is None) != (tls.key is None):
        raise ConfigError("a certificate of the client needs its key, and a key its certificate")


def _read(path: TlsFile | None) -> bytes | None:
    if path is None:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"the TLS file {os.fspath(path)} cannot be read: {error.strerror}") from error
