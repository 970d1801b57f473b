"""Limits of users and topics: which requests they refuse, by which code, and how clients go on."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from dispatching import dispatched
from grpc_peer import GrpcPeer
from remoting_peer import Frame, Peer

import ferromq
from ferromq import Clock
from ferromq._ferromq import RemotingClient
from ferromq._proto import messages as pb
from ferromq.broker.controller import BrokerController
from ferromq.client.connection import Channels
from ferromq.config.broker import BrokerConfig
from ferromq.errors import Throttled
from ferromq.protocol.codes import RequestCode, ResponseCode

ADA, BOB = ("ada", "ada's key"), ("bob", "bob's key")
PATIENCE = 30.0
BEGIN_MS = 1_700_000_000_000
Eventually = Callable[[Callable[[], bool]], bool]


@pytest.fixture
def clock() -> Clock:
    """Return a clock that the test moves."""
    return Clock.manual()


@pytest.fixture
def mq(clock: Clock) -> Iterator[ferromq.Embedded]:
    """Run a broker whose topics have a queue and take four messages a second, and hand out four."""
    with ferromq.embedded(clock=clock, default_queues=1, limits=["topic=* send=4 receive=4"]) as mq:
        with mq.admin() as admin:
            admin.create_topic("orders", queues=1)
        yield mq


@pytest.fixture
def peer(mq: ferromq.Embedded) -> Iterator[Peer]:
    """Connect a remoting client."""
    with Peer(mq.broker.address) as peer:
        yield peer


@pytest.fixture
def grpc(mq: ferromq.Embedded) -> Iterator[GrpcPeer]:
    """Connect a gRPC client."""
    with GrpcPeer(mq.endpoint) as grpc:
        yield grpc


def send(peer: Peer, topic: str = "orders") -> Frame:
    """Send a message in Java's short form."""
    names = {"a": "producer", "b": topic, "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": "1", "h": "0", "i": ""}
    return peer.call(RequestCode.SEND_MESSAGE_V2, names | {"j": "0", "k": "false", "m": "false"}, b"x")


def pull(peer: Peer, count: int) -> Frame:
    """Pull the queue from its beginning."""
    fields = {
        "consumerGroup": "g",
        "topic": "orders",
        "queueId": "0",
        "queueOffset": "0",
        "maxMsgNums": str(count),
        "sysFlag": "4",
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subscription": "*",
        "subVersion": "1",
    }
    return peer.call(RequestCode.PULL_MESSAGE, fields)


def pop(peer: Peer, count: int) -> Frame:
    """Pop messages."""
    fields = {
        "consumerGroup": "g",
        "topic": "orders",
        "queueId": "-1",
        "maxMsgNums": str(count),
        "order": "false",
        "invisibleTime": "60000",
        "pollTime": "0",
        "bornTime": "1",
        "initMode": "0",
        "expType": "TAG",
        "exp": "*",
    }
    return peer.call(RequestCode.POP_MESSAGE, fields)


def test_remoting_sends_over_the_limit_are_busy(mq: ferromq.Embedded, peer: Peer, clock: Clock) -> None:
    """Java sends such a message again, to another broker; the remark names the limit, and the metrics count it."""
    assert [send(peer).code for _ in range(5)] == [ResponseCode.SUCCESS] * 4 + [ResponseCode.SYSTEM_BUSY]
    assert "the limit of 4 messages/s for sends of topic orders" in (send(peer).remark or "")
    clock.advance(seconds=0.5)
    assert [send(peer).code for _ in range(3)] == [ResponseCode.SUCCESS] * 2 + [ResponseCode.SYSTEM_BUSY]
    assert mq.broker._server.stats()["over_topic_limit"] == 3


def test_messages_given_back_are_free_and_sends_to_a_retry_topic_are_not(
    mq: ferromq.Embedded, peer: Peer, clock: Clock
) -> None:
    """Java sends a message to the retry topic if its request to give it back fails; refused, it keeps the message."""
    with mq.admin() as admin:
        admin.create_group("g")
    retry = "%RETRY%g"
    assert [send(peer, retry).code for _ in range(6)][-1] == ResponseCode.SYSTEM_BUSY
    stored = send(peer)
    offset = int(stored.fields["msgId"][-16:], 16)
    back = {"offset": str(offset), "group": "g", "delayLevel": "0", "originMsgId": "1", "originTopic": "orders"}
    more = {"unitMode": "false", "maxReconsumeTimes": "16"}
    given_back = [peer.call(RequestCode.CONSUMER_SEND_MSG_BACK, back | more).code for _ in range(10)]
    assert given_back == [ResponseCode.SUCCESS] * 10
    clock.advance(seconds=1)
    assert send(peer, retry).code == ResponseCode.SUCCESS


