"""The proxy of the tests of calls between processes: each fault does what its name says."""

import contextlib
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from fault_proxy import FaultProxy

from ferromq.testing.http2_frames import PREFACE

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


def test_a_lost_answer_resets_its_connection_once(proxy: FaultProxy) -> None:
    """Of the connection that asked for it, whatever pieces the request comes in; others and later answers pass."""
    with connect(proxy) as other, connect(proxy) as asking:
        assert ask(asking, b"before: paid") == b"before: paid"
        proxy.lose(containing=b"paid")
        assert ask(other, b"refused") == b"refused"
        assert ask(asking, b"not p") == b"not p"
        asking.sendall(b"aid")
        with pytest.raises(ConnectionResetError):
            asking.recv(1)
        assert ask(other, b"paid") == b"paid"
    proxy.lose(2)
    for _ in range(2):
        with connect(proxy) as asking, pytest.raises(ConnectionResetError):
            ask(asking, b"any")
    with connect(proxy) as asking:
        assert ask(asking, b"any") == b"any"


def test_flaky_answers_are_lost_by_the_draws(proxy: FaultProxy) -> None:
    """Which the same seed repeats."""

    def lost() -> list[bool]:
        proxy.flaky(random.Random(3), lose=0.5, delay=0.001)
        outcomes = []
        for _ in range(20):
            with connect(proxy) as connection:
                try:
                    outcomes.append(ask(connection, b"any") != b"any")
                except ConnectionResetError:
                    outcomes.append(True)
        return outcomes

    first = lost()
    assert first == lost()
    assert 0 < sum(first) < 20


def test_dropped_connections_may_come_back(proxy: FaultProxy) -> None:
    """Under the rule that holds."""
    proxy.delay(SILENCE)
    with connect(proxy) as connection:
        assert ask(connection, b"before") == b"before"
        proxy.drop()
        with pytest.raises(ConnectionResetError):
            connection.recv(1)
    with connect(proxy) as connection:
        begin = time.monotonic()
        assert ask(connection, b"late") == b"late"
        assert time.monotonic() - begin >= SILENCE


def frame(kind: int, stream: int, payload: bytes) -> bytes:
    """Return a frame of HTTP/2."""
    return len(payload).to_bytes(3) + bytes([kind, 0]) + stream.to_bytes(4) + payload


def test_over_http2_only_the_answer_itself_is_lost() -> None:
    """Not what the server says of the connection, nor the answer to another request on it."""
    settings, window, other = frame(4, 0, b""), frame(8, 0, b"1234"), frame(1, 3, b"of another request")
    with socket.create_server(("127.0.0.1", 0)) as server:
        target = f"127.0.0.1:{server.getsockname()[1]}"
        with FaultProxy(target) as proxy, connect(proxy) as connection:
            proxy.lose(containing=b"paid")
            connection.sendall(PREFACE + frame(1, 1, b"paid, in a header") + frame(0, 3, b"p") + frame(0, 1, b"is pa"))
            connection.sendall(frame(0, 3, b"aid") + frame(0, 1, b"id"))
            serving, _ = server.accept()
            with serving:
                asked = read(
                    serving, len(PREFACE) + 5 * 9 + len(b"paid, in a header" + b"p" + b"is pa" + b"aid" + b"id")
                )
                assert asked.endswith(b"id")
                for part in (settings, window, frame(0, 5, b"of a third")):
                    serving.sendall(part)
                    assert read(connection, len(part)) == part
                serving.sendall(other)
                with pytest.raises(ConnectionResetError):
                    connection.recv(1)


def test_a_new_command_forgets_the_requests_of_the_last_one() -> None:
    """The answer to a request that came before passes."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        target = f"127.0.0.1:{server.getsockname()[1]}"
        with FaultProxy(target) as proxy, connect(proxy) as connection:
            proxy.lose(containing=b"first")
            connection.sendall(b"first")
            serving, _ = server.accept()
            with serving:
                assert read(serving, 5) == b"first"
                proxy.lose(containing=b"second")
                connection.sendall(b"third")
                assert read(serving, 5) == b"third"
                serving.sendall(b"answers")
                assert read(connection, 7) == b"answers"
