"""A master's answers to a slave: Java's forms are read, anything else is a `ValueError` and harms nothing."""

import contextlib
import json
import math
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ferromq.broker.cluster import master_answers
from ferromq.broker.metadata.groups import GroupConfig, GroupTable
from ferromq.broker.metadata.topics import TopicConfig, TopicTable
from ferromq.config.broker import BrokerConfig
from ferromq.protocol.route import DataVersion, Permission

NOW = 1_700_000_000_000
VERSION = {"counter": 3, "stateVersion": 1, "timestamp": NOW}
DECODERS = (
    master_answers.topics,
    master_answers.groups,
    master_answers.consumer_offsets,
    master_answers.delay_offsets,
    master_answers.request_modes,
    master_answers.timer_checkpoint,
    master_answers.timer_metrics,
)
TABLES = ("topicConfigTable", "subscriptionGroupTable", "forbiddenTable", "offsetTable", "timingCount")
# How long an example takes depends on the machine alone.
ANY_TIME = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
TABLE_NAMES = st.sampled_from(("t", "u", "%RETRY%g", "x y"))
# A small alphabet: all of Unicode takes seconds to prepare.
TEXTS = st.text("aT0-/.\\ %@\0\u00e9\ud800\U0001f600", max_size=5)
FIELDS = (
    "readQueueNums",
    "writeQueueNums",
    "perm",
    "topicSysFlag",
    "order",
    "attributes",
    "retryMaxTimes",
    "retryQueueNums",
)


def encoded(**fields: Any) -> bytes:
    """Return an answer with a version."""
    return json.dumps({"dataVersion": VERSION, **fields}).encode()


def test_topics_are_read() -> None:
    """With the version of the table."""
    topic = {"topicName": "t", "readQueueNums": 4, "writeQueueNums": 2, "perm": 6, "attributes": {"a": "b"}}
    found = master_answers.topics(encoded(topicConfigTable={"t": topic}, mappingDataVersion=VERSION))
    assert found.version == DataVersion(NOW, 3, 1)
    read = found.entries["t"]
    assert (read.read_queues, read.write_queues, read.permission) == (4, 2, Permission.READ | Permission.WRITE)
    assert read.attributes == {"a": "b"}


def test_groups_are_read_with_what_they_may_not_read() -> None:
    """RocketMQ's -1, no retries at all, is allowed."""
    body = encoded(
        subscriptionGroupTable={"g": {"groupName": "g", "retryMaxTimes": -1}}, forbiddenTable={"g": {"t": 1}}
    )
    found = master_answers.groups(body)
    assert (found.entries["g"].retries, found.forbidden) == (-1, {"g": {"t": 1}})


def test_offsets_are_read_as_java_writes_them() -> None:
    """With bare integers as keys; an unknown queue is left out."""
    body = b'{"dataVersion":{"counter":1},"offsetTable":{"t@g":{0:12,1:-1},"u@g":{0:-1}}}'
    assert master_answers.consumer_offsets(body) == {"t@g": {0: 12}}


def test_delay_offsets_are_read_as_java_writes_them() -> None:
    """They are kept under the same names."""
    found = master_answers.delay_offsets(b'{"dataVersion":{"counter":2,"timestamp":7},"offsetTable":{1:10,12:5}}')
    assert found == {
        "dataVersion": {"counter": 2, "stateVersion": 0, "timestamp": 7},
        "offsetTable": {"1": 10, "12": 5},
    }


@pytest.mark.parametrize(("version", "expected"), [((5, 6, 7), DataVersion(6, 7, 5)), ((), DataVersion())])
def test_a_timer_checkpoint_is_read(version: tuple[int, ...], expected: DataVersion) -> None:
    """With and without the version that newer masters add."""
    numbers = (NOW, 1, 2, 3, *version)
    found = master_answers.timer_checkpoint(struct.pack(f">{len(numbers)}q", *numbers))
    assert found == (NOW, 3, expected)


def test_metrics_of_a_timer_are_read() -> None:
    """They are kept as they are."""
    counts = {"t": {"count": 2, "timeStamp": NOW}}
    assert master_answers.timer_metrics(encoded(timingCount=counts))["timingCount"] == counts


