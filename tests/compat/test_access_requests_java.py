"""
What requests need: the same users ask RocketMQ's broker and proxy, and ours.

docs/access-control.md lists the differences.
"""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import compat_peer
import grpc
import pytest
from compat_peer import JARS, ROOT
from java_processes import JavaBroker, JavaNameServer, JavaProxy, access_options

import ferromq
from ferromq._ferromq import RemotingClient
from ferromq._proto import messages as pb
from ferromq.core.credentials import AUTHORIZATION, DATE_TIME, Credentials
from ferromq.protocol.codes import RequestCode, ResponseCode

ADMIN = ("root", "a long secret")
SECRET = "the user's secret"
ADA = ("ada", SECRET)
TARGET = "target"
"""The user whose policies the requests change."""
ANY = ("Pub", "Sub", "Create", "Update", "Delete", "Get", "List")
RESOURCES = {"topic": "Topic:*", "group": "Group:*", "cluster": "Cluster:*"}
LISTER = "lister"
"""May List the cluster and do nothing else with it; the other users may do nothing with the resource of their name."""
USERS = (*RESOURCES, LISTER)
UNAUTHORIZED, UNKNOWN = 40_100, ResponseCode.REQUEST_CODE_NOT_SUPPORTED
PROGRAMS = ROOT / "tests" / "matrix" / "programs"
CHECK, RUNS = "send", ("python", "remoting")
"""The topics and groups of the programs of `tests/matrix` are `CHECK_RUN`."""

HOT = {
    "LITE_PULL_MESSAGE": 361,
    "PEEK_MESSAGE": 200_052,
    "NOTIFICATION": 200_054,
    "POLLING_INFO": 200_055,
    "ACK_MESSAGE": 200_051,
    "CHANGE_MESSAGE_INVISIBLETIME": 200_053,
    "BATCH_ACK_MESSAGE": 200_151,
}
"""Requests that Rust answers alone."""
REQUESTS: Mapping[str, int] = {**HOT, **{name: int(code) for name, code in RequestCode.__members__.items()}}
FIELDS = {
    **dict.fromkeys(("topic", "originTopic", "b", "statsKey"), "orders"),
    **dict.fromkeys(("consumerGroup", "group", "groupName", "srcGroup", "destGroup"), "billing"),
    **dict.fromkeys(("producerGroup", "a"), "producers"),
    **dict.fromkeys(("queueId", "queueOffset", "sysFlag", "commitOffset", "suspendTimeoutMillis", "subVersion"), "0"),
    **dict.fromkeys(("offset", "timestamp", "beginTimestamp", "bornTime", "initMode", "index", "flag"), "0"),
    **dict.fromkeys(("bornTimestamp", "reconsumeTimes", "topicSysFlag", "tranStateTableOffset", "delayLevel"), "0"),
    **dict.fromkeys(("commitLogOffset", "offsetType", "minOffset", "e", "f", "g", "h", "j"), "0"),
    **dict.fromkeys(("maxMsgNums", "maxNum", "endTimestamp", "count", "readQueueNums", "writeQueueNums", "l"), "1"),
    **dict.fromkeys(("maxReconsumeTimes", "seqNo"), "1"),
    **dict.fromkeys(("unitMode", "batch", "order", "isOrder", "fromTransactionCheck", "k", "m"), "false"),
    **dict.fromkeys(("cleanOffset", "cleanGroup", "force"), "false"),
    **dict.fromkeys(("clientID", "clientId", "key", "msgId", "originMsgId", "transactionId"), "x"),
    **dict.fromkeys(("defaultTopic", "c"), "TBW102"),
    **dict.fromkeys(("defaultTopicQueueNums", "d"), "4"),
    "brokerName": "broker-java",
    "perm": "6",
    "topicFilterType": "SINGLE_TAG",
    "commitOrRollback": "8",
    "invisibleTime": "10000",
    "pollTime": "1000",
    "extraInfo": "0 0 10000 0 0 broker-java 0 0",
    "i": "",
    "expType": "TAG",
    "exp": "*",
    "readable": "true",
    "statsName": "TOPIC_PUT_NUMS",
    "recallHandle": "x",
    "username": "nobody",
    "subject": f"User:{TARGET}",
    "state": "serving",
}
_ENTRY = {"resource": "Topic:none", "actions": ["Get"], "decision": "Allow"}
_OF_QUEUES = {"consumerGroup": "billing", "clientId": "x", "mqSet": [{"topic": "orders", "queueId": 0}]}
BODIES: Mapping[str, object] = {
    "HEART_BEAT": {
        "clientID": "x",
        "consumerDataSet": [
            {"groupName": "billing", "subscriptionDataSet": [{"topic": "orders", "subString": "*", "subVersion": 1}]}
        ],
    },
    "LOCK_BATCH_MQ": _OF_QUEUES,
    "UNLOCK_BATCH_MQ": _OF_QUEUES,
    "CHECK_CLIENT_CONFIG": {"group": "billing", "subscriptionData": {"topic": "orders", "expressionType": "TAG"}},
    "QUERY_ASSIGNMENT": {"topic": "orders", "consumerGroup": "billing", "clientId": "x", "strategyName": "AVG"},
    "SET_MESSAGE_REQUEST_MODE": {"topic": "orders", "consumerGroup": "billing", "mode": "PULL"},
    "BATCH_ACK_MESSAGE": {"acks": [{"c": "billing", "t": "orders", "r": "0", "b": "AQ=="}]},
    "UPDATE_AND_CREATE_SUBSCRIPTIONGROUP": {"groupName": "billing"},
    "UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST": {"groupConfigList": [{"groupName": "billing"}]},
    "UPDATE_AND_CREATE_TOPIC_LIST": {"topicConfigList": [{"topicName": "orders"}]},
    "AUTH_CREATE_ACL": {"policies": [{"policyType": "Custom", "entries": [_ENTRY]}]},
    "AUTH_UPDATE_ACL": {"policies": [{"policyType": "Custom", "entries": [_ENTRY]}]},
}
_STRICTER = {
    ("topic",): (
        *("CONSUMER_SEND_MSG_BACK", "SEND_REPLY_MESSAGE", "SEND_REPLY_MESSAGE_V2", "UPDATE_AND_CREATE_TOPIC_LIST"),
    ),
    ("group",): (
        *("CHECK_CLIENT_CONFIG", "UPDATE_AND_CREATE_SUBSCRIPTIONGROUP", "UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST"),
    ),
    ("topic", "group"): ("BATCH_ACK_MESSAGE", "LITE_PULL_MESSAGE", "QUERY_ASSIGNMENT", "SET_MESSAGE_REQUEST_MODE"),
    ("cluster",): (
        *("GET_ALL_TOPIC_CONFIG", "GET_ALL_SUBSCRIPTIONGROUP_CONFIG", "GET_SYSTEM_TOPIC_LIST_FROM_BROKER"),
        *("GET_ALL_CONSUMER_OFFSET", "GET_ALL_DELAY_OFFSET", "GET_ALL_MESSAGE_REQUEST_MODE"),
        *("GET_TIMER_CHECK_POINT", "GET_TIMER_METRICS", "GET_BROKER_CONFIG", "GET_BROKER_RUNTIME_INFO"),
    ),
    ("cluster", LISTER): (
        *("UPDATE_BROKER_CONFIG", "CLEAN_EXPIRED_CONSUMEQUEUE", "CLEAN_UNUSED_TOPIC", "DELETE_EXPIRED_COMMITLOG"),
    ),
}
"""The users that RocketMQ answers and ours refuses, and the requests."""
_MORE_GENEROUS = {
    (LISTER,): (
        *("GET_ALL_PRODUCER_INFO", "GET_PRODUCER_CONNECTION_LIST", "GET_BROKER_CONSUME_STATS"),
        "VIEW_BROKER_STATS_DATA",
    ),
}
"""The users that RocketMQ refuses and ours answers."""


