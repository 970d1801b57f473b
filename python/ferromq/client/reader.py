# Generated from aio/reader.py by tools/sync_from_async.py: change that file, then run `make sync`.
"""
The reader: reads topics by offset, without a group.

How it reads is in `core.reading`.
"""

import threading
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from types import TracebackType
from typing import Generic, Literal, Self, Unpack, overload

from ferromq.client.client import Client, Options
from ferromq.client.connection import end_of
from ferromq.client.options import PlainReaderOptions, ReaderOptions
from ferromq.client.tls import Tls, TlsFile
from ferromq.core.filters import Sql
from ferromq.core.payloads import Decode, DecodedMessage, M, T
from ferromq.core.pull_plans import Queue, check_until
from ferromq.core.reading import Reading
from ferromq.core.receive_plans import check_count
from ferromq.core.requests import seconds
from ferromq.core.subscriptions import Start, Topics, filters_of
from ferromq.core.watch import Watch
from ferromq.errors import ClientClosed
from ferromq.message import MessageView  # noqa: TC001 (editors resolve the overloads)
from ferromq.tables import MessageTable, check_arrow
from ferromq.telemetry import Telemetry
from ferromq.terminal.objects import Shown

__all__ = ["Reader"]


class Reader(Shown, Generic[M]):
    """
    Reads every message of topics, without a group; thread-safe.

    Use it in a `with`, or call `close`. Each reader gets every message (broadcast). It leaves nothing behind on the
    brokers: no group, no offsets, no client. Messages have no lease and cannot be acknowledged; `positions` says how
    far the reader is. It finds new queues and brokers within 30 s, and reads them from their first message.

        with mq.reader("orders") as reader:
            for message in reader.messages(until="end"):
                ...

    *topics* and *filter* are as of `Consumer`. *begin* is `"first"`, `"last"` (only messages stored after the first
    read began), or a time (messages stored then or later). *endpoint*, *timeout*, *attempts*, *tls*, *telemetry* and
    *namespace* are as of `Consumer`, too; each read that brings messages is a receive. Brokers must answer pulls over
    gRPC; others raise `Unsupported`.

    *decode* makes values of bodies as of `Consumer`. A body that does not decode raises `Undecodable` once the messages
    before it were handed out, with a note that names its message. The position is behind it then: the next read goes on
    with the next one. A `RetryAfter` of a decoder is raised, too, and the next read tries the message again.
    """

    @overload
    def __init__(
        self: "Reader[MessageView]", endpoint: str, topics: Topics, **options: Unpack[PlainReaderOptions]
    ) -> None: ...
    @overload
    def __init__(
        self: "Reader[DecodedMessage[T]]", endpoint: str, topics: Topics, **options: Unpack[ReaderOptions[T]]
    ) -> None: ...
    def __init__(
        self,
        endpoint: str,
        topics: Topics,
        *,
        filter: str | Sql = "*",  # noqa: A002 (what it is called everywhere)
        begin: Start = "first",
        timeout: timedelta | float = 10.0,
        attempts: int = 3,
        tls: bool | TlsFile | Tls = False,
        decode: Decode[T] | None = None,
        telemetry: Telemetry | None = None,
        namespace: str = "",
        access_key: str | None = None,
        secret_key: str | None = None,
    ) -> None:
        self._reading: Reading[M] = Reading(filters_of(topics, filter, namespace), begin, namespace, decode)
        settings = self._reading.subscription.settings()
        options = Options(
            endpoint, timeout, attempts, tls, namespace=namespace, access_key=access_key, secret_key=secret_key
        )
        self._client = Client("reader", options, settings)
        self._client.common.watch = None if telemetry is None else Watch(telemetry, endpoint, namespace=namespace)
        self._lock = threading.Lock()

    def read(self, max_messages: int = 32, *, wait: timedelta | float = timedelta(seconds=20)) -> list[M]:
        """
        Read up to *max_messages* of one queue, waiting for the first; an empty list if none came in time.

        It ends within *wait* and 3 seconds, whatever hangs. Raises `ConnectionFailed` or `RequestTimeout` if no broker
        answered for the whole wait.
        """
        self._client.check()
        check_count(max_messages)
        with self._lock:
            return self._client.run(self._reading.read(self._client.common, max_messages, seconds(wait)))

    def read_arrow(
        self, max_messages: int = 16_384, *, wait: timedelta | float = timedelta(seconds=20)
    ) -> MessageTable:
        """
        Read as `read` does, as columns; positions move behind the table's messages, and bodies are not decoded.

        A broker answers about 4 MiB at most. Raises what `read` raises, and `ConfigError` without pyarrow.
        """
        self._client.check()
        check_arrow()
        check_count(max_messages)
        with self._lock:
            return self._client.run(self._reading.read_table(self._client.common, max_messages, seconds(wait)))

    def messages(
        self, *, idle: timedelta | float | None = None, until: Literal["end"] | datetime | int | None = None
    ) -> Iterator[M]:
        """
        Yield messages as they come, also after restarts of brokers, until the reader is closed.

        *idle* ends it after so long without a message. *until* ends it once the messages are read that are stored when
        it begins (`"end"`), or of these the ones that were stored before a time.
        """
        self._client.check()
        check_until(until)
        return self._messages(None if idle is None else seconds(idle), until)

    def _messages(self, idle: float | None, until: Literal["end"] | datetime | int | None) -> Iterator[M]:
        common, reading = self._client.common, self._reading
        try:
            ends = None if until is None else self._client.run(reading.ends(common, until))
            while not self._client.is_closed:
                with self._lock:
                    taken = reading.take(1)
                    if not taken and not self._client.run(reading.read_on(common, idle, ends)):
                        return
                if taken:
                    yield taken[0]
        except ClientClosed:
            if not self._client.is_closed:
                raise

    def __iter__(self) -> Iterator[M]:
        """Yield messages as they come, until the reader is closed."""
        return self.messages()

    @property
    def positions(self) -> dict[Queue, int]:
        """The offset of the next message in each queue; empty before the first read. `seek` takes them."""
        return dict(self._reading.positions)

    def seek(self, positions: Mapping[Queue, int]) -> None:
        """
        Read on at these offsets, for example `positions` of an earlier reader.

        Queues that are not named stay where they are. A queue of which no position is known begins at its first message
        if the topic has positions. Raises `ValueError` for an offset below 0, `RequestError` for a topic that is not
        read.
        """
        self._client.check()
        self._reading.seek(positions)

    def restart(self, begin: Start = "first") -> None:
        """Read on at *begin* in all queues: `"first"`, `"last"` or a time."""
        self._client.check()
        self._reading.restart(begin)

    def close(self, timeout: timedelta | float = 5.0) -> None:
        """End reads under way, within about *timeout* (float: seconds). Idempotent."""
        self._client.close(end_of(timeout))

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._client.is_closed

    @property
    def _state(self) -> str:
        return self._client.state

    def _facts(self) -> Iterator[tuple[str, object]]:
        yield from self._client.facts()
        yield "topic", self._reading.subscription.topics

    def __del__(self) -> None:
        if hasattr(self, "_client"):  # not if its arguments were refused
            self._client.warn_unclosed(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