def test_grpc_sends_over_the_limit_are_too_many_requests(grpc: GrpcPeer) -> None:
    """The code is in the status of the answer."""
    for _ in range(4):
        grpc.send("orders", "x")
    status = grpc.send("orders", "x", wanted=None).status
    assert status.code == pb.Code.TOO_MANY_REQUESTS
    assert "4 messages/s" in status.message


def test_remoting_reads_over_the_limit_get_flow_control(mq: ferromq.Embedded, peer: Peer, clock: Clock) -> None:
    """Pulls and pops, which Java repeats 20 ms later; a refused pop leases nothing."""
    for _ in range(4):
        send(peer)
    dispatched(mq)
    assert pull(peer, 32).code == ResponseCode.SUCCESS
    assert [pull(peer, 32).code, pop(peer, 32).code] == [ResponseCode.FLOW_CONTROL] * 2
    clock.advance(seconds=1)
    assert pop(peer, 32).code == ResponseCode.SUCCESS
    assert mq.broker._server.stats()["received"] == 4


def test_grpc_receives_over_the_limit_are_too_many_requests(mq: ferromq.Embedded, grpc: GrpcPeer, clock: Clock) -> None:
    """And what was received is acknowledged all the same."""
    for _ in range(4):
        grpc.send("orders", "x")
    dispatched(mq)
    (message, *_) = grpc.receive("g", "orders", count=4)
    with pytest.raises(AssertionError, match="TOO_MANY_REQUESTS"):
        grpc.receive("g", "orders")
    assert grpc.ack("g", "orders", message) == pb.Code.OK
    clock.advance(seconds=1)
    assert grpc.receive("g", "orders") == []


def test_our_clients_wait_and_go_on(tmp_path: Path) -> None:
    """Sends and receives above the rate take longer, and none fails."""
    with ferromq.embedded(tmp_path, limits=["topic=* send=10 receive=10"]) as mq, ferromq.connect(mq.endpoint) as here:
        with here.producer() as producer:
            for number in range(15):
                producer.send("orders", b"%d" % number)
        with here.consumer("billing", "orders", begin="first") as consumer:
            seen: list[bytes] = []
            while len(seen) < 15:
                messages = consumer.receive(8, wait=PATIENCE)
                consumer.ack(messages)
                seen += [message.body for message in messages]
        assert sorted(seen, key=int) == [b"%d" % number for number in range(15)]
        assert mq.broker._server.stats()["over_topic_limit"] > 0


@pytest.mark.parametrize("is_framed", [True, False])
def test_our_readers_wait_and_go_on(clock: Clock, monkeypatch: pytest.MonkeyPatch, *, is_framed: bool) -> None:
    """A pull or a receive without a wait says which limit it met."""
    if not is_framed:
        monkeypatch.setattr(Channels, "is_framed", lambda *_: False)
    with (
        ferromq.embedded(clock=clock, default_queues=1) as mq,
        ferromq.connect(mq.endpoint) as here,
        here.producer() as producer,
        here.consumer("billing", "orders", begin="first") as consumer,
        here.reader("orders", begin="first") as reader,
    ):
        producer.send_all("orders", [b"%d" % number for number in range(6)])
        (queue,) = consumer.queues()
        with mq.admin() as admin:
            admin.configure_broker(mq.broker.identity.name, {"limits": "topic=orders receive=4"})
        assert consumer.pull(queue, 0, 6).next_offset == 6
        for read in (lambda: consumer.pull(queue, 0, 6), lambda: consumer.receive(1, wait=0)):
            with pytest.raises(Throttled, match="the limit of 4 messages/s for receives of topic orders"):
                read()
        refused = mq.broker._server.stats()["over_topic_limit"]
        time_passes = threading.Event()

        def pass_time() -> None:
            # Only once the reader was refused there is room for it.
            while mq.broker._server.stats()["over_topic_limit"] == refused and not time_passes.wait(0.01):
                pass
            clock.advance(seconds=1)

        with ThreadPoolExecutor(1) as threads:
            passing = threads.submit(pass_time)
            try:
                message = next(iter(reader))
            finally:
                time_passes.set()
            passing.result()
        assert message.body == b"0"


