"""Routes and their JSON, as RocketMQ reads and writes them."""

import contextlib
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ferromq.protocol import java_json
from ferromq.protocol.route import BrokerData, DataVersion, Permission, QueueData, TopicRoute

NAMES = st.text(max_size=6)
QUEUES = st.builds(
    QueueData, NAMES, st.integers(0, 1024), st.integers(0, 1024), st.integers(0, 7).map(Permission), st.integers(0, 9)
)
BROKERS = st.builds(
    BrokerData, NAMES, NAMES, st.dictionaries(st.integers(0, 9), NAMES, max_size=3), st.none() | NAMES, st.booleans()
)
ROUTES = st.builds(
    TopicRoute,
    st.lists(QUEUES, max_size=3).map(tuple),
    st.lists(BROKERS, max_size=3).map(tuple),
    st.dictionaries(NAMES, st.lists(NAMES, max_size=2).map(tuple), max_size=2),
    st.none() | NAMES,
)

# What fastjson 1.2 writes for a client that does not ask for standard JSON: integer keys without quotes.
FROM_JAVA = (
    b'{"brokerDatas":[{"brokerAddrs":{0:"10.0.0.1:10911",1:"10.0.0.2:10911"},"brokerName":"broker-a",'
    b'"cluster":"DefaultCluster","enableActingMaster":false}],"filterServerTable":{},'
    b'"queueDatas":[{"brokerName":"broker-a","perm":6,"readQueueNums":8,"topicSysFlag":0,"writeQueueNums":4}]}'
)


# The time to generate a route is no property of routes.
@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(ROUTES)
def test_a_route_survives_encoding(route: TopicRoute) -> None:
    """Decoding returns the encoded route, in both forms; the first form is standard JSON."""
    encoded = route.encode()
    assert TopicRoute.decode(encoded) == route
    assert TopicRoute.decode(route.encode_legacy()) == route
    assert isinstance(json.loads(encoded), dict)


def test_the_old_form_is_what_java_wrote() -> None:
    """Byte for byte: clients before 4.9.4 read it with its unquoted broker ids."""
    assert TopicRoute.decode(FROM_JAVA).encode_legacy() == FROM_JAVA


def test_javas_unquoted_keys_are_read() -> None:
    """Broker ids come as bare integers from older name servers."""
    route = TopicRoute.decode(FROM_JAVA)
    assert route.brokers[0].addresses == {0: "10.0.0.1:10911", 1: "10.0.0.2:10911"}
    assert route.brokers[0].master == "10.0.0.1:10911"
    assert route.queues == (QueueData("broker-a", 8, 4, Permission.READ | Permission.WRITE),)


def test_digits_in_a_string_are_no_key() -> None:
    """Only keys are quoted; similar text stays."""
    assert java_json.loads(b'{1:"{2:3, 4:5}", "a\\"{6:7}":[8,{9:10}]}') == {
        "1": "{2:3, 4:5}",
        'a"{6:7}': [8, {"9": 10}],
    }


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_bytes_that_are_no_route_are_a_value_error(data: bytes) -> None:
    """Nothing else comes out of the decoder."""
    with contextlib.suppress(ValueError):
        TopicRoute.decode(data)


@pytest.mark.parametrize(
    "data",
    [
        b"[" * 100_000,
        b'{"queueDatas":[{}]}',
        b'{"queueDatas":7}',
        b'{"queueDatas":[null]}',
        b'{"brokerDatas":[{"brokerName":"a","brokerAddrs":{"x":"y"}}]}',
        b"[]",
    ],
)
def test_a_wrong_shape_is_a_value_error(data: bytes) -> None:
    """Missing fields, other types and deep nesting have one error."""
    with pytest.raises(ValueError, match=r"."):
        TopicRoute.decode(data)


def test_equal_versions_are_equal_after_the_wire() -> None:
    """A version is compared by value, whatever the order of its fields."""
    version = DataVersion(5, 1).next(7)
    assert DataVersion.from_json(json.loads(json.dumps(version.to_json()))) == version == DataVersion(7, 2)
