"""gRPC clients of a broker: settings, commands and their answers, over a fake server."""

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ferromq._proto import messages as pb
from ferromq.broker.clients.grpc_calls import GrpcCalls
from ferromq.broker.clients.grpc_sessions import MAX_SETTINGS, GrpcSessions
from ferromq.broker.clients.table import ClientTable
from ferromq.broker.grpc_answers import Refused
from ferromq.broker.metadata.groups import GroupConfig, GroupTable
from ferromq.broker.metadata.topics import TopicConfig, TopicTable
from ferromq.config.broker import BrokerConfig
from ferromq.config.consume import ConsumeConfig
from ferromq.errors import ConnectionFailed, RequestTimeout

METADATA = {"x-mq-client-id": "me", "x-mq-language": "PYTHON"}


class Broker:
    """The room of gRPC clients, with what it sent and which streams it ended."""

    def __init__(self, directory: Path) -> None:
        self.user: str | None = None
        self.sent: dict[int, list[pb.TelemetryCommand]] = {}
        self.ended: dict[int, tuple[int, str]] = {}
        self.gone: set[int] = set()
        config, self.now, self.validates = BrokerConfig(), 0, True
        self.groups = GroupTable(lambda: config, directory, lambda: self.now, lambda *_: None)
        self.table = ClientTable(120_000, lambda _change: None)
        self.calls = GrpcCalls(self.send_telemetry)
        self.topics = TopicTable(lambda: config, directory, lambda: self.now, lambda *_: None, lambda *_: None)
        self.clients = GrpcSessions(
            self,
            self.table,
            self.groups,
            self.calls,
            topics=self.topics,
            max_body_size=1_000,
            validates=lambda: self.validates,
            now_ms=lambda: self.now,
        )
        self.groups.add_listener(self.clients.group_changed)

    def send_telemetry(self, stream: int, message: bytes) -> bool:
        """Take a command for a client."""
        if stream in self.gone:
            return False
        self.sent.setdefault(stream, []).append(pb.TelemetryCommand.FromString(message))
        return True

    def end_telemetry(self, stream: int, code: int, message: str) -> bool:
        """Note the end of a stream."""
        self.ended[stream] = code, message
        return True

    def say(self, stream: int, command: pb.TelemetryCommand | bytes | None, client_id: str = "me") -> None:
        """Send a message on a telemetry stream; None: it ended."""
        body = command.SerializeToString() if isinstance(command, pb.TelemetryCommand) else command
        metadata = {**METADATA, "x-mq-client-id": client_id}
        self.clients.telemetry(stream, (stream, "127.0.0.1:9", self.user, None), metadata, body)

    def consume(self, stream: int, group: str, client_type: int = 2, client_id: str = "me") -> None:
        """Send the settings of a consumer."""
        wanted = pb.Subscription(group=resource(group), subscriptions=[pb.SubscriptionEntry(topic=resource("t"))])
        settings = pb.Settings(client_type=client_type, subscription=wanted)  # type: ignore[arg-type]
        self.say(stream, pb.TelemetryCommand(settings=settings), client_id)

    def beat(self, client_type: int, group: str | None, client_id: str = "me", connection: int = 1) -> Any:
        """Send a heartbeat and return the answer."""
        named = {} if group is None else {"group": resource(group)}
        request: Any = SimpleNamespace(
            fields={**METADATA, "x-mq-client-id": client_id},
            connection=connection,
            peer="127.0.0.1:9",
            user=self.user,
            certificate=None,
        )
        return self.clients.heartbeat(pb.HeartbeatRequest(client_type=client_type, **named), request)  # type: ignore[arg-type]


def resource(name: str) -> pb.Resource:
    """Return a topic or a group by its name."""
    return pb.Resource(name=name)


@pytest.fixture
def broker(tmp_path: Path) -> Broker:
    """Return a broker without clients."""
    return Broker(tmp_path)


