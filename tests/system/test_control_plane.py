"""The broker's cold requests over sockets: routes, clients, queries, topics."""

import json
import queue
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

import ferromq
from ferromq._ferromq import RemotingClient, decode_records
from ferromq._proto import messages as pb
from ferromq.broker.cluster import route_cache
from ferromq.broker.controller import BrokerController
from ferromq.broker.metadata.groups import GroupConfig
from ferromq.config.broker import BrokerConfig
from ferromq.protocol import java_json, naming

QUERY_MESSAGE, UPDATE_TOPIC, VIEW_MESSAGE, REGISTER, UPDATE_GROUP, TOPICS = 12, 17, 33, 103, 200, 206
SUCCESS, SYSTEM_ERROR, NOT_FOUND, INVALID = 0, 1, 22, 29
Eventually = Callable[[Callable[[], bool]], bool]
CLIENT = (("x-mq-client-id", "me@here"),)


@pytest.fixture
def mq(tmp_path: Path) -> Iterator[ferromq.Embedded]:
    """Run an embedded broker of its own."""
    with ferromq.embedded(tmp_path / "store") as embedded:
        yield embedded


@pytest.fixture
def remoting() -> Iterator[RemotingClient]:
    """Return a client of the remoting protocol."""
    client = RemotingClient()
    yield client
    client.close()


class Rpc:
    """Calls a method of the gRPC service with messages of protobuf."""

    def __init__(self, endpoint: str) -> None:
        self.channel = grpc.insecure_channel(endpoint)

    def __call__(self, method: str, request: Any, metadata: Any = CLIENT) -> Any:
        """Call *method* and return its decoded response."""
        call = self.channel.unary_unary(f"/apache.rocketmq.v2.MessagingService/{method}")
        answer = call(request.SerializeToString(), metadata=metadata, timeout=10)
        return getattr(pb, f"{method}Response").FromString(answer)


@pytest.fixture
def rpc(mq: ferromq.Embedded) -> Iterator[Rpc]:
    """Return a gRPC client of the broker."""
    client = Rpc(mq.endpoint)
    yield client
    client.channel.close()


def topic(name: str) -> pb.Resource:
    """Return a resource by its name; groups look the same."""
    return pb.Resource(name=name)


def broker(tmp_path: Path, name: str, *namesrv: str, **options: Any) -> BrokerController:
    """Run one more broker."""
    addresses = {"listen": "127.0.0.1:0", "grpc_listen": "127.0.0.1:0", "commit_log_file_size": 1 << 20}
    config = BrokerConfig.from_options(
        {"store": tmp_path / name, "name": name, "namesrv": namesrv, **addresses, **options}
    )
    return BrokerController(config)


# Routes


def test_a_route_has_every_queue_of_a_topic_created_on_first_use(mq: ferromq.Embedded, rpc: Rpc) -> None:
    """Queues 0 to 7, read and written, of any kind, at the broker's gRPC address; name servers know it, too."""
    response = rpc("QueryRoute", pb.QueryRouteRequest(topic=topic("orders")))
    assert response.status.code == pb.Code.OK
    assert [q.id for q in response.message_queues] == list(range(8))
    for message_queue in response.message_queues:
        assert message_queue.permission == pb.Permission.READ_WRITE
        assert len(message_queue.accept_message_types) == 4
        address = message_queue.broker.endpoints.addresses[0]
        assert f"{address.host}:{address.port}" == mq.endpoint
    assert mq.name_server.routes.lookup("orders") is not None


@pytest.mark.parametrize("name", ["with space", "", "a" * 128])
def test_the_route_of_an_illegal_name_is_refused(rpc: Rpc, name: str) -> None:
    """With the code for it."""
    assert rpc("QueryRoute", pb.QueryRouteRequest(topic=topic(name))).status.code == pb.Code.ILLEGAL_TOPIC


