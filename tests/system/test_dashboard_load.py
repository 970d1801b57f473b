"""What strangers can make the dashboard hold: connections, forms and answers are bounded together."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from dashboards import Visitor, served
from uvicorn.server import ServerState

import ferromq
from ferromq.dashboard import Dashboard, connections, live, load

Eventually = Callable[[Callable[[], bool]], bool]
LIMIT = 2 << 20
FORM = 200_000
TLS = Path(__file__).parents[1] / "fixtures" / "tls"
HTTPS = {"certificate": str(TLS / "first.pem"), "key": str(TLS / "first.key")}


@pytest.fixture(scope="module")
def mq() -> Iterator[ferromq.Embedded]:
    """Yield a broker for the whole file."""
    with ferromq.embedded() as embedded:
        yield embedded


@pytest.fixture(params=[{}, HTTPS], ids=["http", "https"])
def dashboard(
    mq: ferromq.Embedded, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Dashboard]:
    """Serve a dashboard that may hold little. Requests count nothing but their forms and answers."""
    monkeypatch.setattr(load, "MOST_BYTES", LIMIT)
    monkeypatch.setattr(load, "_OF_REQUEST", 0)
    with served(mq.namesrv, **request.param) as dashboard:
        # Else the kernel keeps answers of this size.
        dashboard._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        yield dashboard


_UNVERIFIED = ssl.create_default_context()
_UNVERIFIED.check_hostname, _UNVERIFIED.verify_mode = False, ssl.CERT_NONE


@contextlib.contextmanager
def strangers(dashboard: Dashboard, count: int, request: bytes) -> Iterator[list[socket.socket]]:
    """Open connections that send a request and take nothing of its answer."""
    scheme, _, place = dashboard.url.partition("://")
    host, port = place.split(":")
    with contextlib.ExitStack() as stack:
        opened = []
        for _ in range(count):
            connection = stack.enter_context(socket.socket())
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.settimeout(10)
            connection.connect((host, int(port)))
            if scheme == "https":
                connection = stack.enter_context(_UNVERIFIED.wrap_socket(connection))
            # The dashboard ends connections that it has no place for.
            with contextlib.suppress(ConnectionError):
                connection.sendall(request)
            opened.append(connection)
        yield opened


def is_refused(answer: httpx.Response) -> bool:
    """Return whether an answer says when to try again."""
    return answer.status_code == 503 and answer.headers["retry-after"] == "5" and "try again later" in answer.text


def test_forms_that_do_not_end_fill_the_room_for_all(
    dashboard: Dashboard, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    """Of many connections together: further parts of them are refused, also of requests that began before."""
    head = f"POST /sign-in HTTP/1.1\r\nHost: localhost\r\nContent-Length: {FORM + 1}\r\n\r\n".encode()
    with strangers(dashboard, LIMIT // FORM, head) as opened:
        for connection in opened:
            # One that is refused may end while it still sends.
            with contextlib.suppress(OSError):
                connection.sendall(b"a" * FORM)
        answers = [connection for connection in opened if told(connection).startswith(b"HTTP/1.1 503")]
        assert 1 <= len(answers) < len(opened)
        assert LIMIT // 2 < dashboard.held <= LIMIT
    assert eventually(lambda: dashboard.held == 0)
    assert not [each for each in caplog.records if each.levelname == "ERROR"], "a stranger who leaves is no failure"


def told(connection: socket.socket) -> bytes:
    """Return what the dashboard answered within a second, if anything."""
    connection.settimeout(1)
    with contextlib.suppress(OSError):
        return connection.recv(1 << 12)
    return b""


def test_answers_that_no_one_reads_fill_the_room_for_all(
    mq: ferromq.Embedded, dashboard: Dashboard, eventually: Eventually
) -> None:
    """A large page is no longer made then; once the readers end there is room again."""
    body = ('["<&>"' + ',"<&>"' * 10_000 + "]").encode()
    with mq.producer() as producer, ferromq.Admin(mq.namesrv) as admin, Visitor(dashboard) as visitor:
        sent = producer.send("large", body).message_id
        assert eventually(lambda: admin.query_by_id("large", sent) is not None)
        path = f"/message?topic=large&id={sent}"
        assert len(visitor.page(path)) > 200_000
        request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()
        with strangers(dashboard, 40, request):
            assert eventually(lambda: is_refused(visitor.get(path)))
        assert eventually(lambda: visitor.get(path).status_code == 200)


def test_an_answer_that_is_not_read_ends(
    mq: ferromq.Embedded, dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch, eventually: Eventually
) -> None:
    """After a time, and also on a connection that the client asked to close."""
    monkeypatch.setattr(connections, "HEAD_SECONDS", 2.0)
    body = ('["<&>"' + ',"<&>"' * 10_000 + "]").encode()
    with mq.producer() as producer, ferromq.Admin(mq.namesrv) as admin:
        sent = producer.send("unread", body).message_id
        assert eventually(lambda: admin.query_by_id("unread", sent) is not None)
        path = f"/message?topic=unread&id={sent}"
        closing, staying = (
            f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: {end}\r\n\r\n".encode()
            for end in ("close", "keep-alive")
        )
        with strangers(dashboard, 3, closing), strangers(dashboard, 40, staying):
            assert eventually(lambda: dashboard.held > LIMIT // 2)
            assert eventually(lambda: dashboard.held == 0)


def test_what_a_stranger_leaves_half_done_ends(
    dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch, eventually: Eventually
) -> None:
    """Requests behind one whose answer is not read, and a body that does not come."""
    monkeypatch.setattr(connections, "HEAD_SECONDS", 2.0)
    request = b"GET /static/uPlot.iife.min.js HTTP/1.1\r\nHost: localhost\r\n"
    with (
        strangers(dashboard, 4, request + b"Content-Length: 9\r\n\r\n") as opened,
        strangers(dashboard, 8, (request + b"\r\n") * 30),
    ):
        assert all(told(connection) for connection in opened)
        assert eventually(lambda: dashboard.held > LIMIT // 8)
        assert eventually(lambda: not dashboard._load._connections)


def test_a_stranger_who_closes_tls_without_reading_stops_no_other(
    mq: ferromq.Embedded, monkeypatch: pytest.MonkeyPatch, eventually: Eventually
) -> None:
    """Its connection is closed on both sides then, and still has an answer."""
    monkeypatch.setattr(connections, "HEAD_SECONDS", 2.0)
    request = b"GET /static/uPlot.iife.min.js HTTP/1.1\r\nHost: localhost\r\n"
    with served(mq.namesrv, **HTTPS) as dashboard, Visitor(dashboard) as visitor:
        dashboard._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        with strangers(dashboard, 8, (request + b"\r\n") * 2) as opened:
            assert eventually(lambda: dashboard.held > 100_000)
            for connection in opened:
                assert isinstance(connection, ssl.SSLSocket)
                connection.sendall(request + b"Connection: close\r\n\r\n")
                connection.settimeout(0)
                with contextlib.suppress(OSError):
                    connection.unwrap()
            assert eventually(lambda: len(dashboard._load._connections) <= 1)
            assert visitor.get("/static/icon.svg").status_code == 200


def test_one_connection_too_many_is_told_and_many_more_end(
    mq: ferromq.Embedded, monkeypatch: pytest.MonkeyPatch, eventually: Eventually
) -> None:
    """So the descriptors of the process are bounded, too."""
    monkeypatch.setattr(load, "MOST_CONNECTIONS", 8)
    monkeypatch.setattr(load, "_SPARE_CONNECTIONS", 4)
    monkeypatch.setattr(connections, "HEAD_SECONDS", 60)
    with served(mq.namesrv) as dashboard, strangers(dashboard, 8, b"GET"), Visitor(dashboard) as visitor:
        assert eventually(lambda: is_refused(visitor.get("/static/icon.svg")))
    with served(mq.namesrv) as dashboard:
        with strangers(dashboard, 20, b"GET") as opened:
            assert eventually(lambda: sum(map(has_ended, opened)) == 8)
        with Visitor(dashboard) as visitor:
            assert eventually(lambda: visitor.get("/static/icon.svg").status_code == 200)


def test_connections_that_do_not_shake_hands_count_and_end(
    mq: ferromq.Embedded, monkeypatch: pytest.MonkeyPatch, eventually: Eventually
) -> None:
    """From the moment on that they are open, and as soon as those without a request."""
    monkeypatch.setattr(load, "MOST_CONNECTIONS", 8)
    monkeypatch.setattr(load, "_SPARE_CONNECTIONS", 4)
    with served(mq.namesrv, **HTTPS) as dashboard:
        host, _, port = dashboard.url.removeprefix("https://").partition(":")
        with contextlib.ExitStack() as stack:
            opened = [stack.enter_context(socket.create_connection((host, int(port)))) for _ in range(20)]
            assert eventually(lambda: sum(map(has_ended, opened)) == 8)
        monkeypatch.setattr(connections, "HEAD_SECONDS", 0.5)
        with contextlib.ExitStack() as stack:
            opened = [stack.enter_context(socket.create_connection((host, int(port)))) for _ in range(8)]
            opened[0].sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert eventually(lambda: all(map(has_ended, opened)))
        monkeypatch.setattr(connections, "HEAD_SECONDS", 10)
        with Visitor(dashboard) as visitor:
            assert visitor.get("/static/icon.svg").status_code == 200


class Slow:
    """A transport whose reader takes what a test says; its loop's timers end when a test says so."""

    def __init__(self) -> None:
        self.size = 0
        self.has_ended = False
        self.timers: list[Callable[[], None]] = []

    def get_write_buffer_size(self) -> int:
        """Return what the reader did not take."""
        return self.size

    def get_extra_info(self, _name: str) -> None:
        """Know nothing."""

    def is_closing(self) -> bool:
        """Return whether it was ended."""
        return self.has_ended

    def abort(self) -> None:
        """Note the end."""
        self.has_ended = True

    def call_later(self, _seconds: float, act: Callable[[], None]) -> None:
        """Keep a timer, as a loop."""
        self.timers.append(act)


