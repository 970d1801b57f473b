"""
The keyword arguments of clients as types, for functions that pass them on.

A test compares them with the parameters of the clients.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Generic, TypedDict

from ferromq.client.tls import Tls, TlsFile
from ferromq.core.filters import Sql
from ferromq.core.payloads import Compression, Decode, Encode, T, V
from ferromq.core.subscriptions import Start
from ferromq.message import MessageView, Resolution
from ferromq.process.clock import Clock
from ferromq.telemetry import Telemetry


class MessageOptions(TypedDict, total=False):
    """What `Message` takes beside the body."""

    keys: str | Iterable[str] | None
    tag: str | None
    properties: Mapping[str, str] | None
    message_group: str | None
    delivery_timestamp: datetime | int | None
    delay: timedelta | float | None
    priority: int | None


class AdminOptions(TypedDict, total=False):
    """The options of `Admin`."""

    timeout: timedelta | float
    tls: bool | TlsFile | Tls
    namespace: str
    access_key: str | None
    secret_key: str | None


class ClientOptions(AdminOptions, total=False):
    """The options that producers and consumers have in common."""

    attempts: int
    telemetry: Telemetry | None


class _ConsumerOptions(ClientOptions, total=False):
    filter: str | Sql
    begin: Start | None
    invisible_duration: timedelta | float
    prefetch: int | None


class PlainConsumerOptions(_ConsumerOptions, total=False):
    """The options of a `Consumer` that gives messages as they are received."""

    decode: None


class ConsumerOptions(_ConsumerOptions, Generic[T], total=False):
    """The options of `Consumer`, of `ferromq` and `ferromq.aio`."""

    decode: Decode[T] | None


class _ReaderOptions(ClientOptions, total=False):
    filter: str | Sql
    begin: Start


class PlainReaderOptions(_ReaderOptions, total=False):
    """The options of a `Reader` that gives messages as they are stored."""

    decode: None


class ReaderOptions(_ReaderOptions, Generic[T], total=False):
    """The options of `Reader`, of `ferromq` and `ferromq.aio`."""

    decode: Decode[T] | None


class SendOptions(ClientOptions, Generic[V], total=False):
    """The options that the producers of `ferromq` and `ferromq.aio` have in common."""

    linger: timedelta | float
    max_pending_bytes: int
    clock: Clock | None
    encode: Encode[V] | None
    idempotent: bool
    compress: Compression | None
    compress_over: int


class ProducerOptions(SendOptions[V], Generic[V], total=False):
    """The options of `ferromq.Producer`."""

    checker: Callable[[MessageView], Resolution | None] | None


class AsyncProducerOptions(SendOptions[V], Generic[V], total=False):
    """The options of `ferromq.aio.Producer`."""

    checker: Callable[[MessageView], Awaitable[Resolution | None] | Resolution | None] | None
