"""The boundary between Rust and Python: conversions, and the promises of each side."""

import contextlib
import gc
import json
import os
import pickle
import queue
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self, cast

import grpc
import pytest
from ports import kept_port

import ferromq
from ferromq._ferromq import Clock, RemotingClient, Request, Server, Store, blocking, crc32, decode_records
from ferromq.broker.messages.message_queries import MAX_BYTES, MessageQueries
from ferromq.process import fork  # noqa: F401 (tells the extension of forks)

HOT_CODES = [10, 310, 320, 36, 11, 361, 200050, 200051, 200151, 200053, 200052, 200054, 200055, 15]
HOT_RPCS = [
    "SendMessage",
    "ReceiveMessage",
    "PullMessage",
    "AckMessage",
    "ChangeInvisibleDuration",
    "UpdateOffset",
    "ForwardMessageToDeadLetterQueue",
]
PATIENCE = 10.0
SERVICE = "/apache.rocketmq.v2.MessagingService/"
Answer = tuple[int, str | None, dict[str, str], bytes]


class Rig:
    """A server on a free port, and a client to it."""

    def __init__(self, handler_threads: int = 4) -> None:
        self.server = Server(Clock.system(), handler_threads=handler_threads)
        self.client = RemotingClient()
        self.address = f"127.0.0.1:{self.server.listen_remoting('127.0.0.1:0')}"

    def serve(self, code: int, handler: Callable[[Request], Answer | None]) -> None:
        """Answer *code* with *handler*."""
        self.server.register(code, handler)

    def call(self, code: int, *, timeout: float = PATIENCE) -> Answer:
        """Call *code* without fields or body."""
        return self.client.call(self.address, code, timeout=timeout)

    def close(self) -> None:
        """End both."""
        self.client.close()
        self.server.stop(timeout=1.0)


@pytest.fixture
def rig() -> Iterator[Rig]:
    """Serve while the test runs."""
    rig = Rig()
    with contextlib.closing(rig):
        yield rig


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """Open a small store."""
    store = Store(str(tmp_path), Clock.system(), commit_log_file_size=1 << 20, index_slots=500, index_entries=2000)
    with contextlib.closing(store):
        yield store


def ok(_request: Request) -> Answer:
    """Answer with success."""
    return 0, None, {}, b""


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for an effect of another thread."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


# --- requests ------------------------------------------------------------------------------------------------


def test_a_cold_request_reaches_python_whole(rig: Rig) -> None:
    """Fields, body, route and peer cross the boundary, and the answer crosses back."""
    seen: list[Request] = []

    def handler(request: Request) -> Answer:
        seen.append(request)
        return 7, "because", {"answer": "42"}, request.body[::-1]

    rig.serve(105, handler)
    answer = rig.client.call(rig.address, 105, {"topic": "orders", "empty": ""}, b"body")
    assert answer == (7, "because", {"answer": "42"}, b"ydob")
    request = seen[0]
    assert (request.route, request.fields, request.body) == (105, {"topic": "orders", "empty": ""}, b"body")
    assert request.peer.startswith("127.0.0.1:")
    assert request.connection > 0


def test_a_cold_request_has_its_sender_and_its_one_way_bit(rig: Rig) -> None:
    """Language, version and the one-way bit of the header reach the handler."""
    seen: list[tuple[str, int, bool]] = []

    def handler(request: Request) -> Answer:
        seen.append((request.language, request.version, request.is_one_way))
        return 0, None, {}, b""

    rig.serve(34, handler)
    with Peer(rig) as peer:
        peer.send(34, language="JAVA", version=401, flag=2)
        peer.send(34, language="GO", version=7)
        assert peer.receive()["flag"] & 1
    assert seen == [("JAVA", 401, True), ("GO", 7, False)]


# --- requests to clients ----------------------------------------------------------------------------------------


