"""What a broker tells administrators about itself."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferromq.protocol.broker_description import BrokerDescription, decode, encode

TEXTS = st.text(max_size=20)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=5,
)
GOOD = {"code": 20000, "message": "OK", "name": "a", "cluster": "c", "broker_id": 0, "remoting": "h:1", "namesrv": []}


@given(st.builds(BrokerDescription, TEXTS, TEXTS, st.integers(0, 1 << 31), TEXTS, st.lists(TEXTS).map(tuple)))
def test_a_description_arrives_as_it_was_sent(description: BrokerDescription) -> None:
    """Whatever the names are."""
    assert decode(encode(description)) == description


@given(st.binary(max_size=100))
def test_bytes_that_are_no_description_are_a_value_error(answer: bytes) -> None:
    """No other exception, for any bytes."""
    with pytest.raises(ValueError, match=r".+"):
        decode(answer)


@given(st.sampled_from(sorted(GOOD)), JSON)
def test_a_field_of_another_type_is_a_value_error(field: str, value: object) -> None:
    """Or it has the type after all."""
    answer = json.dumps({**GOOD, field: value}).encode()
    try:
        found = decode(answer)
    except ValueError:
        return
    assert decode(encode(found)) == found


@pytest.mark.parametrize(("field", "value"), [("namesrv", "h:1"), ("namesrv", [1]), ("broker_id", True), ("name", 1)])
def test_similar_types_are_told_apart(field: str, value: object) -> None:
    """A text is no list of texts, though both have parts."""
    with pytest.raises(ValueError, match=field):
        decode(json.dumps({**GOOD, field: value}).encode())


@pytest.mark.parametrize("field", sorted(GOOD.keys() - {"message"}))
def test_a_missing_field_is_a_value_error(field: str) -> None:
    """None of them has a default."""
    with pytest.raises(ValueError, match=r"code|name|broker_id|namesrv"):
        decode(json.dumps({name: value for name, value in GOOD.items() if name != field}).encode())


def test_a_refusal_is_an_error_with_its_text() -> None:
    """As of any request."""
    with pytest.raises(ValueError, match=r"50001: busy"):
        decode(b'{"code": 50001, "message": "busy"}')
