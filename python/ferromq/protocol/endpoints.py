"""Parses the addresses that users give. Without protobuf, because readers over remoting do not need it."""

import ipaddress
import re
from collections.abc import Mapping, Sequence

from ferromq.errors import ConfigError

ENDPOINT_VARIABLE = "FERROMQ_ENDPOINT"
"""The environment variable with the endpoint of programs that give none."""
NAMESRV_VARIABLE = "NAMESRV_ADDR"
"""RocketMQ's environment variable with the name servers of programs that give none."""
NAMESRV = "namesrv://"
"""Begins an address that is name servers'."""
DASHBOARD = "127.0.0.1:8082"
"""Where a dashboard listens, unless it is told otherwise."""
WHICH_PORT_OF_NAMESRV = "is this a name server's port (9876)?"
# Characters of schemes, paths, lists and blanks, which no host has.
_ODD = re.compile(r"[/,@?#|&=\s]")


def parse_endpoints(text: str) -> tuple[str, ...]:
    """Split `host:port` of brokers, or several joined by `;`. Raises `ConfigError`."""
    return _parsed(text, "endpoint", "a broker's gRPC port is 8081 by default")


def parse_name_servers(text: str) -> tuple[str, ...]:
    """Split `host:port` of name servers, joined by `;`. Raises `ConfigError`."""
    return _parsed(text, "name server", "its port is 9876 by default")


def _parsed(text: str, what: str, port: str) -> tuple[str, ...]:
    a = f"{'an' if what[0] in 'aeiou' else 'a'} {what}"
    if not isinstance(text, str):
        raise ConfigError(f"the {what} is {text!r}; expected a string: host:port, or several joined by ;")
    addresses = tuple(part.strip() for part in text.split(";") if part.strip())
    for address in addresses:
        host, _, number = address.rpartition(":")
        if _ODD.search(host):
            raise ConfigError(f"{a} is host:port, several are joined by ;, and {address!r} is neither")
        if not host or not number.isdecimal() or not 0 < int(number) < 1 << 16:
            raise ConfigError(f"{a} is host:port, {address!r} is not; {port}")
    if not addresses:
        raise ConfigError(f"no {what} is given; {a} is host:port, {port}")
    return addresses


def parse_address(text: str) -> tuple[tuple[str, ...], bool]:
    """Return the addresses of brokers, or those of name servers after `namesrv://` and True. Raises `ConfigError`."""
    if isinstance(text, str) and text.strip().startswith(NAMESRV):
        return parse_name_servers(text.strip().removeprefix(NAMESRV)), True
    return parse_endpoints(text), False


def is_loopback(host: str) -> bool:
    """Say whether only this machine reaches *host*, an IPv6 address with or without brackets; no name but localhost."""
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return host.lower() == "localhost"
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def chosen_endpoint(
    given: str | Sequence[str] | None, environment: Mapping[str, str], namesrv: str | Sequence[str] | None = None
) -> str:
    """
    Return the given endpoints joined by `;`, or the name servers *namesrv* behind `namesrv://`.

    Without both it is FERROMQ_ENDPOINT of the environment, and without that NAMESRV_ADDR. Raises `ConfigError` for a
    missing address, for both, and for one that is not `host:port`.
    """
    if given is not None and namesrv is not None:
        raise ConfigError("endpoint and namesrv are given; give one: brokers by endpoint, or name servers by namesrv")
    if namesrv is not None:
        return NAMESRV + ";".join(parse_name_servers(_joined(namesrv, "namesrv")))
    if given is not None:
        return _canonical(_joined(given, "the endpoint"))
    for variable, scheme in ((ENDPOINT_VARIABLE, ""), (NAMESRV_VARIABLE, NAMESRV)):
        text = environment.get(variable, "").strip()
        if text:
            try:
                return _canonical(scheme + text)
            except ConfigError as error:
                raise ConfigError(f"the environment variable {variable} is {text!r}: {error}") from error
    raise ConfigError(
        f"no endpoint is given; call ferromq.connect('HOST:8081') with a broker's address or "
        f"ferromq.connect(namesrv='HOST:9876') with a name server's, or set the environment variable "
        f"{ENDPOINT_VARIABLE} or {NAMESRV_VARIABLE} to it"
    )


def _canonical(text: str) -> str:
    addresses, are_name_servers = parse_address(text)
    return (NAMESRV if are_name_servers else "") + ";".join(addresses)


def _joined(given: str | Sequence[str], what: str) -> str:
    if isinstance(given, str):
        return given
    if not isinstance(given, Sequence) or not all(isinstance(each, str) for each in given):
        raise ConfigError(f"{what} is {given!r}; expected host:port, or a sequence of them")
    return ";".join(given)
