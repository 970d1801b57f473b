"""Bodies of administrators' requests: what is read of them, and that nothing else than a refusal comes of odd ones."""

import contextlib
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ferromq import _json
from ferromq._remoting import BadRequest
from ferromq.broker.admin import parse_group, parse_groups, parse_topics
from ferromq.broker.topics import TopicConfig
from ferromq.route import Permission

# A busy machine is no failure.
QUIET = settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
TOPIC_FIELDS = (
    *("topicName", "readQueueNums", "writeQueueNums", "perm", "topicFilterType", "topicSysFlag", "order"),
    *("attributes", "more"),
)
GROUP_FIELDS = (
    *("groupName", "consumeEnable", "retryMaxTimes", "groupRetryPolicy", "attributes", "subscriptionDataSet"),
    *("brokerId", "more"),
)


def test_a_list_of_topics_is_read() -> None:
    """Absent fields have Java's defaults; attributes are changes."""
    body = {
        "topicConfigList": [
            {"topicName": "a", "readQueueNums": 3, "writeQueueNums": 2, "perm": 4, "order": True},
            {"topicName": "b", "attributes": {"+message.type": "FIFO", "-reserve.time": ""}},
        ]
    }
    (first, none), (second, changes) = parse_topics(json.dumps(body).encode())
    assert (first, none) == (TopicConfig("a", 3, 2, Permission.READ, order=True), {})
    assert (second, changes) == (TopicConfig("b", 16, 16), {"message.type": "FIFO", "reserve.time": None})


def test_a_list_of_groups_is_read() -> None:
    """As single ones are."""
    one = {"groupName": "g", "retryMaxTimes": 3, "attributes": {"+a": "b"}}
    body = json.dumps({"groupConfigList": [one, {**one, "groupName": "h"}]}).encode()
    assert [(group.name, group.retries, dict(changes)) for group, changes in parse_groups(body)] == [
        ("g", 3, {"a": "b"}),
        ("h", 3, {"a": "b"}),
    ]


@pytest.mark.parametrize(
    ("topic", "named"),
    [
        ({"topicName": 7}, "topicName"),
        ({"topicName": "t", "readQueueNums": "x"}, "readQueueNums"),
        ({"topicName": "t", "perm": True}, "perm"),
        ({"topicName": "t", "attributes": {"a": "b"}}, "attribute"),
        ({"topicName": "t", "attributes": 7}, "attributes"),
    ],
)
def test_a_wrong_field_is_named(topic: dict[str, Any], named: str) -> None:
    """With the topic it belongs to."""
    with pytest.raises(BadRequest, match=named):
        parse_topics(json.dumps({"topicConfigList": [topic]}).encode())


@QUIET
@given(
    st.sampled_from(["topicConfigList", "groupConfigList", "other"]),
    st.lists(st.dictionaries(st.sampled_from(TOPIC_FIELDS + GROUP_FIELDS), VALUES, max_size=6) | VALUES, max_size=3)
    | VALUES,
)
def test_an_odd_body_is_refused_or_read(name: str, value: Any) -> None:
    """No other error comes out, whatever is in it."""
    body = json.dumps({name: value}).encode()
    for parse in (parse_topics, parse_groups, parse_group):
        with contextlib.suppress(BadRequest):
            parse(body)


@QUIET
@given(st.binary(max_size=200))
def test_bytes_that_are_no_body_are_refused(body: bytes) -> None:
    """As those that are, and say something else."""
    for parse in (parse_topics, parse_groups, parse_group):
        with contextlib.suppress(BadRequest):
            parse(body)


def test_maps_with_objects_as_keys_are_written_as_java_does() -> None:
    """Which is no JSON."""
    value = {"a": _json.ObjectMap([({"queueId": 0, "topic": 'x"'}, {"n": [1, None, True, 1.5]})])}
    assert _json.dumps_java(value) == b'{"a":{{"queueId":0,"topic":"x\\""}:{"n":[1,null,true,1.5]}}}'
