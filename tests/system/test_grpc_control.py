"""Exchanges of a broker and its gRPC clients beside messages: commands, pushed settings, resets, refusals."""

import json
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import grpc
import pytest

import ferromq
from ferromq._ferromq import RemotingClient
from ferromq._proto import messages as pb
from ferromq.protocol import java_json

SUCCESS, SYSTEM_ERROR, NOT_SUPPORTED, NO_PERMISSION = 0, 1, 3, 16
UPDATE_GROUP, RESET, RUNNING_INFO, CONSUME_DIRECTLY = 200, 222, 307, 309
SERVICE = "/apache.rocketmq.v2.MessagingService/"
CLIENT = (("x-mq-client-id", "me@here"), ("x-mq-language", "JAVA"))


@pytest.fixture(scope="module")
def shared() -> Iterator[ferromq.Embedded]:
    """Run one broker for all tests of this module."""
    with ferromq.embedded() as embedded:
        yield embedded


@pytest.fixture
def remoting() -> Iterator[RemotingClient]:
    """Return a client of the remoting protocol."""
    client = RemotingClient()
    yield client
    client.close()


class Consumer:
    """A gRPC client with only a telemetry stream, on which it answers commands as the test configures."""

    def __init__(self, mq: ferromq.Embedded, group: str, topic: str = "t") -> None:
        self.channel = grpc.insecure_channel(mq.endpoint)
        self.outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        call = self.channel.stream_stream(f"{SERVICE}Telemetry")
        self.incoming = call(iter(self.outgoing.get, None), metadata=CLIENT, timeout=50)
        entry = pb.SubscriptionEntry(topic=pb.Resource(name=topic))
        wanted = pb.Subscription(group=pb.Resource(name=group), subscriptions=[entry])
        self.say(settings=pb.Settings(client_type=pb.ClientType.PUSH_CONSUMER, subscription=wanted))
        self.settings = self.hear().settings

    def say(self, **command: Any) -> None:
        """Send a command."""
        self.outgoing.put(pb.TelemetryCommand(**command).SerializeToString())

    def hear(self) -> pb.TelemetryCommand:
        """Return the next command of the broker."""
        return pb.TelemetryCommand.FromString(next(self.incoming))

    def answering(self, answer: Callable[[pb.TelemetryCommand], dict[str, Any] | None]) -> threading.Thread:
        """Answer the next command, or end the stream."""

        def run() -> None:
            said = answer(self.hear())
            self.outgoing.put(None) if said is None else self.say(**said)

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    def close(self) -> None:
        """End the stream and the connection."""
        self.outgoing.put(None)
        self.channel.close()


@pytest.fixture
def consumer(shared: ferromq.Embedded, request: pytest.FixtureRequest) -> Iterator[Consumer]:
    """Return a consumer of a group that has the test's name."""
    client = Consumer(shared, request.node.name[:100])
    yield client
    client.close()


def ask(mq: ferromq.Embedded, remoting: RemotingClient, code: int, group: str, **fields: str) -> Any:
    """Ask the broker about the consumer, as RocketMQ's tools do."""
    named = {"consumerGroup": group, "clientId": "me@here", **fields}
    return remoting.call(mq.remoting, code, named, timeout=40.0)


