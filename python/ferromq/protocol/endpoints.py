"""Parses the addresses that users give. Without protobuf, because readers over remoting do not need it."""

import re

from ferromq.errors import ConfigError

# Characters of schemes, paths, lists and blanks, which no host has.
_ODD = re.compile(r"[/,@?#|&=\s]")


def parse_endpoints(text: str) -> tuple[str, ...]:
    """Split `host:port`, or several joined by `;`. Raises `ConfigError`."""
    if not isinstance(text, str):
        raise ConfigError(f"the endpoint is {text!r}; expected a string: host:port, or several joined by ;")
    endpoints = tuple(part.strip() for part in text.split(";") if part.strip())
    for endpoint in endpoints:
        host, _, port = endpoint.rpartition(":")
        if _ODD.search(host):
            raise ConfigError(f"an endpoint is host:port, several are joined by ;, and {endpoint!r} is neither")
        if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
            raise ConfigError(f"an endpoint is host:port, {endpoint!r} is not; a broker's gRPC port is 8081 by default")
    if not endpoints:
        raise ConfigError("no endpoint is given; a broker's is host:port, 8081 by default")
    return endpoints
