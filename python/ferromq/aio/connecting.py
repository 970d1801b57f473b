"""
The way in: `ferromq.aio.connect` returns a connection, which makes producers, consumers, readers and administrators.

`embedding` has the connection that brings its own broker.
"""

import os
from collections.abc import Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack, overload

from ferromq.aio._closing import close_all
from ferromq.aio.admin import Admin
from ferromq.aio.consumer import Consumer
from ferromq.aio.producer import Producer
from ferromq.aio.reader import Reader
from ferromq.client.client import check_shared
from ferromq.client.connection import end_of, remaining
from ferromq.client.makes_clients import Host, MakesClients, endpoint_and_host
from ferromq.client.options import (
    AdminOptions,
    AsyncProducerOptions,
    ClientOptions,
    ConsumerOptions,
    PlainConsumerOptions,
    PlainReaderOptions,
    ReaderOptions,
)
from ferromq.client.tls import Tls, TlsFile
from ferromq.core.credentials import credentials_of
from ferromq.core.payloads import DecodedMessage, T, V
from ferromq.core.subscriptions import Topics
from ferromq.message import MessageView
from ferromq.protocol.endpoints import chosen_endpoint
from ferromq.protocol.naming import check_namespace
from ferromq.telemetry import Telemetry

__all__ = ["Connection", "connect"]

Client = Producer[Any] | Consumer[Any] | Reader[Any] | Admin
Made = TypeVar("Made", bound=Client)