def test_consumers_are_told_when_their_group_changes(broker: Broker) -> None:
    """All of the group and no other client: order, attempts, and either kind of backoff."""
    for stream, group in ((1, "g"), (2, "g"), (3, "other")):
        broker.consume(stream, group, client_id=f"c{stream}")
    policy = {"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": 100, "max": 900, "multiplier": 3}}
    body = {"groupName": "g", "retryMaxTimes": 4, "consumeMessageOrderly": True, "groupRetryPolicy": policy}
    broker.groups.put(GroupConfig.from_request(body), {}, "test")
    assert [len(broker.sent[stream]) for stream in (1, 2, 3)] == [2, 2, 1]
    first, told = (command.settings for command in broker.sent[1])
    assert (first.subscription.fifo, told.subscription.fifo) == (False, True)
    assert (first.backoff_policy.max_attempts, told.backoff_policy.max_attempts) == (17, 5)
    assert first.backoff_policy.WhichOneof("strategy") == "customized_backoff"
    backoff = told.backoff_policy.exponential_backoff
    assert (backoff.initial.ToMilliseconds(), backoff.max.ToMilliseconds(), backoff.multiplier) == (100, 900, 3)
    assert [each.topic.name for each in told.subscription.subscriptions] == ["t"]
    broker.say(2, None)
    broker.groups.put(GroupConfig("g"), {}, "test")
    assert [len(broker.sent[stream]) for stream in (1, 2, 3)] == [3, 2, 1]


def test_a_consumers_group_has_its_retry_topic(broker: Broker) -> None:
    """By its route RocketMQ's tools find the brokers of a group; a group without one gets none."""
    broker.consume(1, "g")
    assert broker.topics.get("%RETRY%g") == TopicConfig("%RETRY%g", 1, 1)
    broker.groups.put(GroupConfig.from_request({"groupName": "none", "retryQueueNums": 0}), {}, "test")
    broker.consume(2, "none")
    assert broker.topics.get("%RETRY%none") is None


def test_the_last_settings_are_the_current_ones(broker: Broker) -> None:
    """However many change a group while its consumer comes."""
    threads = [
        threading.Thread(target=broker.groups.put, args=(GroupConfig("g", retries=n), {}, "test")) for n in range(8)
    ]
    threads.insert(4, threading.Thread(target=broker.consume, args=(1, "g")))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    config = broker.groups.get("g")
    assert config is not None
    assert broker.sent[1][-1].settings.backoff_policy.max_attempts == config.max_attempts


def test_a_stream_with_wrong_settings_is_ended(broker: Broker) -> None:
    """With INVALID_ARGUMENT for a client's mistake; a status before it has RocketMQ's code."""
    broker.consume(1, "with space")
    assert [command.status.code for command in broker.sent[1]] == [pb.Code.ILLEGAL_CONSUMER_GROUP]
    assert broker.ended[1][0] == 3
    assert "with space" in broker.ended[1][1]
    broker.say(2, b"\xff\xff")
    assert (broker.ended[2][0], broker.sent[2][0].status.code) == (3, pb.Code.BAD_REQUEST)
    broker.consume(3, "CID_RMQ_SYS_TRANS")
    assert broker.sent[3][0].status.code == pb.Code.ILLEGAL_CONSUMER_GROUP
    assert broker.table.group("with space") is None


@pytest.mark.parametrize("client_type", [5, 6])
def test_lite_clients_are_told_that_they_are_not_supported(broker: Broker, client_type: int) -> None:
    """By heartbeat and by settings, with the way out."""
    with pytest.raises(Refused, match="not supported yet") as refused:
        broker.beat(client_type, "g")
    assert refused.value.code == pb.Code.UNRECOGNIZED_CLIENT_TYPE
    broker.consume(1, "g", client_type)
    assert "not supported yet" in broker.sent[1][0].status.message
    assert broker.table.group("g") is None


def test_leases_expire_without_heartbeats(broker: Broker) -> None:
    """A client with heartbeats stays; a vanished consumer or producer is forgotten when its lease expires."""
    broker.consume(1, "g", client_id="beats")
    broker.consume(2, "g", client_id="silent")
    broker.say(3, pb.TelemetryCommand(settings=pb.Settings(publishing=pb.Publishing(topics=[resource("t")]))), "maker")
    for _ in range(13):
        broker.now += 10_000
        broker.beat(2, "g", "beats", 1)
        broker.table.expire(broker.now)
    assert broker.table.members("g") == ["beats"]
    assert broker.table.producers("t") == []


def test_a_client_that_returns_after_its_lease_is_unchanged(broker: Broker) -> None:
    """Its stream stays open: a producer gets checks, a consumer has its subscriptions and gets settings."""
    broker.consume(1, "g", client_id="reader")
    broker.say(3, pb.TelemetryCommand(settings=pb.Settings(publishing=pb.Publishing(topics=[resource("t")]))), "maker")
    broker.now += 300_000
    broker.table.expire(broker.now)
    assert broker.table.reachable_producers("t") == []
    broker.groups.put(GroupConfig("g", retries=3), {}, "test")
    broker.beat(2, "g", "reader", 1)
    broker.beat(1, None, "maker", 3)
    assert [stream for _, stream in broker.table.reachable_producers("t")] == [3]
    assert broker.table.stream("g", "reader") == 1
    assert broker.table.subscribers("t") == {"g"}
    assert broker.sent[1][-1].settings.backoff_policy.max_attempts == 4


