"""The small HTTP server: what it makes of requests, and what clients that misbehave cost."""

import contextlib
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from http import HTTPStatus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferromq.monitoring import http_server
from ferromq.monitoring.http_server import Asked, BadRequest, HttpServer, Page, parse

PATIENCE = 20


@pytest.fixture
def server() -> Iterator[HttpServer]:
    """Run a server with one page that works, one that fails and one that is large."""

    def fail() -> Page:
        raise RuntimeError("expected by the test")

    pages = {"/page": lambda: Page(b"text"), "/fails": fail, "/large": lambda: Page(bytes(8 << 20))}
    with contextlib.closing(HttpServer("127.0.0.1:0", pages)) as server:
        yield server


def connect(server: HttpServer) -> socket.socket:
    """Connect a client that waits for answers."""
    host, _, port = server.address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=PATIENCE)


def exchange(server: HttpServer, sent: bytes) -> bytes:
    """Send bytes and return all that comes back."""
    with connect(server) as client, contextlib.suppress(ConnectionError):
        client.sendall(sent)
        return b"".join(iter(lambda: client.recv(1 << 16), b""))
    return b""


def read(server: HttpServer, path: str) -> bytes:
    """Return a page."""
    with urllib.request.urlopen(f"http://{server.address}{path}", timeout=PATIENCE) as answer:
        body: bytes = answer.read()
        return body


@given(st.binary(max_size=200))
def test_any_bytes_are_a_request_or_refused(head: bytes) -> None:
    """Nothing else is raised."""
    with contextlib.suppress(BadRequest):
        assert isinstance(parse(head), Asked)


@given(st.sampled_from(["GET", "HEAD"]), st.from_regex(r"/[a-z/%0-9.]{0,40}", fullmatch=True), st.text(max_size=20))
def test_a_request_names_its_page(method: str, path: str, value: str) -> None:
    """Without the query, whatever its header has."""
    head = f"{method} {path}?a=b HTTP/1.1\r\nHost: {value}".encode()
    assert parse(head) == Asked(path, wants_body=method == "GET")


@pytest.mark.parametrize(
    ("line", "status"),
    [
        (b"GET /page", HTTPStatus.BAD_REQUEST),
        (b"GET /page HTTP/2", HTTPStatus.BAD_REQUEST),
        (b"GET  /page HTTP/1.1", HTTPStatus.BAD_REQUEST),
        (b"GET /p\xff HTTP/1.1", HTTPStatus.BAD_REQUEST),
        (b"POST /page HTTP/1.1", HTTPStatus.METHOD_NOT_ALLOWED),
    ],
)
def test_other_requests_are_refused(line: bytes, status: HTTPStatus) -> None:
    """With a status that says why."""
    with pytest.raises(BadRequest) as refused:
        parse(line + b"\r\nHost: a")
    assert refused.value.status is status


def test_an_answer_has_a_length_and_ends_the_connection(server: HttpServer) -> None:
    """A HEAD gets the length without the body."""
    head, _, body = exchange(server, b"GET /page HTTP/1.1\r\n\r\n").partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"\r\nContent-Length: 4\r\n" in head
    assert b"\r\nConnection: close" in head
    assert body == b"text"
    assert exchange(server, b"HEAD /page HTTP/1.1\r\n\r\n") == head + b"\r\n\r\n"


def test_pages_are_served(server: HttpServer) -> None:
    """Large ones, too; an unknown one names the others."""
    assert read(server, "/page?x=1") == b"text"
    assert len(read(server, "/large")) == 8 << 20
    with pytest.raises(urllib.error.HTTPError) as missing:
        read(server, "/other")
    assert missing.value.code == 404
    assert b"/page" in missing.value.read()


def test_a_page_that_takes_no_time_waits_for_no_other() -> None:
    """Whatever the others wait for."""
    go_on = threading.Event()

    def wait() -> Page:
        assert go_on.wait(PATIENCE)
        return Page(b"late")

    pages = {f"/{number}": wait for number in range(4)}
    with contextlib.closing(HttpServer("127.0.0.1:0", pages, {"/healthz": lambda: Page(b"ok")})) as server:
        waiting = [connect(server) for _ in pages]
        for client, path in zip(waiting, pages, strict=True):
            client.sendall(f"GET {path} HTTP/1.1\r\n\r\n".encode())
        assert read(server, "/healthz") == b"ok"
        go_on.set()
        for client in waiting:
            with client:
                assert b"".join(iter(lambda client=client: client.recv(1 << 16), b"")).endswith(b"late")


