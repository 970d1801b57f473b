"""
Connections over remoting, on an event loop of their own thread: for request and reply, and for clients of name servers.

Synchronous clients and `ferromq.aio` share it: a blocked event loop of a program must not cost a client its
connections, on which brokers push replies. What is said over them is decided in `core.request_plans` and
`core.remoting`.
"""

import asyncio
import itertools
import json
import logging
import threading
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from ferromq.client.connection import remaining
from ferromq.client.tls import Tls, TlsFile, ssl_context
from ferromq.core.credentials import Credentials
from ferromq.core.replies import Waiting
from ferromq.core.request_plans import REQUESTERS, Answer, Requests, heartbeat
from ferromq.core.requests import Identity, T, backoff, why_unreachable
from ferromq.errors import ClientClosed, ConnectionFailed, FerromqError, Forbidden, RequestTimeout
from ferromq.protocol.codes import RequestCode, ResponseCode

if TYPE_CHECKING:
    import ssl
    from concurrent.futures import Future

_log = logging.getLogger("ferromq.client")

_CONNECT = 3.0
"""Seconds in which a connection must be open, and in which a heartbeat must be answered."""
_PERIOD = 10.0
"""Seconds between heartbeats; a broker forgets a client after 120 s."""
_FAREWELL = 1.0
_SILENT = 1.0
"""Seconds of a call without any answer after which its connection is given up."""
_LEAST_FRAME, _MAX_FRAME = 4, 32 << 20
_VERSION = 513
"""RocketMQ's number of its version 5.5.0, whose requests these are."""
_RESPONSE, _ONE_WAY = 1, 2
_BINARY = "a header in RocketMQ's binary form; unset rocketmq.serialize.type at the broker, whose default is JSON"


class Member(Protocol):
    """What brokers know of a client; called on the loop of the connections, so nothing of it may wait."""

    def heartbeat(self) -> bytes:
        """Return the body of a heartbeat."""

    def farewells(self) -> Sequence[Mapping[str, str]]:
        """Return the fields of each request that unregisters it."""

    def asked(self, address: str, code: int, fields: Mapping[str, str], body: bytes) -> int:
        """Take a request of a broker, and return the code of its answer."""

    def needs(self, address: str) -> bool:
        """Return whether a lost connection is opened again before it is used."""


class Requester:
    """A client that waits for replies."""

    def __init__(self, client_id: str, waiting: Waiting) -> None:
        self._client_id = client_id
        self._waiting = waiting

    def heartbeat(self) -> bytes:
        """Name the group of requesters."""
        return heartbeat(self._client_id)

    def farewells(self) -> Sequence[Mapping[str, str]]:
        """Name it once more."""
        return [{"clientID": self._client_id, "producerGroup": REQUESTERS}]

    def asked(self, address: str, code: int, fields: Mapping[str, str], body: bytes) -> int:
        """Take a reply."""
        if code != RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT:
            return ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        # As of RocketMQ's clients it is a success, too, if the request waits no longer.
        if not self._waiting.arrived(fields, body):
            _log.debug("a reply came too late broker=%s", address)
        return ResponseCode.SUCCESS

    def needs(self, _address: str) -> bool:
        """Return whether a request waits for its reply."""
        return bool(len(self._waiting))


def make_requests(identity: Identity, tls: bool | TlsFile | Tls, *, is_requester: bool) -> "tuple[Requests, Links]":
    """Return the requests of a client, and their connections. Raises `ConfigError` for options of TLS."""
    # Brokers know the client over gRPC, too, by its own id.
    own_id, waiting = f"{identity.client_id}@requests", Waiting()
    links = Links(tls, Requester(own_id, waiting) if is_requester else None, credentials=identity.credentials)
    return Requests(links, own_id, waiting), links