class Side(NamedTuple):
    """Addresses of one of the two."""

    namesrv: str
    broker: str
    endpoint: str


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Side, Side]]:
    """Run RocketMQ's servers and ours, with the same users, topics and groups."""
    directory = tmp_path_factory.mktemp("servers")
    options = {"authentication_enabled": True, "authorization_enabled": True, "initial_user": ":".join(ADMIN)}
    with contextlib.ExitStack() as stack:
        names = stack.enter_context(JavaNameServer(directory / "namesrv"))
        # A recall that is turned off is refused with the same code.
        java_options = {**access_options(ADMIN), "recallMessageEnable": "true"}
        broker = stack.enter_context(JavaBroker(directory / "broker", names.address, **java_options))
        proxy = JavaProxy(directory / "proxy", names.address, **access_options(ADMIN, proxy=True))
        stack.enter_context(proxy)
        ours = stack.enter_context(ferromq.embedded(directory / "ours", **options))
        both = Side(names.address, broker.address, proxy.address), Side(ours.namesrv, ours.remoting, ours.endpoint)
        for side in both:
            with ferromq.Admin(side.namesrv, access_key=ADMIN[0], secret_key=ADMIN[1], timeout=60) as admin:
                fill(admin)
            # A request names it by its place, which is 0.
            with ferromq.connect(namesrv=side.namesrv, access_key=ADMIN[0], secret_key=ADMIN[1], timeout=60) as mq:
                mq.producer().send("orders", b"x")
        yield both