def test_a_grpc_client_is_asked_for_its_threads(
    shared: ferromq.Embedded, remoting: RemotingClient, consumer: Consumer, request: pytest.FixtureRequest
) -> None:
    """At an administrator's request; the broker knows everything else that RocketMQ's tools show."""
    group = request.node.name[:100]

    def stacks(command: pb.TelemetryCommand) -> dict[str, Any]:
        nonce = command.print_thread_stack_trace_command.nonce
        trace = pb.ThreadStackTrace(nonce=nonce, thread_stack_trace="main: waiting")
        return {"status": pb.Status(code=pb.Code.OK), "thread_stack_trace": trace}

    thread = consumer.answering(stacks)
    code, remark, _, body = ask(shared, remoting, RUNNING_INFO, group, jstackEnable="true")
    thread.join()
    assert code == SUCCESS, remark
    info = json.loads(body)
    assert info["jstack"] == "main: waiting"
    code, _, _, body = ask(shared, remoting, RUNNING_INFO, group, jstackEnable="false")
    without = json.loads(body)
    assert (code, "jstack" in without) == (SUCCESS, False)
    assert [each["topic"] for each in without["subscriptionSet"]] == ["t"]
    assert without["properties"]["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"


@pytest.mark.parametrize(
    ("status", "answered"),
    [
        (pb.Code.OK, (SUCCESS, "CR_SUCCESS")),
        (pb.Code.FAILED_TO_CONSUME_MESSAGE, (SUCCESS, "CR_LATER")),
        (pb.Code.MESSAGE_CORRUPTED, (SUCCESS, "CR_RETURN_NULL")),
        (pb.Code.VERIFY_FIFO_MESSAGE_UNSUPPORTED, (NO_PERMISSION, "VERIFY_FIFO_MESSAGE_UNSUPPORTED")),
        (pb.Code.NOT_IMPLEMENTED, (SYSTEM_ERROR, "NOT_IMPLEMENTED: because")),
        (None, (SYSTEM_ERROR, "ended its telemetry stream")),
    ],
)
def test_a_grpc_client_verifies_a_message(
    shared: ferromq.Embedded,
    remoting: RemotingClient,
    eventually: Callable[[Callable[[], bool]], bool],
    status: int | None,
    answered: tuple[int, str],
) -> None:
    """It gets the message itself; the outcome, or its absence, is reported in RocketMQ's words."""
    group = f"verify-{status}"
    consumer = Consumer(shared, group)
    with shared.producer() as producer:
        sent = producer.send("t", b"to verify", tag="a", properties={"b": "c"})
    with shared.admin() as admin:
        assert eventually(lambda: admin.query_by_id("t", sent.message_id) is not None)
        stored = admin.query_by_id("t", sent.message_id)
    assert stored is not None
    seen: list[pb.Message] = []

    def verify(command: pb.TelemetryCommand) -> dict[str, Any] | None:
        asked = command.verify_message_command
        seen.append(asked.message)
        if status is None:
            return None
        result = pb.VerifyMessageResult(nonce=asked.nonce)
        return {"status": pb.Status(code=status, message="because"), "verify_message_result": result}  # type: ignore[arg-type]

    thread = consumer.answering(verify)
    code, remark, _, body = ask(shared, remoting, CONSUME_DIRECTLY, group, msgId=stored.offset_message_id)
    thread.join()
    consumer.close()
    assert (code, answered[1] in (body.decode() or str(remark))) == (answered[0], True), (remark, body)
    assert (seen[0].body, seen[0].system_properties.tag, dict(seen[0].user_properties)) == (
        b"to verify",
        "a",
        {"b": "c"},
    )
    assert seen[0].system_properties.message_id == sent.message_id


def test_an_administrators_change_of_a_group_reaches_its_consumers(
    shared: ferromq.Embedded, remoting: RemotingClient, consumer: Consumer, request: pytest.FixtureRequest
) -> None:
    """Over the stream they have open, without being asked."""
    group = request.node.name[:100]
    assert consumer.settings.backoff_policy.max_attempts == 17
    policy = {"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": 1_500, "max": 60_000, "multiplier": 4}}
    body = {"groupName": group, "consumeMessageOrderly": True, "retryMaxTimes": 2, "groupRetryPolicy": policy}
    assert remoting.call(shared.remoting, UPDATE_GROUP, {}, java_json.dumps(body))[0] == SUCCESS
    told = consumer.hear().settings
    assert (told.subscription.fifo, told.backoff_policy.max_attempts) == (True, 3)
    backoff = told.backoff_policy.exponential_backoff
    assert (backoff.initial.ToTimedelta(), backoff.multiplier) == (timedelta(seconds=1.5), 4)


def test_a_reset_brings_back_what_consumers_hold_and_what_they_acknowledged(
    shared: ferromq.Embedded, remoting: RemotingClient
) -> None:
    """One that waits is woken; receipts of before are stale."""
    fields = {"topic": "reset", "readQueueNums": "1", "writeQueueNums": "1"}
    assert remoting.call(shared.remoting, 17, fields)[0] == SUCCESS
    with shared.producer() as producer, shared.consumer("resetter", "reset") as consumer:
        times = [producer.send("reset", b"%d" % number) for number in range(6)]
        held = []
        while len(held) < 6:
            held += consumer.receive(wait=10, invisible_duration=timedelta(hours=1))
        consumer.ack(held[2:])
        came: list[Any] = []
        waiting = threading.Thread(target=lambda: came.extend(consumer.receive(wait=30)))
        waiting.start()
        asked = {"topic": "reset", "group": "resetter", "timestamp": "0", "isForce": "true", "queueId": "0"}
        assert remoting.call(shared.remoting, RESET, {**asked, "offset": "3"})[0] == SUCCESS
        waiting.join()
        assert {message.body for message in came} <= {b"3", b"4", b"5"}
        assert came
        assert remoting.call(shared.remoting, RESET, asked)[0] == SUCCESS
        again = []
        while len(again) < 6:
            again += consumer.receive(wait=10)
        assert [message.body for message in again] == [b"%d" % number for number in range(6)]
        assert len(times) == 6
        with pytest.raises(ferromq.LeaseExpired):
            consumer.ack(held[:1])


