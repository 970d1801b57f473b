"""Messages refuse early what RocketMQ cannot carry; receipts are made on access."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferromq import _ferromq
from ferromq._ferromq import MessageIds
from ferromq._proto import messages as pb
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
