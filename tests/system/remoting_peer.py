"""
A remoting client of the tests: one socket, frames made by struct and json, without code of ferromq.

It receives the server's own requests, and answers as the test configures. What clients *should* send is up to
each test.
"""

import contextlib
import itertools
import json
import queue
import socket
import struct
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

PATIENCE = 10.0
V5_5_0 = 513
_RESPONSE, _ONE_WAY = 1, 2
_UNREGISTER_CLIENT, _HEART_BEAT = 35, 34


@dataclass(frozen=True)
class Frame:
    """A request or a response."""

    code: int
    fields: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    remark: str | None = None
    opaque: int = 0
    flag: int = 0
    language: str = "JAVA"
    version: int = V5_5_0

    @property
    def is_response(self) -> bool:
        """Whether it answers a request."""
        return bool(self.flag & _RESPONSE)

    @property
    def is_one_way(self) -> bool:
        """Whether it is one-way."""
        return bool(self.flag & _ONE_WAY)

    def json(self) -> Any:
        """Return its body, which is JSON."""
        return json.loads(self.body)

    def encode(self) -> bytes:
        """Return its bytes, with the header in JSON."""
        header = {
            "code": self.code,
            "language": self.language,
            "version": self.version,
            "opaque": self.opaque,
            "flag": self.flag,
            "extFields": dict(self.fields),
            "serializeTypeCurrentRPC": "JSON",
            **({} if self.remark is None else {"remark": self.remark}),
        }
        encoded = json.dumps(header).encode()
        return struct.pack(">ii", 4 + len(encoded) + len(self.body), len(encoded)) + encoded + self.body


def decode(content: bytes) -> Frame:
    """Return the frame whose bytes after the length these are."""
    kind, size = content[0], int.from_bytes(content[1:4])
    if kind != 0:
        raise ValueError(f"a header in JSON is expected, not of kind {kind}")
    header = json.loads(content[4 : 4 + size])
    return Frame(
        header["code"],
        header.get("extFields") or {},
        content[4 + size :],
        header.get("remark"),
        header["opaque"],
        header["flag"],
        header.get("language", ""),
        header.get("version", 0),
    )


Reply = Callable[[Frame], Frame]


