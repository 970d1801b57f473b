"""
The addresses of a broker: where it listens, and what it advertises to name servers, clients and in records.

Everything is computed from the options and this machine.
"""

import contextlib
import ipaddress
import socket
from collections.abc import Iterator
from typing import Any

from ferromq.broker.cluster.identity import BrokerIdentity
from ferromq.config.broker import BrokerConfig
from ferromq.config.values import split_advertised
from ferromq.errors import ConfigError
from ferromq.protocol.route import Permission

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_FAST_DISTANCE = 2
_WILDCARDS = frozenset({"0.0.0.0", "[::]", "::", ""})  # noqa: S104 (compared, not bound)


def fast_address(config: BrokerConfig, listen: str) -> str | None:
    """Return the address of the second remoting listener beside *listen*; None without one."""
    if config.fast_listen != "auto":
        return None if config.fast_listen == "off" else config.fast_listen
    host, _, port = listen.rpartition(":")
    # No client looks below a port that was chosen at random.
    if config.listen.endswith(":0") or int(port) <= _FAST_DISTANCE:
        return None
    return f"{host}:{int(port) - _FAST_DISTANCE}"


def store_host(config: BrokerConfig, identity: BrokerIdentity) -> str:
    """
    Return the broker's address for records: a numeric host, IPv4 if possible, as in RocketMQ.

    Raises `ConfigError` if the host has no address.
    """
    option, value = ("advertise", config.advertise) if config.advertise else ("listen", config.listen)
    host, _, port = identity.address.rpartition(":")
    found = {family: str(where[0]) for family, _, _, _, where in reversed(_resolve(option, value, host))}
    numeric = found.get(socket.AF_INET) or f"[{found[socket.AF_INET6].partition('%')[0]}]"
    return f"{numeric}:{port}"


def _resolve(option: str, value: str, host: str) -> list[tuple[Any, Any, Any, Any, Any]]:
    try:
        return socket.getaddrinfo(host.strip("[]"), 0, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise ConfigError(
            f"{option} is {value!r}, and the host {host} has no address here: {error}; give it one (hosts file, DNS), "
            f"or set {option} to an address"
        ) from error


@contextlib.contextmanager
def reserved(option: str, address: str) -> Iterator[str]:
    """
    Reserve a free port for `host:0` until the server listens, and yield `host:port`.

    Records hold the broker's address, so the port must be known before the store opens. On Linux another socket with
    SO_REUSEADDR can bind and listen beside a bound one that does not listen.
    """
    host, _, port = address.rpartition(":")
    if port != "0":
        yield address
        return
    family, kind, protocol, _, where = _resolve(option, address, host)[0]
    with socket.socket(family, kind, protocol) as reservation:
        reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reservation.bind(where)
        yield f"{host}:{reservation.getsockname()[1]}"


def identify(config: BrokerConfig, listen: str, grpc_listen: str) -> BrokerIdentity:
    """Return the identity of a broker that listens on these addresses."""
    address = _advertised(config.advertise, listen, config.namesrv)
    host = address.rpartition(":")[0]
    grpc_address = _advertised(config.grpc_advertise or host, grpc_listen, config.namesrv)
    membership = config.membership
    return BrokerIdentity(
        config.name,
        config.cluster,
        address,
        grpc_address,
        membership.broker_id,
        Permission(membership.permission),
    )


def unreachable(identity: BrokerIdentity, listen: str, grpc_listen: str) -> list[str]:
    """Return a warning for each advertised address that no listener can be reached at."""
    found = []
    for listens, advertises, bound, advertised in (
        ("listen", "advertise", listen, identity.address),
        ("grpc_listen", "grpc_advertise", grpc_listen, identity.grpc_address),
    ):
        host, _, port = bound.rpartition(":")
        if not _is_reachable(host, advertised.rpartition(":")[0]):
            found.append(
                f"this broker advertises {advertised} ({advertises}) and listens only on {bound} ({listens}); set "
                f"{advertises} to an address that leads there, or {listens} to 0.0.0.0:{port}"
            )
    return found


def _is_reachable(host: str, advertised: str) -> bool:
    """Return whether a listener on *host* may be reachable at *advertised*; True if unknown, as behind a NAT."""
    if host in _WILDCARDS or host == advertised:
        return True
    bound, announced = _addresses(host), _addresses(advertised)
    if not announced or bound & announced:
        return True
    return not all(address.is_loopback for address in bound) and not any(map(_is_own, announced))


def _addresses(host: str) -> set[Address]:
    try:
        found = socket.getaddrinfo(host.strip("[]"), 0, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return set()
    return {ipaddress.ip_address(str(where[0]).partition("%")[0]) for *_, where in found}


def _is_own(address: Address) -> bool:
    """Return whether an address belongs to this machine."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6  # noqa: PLR2004
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((str(address), 0))
        except OSError:
            return False
    return True


def _advertised(wanted: str, listen: str, name_servers: tuple[str, ...]) -> str:
    """Return the advertised `host:port`: the configured one, else the listener's with a real address for a wildcard."""
    host, _, port = listen.rpartition(":")
    if wanted:
        wanted_host, wanted_port = split_advertised(wanted)
        return f"{wanted_host}:{wanted_port or port}"
    return f"{_own_address(name_servers) if host in _WILDCARDS else host}:{port}"


def _own_address(name_servers: tuple[str, ...]) -> str:
    """Return this machine's address on the route to the first name server; sends no packet."""
    host, _, port = (name_servers[0] if name_servers else "192.0.2.1:9").rpartition(":")
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(where)
            own = str(probe.getsockname()[0]).partition("%")[0]
    except OSError:
        return "127.0.0.1"
    return f"[{own}]" if family == socket.AF_INET6 else own
