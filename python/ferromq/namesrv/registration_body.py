"""
Decodes the body of a registration (request 103): the topics of a broker in Java's form, plain or compressed.

The bytes are untrusted: every length is checked, and decompression has a limit.
"""

import zlib
from collections.abc import Mapping
from typing import Any

from ferromq.namesrv.route_types import RegisteredTopics
from ferromq.protocol import java_json
from ferromq.protocol.route import READ_WRITE, DataVersion, Permission, QueueData

INFLATED_LIMIT = 64 << 20
"""About 400,000 topics."""
_POSITIVE = 0x7FFF_FFFF
_DEFAULT_QUEUES = 16
_INT = 4
_WORDS = 5
"""Spaces before a topic's attributes, which may contain spaces."""
_MESSAGE_TYPE, _FIFO = "message.type", "FIFO"
"""The attribute of a FIFO topic."""


def is_intact(body: bytes, crc32: int) -> bool:
    """Whether *body* matches the checksum in its header; 0 means no checksum."""
    return crc32 == 0 or zlib.crc32(body) & _POSITIVE == crc32


def decode(body: bytes, broker_name: str, *, compressed: bool) -> RegisteredTopics:
    """Decode a registration. Raises `ValueError`."""
    if not body:
        return RegisteredTopics()
    try:
        # Java's broker may compress the body and still send "compressed=false".
        if compressed or not body.lstrip().startswith(b"{"):
            return _decode_deflated(_inflate(body), broker_name)
        return _decode_json(java_json.loads_object(body), broker_name)
    except (KeyError, TypeError, AttributeError, OverflowError, zlib.error) as error:
        raise ValueError(f"not a registration: {error!r}") from error


def _decode_json(value: Mapping[str, Any], broker_name: str) -> RegisteredTopics:
    # Brokers before 3.0.11 send only the inner object.
    wrapper = value.get("topicConfigSerializeWrapper") or value
    cache = _QueueDataCache(broker_name)
    topics = {str(name): cache.queue(topic) for name, topic in (wrapper.get("topicConfigTable") or {}).items()}
    types = {str(name): _type_of(topic) for name, topic in (wrapper.get("topicConfigTable") or {}).items()}
    servers = value.get("filterServerList")
    filter_servers = None if servers is None else tuple(str(server) for server in servers)
    is_static = bool(wrapper.get("topicQueueMappingInfoMap"))
    version = DataVersion.from_json(wrapper.get("dataVersion"))
    return RegisteredTopics(version, topics, filter_servers, is_static, *_by_type(types))


def _type_of(topic: Mapping[str, Any]) -> str | None:
    found: str | None = (topic.get("attributes") or {}).get(_MESSAGE_TYPE)
    return found


def _by_type(types: Mapping[str, str | None]) -> tuple[frozenset[str], frozenset[str]]:
    """Return the FIFO topics, and the topics of other types."""
    in_order = frozenset(name for name, kind in types.items() if kind == _FIFO)
    return in_order, frozenset(name for name, kind in types.items() if kind) - in_order


class _QueueDataCache:
    """Creates the queue data of one broker. Topics with the same numbers share one object, to save memory."""

    def __init__(self, broker_name: str) -> None:
        self._broker_name = broker_name
        self._cached: dict[tuple[int, int, int, int], QueueData] = {}

    def queue(self, topic: Mapping[str, Any]) -> QueueData:
        """Return the queue data in a topic's JSON."""
        return self.of(
            int(topic.get("readQueueNums", _DEFAULT_QUEUES)),
            int(topic.get("writeQueueNums", _DEFAULT_QUEUES)),
            int(topic.get("perm", READ_WRITE)),
            int(topic.get("topicSysFlag", 0)),
        )

    def of(self, read: int, write: int, permission: int, sys_flag: int = 0) -> QueueData:
        """Return queue data with these numbers."""
        numbers = (read, write, permission, sys_flag)
        queue = self._cached.get(numbers)
        if queue is None:
            queue = QueueData(self._broker_name, read, write, Permission(permission), sys_flag)
            self._cached[numbers] = queue
        return queue


def _inflate(body: bytes) -> bytes:
    inflater = zlib.decompressobj()
    data = inflater.decompress(body, INFLATED_LIMIT)
    if inflater.unconsumed_tail:
        raise ValueError(f"the registration inflates to more than {INFLATED_LIMIT} bytes")
    return data


def _decode_deflated(data: bytes, broker_name: str) -> RegisteredTopics:
    reader = _Reader(data)
    version = DataVersion.from_json(java_json.loads_object(reader.sized()))
    cache, queues, types = _QueueDataCache(broker_name), {}, dict[str, str | None]()
    for _ in range(reader.count()):
        # "name read write permission filter-type attributes", as Java's TopicConfig encodes itself.
        name, read, write, permission, *rest = reader.sized().decode().split(" ", _WORDS)
        queues[name] = cache.of(int(read), int(write), int(permission))
        # Brokers before 5.0 have no attributes.
        if len(rest) > 1:
            types[name] = _type_of({"attributes": java_json.loads(rest[1].encode())})
    servers = java_json.loads(reader.sized())
    # Brokers before 5.0 end here. The mappings of static topics are skipped, because other topics do not need them.
    is_static = reader.has_more() and reader.count() > 0
    filter_servers = tuple(str(server) for server in servers or ())
    return RegisteredTopics(version, queues, filter_servers, is_static, *_by_type(types))


class _Reader:
    """Reads length-prefixed pieces, never past the end."""

    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)

    def _take(self, length: int) -> bytes:
        if not 0 <= length <= len(self._data):
            raise ValueError(f"a length of {length}, but {len(self._data)} bytes are left")
        piece, self._data = bytes(self._data[:length]), self._data[length:]
        return piece

    def _int(self) -> int:
        return int.from_bytes(self._take(_INT), "big", signed=True)

    def has_more(self) -> bool:
        """Whether bytes are left."""
        return len(self._data) > 0

    def count(self) -> int:
        """Read a number of pieces; each has at least its length."""
        count = self._int()
        if not 0 <= count <= len(self._data) // _INT:
            raise ValueError(f"{count} topics, but {len(self._data)} bytes are left")
        return count

    def sized(self) -> bytes:
        """Read one piece."""
        return self._take(self._int())
