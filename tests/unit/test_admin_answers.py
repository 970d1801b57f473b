"""Answers of brokers in any form: an administrator raises a `FerromqError`, and nothing else."""

import contextlib
import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ferromq
from ferromq.admin.metadata import Metadata
from ferromq.protocol import java_json
from ferromq.protocol.codes import RequestCode

CLUSTER = {
    "brokerAddrTable": {"a": {"brokerName": "a", "cluster": "c", "brokerAddrs": {"0": "h:1"}}},
    "clusterAddrTable": {"c": ["a"]},
}
ROUTE = {
    "queueDatas": [{"brokerName": "a", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6, "topicSysFlag": 0}],
    "brokerDatas": [CLUSTER["brokerAddrTable"]["a"]],  # type: ignore[index]
}
QUEUE = '{"brokerName":"a","queueId":0,"topic":"t"}'
FIELDS = (
    *("offsetTable", "consumeStatsList", "consumeTimeSpanSet", "groupList", "topicList", "subscriptionGroupTable"),
    *("connectionSet", "subscriptionTable", "table", "clientId", "version", "g", "groupRetryPolicy", "retryMaxTimes"),
    *("readQueueNums", "writeQueueNums", "perm", "attributes", "messageQueue", "delayTime", QUEUE),
    *("minOffset", "maxOffset", "lastUpdateTimestamp", "brokerOffset", "consumerOffset", "putTps"),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 1 << 70) | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=4),
    max_leaves=10,
)
OBJECTS = st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=5)
BROKER_TABLE = st.dictionaries(st.just("a"), OBJECTS | JSON | st.just(CLUSTER["brokerAddrTable"]["a"]), max_size=1)  # type: ignore[index]
SHAPED = st.fixed_dictionaries(
    {},
    optional={
        "subscriptionGroupTable": st.fixed_dictionaries({"g": OBJECTS | JSON}),
        "connectionSet": st.lists(OBJECTS, max_size=2),
        "subscriptionTable": st.dictionaries(st.just("t"), OBJECTS | JSON),
        "offsetTable": st.dictionaries(st.just(QUEUE) | st.just("t@g"), OBJECTS | JSON),
        "consumeStatsList": st.lists(st.dictionaries(st.just("g"), st.lists(OBJECTS, max_size=1)), max_size=2),
        "topicConfigTable": st.dictionaries(st.just("t"), OBJECTS | JSON),
        "topicList": st.lists(JSON, max_size=2),
        "table": OBJECTS | JSON,
        "clusterAddrTable": st.dictionaries(st.just("c"), st.just(["a"]) | JSON) | JSON,
        "brokerAddrTable": BROKER_TABLE | JSON,
        "queueDatas": st.just(ROUTE["queueDatas"]) | JSON,
        "brokerDatas": st.just(ROUTE["brokerDatas"]) | JSON,
        "readQueueNums": JSON,
        "writeQueueNums": JSON,
        "perm": JSON,
        "attributes": JSON,
    },
)
"""What brokers answer, with anything in it."""
BODIES = st.binary(max_size=60) | (SHAPED | JSON | OBJECTS).map(lambda value: repr_of(value).encode())
HEADERS = st.dictionaries(st.sampled_from(["offset", "nextBeginOffset"]), st.text("0123456789-x", max_size=4))
METADATA = Metadata(
    topics={"t": {"*": {"readQueueNums": 1, "writeQueueNums": 1, "perm": 6, "attributes": {"a": "b"}}}},
    groups={"g": {"*": {"retryMaxTimes": 1, "attributes": {"a": "b"}}}},
    broker_options={"*": {"region": "x"}},
    offsets={"g": {"t": {"a": {"0": 1}}}},
)
VERBS: dict[str, Callable[[ferromq.Admin], Any]] = {
    "topics": lambda admin: admin.topics(system=False),
    "describe_topic": lambda admin: admin.describe_topic("t"),
    "groups": lambda admin: admin.groups(),
    "retire_broker": lambda admin: admin.retire_broker("a", force=True),
    "export_metadata": lambda admin: admin.export_metadata(offsets=True).to_json(),
    "import_metadata": lambda admin: admin.import_metadata(METADATA, offsets=True),
    "describe_group": lambda admin: admin.describe_group("g"),
    "members": lambda admin: admin.members("g"),
    "lag": lambda admin: admin.lag("g"),
    "lags": lambda admin: admin.lags(),
    "reset": lambda admin: admin.reset_offsets("g", "t", "begin"),
    "reset_queue": lambda admin: admin.reset_offsets("g", "t", offset=0, queue_id=0),
    "skip": lambda admin: admin.skip_backlog("g"),
    "cluster": lambda admin: admin.cluster(),
    "broker_config": lambda admin: admin.broker_config("a"),
    "name_server_config": lambda admin: admin.name_server_config(),
    "query_by_offset": lambda admin: admin.query_by_offset("t", 0, 0),
    "query_by_key": lambda admin: admin.query_by_key("t", "k"),
    "explain": lambda admin: admin.explain("t", "m"),
    "browse": lambda admin: list(admin.browse("t")),
    "delete_topic": lambda admin: admin.delete_topic("t"),
    "delete_group": lambda admin: admin.delete_group("g"),
    "create_topic": lambda admin: admin.create_topic("t"),
    "create_group": lambda admin: admin.create_group("g"),
    "alter_topic": lambda admin: admin.alter_topic("t", queues=2),
    "alter_group": lambda admin: admin.alter_group("g", retries=2),
    "take_out_broker": lambda admin: admin.take_out_broker("b"),
    "order_configurations": lambda admin: admin.order_configurations(),
}