@pytest.mark.parametrize(
    ("decode", "body"),
    [
        (master_answers.topics, encoded(topicConfigTable={"../../etc": {}})),
        (master_answers.topics, encoded(topicConfigTable={"": {}})),
        (master_answers.topics, encoded(topicConfigTable={"t" * 256: {}})),
        (master_answers.topics, encoded(topicConfigTable={"t": {"writeQueueNums": 1 << 31}})),
        (master_answers.topics, encoded(topicConfigTable={"t": {"perm": -1}})),
        (master_answers.topics, encoded().replace(b"}}", b'},"topicConfigTable":{"t":{"perm":1e999}}}')),
        (master_answers.topics, encoded(topicConfigTable={"t": {"attributes": {"a": math.nan}}})),
        (master_answers.topics, encoded(topicConfigTable={"\ud800": {}})),
        (master_answers.topics, b'{"dataVersion":{"counter":-1},"topicConfigTable":{}}'),
        (master_answers.topics, b'{"topicConfigTable":{}}'),
        (master_answers.topics, encoded()),
        (master_answers.groups, encoded(subscriptionGroupTable=None)),
        (master_answers.consumer_offsets, b"{}"),
        (master_answers.groups, encoded(subscriptionGroupTable={"g": {"retryMaxTimes": 1 << 40}})),
        (master_answers.groups, encoded(subscriptionGroupTable={"g": {"retryQueueNums": 1 << 32}})),
        (master_answers.groups, encoded(subscriptionGroupTable={"g": {"retryQueueNums": -1}})),
        (master_answers.groups, encoded(subscriptionGroupTable={"g": {"groupSysFlag": 1 << 31}})),
        (master_answers.groups, encoded(subscriptionGroupTable={"g": []})),
        (master_answers.consumer_offsets, encoded(offsetTable={"t@g": {"0": -2}})),
        (master_answers.consumer_offsets, encoded(offsetTable={"t@g": {"-1": 0}})),
        (master_answers.consumer_offsets, encoded(offsetTable=[])),
        (master_answers.delay_offsets, encoded(offsetTable={"one": 1})),
        (master_answers.request_modes, b"{}"),
        (master_answers.request_modes, b'{"messageRequestModeMap":{"t":{"a/b":{}}}}'),
        (master_answers.timer_checkpoint, b"\0" * 31),
        (master_answers.timer_checkpoint, b"\0" * 40),
    ],
)
def test_an_invalid_answer_is_refused(decode: Callable[[bytes], object], body: bytes) -> None:
    """The whole answer, not only the entry."""
    with pytest.raises(ValueError, match=r"."):
        decode(body)


def json_like() -> st.SearchStrategy[Any]:
    """Return values that resemble answers: the right names, with random content."""
    names = st.sampled_from([*TABLES, *FIELDS, "dataVersion", "counter", "t", "t@g", "0", "-1"]) | TEXTS
    leaves = st.none() | st.booleans() | st.integers() | st.floats() | TEXTS
    return st.recursive(
        leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=4), max_leaves=12
    )


@ANY_TIME
@given(st.binary(max_size=200) | st.dictionaries(st.sampled_from((*TABLES, "dataVersion")), json_like()))
def test_nothing_else_comes_out_of_a_decoder(content: bytes | dict[str, Any]) -> None:
    """For any bytes."""
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    for decode in DECODERS:
        with contextlib.suppress(ValueError):
            decode(body)


@ANY_TIME
@given(st.dictionaries(TABLE_NAMES, st.dictionaries(st.sampled_from(FIELDS), json_like())))
def test_topics_that_are_decoded_can_be_adopted_and_read_again(table: dict[str, Any]) -> None:
    """The file equals the table, and what the hot path gets is within its bounds."""
    pushed: list[TopicConfig | None] = []
    try:
        found = master_answers.topics(encoded(topicConfigTable=table))
    except ValueError:
        return
    with tempfile.TemporaryDirectory() as directory:
        arguments = (BrokerConfig, Path(directory), lambda: NOW)
        TopicTable(*arguments, lambda _name, topic: pushed.append(topic), lambda _names, _content: None).adopt(
            found.entries, found.version, "master"
        )
        again = TopicTable(*arguments, lambda _name, _topic: None, lambda _names, _content: None)
        assert {name: again.content.entries[name] for name in found.entries} == found.entries
    for topic in filter(None, pushed):
        assert all(0 <= number < 1 << 32 for number in (topic.read_queues, topic.write_queues, topic.permission))


@ANY_TIME
@given(st.dictionaries(TABLE_NAMES, st.dictionaries(st.sampled_from(FIELDS), json_like())))
def test_groups_that_are_decoded_can_be_adopted_and_read_again(table: dict[str, Any]) -> None:
    """So it is with groups."""
    pushed: list[GroupConfig | None] = []
    try:
        found = master_answers.groups(encoded(subscriptionGroupTable=table))
    except ValueError:
        return
    with tempfile.TemporaryDirectory() as directory:
        arguments = (BrokerConfig, Path(directory), lambda: NOW)
        GroupTable(*arguments, lambda _name, group: pushed.append(group)).adopt(
            found.entries, found.forbidden, found.version, "master"
        )
        known = GroupTable(*arguments, lambda _name, _group: None).content.entries
        assert [known[name].to_json() for name in found.entries] == [g.to_json() for g in found.entries.values()]
    for group in filter(None, pushed):
        assert all(0 <= number < 1 << 32 for number in (group.max_attempts, group.retry_queues))
