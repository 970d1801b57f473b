"""What clients of name servers take from routes, and what they tell brokers of themselves; no socket."""

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from remoting_rig import (
    BROKER,
    NAMES,
    NUMBERS,
    TEXTS,
    Rig,
    record,
    run,
)

from ferromq._proto import messages as pb
from ferromq.core.remoting import membership, sends
from ferromq.core.remoting.calls import version_name
from ferromq.core.requests import Join, resource
from ferromq.core.routes import Route
from ferromq.errors import (
    FerromqError,
    ServerError,
    TopicNotFound,
)
from ferromq.protocol.codes import RequestCode

# --- routes --------------------------------------------------------------------------------------------------


def route_of(rig: Rig, content: Any) -> Route:
    """Return the route of an answer."""
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    rig.links.answers[RequestCode.GET_ROUTEINFO_BY_TOPIC] = (0, None, {}, body)
    request = pb.QueryRouteRequest(topic=resource("orders"))
    response = rig.call("QueryRoute", request, pb.QueryRouteResponse, NAMES)
    return Route.read("orders", response.message_queues)


def broker(name: str, **addresses: str) -> dict[str, Any]:
    """Return a broker of a route; addresses by id, as `_0`."""
    brokers = {number.removeprefix("_"): address for number, address in addresses.items()}
    return {"brokerName": name, "cluster": "c", "brokerAddrs": brokers}


def queues(name: str, read: int = 2, write: int = 2, perm: int = 6) -> dict[str, Any]:
    """Return the queues of a broker."""
    return {"brokerName": name, "readQueueNums": read, "writeQueueNums": write, "perm": perm, "topicSysFlag": 0}


def places(found: Any) -> list[tuple[str, int, str]]:
    """Return the broker, the id and the address of queues."""
    return [(queue.broker_name, queue.queue_id, queue.endpoint) for queue in found]


def test_queues_are_in_the_order_of_their_brokers_names() -> None:
    """Message groups count in this order; a master goes before its slaves."""
    rig = Rig()
    brokers = [broker("b", _0="10.0.0.2:1", _1="10.0.0.3:1"), broker("a", _0="10.0.0.1:1")]
    route = route_of(rig, {"brokerDatas": brokers, "queueDatas": [queues("b", 1, 1), queues("a", 3, 2)]})
    assert places(route.in_order) == [("a", 0, "10.0.0.1:1"), ("a", 1, "10.0.0.1:1"), ("b", 0, "10.0.0.2:1")]
    assert places(route.readable_queues)[2] == ("a", 2, "10.0.0.1:1")


def test_a_slave_is_read_and_not_written() -> None:
    """The one with the lowest id, while the master is in no route."""
    rig = Rig()
    brokers = [broker("a", _2="10.0.0.3:1", _1="10.0.0.2:1")]
    route = route_of(rig, {"brokerDatas": brokers, "queueDatas": [queues("a", 1, 1)]})
    assert (places(route.writable), places(route.readable_queues)) == ([], [("a", 0, "10.0.0.2:1")])


def test_an_order_configuration_keeps_the_places_of_message_groups() -> None:
    """Queues beyond it are only read; those of a broker that is away wait at its last address."""
    rig = Rig()
    brokers = [broker("a", _0="10.0.0.1:1"), broker("b", _0="10.0.0.2:1")]
    content = {"brokerDatas": brokers, "queueDatas": [queues("a"), queues("b")], "orderTopicConf": "a:1;b:1"}
    whole = route_of(rig, content)
    assert places(whole.in_order) == [("a", 0, "10.0.0.1:1"), ("b", 0, "10.0.0.2:1")]
    assert len(whole.readable_queues) == 4
    part = route_of(rig, {**content, "brokerDatas": brokers[:1], "queueDatas": [queues("a")]})
    assert places(part.in_order) == places(whole.in_order)
    assert {queue.broker_name for queue in part.readable_queues} == {"a"}
    with pytest.raises(ServerError, match="the broker z is in the order configuration of orders"):
        route_of(rig, {**content, "orderTopicConf": "a:1;z:1"})


@given(
    st.binary(max_size=60)
    | st.recursive(
        st.none() | st.booleans() | NUMBERS | TEXTS,
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "queueDatas",
                        "brokerDatas",
                        "brokerName",
                        "brokerAddrs",
                        "perm",
                        "0",
                        "orderTopicConf",
                        "readQueueNums",
                        "writeQueueNums",
                    ]
                ),
                inner,
                max_size=5,
            )
        ),
    ).map(lambda value: json.dumps(value).encode())
)
def test_any_answer_is_a_route_or_an_error_that_names_the_name_server(body: bytes) -> None:
    """A wrong one does not end the client."""
    try:
        route_of(Rig(), body)
    except FerromqError as error:
        text = str(error)
    else:
        return
    assert "name server" in text or "order configuration" in text