@pytest.mark.parametrize("name", ["rmq_sys_wheel_timer", "SCHEDULE_TOPIC_XXXX", "TBW102", "broker-a", "DefaultCluster"])
def test_the_route_of_a_system_topic_is_not_given(mq: ferromq.Embedded, rpc: Rpc, name: str) -> None:
    """The text names the system; no topic is created under its name."""
    status = rpc("QueryRoute", pb.QueryRouteRequest(topic=topic(name))).status
    assert (status.code, "belongs to" in status.message) == (pb.Code.ILLEGAL_TOPIC, True), status.message
    assert mq.broker.topics.get(name) is None
    with mq.producer() as producer, pytest.raises(ferromq.IllegalName, match=name):
        producer.send(name, b"x")


def test_a_topic_of_another_brokers_own_is_not_given(mq: ferromq.Embedded, rpc: Rpc, tmp_path: Path) -> None:
    """Each broker registers one under its name and one under its cluster's."""
    other = broker(tmp_path, "broker-b", mq.namesrv, cluster="other")
    try:
        for name in ("broker-b", "other"):
            assert rpc("QueryRoute", pb.QueryRouteRequest(topic=topic(name))).status.code == pb.Code.ILLEGAL_TOPIC
    finally:
        other.close()


def test_with_auto_creation_off_the_error_says_what_to_do(tmp_path: Path) -> None:
    """It names the topic, the cause and the command."""
    with ferromq.embedded(tmp_path, auto_create_topics=False, auto_create_groups=False) as mq:
        rpc = Rpc(mq.endpoint)
        status = rpc("QueryRoute", pb.QueryRouteRequest(topic=topic("orders"))).status
        assert status.code == pb.Code.TOPIC_NOT_FOUND
        assert "orders" in status.message
        assert "auto_create_topics" in status.message
        assert "create_topic" in status.message
        status = rpc("Heartbeat", pb.HeartbeatRequest(client_type=3, group=topic("billing"))).status
        assert status.code == pb.Code.CONSUMER_GROUP_NOT_FOUND
        assert "auto_create_groups" in status.message
        assert "TBW102" not in mq.name_server.routes.topics()
        rpc.channel.close()