class Peer:
    """
    A remoting client. What the server asks of it waits in `asked`, code by code.

    A request is answered by the function of its code in `replies`; without one it stays unanswered.
    """

    def __init__(self, address: str, *, client_id: str = "me@1", language: str = "JAVA", version: int = V5_5_0) -> None:
        host, _, port = address.rpartition(":")
        self.client_id, self.language, self.version = client_id, language, version
        self.replies: dict[int, Reply] = {}
        self._opaque = itertools.count(1)
        self._lock = threading.Lock()
        self._waiting: dict[int, queue.SimpleQueue[Frame | None]] = {}
        self._asked: dict[int, queue.SimpleQueue[Frame]] = {}
        self._socket = socket.create_connection((host, int(port)), timeout=PATIENCE)
        self._socket.settimeout(None)
        self.closed = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    @property
    def name(self) -> str:
        """Its own `host:port`."""
        host, port = self._socket.getsockname()[:2]
        return f"{host}:{port}"

    def call(
        self, code: int, fields: Mapping[str, str] | None = None, body: bytes | Any = b"", *, timeout: float = PATIENCE
    ) -> Frame:
        """Ask, and return the response. A body that is not bytes is sent as JSON."""
        frame, arrived = self._frame(code, fields, body, 0), queue.SimpleQueue[Frame | None]()
        with self._lock:
            self._waiting[frame.opaque] = arrived
        if self.closed.is_set():
            raise ConnectionError(f"the server closed the connection before {code} was asked")
        self.send(frame.encode())
        response = arrived.get(timeout=timeout)
        if response is None:
            raise ConnectionError(f"the server closed the connection instead of answering {code}")
        return response

    def one_way(self, code: int, fields: Mapping[str, str] | None = None, body: bytes | Any = b"") -> None:
        """Ask for no answer."""
        self.send(self._frame(code, fields, body, _ONE_WAY).encode())

    def asked(self, code: int, *, timeout: float = PATIENCE) -> Frame:
        """Return the next request of the server with this code; raises `queue.Empty` if none arrives in time."""
        return self._queue(code).get(timeout=timeout)

    def has_been_asked(self, code: int) -> bool:
        """Say whether a request with this code waits."""
        return not self._queue(code).empty()

    def send(self, content: bytes) -> None:
        """Send bytes as they are."""
        self._socket.sendall(content)

    def heartbeat(
        self,
        *,
        consumes: Mapping[str, Mapping[str, str]] | None = None,
        produces: tuple[str, ...] = (),
        model: str = "CLUSTERING",
        version: int = 1,
        **more: Any,
    ) -> Frame:
        """Send a heartbeat: *consumes* is group → topic → tags, *produces* the producer groups."""
        consumers = [
            {
                "groupName": group,
                "consumeType": "CONSUME_PASSIVELY",
                "messageModel": model,
                "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
                "subscriptionDataSet": [subscription(topic, tags, version) for topic, tags in topics.items()],
                "unitMode": False,
            }
            for group, topics in (consumes or {}).items()
        ]
        producers = [{"groupName": group} for group in produces]
        body = {"clientID": self.client_id, "consumerDataSet": consumers, "producerDataSet": producers, **more}
        return self.call(_HEART_BEAT, body=body)

    def unregister(self, *, consumer: str | None = None, producer: str | None = None) -> Frame:
        """Leave groups."""
        groups = {"consumerGroup": consumer, "producerGroup": producer}
        fields = {name: group for name, group in groups.items() if group is not None}
        return self.call(_UNREGISTER_CLIENT, {"clientID": self.client_id, **fields})

    def close(self) -> None:
        """Close the connection."""
        # The server may have been first.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(PATIENCE)
        self._socket.close()

    def _frame(self, code: int, fields: Mapping[str, str] | None, body: bytes | Any, flag: int) -> Frame:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return Frame(code, fields or {}, content, None, next(self._opaque), flag, self.language, self.version)

    def _queue(self, code: int) -> queue.SimpleQueue[Frame]:
        with self._lock:
            return self._asked.setdefault(code, queue.SimpleQueue())

    def _read(self) -> None:
        try:
            while (size := self._exactly(4)) is not None:
                content = self._exactly(int.from_bytes(size))
                if content is None:
                    return
                self._take(decode(content))
        finally:
            with self._lock:
                self.closed.set()
                waiting = list(self._waiting.values())
            for arrived in waiting:
                arrived.put(None)

    def _take(self, frame: Frame) -> None:
        if frame.is_response:
            with self._lock:
                waiting = self._waiting.pop(frame.opaque, None)
            if waiting is not None:
                waiting.put(frame)
            return
        reply = self.replies.get(frame.code)
        self._queue(frame.code).put(frame)
        if reply is not None and not frame.is_one_way:
            self.send(replace(reply(frame), opaque=frame.opaque, flag=_RESPONSE).encode())

    def _exactly(self, size: int) -> bytes | None:
        """Return so many bytes; None if the connection ended first."""
        content = bytearray()
        while len(content) < size:
            try:
                part = self._socket.recv(size - len(content))
            except OSError:
                return None
            if not part:
                return None
            content += part
        return bytes(content)


def subscription(topic: str, tags: str = "*", version: int = 1, kind: str = "TAG") -> dict[str, Any]:
    """Return Java's SubscriptionData."""
    names = [] if tags == "*" or kind != "TAG" else [tag.strip() for tag in tags.split("||")]
    return {
        "topic": topic,
        "subString": tags,
        "tagsSet": names,
        "codeSet": [java_hash(name) for name in names],
        "subVersion": version,
        "expressionType": kind,
        "classFilterMode": False,
    }


def java_hash(text: str) -> int:
    """Return what `String.hashCode` gives in Java."""
    value = 0
    for unit in struct.unpack(f">{len(text.encode('utf-16-be')) // 2}H", text.encode("utf-16-be")):
        value = (31 * value + unit) & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value
