"""Messages refuse early what RocketMQ cannot carry; receipts are made on access."""

import copy
import pickle
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferromq import _ferromq
from ferromq._ferromq import MessageIds, MessageView, decode_received
from ferromq._proto import messages as pb
from ferromq.core.payloads import Decoder
from ferromq.core.pull_plans import NoLease
from ferromq.message import Batch, Message, Records, SendReceipt, SendSummary


def test_a_message_keeps_what_it_was_given() -> None:
    """One key may be a str, bodies may be any bytes-like; without extras everything is empty."""
    message = Message(bytearray(b"body"), keys="k", tag="t", properties={"a": "b"})
    assert (message.body, message.keys, message.tag, message.properties) == (b"body", ("k",), "t", {"a": "b"})
    assert Message(memoryview(b"x"), keys=["1", "2"]).keys == ("1", "2")
    bare = Message(b"x")
    assert (bare.keys, bare.tag, bare.properties) == ((), None, {})
    assert repr(message) == "Message(<4 bytes>, keys=('k',), tag='t')"


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"body": "text"}, TypeError, "encode"),
        ({"body": 5}, TypeError, "int"),
        ({"body": None}, TypeError, "NoneType"),
        ({"body": b""}, ValueError, "at least one byte"),
        ({"body": b"x", "tag": ""}, ValueError, "blank"),
        ({"body": b"x", "tag": "a||b"}, ValueError, r"a\|\|b"),
        ({"body": b"x", "tag": "a\x01"}, ValueError, "control character"),
        ({"body": b"x", "tag": 5}, TypeError, "tag"),
        ({"body": b"x", "keys": " "}, ValueError, "blank"),
        ({"body": b"x", "keys": ["fine", "two words"]}, ValueError, "two words"),
        ({"body": b"x", "keys": [5]}, TypeError, "a key must be str"),
        ({"body": b"x", "keys": 5}, TypeError, "int"),
        ({"body": b"x", "properties": {"": "x"}}, ValueError, "blank"),
        ({"body": b"x", "properties": {"a\x02": "x"}}, ValueError, "control character"),
        ({"body": b"x", "properties": {"a": "x\x01"}}, ValueError, "control character"),
        ({"body": b"x", "properties": {"a": 1}}, TypeError, "value of a property must be str"),
        ({"body": b"x", "properties": [("a", "b")]}, TypeError, "mapping"),
    ],
)
def test_an_invalid_message_is_refused(arguments: dict[str, object], error: type[Exception], text: str) -> None:
    """The error names the value and the rule, when the message is made and not when it is sent."""
    body = arguments.pop("body")
    with pytest.raises(error, match=text):
        Message(body, **arguments)  # type: ignore[arg-type]


def test_an_answer_that_says_nothing_of_its_records_makes_receipts_without() -> None:
    """As RocketMQ's proxy answers; and a receipt that is made by hand."""
    entry = pb.SendResultEntry(status=pb.Status(code=pb.Code.OK), message_id="0A", offset=7)
    answer = pb.SendMessageResponse(status=pb.Status(code=pb.Code.OK), entries=[entry]).SerializeToString()
    records = Records(*_ferromq.decode_sent(answer)[-1])
    batch = Batch(MessageIds.reserve(bytes(8), 0, 1), 1, [7], records=records)
    for receipt in (batch.receipt(0), SendReceipt("0A", 1, 7)):
        assert (receipt.offset_message_id, receipt.durability) == (None, None)


@given(st.lists(st.integers(1, 5), max_size=6))
def test_a_summary_is_the_list_of_its_receipts(sizes: list[int]) -> None:
    """Length, index from both ends, slices and iteration agree."""
    batches = [
        Batch(MessageIds.reserve(bytes(8), 0, size), queue_id, range(100 * queue_id, 100 * queue_id + size))
        for queue_id, size in enumerate(sizes)
    ]
    expected = [
        SendReceipt(batch.ids[index], batch.queue_id, batch.queue_offsets[index])
        for batch in batches
        for index in range(len(batch.ids))
    ]
    summary = SendSummary(batches)
    assert len(summary) == len(expected)
    assert list(summary) == expected
    assert [summary[index] for index in range(len(summary))] == expected
    assert [summary[index] for index in range(-len(summary), 0)] == expected
    assert summary[1:-1] == expected[1:-1]
    for index in (len(expected), -len(expected) - 1):
        with pytest.raises(IndexError):
            summary[index]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"keys": ["a", "b"], "tag": "t", "properties": {"colour": "red"}},
        {"message_group": "g"},
        {"delivery_timestamp": 7},
        {"delay": 1.5},
        {"priority": 3},
    ],
)
def test_a_message_is_pickled_and_copied_with_all_its_options(options: dict[str, Any]) -> None:
    """To send it from another process, or to keep it."""
    message = Message(b"x", **options)
    names = ("body", "keys", "tag", "properties", "message_group", "delivery_timestamp", "delay", "priority")
    for twin in (pickle.loads(pickle.dumps(message)), copy.copy(message), copy.deepcopy(message)):
        assert [getattr(twin, name) for name in names] == [getattr(message, name) for name in names]
    assert message.delay == (timedelta(seconds=1.5) if "delay" in options else None)


def test_a_compressed_message_is_not_pickled_as_one_that_is_not() -> None:
    """Consumers would not decompress it."""
    compressed = Message(b"x" * 1000).compressed("zlib", 0)
    with pytest.raises(TypeError, match="a compressed message cannot be pickled"):
        pickle.dumps(compressed)


def test_receipts_are_pickled() -> None:
    """One, and those of a call, in another order than they were sent in."""
    batches = [Batch(MessageIds.reserve(bytes(8), 5, 3), 1, range(3), "orders", "e", {}, "b")]
    summary = SendSummary(batches, [2, 0, 1])
    for twin in (pickle.loads(pickle.dumps(summary)), copy.deepcopy(summary)):
        assert list(twin) == list(summary)
    assert pickle.loads(pickle.dumps(summary[0])) == summary[0]


def received() -> MessageView:
    """Return a received message."""
    answer = pb.ReceiveMessageResponse(message=pb.Message(body=b"x")).SerializeToString()
    return decode_received([answer], packed=False, lease=NoLease(), endpoint="")[1][0]


@pytest.mark.parametrize("given", [received(), Decoder(bytes.decode).given(received())], ids=["plain", "decoded"])
def test_a_received_message_is_not_pickled_and_the_error_has_the_way_out(given: Any) -> None:
    """Its lease is this process's."""
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        with pytest.raises(TypeError, match=r"cannot be pickled, .*: send message\.body"):
            pickle.dumps(given, protocol)


def test_a_copy_of_a_received_message_is_the_message() -> None:
    """One lease, and one place that knows whether it was acknowledged; what is around it is copied."""
    message = received()
    around = {"messages": [message]}
    assert copy.copy(message) is message
    assert copy.deepcopy(around) == around
    decoded = copy.deepcopy(Decoder(bytes.decode).given(message))
    assert (decoded.message, decoded.value) == (message, "x")
