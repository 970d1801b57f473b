"""Check-back over sockets, on a virtual clock: producers of both protocols are asked, and their answer counts."""

import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_peer import GrpcPeer
from remoting_peer import Peer

import ferromq
from ferromq._ferromq import Clock, Store, StoredMessage, decode_records
from ferromq._proto import messages as pb

SEND, END_TRANSACTION, CHECK, GET_CONFIG, UPDATE_CONFIG, STATISTICS = 310, 37, 39, 26, 25, 315
RUNTIME_INFO = 28
HALF, DISCARDED = "RMQ_SYS_TRANS_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC"
COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0
START = 1_700_000_000_000
CLIENT = (("x-mq-client-id", "payer@here"),)
Eventually = Callable[[Callable[[], bool]], bool]


@pytest.fixture
def mq(tmp_path: Path) -> Iterator[ferromq.Embedded]:
    """Run a broker in this process, on a clock of its own."""
    with ferromq.embedded(tmp_path, clock=Clock.manual(START)) as running:
        yield running


def prepare(peer: Peer, body: bytes, *, group: str = "payers", **properties: str) -> Mapping[str, str]:
    """Send a half message as Java's producer does; return the fields that end it, but for the decision."""
    given = {"TRAN_MSG": "true", "PGROUP": group, "UNIQ_KEY": "K1", **properties}
    text = "".join(f"{name}\x01{value}\x02" for name, value in given.items())
    names = {"a": group, "b": "orders", "c": "TBW102", "d": "1", "e": "0", "f": "4", "h": "0", "j": "0", "k": "false"}
    answer = peer.call(SEND, {**names, "g": str(START), "i": text, "m": "false"}, body)
    assert answer.code == 0, answer.remark
    return {
        "producerGroup": group,
        "tranStateTableOffset": answer.fields["queueOffset"],
        "commitLogOffset": str(int(answer.fields["msgId"][16:], 16)),
    }


def end(peer: Peer, half: Mapping[str, str], decision: int, *, is_checked: bool = True) -> int:
    """End it, and return the answer's code."""
    fields = {**half, "commitOrRollback": str(decision), "fromTransactionCheck": str(is_checked).lower()}
    return peer.call(END_TRANSACTION, fields).code


def records(store: Store, topic: str) -> list[StoredMessage]:
    """Return what all queues of a topic hold."""
    return [
        message for queue_id in store.queues().get(topic, []) for message in store.get(topic, queue_id, 0, 1_000)[1]
    ]


def bodies(store: Store, topic: str = "orders") -> list[bytes]:
    """Return the bodies of what all queues of a topic hold."""
    return [message.body for message in records(store, topic)]


