"""Attributes of topics and groups, and retry policies of groups, as RocketMQ has them."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferromq.broker.metadata.attributes import MESSAGE_TYPES, OF_GROUPS, OF_TOPICS, altered
from ferromq.broker.metadata.groups import GroupConfig, GroupTable
from ferromq.broker.metadata.topics import TopicConfig, TopicTable
from ferromq.config.broker import BrokerConfig
from ferromq.errors import RequestError
from ferromq.protocol.retry_policy import BACKOFF_MS, Customized, Exponential, parse


def topics(directory: Path, **options: Any) -> TopicTable:
    """Return the topics of the broker in *directory*."""
    config = BrokerConfig.from_options(options)
    return TopicTable(lambda: config, directory, lambda: 0, lambda *_: None, lambda *_: None)


@pytest.mark.parametrize("kind", MESSAGE_TYPES)
def test_a_topic_has_the_type_it_was_given(tmp_path: Path, kind: str) -> None:
    """Also after a restart, and it may become another one, as in RocketMQ."""
    table = topics(tmp_path, mixed_topics=True)
    table.put(TopicConfig("t", 1, 1), {"message.type": kind}, "peer")
    found = topics(tmp_path).get("t")
    assert found is not None
    assert (found.message_type, found.attributes) == (kind, {"message.type": kind})
    assert table.put(TopicConfig("t", 1, 1), {"message.type": "DELAY"}, "peer").message_type == "DELAY"


def test_a_mixed_topic_is_made_only_where_the_options_say_so(tmp_path: Path) -> None:
    """The error names the option; a topic from a Java broker is served."""
    with pytest.raises(RequestError, match="enableMixedMessageType"):
        topics(tmp_path).put(TopicConfig("t", 1, 1), {"message.type": "MIXED"}, "peer")
    topics(tmp_path, mixed_topics=True).put(TopicConfig("t", 1, 1), {"message.type": "MIXED"}, "peer")
    found = topics(tmp_path).get("t")
    assert found is not None
    assert found.message_type == "MIXED"


@pytest.mark.parametrize(
    ("present", "changes", "named"),
    [
        (None, {"colour": "red"}, "colour"),
        (None, {"message.type": "LETTER"}, "NORMAL, FIFO"),
        (None, {"message.type": "fifo"}, "fifo"),
        (None, {"reserve.time": "-2"}, "from -1 to 9223372036854775807"),
        (None, {"reserve.time": "9223372036854775808"}, "reserve.time"),
        (None, {"reserve.time": "1_0"}, "reserve.time"),
        (None, {"lite.topic.expiration": "43201"}, "43200"),
        (None, {"queue.type": "BatchCQ"}, "SimpleCQ"),
        (None, {"message.type": None}, "at creation"),
        ({}, {"message.type": None}, "not set"),
        ({}, {"queue.type": "SimpleCQ"}, "cannot change"),
        ({"queue.type": "SimpleCQ"}, {"queue.type": None}, "cannot change"),
    ],
)
def test_a_change_rocketmq_refuses_is_refused(
    present: dict[str, str] | None, changes: dict[str, str | None], named: str
) -> None:
    """The error names the attribute and its valid values."""
    with pytest.raises(RequestError, match=named):
        altered(OF_TOPICS, present, changes)


def test_what_a_newer_broker_wrote_stays() -> None:
    """An unknown attribute is kept; a fixed one can be given again unchanged."""
    present = {"newer": "x", "queue.type": "SimpleCQ"}
    changes = {"queue.type": "SimpleCQ", "reserve.time": "+5"}
    assert altered(OF_TOPICS, present, changes) == {**present, "reserve.time": "+5"}


def test_a_group_has_rocketmqs_attributes(tmp_path: Path) -> None:
    """The priority factor is one of them; unknown ones are refused."""
    config = BrokerConfig()
    table = GroupTable(lambda: config, tmp_path, lambda: 0, lambda *_: None)
    assert table.put(GroupConfig("g"), {}, "peer").priority_factor == 100
    assert table.put(GroupConfig("g"), {"priority.factor": "30"}, "peer").priority_factor == 30
    for changes in ({"priority.factor": "101"}, {"lite.sub.model": "Other"}, {"a": "b"}):
        with pytest.raises(RequestError, match=next(iter(changes))):
            table.put(GroupConfig("g"), changes, "peer")
    assert table.put(GroupConfig("g"), {"lite.sub.reset.offset.exclusive": "TRUE"}, "peer").attributes == {
        "priority.factor": "30",
        "lite.sub.reset.offset.exclusive": "TRUE",
    }


@given(st.text())
def test_any_text_is_allowed_or_not(text: str) -> None:
    """A number is one Java's parseLong takes; nothing raises."""
    for attribute in [*OF_TOPICS.values(), *OF_GROUPS.values()]:
        attribute.allows(text)
    if OF_TOPICS["reserve.time"].allows(text):
        assert -1 <= int(text) < 1 << 63


def test_a_retry_policy_is_read_as_java_writes_it() -> None:
    """Absent fields have Java's defaults; the kind that is not selected is ignored."""
    assert parse({}) == Customized(BACKOFF_MS)
    assert parse({"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1, 2]}}) == Customized((1, 2))
    exponential = {"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": 100, "max": 900, "multiplier": 3}}
    assert parse(exponential) == Exponential(100, 900, 3)
    assert parse({"type": "EXPONENTIAL", "customizedRetryPolicy": {"next": [1]}}) == Exponential(5_000, 7_200_000, 2)


def test_delays_are_rocketmqs() -> None:
    """The first retry after 10 s, the last after 2 h; powers end at the limit, and with longs."""
    assert [Customized().delay_ms(retries) for retries in (-1, 0, 1, 15, 99)] == [
        10_000,
        10_000,
        30_000,
        7_200_000,
        7_200_000,
    ]
    assert Customized((7,)).delay_ms(0) == 7
    assert [Exponential(100, 900, 3).delay_ms(retries) for retries in (0, 1, 2, 40)] == [100, 300, 900, 900]


@pytest.mark.parametrize(
    "policy",
    [
        {"type": "LINEAR"},
        {"customizedRetryPolicy": {"next": [-1]}},
        {"customizedRetryPolicy": {"next": [1.5]}},
        {"exponentialRetryPolicy": {"initial": 1 << 62}},
        {"exponentialRetryPolicy": {"multiplier": "2"}},
    ],
)
def test_an_invalid_retry_policy_is_refused(policy: dict[str, Any]) -> None:
    """The error names it."""
    with pytest.raises(ValueError, match="groupRetryPolicy"):
        parse(policy)
