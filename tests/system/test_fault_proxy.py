"""The proxy of the tests of calls between processes: each fault does what its name says."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from fault_proxy import FaultProxy

PATIENCE = 10.0
SILENCE = 0.1
Eventually = Callable[[Callable[[], bool]], bool]


@pytest.fixture
def target() -> Iterator[str]:
    """Yield the address of a server that sends back what it receives."""

    def echo(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            while data := connection.recv(1000):
                connection.sendall(data)

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=echo, args=(server.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        thread.join(PATIENCE)


@pytest.fixture
def proxy(target: str) -> Iterator[FaultProxy]:
    """Yield a proxy before it."""
    with FaultProxy(target) as proxy:
        yield proxy


def connect(proxy: FaultProxy) -> socket.socket:
    """Connect through the proxy."""
    host, _, port = proxy.address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=PATIENCE)


def ask(connection: socket.socket, text: bytes) -> bytes:
    """Return the answer."""
    connection.sendall(text)
    return read(connection, len(text))


def read(connection: socket.socket, count: int) -> bytes:
    """Return so many bytes."""
    data = b""
    while len(data) < count:
        data += connection.recv(count - len(data))
    return data


def is_silent(connection: socket.socket) -> bool:
    """Say whether nothing comes for a moment."""
    connection.settimeout(SILENCE)
    try:
        return bool(connection.recv(1)) and False
    except TimeoutError:
        return True
    finally:
        connection.settimeout(PATIENCE)


def test_it_passes_bytes_on_until_a_side_ends(proxy: FaultProxy, eventually: Eventually) -> None:
    """In both directions; it counts its connections."""
    with connect(proxy) as connection:
        assert ask(connection, b"x" * 300_000) == b"x" * 300_000
        assert (proxy.accepted, proxy.connections) == (1, 1)
    assert eventually(lambda: proxy.connections == 0)


def test_a_hang_holds_everything_until_it_resumes(proxy: FaultProxy) -> None:
    """On open connections and new ones, which it accepts; nothing is lost."""
    with connect(proxy) as open_one:
        assert ask(open_one, b"before") == b"before"
        proxy.hang()
        with connect(proxy) as new_one:
            for each in (open_one, new_one):
                each.sendall(b"held")
                assert is_silent(each)
            proxy.resume()
            assert [read(each, 4) for each in (open_one, new_one)] == [b"held", b"held"]


def test_half_an_answer_ends_in_silence_until_it_resumes(proxy: FaultProxy) -> None:
    """So many bytes on each connection, and then the rest."""
    with connect(proxy) as connection:
        assert ask(connection, b"before") == b"before"
        proxy.half_answer(3)
        connection.sendall(b"answer")
        assert read(connection, 3) == b"ans"
        assert is_silent(connection)
        proxy.resume()
        assert read(connection, 3) == b"wer"


@pytest.mark.parametrize("count", [0, 3])
def test_a_cut_resets_after_so_many_bytes(proxy: FaultProxy, count: int) -> None:
    """New connections, too; after `resume` they are served."""
    for _ in range(2):
        with connect(proxy) as connection:
            proxy.cut(count)
            connection.sendall(b"answer")
            assert read(connection, count) == b"answer"[:count]
            with pytest.raises(ConnectionResetError):
                connection.recv(1)
    proxy.resume()
    with connect(proxy) as connection:
        assert ask(connection, b"after") == b"after"


def test_a_refusal_is_one_until_it_resumes(proxy: FaultProxy) -> None:
    """Open connections are reset, new ones refused, and the port stays its own."""
    with connect(proxy) as connection:
        assert ask(connection, b"before") == b"before"
        proxy.refuse()
        with pytest.raises(ConnectionResetError):
            connection.recv(1)
    with pytest.raises(ConnectionRefusedError):
        connect(proxy)
    proxy.resume()
    with connect(proxy) as connection:
        assert ask(connection, b"after") == b"after"


def test_a_delay_makes_answers_late(proxy: FaultProxy) -> None:
    """And no more than that."""
    with connect(proxy) as connection:
        proxy.delay(SILENCE)
        begin = time.monotonic()
        assert ask(connection, b"late") == b"late"
        assert time.monotonic() - begin >= SILENCE


def test_the_target_may_come_later() -> None:
    """Connections wait for it."""
    with FaultProxy() as proxy, connect(proxy) as connection, socket.create_server(("127.0.0.1", 0)) as server:
        connection.sendall(b"early")
        proxy.target = f"127.0.0.1:{server.getsockname()[1]}"
        proxy.resume()
        accepted, _ = server.accept()
        with accepted:
            assert read(accepted, 5) == b"early"
