"""Finds out whether a server that does not answer accepts connections, for the text of an error."""

import socket
import threading
from concurrent.futures import Future


def connects(endpoint: str, timeout: float) -> "Future[bool]":
    """
    Begin to connect to *endpoint*, `host:port`, on a thread; the result says whether it accepted within *timeout* s.

    The name may take longer to resolve: wait for the future with a limit.
    """
    found: Future[bool] = Future()
    found.set_running_or_notify_cancel()  # a caller that waits no longer cannot cancel it
    host, _, port = endpoint.rpartition(":")

    def connect() -> None:
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout).close()
        except OSError:
            found.set_result(False)
        else:
            found.set_result(True)

    try:
        threading.Thread(target=connect, name="ferromq-connects", daemon=True).start()
    except RuntimeError:  # the interpreter ends: it starts no more threads
        found.set_result(False)
    return found
