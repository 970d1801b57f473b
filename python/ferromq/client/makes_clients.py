"""What the connections of `ferromq` and `ferromq.aio` have in common: an endpoint, and the clients that they made."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

from ferromq.client.options import ClientOptions
from ferromq.errors import ClientClosed, ConfigError
from ferromq.process.clock import Clock
from ferromq.process.fork import Owner
from ferromq.protocol.endpoints import parse_address
from ferromq.terminal.objects import Shown, html

if TYPE_CHECKING:
    from ferromq._ferromq import Server
    from ferromq.client.client import Client

_SHOWN = 10
"""The most clients that a notebook shows."""


class Closable(Protocol):
    """A client that can be closed."""

    @property
    def closed(self) -> bool:
        """Whether it was closed."""


class Host(NamedTuple):
    """What a connection has of a broker in its own process."""

    clock: Clock
    """From which producers count delays."""
    servers: Mapping[str, "Server"]
    """The broker by its endpoint: clients call it without a socket. Empty where they go over the network."""
    owner: Owner
    """The process of the broker; in others, clients go over the network."""


C = TypeVar("C", bound=Closable)
Made = TypeVar("Made", bound=Closable)


class MakesClients(Shown, Generic[C]):
    """
    Remembers the clients that it made until they are closed; thread-safe.

    It belongs to no process: after a fork it makes clients of the child. So it has no lock, which another thread could
    hold during a fork; each step on its table is atomic.
    """

    _what = "connection"
    _again: str
    """What to do about a closed one, for error texts."""

    def __init__(self, endpoint: str, options: ClientOptions, host: Host | None = None) -> None:
        self._endpoint = endpoint
        self._host = host
        self._options = options
        self._is_closed = False
        self._made: dict[int, C] = {}

    @property
    def endpoint(self) -> str:
        """`host:port` of the broker for gRPC clients, or behind `namesrv://` of name servers; joined by `;`."""
        return self._endpoint

    @property
    def _admin_addresses(self) -> tuple[str | None, str | None]:
        """The name servers and the brokers of an administrator; a connection has one of the two, the other is None."""
        addresses, are_name_servers = parse_address(self._endpoint)
        joined = ";".join(addresses)
        return (joined, None) if are_name_servers else (None, joined)

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._is_closed

    def _check(self) -> None:
        if self._is_closed:
            raise ClientClosed(f"this {self._what} is closed; {self._again}")

    def _prepare(self, client: "Client") -> None:
        """Let a client call a broker of this process without a socket, before its first use."""
        if self._host is not None and self._host.owner.is_here:
            client.channels.here.update(self._host.servers)

    def _forget_closed(self) -> None:
        for key, each in list(self._made.items()):
            if each.closed:
                self._made.pop(key, None)

    def _open_clients(self) -> list[C]:
        """Return the clients that are not closed, oldest first."""
        return [each for each in list(self._made.values()) if not each.closed]

    @property
    def _state(self) -> str:
        return "closed" if self._is_closed else "open"

    def _facts(self) -> Iterator[tuple[str, object]]:
        yield "endpoint", self._endpoint
        if namespace := self._options.get("namespace"):
            yield "namespace", namespace

    def _repr_html_(self) -> str:
        """Return a table for notebooks: addresses and open clients."""
        clients = self._open_clients()
        rows = [*self._facts(), *(("client", repr(each)) for each in clients[:_SHOWN])]
        if len(clients) > _SHOWN:
            rows.append(("", f"and {len(clients) - _SHOWN} more"))
        return html(f"{self._kind} ({self._state})", (), rows)


def endpoint_and_host(given: MakesClients[Any]) -> tuple[str, Host]:
    """Return those of `ferromq.embedded()`. Raises `ConfigError` for another connection, `ClientClosed` if closed."""
    host = given._host  # noqa: SLF001 (the twin's)
    if host is None:
        raise ConfigError(f"the endpoint is {given!r}; expected its address, {given.endpoint!r}, or ferromq.embedded()")
    given._check()  # noqa: SLF001 (likewise)
    return given.endpoint, host
