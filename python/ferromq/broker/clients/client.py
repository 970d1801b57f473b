"""The identity of a client, and the channel on which the broker reaches it unasked."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from ferromq.broker.clients.connection_index import Key


class Pusher(Protocol):
    """What reaches clients unasked: the part of `Server` that is used for it."""

    def push(self, connection: int, code: int, fields: Mapping[str, str] | None = None, body: bytes = b"") -> bool:
        """Send a request nobody answers; False where the connection is gone or takes no more."""


@dataclass(frozen=True, slots=True)
class Client:
    """A client as it showed itself."""

    client_id: str
    connection: int
    peer: str
    """Its `host:port`."""
    language: str
    """RocketMQ's name for it, as JAVA."""
    version: int
    """RocketMQ's number of its version."""
    is_grpc: bool = False

    @property
    def key(self) -> Key:
        """What tells it from others."""
        return self.connection, self.client_id

    @property
    def texts(self) -> tuple[str, ...]:
        """What it says that may be long."""
        return self.client_id, self.language
