"""The effects of RocketMQ's keys in a broker's file, seen by clients and in the directory."""

import contextlib
import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from grpc import RpcError
from grpc_peer import GrpcPeer
from remoting_peer import Frame, Peer

from ferromq._ferromq import FramedCalls, RemotingClient
from ferromq._proto import messages as pb
from ferromq.broker.controller import BrokerController
from ferromq.config.broker import BrokerConfig
from ferromq.config.namesrv import NameServerConfig
from ferromq.namesrv.server import NamesrvController
from ferromq.process.clock import Clock

START = 1_700_000_000_000
SEND, PULL, ROUTE, MEMBERS, RECALL, SET_CONFIG, GET_CONFIG = 310, 11, 105, 38, 370, 25, 26
PUT_KV, REGISTER = 100, 103
QUERY, VIEW = 12, 33
HEARTBEAT, LOCK, BUSY = 34, 41, 2
SUCCESS, SYSTEM_ERROR, ILLEGAL, FORBIDDEN, NO_TOPIC, NOT_FOUND, NO_GROUP = 0, 1, 13, 16, 17, 22, 26
# Small files, so that nothing large is made.
SMALL = "mappedFileSizeCommitLog=1048576\nmaxHashSlotNum=100\nmaxIndexNum=400\nbindAddress=127.0.0.1\nlistenPort=0\n"
Eventually = Callable[[Callable[[], bool]], bool]


@pytest.fixture
def clock() -> Clock:
    """Return a clock moved by hand."""
    return Clock.manual(START)


@pytest.fixture
def start(tmp_path: Path, clock: Clock) -> Iterator[Callable[[str], BrokerController]]:
    """Return a function that starts a broker with lines of a `broker.conf`."""
    numbers = itertools.count()
    with contextlib.ExitStack() as started:

        def start(lines: str) -> BrokerController:
            directory = tmp_path / f"broker-{next(numbers)}"
            directory.mkdir()
            file = directory / "broker.conf"
            file.write_text(f"storePathRootDir={directory / 'root'}\n{SMALL}{lines}")
            config = BrokerConfig.load(file, environment={}, flags={"grpc_listen": "127.0.0.1:0", "fast_listen": "off"})
            return started.enter_context(contextlib.closing(BrokerController(config, clock=clock)))

        yield start


Start = Callable[[str], BrokerController]


def reach(broker: BrokerController) -> Peer:
    """Connect, whatever address the broker announces."""
    return Peer(f"127.0.0.1:{broker.address.rpartition(':')[2]}")


