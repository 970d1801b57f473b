"""The client's Rust codec agrees with protobuf's own classes."""

import gzip
import hashlib
import zlib
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferromq import _ferromq
from ferromq._ferromq import Message, MessageIds, MessageView
from ferromq._proto import messages as pb
from ferromq.errors import CorruptMessage, MessageTooLarge

PROCESS = bytes(range(8))
words = st.text(st.characters(exclude_categories=["Cc", "Cs", "Z"], exclude_characters="|"), min_size=1, max_size=20)
texts = st.text(st.characters(exclude_categories=["Cc", "Cs"]), max_size=20)
names = texts.filter(str.strip)
to_send = st.builds(
    Message,
    st.binary(min_size=1, max_size=300),
    keys=st.lists(words, max_size=3),
    tag=st.none() | words,
    properties=st.dictionaries(names, texts, max_size=3),
)
kinds = st.one_of(
    st.builds(lambda group: {"message_group": group}, names),
    st.builds(lambda millis: {"delivery_timestamp": millis}, st.integers(0, 2**42)),
    st.builds(lambda millis: {"delay": millis / 1000}, st.integers(1, 2**32 - 1)),
    st.builds(lambda priority: {"priority": priority}, st.integers(0, 2**31 - 1)),
)
sendable = to_send | st.binary(min_size=1, max_size=300)
instants = st.integers(-(2**40), 2**42)


class Keeper:
    """Records the calls of messages to their consumer."""

    def __init__(self) -> None:
        self.asked: list[object] = []

    def ack_later(self, message: MessageView) -> None:
        """Note it."""
        self.asked.append(message)

    def change_invisible_duration(self, message: MessageView, duration: timedelta) -> None:
        """Note it."""
        self.asked.append((message, duration))


@given(st.lists(sendable, min_size=1, max_size=8), words, st.integers(0, 2**31 - 1), instants, texts)
def test_a_batch_is_a_send_message_request(
    messages: list[Message | bytes], topic: str, queue_id: int, born: int, host: str
) -> None:
    """Every field of every message is where protobuf finds it, and ids are unique."""
    ids = MessageIds.reserve(PROCESS, 7, len(messages))
    data = _ferromq.encode_send(topic, messages, ids, queue_id, born, host, 1 << 20)
    request = pb.SendMessageRequest.FromString(data)
    assert len(request.messages) == len(messages)
    for index, (given_message, sent) in enumerate(zip(messages, request.messages, strict=True)):
        message = given_message if isinstance(given_message, Message) else Message(given_message)
        system = sent.system_properties
        assert (sent.topic.name, sent.body) == (topic, message.body)
        assert dict(sent.user_properties) == message.properties
        assert tuple(system.keys) == message.keys
        assert (system.tag if system.HasField("tag") else None) == message.tag
        assert (system.message_id, system.queue_id, system.born_host) == (ids[index], queue_id, host)
        assert system.born_timestamp.ToMilliseconds() == born
        assert (system.message_type, system.body_encoding) == (pb.MessageType.NORMAL, pb.Encoding.IDENTITY)
    assert len({ids[index] for index in range(len(ids))}) == len(messages)


@given(st.lists(kinds, min_size=1, max_size=5), st.integers(0, 2**42))
def test_kinds_of_messages_are_encoded_as_protobuf_does(options: list[dict[str, Any]], born: int) -> None:
    """Type, message group, delivery time and priority; a delay counts from the birth."""
    messages: list[Message | bytes] = [Message(b"x", **option) for option in options]
    ids = MessageIds.reserve(PROCESS, 7, len(messages))
    request = pb.SendMessageRequest.FromString(_ferromq.encode_send("t", messages, ids, 0, born, "h", 9))
    for option, message in zip(options, request.messages, strict=True):
        system = message.system_properties
        ((name, value),) = option.items()
        if name == "message_group":
            assert (system.message_type, system.message_group) == (pb.MessageType.FIFO, value)
        elif name == "priority":
            assert (system.message_type, system.priority) == (pb.MessageType.PRIORITY, value)
        else:
            due = value if name == "delivery_timestamp" else born + round(value * 1000)
            assert (system.message_type, system.delivery_timestamp.ToMilliseconds()) == (pb.MessageType.DELAY, due)
        others = {"message_group", "delivery_timestamp", "priority"} - {
            "delivery_timestamp" if name == "delay" else name
        }
        assert not any(system.HasField(other) for other in others)


