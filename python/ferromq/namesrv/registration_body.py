"""
The body of a registration (request 103): the topics of a broker, as Java writes them, plain or deflated.

Bytes come from outside: every length is checked against what is there, and inflating stops at a limit.
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
"""Spaces before a topic's attributes, which may hold some."""
_MESSAGE_TYPE, _FIFO = "message.type", "FIFO"
"""The attribute of a topic for messages in order."""


def is_intact(body: bytes, crc32: int) -> bool:
    """Say whether *body* has the checksum its header announces; 0 announces none."""
    return crc32 == 0 or zlib.crc32(body) & _POSITIVE == crc32


def decode(body: bytes, broker_name: str, *, compressed: bool) -> RegisteredTopics:
    """Decode a registration. Raises `ValueError` for bytes that are none."""
    if not body:
        return RegisteredTopics()
    try:
        # Java's broker may deflate the body and say "compressed=false" all the same.
        if compressed or not body.lstrip().startswith(b"{"):
            return _decode_deflated(_inflate(body), broker_name)
        return _decode_json(java_json.loads_object(body), broker_name)
    except (KeyError, TypeError, AttributeError, OverflowError, zlib.error) as error:
        raise ValueError(f"not a registration: {error!r}") from error


def _decode_json(value: Mapping[str, Any], broker_name: str) -> RegisteredTopics:
    # Brokers before 3.0.11 send the inner object alone.
    wrapper = value.get("topicConfigSerializeWrapper") or value
    known = _Known(broker_name)
    topics = {str(name): known.queue(topic) for name, topic in (wrapper.get("topicConfigTable") or {}).items()}
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
    """Return the topics whose messages are in order, and those of other types."""
    in_order = frozenset(name for name, kind in types.items() if kind == _FIFO)
    return in_order, frozenset(name for name, kind in types.items() if kind) - in_order


class _Known:
    """Makes the queue data of one broker; thousands of its topics are alike, and share one."""

    def __init__(self, broker_name: str) -> None:
        self._broker_name = broker_name
        self._made: dict[tuple[int, int, int, int], QueueData] = {}

    def queue(self, topic: Mapping[str, Any]) -> QueueData:
        """Return what a topic's JSON says."""
        return self.of(
            int(topic.get("readQueueNums", _DEFAULT_QUEUES)),
            int(topic.get("writeQueueNums", _DEFAULT_QUEUES)),
            int(topic.get("perm", READ_WRITE)),
            int(topic.get("topicSysFlag", 0)),
        )

    def of(self, read: int, write: int, permission: int, sys_flag: int = 0) -> QueueData:
        """Return the queue data with these numbers."""
        numbers = (read, write, permission, sys_flag)
        queue = self._made.get(numbers)
        if queue is None:
            queue = QueueData(self._broker_name, read, write, Permission(permission), sys_flag)
            self._made[numbers] = queue
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
    known, queues, types = _Known(broker_name), {}, dict[str, str | None]()
    for _ in range(reader.count()):
        # "name read write permission filter-type attributes", as Java's TopicConfig encodes itself.
        name, read, write, permission, *rest = reader.sized().decode().split(" ", _WORDS)
        queues[name] = known.of(int(read), int(write), int(permission))
        # Brokers before 5.0 have no attributes.
        if len(rest) > 1:
            types[name] = _type_of({"attributes": java_json.loads(rest[1].encode())})
    servers = java_json.loads(reader.sized())
    # Brokers before 5.0 end here; what the mappings of static topics say is of no use to clients of other topics.
    is_static = reader.has_more() and reader.count() > 0
    filter_servers = tuple(str(server) for server in servers or ())
    return RegisteredTopics(version, queues, filter_servers, is_static, *_by_type(types))


class _Reader:
    """Reads length-prefixed pieces and never past the end."""

    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)

    def _take(self, length: int) -> bytes:
        if not 0 <= length <= len(self._data):
            raise ValueError(f"a length of {length} with {len(self._data)} bytes left")
        piece, self._data = bytes(self._data[:length]), self._data[length:]
        return piece

    def _int(self) -> int:
        return int.from_bytes(self._take(_INT), "big", signed=True)

    def has_more(self) -> bool:
        """Say whether something follows."""
        return len(self._data) > 0

    def count(self) -> int:
        """Read how many pieces follow; each takes at least its length."""
        count = self._int()
        if not 0 <= count <= len(self._data) // _INT:
            raise ValueError(f"{count} topics with {len(self._data)} bytes left")
        return count

    def sized(self) -> bytes:
        """Read one piece."""
        return self._take(self._int())