class Peer:
    """A remoting client that reads the server's requests."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        host, port = rig.address.split(":")
        self.stream = socket.create_connection((host, int(port)), timeout=PATIENCE)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stream.close()

    def send(self, code: int, body: bytes = b"", **members: object) -> None:
        """Send a frame with these members in its header."""
        header = json.dumps({"code": code, "opaque": 1, "flag": 0, "version": 479} | members).encode()
        self.stream.sendall(struct.pack(">ii", 4 + len(header) + len(body), len(header)) + header + body)

    def read(self, count: int) -> bytes:
        """Read this many bytes."""
        read = b""
        while len(read) < count:
            piece = self.stream.recv(count - len(read))
            assert piece, "the server closed the connection"
            read += piece
        return read

    def receive(self) -> dict[str, Any]:
        """Return the members of the next frame's header, and its body."""
        length, header_length = struct.unpack(">ii", self.read(8))
        header: dict[str, Any] = json.loads(self.read(header_length))
        return header | {"body": self.read(length - 4 - header_length)}

    def connection(self) -> int:
        """Ask the server for the number of this connection."""
        seen: list[int] = []

        def handler(request: Request) -> Answer:
            seen.append(request.connection)
            return 0, None, {}, b""

        self.rig.serve(35, handler)
        self.send(35)
        self.receive()
        return seen[0]


def test_the_server_pushes_to_a_client_that_is_there(rig: Rig) -> None:
    """A push is a one-way request on the client's own connection; it reports a client that is gone."""
    gone: list[int] = []
    rig.server.on_close(gone.append)
    with Peer(rig) as peer:
        connection = peer.connection()
        assert rig.server.push(connection, 40, {"consumerGroup": "g"}, b"body")
        pushed = peer.receive()
        assert (pushed["code"], pushed["flag"], pushed["body"]) == (40, 2, b"body")
        assert pushed["extFields"] == {"consumerGroup": "g"}
    wait_until(lambda: gone == [connection])
    assert not rig.server.push(connection, 40)


def test_the_server_calls_a_client(rig: Rig) -> None:
    """A call returns the client's response, or an error with its cause."""
    with Peer(rig) as peer:
        connection = peer.connection()

        def respond() -> None:
            asked = peer.receive()
            members = {"opaque": asked["opaque"], "flag": 1, "remark": "r", "extFields": asked["extFields"]}
            peer.send(206, asked["body"][::-1], **members)

        client = threading.Thread(target=respond)
        client.start()
        answer = rig.server.call(connection, 307, {"clientId": "c"}, b"on", timeout=PATIENCE)
        client.join()
        assert answer == (206, "r", {"clientId": "c"}, b"no")
        with pytest.raises(ferromq.RequestTimeout):
            rig.server.call(connection, 307, timeout=0.01)
    with pytest.raises(ferromq.ConnectionFailed):
        rig.server.call(2**63, 307)


# --- routes -----------------------------------------------------------------------------------------------------


def test_a_route_that_was_put_is_answered_without_python(rig: Rig) -> None:
    """A miss asks the handler, a hit does not, and a drop forgets."""
    asked: list[str] = []

    def handler(request: Request) -> Answer:
        asked.append(request.fields["topic"])
        return 17, "no route", {}, b""

    rig.serve(105, handler)
    ask = {"topic": "orders"}

    def look_up() -> Answer:
        return rig.client.call(rig.address, 105, ask, timeout=PATIENCE)

    assert look_up()[0] == 17
    rig.server.put_route("orders", rig.server.routes_generation(), b"standard", b"legacy")
    assert look_up() == (0, None, {}, b"standard")
    with Peer(rig) as peer:
        peer.send(105, version=400, extFields=ask)
        assert peer.receive()["body"] == b"legacy"
    generation = rig.server.routes_generation()
    rig.server.drop_routes(["orders"])
    rig.server.put_route("orders", generation, b"late", b"late")
    assert look_up()[0] == 17
    rig.server.put_route("orders", rig.server.routes_generation(), b"new", b"new")
    rig.server.drop_routes(None)
    assert look_up()[0] == 17
    assert asked == ["orders"] * 3


