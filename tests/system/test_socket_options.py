"""Options of connections: how large the buffers of sockets are, and how many connections an address may have."""

import contextlib
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import ferromq

PATIENCE = 10.0
Eventually = Callable[[Callable[[], bool]], bool]


def connected(address: str) -> socket.socket:
    """Connect to a listener."""
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=PATIENCE)


def sizes(peer: tuple[str, int]) -> tuple[int, int] | None:
    """Return the sizes of the buffers of this process's socket to *peer*; None before there is one."""
    for file in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if not file.is_socket():
                continue
            with socket.socket(fileno=os.dup(int(file.name))) as found:
                if found.getpeername() == peer:
                    options = (socket.SO_SNDBUF, socket.SO_RCVBUF)
                    send, receive = (found.getsockopt(socket.SOL_SOCKET, option) for option in options)
                    return send, receive
    return None


@pytest.mark.skipif(sys.platform != "linux", reason="finds the server's socket in /proc")
def test_accepted_sockets_have_the_configured_buffers(eventually: Eventually) -> None:
    """Of both protocols. Linux counts twice what is asked for."""
    with ferromq.embedded(send_buffer=50_000, receive_buffer=40_000) as mq:
        for address in (mq.remoting, mq.endpoint):
            with connected(address) as client:
                assert eventually(lambda: sizes(client.getsockname()) == (100_000, 80_000))


def is_open(client: socket.socket, seconds: float) -> bool:
    """Say whether a connection is open so much later: a refused one is closed at once."""
    client.settimeout(seconds)
    try:
        return client.recv(1) != b""
    except TimeoutError:
        return True
    except OSError:
        return False


def test_an_address_has_at_most_its_connections(eventually: Eventually) -> None:
    """Both protocols count together; a connection that ends makes room."""
    with ferromq.embedded(max_connections_by_address=2) as mq, contextlib.ExitStack() as stack:
        stats = mq.broker.server.stats
        # The broker has connections to its name server alone.
        before = stats()["connections"]
        assert before == 0
        clients = [stack.enter_context(connected(address)) for address in (mq.remoting, mq.endpoint)]
        assert eventually(lambda: stats()["connections"] == 2)
        with connected(mq.remoting) as third:
            assert not is_open(third, PATIENCE)
        assert stats()["refused_connections"] == 1
        clients[0].close()
        assert eventually(lambda: stats()["connections"] == 1)
        assert is_open(stack.enter_context(connected(mq.remoting)), 0.3)