def fill(admin: ferromq.Admin) -> None:
    """Create users, topics and groups."""
    checked = [f"{CHECK}_{run}" for run in RUNS]
    for topic, group in (("orders", "billing"), *zip(checked, checked, strict=True)):
        admin.create_topic(topic)
        admin.create_group(group)
    admin.create_user(*ADA)
    admin.create_acl(
        ADA[0], [f"{kind}:{name}" for kind in ("Topic", "Group") for name in checked], ("Pub", "Sub", "Get")
    )
    admin.create_user(TARGET, SECRET)
    for user in USERS:
        admin.create_user(user, SECRET)
        left_out = "cluster" if user == LISTER else user
        admin.create_acl(user, [each for name, each in RESOURCES.items() if name != left_out], ANY)
    admin.create_acl(LISTER, RESOURCES["cluster"], "List")


def verdicts(side: Side, keys: tuple[str, str] | None) -> dict[str, int]:
    """Return the code that each request is answered with."""
    found = {}
    with contextlib.closing(RemotingClient(credentials=keys)) as client:
        for name, code in REQUESTS.items():
            body = json.dumps(BODIES.get(name, {"password": "x"})).encode()
            found[name] = client.call(side.broker, code, FIELDS, body, timeout=20)[0]
    return found


def refused(codes: Mapping[str, int]) -> set[str]:
    """Return the requests that were refused."""
    return {name for name, code in codes.items() if code == ResponseCode.NO_PERMISSION}


def by_request(listed: Mapping[tuple[str, ...], tuple[str, ...]]) -> dict[str, set[str]]:
    """Return the users of each request."""
    found: dict[str, set[str]] = {}
    for users, names in listed.items():
        for name in names:
            found.setdefault(name, set()).update(users)
    return found


@pytest.mark.parametrize("keys", [None, ("topic", "another"), ("stranger", SECRET)])
def test_every_request_needs_the_right_keys(sides: tuple[Side, Side], keys: tuple[str, str] | None) -> None:
    """With both brokers."""
    for side in sides:
        assert refused(verdicts(side, keys)) == set(REQUESTS)


def test_our_broker_checks_more_requests(sides: tuple[Side, Side]) -> None:
    """Only those that the documentation lists are answered differently."""
    answers = [{user: verdicts(side, (user, SECRET)) for user in USERS} for side in sides]
    java, ours = ({user: refused(codes) for user, codes in each.items()} for each in answers)
    # What a broker does not know needs no policy.
    unknown = {name for each in answers for codes in each.values() for name, code in codes.items() if code == UNKNOWN}
    stricter = by_request({(user,): tuple(ours[user] - java[user] - unknown) for user in USERS})
    more_generous = by_request({(user,): tuple(java[user] - ours[user] - unknown) for user in USERS})
    assert (stricter, more_generous) == (by_request(_STRICTER), by_request(_MORE_GENEROUS))


def calls(endpoint: str) -> Iterator[tuple[str, Any]]:
    """Yield a request of each method of RocketMQ's proxy that names a topic or a group."""
    host, _, port = endpoint.rpartition(":")
    place = pb.Endpoints(scheme=pb.AddressScheme.IPv4, addresses=[pb.Address(host=host, port=int(port))])
    topic, group = pb.Resource(name="orders"), pb.Resource(name="billing")
    every = pb.FilterExpression(type=pb.FilterType.TAG, expression="*")
    queue = pb.MessageQueue(topic=topic, broker=pb.Broker(name="broker-java", endpoints=place))
    lease = {"topic": topic, "group": group, "message_id": "x", "receipt_handle": "0 0 10000 0 0 broker-java 0 0"}
    ack = pb.AckMessageEntry(message_id="x", receipt_handle=lease["receipt_handle"])
    sent = pb.Message(topic=topic, body=b"x", system_properties=pb.SystemProperties(message_id="x"))
    entry = pb.SubscriptionEntry(topic=topic, expression=every)
    settings = pb.Settings(client_type=pb.ClientType.SIMPLE_CONSUMER, access_point=place)
    settings.subscription.CopyFrom(pb.Subscription(group=group, subscriptions=[entry]))
    yield "QueryRoute", pb.QueryRouteRequest(topic=topic, endpoints=place)
    yield "QueryAssignment", pb.QueryAssignmentRequest(topic=topic, group=group, endpoints=place)
    yield "Heartbeat", pb.HeartbeatRequest(group=group, client_type=pb.ClientType.SIMPLE_CONSUMER)
    yield "SendMessage", pb.SendMessageRequest(messages=[sent])
    yield "EndTransaction", pb.EndTransactionRequest(topic=topic, message_id="x", transaction_id="x", resolution=1)
    yield "RecallMessage", pb.RecallMessageRequest(topic=topic, recall_handle="x")
    yield "ReceiveMessage", pb.ReceiveMessageRequest(group=group, message_queue=queue, filter_expression=every)
    yield "AckMessage", pb.AckMessageRequest(topic=topic, group=group, entries=[ack])
    yield "ChangeInvisibleDuration", pb.ChangeInvisibleDurationRequest(**lease)
    yield "ForwardMessageToDeadLetterQueue", pb.ForwardMessageToDeadLetterQueueRequest(**lease)
    yield "Telemetry", pb.TelemetryCommand(settings=settings)
    # The last one: it ends the client.
    yield "NotifyClientTermination", pb.NotifyClientTerminationRequest(group=group)