def test_a_page_that_fails_is_an_error_and_the_next_is_served(
    server: HttpServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Status 500, and the error in the log."""
    with pytest.raises(urllib.error.HTTPError) as failed:
        read(server, "/fails")
    assert failed.value.code == 500
    assert "page failed path=/fails" in caplog.text
    assert read(server, "/page") == b"text"


def test_a_huge_request_is_refused(server: HttpServer) -> None:
    """Without being read as a whole."""
    answer = exchange(server, b"GET /" + b"a" * (http_server.MAX_REQUEST * 4) + b" HTTP/1.1\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 431 ") or not answer
    assert read(server, "/page") == b"text"


def test_a_client_that_says_nothing_is_cut_off(server: HttpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the time for a request; others are served meanwhile."""
    monkeypatch.setattr(http_server, "REQUEST_SECONDS", 3.0)
    with connect(server) as silent, connect(server) as halfway:
        halfway.sendall(b"GET /page HTTP/1.1\r\nHo")
        assert read(server, "/page") == b"text"
        assert silent.recv(100).startswith(b"HTTP/1.1 408 ")
        assert halfway.recv(100).startswith(b"HTTP/1.1 408 ")


def test_a_client_that_leaves_costs_nothing(server: HttpServer) -> None:
    """Before its request ends, and before its answer is read."""
    for sent in (b"", b"GET /pa", b"GET /large HTTP/1.1\r\n\r\n"):
        with connect(server) as client:
            client.sendall(sent)
    assert read(server, "/page") == b"text"


def test_a_connection_beyond_the_limit_ends_the_oldest(server: HttpServer) -> None:
    """So that clients that read nothing cannot keep others out."""
    with contextlib.ExitStack() as stack:
        slow = [stack.enter_context(connect(server)) for _ in range(http_server.MAX_CONNECTIONS)]
        for client in slow:
            client.sendall(b"GET /large HTTP/1.1\r\n\r\n")
        for client in slow:
            assert client.recv(100).startswith(b"HTTP/1.1 200 ")
        assert read(server, "/page") == b"text"
        assert received(slow[0]) < 8 << 20
        # It has the whole page, however late it reads.
        assert received(slow[-1]) > (8 << 20) - 100


def received(client: socket.socket) -> int:
    """Return how many bytes come until the end of the connection."""
    count = 0
    with contextlib.suppress(ConnectionError):
        while data := client.recv(1 << 20):
            count += len(data)
    return count


def test_requests_that_wait_for_a_page_share_it() -> None:
    """Those that come while it is made get the next one, which is made once for all of them."""
    begun, go_on, made = threading.Event(), threading.Event(), list[int]()

    def make() -> Page:
        begun.set()
        assert go_on.wait(PATIENCE)
        made.append(len(made))
        return Page(b"%d" % made[-1])

    with (
        contextlib.closing(HttpServer("127.0.0.1:0", {"/page": make}, {"/healthz": lambda: Page(b"ok")})) as server,
        contextlib.ExitStack() as stack,
    ):
        clients = [stack.enter_context(connect(server)) for _ in range(9)]
        clients[0].sendall(b"GET /page HTTP/1.1\r\n\r\n")
        assert begun.wait(PATIENCE)
        for client in clients[1:]:
            client.sendall(b"GET /page HTTP/1.1\r\n\r\n")
        # Requests are taken in the order of their arrival; a page is not begun before this answer.
        assert read(server, "/healthz") == b"ok"
        go_on.set()
        bodies = [b"".join(iter(lambda client=client: client.recv(1 << 16), b""))[-1:] for client in clients]
    assert bodies == [b"0", *[b"1"] * 8]


def test_pages_of_slow_readers_are_bounded(server: HttpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of several megabytes are shared or given up: the bytes are bounded, not only the connections."""
    monkeypatch.setattr(http_server, "MAX_PAGES", 20 << 20)
    with contextlib.ExitStack() as stack:
        readers = list[socket.socket]()
        for _ in range(4):
            reader = stack.enter_context(connect(server))
            reader.sendall(b"GET /large HTTP/1.1\r\n\r\n")
            assert reader.recv(100).startswith(b"HTTP/1.1 200 ")
            readers.append(reader)
        counts = [received(reader) for reader in readers]
    assert [count > (8 << 20) - 100 for count in counts] == [False, False, True, True]


def test_an_end_while_a_page_is_made_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Its reader is cut off."""
    begun, go_on = threading.Event(), threading.Event()

    def make() -> Page:
        begun.set()
        assert go_on.wait(PATIENCE)
        raise RuntimeError("expected by the test")

    with contextlib.closing(HttpServer("127.0.0.1:0", {"/page": make})) as server, connect(server) as client:
        client.sendall(b"GET /page HTTP/1.1\r\n\r\n")
        assert begun.wait(PATIENCE)
        server.close()
        go_on.set()
        assert received(client) == 0
    assert caplog.records == []


def test_the_address_is_free_after_the_end() -> None:
    """Also while a client is connected; a second end does nothing."""
    server = HttpServer("127.0.0.1:0", {})
    with connect(server):
        server.close()
        server.close()
    with contextlib.closing(HttpServer(server.address, {})) as again:
        assert again.address == server.address


def test_a_taken_address_is_an_error(server: HttpServer) -> None:
    """At the start."""
    with pytest.raises(OSError, match="in use"):
        HttpServer(server.address, {})