def test_users_have_limits_of_their_own(tmp_path: Path) -> None:
    """A user who sends too much is refused, another one is not, by each way of a client."""
    options = {"authentication_enabled": True, "initial_user": ":".join(ADA), "inner_credentials": ":".join(BOB)}
    with ferromq.embedded(tmp_path, clock=Clock.manual(), limits=["user=ada send=2"], **options) as mq:
        with (
            ferromq.connect(mq.endpoint, access_key=ADA[0], secret_key=ADA[1]) as ada,
            ferromq.connect(mq.endpoint, access_key=BOB[0], secret_key=BOB[1]) as bob,
            ada.producer(attempts=1) as limited,
            bob.producer() as free,
        ):
            for _ in range(2):
                limited.send("orders", b"x")
            with pytest.raises(ferromq.Throttled, match="user ada"):
                limited.send("orders", b"x")
            for _ in range(5):
                free.send("orders", b"x")
        assert mq.broker._server.stats()["over_user_limit"] > 0


@pytest.fixture
def shared() -> Iterator[ferromq.Embedded]:
    """Run a broker where ada may have two connections, and bob any number."""
    options = {"authentication_enabled": True, "initial_user": ":".join(ADA), "inner_credentials": ":".join(BOB)}
    with ferromq.embedded(default_queues=1, limits=["user=ada connections=2"], **options) as mq:
        yield mq


def by(peer: RemotingClient, mq: ferromq.Embedded, code: RequestCode = RequestCode.GET_BROKER_RUNTIME_INFO) -> int:
    """Return the code of the answer to a request without fields."""
    return peer.call(mq.broker.address, code)[0]


def test_connections_of_a_user_over_remoting_are_limited(shared: ferromq.Embedded, eventually: Eventually) -> None:
    """The third one is refused and stays open, for other users and for what keeps progress; a closed one makes room."""
    clients = [RemotingClient(credentials=ADA) for _ in range(3)]
    assert [by(client, shared) for client in clients] == [ResponseCode.SUCCESS] * 2 + [ResponseCode.SYSTEM_BUSY]
    assert [by(client, shared) for client in clients] == [ResponseCode.SUCCESS] * 2 + [ResponseCode.SYSTEM_BUSY]
    code, remark, *_ = clients[2].call(shared.broker.address, RequestCode.HEART_BEAT)
    assert (code, "connections of the user ada are at their limit of 2" in (remark or "")) == (
        ResponseCode.SYSTEM_BUSY,
        True,
    )
    assert by(clients[2], shared, RequestCode.UPDATE_CONSUMER_OFFSET) != ResponseCode.SYSTEM_BUSY
    assert shared.broker._server.stats()["over_user_connections"] == 3
    with closing(RemotingClient(credentials=BOB)) as other:
        assert by(other, shared) == ResponseCode.SUCCESS
    with Peer(shared.broker.address) as anonymous:
        assert anonymous.call(RequestCode.GET_BROKER_RUNTIME_INFO).code == ResponseCode.NO_PERMISSION
    before = shared.broker._server.stats()["connections"]
    clients[0].close()
    eventually(lambda: shared.broker._server.stats()["connections"] < before)
    assert by(clients[2], shared) == ResponseCode.SUCCESS
    for client in clients[1:]:
        client.close()


def test_connections_of_a_user_over_grpc_are_limited(shared: ferromq.Embedded) -> None:
    """They count together with those of remoting; ferromq's own client says why it is refused."""
    first, second = (RemotingClient(credentials=ADA) for _ in range(2))
    with closing(first), closing(second):
        assert [by(first, shared), by(second, shared)] == [ResponseCode.SUCCESS] * 2
        with (
            ferromq.connect(shared.endpoint, access_key=ADA[0], secret_key=ADA[1]) as ada,
            ada.producer(attempts=1) as producer,
            pytest.raises(ferromq.Throttled, match="connections of the user ada are at their limit of 2"),
        ):
            producer.send("orders", b"x")
        with ferromq.connect(shared.endpoint, access_key=BOB[0], secret_key=BOB[1]) as bob, bob.producer() as producer:
            producer.send("orders", b"x")


def test_a_connection_of_framed_calls_loses_its_place(shared: ferromq.Embedded) -> None:
    """It is the newer one of the two that a producer has."""
    address = shared.broker.address
    with (
        closing(RemotingClient(credentials=BOB)) as admin,
        ferromq.connect(shared.endpoint, access_key=ADA[0], secret_key=ADA[1]) as ada,
        ada.producer(attempts=1) as producer,
    ):
        producer.send("orders", b"x")
        changed = b"limits=user=ada connections=1\n"
        assert admin.call(address, RequestCode.UPDATE_BROKER_CONFIG, body=changed)[0] == ResponseCode.SUCCESS
        with pytest.raises(ferromq.Throttled, match="connections of the user ada are at their limit of 1"):
            producer.send("orders", b"x")
        assert admin.call(address, RequestCode.UPDATE_BROKER_CONFIG, body=b"limits=\n")[0] == ResponseCode.SUCCESS
        producer.send("orders", b"x")