class Links:
    """One connection for each broker, opened at its first use; thread-safe."""

    def __init__(
        self,
        tls: bool | TlsFile | Tls,
        member: Member | None = None,
        *,
        credentials: Credentials | None = None,
    ) -> None:
        """
        *tls*: the options of the client. A *member* is known to brokers by its heartbeats.

        Requests are signed with *credentials*.
        """
        self.credentials = credentials
        self.member = member
        self.tls: ssl.SSLContext | None = ssl_context(tls)
        self.server_name = tls.server_name if isinstance(tls, Tls) else None
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closed = False
        self._links: dict[str, _Link] = {}
        self.versions: dict[str, int] = {}
        """Address → RocketMQ's number of the version of the server, as its last answer says."""
        self._opaques = itertools.count(1)

    def call(
        self,
        address: str,
        code: int,
        fields: Mapping[str, str],
        body: bytes,
        timeout: float,
        *,
        is_broker: bool = True,
    ) -> "Future[Answer]":
        """
        Begin a call. Its future ends within *timeout* seconds, also with `ConnectionFailed` or `RequestTimeout`.

        A server that is no broker gets no heartbeats.
        """
        return self._begin(self._call((address, is_broker), timeout, (code, fields, body)))

    @property
    def is_begun(self) -> bool:
        """Whether any connection was asked for."""
        return self._loop is not None

    def version(self, address: str) -> int | None:
        """Return RocketMQ's number of the version of the server at *address*; None: it has not answered yet."""
        return self.versions.get(address)

    def open(self, address: str) -> "Future[None]":
        """Open a connection. Its future ends once the broker knows the member, or with `ConnectionFailed`."""
        return self._begin(self._ready(address))

    def beat_soon(self) -> None:
        """Send a heartbeat on all open connections: the member has changed."""
        if self.is_begun:
            with suppress(ClientClosed):
                self._begin(self._beat_all())

    def close(self, until: float) -> None:
        """Unregister where a connection is open, and end all of them before *until* (monotonic). Idempotent."""
        with self._lock:
            self._closed = True
            loop, thread = self._loop, self._thread
        if loop is None or thread is None or not thread.is_alive():
            return
        ending = asyncio.run_coroutine_threadsafe(self._unregister(min(_FAREWELL, remaining(until))), loop)
        ending.add_done_callback(lambda _: loop.call_soon_threadsafe(loop.stop))
        thread.join(remaining(until) + _FAREWELL)

    def _begin(self, call: Coroutine[Any, Any, T]) -> "Future[T]":
        with self._lock:
            if not self._closed and self._loop is None:
                self._start()
            if not self._closed and self._loop is not None:
                return asyncio.run_coroutine_threadsafe(call, self._loop)
        call.close()  # it will never be awaited, as the error says
        raise ClientClosed("the client was closed meanwhile; make a new one")

    def _start(self) -> None:
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=_run, args=(loop,), name="ferromq-links", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the interpreter ends
            loop.close()
            return
        self._loop, self._thread = loop, thread

    # --- on the loop ---

    def _link(self, address: str, *, is_broker: bool = True) -> "_Link":
        link = self._links.get(address)
        if link is None:
            link = self._links[address] = _Link(self, address, is_broker=is_broker)
            link.start()
        link.wanted.set()
        return link

    def left(self, address: str) -> None:
        """Forget a broker whose connection is lost, and not needed now."""
        self._links.pop(address, None)

    async def _ready(self, address: str) -> None:
        await asyncio.shield(self._link(address).ready)

    async def _call(
        self,
        to: tuple[str, bool],
        timeout: float,  # noqa: ASYNC109 (of the whole call)
        request: tuple[int, Mapping[str, str], bytes],
    ) -> Answer:
        address, is_broker = to
        link = self._link(address, is_broker=is_broker)
        try:
            async with asyncio.timeout(timeout):
                await asyncio.shield(link.ready)
                return await link.call(next(self._opaques), *request)
        except TimeoutError:
            # A pull that waits for messages ends before its answer, on purpose.
            is_wait = request[1].get("suspendTimeoutMillis", "0") != "0"
            if timeout >= _SILENT and not is_wait:
                link.give_up_if_silent(timeout)
            raise _no_answer(link.who, timeout) from None

    async def _unregister(self, timeout: float) -> None:  # noqa: ASYNC109 (of all calls)
        if self.member is None:
            return
        calls = [
            link.call(next(self._opaques), RequestCode.UNREGISTER_CLIENT, fields, b"")
            for fields in self.member.farewells()
            for link in self._links.values()
            if link.is_member and link.is_ready
        ]
        try:
            async with asyncio.timeout(timeout):
                await asyncio.gather(*calls, return_exceptions=True)
        except TimeoutError:
            _log.debug("not all brokers answered that a client unregistered")

    async def _beat_all(self) -> None:
        links = [link for link in self._links.values() if link.is_member and link.is_ready]
        # One that fails is tried again with the next heartbeat, on its own.
        await asyncio.gather(*map(self.beat, links), return_exceptions=True)

    async def beat(self, link: "_Link") -> None:
        """Make the member known on a connection. Raises `FerromqError`."""
        assert self.member is not None
        body = self.member.heartbeat()
        try:
            async with asyncio.timeout(_CONNECT):
                code, remark, _, _ = await link.call(next(self._opaques), RequestCode.HEART_BEAT, {}, body)
        except TimeoutError:
            raise _no_answer(link.who, _CONNECT) from None
        text = f"{link.who} refused a heartbeat: {remark}"
        if code == ResponseCode.NO_PERMISSION:
            raise Forbidden(text, code, remark or "")
        if code != ResponseCode.SUCCESS:
            raise ConnectionFailed(text)


