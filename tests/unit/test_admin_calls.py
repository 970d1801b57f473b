"""The end of an administrator: it waits for calls of other threads, and takes no new ones."""

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

import ferromq

PATIENCE = 20.0


class Server:
    """Stands for an administrator's client; each answer waits for its release."""

    def __init__(self) -> None:
        self.asked = threading.Semaphore(0)
        self.answers = threading.Semaphore(0)
        self.is_closed = False

    def call(self, *_: object, **__: object) -> tuple[int, str | None, dict[str, str], bytes]:
        """Answer with a table of order configurations."""
        self.asked.release()
        assert self.answers.acquire(timeout=PATIENCE)
        return 0, None, {}, b'{"table":{"orders":"gone:4"}}'

    def close(self) -> None:
        """Note it."""
        self.is_closed = True


class Caller(threading.Thread):
    """Calls an administrator, and keeps the outcome."""

    def __init__(self, admin: ferromq.Admin) -> None:
        super().__init__(daemon=True)
        self._admin = admin
        self.outcome: object = None
        self.start()

    def run(self) -> None:
        """Make a call of two requests."""
        try:
            self._admin.take_out_broker("gone")
            self.outcome = "done"
        except ferromq.FerromqError as error:
            self.outcome = type(error)


@pytest.fixture
def server() -> Server:
    """Return a server."""
    return Server()


@pytest.fixture
def admin(server: Server) -> Iterator[ferromq.Admin]:
    """Yield an administrator that asks it."""
    admin = ferromq.Admin("a:1")
    client: Any = server
    admin._calls._client = client
    yield admin
    server.answers.release(100)
    admin.close()


def test_closing_waits_for_a_call_of_another_thread(admin: ferromq.Admin, server: Server) -> None:
    """To its end, all requests of it; new calls are refused meanwhile."""
    caller = Caller(admin)
    assert server.asked.acquire(timeout=PATIENCE)
    closing = threading.Thread(target=admin.close, args=(PATIENCE,), daemon=True)
    closing.start()
    while not admin.closed:
        time.sleep(0.001)
    with pytest.raises(ferromq.ClientClosed, match="this administrator is closed"):
        admin.topics()
    assert not server.is_closed
    server.answers.release(100)
    closing.join(PATIENCE)
    caller.join(PATIENCE)
    assert (caller.outcome, server.is_closed, closing.is_alive()) == ("done", True, False)


def test_a_call_that_takes_longer_than_the_timeout_of_close_fails(admin: ferromq.Admin, server: Server) -> None:
    """With its next request."""
    caller = Caller(admin)
    assert server.asked.acquire(timeout=PATIENCE)
    admin.close(0)
    assert server.is_closed
    server.answers.release(100)
    caller.join(PATIENCE)
    assert caller.outcome is ferromq.ClientClosed
