"""Expected messages of `ferromq.testing`: what equals what, and how a difference reads."""

import textwrap
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from ferromq import Message, MessageView
from ferromq._ferromq import decode_received
from ferromq._proto import messages as pb
from ferromq.core.pull_plans import NoLease
from ferromq.testing import Like
from ferromq.testing.expectations import Expected, checked, compare, differences

BORN = 1_700_000_000_000


def found(body: bytes = b"one", *, properties: dict[str, str] | None = None, **fields: Any) -> MessageView:
    """Return a captured message; the fields are those of the protocol."""
    due = fields.pop("delivery_timestamp", None)
    system = pb.SystemProperties(body_encoding=pb.Encoding.IDENTITY, message_id="M1", **fields)
    system.born_timestamp.FromMilliseconds(BORN)
    if due is not None:
        system.delivery_timestamp.FromMilliseconds(due)
    message = pb.Message(
        topic=pb.Resource(name="orders"), body=body, system_properties=system, user_properties=properties or {}
    )
    return view(message)


def view(message: pb.Message) -> MessageView:
    """Return a message as a client decodes it."""
    answer = pb.ReceiveMessageResponse(message=message).SerializeToString()
    _, (decoded,), _ = decode_received([answer], False, NoLease(), "")  # noqa: FBT003 (the binding takes no keywords)
    return decoded


def names(expected: Expected, message: MessageView) -> list[str]:
    """Return the names of the fields that differ."""
    return [field.name for field in compare(expected, message)]


def text(expected: Sequence[Expected], messages: Sequence[MessageView], *, in_any_order: bool = False) -> str:
    """Return the differences."""
    return differences("messages", expected, messages, in_any_order=in_any_order)


@pytest.mark.parametrize("body", [b"one", bytearray(b"one"), memoryview(b"one")])
def test_of_bytes_only_the_body_counts(body: Any) -> None:
    """Any kind of bytes; tag, keys and properties may be anything."""
    message = found(tag="new", keys=["o-1"], properties={"a": "1"})
    assert names(body, message) == []
    assert names(b"two", message) == ["body"]


def test_of_a_message_every_field_counts() -> None:
    """A field that the expected message lacks must be missing."""
    message = found(tag="new", keys=["o-1", "o-2"], properties={"a": "1"}, message_group="anna")
    whole: dict[str, Any] = {"tag": "new", "keys": ["o-1", "o-2"], "properties": {"a": "1"}, "message_group": "anna"}
    assert names(Message(b"one", **whole), message) == []
    others: dict[str, Any] = {"tag": "old", "keys": "o-1", "properties": {}, "message_group": "ben"}
    for name, other in others.items():
        assert names(Message(b"one", **{**whole, name: other}), message) == [name]
        assert names(Message(b"one", **{**whole, name: None}), message) == [name]
    assert names(Message(b"one"), found(priority=3)) == ["priority"]
    assert names(Message(b"one", priority=3), found(priority=3)) == []


def test_a_delay_counts_from_the_time_of_sending() -> None:
    """As the client counts it; the broker stores the time alone."""
    message = found(delivery_timestamp=BORN + 60_000)
    assert names(Message(b"one", delay=timedelta(minutes=1)), message) == []
    assert names(Message(b"one", delay=timedelta(minutes=2)), message) == ["delivery_timestamp"]
    assert names(Message(b"one", delivery_timestamp=BORN + 60_000), message) == []
    assert names(Message(b"one"), message) == ["delivery_timestamp"]


def test_of_a_like_only_the_given_fields_count() -> None:
    """None asks for a missing field, and properties for at least these."""
    message = found(b'{"id": 7}', tag="new", keys=["o-1"], properties={"a": "1", "b": "2"})
    for like in (
        Like(),
        Like(json={"id": 7}),
        Like(body=b'{"id": 7}', tag="new"),
        Like(keys="o-1"),
        Like(keys=["o-1"]),
        Like(properties={"b": "2"}),
        Like(properties={}),
        Like(message_group=None, delivery_timestamp=None, priority=None),
    ):
        assert names(like, message) == [], like
    for like, name in (
        (Like(json={"id": 8}), "json"),
        (Like(tag=None), "tag"),
        (Like(keys=["o-1", "o-2"]), "keys"),
        (Like(keys=None), "keys"),
        (Like(properties={"b": "3"}), "properties"),
        (Like(properties={"c": "3"}), "properties"),
        (Like(message_group="anna"), "message_group"),
    ):
        assert names(like, message) == [name], like


def test_a_body_that_is_no_json_differs_from_all_json() -> None:
    """It is a difference, not an exception."""
    assert names(Like(json={}), found(b"{")) == ["json"]
    assert names(Like(json=None), found(b"null")) == []


def test_a_time_may_have_any_zone() -> None:
    """To the millisecond."""
    message = found(delivery_timestamp=BORN)
    moment = datetime.fromtimestamp(BORN / 1000, timezone(timedelta(hours=5)))
    assert names(Like(delivery_timestamp=moment), message) == []
    assert names(Like(delivery_timestamp=moment + timedelta(milliseconds=1)), message) == ["delivery_timestamp"]
    assert names(Like(delivery_timestamp=BORN), message) == []