def test_topics_without_brokers_are_asked_for_again() -> None:
    """A name server that has just started knows no brokers yet; one that knows brokers is right about the topic."""
    for table, error in (({}, ServerError), ({"a": {}}, TopicNotFound)):
        clusters = json.dumps({"brokerAddrTable": table}).encode()
        rig = Rig({105: (17, "none", {}, b""), 106: (0, None, {}, clusters)})
        with pytest.raises(error):
            rig.call("QueryRoute", pb.QueryRouteRequest(topic=resource("orders")), pb.QueryRouteResponse, NAMES)


# --- membership ----------------------------------------------------------------------------------------------


def test_a_consumer_takes_the_settings_of_its_group() -> None:
    """Order, attempts and delays; brokers before 5.0 do not tell them."""
    told = pb.Settings(subscription=pb.Subscription(group=resource("billing")))
    policy = {"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": 10, "max": 99, "multiplier": 3}}
    config = {"consumeMessageOrderly": True, "retryMaxTimes": 4, "groupRetryPolicy": policy}
    rig = Rig({RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: (0, None, {}, json.dumps(config).encode())}, told)
    for moment in (0.0, 129.9, 130.1):
        rig.now = moment or rig.now
        run(rig.bridge.join(Join(BROKER, 3.0)))
    settings, _again = rig.told
    assert (settings.subscription.fifo, settings.backoff_policy.max_attempts) == (True, 5)
    assert settings.backoff_policy.exponential_backoff.multiplier == 3
    old = Rig({RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: (3, "unknown", {}, b"")}, told)
    run(old.bridge.join(Join(BROKER, 3.0)))
    assert old.told[0].backoff_policy.max_attempts == 17


@given(
    st.binary(max_size=40)
    | st.dictionaries(
        st.sampled_from(["retryMaxTimes", "consumeMessageOrderly", "groupRetryPolicy"]),
        TEXTS | NUMBERS | st.none() | st.dictionaries(st.sampled_from(["type", "customizedRetryPolicy"]), NUMBERS),
    ).map(lambda value: json.dumps(value).encode())
)
@example(b'{"retryMaxTimes":"2200000000"}')
def test_any_configuration_of_a_group_is_read_or_refused(config: bytes) -> None:
    """With the broker's address."""
    try:
        membership.settings_of(pb.Settings(), config, BROKER)
    except ServerError as error:
        text = str(error)
    else:
        return
    assert BROKER in text


def test_a_heartbeat_has_what_java_brokers_read() -> None:
    """Subscriptions with the hashes of their tags; topics whose half messages can be asked about."""
    wanted = pb.FilterExpression(type=pb.FilterType.TAG, expression="a || b")
    entry = pb.SubscriptionEntry(topic=resource("orders"), expression=wanted)
    consumer = pb.Settings(subscription=pb.Subscription(group=resource("billing"), subscriptions=[entry]))
    body = json.loads(membership.heartbeat("me", consumer, ()))
    (data,) = body["consumerDataSet"]
    assert (body["clientID"], data["groupName"]) == ("me", "billing")
    (subscription,) = data["subscriptionDataSet"]
    assert (subscription["tagsSet"], subscription["codeSet"]) == (["a", "b"], [97, 98])
    producer = pb.Settings(publishing=pb.Publishing())
    groups = json.loads(membership.heartbeat("me", producer, ["orders"]))["producerDataSet"]
    assert [group["groupName"] for group in groups] == [sends.PRODUCERS, "orders"]
    assert [fields["producerGroup"] for fields in membership.farewells("me", producer, ["orders"])] == [
        sends.PRODUCERS,
        "orders",
    ]


def test_a_check_back_names_the_half_message() -> None:
    """By its real topic and its offsets."""
    fields = {"tranStateTableOffset": "5", "commitLogOffset": "16", "transactionId": "tx"}
    asked = membership.check_back(
        fields, record(topic="RMQ_SYS_TRANS_HALF_TOPIC", properties={"REAL_TOPIC": "orders"}), BROKER
    )
    assert (asked.message.topic.name, asked.transaction_id) == ("orders", "5.16.tx")


@given(st.binary(max_size=40), st.dictionaries(st.sampled_from(["tranStateTableOffset", "commitLogOffset"]), TEXTS))
def test_any_check_back_is_read_or_refused(body: bytes, fields: dict[str, str]) -> None:
    """With the broker's address."""
    with pytest.raises(ServerError, match=BROKER):
        membership.check_back(fields, body, BROKER)


@pytest.mark.parametrize(
    ("number", "name"),
    [
        (513, "5.5.0"),
        (412, "5.0.0"),
        (409, "4.9.8"),
        (213, "4.0.0"),
        (5, "a version before 4.0"),
        (None, "an unknown version"),
    ],
)
def test_versions_have_the_names_of_rocketmqs_releases(number: int | None, name: str) -> None:
    """Each patch release has two numbers."""
    assert version_name(number) == name
