"""
The body of a registration (request 103), plain or deflated, in the format of Java's name servers.

`namesrv.registration_body` decodes it.
"""

import zlib
from collections.abc import Mapping
from typing import Any

from ferromq.broker.cluster.identity import BrokerIdentity
from ferromq.broker.metadata.topics import TopicConfig
from ferromq.protocol import java_json
from ferromq.protocol.route import DataVersion

_POSITIVE = 0x7FFF_FFFF
_INT = 4


def encode(
    version: DataVersion, topics: Mapping[str, TopicConfig], identity: BrokerIdentity, *, is_compressed: bool
) -> bytes:
    """Encode *topics*, with the permissions that the broker has for them now."""
    table = {
        name: {**topic.to_json(), "perm": int(topic.permission_within(identity.permission_of(topic)))}
        for name, topic in topics.items()
    }
    if is_compressed:
        return _deflate(version, table)
    wrapper = {"dataVersion": version.to_json(), "topicConfigTable": table}
    return java_json.dumps({"filterServerList": [], "topicConfigSerializeWrapper": wrapper})


def crc32(body: bytes) -> int:
    """Return the checksum of a body as Java writes it, a positive number."""
    return zlib.crc32(body) & _POSITIVE


def _deflate(version: DataVersion, table: Mapping[str, Mapping[str, Any]]) -> bytes:
    """Deflate length-prefixed pieces, each topic as one line of words, which has no system flag in Java either."""
    pieces = [_sized(java_json.dumps(version.to_json())), _number(len(table))]
    for name, topic in table.items():
        words = (name, topic["readQueueNums"], topic["writeQueueNums"], topic["perm"], topic["topicFilterType"])
        attributes = java_json.dumps(topic["attributes"]).decode()
        pieces.append(_sized(" ".join((*map(str, words), attributes)).encode()))
    # No filter servers, and no mapped topics.
    pieces += [_sized(b"[]"), _number(0)]
    return zlib.compress(b"".join(pieces))


def _sized(piece: bytes) -> bytes:
    return _number(len(piece)) + piece


def _number(value: int) -> bytes:
    return value.to_bytes(_INT, "big")