def test_a_reader_that_is_slow_keeps_its_answer() -> None:
    """While it takes 64 KiB within the time, or the rest; then the time for a request begins."""
    slow = Slow()
    slow.size = 200_000
    config = uvicorn.Config(lambda: None, log_config=None)
    connection: Any = connections.Connection(load.Load(), None, config, ServerState(), {}, slow)
    connection.connection_made(slow)
    for left, is_kept in ((100_000, True), (30_000, True), (0, True), (0, False)):
        slow.size = left
        slow.timers.pop()()
        assert slow.has_ended is not is_kept, left
    other = Slow()
    other.size = 200_000
    connection = connections.Connection(load.Load(), None, config, ServerState(), {}, other)
    connection.connection_made(other)
    other.size -= 1000
    other.timers.pop()()
    assert other.has_ended


def has_ended(connection: socket.socket) -> bool:
    """Return whether the dashboard ended a connection."""
    connection.settimeout(0)
    with contextlib.suppress(ConnectionError):
        try:
            connection.recv(1)
        except BlockingIOError:
            return False
    return True


def test_refusals_of_streams_and_of_servers_say_when_to_come_again(
    mq: ferromq.Embedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those for the room do."""
    monkeypatch.setattr("ferromq.dashboard.app.MOST_STREAMS", 1)
    with served(mq.namesrv) as dashboard, Visitor(dashboard) as visitor:
        stream = visitor.samples("/")
        next(stream)
        refused = visitor.get("/", headers={"accept": "text/event-stream"})
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
        stream.close()
    with ferromq.embedded() as other, served(other.namesrv, timeout=1.0) as dashboard, Visitor(dashboard) as visitor:
        other.close()
        refused = visitor.get("/topics")
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")


def test_pages_that_are_kept_for_streams_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """By their bytes: the one not used for longest is dropped."""
    monkeypatch.setattr(live, "_MOST_BYTES", 1000)

    async def rendered() -> live.Rendered:
        return live.Rendered("x" * 600, {}, {})

    async def run() -> list[bool]:
        feeds = live.Feeds()
        first = feeds.find(1, "/a", rendered)
        await first.sample()
        await feeds.find(1, "/b", rendered).sample()
        kept = feeds.find(1, "/b", rendered)
        return [feeds.find(1, "/a", rendered) is first, feeds.find(1, "/b", rendered) is kept]

    assert asyncio.run(run()) == [False, True]


def test_figures_of_open_pages_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of pages whose streams go on after they were dropped: the longest histories are cut."""
    monkeypatch.setattr(live, "_MOST_BYTES", 10_000)
    monkeypatch.setattr(live, "_MOST_FEEDS", 1)
    monkeypatch.setattr(live, "TICK_SECONDS", 0.0)
    monkeypatch.setattr(live, "_PAUSES", 0)

    async def rendered() -> live.Rendered:
        return live.Rendered("page", {"a": 1.0, "b": 2.0}, {})

    async def run() -> list[int]:
        feeds = live.Feeds()
        dropped, kept = feeds.find(1, "/a", rendered), feeds.find(1, "/b", rendered)
        for _ in range(40):
            await dropped.sample()
        for _ in range(40):
            await kept.sample()
            assert dropped.size + kept.size <= 10_000
        return [len(dropped.history), len(kept.history)]

    lengths = asyncio.run(run())
    assert sum(lengths) < 50
    assert min(lengths) > 0