class GrpcProducer:
    """A gRPC producer of `orders` that keeps the commands of its telemetry stream."""

    def __init__(self, endpoint: str) -> None:
        self.channel = grpc.insecure_channel(endpoint)
        self.told = queue.SimpleQueue[pb.TelemetryCommand]()
        self._said = queue.SimpleQueue[bytes | None]()
        self._stream = self.channel.stream_stream("/apache.rocketmq.v2.MessagingService/Telemetry")(
            iter(self._said.get, None), metadata=CLIENT
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        publishing = pb.Publishing(topics=[pb.Resource(name="orders")])
        settings = pb.Settings(client_type=pb.ClientType.PRODUCER, publishing=publishing)
        self._said.put(pb.TelemetryCommand(settings=settings).SerializeToString())
        assert self.told.get(timeout=10).status.code == pb.Code.OK

    def end(self, **fields: Any) -> pb.Status:
        """End a transaction of `orders`."""
        request = pb.EndTransactionRequest(**{"topic": pb.Resource(name="orders"), **fields})
        call = self.channel.unary_unary("/apache.rocketmq.v2.MessagingService/EndTransaction")
        answer = call(request.SerializeToString(), metadata=CLIENT, timeout=10)
        return pb.EndTransactionResponse.FromString(answer).status

    def close(self) -> None:
        """End the stream and the connection."""
        self._said.put(None)
        self.channel.close()
        self._reader.join(10)

    def _read(self) -> None:
        try:
            for message in self._stream:
                self.told.put(pb.TelemetryCommand.FromString(message))
        except grpc.RpcError:
            return


@pytest.fixture
def producer(mq: ferromq.Embedded) -> Iterator[GrpcProducer]:
    """Yield a gRPC producer of the broker."""
    client = GrpcProducer(mq.endpoint)
    yield client
    client.close()


def settled(mq: ferromq.Embedded) -> bool:
    """Say whether readers see all that was stored."""
    stats = mq.store.stats()
    return stats["dispatched_offset"] == stats["max_physical_offset"]


def test_a_remoting_producer_is_asked_until_it_knows(mq: ferromq.Embedded, eventually: Eventually) -> None:
    """It answers "unknown" twice, then "commit": as if it had committed at once."""
    with Peer(mq.broker.address) as peer:
        peer.heartbeat(produces=("payers",))
        first = prepare(peer, b"paid")
        for times in ("1", "2", "3"):
            assert eventually(lambda: settled(mq))
            mq.clock.advance(seconds=31)
            asked = peer.asked(CHECK)
            assert asked.is_one_way
            (message,) = decode_records(asked.body)
            assert (message.topic, message.body) == ("orders", b"paid")
            assert message.properties["TRANSACTION_CHECK_TIMES"] == times
            half = {"producerGroup": "payers", **asked.fields}
            assert end(peer, half, UNKNOWN) == 0
        assert bodies(mq.store) == []
        assert end(peer, half, COMMIT) == 0
        assert end(peer, first, COMMIT, is_checked=False) == 0
        assert eventually(lambda: bodies(mq.store) == [b"paid"])
        mq.clock.advance(seconds=31)
        assert not peer.has_been_asked(CHECK)


def test_a_grpc_producer_is_asked_and_ends_by_the_id_it_was_told(
    mq: ferromq.Embedded, producer: GrpcProducer, eventually: Eventually
) -> None:
    """Its producer group is the topic; a second answer changes nothing."""
    with Peer(mq.broker.address) as peer:
        prepare(peer, b"paid", group="orders")
    assert eventually(lambda: settled(mq))
    mq.clock.advance(seconds=31)
    command = producer.told.get(timeout=10).recover_orphaned_transaction_command
    assert (command.message.topic.name, command.message.body) == ("orders", b"paid")
    named = {
        "message_id": command.message.system_properties.message_id,
        "transaction_id": command.transaction_id,
        "resolution": pb.TransactionResolution.COMMIT,
        "source": pb.TransactionSource.SOURCE_SERVER_CHECK,
    }
    for _ in range(2):
        assert producer.end(**named).code == pb.Code.OK
    assert eventually(lambda: bodies(mq.store) == [b"paid"])


def test_an_answer_may_leave_out_the_version_of_the_message_id(
    mq: ferromq.Embedded, producer: GrpcProducer, eventually: Eventually
) -> None:
    """As that of RocketMQ's Python client 5.0.1 does."""
    with GrpcPeer(mq.endpoint) as peer:
        peer.send("orders", "paid", message_type=pb.MessageType.TRANSACTION)
    assert eventually(lambda: settled(mq))
    mq.clock.advance(seconds=31)
    command = producer.told.get(timeout=10).recover_orphaned_transaction_command
    message_id = command.message.system_properties.message_id
    assert message_id.startswith("01")
    ended = producer.end(
        message_id=message_id[2:],
        transaction_id=command.transaction_id,
        resolution=pb.TransactionResolution.COMMIT,
        source=pb.TransactionSource.SOURCE_SERVER_CHECK,
    )
    assert ended.code == pb.Code.OK
    assert eventually(lambda: bodies(mq.store) == [b"paid"])


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"transaction_id": " "}, pb.Code.INVALID_TRANSACTION_ID),
        ({"transaction_id": "K1"}, pb.Code.INVALID_TRANSACTION_ID),
        ({"transaction_id": f"{5:016X}{0:016X}"}, pb.Code.INVALID_TRANSACTION_ID),
        ({"transaction_id": f"{0:016X}{7:016X}"}, pb.Code.INVALID_TRANSACTION_ID),
        ({"message_id": "K2"}, pb.Code.INVALID_TRANSACTION_ID),
        ({"topic": pb.Resource(name="trains")}, pb.Code.INVALID_TRANSACTION_ID),
        ({"topic": pb.Resource(name="no topic")}, pb.Code.ILLEGAL_TOPIC),
        ({"resolution": pb.TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED}, pb.Code.OK),
    ],
)
def test_an_invalid_end_over_grpc_leaves_the_transaction_open(
    mq: ferromq.Embedded, producer: GrpcProducer, eventually: Eventually, fields: dict[str, Any], code: int
) -> None:
    """Another id, message or topic is refused; an unspecified decision decides nothing."""
    with Peer(mq.broker.address) as peer:
        half = prepare(peer, b"paid", group="orders")
    right = {
        "message_id": "K1",
        "transaction_id": f"{int(half['commitLogOffset']):016X}{int(half['tranStateTableOffset']):016X}",
        "resolution": pb.TransactionResolution.COMMIT,
    }
    assert producer.end(**{**right, **fields}).code == code
    assert bodies(mq.store) == []
    assert producer.end(**right).code == pb.Code.OK
    assert eventually(lambda: bodies(mq.store) == [b"paid"])


