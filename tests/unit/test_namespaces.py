"""Whole names of topics and groups in a namespace."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferromq._ferromq import MessageView, decode_received
from ferromq._proto import messages as pb
from ferromq.core.pull_plans import NoLease
from ferromq.core.subscriptions import Subscription, filters_of
from ferromq.errors import IllegalName
from ferromq.protocol import naming

NAMES = st.text("abC0_-|%", min_size=1, max_size=8)


@pytest.mark.parametrize(
    ("name", "whole"),
    [
        ("orders", "shop%orders"),
        ("%RETRY%billing", "%RETRY%shop%billing"),
        ("%DLQ%billing", "%DLQ%shop%billing"),
        ("%DLQ%shop%billing", "%DLQ%shop%billing"),
        ("shop%orders", "shop%orders"),
        ("SELF_TEST_TOPIC", "SELF_TEST_TOPIC"),
        ("rmq_sys_wheel_timer", "rmq_sys_wheel_timer"),
        ("CID_RMQ_SYS_TRANS", "CID_RMQ_SYS_TRANS"),
    ],
)
def test_a_name_gets_its_namespace_once_and_behind_the_prefixes(name: str, whole: str) -> None:
    """As in RocketMQ's NamespaceUtil; its own names are in none."""
    assert naming.in_namespace("shop", name) == whole
    assert naming.in_namespace("", name) == name


@given(NAMES)
def test_a_name_loses_the_namespace_that_it_was_given(name: str) -> None:
    """Unless it had it before."""
    whole = naming.in_namespace("shop", name)
    assert naming.without_namespace("shop", whole) == naming.without_namespace("shop", name)
    assert naming.without_namespace("depot", whole) == whole


@pytest.mark.parametrize("name", ["a%b", "a b", "a.b", "rmq_sys_a", "CID_RMQ_SYS_a", "a" * 119, 7, None])
def test_a_namespace_that_cannot_be_is_refused(name: str) -> None:
    """With the error of an illegal topic, which names the rule."""
    with pytest.raises(IllegalName, match="the namespace name"):
        naming.check_namespace(name)


def test_the_limit_of_a_name_counts_its_namespace() -> None:
    """Brokers know the whole name."""
    naming.check_topic("o" * 122, "shop")
    with pytest.raises(IllegalName, match="128 characters, the limit is 127"):
        naming.check_topic("o" * 123, "shop")
    naming.check_group("g" * 115, "shop")
    with pytest.raises(IllegalName, match="121 characters, the limit is 120"):
        naming.check_group("g" * 116, "shop")
    with pytest.raises(IllegalName, match="the topic name is empty"):
        naming.check_topic("", "shop")


def received(topic: str, namespace: str) -> MessageView:
    """Return a message as a client of a namespace receives it."""
    answer = pb.ReceiveMessageResponse(message=pb.Message(topic=pb.Resource(name=topic), body=b"x"))
    return decode_received(
        [answer.SerializeToString()], packed=False, lease=NoLease(), endpoint="", namespace=namespace
    )[1][0]


@pytest.mark.parametrize("topic", ["shop%b", "b"])
def test_a_message_has_its_topic_from_either_server(topic: str) -> None:
    """RocketMQ's proxy takes the namespace off the topic of a message, ferromq does not."""
    subscription = Subscription("billing", filters_of(["a", "b"], "*", "shop"), namespace="shop")
    assert subscription.topic_of(received(topic, "shop")) == "b"


@given(NAMES, st.sampled_from(["", "shop", "a"]))
def test_a_received_message_names_its_topic_as_the_other_names_are(name: str, namespace: str) -> None:
    """The core and the control plane have one rule."""
    for topic in (name, naming.in_namespace(namespace, name)):
        message = received(topic, namespace)
        assert message.topic == naming.without_namespace(namespace, topic)
        assert f'topic="{message.topic}"' in repr(message)


def test_settings_name_group_and_topics_with_the_namespace() -> None:
    """The subscription itself names them without it."""
    subscription = Subscription("billing", filters_of(["a", "b"], "*", "shop"), namespace="shop")
    settings = subscription.settings()
    assert settings.group.name == "shop%billing"
    assert [entry.topic.name for entry in settings.subscriptions] == ["shop%a", "shop%b"]
    assert subscription.topics == "a,b"
