"""
A proxy between a client and a server of a test: it forwards bytes, and misbehaves on command.

Each command holds from the moment it returns, for the connections that are open and for those to come, until the
next one. The proxy knows bytes and the frames of HTTP/2. The test decides which connection it disturbs, and what must
hold then.
"""

import asyncio
import contextlib
import random
import socket
import struct
import threading
from collections.abc import Coroutine
from dataclasses import dataclass
from enum import Enum, auto
from types import TracebackType
from typing import Any, Self

from ferromq.testing.http2_frames import DATA, HEADERS, PREFACE, FrameReader, Piece

_CHUNK = 1 << 16
_PATIENCE = 10.0
# Close with a reset, like a killed process.
_RESET = struct.pack("ii", 1, 0)


class _Kind(Enum):
    PASS = auto()
    DELAY = auto()
    HANG = auto()
    HALF_ANSWER = auto()
    CUT = auto()
    LOSE = auto()
    FLAKY = auto()


@dataclass(frozen=True, eq=False)
class _Rule:
    kind: _Kind = _Kind.PASS
    seconds: float = 0.0
    count: int = 0
    share: float = 0.0
    """The share of answers that are lost, 0 to 1."""
    draws: random.Random | None = None
    containing: bytes = b""


class FaultProxy:
    """Listens on a free port of 127.0.0.1 and forwards every connection to *target*; ends with its `with`."""

    def __init__(self, target: str = "") -> None:
        self.target = target
        """`host:port`, which may be set after the start; connections wait for it."""
        self.http2_only = False
        """Close connections that begin with anything but HTTP/2, as a gRPC proxy does."""
        self.accepted = 0
        """The number of connections so far."""
        # Keeps the port while nothing listens: a bound socket that does not listen refuses connections.
        self._reserved = socket.socket()
        self._reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._reserved.bind(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._reserved.getsockname()[1]}"
        self._rule = _Rule()
        self._lost = 0
        self._connections: set[_Connection] = set()
        self._server: asyncio.Server | None = None
        self._loop = asyncio.new_event_loop()
        self._changed = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_forever, name="ferromq-fault-proxy", daemon=True)
        self._thread.start()
        self._do(self._listen())

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return len(self._connections)

    def resume(self) -> None:
        """Forward everything again, including held bytes; listen again."""
        self._become(_Rule())

    def delay(self, seconds: float) -> None:
        """Forward answers *seconds* late."""
        self._become(_Rule(_Kind.DELAY, seconds=seconds))

    def hang(self) -> None:
        """Accept connections, and forward nothing in either direction, like a stopped process."""
        self._become(_Rule(_Kind.HANG))

    def half_answer(self, count: int = 0) -> None:
        """Forward all requests, and *count* more bytes of the answers of each connection."""
        self._become(_Rule(_Kind.HALF_ANSWER, count=count))

    def cut(self, count: int = 0) -> None:
        """Forward requests, and *count* more bytes of the answers; the next byte resets the connection."""
        self._become(_Rule(_Kind.CUT, count=count))

    def lose(self, answers: int = 1, *, containing: bytes = b"") -> None:
        """
        Forward requests, and reset the connection in place of the next answer; after so many *answers* forward all.

        An answer counts if its connection has forwarded a request with the bytes *containing* since this call: a
        connection that waits for the answer to an earlier request stays.
        """
        self._become(_Rule(_Kind.LOSE, count=answers, containing=containing))

    def flaky(self, draws: random.Random, *, lose: float, delay: float) -> None:
        """
        Lose the share *lose* (0 to 1) of the answers, and forward the others up to *delay* seconds late.

        *draws* decides about each piece of an answer, in the order in which the pieces arrive.
        """
        self._become(_Rule(_Kind.FLAKY, seconds=delay, share=lose, draws=draws))

    def drop(self) -> None:
        """Reset the open connections; new ones are accepted, and the present command holds for them."""
        self._do(self._drop())

    def refuse(self) -> None:
        """Reset all connections and stop listening, like a killed process."""
        self._do(self._refuse())

    def close(self) -> None:
        """End all connections and the proxy; idempotent."""
        if not self._thread.is_alive():
            return
        self._do(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_PATIENCE)
        self._loop.close()
        self._reserved.close()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(_PATIENCE)

    def _become(self, rule: _Rule) -> None:
        async def become() -> None:
            self._rule, self._lost = rule, 0
            before, self._changed = self._changed, asyncio.Event()
            before.set()
            await self._listen()

        self._do(become())

    async def _listen(self) -> None:
        if self._server is None:
            host, _, port = self.address.rpartition(":")
            self._server = await asyncio.start_server(self._serve, host, int(port), reuse_address=True, backlog=1024)

    async def _refuse(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        await self._drop()

    async def _drop(self) -> None:
        for connection in list(self._connections):
            connection.reset()

    async def _end(self) -> None:
        await self._refuse()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = _Connection(writer)
        if self._server is None:
            connection.reset()
            return
        self.accepted += 1
        self._connections.add(connection)
        try:
            await self._talk(connection, reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            connection.reset()
            self._connections.discard(connection)

    async def _talk(
        self, connection: "_Connection", reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        begun = b""
        if self.http2_only:
            begun = await reader.readexactly(1)
            if begun != b"P":
                return
        while self._rule.kind is _Kind.HANG or not self.target:
            await self._until_changed(_PATIENCE if not self.target else None)
        host, _, port = self.target.rpartition(":")
        answers, asked = await asyncio.open_connection(host, int(port))
        connection.writers.append(asked)
        asked.write(begun)
        both = [
            asyncio.ensure_future(self._pump(connection, reader, asked, is_answer=False)),
            asyncio.ensure_future(self._pump(connection, answers, writer, is_answer=True)),
        ]
        try:
            # A side that ends ends both, as programs that close their sockets do.
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            for end in (writer, asked):
                with contextlib.suppress(OSError):
                    await asyncio.wait_for(end.drain(), 1)
                end.close()
        finally:
            for each in both:
                each.cancel()

    async def _pump(
        self,
        connection: "_Connection",
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        is_answer: bool,
    ) -> None:
        while data := await reader.read(_CHUNK):
            pieces = connection.read(data, is_answer=is_answer)
            while data:
                data = await self._pass_on(connection, data, pieces, writer, is_answer=is_answer)
            await writer.drain()

    async def _pass_on(
        self,
        connection: "_Connection",
        data: bytes,
        pieces: list[Piece],
        writer: asyncio.StreamWriter,
        *,
        is_answer: bool,
    ) -> bytes:
        """Forward the bytes that the rule allows now, and return the rest of *data* for the next one."""
        rule = self._rule
        if rule.kind is _Kind.HANG:
            await self._until_changed()
            return data
        if not is_answer:
            connection.note_request(rule, pieces)
        elif self._is_lost(rule, connection, pieces):
            connection.reset()
            raise ConnectionResetError
        if rule.draws is not None and is_answer:
            await self._until_changed(rule.draws.uniform(0, rule.seconds))
        if rule.kind is _Kind.DELAY and is_answer:
            await self._until_changed(rule.seconds)
        if rule.kind not in {_Kind.HALF_ANSWER, _Kind.CUT} or not is_answer:
            writer.write(data)
            return b""
        allowed = connection.allow(rule, len(data))
        writer.write(data[:allowed])
        if allowed == len(data):
            return b""
        await writer.drain()
        if rule.kind is _Kind.CUT:
            connection.reset()
            raise ConnectionResetError
        await self._until_changed()
        return data[allowed:]

    def _is_lost(self, rule: _Rule, connection: "_Connection", pieces: list[Piece]) -> bool:
        """Return whether the answer at hand is one that the rule loses."""
        if rule.draws is not None:
            return rule.draws.random() < rule.share
        if rule.kind is not _Kind.LOSE or self._lost == rule.count or not connection.has_answer(rule, pieces):
            return False
        self._lost += 1
        return True

    async def _until_changed(self, seconds: float | None = None) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), seconds)


class _Connection:
    """One connection, and how many bytes of answers it has passed on under the rule that counts them."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.writers = [writer]
        self.asked_under: _Rule | None = None
        """The rule of the requests that are remembered."""
        self._rule: _Rule | None = None
        self._left = 0
        self._readers: tuple[FrameReader, FrameReader] | None = None
        """Of requests and answers, if the connection speaks HTTP/2, which mixes answers with other frames."""
        self._is_new = True
        self._asked: set[int] = set()
        self._tails: dict[int, bytes] = {}

    def read(self, data: bytes, *, is_answer: bool) -> list[Piece]:
        """Return the frames of *data*; bytes without frames are one."""
        if self._is_new and not is_answer:
            self._is_new = False
            # The first piece may be shorter than the whole preface.
            if data.startswith(PREFACE[:3]):
                self._readers = FrameReader(len(PREFACE)), FrameReader()
        return [Piece(DATA, 0, data)] if self._readers is None else list(self._readers[is_answer].read(data))

    def note_request(self, rule: _Rule, pieces: list[Piece]) -> None:
        """Remember which requests it forwards under a rule, of those that have the bytes that the rule names."""
        if rule.kind is not _Kind.LOSE:
            return
        if self.asked_under is not rule:
            self.asked_under = rule
            self._asked.clear()
            self._tails.clear()
        for piece in pieces:
            if piece.kind == DATA:
                # The bytes may begin in the piece before.
                seen, kept = self._tails.get(piece.stream, b"") + piece.payload, len(rule.containing) - 1
                if rule.containing in seen:
                    self._asked.add(piece.stream)
                self._tails[piece.stream] = seen[-kept:] if kept > 0 else b""

    def has_answer(self, rule: _Rule, pieces: list[Piece]) -> bool:
        """Return whether the frames have a part of the answer to a request that is remembered."""
        streams = {piece.stream for piece in pieces if piece.kind in {DATA, HEADERS}}
        return self.asked_under is rule and not streams.isdisjoint(self._asked)

    def allow(self, rule: _Rule, wanted: int) -> int:
        """Return how many of *wanted* bytes may pass, and count them."""
        if self._rule is not rule:
            self._rule, self._left = rule, rule.count
        allowed = min(wanted, self._left)
        self._left -= allowed
        return allowed

    def reset(self) -> None:
        """End both sides at once."""
        for writer in self.writers:
            raw = writer.transport.get_extra_info("socket")
            if not writer.transport.is_closing() and raw is not None:
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            writer.transport.abort()
