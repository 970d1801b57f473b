"""Parses the addresses that users give. Without protobuf, because readers over remoting do not need it."""

import re
from collections.abc import Mapping, Sequence

from ferromq.errors import ConfigError

ENDPOINT_VARIABLE = "FERROMQ_ENDPOINT"
"""The environment variable with the endpoint of programs that give none."""
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


def chosen_endpoint(given: str | Sequence[str] | None, environment: Mapping[str, str]) -> str:
    """
    Return the given endpoints joined by `;`, or those of the environment variable FERROMQ_ENDPOINT if *given* is None.

    Raises `ConfigError` for a missing address, and for one that is not `host:port`.
    """
    if given is None:
        text = environment.get(ENDPOINT_VARIABLE, "")
        if not text.strip():
            raise ConfigError(
                f"no endpoint is given; call ferromq.connect('HOST:8081') with a broker's address, or set the "
                f"environment variable {ENDPOINT_VARIABLE} to it"
            )
        try:
            return ";".join(parse_endpoints(text))
        except ConfigError as error:
            raise ConfigError(f"the environment variable {ENDPOINT_VARIABLE} is {text!r}: {error}") from error
    if isinstance(given, str):
        return ";".join(parse_endpoints(given))
    if not isinstance(given, Sequence) or not all(isinstance(each, str) for each in given):
        raise ConfigError(f"the endpoint is {given!r}; expected host:port, or a sequence of them")
    return ";".join(parse_endpoints(";".join(given)))
