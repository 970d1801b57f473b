"""Peers that send half a request, are slow, or vanish, at each port of the servers: others notice nothing."""

import contextlib
import socket
import struct
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import grpc
import pytest
from fault_proxy import FaultProxy
from grpc_peer import GrpcPeer
from remoting_peer import Frame, Peer

import ferromq
from ferromq._proto import messages as pb

SUCCESS, ROUTE, HEART_BEAT, PULL, CLUSTER_INFO = 0, 105, 34, 11, 106
MANY = 50
# The preface of HTTP/2, empty settings, and half of the head of a frame.
HALF_GRPC = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]) + bytes([0, 1, 0, 1])
HALF_FRAME = struct.pack(">ii", 1000, 600) + b'{"code":34'
LISTENERS = ("name server", "remoting", "gRPC")
Eventually = Callable[[Callable[[], bool]], bool]


@pytest.fixture
def mq() -> Iterator[ferromq.Embedded]:
    """Run a name server and a broker."""
    with ferromq.embedded() as embedded:
        with embedded.admin() as admin:
            admin.create_topic("orders", 1)
        yield embedded


class Listener:
    """One listener, and its protocol."""

    def __init__(self, mq: ferromq.Embedded, name: str) -> None:
        self.address = {"name server": mq.namesrv, "remoting": mq.remoting, "gRPC": mq.endpoint}[name]
        self.server = (mq.name_server if name == "name server" else mq.broker)._server
        self.half = HALF_GRPC if name == "gRPC" else HALF_FRAME
        self._is_grpc = name == "gRPC"
        self._code = CLUSTER_INFO if name == "name server" else HEART_BEAT

    @property
    def connections(self) -> int:
        """How many connections its server has."""
        return self.server.stats()["connections"]

    def connect(self) -> socket.socket:
        """Open a connection."""
        host, _, port = self.address.rpartition(":")
        return socket.create_connection((host, int(port)), timeout=10)

    def answers(self, address: str | None = None) -> None:
        """Fail unless a new client is answered."""
        if self._is_grpc:
            with GrpcPeer(address or self.address) as client:
                client.call("Heartbeat", pb.HeartbeatRequest(client_type=pb.ClientType.PRODUCER))
        else:
            with Peer(address or self.address) as peer:
                assert peer.call(self._code, body={"clientID": "me@1"}).code == SUCCESS


@pytest.fixture(params=LISTENERS)
def listener(mq: ferromq.Embedded, request: pytest.FixtureRequest) -> Listener:
    """Return each listener."""
    return Listener(mq, request.param)


def stat(mq: ferromq.Embedded, name: str) -> int:
    """Return the counters of the broker's server."""
    return mq.broker._server.stats()[name]


def vanish(connection: socket.socket) -> None:
    """End a connection with a reset, as a peer that was killed."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def test_half_requests_block_no_other_and_leave_nothing(listener: Listener, eventually: Eventually) -> None:
    """Many peers that stop in the middle: others are answered, and nothing is left when they vanish."""
    before = listener.connections
    halves = [listener.connect() for _ in range(MANY)]
    for connection in halves:
        connection.sendall(listener.half)
    assert eventually(lambda: listener.connections >= MANY)
    listener.answers()
    for connection in halves:
        vanish(connection)
    assert eventually(lambda: listener.connections <= before)


def test_a_slow_peer_is_answered(listener: Listener) -> None:
    """Its answer crosses a slow line; others, which do not, are answered meanwhile."""
    with FaultProxy(listener.address) as proxy, ThreadPoolExecutor(1) as pool:
        proxy.delay(0.2)
        slow = pool.submit(listener.answers, proxy.address)
        listener.answers()
        slow.result(20)


@pytest.mark.parametrize("name", ["name server", "remoting"])
def test_a_request_that_comes_byte_by_byte_is_one(mq: ferromq.Embedded, name: str) -> None:
    """However many packets it took."""
    listener = Listener(mq, name)
    with listener.connect() as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        code = CLUSTER_INFO if name == "name server" else HEART_BEAT
        for byte in Frame(code, body=b'{"clientID":"me@1"}', opaque=7).encode():
            connection.sendall(bytes([byte]))
        (size,) = struct.unpack(">i", connection.recv(4))
        assert 0 < size < 100_000


def test_waiting_receives_of_peers_that_vanish_wait_no_more(mq: ferromq.Embedded, eventually: Eventually) -> None:
    """Over both protocols; the next message goes to a connected consumer."""
    parked = partial(stat, mq, "parked")
    fields = {"consumerGroup": "r", "topic": "orders", "queueId": "0", "queueOffset": "0", "maxMsgNums": "1"}
    more = {"sysFlag": "6", "commitOffset": "0", "suspendTimeoutMillis": "60000", "subVersion": "0"}
    with (
        FaultProxy(mq.endpoint) as over_grpc,
        FaultProxy(mq.remoting) as over_remoting,
        ThreadPoolExecutor(1) as pool,
        GrpcPeer(over_grpc.address) as receiver,
        Peer(over_remoting.address) as puller,
    ):
        waiting = pool.submit(receiver.receive, "g", "orders", wait=15)
        puller.send(Frame(PULL, {**fields, **more, "subscription": "*"}, opaque=1_000).encode())
        assert eventually(lambda: parked() == 2)
        over_grpc.refuse()
        over_remoting.refuse()
        assert eventually(lambda: parked() == 0)
        with pytest.raises(grpc.RpcError):
            waiting.result(20)
    with mq.producer() as producer, mq.consumer("g", "orders") as consumer:
        producer.send("orders", b"x")
        assert [message.body for message in consumer.receive(1, wait=10)] == [b"x"]


def test_an_answer_that_is_cut_costs_its_client_only(listener: Listener, eventually: Eventually) -> None:
    """The connection ends on our side, too."""
    before = listener.connections
    with FaultProxy(listener.address) as proxy:
        proxy.cut(3)
        with contextlib.suppress(grpc.RpcError, ConnectionError):
            listener.answers(proxy.address)
        listener.answers()
    assert eventually(lambda: listener.connections <= before)