@given(st.integers(0, 2**40))
def test_a_half_message_is_one_of_type_transaction(recovery: int) -> None:
    """It carries the time until the first check-back, if given."""
    ids = MessageIds.reserve(PROCESS, 7, 1)
    data = _ferromq.encode_send("t", [b"x"], ids, 0, 0, "h", 9, recovery)
    system = pb.SendMessageRequest.FromString(data).messages[0].system_properties
    assert system.message_type == pb.MessageType.TRANSACTION
    assert system.HasField("orphaned_transaction_recovery_duration") == (recovery > 0)
    assert system.orphaned_transaction_recovery_duration.ToMilliseconds() == recovery


def test_message_ids_have_rocketmqs_format() -> None:
    """`01`, process, time and counter, 34 upper-case hexadecimal digits; never the same twice."""
    first, second = MessageIds.reserve(PROCESS, 1, 2), MessageIds.reserve(PROCESS, 1, 1)
    ids = [first[0], first[1], second[0]]
    assert len(set(ids)) == 3
    for message_id in ids:
        assert len(message_id) == 34
        assert message_id.startswith("01" + PROCESS.hex().upper() + "00000001")
        assert message_id == message_id.upper()
    with pytest.raises(IndexError):
        first[2]


def test_a_batch_with_a_bad_message_says_which() -> None:
    """Too large, empty, or no message at all: the index is in the error."""
    ids = MessageIds.reserve(PROCESS, 1, 2)

    def encode(second: object) -> None:
        _ferromq.encode_send("t", [b"good", second], ids, 0, 0, "", 5)  # type: ignore[list-item]

    with pytest.raises(MessageTooLarge, match="message 1 of the batch has 6 bytes; the limit is 5"):
        encode(b"longer")
    with pytest.raises(ValueError, match="message 1 of the batch is empty"):
        encode(b"")
    with pytest.raises(TypeError, match="str"):
        encode("text")


@given(st.lists(st.tuples(st.sampled_from([20000, 50001, 42900]), st.integers(0, 2**62), texts), max_size=6), texts)
def test_send_results_are_taken_apart(entries: list[tuple[int, int, str]], text: str) -> None:
    """Code, offsets in order, and each failure with its index."""
    response = pb.SendMessageResponse(
        status=pb.Status(code=pb.MULTIPLE_RESULTS, message=text),
        entries=[
            pb.SendResultEntry(
                status=pb.Status(code=code, message=why),
                message_id="x",
                offset=offset,
                transaction_id=f"tx{offset}" if offset % 3 == 0 else "",
                recall_handle=f"rc{offset}" if offset % 2 == 0 else "",
            )
            for code, offset, why in entries
        ],
    )
    code, told, offsets, failures, handles, *_ = _ferromq.decode_sent(response.SerializeToString())
    assert (code, told, offsets) == (30000, text, [offset for _, offset, _ in entries])
    assert failures == [(i, code, why) for i, (code, _, why) in enumerate(entries) if code != 20000]
    assert handles == [
        (i, f"tx{offset}" if offset % 3 == 0 else "", f"rc{offset}" if offset % 2 == 0 else "")
        for i, (code, offset, _) in enumerate(entries)
        if code == 20000 and (offset % 3 == 0 or offset % 2 == 0)
    ]


messages_received = st.builds(
    lambda tag, keys, properties, body, attempt, times: pb.Message(
        topic=pb.Resource(name="orders"),
        user_properties=properties,
        system_properties=pb.SystemProperties(
            tag=tag,
            keys=keys,
            message_id="ID",
            body_encoding=pb.Encoding.IDENTITY,
            born_timestamp=stamp(times[0]),
            store_timestamp=stamp(times[1]),
            born_host="here",
            store_host="there",
            receipt_handle="handle",
            queue_id=3,
            queue_offset=2**40,
            delivery_attempt=attempt,
            invisible_duration=pb.Duration(seconds=30),
        ),
        body=body,
    ),
    st.none() | words,
    st.lists(words, max_size=3),
    st.dictionaries(texts, texts, max_size=3),
    st.binary(max_size=200),
    st.integers(1, 17),
    st.tuples(instants, instants),
)