class Connection(MakesClients[Client]):
    """
    Makes clients of one broker, or of the brokers of one cluster; each belongs to the loop of its first use.

    Use it in an `async with`, or await `close`. `ferromq.aio.connect` returns one. Nothing is connected before a client
    is used. A connection may be made before a fork and used in the child; the clients it made before belong to the
    parent.
    """

    _kind = "aio.Connection"  # async
    _again = "make a new one with ferromq.aio.connect()"

    def producer(self, *topics: str, **options: Unpack[AsyncProducerOptions[V]]) -> Producer[V]:
        """
        Return a new producer. The arguments are those of `ferromq.aio.Producer` after the endpoint.

        Options that are not given are those of the connection. Raises `ClientClosed` after `close`.
        """
        self._check()
        return self._keep(Producer(self._endpoint, *topics, **self._of_producers(options)))

    @overload
    def consumer(
        self, group: str, topics: Topics, **options: Unpack[PlainConsumerOptions]
    ) -> Consumer[MessageView]: ...
    @overload
    def consumer(
        self, group: str, topics: Topics, **options: Unpack[ConsumerOptions[T]]
    ) -> Consumer[DecodedMessage[T]]: ...
    def consumer(self, group: str, topics: Topics, **options: Unpack[ConsumerOptions[Any]]) -> Consumer[Any]:
        """
        Return a new consumer in *group* of *topics*. The options are those of `ferromq.aio.Consumer`.

        Options that are not given are those of the connection. Raises `ClientClosed` after `close`.
        """
        self._check()
        whole: ConsumerOptions[Any] = {**self._options, **options}
        return self._keep(Consumer(self._endpoint, group, topics, **whole))

    @overload
    def reader(self, topics: Topics, **options: Unpack[PlainReaderOptions]) -> Reader[MessageView]: ...
    @overload
    def reader(self, topics: Topics, **options: Unpack[ReaderOptions[T]]) -> Reader[DecodedMessage[T]]: ...
    def reader(self, topics: Topics, **options: Unpack[ReaderOptions[Any]]) -> Reader[Any]:
        """
        Return a new reader of *topics*, which has no group. The options are those of `ferromq.aio.Reader`.

        Options that are not given are those of the connection. Raises `ClientClosed` after `close`.
        """
        self._check()
        whole: ReaderOptions[Any] = {**self._options, **options}
        return self._keep(Reader(self._endpoint, topics, **whole))

    def admin(self, **options: Unpack[AdminOptions]) -> Admin:
        """
        Return a new administrator of the cluster. The options are those of `ferromq.aio.Admin`.

        Options that are not given are those of the connection. Raises `ClientClosed` after `close`.
        """
        self._check()
        return self._keep(self._make_admin(options))

    async def close(self, timeout: timedelta | float = 5.0) -> None:
        """
        Close the clients that the connection made, within about *timeout* (float: seconds). Idempotent.

        Consumers are closed first, so that their handlers can still send; they have half the time if there are other
        clients.
        """
        whole = end_of(timeout)
        self._is_closed = True
        consumers = [each for each in self._open_clients() if isinstance(each, Consumer)]
        others = [each for each in self._open_clients() if not isinstance(each, Consumer)]
        await close_all(consumers, end_of(remaining(whole) / 2) if others else whole)
        await close_all(others, whole)

    def _of_producers(self, options: AsyncProducerOptions[V]) -> AsyncProducerOptions[V]:
        whole: AsyncProducerOptions[V] = {**self._options, **options}
        if self._host is not None:
            whole.setdefault("clock", self._host.clock)
        return whole

    def _make_admin(self, options: AdminOptions) -> Admin:
        shared: AdminOptions = {"timeout": self._options["timeout"], "tls": self._options["tls"]}
        shared["namespace"] = self._options["namespace"]
        shared["access_key"] = self._options.get("access_key")
        shared["secret_key"] = self._options.get("secret_key")
        whole: AdminOptions = {**shared, **options}
        namesrv, endpoint = self._admin_addresses
        return Admin(namesrv, endpoint=endpoint, **whole)

    def _keep(self, client: Made) -> Made:
        self._forget_closed()
        if not isinstance(client, Admin):
            self._prepare(client._client.base)  # noqa: SLF001 (no one else's option)
        self._made[id(client)] = client
        # sync: if self._is_closed:  # by another thread
        # sync:     client.close(0)
        # sync:     self._check()
        return client

    async def __aenter__(self) -> Self:
        self._check()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def connect(
    endpoint: str | Sequence[str] | MakesClients[Any] | None = None,
    *,
    namesrv: str | Sequence[str] | None = None,
    timeout: timedelta | float = 10.0,
    attempts: int = 3,
    tls: bool | TlsFile | Tls = False,
    telemetry: Telemetry | None = None,
    namespace: str = "",
    access_key: str | None = None,
    secret_key: str | None = None,
) -> Connection:
    """
    Return a connection to the broker at *endpoint*, or to those behind *namesrv*, without calling them yet.

        async with ferromq.aio.connect("127.0.0.1:8081") as mq, mq.producer() as producer:
            await producer.send("orders", b"hello")

    *endpoint* is the gRPC address of a broker or of RocketMQ's proxy, `host:port`. Give several brokers of a cluster
    joined by `;`, or as a sequence. *namesrv*, in its place, is the address of name servers, in the same forms: clients
    then call the brokers behind them over remoting, which RocketMQ's Java brokers speak without a proxy. There an
    unknown topic raises `TopicNotFound`; by *endpoint*, the broker may create it on first use. By default it is
    the environment variable FERROMQ_ENDPOINT, or else NAMESRV_ADDR.

    *endpoint* may be a broker of this process, too, `ferromq.embedded()`: its hot methods are then called without a
    socket. Close the connection before the broker.

    *timeout*, *attempts*, *tls*, *telemetry*, *namespace*, *access_key* and *secret_key* are as of `Producer`. All
    clients of the connection have them, unless they are given others.

    Raises `ConfigError` without an address, with both, for one that is not `host:port`, and for a wrong option;
    `TypeError` for an option of a wrong type; `IllegalName` for a namespace with other characters than letters, digits,
    `_`, `-` and `|`; `ClientClosed` for a closed embedded broker.
    """
    check_namespace(namespace)
    check_shared(timeout, attempts, tls, telemetry)
    credentials_of(access_key, secret_key)
    options: ClientOptions = {"timeout": timeout, "attempts": attempts, "tls": tls, "telemetry": telemetry}
    options["namespace"] = namespace
    options["access_key"], options["secret_key"] = access_key, secret_key
    host: Host | None = None
    if isinstance(endpoint, MakesClients):
        endpoint, host = endpoint_and_host(endpoint)
    return Connection(chosen_endpoint(endpoint, os.environ, namesrv), options, host)
