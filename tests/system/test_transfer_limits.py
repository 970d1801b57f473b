"""The limits of an answer: RocketMQ's, for consumers other than ferromq's own."""

import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from dispatching import dispatched
from remoting_peer import Frame, Peer

import ferromq
from ferromq._proto import messages as pb
from ferromq.spark.read.plan import QueueRange
from ferromq.spark.read.pull import pull as read_range

SUCCESS, NOT_FOUND = 0, 19
UPDATE_CONFIG, GET_CONFIG, PULL, SEND, POP = 25, 26, 11, 310, 200_050
SUSPEND, OWN_SUBSCRIPTION = 2, 4
KIB = 1 << 10


@pytest.fixture
def mq() -> Iterator[ferromq.Embedded]:
    """Run an embedded broker with a topic of two queues."""
    with ferromq.embedded() as embedded:
        with embedded.admin() as admin:
            admin.create_topic("orders", queues=2)
        yield embedded


@pytest.fixture
def peer(mq: ferromq.Embedded) -> Iterator[Peer]:
    """Connect a remoting client."""
    with Peer(mq.broker.address) as peer:
        yield peer


def send(
    mq: ferromq.Embedded, peer: Peer, count: int, size: int, *, queue: int = 0, tags: tuple[str, ...] = ("a",)
) -> None:
    """Send messages of *size* bytes with *tags* in turn, and return once they can be read."""
    for number in range(count):
        fields = {"a": "p", "b": "orders", "c": "TBW102", "d": "4", "e": str(queue), "f": "0", "g": "0", "h": "0"}
        more = {"i": f"TAGS\x01{tags[number % len(tags)]}\x02", "j": "0", "k": "false", "m": "false"}
        assert peer.call(SEND, {**fields, **more}, bytes(size)).code == SUCCESS
    dispatched(mq)


def pull(peer: Peer, offset: int = 0, tags: str = "*", flags: int = OWN_SUBSCRIPTION, **more: str) -> Frame:
    """Pull up to a thousand messages of queue 0."""
    fields = {"consumerGroup": "g", "topic": "orders", "queueId": "0", "queueOffset": str(offset), "maxMsgNums": "1000"}
    told = {"sysFlag": str(flags), "commitOffset": "0", "suspendTimeoutMillis": "20000", "subscription": tags}
    return peer.call(PULL, {**fields, **told, **more})


def pop(peer: Peer, group: str = "p") -> int:
    """Pop up to 32 messages of all queues, and return how many came."""
    names = {"consumerGroup": group, "topic": "orders", "queueId": "-1", "expType": "TAG", "exp": "*", "order": "false"}
    times = {"invisibleTime": "60000", "pollTime": "0", "bornTime": "1"}
    return records(peer.call(POP, {**names, **times, "maxMsgNums": "32", "initMode": "0"}))


def records(answer: Frame) -> int:
    """Count the records of an answer."""
    count, rest = 0, answer.body
    while rest:
        rest = rest[struct.unpack_from(">i", rest)[0] :]
        count += 1
    return count


def change(peer: Peer, **options: str) -> None:
    """Change options by RocketMQ's names, and see them shown."""
    lines = [f"{name}={value}" for name, value in options.items()]
    answer = peer.call(UPDATE_CONFIG, {}, "\n".join(lines).encode())
    assert answer.code == SUCCESS, answer.remark
    assert set(lines) <= set(peer.call(GET_CONFIG, {}).body.decode().splitlines())


def test_a_pull_gives_32_messages_and_a_capped_consumer_sees_all(mq: ferromq.Embedded, peer: Peer) -> None:
    """It goes on at the answer's offset; at the end it waits, and is woken."""
    send(mq, peer, 70, 10)
    offset, counts = 0, []
    while (answer := pull(peer, offset)).code == SUCCESS:
        counts.append(records(answer))
        offset = int(answer.fields["nextBeginOffset"])
    assert (counts, offset, answer.code) == ([32, 32, 6], 70, NOT_FOUND)
    assert records(pull(peer, ferromqLarge="true")) == 70
    assert records(pull(peer, maxMsgNums="5")) == 5
    with Peer(mq.broker.address) as other, ThreadPoolExecutor(1) as pool:
        late = pool.submit(pull, peer, 70, flags=SUSPEND | OWN_SUBSCRIPTION)
        send(mq, other, 1, 10)
        assert records(late.result()) == 1


def test_a_filtered_pull_is_capped_by_what_it_gives(mq: ferromq.Embedded, peer: Peer) -> None:
    """Messages that the filter skips do not count."""
    send(mq, peer, 90, 10, tags=("a", "b"))
    offset, counts = 0, []
    while (answer := pull(peer, offset, "b")).code == SUCCESS:
        counts.append(records(answer))
        offset = int(answer.fields["nextBeginOffset"])
    assert (counts, offset) == ([32, 13], 90)