@pytest.mark.parametrize("is_framed", [True, False])
def test_what_was_begun_ends_beyond_the_limit(
    shared: ferromq.Embedded, monkeypatch: pytest.MonkeyPatch, *, is_framed: bool
) -> None:
    """A refused acknowledgement would deliver the messages again, a refused commit keep the half message."""
    if not is_framed:
        monkeypatch.setattr(Channels, "is_framed", lambda *_: False)

    def limit(connections: int) -> None:
        with closing(RemotingClient(credentials=BOB)) as admin:
            body = f"limits=user=ada connections={connections}\n".encode()
            code = admin.call(shared.broker.address, RequestCode.UPDATE_BROKER_CONFIG, body=body)[0]
        assert code == ResponseCode.SUCCESS

    limit(9)
    with (
        closing(RemotingClient(credentials=ADA)) as oldest,
        ferromq.connect(shared.endpoint, access_key=ADA[0], secret_key=ADA[1]) as ada,
        ada.producer(checker=lambda _: ferromq.Resolution.UNKNOWN) as producer,
        ada.consumer("g", "orders") as consumer,
    ):
        assert by(oldest, shared) == ResponseCode.SUCCESS
        producer.send_all("orders", [b"a", b"b"])
        messages = consumer.receive_many(2, wait=PATIENCE, invisible_duration=2 * PATIENCE)
        with producer.transaction() as transaction:
            transaction.send("payments", b"x")
            limit(1)
            consumer.ack(messages)
    dispatched(shared)
    with shared.admin(access_key=BOB[0], secret_key=BOB[1]) as admin:
        assert admin.lag("g", topic="orders").messages == 0
        assert [each.body for each in admin.browse("payments")] == [b"x"]


def test_a_changed_limit_of_connections_holds_for_open_ones(shared: ferromq.Embedded) -> None:
    """The oldest ones go on."""
    clients = [RemotingClient(credentials=ADA) for _ in range(3)]
    admin = RemotingClient(credentials=BOB)
    assert [by(client, shared) for client in clients] == [ResponseCode.SUCCESS] * 2 + [ResponseCode.SYSTEM_BUSY]
    busy, success = ResponseCode.SYSTEM_BUSY, ResponseCode.SUCCESS
    for most, wanted in (("1", [busy, busy, success]), ("none", [success] * 3), ("3", [success] * 3)):
        changed = f"limits=user=ada connections={most}\n".encode()
        assert admin.call(shared.broker.address, RequestCode.UPDATE_BROKER_CONFIG, body=changed)[0] == success
        assert [by(client, shared) for client in reversed(clients)] == wanted
    for client in (*clients, admin):
        client.close()


def test_an_administrator_changes_limits_which_survive_a_restart(tmp_path: Path, clock: Clock) -> None:
    """The broker writes them into its configuration file."""
    file = tmp_path / "broker.toml"
    file.write_text(f'store = "{tmp_path / "store"}"\nlisten = "127.0.0.1:0"\ngrpc_listen = "127.0.0.1:0"\n')

    def run() -> BrokerController:
        return BrokerController(BrokerConfig.load(file), clock=clock, config_file=file)

    with closing(run()) as broker, Peer(broker.address) as peer:
        send(peer)
        wanted = b"limits=topic=orders send=1 ; user=ada send_bytes=4KiB\n"
        assert peer.call(RequestCode.UPDATE_BROKER_CONFIG, body=wanted).code == ResponseCode.SUCCESS
        assert [send(peer).code for _ in range(2)] == [ResponseCode.SUCCESS, ResponseCode.SYSTEM_BUSY]
    with closing(run()) as broker, Peer(broker.address) as peer:
        assert broker.config.access.limits == ("topic=orders send=1", "user=ada send_bytes=4KiB")
        assert [send(peer).code for _ in range(2)] == [ResponseCode.SUCCESS, ResponseCode.SYSTEM_BUSY]


def test_many_threads_get_the_rate_and_no_more(mq: ferromq.Embedded, peer: Peer) -> None:
    """Requests of several connections share the rate of their topic."""
    accepted = []

    def run() -> None:
        with Peer(mq.broker.address, client_id="other@1") as other:
            accepted.extend(send(other).code for _ in range(10))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert accepted.count(ResponseCode.SUCCESS) == 4
    assert peer.call(RequestCode.GET_BROKER_RUNTIME_INFO).code == ResponseCode.SUCCESS