def test_a_producer_has_the_user_of_its_last_settings_or_heartbeat(broker: Broker) -> None:
    """Its half messages go to it only if that user may send."""
    broker.user = "ada"
    broker.say(3, pb.TelemetryCommand(settings=pb.Settings(publishing=pb.Publishing(topics=[resource("t")]))), "maker")
    assert [client.user for client, _ in broker.table.reachable_producers("t")] == ["ada"]
    broker.user = "bob"
    broker.beat(1, None, "maker", 3)
    assert [client.user for client, _ in broker.table.reachable_producers("t")] == ["bob"]


def test_an_unregistered_client_gets_no_commands(broker: Broker) -> None:
    """A heartbeat that comes after that brings back no stream and no topics."""
    making = pb.TelemetryCommand(settings=pb.Settings(publishing=pb.Publishing(topics=[resource("t")])))
    broker.say(3, making, "maker")
    broker.say(3, None, "maker")
    broker.beat(1, None, "maker", 3)
    assert broker.table.reachable_producers("t") == []
    broker.say(4, making, "other")
    gone: Any = SimpleNamespace(fields={**METADATA, "x-mq-client-id": "other"}, connection=4, peer="127.0.0.1:9")
    broker.clients.notify_termination(pb.NotifyClientTerminationRequest(), gone)
    broker.beat(1, None, "other", 4)
    assert broker.table.reachable_producers("t") == []


def test_producers_are_told_whether_kinds_are_checked(broker: Broker) -> None:
    """All producers, when the option changes; consumers are not."""
    making = pb.TelemetryCommand(settings=pb.Settings(publishing=pb.Publishing(topics=[resource("t")])))
    broker.say(1, making, "maker")
    broker.consume(2, "g")
    broker.validates = False
    broker.clients.sends_changed()
    assert [said.settings.publishing.validate_message_type for said in broker.sent[1]] == [True, False]
    assert len(broker.sent[2]) == 1


def answering(broker: Broker, stream: int, answer: Callable[[str], pb.TelemetryCommand]) -> threading.Thread:
    """Answer the next command on a stream as a client."""
    asked = threading.Event()
    taken = broker.send_telemetry

    def send(to: int, message: bytes) -> bool:
        done = taken(to, message)
        asked.set()
        return done

    broker.calls._send = send

    def reply() -> None:
        asked.wait(30)
        command = broker.sent[stream][-1]
        kind = command.WhichOneof("command")
        assert kind is not None
        broker.say(stream, answer(getattr(command, kind).nonce))

    thread = threading.Thread(target=reply)
    thread.start()
    return thread


def test_a_client_prints_its_threads(broker: Broker) -> None:
    """An answer is matched by its nonce; one without a waiting call, or of another client, is ignored."""
    broker.consume(1, "g")

    def stacks(nonce: str) -> pb.TelemetryCommand:
        broker.say(2, pb.TelemetryCommand(thread_stack_trace=pb.ThreadStackTrace(nonce=nonce)))
        trace = pb.ThreadStackTrace(nonce=nonce, thread_stack_trace="main: here")
        return pb.TelemetryCommand(status=pb.Status(code=pb.Code.OK), thread_stack_trace=trace)

    thread = answering(broker, 1, stacks)
    assert broker.calls.print_threads(1, 30).thread_stack_trace.thread_stack_trace == "main: here"
    thread.join()
    broker.say(1, pb.TelemetryCommand(verify_message_result=pb.VerifyMessageResult(nonce="99")))


def test_no_command_waits_for_a_client_without_a_stream(broker: Broker) -> None:
    """A stream that is closed, that ends during the wait, or that is silent."""
    broker.gone.add(1)
    with pytest.raises(ConnectionFailed, match="closed"):
        broker.calls.verify(1, pb.Message(), 30)
    with pytest.raises(RequestTimeout, match="did not answer"):
        broker.calls.verify(2, pb.Message(), 0.01)
    ending = broker.send_telemetry
    broker.calls._send = lambda stream, message: (ending(stream, message), broker.say(stream, None))[0]
    with pytest.raises(ConnectionFailed, match="ended its telemetry stream"):
        broker.calls.print_threads(3, 30)