def send(peer: Peer, body: bytes = b"tea", topic: str = "orders", **properties: str) -> Frame:
    """Send as Java's producer does."""
    text = "".join(f"{name}\x01{value}\x02" for name, value in properties.items())
    flag = 4 if "TRAN_MSG" in properties else 0
    fields = {"a": "makers", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": str(flag), "g": str(START), "h": "0"}
    return peer.call(SEND, {**fields, "i": text, "j": "0", "k": "false", "m": "false"}, body)


@pytest.mark.parametrize(
    ("line", "properties", "code"),
    [
        ("timerWheelEnable=false", {"TIMER_DELAY_SEC": "5"}, ILLEGAL),
        ("timerMaxDelaySec=10", {"TIMER_DELAY_SEC": "11"}, ILLEGAL),
        ("maxMessageSize=2", {}, ILLEGAL),
        ("rejectTransactionMessage=true", {"TRAN_MSG": "true"}, FORBIDDEN),
        ("autoCreateTopicEnable=false", {}, NO_TOPIC),
        ("brokerPermission=4", {}, FORBIDDEN),
    ],
)
def test_a_send_is_refused(start: Start, line: str, properties: dict[str, str], code: int) -> None:
    """With RocketMQ's code for it; without the key it is taken."""
    with reach(start("")) as peer:
        assert send(peer, **properties).code == SUCCESS
    with reach(start(line)) as peer:
        answer = send(peer, **properties)
    assert answer.code == code, answer.remark


def test_a_send_is_answered_with_region_and_trace(start: Start) -> None:
    """As the keys say."""
    with reach(start("regionId=south\ntraceOn=false")) as peer:
        answer = send(peer)
    assert (answer.fields["MSG_REGION"], answer.fields["TRACE_ON"]) == ("south", "false")


def test_a_topic_created_on_first_use_has_its_queues(start: Start) -> None:
    """No more than the broker allows; fewer if the client asks for fewer."""
    broker = start("defaultTopicQueueNums=3")
    with reach(broker) as peer:
        assert send(peer).code == SUCCESS
    topic = broker.topics.get("orders")
    assert topic is not None
    assert (topic.read_queues, topic.write_queues) == (3, 3)


def test_a_delay_level_lasts_what_the_key_says(start: Start, clock: Clock, eventually: Eventually) -> None:
    """Levels above the last one are the last one."""
    broker = start("messageDelayLevel=3s 2m")
    with reach(broker) as peer:
        assert send(peer, b"soon", DELAY="1").code == SUCCESS
        assert send(peer, b"later", DELAY="9").code == SUCCESS

    def seen() -> list[bytes]:
        return [message.body for message in broker.store.get("orders", 0, 0)[1]]

    clock.advance(seconds=2)
    assert seen() == []
    clock.advance(seconds=2)
    assert eventually(lambda: seen() == [b"soon"])
    clock.advance(seconds=117)
    assert eventually(lambda: seen() == [b"soon", b"later"])


@pytest.mark.parametrize(
    ("lines", "pattern", "size"),
    [
        ("mappedFileSizeCommitLog=2097152", "root/commitlog/*", 2 << 20),
        ("storePathCommitLog={}/log", "log/0*", 1 << 20),
        ("mappedFileSizeConsumeQueue=401", "root/consumequeue/orders/0/*", 420),
        ("maxHashSlotNum=50\nmaxIndexNum=70", "root/index/*", 40 + 50 * 4 + 70 * 20),
        ("mappedFileSizeTimerLog=8192", "root/timerlog/*", 8192),
    ],
)
def test_files_have_their_places_and_sizes(
    start: Start, tmp_path: Path, eventually: Eventually, *, lines: str, pattern: str, size: int
) -> None:
    """Those of a Java broker with the same keys."""
    broker = start(lines.format(tmp_path / "broker-0"))
    with reach(broker) as peer:
        assert send(peer, KEYS="k").code == SUCCESS
        assert send(peer, TIMER_DELAY_SEC="60").code == SUCCESS
    # A file is found before it has its size.
    sizes: set[int] = set()

    def are_as_said() -> bool:
        sizes.clear()
        sizes.update(file.stat().st_size for file in (tmp_path / "broker-0").glob(pattern))
        return sizes == {size}

    assert eventually(are_as_said), sizes


@pytest.mark.parametrize("enabled", ["true", "false"])
def test_messages_are_found_by_key_where_an_index_is_built(
    start: Start, tmp_path: Path, eventually: Eventually, enabled: str
) -> None:
    """Otherwise no index file is made, and a query by key or unique key finds nothing; one by id does."""
    broker = start(f"messageIndexEnable={enabled}")
    asked = {"topic": "orders", "maxNum": "8", "beginTimestamp": "0", "endTimestamp": str(2**62)}
    is_indexed = enabled == "true"
    with reach(broker) as peer:
        assert send(peer, KEYS="k", UNIQ_KEY="u").code == SUCCESS
        assert eventually(lambda: broker.store.stats()["dispatched_offset"] > 0)
        for key, is_unique in (("k", "false"), ("u", "true")):
            answer = peer.call(QUERY, {**asked, "key": key, "_UNIQUE_KEY_QUERY": is_unique})
            assert answer.code == (SUCCESS if is_indexed else NOT_FOUND)
        assert peer.call(VIEW, {"offset": "0"}).code == SUCCESS
        assert f"messageIndexEnable={enabled}\n".encode() in peer.call(GET_CONFIG).body
        other = str(not is_indexed).lower().encode()
        assert "cannot change" in (peer.call(SET_CONFIG, body=b"messageIndexEnable=" + other).remark or "")
    assert len(list((tmp_path / "broker-0" / "root" / "index").iterdir())) == is_indexed


def test_a_record_has_a_checksum_of_its_own(start: Start, tmp_path: Path) -> None:
    """Its property stands in the log where the key asks for it."""
    for number, line in enumerate(("enabledAppendPropCRC=true", "enabledAppendPropCRC=false")):
        with reach(start(line)) as peer:
            assert send(peer).code == SUCCESS
        (log,) = (tmp_path / f"broker-{number}" / "root" / "commitlog").iterdir()
        assert (b"__CRC32#" in log.read_bytes()) == (number == 0)


def test_a_client_without_heartbeats_is_forgotten_in_time(start: Start, clock: Clock, eventually: Eventually) -> None:
    """The member's group is empty then."""
    broker = start("channelExpiredTimeout=5000")

    def is_known() -> bool:
        with reach(broker) as other:
            return other.call(MEMBERS, {"consumerGroup": "readers"}).code == SUCCESS

    with reach(broker) as peer:
        consumer = {"groupName": "readers", "subscriptionDataSet": [], "consumeType": "CONSUME_PASSIVELY"}
        consumer |= {"messageModel": "CLUSTERING", "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET", "unitMode": False}
        peer.heartbeat(consumerDataSet=[consumer])
        assert is_known()
        clock.advance(seconds=4)
        assert is_known()
        clock.advance(seconds=20)
        assert eventually(lambda: not is_known())


def test_a_group_is_not_created_on_first_use(start: Start) -> None:
    """A pull of an unknown group is refused."""
    broker = start("autoCreateSubscriptionGroup=false")
    with reach(broker) as peer:
        assert send(peer).code == SUCCESS
        asked = {"consumerGroup": "readers", "topic": "orders", "queueId": "0", "queueOffset": "0", "maxMsgNums": "1"}
        asked |= {"sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*"}
        assert peer.call(PULL, {**asked, "subVersion": "0"}).code == NO_GROUP


def test_recalls_can_be_refused(start: Start) -> None:
    """With the key, the answer names the option."""
    with reach(start("recallMessageEnable=false")) as peer:
        answer = peer.call(RECALL, {"producerGroup": "makers", "topic": "orders", "recallHandle": "x"})
    assert (answer.code, "recall is off" in (answer.remark or "")) == (FORBIDDEN, True)


def test_a_broker_announces_what_its_file_says(start: Start) -> None:
    """Its address, names and cluster, to name servers and in answers that show its options."""
    name_server = NamesrvController(NameServerConfig(listen="127.0.0.1:0"))
    with contextlib.closing(name_server):
        names = "brokerName=b\nbrokerClusterName=C\nbrokerIP1=10.0.0.7"
        broker = start(f"{names}\nnamesrvAddr={name_server.address}\ntraceTopicEnable=true\nmsgTraceTopicName=traces")
        port = broker.address.rpartition(":")[2]
        with Peer(name_server.address) as peer:
            answer = peer.call(ROUTE, {"topic": "traces", "acceptStandardJsonOnly": "true"})
        (told,) = answer.json()["brokerDatas"]
        assert told["brokerAddrs"] == {"0": f"10.0.0.7:{port}"}
        assert (told["brokerName"], told["cluster"]) == ("b", "C")
        with reach(broker) as peer:
            assert b"brokerIP1=10.0.0.7\n" in peer.call(GET_CONFIG).body


def test_a_larger_frame_ends_its_connection(start: Start) -> None:
    """Below the limit it is answered, also above RocketMQ's 16 MiB."""
    with reach(start("com.rocketmq.remoting.frameMaxLength=2097152")) as peer:
        assert send(peer, b"x" * (1 << 20)).code == ILLEGAL, "the log file is small"
        with pytest.raises(ConnectionError):
            send(peer, b"x" * (2 << 20))
    with reach(start("com.rocketmq.remoting.frameMaxLength=33554432")) as peer:
        assert send(peer, b"x" * (20 << 20)).code == ILLEGAL


def test_a_larger_grpc_request_is_refused_over_http2_and_in_frames(start: Start) -> None:
    """The option changes while the broker runs."""
    broker = start("grpcMaxInboundMessageSize=4194304")
    message = pb.Message(topic=pb.Resource(name="orders"), body=b"x" * (5 << 20))
    message.system_properties.message_id = "id"
    request = pb.SendMessageRequest(messages=[message])
    with GrpcPeer(broker.endpoint) as grpc, reach(broker) as peer:
        frames = FramedCalls()

        def framed() -> tuple[int, str | None]:
            return frames.call(broker.endpoint, "SendMessage", request.SerializeToString(), 10, "me")[:2]

        with pytest.raises(RpcError, match="over the limit of 4194304 bytes"):
            grpc.call("SendMessage", request)
        assert framed() == (8, "the request is over the limit of 4194304 bytes")
        assert peer.call(SET_CONFIG, body=b"grpcMaxInboundMessageSize=8388608").code == SUCCESS
        assert grpc.call("SendMessage", request).status.code == pb.Code.MESSAGE_BODY_TOO_LARGE
        assert framed() == (0, None)


@pytest.mark.parametrize(
    ("line", "refused"),
    [
        ("client_memory_by_connection=1048576", "of the clients of this connection"),
        ("client_memory=8388608", "all clients"),
    ],
)
def test_clients_may_occupy_what_the_file_says(start: Start, line: str, refused: str) -> None:
    """A heartbeat beyond that is refused, and names the limit and the option."""
    option, _, limit = line.partition("=")
    broker = start(line)
    groups = [{"groupName": f"group-{number}"} for number in range(1_000)]
    with contextlib.ExitStack() as stack:
        answers = []
        for number in range(9):
            peer = stack.enter_context(reach(broker))
            body = {"clientID": f"me@{number}", "producerDataSet": groups, "consumerDataSet": []}
            answers.append(peer.call(HEARTBEAT, body=json.dumps(body).encode()))
    assert answers[-1].code == ILLEGAL
    remark = answers[-1].remark or ""
    assert [text for text in (refused, f"{limit} are allowed", f"have {option} raised") if text not in remark] == []


def test_locks_may_occupy_what_the_file_says(start: Start) -> None:
    """A lock beyond that is refused, and names the limit and the option."""
    with reach(start("lock_memory=1048576")) as peer:
        queues = [{"topic": "orders", "brokerName": "broker-a", "queueId": number} for number in range(4_000)]
        body = {"consumerGroup": "g", "clientId": "me", "mqSet": queues}
        answer = peer.call(LOCK, body=json.dumps(body).encode())
    assert (answer.code, "1048576 are allowed" in (answer.remark or "")) == (BUSY, True)
    assert "have lock_memory raised" in (answer.remark or "")


def test_a_protected_option_is_refused_from_outside(start: Start) -> None:
    """With RocketMQ's code for it."""
    with reach(start("configBlackList=autoCreateTopicEnable")) as peer:
        assert peer.call(SET_CONFIG, body=b"autoCreateTopicEnable=false").code == FORBIDDEN
        assert peer.call(SET_CONFIG, body=b"defaultTopicQueueNums=3").code == SUCCESS


@pytest.mark.parametrize("returned", [True, False])
def test_a_name_server_tells_a_broker_of_orders(tmp_path: Path, returned: bool) -> None:
    """The answer to a registration has the order configurations, unless the key says otherwise."""
    file = tmp_path / "namesrv.conf"
    file.write_text(f"bindAddress=127.0.0.1\nlistenPort=0\nreturnOrderTopicConfigToBroker={str(returned).lower()}\n")
    name_server = NamesrvController(NameServerConfig.load(file, environment={}))
    client = RemotingClient()
    with contextlib.closing(name_server), contextlib.closing(client):
        entry = {"namespace": "ORDER_TOPIC_CONFIG", "key": "orders", "value": "b:4"}
        assert client.call(name_server.address, PUT_KV, entry)[0] == SUCCESS
        broker = {"brokerName": "b", "brokerAddr": "10.0.0.1:10911", "clusterName": "c", "brokerId": "0"}
        wrapper = {"dataVersion": {"counter": 1, "timestamp": 5}, "topicConfigTable": {}}
        body = json.dumps({"topicConfigSerializeWrapper": wrapper, "filterServerList": []}).encode()
        code, _, _, answer = client.call(
            name_server.address, REGISTER, {**broker, "haServerAddr": "", "bodyCrc32": "0"}, body
        )
    assert code == SUCCESS
    assert (b"b:4" in answer) == returned