def test_a_pull_gives_256_kib_and_the_first_message_whatever_its_size(mq: ferromq.Embedded, peer: Peer) -> None:
    """Records count with all of their fields."""
    send(mq, peer, 3, 100 * KIB)
    send(mq, peer, 2, 300 * KIB)
    assert [records(pull(peer, offset)) for offset in range(5)] == [2, 2, 1, 1, 1]
    assert records(pull(peer, ferromqLarge="true")) == 5


def test_options_change_the_limits_at_once(mq: ferromq.Embedded, peer: Peer) -> None:
    """Under RocketMQ's names; messages far behind the end of the log have limits of their own."""
    send(mq, peer, 70, 10 * KIB)
    assert records(pull(peer)) == 25
    change(peer, maxTransferCountOnMessageInMemory="50", maxTransferBytesOnMessageInMemory=str(4 << 20))
    assert records(pull(peer)) == 50
    change(peer, maxTransferBytesOnMessageInMemory="20000")
    assert records(pull(peer)) == 1
    change(peer, accessMessageInMemoryMaxRatio="0")
    assert records(pull(peer)) == 6
    change(peer, maxTransferBytesOnMessageInDisk=str(1 << 20), maxTransferCountOnMessageInDisk="9")
    assert records(pull(peer)) == 9
    assert pop(peer) == 9
    assert records(pull(peer, ferromqLarge="true")) == 70
    refused = peer.call(UPDATE_CONFIG, {}, b"maxTransferCountOnMessageInMemory=4097")
    assert "it may be 1 to 4096" in (refused.remark or "")


def test_a_look_with_a_filter_skips_a_bounded_number_of_messages(mq: ferromq.Embedded, peer: Peer) -> None:
    """RocketMQ counts 20 bytes for each."""
    send(mq, peer, 60, 10, tags=("a", *["b"] * 39))
    change(peer, maxFilterMessageSize="600")
    answer = pull(peer, 0, "a", maxMsgNums="10")
    assert (records(answer), answer.fields["nextBeginOffset"]) == (1, "30")
    change(peer, maxFilterMessageSize="820")
    answer = pull(peer, 0, "a", maxMsgNums="10")
    assert (records(answer), answer.fields["nextBeginOffset"]) == (2, "41")


def test_each_queue_of_a_pop_has_the_limits(mq: ferromq.Embedded, peer: Peer) -> None:
    """Two queues give two messages of 100 KiB each."""
    for queue in (0, 1):
        send(mq, peer, 5, 100 * KIB, queue=queue)
    assert [pop(peer) for _ in range(4)] == [4, 4, 2, 0]


def test_ferromqs_own_readers_ask_for_more(mq: ferromq.Embedded, peer: Peer) -> None:
    """Consumers and Spark need one request; others need several."""
    send(mq, peer, 10, 100 * KIB)
    with mq.consumer("g", "orders") as consumer:
        assert len(consumer.receive(max_messages=10)) == 10
    for protocol, endpoint in (("remoting", mq.broker.address), ("grpc", mq.endpoint)):
        wanted = QueueRange("orders", mq.broker.config.name, endpoint, 0, 0, 10, protocol)
        assert [rows for rows, _ in read_range(wanted)] == [10]


def test_other_clients_over_grpc_have_the_limits_in_each_queue(mq: ferromq.Embedded, peer: Peer) -> None:
    """A receive of two queues, and a pull of one."""
    for queue in (0, 1):
        send(mq, peer, 5, 100 * KIB, queue=queue)
    topic = pb.Resource(name="orders")
    receive = pb.ReceiveMessageRequest(
        group=pb.Resource(name="g"), message_queue=pb.MessageQueue(topic=topic, id=-1), batch_size=32
    )
    receive.invisible_duration.FromSeconds(60)
    assert [given(mq, "Receive", receive, pb.ReceiveMessageResponse) for _ in range(3)] == [4, 4, 2]
    pull = pb.PullMessageRequest(message_queue=pb.MessageQueue(topic=topic, id=0), offset=1, batch_size=32)
    assert given(mq, "Pull", pull, pb.PullMessageResponse) == 2


def given(mq: ferromq.Embedded, verb: str, request: Any, response: Any) -> int:
    """Ask as RocketMQ's clients do, and return how many messages come."""
    with grpc.insecure_channel(mq.endpoint) as channel:
        call = channel.unary_stream(f"/apache.rocketmq.v2.MessagingService/{verb}Message")
        metadata = (("x-mq-client-id", "other@1"), ("x-mq-language", "JAVA"), ("x-mq-client-version", "5.0.7"))
        parts = map(response.FromString, call(request.SerializeToString(), metadata=metadata, timeout=30))
        return sum(part.WhichOneof("content") == "message" for part in parts)
