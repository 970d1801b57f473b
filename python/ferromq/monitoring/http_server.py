"""
A small HTTP server for metrics and health checks: a few pages, read by GET, on a thread of its own.

A client costs little and cannot hold the server up: connections, the size of a request and the time of an exchange are
limited, and each connection serves one request. Where a limit is reached, the oldest connection ends, so that slow
clients give way to the next one. Pages are made on two threads beside it; requests that wait for one share it.
"""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http import HTTPStatus
from typing import Final, NamedTuple

from ferromq.process.limited_log import LimitedLog

_log = logging.getLogger("ferromq.http")

MAX_CONNECTIONS: Final = 64
"""Open connections; a further one ends the oldest."""
MAX_PAGES: Final = 64 << 20
"""Bytes of the pages that clients are reading; beyond them the oldest readers' connections end, but for one page."""
MAX_REQUEST: Final = 8 << 10
"""Bytes of a request line and its header."""
REQUEST_SECONDS: Final = 5.0
"""The time in which a client must send its request."""
ANSWER_SECONDS: Final = 30.0
"""The time in which an answer is made, and in which a client must have read it."""
_END: Final = b"\r\n\r\n"
_TEXT: Final = "text/plain; charset=utf-8"
_STOP_SECONDS: Final = 2.0
_PIECE: Final = 64 << 10
"""Bytes that are handed to a socket at a time, so that a connection holds no copy of its page."""


class Page(NamedTuple):
    """An answer."""

    body: bytes
    status: HTTPStatus = HTTPStatus.OK
    content_type: str = _TEXT


class Asked(NamedTuple):
    """What a request asks for."""

    path: str
    wants_body: bool


class BadRequest(Exception):  # noqa: N818 (an answer, not a failure of ours)
    """A request that is not served; the text is for the client."""

    def __init__(self, status: HTTPStatus, why: str) -> None:
        super().__init__(why)
        self.status = status


