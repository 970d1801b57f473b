"""
The replies that a client waits for: which request each belongs to, and what is in it. No I/O.

`request_plans` sends the requests and replies, `client.links` brings what brokers push.
"""

import threading
import uuid
import zlib
from collections.abc import Mapping
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress

from ferromq.errors import CorruptMessage, FerromqError
from ferromq.message import Reply
from ferromq.protocol.properties import parse_properties

_COMPRESSED, _COMPRESSION, _ZLIB = 1, 0x700, 0x300
_MAX_BODY = 64 << 20
"""The most bytes of a decompressed reply."""
_HIDDEN = frozenset(
    {
        *("ARRIVE_TIME", "CLUSTER", "CORRELATION_ID", "INSTANCE_ID", "KEYS", "MSG_REGION", "MSG_TYPE"),
        *("PUSH_REPLY_TIME", "REPLY_TO_CLIENT", "TAGS", "TRACE_ON", "TTL", "UNIQ_KEY", "WAIT"),
    }
)


class Waiting:
    """The requests of a client that wait for a reply; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._futures: dict[str, Future[Reply]] = {}

    def __len__(self) -> int:
        return len(self._futures)

    def expect(self) -> tuple[str, "Future[Reply]"]:
        """Return a new correlation id, and the future of its reply."""
        correlation_id, future = str(uuid.uuid4()), Future[Reply]()
        with self._lock:
            self._futures[correlation_id] = future
        return correlation_id, future

    def forget(self, correlation_id: str) -> None:
        """Wait no longer."""
        with self._lock:
            self._futures.pop(correlation_id, None)

    def arrived(self, fields: Mapping[str, str], body: bytes) -> bool:
        """Take a pushed reply, PUSH_REPLY_MESSAGE_TO_CLIENT (326). Return whether a request waited for it."""
        properties = parse_properties(fields.get("properties", ""))
        with self._lock:
            future = self._futures.get(properties.get("CORRELATION_ID", ""))
        if future is None:
            return False
        with suppress(InvalidStateError):  # the second reply of a request that was delivered twice
            try:
                future.set_result(_read_reply(fields, properties, body))
            except FerromqError as error:
                future.set_exception(error)
        return True

    def fail(self, error: FerromqError) -> None:
        """End all requests with *error*."""
        with self._lock:
            futures = list(self._futures.values())
        for future in futures:
            with suppress(InvalidStateError):
                future.set_exception(error)


def _read_reply(fields: Mapping[str, str], properties: Mapping[str, str], body: bytes) -> Reply:
    message_id = properties.get("UNIQ_KEY", "")
    flag = whole(fields, "sysFlag")
    if flag & _COMPRESSED:
        if flag & _COMPRESSION not in {0, _ZLIB}:
            raise CorruptMessage(
                f"the reply {message_id} is compressed by something else than zlib; compress it by zlib"
            )
        body = _inflate(body, message_id)
    return Reply(
        topic=fields.get("topic", ""),
        body=body,
        tag=properties.get("TAGS"),
        keys=tuple(properties.get("KEYS", "").split()),
        properties={name: value for name, value in properties.items() if name not in _HIDDEN},
        message_id=message_id,
        born_timestamp=whole(fields, "bornTimestamp"),
        born_host=fields.get("bornHost", ""),
    )


def _inflate(body: bytes, message_id: str) -> bytes:
    inflater = zlib.decompressobj()
    try:
        whole = inflater.decompress(body, _MAX_BODY)
    except zlib.error as error:
        raise CorruptMessage(
            f"the reply {message_id} is marked as compressed, but does not decompress: {error}"
        ) from None
    if not inflater.eof:
        raise CorruptMessage(
            f"the reply {message_id} is cut short, or has more than {_MAX_BODY} bytes when decompressed"
        )
    return whole


def whole(fields: Mapping[str, str], name: str) -> int:
    """Return the whole number in a field of a header or of properties; 0 if the field has no number."""
    try:
        return int(fields.get(name) or 0)
    except ValueError:
        return 0
