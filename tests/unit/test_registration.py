"""The body of a registration: Java's JSON, plain and deflated, and bytes that are neither."""

import contextlib
import json
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferromq.namesrv import registration_body
from ferromq.protocol.route import DataVersion, Permission, QueueData

TOPIC = {
    "attributes": {},
    "order": False,
    "perm": 6,
    "readQueueNums": 8,
    "topicFilterType": "SINGLE_TAG",
    "topicName": "orders",
    "topicSysFlag": 1,
    "writeQueueNums": 4,
}
VERSION = {"counter": 3, "stateVersion": 1, "timestamp": 1700000000000}


def plain() -> bytes:
    """Return a body as a Java broker sends it."""
    wrapper = {"dataVersion": VERSION, "topicConfigTable": {"orders": TOPIC}, "topicQueueMappingInfoMap": {}}
    return json.dumps({"filterServerList": ["f:1"], "topicConfigSerializeWrapper": wrapper}).encode()


def deflated() -> bytes:
    """Return the same, as a Java broker compresses it: length-prefixed pieces, the topic as one line."""
    pieces = [json.dumps(VERSION).encode(), None, b'orders 8 4 6 SINGLE_TAG {"message.type":"NORMAL"}', b'["f:1"]']
    data = b"".join(struct.pack(">i", 1) if p is None else struct.pack(">i", len(p)) + p for p in pieces)
    return zlib.compress(data + struct.pack(">i", 0))


def test_plain_json_is_decoded() -> None:
    """Topics, version and filter servers are there."""
    topics = registration_body.decode(plain(), "a", compressed=False)
    assert topics.version == DataVersion(1700000000000, 3, 1)
    assert topics.queues == {"orders": QueueData("a", 8, 4, Permission(6), 1)}
    assert topics.filter_servers == ("f:1",)


@pytest.mark.parametrize("says_so", [True, False])
def test_a_deflated_body_is_decoded(*, says_so: bool) -> None:
    """Also where the header does not say so, as Java's broker does not."""
    topics = registration_body.decode(deflated(), "a", compressed=says_so)
    assert topics.version == DataVersion(1700000000000, 3, 1)
    assert topics.queues == {"orders": QueueData("a", 8, 4, Permission(6))}
    assert topics.filter_servers == ("f:1",)


def test_static_topics_are_seen_and_otherwise_left_alone() -> None:
    """Their mapping follows in brokers since 5.0, in both forms; before, and cut off, a deflated body ends earlier."""
    mapping = json.dumps({"topic": "static", "bname": "a", "totalQueues": 8}).encode()
    data = zlib.decompress(deflated())
    assert not registration_body.decode(zlib.compress(data), "a", compressed=True).has_static_topics
    assert not registration_body.decode(zlib.compress(data[:-4]), "a", compressed=True).has_static_topics
    mapped = data[:-4] + struct.pack(">ii", 1, len(mapping)) + mapping
    topics = registration_body.decode(zlib.compress(mapped), "a", compressed=True)
    assert topics.has_static_topics
    assert list(topics.queues) == ["orders"]
    body = json.loads(plain())
    body["topicConfigSerializeWrapper"]["topicQueueMappingInfoMap"] = {"static": json.loads(mapping)}
    assert registration_body.decode(json.dumps(body).encode(), "a", compressed=False).has_static_topics


@pytest.mark.parametrize("number", ["Infinity", "1e999", "[]", '"x"'])
def test_an_invalid_number_is_a_value_error(number: str) -> None:
    """Python's JSON takes more than numbers of queues can be."""
    body = b'{"topicConfigTable":{"t":{"perm":%s}}}' % number.encode()
    with pytest.raises(ValueError, match=r"registration|int\(\)"):
        registration_body.decode(body, "a", compressed=False)


def test_a_body_that_inflates_without_end_is_refused() -> None:
    """A bomb costs no more memory than the limit."""
    with pytest.raises(ValueError, match="inflates to more than"):
        registration_body.decode(zlib.compress(b"\0" * (registration_body.INFLATED_LIMIT + 1)), "a", compressed=True)


@pytest.mark.parametrize("number", [-1, 2**31 - 1])
@pytest.mark.parametrize("place", [0, 1])
def test_a_length_past_the_end_is_refused(number: int, place: int) -> None:
    """Neither a piece nor the number of topics may be longer than what is there."""
    data = (struct.pack(">i", 2) + b"{}") * place + struct.pack(">i", number)
    with pytest.raises(ValueError, match="bytes are left"):
        registration_body.decode(zlib.compress(data), "a", compressed=True)


@given(st.binary(max_size=300), st.booleans(), st.booleans())
def test_any_other_bytes_are_a_value_error(data: bytes, compressed: bool, deflate: bool) -> None:
    """Nothing else comes out of the decoder."""
    with contextlib.suppress(ValueError):
        registration_body.decode(zlib.compress(data) if deflate else data, "a", compressed=compressed)


def test_the_checksum_is_javas() -> None:
    """Java masks the CRC32 to a positive number; 0 means that there is none."""
    body = b"ferromq3"
    assert zlib.crc32(body) > 0x7FFF_FFFF
    assert registration_body.is_intact(body, zlib.crc32(body) & 0x7FFF_FFFF)
    assert not registration_body.is_intact(body, 1)
    assert registration_body.is_intact(body, 0)
