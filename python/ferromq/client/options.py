"""
The keyword arguments of clients as types, for functions that pass them on.

A test compares them with the parameters of the clients.
"""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TypedDict

from ferromq.client.tls import Tls, TlsFile
from ferromq.core.filters import Sql
from ferromq.message import MessageView, Resolution
from ferromq.process.clock import Clock


class AdminOptions(TypedDict, total=False):
    """The options of `Admin`."""

    timeout: timedelta | float
    tls: bool | TlsFile | Tls


class ClientOptions(AdminOptions, total=False):
    """The options that producers and consumers have in common."""

    attempts: int


class ConsumerOptions(ClientOptions, total=False):
    """The options of `Consumer`, of `ferromq` and `ferromq.aio`."""

    filter: str | Sql
    invisible_duration: timedelta | float
    prefetch: int | None


class SendOptions(ClientOptions, total=False):
    """The options that the producers of `ferromq` and `ferromq.aio` have in common."""

    linger: timedelta | float
    max_pending_bytes: int
    clock: Clock | None


class ProducerOptions(SendOptions, total=False):
    """The options of `ferromq.Producer`."""

    checker: Callable[[MessageView], Resolution | None] | None


class AsyncProducerOptions(SendOptions, total=False):
    """The options of `ferromq.aio.Producer`."""

    checker: Callable[[MessageView], Awaitable[Resolution | None] | Resolution | None] | None