def parse(request: bytes) -> Asked:
    """
    Return the path of a request (RFC 9112, section 3), without its query. Raises `BadRequest`.

    *request* is its request line and header. The fields of the header do not matter: no page depends on them.
    """
    line, _, _ = request.partition(b"\r\n")
    words = line.split(b" ")
    if len(words) != 3 or not words[2].startswith(b"HTTP/1.") or not line.isascii():  # noqa: PLR2004 (of a line)
        raise BadRequest(HTTPStatus.BAD_REQUEST, "the request line is not METHOD PATH HTTP/1.1")
    method, target, _ = line.decode("ascii").split(" ")
    if method not in {"GET", "HEAD"}:
        raise BadRequest(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD are served")
    return Asked(target.partition("?")[0], wants_body=method == "GET")


def head(page: Page) -> bytes:
    """Return the head of the response with *page*, after which the connection ends."""
    text = (
        f"HTTP/1.1 {page.status.value} {page.status.phrase}\r\nContent-Type: {page.content_type}\r\n"
        f"Content-Length: {len(page.body)}\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n"
    )
    return text.encode("ascii")


class _Turns:
    """
    Makes one page, for all requests that wait for it, one at a time.

    A request gets a page whose making begins after it: requests that come while one is made share the next one.
    """

    def __init__(self, make: Callable[[], Awaitable[Page]]) -> None:
        self._make = make
        self._making: asyncio.Task[Page] | None = None
        self._next: asyncio.Task[Page] | None = None

    def join(self) -> "asyncio.Task[Page]":
        """Return the task of the next page; it must not be cancelled by one of those who wait."""
        if self._next is None:
            self._next = asyncio.create_task(self._run(self._making))
        return self._next

    async def _run(self, before: "asyncio.Task[Page] | None") -> Page:
        if before is not None:
            await asyncio.wait([before])
        self._making, self._next = self._next, None
        page = await self._make()
        self._making = None  # it would keep the page
        return page


class HttpServer:
    """
    Serves pages at `host:port`, port 0 for a free one, from the constructor's return until `close`.

    *pages* are functions by path; each may take a while and is called by one thread at a time. Those of *at_once* take
    no time: they wait for no other page. Raises `OSError` if the address is in use.
    """

    def __init__(
        self,
        address: str,
        pages: Mapping[str, Callable[[], Page]],
        at_once: Mapping[str, Callable[[], Page]] | None = None,
    ) -> None:
        self._pages = dict(pages)
        self._at_once = dict(at_once or {})
        self._loop = asyncio.new_event_loop()
        self._workers = ThreadPoolExecutor(2, thread_name_prefix="ferromq-http")
        self._turns = {path: _Turns(partial(self._made, path)) for path in pages}
        # By age, with the pages that they are reading.
        self._open: dict[asyncio.Task[None], Page | None] = {}
        self._limited_log = LimitedLog(_log)
        host, _, port = address.rpartition(":")
        try:
            self._server = self._loop.run_until_complete(
                asyncio.start_server(self._accept, host.strip("[]"), int(port), limit=MAX_REQUEST)
            )
        except BaseException:
            self._workers.shutdown(wait=False)
            self._loop.close()
            raise
        self.address = f"{host}:{self._server.sockets[0].getsockname()[1]}"
        """Its `host:port`."""
        self._thread = threading.Thread(target=self._run, name="ferromq-http", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop; connections end at once. Idempotent."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_STOP_SECONDS)
        self._workers.shutdown(wait=False, cancel_futures=True)
        # Breaks the references to what makes the pages.
        self._pages.clear()

    def _run(self) -> None:
        self._loop.run_forever()
        self._loop.run_until_complete(self._finish())
        self._loop.close()

    async def _finish(self) -> None:
        """Listen no more, and end the connections."""
        self._server.close()
        # Also those of connections that were accepted last, and have not begun.
        while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._open) >= MAX_CONNECTIONS:
            self._end(next(iter(self._open)))
        self._open[task] = None
        try:
            await self._serve(task, reader, writer)
        except (OSError, TimeoutError):
            _log.debug("connection ended", exc_info=True)
        except asyncio.CancelledError:
            _log.debug("connection given up")
        finally:
            self._open.pop(task, None)
            # What a client has not taken in time is dropped.
            writer.transport.abort()

    def _end(self, oldest: "asyncio.Task[None]") -> None:
        del self._open[oldest]
        oldest.cancel()
        self._limited_log.log(logging.WARNING, "oldest connection ended: %d others are open", len(self._open))

    async def _serve(
        self, task: "asyncio.Task[None]", reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        wants_body = True
        try:
            asked = parse(await _head(reader))
            wants_body = asked.wants_body
            async with asyncio.timeout(ANSWER_SECONDS):
                page = await self._page(asked.path)
        except BadRequest as refused:
            page = Page(f"{refused}\n".encode(), refused.status)
        except asyncio.IncompleteReadError:
            return
        self._hold(task, page)
        await _within(ANSWER_SECONDS, _write(writer, page, wants_body=wants_body))
        self._open[task] = None
        writer.write_eof()
        # The end of the client's side: closing with unread bytes would reset the connection before it reads the answer.
        await _within(REQUEST_SECONDS, _read_rest(reader))

    def _hold(self, task: "asyncio.Task[None]", page: Page) -> None:
        """Note that a client reads a page. Readers of other pages give way, the oldest first, if there are too many."""
        self._open[task] = page
        while True:
            held = {id(other): other for other in self._open.values() if other is not None}
            if len(held) == 1 or sum(len(other.body) for other in held.values()) <= MAX_PAGES:
                return
            oldest = next(task for task, other in self._open.items() if other is not None and other is not page)
            self._end(oldest)

    async def _page(self, path: str) -> Page:
        if path in self._at_once:
            return self._at_once[path]()
        turns = self._turns.get(path)
        if turns is None:
            known = ", ".join(sorted({*self._pages, *self._at_once}))
            raise BadRequest(HTTPStatus.NOT_FOUND, f"there is no page {path[:100]}; there are {known}")
        return await asyncio.shield(turns.join())

    async def _made(self, path: str) -> Page:
        try:
            return await self._loop.run_in_executor(self._workers, self._pages[path])
        except Exception:  # noqa: BLE001 (a page must not end the server)
            self._limited_log.log(logging.ERROR, "page failed path=%s", path, exc_info=True)
            return Page(b"the page failed; the log has the error\n", HTTPStatus.INTERNAL_SERVER_ERROR)


async def _write(writer: asyncio.StreamWriter, page: Page, *, wants_body: bool) -> None:
    writer.write(head(page))
    body = memoryview(page.body)
    for begin in range(0, len(body) if wants_body else 0, _PIECE):
        writer.write(body[begin : begin + _PIECE])
        await writer.drain()
    await writer.drain()


async def _head(reader: asyncio.StreamReader) -> bytes:
    """Read a request. Raises `BadRequest` if it is too large or too slow, `IncompleteReadError` if it has no end."""
    try:
        async with asyncio.timeout(REQUEST_SECONDS):
            return await reader.readuntil(_END)
    except asyncio.LimitOverrunError:
        raise BadRequest(
            HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"the request has more than {MAX_REQUEST} bytes"
        ) from None
    except TimeoutError:
        raise BadRequest(
            HTTPStatus.REQUEST_TIMEOUT, f"the request did not arrive within {REQUEST_SECONDS:g} s"
        ) from None


async def _read_rest(reader: asyncio.StreamReader) -> None:
    for _ in range(MAX_REQUEST):
        if not await reader.read(MAX_REQUEST):
            return


async def _within(seconds: float, awaited: Awaitable[None]) -> None:
    async with asyncio.timeout(seconds):
        await awaited
