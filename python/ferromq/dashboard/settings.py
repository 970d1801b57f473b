"""The options of a dashboard. Those that would let strangers in are refused."""

from dataclasses import dataclass

from ferromq.errors import ConfigError
from ferromq.protocol.endpoints import DASHBOARD, is_loopback

_PORTS = 1 << 16


@dataclass(frozen=True, slots=True)
class Settings:
    """
    The options of a dashboard. Raises `ConfigError` for a combination that lets strangers in.

    A dashboard that others than this machine reach needs *sign_in* and a certificate, or *insecure*.
    """

    listen: str = DASHBOARD
    """Its `host:port`; port 0 is a free one."""
    allow_changes: bool = False
    """Whether visitors who did not sign in may change the cluster."""
    sign_in: bool = False
    """Whether every page needs a user of the cluster's access control."""
    insecure: bool = False
    """Whether others than this machine reach it without `sign_in` or without a certificate."""
    names: tuple[str, ...] = ()
    """Host names, beside addresses and `localhost`, by which browsers may ask for it; without a port."""
    certificate: str | None = None
    """A PEM file; with it the dashboard speaks HTTPS."""
    key: str | None = None

    def __post_init__(self) -> None:
        """Check the combination."""
        host, port = split(self.listen)
        if not port.isascii() or not port.isdecimal() or int(port) >= _PORTS:
            raise ConfigError(f"listen is {self.listen!r}; a port is a number from 0 to {_PORTS - 1}")
        for name in self.names:
            if not name or set(name) & set(":/[] "):
                raise ConfigError(f"name is {name!r}; a host name without a port is expected, as mq.example.org")
        if (self.certificate is None) != (self.key is None):
            raise ConfigError("a certificate and its key belong together; give both")
        is_safe = self.sign_in and self.certificate is not None
        if not is_loopback(host) and not is_safe and not self.insecure:
            raise ConfigError(
                f"other machines reach {self.listen}. Require users of the cluster's access control and HTTPS "
                "(--sign-in, --certificate, --key), or listen on 127.0.0.1, or give --insecure"
            )

    @property
    def scheme(self) -> str:
        """`https` with a certificate."""
        return "http" if self.certificate is None else "https"


def split(address: str) -> tuple[str, str]:
    """Return host and port of `host:port`, an IPv6 host without its brackets. Raises `ConfigError` without a port."""
    host, separator, port = address.rpartition(":")
    if not separator or not host:
        raise ConfigError(f"listen is {address!r}; HOST:PORT is expected, as {DASHBOARD}")
    return host.removeprefix("[").removesuffix("]"), port