def test_a_route_reaches_over_brokers(
    mq: ferromq.Embedded, rpc: Rpc, tmp_path: Path, remoting: RemotingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each queue at its own broker; a broker without a gRPC address is left out."""
    monkeypatch.setattr(route_cache, "_RENEWAL_SECONDS", 10)
    other = broker(tmp_path, "broker-b", mq.namesrv, default_queues=2)
    try:
        fields = {"topic": "wide", "readQueueNums": "2", "writeQueueNums": "2"}
        assert remoting.call(other.address, UPDATE_TOPIC, fields)[0] == SUCCESS
        table = {"wide": {"readQueueNums": 3, "writeQueueNums": 3}, "s": {}}
        fields = {"brokerName": "old", "brokerAddr": "10.0.0.9:10911", "clusterName": "c", "brokerId": "0"}
        body = java_json.dumps({"topicConfigSerializeWrapper": {"topicConfigTable": table}})
        assert remoting.call(mq.namesrv, REGISTER, {**fields, "haServerAddr": "x"}, body)[0] == SUCCESS
        response = rpc("QueryRoute", pb.QueryRouteRequest(topic=topic("wide")))
        assert response.status.code == pb.Code.OK
        found = {(q.broker.name, q.broker.endpoints.addresses[0].port, q.id) for q in response.message_queues}
        port = int(other.endpoint.rpartition(":")[2])
        assert found == {("broker-b", port, 0), ("broker-b", port, 1)}
    finally:
        other.close()
    status = rpc("QueryRoute", pb.QueryRouteRequest(topic=topic("wide"))).status
    assert (status.code, "broker-b is away" in status.message) == (pb.Code.INTERNAL_SERVER_ERROR, True)


def test_a_broker_works_while_its_name_server_does_not(tmp_path: Path) -> None:
    """It starts, creates topics and answers routes for itself; another name server in the list gets all of it."""
    with ferromq.embedded(tmp_path / "names") as mq:
        alone = broker(tmp_path, "alone", "127.0.0.1:1", mq.namesrv)
        try:
            rpc = Rpc(alone.endpoint)
            response = rpc("QueryRoute", pb.QueryRouteRequest(topic=topic("orders")))
            assert {q.broker.name for q in response.message_queues} == {"alone"}
            rpc.channel.close()
            route = mq.name_server.routes.lookup("orders")
            assert route is not None
            assert [q.broker_name for q in route.queues] == ["alone"]
        finally:
            alone.close()
        assert mq.name_server.routes.lookup("orders") is None


@pytest.mark.parametrize("allowed", [True, False])
def test_an_unknown_topic_while_no_name_server_answers(tmp_path: Path, *, allowed: bool) -> None:
    """It may be on other brokers, whatever is allowed here; the error names the cause."""
    alone = broker(tmp_path, "alone", "127.0.0.1:1", auto_create_topics=allowed)
    try:
        rpc = Rpc(alone.endpoint)
        status = rpc("QueryRoute", pb.QueryRouteRequest(topic=topic("orders"))).status
        assert status.code == pb.Code.INTERNAL_SERVER_ERROR
        assert "127.0.0.1:1" in status.message
        rpc.channel.close()
    finally:
        alone.close()


def test_a_broker_without_name_servers_answers_for_itself(tmp_path: Path) -> None:
    """A broker alone is enough for clients that know its address."""
    alone = broker(tmp_path, "alone")
    try:
        rpc = Rpc(alone.endpoint)
        assert len(rpc("QueryRoute", pb.QueryRouteRequest(topic=topic("orders"))).message_queues) == 8
        rpc.channel.close()
    finally:
        alone.close()


def test_an_assignment_has_all_readable_queues(mq: ferromq.Embedded, rpc: Rpc) -> None:
    """One for all queues, one each if the group consumes in order; an unreadable topic is refused."""
    request = pb.QueryAssignmentRequest(topic=topic("orders"), group=topic("billing"))
    response = rpc("QueryAssignment", request)
    assert [a.message_queue.id for a in response.assignments] == [-1]
    assert response.assignments[0].message_queue.permission == pb.Permission.READ_WRITE
    mq.broker.groups.put(GroupConfig("billing", fifo=True), {}, "test")
    response = rpc("QueryAssignment", request)
    assert [a.message_queue.id for a in response.assignments] == list(range(8))
    assert mq.broker.groups.get("billing") is not None
    admin = RemotingClient()
    admin.call(mq.remoting, UPDATE_TOPIC, {"topic": "closed", "perm": "2", "readQueueNums": "1", "writeQueueNums": "1"})
    admin.close()
    request = pb.QueryAssignmentRequest(topic=topic("closed"), group=topic("billing"))
    assert rpc("QueryAssignment", request).status.code == pb.Code.FORBIDDEN


# Clients


def telemetry(rpc: Rpc, *commands: pb.TelemetryCommand) -> list[pb.TelemetryCommand]:
    """Send *commands* over one stream and return the answer to each."""
    outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    call = rpc.channel.stream_stream("/apache.rocketmq.v2.MessagingService/Telemetry")
    answers = call(iter(outgoing.get, None), metadata=CLIENT, timeout=10)
    received = []
    for command in commands:
        outgoing.put(command.SerializeToString())
        received.append(pb.TelemetryCommand.FromString(next(answers)))
    outgoing.put(None)
    return received


def test_settings_are_answered_with_settings(rpc: Rpc) -> None:
    """With the settings that the official clients need, for producers and consumers."""
    publishing = pb.Settings(client_type=1, publishing=pb.Publishing(topics=[topic("orders")]))
    entry = pb.SubscriptionEntry(topic=topic("orders"))
    own = pb.RetryPolicy(max_attempts=9, customized_backoff=pb.CustomizedBackoff(next=[pb.Duration(seconds=99)]))
    wanted = pb.Subscription(group=topic("g"), subscriptions=[entry])
    subscription = pb.Settings(client_type=3, subscription=wanted, backoff_policy=own)
    answers = telemetry(rpc, pb.TelemetryCommand(settings=publishing), pb.TelemetryCommand(settings=subscription))
    assert [answer.status.code for answer in answers] == [pb.Code.OK, pb.Code.OK]
    producer, consumer = (answer.settings for answer in answers)
    assert producer.publishing.max_body_size == 4194304
    assert producer.publishing.validate_message_type
    assert [t.name for t in producer.publishing.topics] == ["orders"]
    assert producer.backoff_policy.max_attempts == 3
    assert producer.backoff_policy.exponential_backoff.initial.ToMilliseconds() == 10
    assert consumer.subscription.group.name == "g"
    assert (consumer.subscription.fifo, consumer.subscription.receive_batch_size) == (False, 32)
    assert consumer.subscription.long_polling_timeout.ToMilliseconds() == 20_000
    assert consumer.backoff_policy.max_attempts == 17
    delays = [delay.seconds for delay in consumer.backoff_policy.customized_backoff.next]
    assert delays[:6] == [1, 5, 10, 30, 60, 120]
    assert len(delays) == 18
    assert not consumer.metric.on


def filtered(expression: str) -> pb.Settings:
    """Return the settings of a consumer with an SQL92 filter."""
    by_sql = pb.FilterExpression(type=pb.FilterType.SQL, expression=expression)
    entry = pb.SubscriptionEntry(topic=topic("orders"), expression=by_sql)
    return pb.Settings(client_type=3, subscription=pb.Subscription(group=topic("g"), subscriptions=[entry]))


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        (pb.Settings(publishing=pb.Publishing(topics=[topic("with space")])), pb.Code.ILLEGAL_TOPIC),
        (pb.Settings(), pb.Code.BAD_REQUEST),
        (pb.Settings(client_type=1, subscription=pb.Subscription(group=topic("g"))), pb.Code.UNRECOGNIZED_CLIENT_TYPE),
        (pb.Settings(client_type=5, subscription=pb.Subscription(group=topic("g"))), pb.Code.UNRECOGNIZED_CLIENT_TYPE),
        (pb.Settings(client_type=2, subscription=pb.Subscription()), pb.Code.ILLEGAL_CONSUMER_GROUP),
        (filtered("price BETWEEN 3"), pb.Code.ILLEGAL_FILTER_EXPRESSION),
    ],
)
def test_invalid_settings_end_the_stream(rpc: Rpc, wrong: pb.Settings, code: int) -> None:
    """After a status with the reason, with the gRPC code of RocketMQ's proxy."""
    call = rpc.channel.stream_stream("/apache.rocketmq.v2.MessagingService/Telemetry")
    outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    outgoing.put(pb.TelemetryCommand(settings=wrong).SerializeToString())
    answers = call(iter(outgoing.get, None), metadata=CLIENT, timeout=10)
    assert pb.TelemetryCommand.FromString(next(answers)).status.code == code
    with pytest.raises(grpc.RpcError) as error:
        next(answers)
    assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    outgoing.put(None)


def test_a_heartbeat_needs_a_client_id(rpc: Rpc) -> None:
    """With one it is accepted, also before any settings: a restarted broker knows no clients."""
    request = pb.HeartbeatRequest(client_type=3, group=topic("billing"))
    assert rpc("Heartbeat", request).status.code == pb.Code.OK
    assert rpc("Heartbeat", request, metadata=()).status.code == pb.Code.CLIENT_ID_REQUIRED
    request = pb.HeartbeatRequest(client_type=3, group=topic("with space"))
    assert rpc("Heartbeat", request).status.code == pb.Code.ILLEGAL_CONSUMER_GROUP
    assert rpc("NotifyClientTermination", pb.NotifyClientTerminationRequest()).status.code == pb.Code.OK


def test_bytes_that_are_no_message_are_a_bad_request(rpc: Rpc) -> None:
    """Whatever the RPC."""
    for method in ("QueryRoute", "Heartbeat", "QueryAssignment", "QueryOffset", "GetOffset", "NotifyClientTermination"):
        call = rpc.channel.unary_unary(f"/apache.rocketmq.v2.MessagingService/{method}")
        answer = getattr(pb, f"{method}Response").FromString(call(b"\xff\xff\xff", metadata=CLIENT, timeout=10))
        assert answer.status.code == pb.Code.BAD_REQUEST


def test_an_rpc_of_a_later_version_is_unimplemented(rpc: Rpc) -> None:
    """Not a hanging call."""
    call = rpc.channel.unary_unary("/apache.rocketmq.v2.MessagingService/PopMessage")
    with pytest.raises(grpc.RpcError) as error:
        call(b"", metadata=CLIENT, timeout=10)
    assert error.value.code() == grpc.StatusCode.UNIMPLEMENTED


# Queries


def test_messages_are_found_by_key_and_by_offset(
    mq: ferromq.Embedded, remoting: RemotingClient, eventually: Eventually
) -> None:
    """Requests 12 and 33: records as they lie on disk, and answers without a match."""
    offsets = [mq.store.append("orders", 0, b"body %d" % n, {"KEYS": "k", "UNIQ_KEY": f"u{n}"})[1] for n in range(3)]
    assert eventually(lambda: mq.store.max_offset("orders", 0) == 3)
    fields = {"topic": "orders", "key": "k", "maxNum": "2", "beginTimestamp": "0", "endTimestamp": str(2**63 - 1)}
    code, _, header, body = remoting.call(mq.remoting, QUERY_MESSAGE, fields)
    assert code == SUCCESS
    assert len(decode_records(body)) == 2
    assert int(header["indexLastUpdatePhyoffset"]) in offsets
    unique = {**fields, "key": "u1", "_UNIQUE_KEY_QUERY": "true"}
    assert [m.body for m in decode_records(remoting.call(mq.remoting, QUERY_MESSAGE, unique)[3])] == [b"body 1"]
    code, remark, _, _ = remoting.call(mq.remoting, QUERY_MESSAGE, {**fields, "key": "other"})
    assert code == NOT_FOUND
    assert remark is not None
    assert "other" in remark
    code, _, _, body = remoting.call(mq.remoting, VIEW_MESSAGE, {"offset": str(offsets[2])})
    assert code == SUCCESS
    assert [m.body for m in decode_records(body)] == [b"body 2"]
    for offset in (offsets[2] + 1, -1, 2**40):
        assert remoting.call(mq.remoting, VIEW_MESSAGE, {"offset": str(offset)})[0] == SYSTEM_ERROR
    assert remoting.call(mq.remoting, VIEW_MESSAGE, {"offset": "x"})[0] == INVALID
    assert remoting.call(mq.remoting, QUERY_MESSAGE, {"topic": "orders"})[0] == INVALID


def test_offsets_are_answered(mq: ferromq.Embedded, rpc: Rpc, eventually: Eventually) -> None:
    """First, last, by time, and committed; a missing queue or topic is named."""
    rpc("QueryRoute", pb.QueryRouteRequest(topic=topic("orders")))
    for number in range(3):
        mq.store.append("orders", 1, b"%d" % number)
    assert eventually(lambda: mq.store.max_offset("orders", 1) == 3)
    where = pb.MessageQueue(topic=topic("orders"), id=1)
    begin, end, at = (
        rpc("QueryOffset", pb.QueryOffsetRequest(message_queue=where, query_offset_policy=policy, **more))
        for policy, more in ((0, {}), (1, {}), (2, {"timestamp": pb.Timestamp(seconds=0)}))
    )
    assert [r.status.code for r in (begin, end, at)] == [pb.Code.OK] * 3
    assert (begin.offset, end.offset, at.offset) == (0, 3, 0)
    for wrong in (
        {"query_offset_policy": 2},
        {"query_offset_policy": 9},
        {"query_offset_policy": 2, "timestamp": pb.Timestamp(seconds=1 << 62)},
    ):
        late = pb.QueryOffsetRequest(message_queue=where, **wrong)
        assert rpc("QueryOffset", late).status.code == pb.Code.BAD_REQUEST
    ask = pb.GetOffsetRequest(group=topic("g"), message_queue=where)
    assert rpc("GetOffset", ask).status.code == pb.Code.OFFSET_NOT_FOUND
    mq.store.commit_offset("g", "orders", 1, 2)
    assert rpc("GetOffset", ask).offset == 2
    wrong = pb.MessageQueue(topic=topic("orders"), id=8)
    assert rpc("QueryOffset", pb.QueryOffsetRequest(message_queue=wrong)).status.code == pb.Code.BAD_REQUEST
    gone = pb.MessageQueue(topic=topic("gone"), id=0)
    assert rpc("QueryOffset", pb.QueryOffsetRequest(message_queue=gone)).status.code == pb.Code.TOPIC_NOT_FOUND


# Topics


def test_an_administrator_creates_and_changes_topics(mq: ferromq.Embedded, remoting: RemotingClient, rpc: Rpc) -> None:
    """Request 17: on disk, at the name server, and in routes when the answer is there."""
    fields = {
        "topic": "fifo",
        "readQueueNums": "3",
        "writeQueueNums": "2",
        "perm": "6",
        "attributes": "+message.type=FIFO",
    }
    assert remoting.call(mq.remoting, UPDATE_TOPIC, fields)[0] == SUCCESS
    route = mq.name_server.routes.lookup("fifo")
    assert route is not None
    assert (route.queues[0].read_queues, route.queues[0].write_queues) == (3, 2)
    queues = rpc("QueryRoute", pb.QueryRouteRequest(topic=topic("fifo"))).message_queues
    assert [q.permission for q in queues] == [pb.Permission.READ_WRITE] * 2 + [pb.Permission.READ]
    assert list(queues[0].accept_message_types) == [pb.MessageType.FIFO]
    assert "fifo" in json.loads(remoting.call(mq.namesrv, TOPICS)[3])["topicList"]
    for wrong in (
        {"topic": "with space"},
        {"perm": "9"},
        {"readQueueNums": "many"},
        {"attributes": "x"},
        {"topic": "TBW102"},
    ):
        code, remark, _, _ = remoting.call(mq.remoting, UPDATE_TOPIC, {**fields, **wrong})
        assert code == INVALID
        assert remark


def test_kinds_are_checked_where_the_options_say_so(tmp_path: Path) -> None:
    """Producers learn it, and each change of it; an administrator's topic takes its kind alone."""
    with ferromq.embedded(tmp_path) as mq, mq.admin() as admin:
        rpc = Rpc(mq.endpoint)
        admin.create_topic("later", message_type="DELAY")
        fields = {"topic": "letters", "attributes": "+message.type=LETTER"}
        remoting = RemotingClient()
        code, remark, _, _ = remoting.call(mq.remoting, UPDATE_TOPIC, fields)
        remoting.close()
        assert (code, "LETTER" in (remark or "")) == (29, True)
        kinds = rpc("QueryRoute", pb.QueryRouteRequest(topic=topic("later"))).message_queues[0].accept_message_types
        assert list(kinds) == [pb.MessageType.DELAY]
        settings = pb.TelemetryCommand(settings=pb.Settings(publishing=pb.Publishing(topics=[topic("later")])))
        assert telemetry(rpc, settings)[0].settings.publishing.validate_message_type
        mq.broker.settings.update({"check_types": "none"}, {})
        assert not telemetry(rpc, settings)[0].settings.publishing.validate_message_type
        with mq.producer() as producer:
            producer.send("later", b"now")
        with pytest.raises(ferromq.ConfigError, match="none, grpc, all"):
            mq.broker.settings.update({"check_types": "some"}, {})
        rpc.channel.close()


def test_topics_and_groups_are_there_after_a_restart(tmp_path: Path) -> None:
    """With auto-creation off in the second run: they come from the files."""
    with ferromq.embedded(tmp_path) as mq:
        rpc = Rpc(mq.endpoint)
        rpc("QueryRoute", pb.QueryRouteRequest(topic=topic("orders")))
        rpc("Heartbeat", pb.HeartbeatRequest(client_type=3, group=topic("billing")))
        rpc.channel.close()
    with ferromq.embedded(tmp_path, auto_create_topics=False, auto_create_groups=False) as mq:
        rpc = Rpc(mq.endpoint)
        request = pb.QueryAssignmentRequest(topic=topic("orders"), group=topic("billing"))
        assert len(rpc("QueryAssignment", request).assignments) == 1
        rpc.channel.close()


# What RocketMQ's own tool sends for `mqadmin updateSubGroup -g billing -r 3 -a +a=b`.
JAVAS_GROUP = {
    "attributes": {"+priority.factor": "7"},
    "brokerId": 0,
    "consumeBroadcastEnable": True,
    "consumeEnable": True,
    "consumeFromMinEnable": True,
    "consumeMessageOrderly": False,
    "consumeTimeoutMinute": 15,
    "groupName": "billing",
    "groupRetryPolicy": {"type": "CUSTOMIZED"},
    "groupSysFlag": 0,
    "notifyConsumerIdsChangedEnable": True,
    "retryMaxTimes": 3,
    "retryQueueNums": 1,
    "whichBrokerWhenConsumeSlowly": 1,
}


def test_a_group_is_created_and_changed_by_remoting(
    mq: ferromq.Embedded, remoting: RemotingClient, tmp_path: Path
) -> None:
    """Request 200 with Java's body: it is in the file before the answer; attributes are altered, not replaced."""

    def put(**fields: Any) -> int:
        return remoting.call(mq.remoting, UPDATE_GROUP, {}, java_json.dumps({**JAVAS_GROUP, **fields}))[0]

    def saved() -> Any:
        content = json.loads((tmp_path / "store" / "config" / "subscriptionGroup.json").read_text())
        return content["subscriptionGroupTable"]["billing"]

    assert put() == SUCCESS
    assert saved() == {**JAVAS_GROUP, "attributes": {"priority.factor": "7"}}
    assert put(consumeEnable=False, attributes={"+lite.sub.client.quota": "9"}, colour="red") == SUCCESS
    both = {"lite.sub.client.quota": "9", "priority.factor": "7"}
    assert saved() == {**JAVAS_GROUP, "consumeEnable": False, "attributes": both}
    assert put(attributes={"-priority.factor": "", "-lite.sub.client.quota": ""}) == SUCCESS
    assert saved() == {**JAVAS_GROUP, "attributes": {}}


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (b"", "body"),
        (b"[]", "body"),
        (b"\xff", "body"),
        (b'{"groupName":"two words"}', "two words"),
        (b"{}", "empty"),
        (b'{"groupName":"g","retryMaxTimes":-1}', "retryMaxTimes"),
        (b'{"groupName":"g","retryMaxTimes":9999999999}', "retryMaxTimes"),
        (b'{"groupName":"g","retryMaxTimes":"many"}', "retryMaxTimes"),
        (b'{"groupName":"g","consumeEnable":1}', "consumeEnable"),
        (b'{"groupName":"g","attributes":{"a":"b"}}', "attribute"),
        (b'{"groupName":"g","attributes":7}', "body"),
        (b'{"groupName":"g","attributes":{"+colour":"red"}}', "colour"),
        (b'{"groupName":"g","groupRetryPolicy":{"type":"CUSTOMIZED","customizedRetryPolicy":{"next":["x"]}}}', "body"),
    ],
)
def test_an_invalid_group_is_refused(mq: ferromq.Embedded, remoting: RemotingClient, body: bytes, named: str) -> None:
    """The remark has the reason, and nothing is created."""
    code, remark, _, _ = remoting.call(mq.remoting, UPDATE_GROUP, {}, body)
    assert (code, named in (remark or "")) == (INVALID, True), remark
    assert {group.name for group in mq.broker.groups.all()} == set(naming.SYSTEM_GROUPS)
