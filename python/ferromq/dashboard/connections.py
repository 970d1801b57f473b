"""Connections of the HTTP server that do not wait for ever: for a handshake, for a request, or for a reader."""

import asyncio
import logging
import ssl
from collections.abc import MutableMapping
from typing import Any, Literal, NamedTuple

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from ferromq.dashboard.load import Load
from ferromq.process.limited_log import LimitedLog

HEAD_SECONDS = 10.0
"""
Within which a handshake of TLS must be over. After it, and then each time so much later, a connection that waits for
its visitor is looked at. It ends if it waited for the same at the last look.
"""
_LEAST_READ = 64 << 10
"""Bytes of its answer, or the rest of it, that a reader must have taken at the next look."""
_SHUTDOWN_SECONDS = 3600.0
"""For TLS to flush an answer of a connection that closes; a look ends it before."""


class _Limited(logging.LoggerAdapter[logging.Logger]):
    """Limits the lines that strangers cause: refused connections and malformed requests."""

    def __init__(self, log: logging.Logger) -> None:
        super().__init__(log, {})
        self._limited = LimitedLog(log)

    @property
    def level(self) -> int:
        """The level of the log, which the server compares."""
        return self.logger.level

    def warning(self, msg: object, *args: object, **_options: Any) -> None:
        """Write a line, unless there were too many."""
        self._limited.log(logging.WARNING, str(msg), *args)

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """Change nothing."""
        return msg, kwargs


_log = _Limited(logging.getLogger("uvicorn.error"))


class Waiting(NamedTuple):
    """What a connection waits for."""

    what: Literal["request", "body", "end", "reader"]
    """The head of a request, the rest of a body whose answer is there, its end, or the reader of an answer."""
    number: int
    """Of the request; of a reader, how many bytes it has yet to take."""

    def goes_on(self, before: "Waiting") -> bool:
        """Whether the visitor went on since the look *before*."""
        if self.what != before.what:
            return True
        taken = before.number - self.number
        return taken >= _LEAST_READ if self.what == "reader" else taken != 0


class Connection(H11Protocol):
    """
    Ends if its visitor does not go on, so that idle connections take neither all places nor all memory.

    With *tls* it is counted from its handshake on, and so is what the transport below TLS still has of its answers.
    """

    def __init__(self, load: Load, tls: ssl.SSLContext | None, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self._load = load
        self._tls = tls
        self.logger = _log  # type: ignore[assignment]
        self._next_look: asyncio.TimerHandle | None = None
        self._waited: Waiting | None = None
        """At the last look."""
        self._answers = 0
        self._transports: list[asyncio.Transport] = []
        """That of the socket; after the handshake of TLS also that of TLS."""
        self._has_begun = False
        self._handshake: asyncio.Task[None] | None = None
        self._early: list[bytes] = []
        """What arrived before the handshake was known to be over."""

    @property
    def unread(self) -> int:
        """Bytes of answers that wait for their reader."""
        return sum(map(_unread, self._transports))

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin the handshake, or begin to wait for a request."""
        self._transports.append(transport)
        if not self._load.opened(self):
            transport.abort()
        elif self._tls is None:
            self._begin(transport)
        else:
            transport.pause_reading()
            self._handshake = self.loop.create_task(self._shake_hands(transport, self._tls))

    async def _shake_hands(self, transport: asyncio.Transport, tls: ssl.SSLContext) -> None:
        try:
            secured = await self.loop.start_tls(
                transport,
                self,
                tls,
                server_side=True,
                ssl_handshake_timeout=HEAD_SECONDS,
                ssl_shutdown_timeout=_SHUTDOWN_SECONDS,
            )
        except OSError:  # a stranger that speaks no TLS, or no more
            secured = None
        if secured is None or secured.is_closing() or transport.is_closing():
            transport.abort()
            self._load.closed(self)
            return
        self._transports.append(secured)
        self._begin(secured)
        for data in self._early:
            self.data_received(data)
        self._early.clear()

    def _begin(self, transport: asyncio.Transport) -> None:
        self._has_begun = True
        super().connection_made(transport)
        self._waited = self._waiting()
        self._look_later()

    def data_received(self, data: bytes) -> None:
        """Take bytes."""
        if self._has_begun:
            super().data_received(data)
        else:
            self._early.append(data)

    def on_response_complete(self) -> None:
        """Count an answer."""
        self._answers += 1
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the looks."""
        self._load.closed(self)
        if self._next_look is not None:
            self._next_look.cancel()
        if self._has_begun:
            super().connection_lost(exc)

    def _waiting(self) -> Waiting | None:
        """Return what the visitor has yet to do; None while the dashboard works on its request."""
        unread, ours, theirs = self.unread, self.conn.our_state, self.conn.their_state
        if unread:
            return Waiting("reader", unread)
        if self.transport.is_closing():
            return Waiting("end", self._answers)
        if theirs is h11.IDLE:
            return Waiting("request", self._answers)
        return Waiting("body", self._answers) if theirs is h11.SEND_BODY and ours is h11.DONE else None

    def _look_later(self) -> None:
        self._next_look = self.loop.call_later(HEAD_SECONDS, self._look)

    def _look(self) -> None:
        """End the connection if its visitor has not gone on since the last look."""
        before, self._waited = self._waited, self._waiting()
        if before is None or self._waited is None or self._waited.goes_on(before):
            self._look_later()
        else:
            # That of TLS does nothing any more once it was closed twice.
            self._transports[0].abort()


def _unread(transport: asyncio.Transport) -> int:
    try:
        return transport.get_write_buffer_size()
    except AttributeError:  # one of TLS that was closed twice has let go of its buffers
        return 0