@pytest.mark.parametrize("route", [*HOT_CODES, *HOT_RPCS])
def test_hot_verbs_take_no_handler(rig: Rig, route: int | str) -> None:
    """The registry keeps Python off the data path."""
    with pytest.raises(ValueError, match="hot path"):
        rig.server.register(route, ok)


def test_handlers_must_be_callable(rig: Rig) -> None:
    """A mistake is an error at once, not at the first request."""
    with pytest.raises(TypeError):
        rig.server.register(105, "nothing to call")  # type: ignore[arg-type]


def test_an_unknown_code_is_answered(rig: Rig) -> None:
    """With RocketMQ's answer to an unsupported code."""
    assert rig.call(54) == (3, " request type 54 not supported", {}, b"")


def test_an_exception_is_logged_and_answered(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    """The peer gets SYSTEM_ERROR with the text, the log gets the traceback."""

    def handler(_request: Request) -> Answer:
        raise KeyError("no such thing")

    rig.serve(105, handler)
    code, remark, _, _ = rig.call(105)
    assert (code, remark) == (1, "KeyError: 'no such thing'")
    record = next(record for record in caplog.records if record.name == "ferromq.server")
    assert record.exc_info is not None
    assert "request code 105" in record.getMessage()


@pytest.mark.parametrize("returned", [b"bytes", 5, (0, None, {}), (0, None, {"a": 1}, b""), (0, None, {}, "text")])
def test_a_wrong_answer_is_an_error_not_a_crash(rig: Rig, returned: object) -> None:
    """A wrong type becomes SYSTEM_ERROR, and the connection stays."""
    rig.serve(105, lambda _request: returned)  # type: ignore[arg-type,return-value]
    assert rig.call(105)[0] == 1
    rig.serve(105, ok)
    assert rig.call(105)[0] == 0


def test_a_handler_may_stay_silent(rig: Rig) -> None:
    """None is no answer."""
    rig.serve(105, lambda _request: None)
    with pytest.raises(ferromq.RequestTimeout):
        rig.call(105, timeout=0.1)


def test_a_slow_handler_delays_no_other(rig: Rig) -> None:
    """Handlers run beside each other."""
    release, entered = threading.Event(), threading.Event()

    def slow(_request: Request) -> Answer:
        entered.set()
        assert release.wait(PATIENCE)
        return 0, "slow", {}, b""

    rig.serve(105, slow)
    rig.serve(106, ok)
    answers: list[Answer] = []
    thread = threading.Thread(target=lambda: answers.append(rig.call(105)))
    thread.start()
    assert entered.wait(PATIENCE)
    assert rig.call(106)[0] == 0
    assert not answers
    release.set()
    thread.join(PATIENCE)
    assert answers[0][1] == "slow"


def test_handlers_that_wait_for_each_other_all_run() -> None:
    """One thread runs quick ones; waiting ones use all threads."""
    count = 4
    together = threading.Barrier(count)

    def meet(_request: Request) -> Answer:
        together.wait(PATIENCE)
        return 0, None, {}, b""

    rig = Rig(handler_threads=count)
    rig.serve(105, meet)
    with contextlib.closing(rig), ThreadPoolExecutor(count) as callers:
        assert [code for code, *_ in callers.map(rig.call, [105] * count)] == [0] * count


def test_a_handler_may_announce_a_wait() -> None:
    """Also repeatedly; it may wait for another request, and its errors are raised."""
    rig = Rig(handler_threads=2)
    other = threading.Event()

    def wait(_request: Request) -> Answer:
        found = blocking(lambda: blocking(lambda: other.wait(PATIENCE)))
        return (0 if found else 1), None, {}, b""

    def fail(_request: Request) -> Answer:
        return blocking(lambda: int("no number")), None, {}, b""

    def go_on(_request: Request) -> Answer:
        other.set()
        return 0, None, {}, b""

    for code, handler in ((105, wait), (106, go_on), (103, fail)):
        rig.serve(code, handler)
    with contextlib.closing(rig), ThreadPoolExecutor(1) as callers:
        waiting = callers.submit(rig.call, 105)
        assert rig.call(103)[0] == 1
        assert rig.call(106)[0] == 0
        assert waiting.result()[0] == 0
    assert blocking(lambda: 5) == 5


def test_more_requests_than_may_wait_are_refused_at_once() -> None:
    """A handler that hangs fills a bounded queue; then the answer is SYSTEM_BUSY."""
    rig = Rig(handler_threads=1)
    begun, release = threading.Event(), threading.Event()

    def stuck(_request: Request) -> Answer:
        begun.set()
        release.wait(PATIENCE)
        return 0, None, {}, b""

    rig.serve(105, stuck)
    with contextlib.closing(rig), contextlib.ExitStack() as sockets:
        host, port = rig.address.split(":")
        header = json.dumps({"code": 105, "opaque": 1, "flag": 0}).encode()
        frame = struct.pack(">ii", 4 + len(header), len(header)) + header
        peers = []
        for _ in range(6):
            peers.append(sockets.enter_context(socket.create_connection((host, int(port)), timeout=PATIENCE)))
            peers[-1].sendall(frame)
            assert begun.wait(PATIENCE)
            peers[-1].sendall(frame * 256)
        answered, _, _ = select.select(peers, [], [], PATIENCE)
        assert answered
        assert b'"code":2,' in answered[0].recv(1 << 20)
        with grpc.insecure_channel(f"127.0.0.1:{rig.server.listen_grpc('127.0.0.1:0')}") as channel:
            rig.server.register("QueryRoute", lambda _request: b"")
            with pytest.raises(grpc.RpcError) as failure:
                channel.unary_unary(SERVICE + "QueryRoute")(b"", timeout=PATIENCE)
            assert failure.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        release.set()


def test_closed_connections_are_reported(rig: Rig) -> None:
    """The close comes after the connection's requests, with the number they carried."""
    numbers: list[int] = []
    closed: list[int] = []

    def handler(request: Request) -> Answer:
        numbers.append(request.connection)
        return ok(request)

    rig.serve(105, handler)
    rig.server.on_close(closed.append)
    rig.call(105)
    rig.client.close()
    wait_until(lambda: closed == numbers)


def test_python_can_close_a_connection(rig: Rig) -> None:
    """The peer sees its connection end."""

    def handler(request: Request) -> Answer | None:
        rig.server.close_connection(request.connection)
        return None

    rig.serve(105, handler)
    with pytest.raises(ferromq.ConnectionFailed, match=rig.address):
        rig.call(105)


def test_counters_are_numbers(rig: Rig) -> None:
    """The counters have the number of requests."""
    rig.serve(105, ok)
    rig.call(105)
    rig.call(54)
    stats = rig.server.stats()
    assert (stats["connections"], stats["cold_calls"], stats["remoting_requests"]) == (1, 1, 2)


# --- gRPC: cold methods and telemetry ----------------------------------------------------------------------------


@pytest.fixture
def channel(rig: Rig) -> Iterator[grpc.Channel]:
    """Connect to the server's gRPC listener."""
    with grpc.insecure_channel(f"127.0.0.1:{rig.server.listen_grpc('127.0.0.1:0')}") as channel:
        yield channel


def test_a_cold_rpc_passes_as_bytes(rig: Rig, channel: grpc.Channel) -> None:
    """Python gets the message and the metadata as they came, and answers with bytes."""
    seen: list[Request] = []

    def handler(request: Request) -> bytes:
        seen.append(request)
        return request.body * 2

    rig.server.register("QueryRoute", handler)
    call = channel.unary_unary(SERVICE + "QueryRoute")
    assert call(b"\x0a\x00", metadata=[("x-mq-client-id", "c1")], timeout=PATIENCE) == b"\x0a\x00" * 2
    assert seen[0].route == "QueryRoute"
    assert seen[0].fields["x-mq-client-id"] == "c1"


def test_a_failing_rpc_handler_is_an_internal_error(rig: Rig, channel: grpc.Channel) -> None:
    """The exception's text is the status' text."""

    def handler(_request: Request) -> bytes:
        raise LookupError("no route")

    rig.server.register("QueryRoute", handler)
    with pytest.raises(grpc.RpcError, match="LookupError: no route") as failure:
        channel.unary_unary(SERVICE + "QueryRoute")(b"", timeout=PATIENCE)
    assert failure.value.code() is grpc.StatusCode.INTERNAL


def test_an_unregistered_rpc_is_unimplemented(channel: grpc.Channel) -> None:
    """The client gets UNIMPLEMENTED."""
    with pytest.raises(grpc.RpcError) as failure:
        channel.unary_unary(SERVICE + "RecallMessage")(b"", timeout=PATIENCE)
    assert failure.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_telemetry_of_a_stream_comes_in_order_and_ends_once(rig: Rig, channel: grpc.Channel) -> None:
    """Many threads serve the calls; those of one stream keep their order."""
    seen: dict[int, list[bytes | None]] = {}

    def telemetry(stream: int, _sender: object, _fields: dict[str, str], message: bytes | None) -> None:
        time.sleep(0 if message is None or message[-1] % 2 else 0.001)
        seen.setdefault(stream, []).append(message)
        if message is not None:
            rig.server.send_telemetry(stream, message)

    rig.server.on_telemetry(telemetry)
    method = channel.stream_stream(SERVICE + "Telemetry")
    messages = [bytes([8, number]) for number in range(100)]
    for call in [method(iter(messages), timeout=PATIENCE) for _ in range(3)]:
        list(call)
    wait_until(lambda: len(seen) == 3 and all(got[-1] is None for got in seen.values()))
    for got in seen.values():
        assert got == [*messages, None]


# --- life cycle --------------------------------------------------------------------------------------------------


def test_stop_waits_for_handlers_and_is_idempotent() -> None:
    """A request under way is answered before the server is gone."""
    rig = Rig()
    entered = threading.Event()

    def handler(_request: Request) -> Answer:
        entered.set()
        time.sleep(0.2)
        return 0, "done", {}, b""

    rig.serve(105, handler)
    answers: list[Answer] = []
    thread = threading.Thread(target=lambda: answers.append(rig.call(105)))
    thread.start()
    assert entered.wait(PATIENCE)
    rig.server.stop()
    rig.server.stop()
    thread.join(PATIENCE)
    assert answers == [(0, "done", {}, b"")]
    with pytest.raises(ferromq.ConnectionFailed):
        rig.call(105)
    rig.client.close()


def test_stop_releases_handlers() -> None:
    """A stopped server keeps nothing alive."""

    class Controller:
        def __init__(self) -> None:
            self.server = Server(Clock.system())
            self.server.register(105, self.handle)
            self.server.on_close(self.close)

        def handle(self, request: Request) -> Answer:
            return ok(request)

        def close(self, connection: int) -> None: ...

    controller = Controller()
    gone = weakref.ref(controller)
    controller.server.stop()
    del controller
    assert gone() is None


def test_an_unstopped_server_is_collected() -> None:
    """The collector sees the handlers through the boundary."""

    class Controller:
        def __init__(self) -> None:
            self.server = Server(Clock.system())
            self.server.register(105, self.handle)

        def handle(self, request: Request) -> Answer:
            return ok(request)

    controller = Controller()
    gone = weakref.ref(controller)
    address = f"127.0.0.1:{controller.server.listen_remoting('127.0.0.1:0')}"
    del controller
    gc.collect()
    assert gone() is None
    client = RemotingClient()

    def is_down() -> bool:
        try:
            client.call(address, 105, timeout=1.0)
        except ferromq.ConnectionFailed:
            return True
        return False

    wait_until(is_down)
    client.close()


def test_a_port_in_use_is_an_error_that_names_it(rig: Rig) -> None:
    """The operating system's reason comes along."""
    with pytest.raises(OSError, match=f"cannot listen on {rig.address}"):
        rig.server.listen_remoting(rig.address)


def test_a_flood_of_closed_connections_leaves_other_requests_their_turns(rig: Rig) -> None:
    """However many closes wait for Python, a request is answered, and each close is reported."""
    began, go_on, told = threading.Event(), threading.Event(), queue.Queue[int]()

    def close(connection: int) -> None:
        began.set()
        go_on.wait(PATIENCE)
        told.put(connection)

    rig.server.on_close(close)
    rig.serve(105, ok)
    host, _, port = rig.address.rpartition(":")
    floods = 1_100
    for _ in range(floods):
        socket.create_connection((host, int(port))).close()
        began.wait(PATIENCE)
    assert rig.call(105)[0] == 0
    go_on.set()
    assert len({told.get(timeout=PATIENCE) for _ in range(floods)}) == floods


@pytest.mark.parametrize(
    ("memory", "wanted"), [(1 << 20, grpc.StatusCode.RESOURCE_EXHAUSTED), (8 << 20, grpc.StatusCode.OK)]
)
def test_a_request_may_take_a_quarter_of_the_memory(memory: int, wanted: grpc.StatusCode) -> None:
    """A larger one is refused, and its memory is released."""
    server = Server(Clock.system(), memory=memory)
    server.register("Heartbeat", lambda _request: b"")
    with grpc.insecure_channel(f"127.0.0.1:{server.listen_grpc('127.0.0.1:0')}") as channel:
        answer = channel.unary_unary(f"{SERVICE}Heartbeat").future(bytes(300 << 10), timeout=PATIENCE)
        assert answer.code() is wanted
        wait_until(lambda: server.stats()["memory_held"] == 0)
    server.stop()


# --- the outgoing client ---------------------------------------------------------------------------------------


def test_a_refused_connection_is_connection_failed() -> None:
    """It is a ConnectionError, names the peer and keeps the reason."""
    client = RemotingClient()
    with kept_port() as address, pytest.raises(ConnectionError, match=address) as failure:
        client.call(address, 105)
    assert isinstance(failure.value, ferromq.ConnectionFailed)
    assert isinstance(failure.value.__cause__, ConnectionRefusedError)
    client.close()


def test_no_answer_is_request_timeout() -> None:
    """It is a TimeoutError and names the peer."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        client = RemotingClient()
        with pytest.raises(TimeoutError, match=address) as failure:
            client.call(address, 105, timeout=0.1)
        assert isinstance(failure.value, ferromq.RequestTimeout)
        client.close()


def test_exceptions_of_rust_are_picklable() -> None:
    """A worker of a process pool can raise them."""
    client = RemotingClient()
    with pytest.raises(ferromq.ConnectionFailed) as failure:
        client.call("127.0.0.1:1", 105)
    assert str(pickle.loads(pickle.dumps(failure.value))) == str(failure.value)
    client.close()


# --- the store ---------------------------------------------------------------------------------------------------


def test_a_message_is_stored_and_read_again(store: Store) -> None:
    """Every attribute comes back as it went in."""
    properties = {"KEYS": "a b", "TAGS": "new", "UNIQ_KEY": "u1", "colour": "grün"}
    assert store.append("orders", 3, b"hello", properties, flag=5, born_timestamp=77, born_host="10.0.0.1:99") == (0, 0)
    wait_until(lambda: store.max_offset("orders", 3) == 1)
    status, messages, next_offset = store.get("orders", 3, 0)
    assert (status, next_offset) == ("FOUND", 1)
    (message,) = messages
    assert (message.topic, message.queue_id, message.queue_offset, message.physical_offset) == ("orders", 3, 0, 0)
    assert (message.body, message.properties, message.flag) == (b"hello", properties, 5)
    assert (message.born_timestamp, message.born_host, message.store_host) == (77, "10.0.0.1:99", "127.0.0.1:10911")
    assert (message.tag, message.keys, message.message_id) == ("new", ("a", "b"), "u1")
    assert message.offset_message_id == "7F00000100002A9F0000000000000000"
    assert [one.body for one in decode_records(message.raw * 2)] == [b"hello", b"hello"]
    assert store.query_by_key("orders", "b")[0].body == b"hello"
    assert store.message_at(message.physical_offset) is not None
    assert store.queues() == {"orders": [3]}


def test_an_answer_to_a_query_by_key_has_a_bounded_size(store: Store) -> None:
    """The newest messages, and at least one however large; a broker's answer has at most 4 MiB."""
    for size in [1_000_000] * 5 + [100]:
        store.append("orders", 0, bytes(size), {"KEYS": "k", "UNIQ_KEY": "u"})
    wait_until(lambda: len(store.query_by_key("orders", "k")) == 6)
    for query, field in ((store.query_by_key, "k"), (store.query_by_unique_key, "u")):
        sizes = [len(found.body) for found in query("orders", field, max_bytes=MAX_BYTES)]
        assert sizes == [100] + [1_000_000] * 4
        assert [len(found.body) for found in query("orders", field, max_bytes=1)] == [100]
    queries = MessageQueries(store)
    for unique in ("true", "false"):
        fields = {"topic": "orders", "key": "u", "maxNum": "1000", "_UNIQUE_KEY_QUERY": unique}
        code, _, _, body = queries.by_key(cast("Any", SimpleNamespace(fields=fields)))
        assert code == 0
        assert 4_000_000 < len(body) <= MAX_BYTES


def test_a_second_store_on_a_directory_is_refused(store: Store, tmp_path: Path) -> None:
    """The lock is held while the store is open, and released when it closes."""
    with pytest.raises(ferromq.StoreLocked, match=str(tmp_path)):
        Store(str(tmp_path), Clock.system())
    store.close()
    Store(str(tmp_path), Clock.system(), commit_log_file_size=1 << 20, index_slots=500, index_entries=2000).close()


def test_errors_of_the_store_are_exceptions_of_ferromq(store: Store, tmp_path: Path) -> None:
    """Each has its own class."""
    with pytest.raises(ferromq.MessageTooLarge):
        store.append("orders", 0, bytes((4 << 20) + 1))
    with pytest.raises(ValueError, match="separator"):
        store.append("orders", 0, b"x", {"a": "\x01"})
    with pytest.raises(ferromq.IllegalName, match="topic"):
        store.append("or/ders", 0, b"x")
    with pytest.raises(ValueError, match="queue id"):
        store.append("orders", -1, b"x")
    with pytest.raises(ValueError, match="inner batch") as refused:
        store.append("orders", 0, b"x", sys_flag=128)
    assert not isinstance(refused.value, ferromq.ConfigError)
    with pytest.raises(ferromq.ConfigError, match="index_slots"):
        Store(str(tmp_path / "other"), Clock.system(), index_slots=0)
    with pytest.raises(ferromq.ConfigError, match=r"unknown option of a store: flsuh; did you mean flush\?"):
        Store(str(tmp_path / "other"), Clock.system(), flsuh="group")  # type: ignore[call-arg]
    with pytest.raises(ferromq.ConfigError, match="flush is 'sync'; it must be `each`, `group`, `every N`"):
        Store.check(flush="sync")
    with pytest.raises(ferromq.ConfigError, match="max_message_size is -1; it must be a whole number"):
        Store.check(max_message_size=-1)
    assert not (tmp_path / "other").exists()
    with pytest.raises(ValueError, match="not host:port"):
        store.append("orders", 0, b"x", born_host="nowhere")
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(ferromq.StoreError) as failure:
        Store(str(file / "below"), Clock.system())
    assert isinstance(failure.value.__cause__, NotADirectoryError)
    store.close()
    store.close()
    with pytest.raises(ferromq.StoreClosed):
        store.append("orders", 0, b"x")


@pytest.mark.parametrize("data", [b"x", bytes(100), b"\xff" * 100])
def test_bytes_that_are_no_records_are_a_value_error(data: bytes) -> None:
    """Nothing is made up."""
    with pytest.raises(ValueError, match="record"):
        decode_records(data)


# --- clock, checksum, logs ---------------------------------------------------------------------------------------


def test_clocks_never_go_back() -> None:
    """A manual clock stands still until it is advanced; a system clock follows wall time."""
    clock = Clock.manual(1000)
    clock.advance(5)
    clock.advance(-5)
    assert (clock.is_manual, clock.now_ms()) == (True, 1005)
    assert not Clock.system().is_manual
    assert abs(Clock.system().now_ms() - time.time() * 1000) < 1000


def test_crc32_is_zlibs() -> None:
    """The check value of CRC-32."""
    assert crc32(b"123456789") == 0xCBF43926


def test_logs_of_rust_are_lines_on_stderr() -> None:
    """Time, level, target, event, key=value."""
    script = (
        "from ferromq._ferromq import *\n"
        "init_logging('info,ferromq_transport=debug', 'text')\n"
        "server = Server(Clock.system()); server.listen_remoting('127.0.0.1:0'); server.stop()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=30)
    line = done.stderr.splitlines()[0].split(" ")
    assert line[0][:2] == "20"
    assert line[1:3] == ["INFO", "ferromq_transport::server"]
    assert line[-1].startswith("address=127.0.0.1:")
    with pytest.raises(ValueError, match="not a valid log filter"):
        ferromq._ferromq.init_logging("a=b=c", "text")
    with pytest.raises(ValueError, match="may be text or json"):
        ferromq._ferromq.init_logging("info", "xml")


def test_logs_of_rust_are_objects_of_json_on_stderr() -> None:
    """With the fields of Python's lines; the values of an event are in `fields`."""
    script = (
        "from ferromq._ferromq import *\n"
        "init_logging('info', 'json')\n"
        "server = Server(Clock.system()); server.listen_remoting('127.0.0.1:0'); server.stop()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=30)
    line = json.loads(done.stderr.splitlines()[0])
    assert (line["level"], line["target"]) == ("INFO", "ferromq_transport::server")
    assert line["message"] == "remoting listener open"
    assert line["fields"]["address"].startswith("127.0.0.1:")


# --- forks -------------------------------------------------------------------------------------------------------


def in_child(work: Callable[[], object]) -> None:
    """Run *work* in a forked child and assert that it returned, soon."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    deadline = time.monotonic() + PATIENCE
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            assert os.waitstatus_to_exitcode(status) == 0
            return
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            pytest.fail("the child hangs")
        time.sleep(0.01)


def test_a_forked_child_gets_a_clear_error_and_can_begin_anew(rig: Rig, store: Store) -> None:
    """The parent's objects are refused, the child's work, and the parent goes on."""
    rig.serve(105, ok)
    rig.call(105)

    def work() -> None:
        for use in (
            lambda: rig.call(105),
            rig.server.stats,
            rig.server.stop,
            lambda: store.append("orders", 0, b"x"),
            store.close,
        ):
            with pytest.raises(ferromq.ForkedProcess, match="make a new one"):
                use()
        client = RemotingClient()
        assert client.call(rig.address, 105)[0] == 0
        other = Rig()
        other.serve(105, ok)
        assert other.call(105)[0] == 0
        other.close()

    in_child(work)
    assert rig.call(105)[0] == 0
    assert store.append("orders", 0, b"x")[0] == 0


def test_a_forked_child_can_drop_what_the_parent_made(tmp_path: Path) -> None:
    """Collecting the parent's objects in the child neither waits nor closes anything."""
    objects: list[object] = [Rig(), Store(str(tmp_path), Clock.system(), commit_log_file_size=1 << 20)]

    def work() -> None:
        objects.clear()
        gc.collect()

    in_child(work)
    rig, store = objects
    assert isinstance(rig, Rig)
    assert isinstance(store, Store)
    rig.serve(105, ok)
    assert rig.call(105)[0] == 0
    rig.close()
    store.close()