NAMES = st.one_of(st.sampled_from(["g", "t", "%RETRY%g", "rmq_sys_x", "CID_RMQ_SYS_TRANS", ""]), st.text(max_size=130))
ENTRIES = st.builds(
    lambda topic, kind, text: pb.SubscriptionEntry(
        topic=pb.Resource(name=topic), expression=pb.FilterExpression(type=kind, expression=text)
    ),
    NAMES,
    st.integers(0, 5),
    st.one_of(st.sampled_from(["*", "a || b", "price > 3", "price >"]), st.text(max_size=20)),
)
SETTINGS = st.one_of(
    st.builds(
        lambda kind, group, entries: pb.Settings(
            client_type=kind, subscription=pb.Subscription(group=pb.Resource(name=group), subscriptions=entries)
        ),
        st.integers(-1, 9),
        NAMES,
        st.lists(ENTRIES, max_size=3),
    ),
    st.builds(
        lambda names: pb.Settings(publishing=pb.Publishing(topics=[pb.Resource(name=name) for name in names])),
        st.lists(NAMES, max_size=3),
    ),
)


@settings(deadline=None, max_examples=60)
@given(said=st.one_of(st.binary(max_size=60), SETTINGS.map(lambda each: pb.TelemetryCommand(settings=each))))
def test_any_message_of_a_client_is_answered_or_refused(
    tmp_path_factory: pytest.TempPathFactory, said: bytes | pb.TelemetryCommand
) -> None:
    """Never by an internal error; a refused client is in no group."""
    broker = Broker(tmp_path_factory.mktemp("said"))
    broker.say(1, said)
    codes = [command.status.code for command in broker.sent.get(1, [])]
    if 1 in broker.ended:
        assert broker.ended[1][0] == 3
        assert codes == [codes[0]]
        assert pb.Code.BAD_REQUEST <= codes[0] < pb.Code.INTERNAL_ERROR
        assert broker.table.all_producers() == {}
    else:
        assert codes in ([], [pb.Code.OK])


def test_settings_that_take_too_much_memory_end_their_stream(broker: Broker) -> None:
    """Large ones at once, small ones if their connection's streams use too much memory; then nothing is kept."""
    broker.say(1, publishing([f"t{number}" for number in range(MAX_SETTINGS // 8)]))
    assert broker.sent[1][-1].status.code == pb.Code.BAD_REQUEST
    assert f"{MAX_SETTINGS} are allowed" in broker.ended[1][1]
    assert broker.table.memory.total == 0
    metadata, command = METADATA, publishing(["t"])
    command.settings.user_agent.hostname = "x" * (MAX_SETTINGS - 100)
    for stream in range(2, 202):
        broker.clients.telemetry(stream, (7, "127.0.0.1:9", None, None), metadata, command.SerializeToString())
    refused = sorted(broker.ended)[1:]
    assert refused == list(range(refused[0], 202))
    assert 100 < len(range(2, refused[0])) < 130
    assert broker.sent[201][-1].status.code == pb.Code.TOO_MANY_REQUESTS
    assert "8388608 are allowed" in broker.ended[201][1]
    for stream in range(1, 202):
        broker.say(stream, None)
    broker.table.close_connection(7)
    assert broker.table.memory.total == 0


def publishing(topics: list[str]) -> pb.TelemetryCommand:
    """Return the settings of a producer."""
    named = pb.Publishing(topics=[resource(topic) for topic in topics])
    return pb.TelemetryCommand(settings=pb.Settings(client_type=pb.ClientType.PRODUCER, publishing=named))


def test_a_group_that_is_refused_is_not_created(broker: Broker) -> None:
    """Neither by a heartbeat nor by settings, and its retry topic is not either; a member is renewed all the same."""
    broker.consume(1, "g")
    broker.table.memory.change(1, ConsumeConfig.client_memory_by_connection - broker.table.memory.total)
    broker.now = 100_000
    assert broker.beat(2, "g").status.code == pb.Code.OK
    with pytest.raises(Refused, match=f"{ConsumeConfig.client_memory_by_connection} are allowed"):
        broker.beat(2, "new")
    # There is memory for the member, but not for its settings.
    broker.table.memory.change(2, ConsumeConfig.client_memory_by_connection - 2_500)
    broker.consume(2, "new", client_id="other")
    assert broker.sent[2][-1].status.code == pb.Code.TOO_MANY_REQUESTS
    assert (broker.groups.get("new"), broker.topics.get("%RETRY%new")) == (None, None)
    broker.table.expire(200_000)
    assert broker.table.members("g") == ["me"]