def repr_of(value: Any) -> str:
    """Return JSON as Java writes it, with objects as keys."""
    return json.dumps(value).replace(json.dumps(QUEUE), QUEUE)


class Servers:
    """Stands for an administrator's client: the name server answers as it should or anything, brokers anything."""

    def __init__(self, bodies: list[bytes], header: Mapping[str, str], *, has_names: bool = True) -> None:
        self.bodies = bodies
        self.header = header
        self.has_names = has_names
        self.asked = 0

    def call(self, _address: str, code: int, *_: Any, **__: Any) -> tuple[int, str | None, Mapping[str, str], bytes]:
        """Answer the next body."""
        known = {RequestCode.GET_BROKER_CLUSTER_INFO: CLUSTER, RequestCode.GET_ROUTEINFO_BY_TOPIC: ROUTE}
        if code in known and self.has_names:
            return 0, None, {}, java_json.dumps(known[RequestCode(code)])
        if code == RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER and self.has_names:
            return 0, None, {}, b'{"topicList":["t"]}'
        self.asked += 1
        return 0, None, self.header, self.bodies[self.asked % len(self.bodies)]

    def close(self) -> None:
        """Do nothing."""


@pytest.mark.parametrize("verb", VERBS)
@given(bodies=st.lists(BODIES, min_size=1, max_size=4), header=HEADERS, has_names=st.booleans())
def test_any_answer_is_a_result_or_an_error_of_ours(
    verb: str, bodies: list[bytes], header: dict[str, str], *, has_names: bool
) -> None:
    """Nothing else is raised."""
    admin = ferromq.Admin("n:1")
    client: Any = Servers(bodies, header, has_names=has_names)
    admin._calls._client = client
    with contextlib.suppress(ferromq.FerromqError):
        VERBS[verb](admin)


def test_a_pull_without_its_next_offset_is_an_error_that_names_the_broker() -> None:
    """Of an answer of success."""
    admin = ferromq.Admin("n:1")
    row = f'{{"offsetTable":{{{QUEUE}:{{"minOffset":0,"maxOffset":1,"lastUpdateTimestamp":0}}}}}}'.encode()
    client: Any = Servers([b"", row], {})
    admin._calls._client = client
    with pytest.raises(ferromq.ServerError, match="the fields of a pull at h:1 are malformed"):
        admin.query_by_offset("t", 0, 0)
