"""Producers compress bodies where it helps."""

import os
from typing import Any

import pytest

from ferromq import ConfigError, Message, MessageTooLarge, Producer
from ferromq.core.batching import with_properties
from ferromq.core.payloads import Encoder

TEXT = b"the same again, " * 1_000
COMPRESSIONS = ["zlib", "lz4", "zstd"]


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_body_over_the_limit_is_compressed_and_a_smaller_one_is_not(compression: Any) -> None:
    """The limit itself is not over it."""
    encoder: Encoder[bytes] = Encoder(None, compression, 100)
    assert len(encoder.sendable(TEXT, {}).body) < len(TEXT) / 10
    assert encoder.sendable(b"x" * 100, {}).body == b"x" * 100
    assert len(encoder.sendable(b"x" * 101, {}).body) < 101


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_body_that_would_not_get_smaller_stays_as_it_is(compression: Any) -> None:
    """Random bytes are an example."""
    body = os.urandom(10_000)
    assert Encoder[bytes](None, compression).sendable(body, {}).body == body


def test_the_message_of_the_caller_is_not_changed_and_its_options_are_kept() -> None:
    """A program may send its message to several topics."""
    given = Message(TEXT, keys=["a", "b"], tag="t", properties={"p": "1"}, message_group="g")
    sent = Encoder[bytes](None, "zlib").sendable(given, {})
    assert given.body == TEXT
    assert sent.body != TEXT
    assert (sent.keys, sent.tag, sent.properties, sent.message_group) == (("a", "b"), "t", {"p": "1"}, "g")


def test_a_compressed_message_is_not_compressed_again_nor_without_its_mark_after_more_properties() -> None:
    """Telemetry and numbers add properties later."""
    encoder: Encoder[bytes] = Encoder(None, "zlib", 0)
    once = encoder.sendable(TEXT, {})
    again = with_properties(once, {"more": "1"})
    assert again.properties == {"more": "1"}
    assert again.body == once.body
    assert encoder.sendable(again, {}) is again, "its headers say that it is compressed"


def test_more_properties_replace_those_of_the_same_names() -> None:
    """They are checked as those of a new message."""
    message = with_properties(Message(b"x", properties={"a": "1", "b": "2"}, delay=3.0), {"b": "3", "c": "4"})
    assert message.properties == {"a": "1", "b": "3", "c": "4"}
    assert message.delay is not None
    assert message.delay.total_seconds() == 3.0
    with pytest.raises(ValueError, match="control character"):
        with_properties(message, {"d": "\x01"})


@pytest.mark.parametrize("wrong", ["gzip", "ZLIB", "", True])
def test_an_unknown_compression_names_those_that_there_are(wrong: Any) -> None:
    """At once, before anything is sent."""
    with pytest.raises(ConfigError, match="'zlib', 'lz4', 'zstd' or None"):
        Producer("127.0.0.1:1", compress=wrong)


@pytest.mark.parametrize("wrong", [-1, 1.5, "9", None, True])
def test_a_limit_that_is_no_number_of_bytes_is_refused(wrong: Any) -> None:
    """At once, with the value."""
    with pytest.raises(ConfigError, match=f"compress_over is {wrong!r}"):
        Producer("127.0.0.1:1", compress="zlib", compress_over=wrong)


def test_a_limit_beyond_any_body_compresses_none() -> None:
    """The core counts in machine words."""
    assert Encoder[bytes](None, "zlib", 1 << 70).sendable(TEXT, {}).body == TEXT


def test_a_body_that_no_consumer_decompresses_is_refused() -> None:
    """It would be stored with a receipt, and become a dead letter of each group."""
    encoder: Encoder[bytes] = Encoder(None, "lz4")
    assert len(encoder.sendable(bytes(64 << 20), {}).body) < 1 << 20
    with pytest.raises(MessageTooLarge, match=r"67108865 bytes.*67108864"):
        encoder.sendable(bytes((64 << 20) + 1), {})


def test_values_and_many_messages_are_compressed_too() -> None:
    """`encode` makes bodies; batches take bytes and messages."""
    encoder: Encoder[Any] = Encoder(dict, "lz4")
    assert len(encoder.sendable({"text": "a" * 10_000}, {}).body) < 1_000
    [bare, full] = map(Encoder[bytes](None, "zstd").numbered(), [TEXT, Message(TEXT)])
    assert isinstance(bare, Message)
    assert isinstance(full, Message)
    assert bare.body == full.body
