"""The identity of a client, and the channel on which the broker reaches it unasked."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from ferromq.broker.clients.connection_index import ClientKey


class PushChannel(Protocol):
    """The part of `Server` that sends one-way requests to clients."""

    def push(self, connection: int, code: int, fields: Mapping[str, str] | None = None, body: bytes = b"") -> bool:
        """Send a one-way request; returns False if the connection is gone or its buffer is full."""


@dataclass(frozen=True, slots=True)
class Client:
    """A client, as it describes itself."""

    client_id: str
    connection: int
    peer: str
    """Its `host:port`."""
    language: str
    """RocketMQ's name for it, as JAVA."""
    version: int
    """RocketMQ's number of its version."""
    is_grpc: bool = False
    user: str | None = None
    """The user that signed what it described itself with; None without access control."""

    @property
    def key(self) -> ClientKey:
        """The key of the client: connection and id."""
        return self.connection, self.client_id

    @property
    def texts(self) -> tuple[str, ...]:
        """Its texts of unlimited length, for memory accounting."""
        return self.client_id, self.language, self.user or ""
