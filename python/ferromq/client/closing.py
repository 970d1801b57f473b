"""Closes clients on threads, all at once; the asynchronous twin is `ferromq.aio._closing`."""

import threading
from collections.abc import Sequence
from typing import Protocol

from ferromq.client.connection import remaining


class Closes(Protocol):
    """A client that can be closed."""

    def close(self, timeout: float) -> None:
        """End within about *timeout* seconds."""


def close_all(clients: Sequence[Closes], until: float) -> None:
    """Close clients by *until* (monotonic): one whose broker hangs takes no time from the others."""
    threads = []
    for client in clients[1:]:
        thread = threading.Thread(target=client.close, args=(remaining(until),), name="ferromq-close", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the interpreter ends: it starts no more threads
            client.close(remaining(until))
        else:
            threads.append(thread)
    for client in clients[:1]:
        client.close(remaining(until))
    for thread in threads:
        thread.join()
