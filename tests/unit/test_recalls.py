"""The handles of recalls."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferromq.broker.messages.recalls import RecallHandle, RecallRefused, decode_handle

WORDS = st.text(st.characters(codec="utf-8", exclude_characters=" "), min_size=1, max_size=20)


@given(topic=WORDS, broker=WORDS, time=st.integers(0, 2**62), key=WORDS)
def test_a_handle_survives_encoding(topic: str, broker: str, time: int, key: str) -> None:
    """Whatever the names."""
    text = base64.urlsafe_b64encode(f"v1 {topic} {broker} {time} {key}".encode()).decode()
    assert decode_handle(text) == RecallHandle(topic, broker, time, key)


@given(st.one_of(st.text(max_size=40), st.binary(max_size=40).map(lambda raw: base64.urlsafe_b64encode(raw).decode())))
def test_an_invalid_handle_is_refused(text: str) -> None:
    """No other exception comes out of bytes from outside."""
    with pytest.raises(RecallRefused, match="recall handle is invalid"):
        decode_handle(text)