@pytest.mark.parametrize("code", range(200_070, 200_080))
def test_requests_about_lite_topics_say_that_they_are_not_supported(
    shared: ferromq.Embedded, remoting: RemotingClient, code: int
) -> None:
    """By RocketMQ's code for that, on a connection that stays."""
    answer = remoting.call(shared.remoting, code, {"topic": "t", "group": "g"})
    assert (answer[0], "lite topics, which are not supported yet" in str(answer[1])) == (NOT_SUPPORTED, True)


def call(mq: ferromq.Embedded, method: str, message: Any) -> bytes:
    """Call a method of the service."""
    with grpc.insecure_channel(mq.endpoint) as channel:
        answer: bytes = channel.unary_unary(SERVICE + method)(message.SerializeToString(), metadata=CLIENT, timeout=10)
        return answer


def test_a_lite_subscription_is_refused(shared: ferromq.Embedded) -> None:
    """Over gRPC with UNSUPPORTED, and lite clients as a client type that is not known."""
    request = pb.SyncLiteSubscriptionRequest(topic=pb.Resource(name="parent"), group=pb.Resource(name="g"))
    status = pb.SyncLiteSubscriptionResponse.FromString(call(shared, "SyncLiteSubscription", request)).status
    assert (status.code, "not supported yet" in status.message) == (pb.Code.UNSUPPORTED, True)
    beat = pb.HeartbeatRequest(client_type=pb.ClientType.LITE_PUSH_CONSUMER, group=pb.Resource(name="g"))
    status = pb.HeartbeatResponse.FromString(call(shared, "Heartbeat", beat)).status
    assert (status.code, "lite" in status.message) == (pb.Code.UNRECOGNIZED_CLIENT_TYPE, True)


def test_topics_of_a_group_have_routes_where_the_group_is_there(shared: ferromq.Embedded) -> None:
    """Consumers of dead letters may start before the first one; without a group no topic is created."""

    def route(name: str) -> pb.QueryRouteResponse:
        request = pb.QueryRouteRequest(topic=pb.Resource(name=name))
        return pb.QueryRouteResponse.FromString(call(shared, "QueryRoute", request))

    with shared.admin() as admin:
        admin.create_group("mourner")
    for name in ("%DLQ%mourner", "%RETRY%mourner"):
        assert [each.permission for each in route(name).message_queues] == [pb.Permission.READ_WRITE]
    missing = route("%DLQ%nobody").status
    assert (missing.code, "consumer group nobody" in missing.message) == (pb.Code.TOPIC_NOT_FOUND, True)
    assert shared.broker.topics.find("%DLQ%nobody") is None


LOGS = """
import logging, sys
import grpc
import ferromq
from ferromq.process import logs
from ferromq._ferromq import Clock, Server
from ferromq._proto import messages as pb

def change(mq, level):
    with grpc.insecure_channel(mq.endpoint) as channel:
        method = channel.unary_unary("/apache.rocketmq.v2.Admin/ChangeLogLevel")
        answer = method(pb.ChangeLogLevelRequest(level=level).SerializeToString(), timeout=20)
    print(pb.ChangeLogLevelResponse.FromString(answer).remark)

with ferromq.embedded() as mq:
    change(mq, 1)
    logs.install("error,ferromq::broker=error")
    logging.getLogger("ferromq.broker").info("not shown")
    change(mq, 2)
    logging.getLogger("ferromq.broker").info("shown")
    server = Server(Clock.system())
    server.listen_remoting("127.0.0.1:0")
    server.stop()
    change(mq, 9)
"""


def test_the_log_level_changes_where_the_logs_are_ours() -> None:
    """Of Rust and Python; a library's program controls its logs, and unknown levels are refused."""
    done = subprocess.run([sys.executable, "-c", LOGS], capture_output=True, text=True, check=True, timeout=50)
    first, second, third = done.stdout.splitlines()
    assert "belong to the embedding program" in first
    assert second == "the log level is INFO"
    assert "'9'" in third
    logged = done.stderr.splitlines()
    assert not [line for line in logged if "not shown" in line]
    assert [line for line in logged if line.endswith("ferromq::broker shown")]
    assert [line for line in logged if " INFO ferromq_transport::server " in line]


def test_other_methods_of_the_admin_service_are_unimplemented(shared: ferromq.Embedded) -> None:
    """By name."""
    with grpc.insecure_channel(shared.endpoint) as channel, pytest.raises(grpc.RpcError) as error:
        channel.unary_unary("/apache.rocketmq.v2.Admin/GetTopicRoute")(b"", timeout=10)
    assert error.value.code() == grpc.StatusCode.UNIMPLEMENTED
    assert "GetTopicRoute" in (error.value.details() or "")