def stamp(millis: int) -> pb.Timestamp:
    """Return milliseconds as protobuf's timestamp."""
    result = pb.Timestamp()
    result.FromMilliseconds(millis)
    return result


def responses(messages: list[pb.Message]) -> list[bytes]:
    """Return the stream of a receive that found *messages*."""
    status = pb.ReceiveMessageResponse(status=pb.Status(code=pb.OK, message="OK"))
    found = [pb.ReceiveMessageResponse(message=message) for message in messages]
    end = pb.ReceiveMessageResponse(delivery_timestamp=stamp(5))
    return [response.SerializeToString() for response in (status, *found, end)]


def packet(parts: list[bytes]) -> bytes:
    """Return responses as the packed stream has them."""
    out = bytearray()
    for part in parts:
        length = len(part)
        while length >= 0x80:
            out.append(length & 0x7F | 0x80)
            length >>= 7
        out.append(length)
        out += part
    return bytes(out)


@given(st.lists(messages_received, max_size=5), st.booleans(), st.integers(0, 7))
def test_received_messages_show_every_field(messages: list[pb.Message], packed: bool, cut: int) -> None:
    """Packed in any number of packets or one by one, attributes are as sent."""
    stream = responses(messages)
    packets = [packet(stream[:cut]), packet(stream[cut:])] if packed else stream
    status, views, _ = _ferromq.decode_received(packets, packed, Keeper(), "broker:8081")
    assert status == (20000, "OK")
    assert len(views) == len(messages)
    for view, message in zip(views, messages, strict=True):
        system = message.system_properties
        assert (view.topic, view.body, view.endpoint) == ("orders", message.body, "broker:8081")
        assert view.tag == (system.tag if system.HasField("tag") else None)
        assert view.keys == tuple(system.keys)
        assert view.properties == dict(message.user_properties)
        assert (view.message_id, view.receipt_handle) == ("ID", "handle")
        assert (view.queue_id, view.queue_offset, view.delivery_attempt) == (3, 2**40, system.delivery_attempt)
        assert view.born_timestamp == system.born_timestamp.ToMilliseconds()
        assert view.store_timestamp == system.store_timestamp.ToMilliseconds()
        assert (view.born_host, view.store_host, view.invisible_ms) == ("here", "there", 30000)
        assert "orders" in repr(view)


def view_of(message: pb.Message, keeper: Keeper) -> MessageView:
    """Return one received message."""
    return _ferromq.decode_received(responses([message]), packed=False, lease=keeper, endpoint="b:1")[1][0]


@pytest.mark.parametrize("compress", [gzip.compress, zlib.compress], ids=["gzip", "zlib"])
def test_compressed_bodies_come_out_as_they_were(compress: object) -> None:
    """RocketMQ says GZIP of both formats."""
    system = pb.SystemProperties(message_id="ID", body_encoding=pb.Encoding.GZIP)
    body = compress(b"hello" * 100)  # type: ignore[operator]
    view = view_of(pb.Message(system_properties=system, body=body), Keeper())
    assert (view.body, view.raw_body) == (b"hello" * 100, body)