def test_options_of_half_messages_change_at_run_time(tmp_path: Path, eventually: Eventually) -> None:
    """RocketMQ's keys: half messages may be refused, and the properties that the broker adds are in the answer."""
    options = {"reject_transactions": True, "region": "north", "trace": False}
    with ferromq.embedded(tmp_path, **options) as mq, Peer(mq.broker.address) as peer:
        with pytest.raises(AssertionError, match=r"transaction"):
            prepare(peer, b"refused")
        shown = peer.call(GET_CONFIG).body.decode().splitlines()
        assert {"rejectTransactionMessage=true", "regionId=north", "traceOn=false"} <= set(shown)
        assert {"transactionCheckInterval=30000", "transactionCheckMax=15", "transactionTimeOut=6000"} <= set(shown)
        changed = "rejectTransactionMessage=false\nregionId=south\ntraceOn=true\ntransactionCheckInterval=60000"
        assert peer.call(UPDATE_CONFIG, body=changed.encode()).code == 0
        prepare(peer, b"taken")
        assert eventually(lambda: bodies(mq.store, HALF) == [b"taken"])
        (message,) = mq.store.get(HALF, 0, 0)[1]
        assert (message.properties["MSG_REGION"], message.properties["TRACE_ON"]) == ("south", "true")


def test_the_time_between_rounds_is_an_option(tmp_path: Path, eventually: Eventually) -> None:
    """So are how long a producer has, and how often it is asked; here they change while the broker runs."""
    options = {"transaction_check_interval": "10s", "transaction_timeout": "20s", "transaction_check_max": 1}
    with (
        ferromq.embedded(tmp_path, clock=Clock.manual(START), **options) as mq,
        Peer(mq.broker.address) as peer,
    ):
        peer.heartbeat(produces=("payers",))
        prepare(peer, b"paid")
        assert eventually(lambda: settled(mq))
        mq.clock.advance(seconds=20)
        assert not peer.has_been_asked(CHECK)
        mq.clock.advance(seconds=10)
        peer.asked(CHECK)
        assert peer.call(UPDATE_CONFIG, body=b"transactionCheckInterval=60000").code == 0
        assert eventually(lambda: settled(mq))
        mq.clock.advance(seconds=59)
        assert bodies(mq.store, DISCARDED) == []
        mq.clock.advance(seconds=1)
        assert eventually(lambda: bodies(mq.store, DISCARDED) == [b"paid"])


def test_committed_messages_count_as_stored(mq: ferromq.Embedded, eventually: Eventually) -> None:
    """Once each, from any sender; rolled back ones do not."""
    with Peer(mq.broker.address) as peer:
        assert end(peer, prepare(peer, b"paid"), COMMIT) == 0
        assert end(peer, prepare(peer, b"not paid"), ROLLBACK) == 0
        assert eventually(lambda: bodies(mq.store) == [b"paid"])
        asked = {"statsName": "TOPIC_PUT_NUMS", "statsKey": "orders"}
        mq.clock.advance(seconds=10)
        assert peer.call(STATISTICS, asked).json()["statsMinute"]["sum"] == 1
        asked["statsName"] = "TOPIC_PUT_SIZE"
        assert peer.call(STATISTICS, asked).json()["statsMinute"]["sum"] == len(records(mq.store, "orders")[0].raw)


def counts(peer: Peer) -> dict[str, int]:
    """Return the values of request 28 about transactions, by the rest of their names."""
    table = peer.call(RUNTIME_INFO).json()["table"]
    prefix = "transaction"
    return {name.removeprefix(prefix): int(value) for name, value in table.items() if name.startswith(prefix)}


def test_open_transactions_and_their_checks_are_counted(tmp_path: Path, eventually: Eventually) -> None:
    """`brokerStatus` has the numbers of open, checked and abandoned ones."""
    options = {"transaction_check_max": 2}
    with (
        ferromq.embedded(tmp_path, clock=Clock.manual(START), **options) as mq,
        Peer(mq.broker.address) as peer,
    ):
        peer.heartbeat(produces=("payers",))
        first = prepare(peer, b"paid")
        prepare(peer, b"open", UNIQ_KEY="K2")
        prepare(peer, b"nobody's", group="nobody", UNIQ_KEY="K3")
        assert end(peer, first, COMMIT) == 0
        none = {"Checked": 0, "CheckedUnreachable": 0, "CheckRefused": 0, "Discarded": 0, "HalfLost": 0}
        assert eventually(lambda: settled(mq))
        assert counts(peer) == {**none, "HalfOpen": 2}
        for rounds in (1, 2):
            mq.clock.advance(seconds=31)
            assert eventually(lambda: settled(mq))
            assert counts(peer) == {**none, "HalfOpen": 2, "Checked": rounds, "CheckedUnreachable": rounds}
        mq.clock.advance(seconds=31)
        assert eventually(lambda: settled(mq))
        assert counts(peer) == {**none, "HalfOpen": 0, "Checked": 2, "CheckedUnreachable": 2, "Discarded": 2}
