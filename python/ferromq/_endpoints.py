"""Addresses as users write them. Pure, and without protobuf: readers over remoting need no more."""

from ferromq.errors import ConfigError


def parse_endpoints(text: str) -> tuple[str, ...]:
    """Take `host:port`, or several joined by `;`, apart. Raises `ConfigError`."""
    endpoints = tuple(part.strip() for part in text.split(";") if part.strip())
    for endpoint in endpoints:
        host, _, port = endpoint.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
            raise ConfigError(f"an endpoint is host:port, {endpoint!r} is not; a broker's gRPC port is 8081 by default")
    if not endpoints:
        raise ConfigError("no endpoint is given; a broker's is host:port, 8081 by default")
    return endpoints