class _Link:
    """The connection to one broker; used on the loop alone."""

    def __init__(self, links: Links, address: str, *, is_broker: bool) -> None:
        self.address = address
        self.is_broker = is_broker
        self.who = f"{'broker' if is_broker else 'name server'} {address}"
        """For errors and the log."""
        self.is_member = is_broker and links.member is not None
        """Whether the broker is to know the member."""
        self.ready: asyncio.Future[None] = _promise()
        self.wanted = asyncio.Event()
        """Set by a call: a lost connection is opened at once for it."""
        self._links = links
        self._writer: asyncio.StreamWriter | None = None
        self._answers: dict[int, asyncio.Future[Answer]] = {}
        self._heard = 0.0
        self._reading: asyncio.Task[None] | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def is_ready(self) -> bool:
        """Whether it is open, and the broker knows the member."""
        return self.ready.done() and self._writer is not None and self.ready.exception() is None

    def start(self) -> None:
        """Connect."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def call(self, opaque: int, code: int, fields: Mapping[str, str], body: bytes) -> Answer:
        """Ask, and return the answer. Raises `ConnectionFailed` if the connection is lost before it."""
        if self._writer is None:
            raise ConnectionFailed(f"the connection to {self.who} was lost")
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._answers[opaque] = answer
        try:
            credentials = self._links.credentials
            signed = fields if credentials is None else credentials.signed(fields, body)
            self._writer.write(_frame(code, opaque, 0, signed, body))
            await self._writer.drain()
            return await answer
        except OSError as error:
            raise ConnectionFailed(f"the connection to {self.who} was lost ({error})") from None
        finally:
            self._answers.pop(opaque, None)

    def give_up_if_silent(self, seconds: float) -> None:
        """Close the connection if nothing was read from it for *seconds*; the broker is connected to again."""
        if self._writer is not None and asyncio.get_running_loop().time() - self._heard >= seconds:
            self._writer.transport.abort()

    async def _run(self) -> None:
        failures, is_lost = 0, False
        while True:
            try:
                await self._connect()
                if is_lost:
                    _log.warning("connected to %s again, over remoting", self.who)
                failures, is_lost = 0, False
                self.ready.set_result(None)
                await self._live()
                error: FerromqError = ConnectionFailed(f"{self.who} closed the connection over remoting")
            except Exception as failed:  # noqa: BLE001 (whatever it is, calls are told, and the next one connects again)
                error = _unreachable(f"{self.who} over remoting" if self.is_broker else self.who, failed)
            finally:
                self._end()
            self._fail(error)
            member = self._links.member
            if member is None or not self.is_member or not member.needs(self.address):
                self._links.left(self.address)
                return
            if not is_lost:
                _log.warning("%s; connecting again", error)
            is_lost = True
            failures += 1
            self.wanted.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self.wanted.wait(), backoff(min(failures, 4)))

    async def _connect(self) -> None:
        host, _, port = self.address.rpartition(":")
        host, tls = host.strip("[]"), self._links.tls
        async with asyncio.timeout(_CONNECT):
            reader, self._writer = await asyncio.open_connection(
                host,
                int(port),
                ssl=tls,
                server_hostname=None if tls is None else self._links.server_name or host,
            )
        self._heard = asyncio.get_running_loop().time()
        self._reading = asyncio.get_running_loop().create_task(self._read(reader))
        if self.is_member:
            await self._links.beat(self)

    async def _live(self) -> None:
        """Send heartbeats until the connection ends."""
        assert self._reading is not None
        while not (await asyncio.wait({self._reading}, timeout=_PERIOD))[0]:
            if self.is_member:
                await self._links.beat(self)
        self._reading.result()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                size = int.from_bytes(await reader.readexactly(4))
                if not _LEAST_FRAME <= size <= _MAX_FRAME:
                    raise ConnectionFailed(f"{self.who} sent a frame of {size} bytes: is it remoting?")
                content = await reader.readexactly(size)
                self._heard = asyncio.get_running_loop().time()
                self._take(content)
        except asyncio.IncompleteReadError:
            return
        except FerromqError as error:
            self._fail_calls(error)
            raise
        finally:
            # A heartbeat, and calls, that wait for an answer get none.
            self._fail_calls(ConnectionFailed(f"{self.who} closed the connection"))

    def _take(self, content: bytes) -> None:
        if content[0] != 0:
            raise ConnectionFailed(f"{self.who} sent {_BINARY}")
        end = 4 + int.from_bytes(content[1:4])
        try:
            header = json.loads(content[4:end])
            code, opaque, flag = int(header["code"]), int(header["opaque"]), int(header["flag"])
            version = int(header.get("version") or 0)
            fields = {str(name): str(value) for name, value in (header.get("extFields") or {}).items()}
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise ConnectionFailed(f"{self.who} sent a header that cannot be read: {error!r}") from None
        if flag & _RESPONSE:
            if version:
                self._links.versions[self.address] = version
            answer = self._answers.get(opaque)
            if answer is not None and not answer.done():
                answer.set_result((code, header.get("remark"), fields, content[end:]))
            return
        member, answered = self._links.member, int(ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
        if member is not None:
            try:
                answered = member.asked(self.address, code, fields, content[end:])
            except Exception:  # noqa: BLE001 (the connection has other calls)
                _log.exception("request of %s failed code=%d", self.who, code)
                answered = int(ResponseCode.SYSTEM_ERROR)
        if not flag & _ONE_WAY and self._writer is not None:
            self._writer.write(_frame(answered, opaque, _RESPONSE, {}, b""))

    def _end(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
        if self._writer is not None:
            self._writer.transport.abort()
        self._reading = self._writer = None

    def _fail(self, error: FerromqError) -> None:
        """End what waits for the connection."""
        waited, self.ready = self.ready, _promise()
        if not waited.done():
            waited.set_exception(error)
        self._fail_calls(error)

    def _fail_calls(self, error: FerromqError) -> None:
        for future in self._answers.values():
            if not future.done():
                future.set_exception(error)


def _promise() -> "asyncio.Future[None]":
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    # Its failure is no surprise if no call waits.
    future.add_done_callback(lambda done: done.cancelled() or done.exception())
    return future


def _frame(code: int, opaque: int, flag: int, fields: Mapping[str, str], body: bytes) -> bytes:
    """Return a frame, with the header in JSON."""
    header = json.dumps(
        {
            "code": int(code),
            "language": "OTHER",
            "version": _VERSION,
            "opaque": opaque,
            "flag": flag,
            "extFields": dict(fields),
            "serializeTypeCurrentRPC": "JSON",
        }
    ).encode()
    return (4 + len(header) + len(body)).to_bytes(4) + len(header).to_bytes(4) + header + body


def _no_answer(who: str, timeout: float) -> RequestTimeout:
    return RequestTimeout(f"no answer from {who} within {timeout:g} s over remoting")


def _unreachable(who: str, error: Exception) -> FerromqError:
    if isinstance(error, FerromqError):
        return error
    text = f"no connection within {_CONNECT:g} s" if isinstance(error, TimeoutError) else str(error) or repr(error)
    return ConnectionFailed(f"cannot reach {who} ({why_unreachable(text) or text})")


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        loop.run_until_complete(asyncio.sleep(0))  # connections end in the turn after
    finally:
        loop.close()
