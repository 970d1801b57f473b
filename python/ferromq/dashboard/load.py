"""
What visitors hold of the process, of all connections together: connections, forms, and answers that are not read yet.

Beyond a limit, requests are answered with 503 and the time after which to try again.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

RETRY_AFTER = {"retry-after": "5"}
"""The header of each answer with 503. Slow forms and answers end within twice as many seconds."""
MOST_CONNECTIONS = 256
_SPARE_CONNECTIONS = 64
"""Connections beyond those, while which requests are told so; further ones end at once."""
MOST_BYTES = 64 << 20
"""Of forms that arrive, of answers that wait for their readers, and of requests under way; a page has a few MiB."""
_OF_REQUEST = 64 << 10
"""What a request under way counts beside its form: the buffers of its connection."""
_COPIES = 3
"""A form is held as it arrives, as a whole, and as its fields."""


class Holding(Protocol):
    """A connection."""

    @property
    def unread(self) -> int:
        """Bytes of answers that wait for their reader."""


class Load:
    """Counts what is held. Of one event loop."""

    def __init__(self) -> None:
        self._connections: set[Holding] = set()
        self._arrived = 0

    @property
    def held(self) -> int:
        """Bytes that are held now."""
        return self._arrived + sum(connection.unread for connection in list(self._connections))

    def opened(self, connection: Holding) -> bool:
        """Note a new connection; return whether there is a place for it."""
        if len(self._connections) >= MOST_CONNECTIONS + _SPARE_CONNECTIONS:
            return False
        self._connections.add(connection)
        return True

    def closed(self, connection: Holding) -> None:
        """Note the end of a connection. Idempotent."""
        self._connections.discard(connection)

    def refusal(self) -> str | None:
        """Return why no request is taken now; None if one is."""
        if len(self._connections) > MOST_CONNECTIONS:
            return f"{MOST_CONNECTIONS} connections are open already; try again later\n"
        return self.full()

    def full(self, more: int = 0) -> str | None:
        """Return why not *more* bytes are taken now; None if they are."""
        held = self.held
        if held + more > MOST_BYTES:
            return f"forms and answers under way have {held:,} bytes of {MOST_BYTES:,}; try again later\n"
        return None

    @contextmanager
    def request(self) -> Iterator["Arriving"]:
        """Count a request while it is under way."""
        arriving = Arriving(self)
        arriving.take(_OF_REQUEST)
        try:
            yield arriving
        finally:
            arriving.end()

    def add(self, size: int) -> None:
        """Count bytes, or no longer."""
        self._arrived += size


class Arriving:
    """What has arrived of one request."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._size = 0

    def take(self, size: int) -> None:
        """Count bytes until the end of the request."""
        self._size += size
        self._load.add(size)

    def end(self) -> None:
        """Count them no longer."""
        self._load.add(-self._size)


class Admission:
    """Refuses requests, and large answers, for which there is no room now."""

    def __init__(self, app: ASGIApp, load: Load) -> None:
        self._app = app
        self._load = load

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refusal = self._load.refusal()
        if refusal is not None:
            await _refuse(refusal, scope, receive, send)
            return
        with self._load.request() as arriving:
            await self._serve(arriving, scope, receive, send)

    async def _serve(self, arriving: Arriving, scope: Scope, receive: Receive, send: Send) -> None:
        is_refused = has_begun = False

        async def arrive() -> Message:
            nonlocal is_refused
            message = await receive()
            size = _COPIES * len(message.get("body", b""))
            refusal = self._load.full(size) if size and not has_begun else None
            if refusal is not None:
                is_refused = True
                await _refuse(refusal, scope, receive, send)
                return {"type": "http.disconnect"}
            arriving.take(size)
            return message

        async def answer(message: Message) -> None:
            nonlocal is_refused, has_begun
            if message["type"] == "http.response.start":
                has_begun = True
                size = int(Headers(raw=message["headers"]).get("content-length", "0"))
                # A small answer may be that of a change, which is made.
                refusal = self._load.full(size) if size > _OF_REQUEST else None
                if refusal is not None:
                    is_refused = True
                    await _refuse(refusal, scope, receive, send)
            if not is_refused:
                await send(message)

        with suppress(ClientDisconnect):  # a form that does not go on
            await self._app(scope, arrive, answer)


async def _refuse(text: str, scope: Scope, receive: Receive, send: Send) -> None:
    await PlainTextResponse(text, 503, {**RETRY_AFTER, "connection": "close"})(scope, receive, send)