def test_a_damaged_body_is_an_error_and_its_neighbours_are_received() -> None:
    """Only access to that body fails: the error has the message, the reason, and the way to its bytes."""
    bad = pb.SystemProperties(message_id="BAD", body_encoding=pb.Encoding.GZIP, queue_id=2, queue_offset=7)
    good = pb.SystemProperties(message_id="GOOD", body_encoding=pb.Encoding.IDENTITY)
    topic = pb.Resource(name="orders")
    packets = responses([pb.Message(topic=topic, system_properties=own, body=b"plain") for own in (good, bad, good)])
    _, views, _ = _ferromq.decode_received(packets, packed=False, lease=Keeper(), endpoint="b:1")
    assert [view.message_id for view in views] == ["GOOD", "BAD", "GOOD"]
    assert [view.body for view in views if view.message_id == "GOOD"] == [b"plain", b"plain"]
    with pytest.raises(CorruptMessage, match=r"message BAD of topic orders, queue 2, offset 7: .*compressed.*raw_body"):
        _ = views[1].body
    assert (views[1].raw_body, views[0].raw_body) == (b"plain", b"plain")


@pytest.mark.parametrize("kind", ["CRC32", "MD5", "SHA1"])
def test_a_body_that_differs_from_its_digest_is_an_error(kind: str) -> None:
    """It is compared as it came, compressed or not; the bytes are there, and its neighbours are received."""
    body = zlib.compress(b"hello" * 100)
    right = {
        "CRC32": f"{zlib.crc32(body):X}",
        "MD5": hashlib.md5(body).hexdigest(),
        "SHA1": hashlib.sha1(body).hexdigest().upper(),
    }
    checksums = [right[kind], "DEADBEEF", right[kind]]
    packets = responses(
        [
            pb.Message(
                topic=pb.Resource(name="orders"),
                system_properties=pb.SystemProperties(
                    message_id=f"M{number}",
                    body_encoding=pb.Encoding.GZIP,
                    body_digest=pb.Digest(type=pb.DigestType.Value(kind), checksum=checksum),
                    queue_id=2,
                    queue_offset=number,
                ),
                body=body,
            )
            for number, checksum in enumerate(checksums)
        ]
    )
    _, views, _ = _ferromq.decode_received(packets, packed=False, lease=Keeper(), endpoint="b:1")
    assert [views[0].body, views[2].body] == [b"hello" * 100] * 2
    with pytest.raises(CorruptMessage, match=r"message M1 of topic orders, queue 2, offset 1: .*checksum; raw_body"):
        _ = views[1].body
    assert views[1].raw_body == body


def test_a_message_calls_its_own_consumer() -> None:
    """`ack` and `change_invisible_duration` go to the keeper; a new handle replaces the old one."""
    keeper = Keeper()
    view = view_of(pb.Message(system_properties=pb.SystemProperties(receipt_handle="old")), keeper)
    view.ack()
    view.change_invisible_duration(timedelta(seconds=3))
    assert keeper.asked == [view, (view, timedelta(seconds=3))]
    view.renew("new")
    assert view.receipt_handle == "new"
    request = pb.AckMessageRequest.FromString(_ferromq.encode_acks("g", "t", [view, view]))
    assert (request.group.name, request.topic.name) == ("g", "t")
    assert [entry.receipt_handle for entry in request.entries] == ["new", "new"]


@given(st.lists(st.tuples(words, st.sampled_from([20000, 40013]), texts), max_size=5))
def test_refused_acknowledgements_are_named(entries: list[tuple[str, int, str]]) -> None:
    """Message id, code and text of those that are not OK."""
    response = pb.AckMessageResponse(
        status=pb.Status(code=pb.OK),
        entries=[
            pb.AckMessageResultEntry(message_id=message_id, status=pb.Status(code=code, message=text))
            for message_id, code, text in entries
        ],
    )
    code, _, refused = _ferromq.decode_acked(response.SerializeToString())
    assert code == 20000
    assert refused == [entry for entry in entries if entry[1] != 20000]


@given(st.binary(max_size=100), st.booleans())
def test_other_bytes_are_an_error_or_harmless(data: bytes, packed: bool) -> None:
    """Nothing from outside brings the decoders down."""
    decoders = (
        lambda: _ferromq.decode_sent(data),
        lambda: _ferromq.decode_acked(data),
        lambda: [
            repr(view) + str(view.properties) for view in _ferromq.decode_received([data], packed, Keeper(), "")[1]
        ],
    )
    for decode in decoders:
        try:
            decode()
        except ValueError as error:
            assert "malformed" in str(error)  # noqa: PT017 (either outcome is right)
