"""Bodies of administrators' requests: valid ones are read, others are refused."""

import contextlib
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ferromq.broker.administration.topics_and_groups import parse_group, parse_groups, parse_topics
from ferromq.broker.metadata.topics import TopicConfig
from ferromq.files import json_file
from ferromq.protocol import java_json
from ferromq.protocol.remoting import BadRequest
from ferromq.protocol.route import Permission

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
    *("brokerId", "retryQueueNums", "groupSysFlag", "more"),
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
    """Any content gives no other error."""
    body = json.dumps({name: value}).encode()
    for parse in (parse_topics, parse_groups, parse_group):
        with contextlib.suppress(BadRequest):
            parse(body)


@QUIET
@given(st.binary(max_size=200))
def test_bytes_that_are_no_body_are_refused(body: bytes) -> None:
    """Like valid JSON of another form."""
    for parse in (parse_topics, parse_groups, parse_group):
        with contextlib.suppress(BadRequest):
            parse(body)


@pytest.mark.parametrize(
    ("group", "named"),
    [
        ({"retryQueueNums": 1 << 40}, "retryQueueNums"),
        ({"retryQueueNums": -1}, "retryQueueNums"),
        ({"retryMaxTimes": -1}, "retryMaxTimes"),
        ({"retryMaxTimes": (1 << 31) - 1}, "retryMaxTimes"),
        ({"consumeTimeoutMinute": 1 << 31}, "consumeTimeoutMinute"),
        ({"groupSysFlag": 1 << 31}, "groupSysFlag"),
        ({"brokerId": 1 << 63}, "brokerId"),
        ({"whichBrokerWhenConsumeSlowly": 1 << 63}, "whichBrokerWhenConsumeSlowly"),
        ({"groupRetryPolicy": {"type": "SOMETIMES"}}, "groupRetryPolicy"),
        (
            {"groupRetryPolicy": {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1 << 62]}}},
            "groupRetryPolicy",
        ),
        ({"groupRetryPolicy": {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [-1]}}}, "groupRetryPolicy"),
        ({"groupRetryPolicy": {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [math.nan]}}}, "nan"),
        ({"groupRetryPolicy": {"type": "EXPONENTIAL", "exponentialRetryPolicy": {"max": math.nan}}}, "nan"),
    ],
)
def test_a_number_of_a_group_that_may_not_be_is_named(group: dict[str, Any], named: str) -> None:
    """Some have 32 bits elsewhere, and the next start reads all of them from a file."""
    with pytest.raises(BadRequest, match=named):
        parse_group(json.dumps({"groupName": "g", **group}).encode())


def test_the_highest_numbers_of_a_group_are_taken() -> None:
    """The limits themselves are allowed."""
    group, _ = parse_group(
        json.dumps({"groupName": "g", "retryQueueNums": 65_536, "retryMaxTimes": 2**31 - 2}).encode()
    )
    assert (group.retry_queues, group.max_attempts) == (65_536, 2**31 - 1)


def test_no_file_gets_a_number_json_has_no_word_for(tmp_path: Path) -> None:
    """Java could not read it again."""
    for write in (java_json.dumps, java_json.dumps_java, lambda value: json_file.write(tmp_path / "file", value)):
        for odd in (math.nan, math.inf):
            with pytest.raises(ValueError, match=r"JSON|nan|inf"):
                write({"a": odd})
    assert not (tmp_path / "file").exists()


def test_maps_with_objects_as_keys_are_written_as_java_does() -> None:
    """Which is no JSON."""
    value = {"a": java_json.ObjectMap([({"queueId": 0, "topic": 'x"'}, {"n": [1, None, True, 1.5]})])}
    assert java_json.dumps_java(value) == b'{"a":{{"queueId":0,"topic":"x\\""}:{"n":[1,null,true,1.5]}}}'
