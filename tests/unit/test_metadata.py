"""The document with the metadata of a cluster: it is read as it was written, and anything else is refused by place."""

import contextlib
import json
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ferromq
from ferromq.admin.asking import Ask
from ferromq.admin.inventory import offsets_at
from ferromq.admin.metadata import Metadata
from ferromq.admin.metadata_transfer import groups, topics

TOPIC = {"readQueueNums": 2, "writeQueueNums": 2, "perm": 6, "attributes": {"message.type": "FIFO"}}
WHOLE: Mapping[str, Any] = {
    "version": 1,
    "topics": {"orders": {"*": TOPIC}},
    "groups": {"billing": {"a": {"retryMaxTimes": 3, "attributes": {}}}},
    "values": {"ORDER_TOPIC_CONFIG": {"orders": "a:2"}},
    "broker_options": {"*": {"region": "x"}},
    "name_server_options": {"*": {"lease": "1"}},
    "users": {"alice": {"*": {"kind": "Normal", "enabled": True}}},
    "policies": {
        "alice": {"*": [{"policy": "Custom", "resource": "*", "actions": ["All"], "sources": [], "allow": True}]}
    },
    "offsets": {"billing": {"orders": {"a": {"0": 5}}}},
}
NAMES = st.sampled_from(
    ["version", *WHOLE, "*", "orders", "perm", "readQueueNums", "writeQueueNums", "attributes", "0"]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 1 << 70) | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=20,
)


def test_what_is_written_is_read() -> None:
    """In the same order each time."""
    found = Metadata.from_json(json.dumps(WHOLE))
    assert json.loads(found.to_json()) == WHOLE
    assert Metadata.from_json(found.to_json()) == found
    assert Metadata.from_json('{"version": 1}').to_json() == Metadata().to_json()


@given(st.binary(max_size=80) | st.dictionaries(NAMES, JSON).map(json.dumps) | JSON.map(json.dumps))
def test_any_bytes_are_read_or_refused(data: bytes | str) -> None:
    """What is read is written, and read again."""
    try:
        found = Metadata.from_json(data)
    except ferromq.errors.ConfigError:
        return
    assert Metadata.from_json(found.to_json()) == found


@given(section=st.sampled_from([name for name in WHOLE if name != "version"]), value=JSON)
def test_any_section_is_read_or_refused(section: str, value: Any) -> None:
    """Beside sections that are right."""
    try:
        found = Metadata.from_json(json.dumps({**WHOLE, section: value}))
    except ferromq.errors.ConfigError as error:
        named = str(error)
    else:
        assert Metadata.from_json(found.to_json()) == found
        return
    assert section in named or "JSON" in named


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"version": 2}, "the version of the document is 2; this ferromq reads version 1"),
        ({"version": True}, "the version of the document is True"),
        ({"secrets": {}}, "unknown section 'secrets'"),
        ({"topics": []}, "topics is []; expected an object"),
        (
            {"topics": {"orders": {"*": {**TOPIC, "perm": "rw"}}}},
            "topics.orders.*.perm is 'rw'; expected a whole number",
        ),
        ({"topics": {"orders": {"*": {"perm": 6}}}}, "topics.orders.* has no readQueueNums"),
        ({"topics": {"orders": {"*": {**TOPIC, "colour": 1}}}}, "unknown field 'colour'"),
        ({"topics": {"": {"*": TOPIC}}}, "topics has an empty name"),
        ({"groups": {"g": {"*": {"attributes": 1}}}}, "groups.g.*.attributes is 1"),
        ({"offsets": {"g": {"t": {"a": {"-1": 1}}}}}, "offsets.g.t.a has the queue '-1'"),
        ({"offsets": {"g": {"t": {"a": {"0": -1}}}}}, "offsets.g.t.a.0 is -1; expected a whole number from 0"),
        ({"users": {"u": {"*": {"kind": "Super", "enabled": True, "password": "x"}}}}, "unknown field 'password'"),
    ],
)
def test_the_place_of_a_fault_is_named(change: dict[str, Any], named: str) -> None:
    """And what is expected there."""
    with pytest.raises(ferromq.errors.ConfigError) as refused:
        Metadata.from_json(json.dumps({**WHOLE, **change}))
    assert named in str(refused.value)


@pytest.mark.parametrize(
    "text", ["", "{", '{"version": NaN}', "[" * 100_000, '{"version": 1, "topics": {"\\ud800": {}}}']
)
def test_what_is_no_json_is_refused(text: str) -> None:
    """Also numbers and letters that JSON or UTF-8 do not have."""
    with pytest.raises(ferromq.errors.ConfigError, match="no JSON"):
        Metadata.from_json(text)


@pytest.mark.parametrize("question", [topics, groups, offsets_at])
@given(
    data=st.binary(max_size=40)
    | JSON.map(lambda value: json.dumps(value).encode())
    | st.builds(
        lambda table, value: json.dumps({table: {"t@g": value}}).encode(),
        st.sampled_from(["topicConfigTable", "subscriptionGroupTable", "offsetTable"]),
        JSON,
    )
)
def test_any_answer_of_a_broker_is_read_or_an_error_of_ours(question: Callable[[Ask], Any], data: bytes) -> None:
    """Nothing else is raised."""
    calls: Any = SimpleNamespace(ask=lambda *_arguments, **_options: data)
    with contextlib.suppress(ferromq.errors.ServerError):
        question(Ask(calls, "h:1", 1))