STREAMS = {"ReceiveMessage", "Telemetry"}


def call(channel: grpc.Channel, method: str, request: Any, keys: tuple[str, str] | None) -> int:
    """Return the code of a call's first answer."""
    date = "20260101T000000Z"
    signature = ((DATE_TIME, date), (AUTHORIZATION, Credentials(*keys).authorization(date))) if keys else ()
    metadata = (*signature, ("x-mq-client-id", "x"), ("x-mq-language", "JAVA"), ("x-mq-client-version", "5.1.0"))
    path = f"/apache.rocketmq.v2.MessagingService/{method}"
    if method in STREAMS:
        answers = channel.stream_stream(path)(iter([request.SerializeToString()]), metadata=metadata, timeout=20)
        answer = next(iter(answers))
    else:
        answer = channel.unary_unary(path)(request.SerializeToString(), metadata=metadata, timeout=20)
    name = "TelemetryCommand" if method == "Telemetry" else f"{method}Response"
    return int(getattr(pb, name).FromString(answer).status.code)


@pytest.mark.parametrize(
    ("keys", "differences"),
    [
        (None, set()),
        (("topic", "another"), set()),
        (("topic", SECRET), {"ChangeInvisibleDuration"}),
        (("group", SECRET), set()),
    ],
)
def test_the_proxy_and_our_broker_refuse_the_same_calls(
    sides: tuple[Side, Side], keys: tuple[str, str] | None, differences: set[str]
) -> None:
    """But for one, whose topic the proxy does not check."""
    refused_by = []
    for side in sides:
        with grpc.insecure_channel(side.endpoint) as channel:
            asked = calls(side.endpoint)
            refused_by.append({name for name, each in asked if call(channel, name, each, keys) == UNAUTHORIZED})
    java, ours = refused_by
    assert java
    assert (ours - java, java - ours) == (differences, set())


def python_program() -> list[str]:
    """Return the command of the program for the official client for Python."""
    pytest.importorskip("rocketmq")
    return [sys.executable, str(PROGRAMS / "python-grpc" / "matrix.py")]


def remoting_program() -> list[str]:
    """Return the command of the program for the remoting client for Java."""
    classes = compat_peer.compiled(sorted((PROGRAMS / "java-remoting").rglob("*.java")), JARS)
    return ["java", "-Xmx384m", "-XX:TieredStopAtLevel=1", "-cp", f"{classes}:{JARS}/*", "Matrix", CHECK]


@pytest.mark.parametrize(
    ("program", "run", "refusal"),
    # The client for Python does not tell the code.
    [(python_program, RUNS[0], "failed to fetch topic"), (remoting_program, RUNS[1], "CODE: 16 ")],
)
def test_clients_send_and_receive_with_the_right_keys_alone(
    sides: tuple[Side, Side], tmp_path: Path, program: Callable[[], list[str]], run: str, refusal: str
) -> None:
    """Official clients as users of our broker; `make matrix ACCESS=1` has more of them, and RocketMQ's side."""
    ours = sides[1]
    given = {"right": ADA, "wrong": (ADA[0], "another"), "missing": None}
    running = {}
    with contextlib.ExitStack() as stack:
        for name, keys in given.items():
            environment = {
                "MATRIX_ENDPOINT": ours.endpoint,
                "MATRIX_NAMESRV": ours.namesrv,
                "MATRIX_RUN": run,
                "MATRIX_CHECKS": CHECK,
                "HOME": str(tmp_path),
                **(dict(zip(("MATRIX_ACCESS_KEY", "MATRIX_SECRET_KEY"), keys, strict=True)) if keys else {}),
            }
            process = subprocess.Popen(
                program(), stdout=subprocess.PIPE, text=True, cwd=tmp_path, env={**os.environ, **environment}
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
            running[name] = process
        said = {name: process.communicate(timeout=120)[0] for name, process in running.items()}
    checks = {name: [line for line in text.splitlines() if line.startswith("CHECK ")] for name, text in said.items()}
    assert checks["right"][0].startswith(f"CHECK {CHECK} ok")
    for name in ("wrong", "missing"):
        assert checks[name][0].startswith(f"CHECK {CHECK} FAILED")
        assert refusal in checks[name][0]