def test_a_wrong_expectation_is_an_error_and_no_difference() -> None:
    """It names what is expected instead."""
    with pytest.raises(TypeError, match="both body and json"):
        Like(body=b"{}", json={})
    with pytest.raises(ValueError, match="no time zone; add tzinfo=UTC"):
        Like(delivery_timestamp=datetime(2026, 11, 1))  # noqa: DTZ001 (what is refused)
    assert checked([b"one", Message(b"two"), Like(tag="new")])[2] == Like(tag="new")
    one: Any
    for one in (b"one", "one", Like(), Message(b"one"), 7, {b"one"}):
        with pytest.raises(TypeError, match="a list of messages is expected"):
            checked(one)
    with pytest.raises(TypeError, match=r"bytes, a ferromq.Message or a Like, not 'one'"):
        checked(["one"])


def test_equal_messages_have_no_text() -> None:
    """So do no messages at all."""
    assert text([], []) == ""
    assert text([b"one", Like(tag="new")], [found(), found(tag="new")]) == ""


def test_a_difference_shows_both_messages_and_each_field() -> None:
    """Expected lines begin with a minus, found ones with a plus."""
    shown = text(
        [b"one", Message(b"two", tag="paid", keys="o-2", properties={"a": "1"})],
        [found(), found(b"two", tag="new", keys=["o-2"], properties={"a": "2"})],
    )
    assert shown == textwrap.dedent(
        """\
        messages: 2 expected, 2 found, 1 equal

              1  body=b'one' tag=None keys=() properties={}
          -   2  body=b'two' tag='paid' keys=('o-2',) properties={'a': '1'}
          +   2  body=b'two' tag='new' keys=('o-2',) properties={'a': '2'}
                   tag: expected 'paid', found 'new'
                   properties: expected {'a': '1'}, found {'a': '2'}
                     a: expected '1', found '2'"""
    )


def test_a_missing_message_shifts_no_others() -> None:
    """Nor does one that was not expected."""
    lines = text([b"one", b"two", b"three"], [found(b"one"), found(b"three")]).splitlines()[2:]
    assert [line[:4] for line in lines] == ["    ", "  - ", "    "]
    assert lines[1].endswith("body=b'two'   (missing)")
    lines = text([b"one", b"three"], [found(b"one"), found(b"two", tag="new"), found(b"three")]).splitlines()[2:]
    assert [line[:4] for line in lines] == ["    ", "  + ", "    "]
    assert "tag='new'" in lines[1]
    assert lines[1].endswith("(not expected)")


def test_a_row_of_equal_messages_is_folded() -> None:
    """The difference stays in sight."""
    messages = [found(b"%d" % number) for number in range(100)]
    lines = text([b"%d" % number for number in range(101)], messages).splitlines()[2:]
    assert len(lines) == 4
    assert "… 98 equal messages" in lines[1]


def test_in_any_order_the_most_exact_expectation_chooses_first() -> None:
    """A body alone must not take the message that only another expectation needs."""
    messages = [found(b"one", tag="a"), found(b"one", tag="b")]
    assert text([b"one", Like(body=b"one", tag="a")], messages, in_any_order=True) == ""
    assert text([b"one", Like(body=b"one", tag="a")], messages[::-1]) == ""
    assert text([Like(body=b"one", tag="b"), Message(b"one", tag="a")], messages, in_any_order=True) == ""
    shown = text([b"one", b"two"], messages, in_any_order=True)
    assert "1 equal" in shown
    assert "body: expected b'two', found b'one'" in shown


def test_long_bodies_are_cut_and_show_where_they_differ() -> None:
    """The text stays short."""
    body = b"x" * 5_000
    shown = text([body + b"END"], [found(body + b"end")])
    assert "(5003 bytes)" in shown
    assert "they differ from byte 5000 on: b'xxxxxxxxxxEND', b'xxxxxxxxxxend'" in shown
    assert len(shown) < 2_000


def test_json_shows_each_place_that_differs() -> None:
    """By its path."""
    wanted = {"id": 7, "lines": [{"count": 1}, {"count": 2}], "gone": 1}
    shown = text([Like(json=wanted)], [found(b'{"id": 7, "lines": [{"count": 1}, {"count": 3}], "more": true}')])
    assert "lines[1].count: expected 2, found 3" in shown
    assert "gone: missing" in shown
    assert "more: not expected, True" in shown


def test_properties_that_a_like_does_not_name_are_no_difference() -> None:
    """They are shown on the line of the message alone."""
    shown = text([Like(properties={"a": "1"})], [found(properties={"a": "2", "b": "3"})])
    assert "a: expected '1', found '2'" in shown
    assert "b: not expected" not in shown


def test_many_messages_are_compared_in_time() -> None:
    """Equal ones at the beginning are left out; lists that are still too long are compared place by place."""
    messages = [found(b"%d" % number) for number in range(8_000)]
    wanted = [b"%d" % number for number in range(8_000)]
    assert "7999 equal" in text([b"x", *wanted[1:]], messages)
    del wanted[7_900]
    assert "7999 equal" in text(wanted, messages)


def test_a_corrupt_body_is_shown_and_raises_nothing() -> None:
    """As `MessageView.body` raises it."""
    system = pb.SystemProperties(body_encoding=pb.Encoding.GZIP, message_id="M1")
    message = pb.Message(topic=pb.Resource(name="orders"), body=b"not zlib", system_properties=system)
    assert "CorruptMessage" in text([b"one"], [view(message)])


def test_a_like_shows_the_given_fields() -> None:
    """Fields that were not given are left out."""
    assert "datetime.timezone.utc" in repr(Like(delivery_timestamp=datetime(2026, 11, 1, tzinfo=UTC)))
    assert repr(Like()) == "any message"
