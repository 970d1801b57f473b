"""Finds the frames of HTTP/2 in the bytes of a connection, so that a proxy can tell an answer from its surroundings."""

from collections.abc import Iterator
from typing import NamedTuple

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""The first bytes of a client."""
DATA, HEADERS = 0, 1
_HEAD = 9


class Piece(NamedTuple):
    """A frame, or as much of its payload as one piece of the connection has."""

    kind: int
    stream: int
    payload: bytes


class FrameReader:
    """Reads one direction of a connection, whatever pieces it comes in."""

    def __init__(self, skipped: int = 0) -> None:
        """*skipped*: bytes before the first frame."""
        self._skipped = skipped
        self._head = b""
        self._left = 0
        self._kind = self._stream = 0

    def read(self, data: bytes) -> Iterator[Piece]:
        """Yield the frames that begin or continue in *data*."""
        at = min(self._skipped, len(data))
        self._skipped -= at
        while at < len(data):
            if not self._left:
                begin, at = at, at + _HEAD - len(self._head)
                self._head += data[begin:at]
                if len(self._head) < _HEAD:
                    return
                self._left, self._kind = int.from_bytes(self._head[:3]), self._head[3]
                self._stream = int.from_bytes(self._head[5:]) & 0x7FFFFFFF
                self._head = b""
            payload = data[at : at + self._left]
            self._left -= len(payload)
            at += len(payload)
            yield Piece(self._kind, self._stream, payload)
